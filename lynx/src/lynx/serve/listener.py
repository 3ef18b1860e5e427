"""The socket that a server of Lynx listens on, with the usual mishaps put into a sentence."""

import errno
import socket

from lynx.errors import BadInput


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; it listens once the server runs, so that until then connections are refused.

    Raises:
        BadInput: the address is taken or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BadInput(
                f"port {port} on {host} is in use; give another --port, or 0 for a free one"
            ) from None
        raise BadInput(
            f"cannot listen on {host}:{port} ({error.strerror}); give an address of this machine"
        ) from None
    return listener
