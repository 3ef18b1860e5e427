"""Bulk traffic over a veth pair between two network namespaces of this bench's own, and what arrived."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

NEAR, FAR, DEVICE = "k40s-bench-a", "k40s-bench-b", "va"
NEAR_ADDRESS, FAR_ADDRESS = "10.77.0.1", "10.77.0.2"

SINK = """
import socket, sys, threading
def drain(connection):
    while connection.recv(1 << 16): pass
server = socket.create_server(("{address}", {port}))
while True:
    connection, _ = server.accept()
    threading.Thread(target=drain, args=(connection,), daemon=True).start()
"""
SOURCE = """
import socket, time
until = time.monotonic() + {seconds}
connection = socket.socket()
connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, {dscp} << 2)
for _ in range(100):
    try:
        connection.connect(("{address}", {port}))
        break
    except OSError:
        time.sleep(0.05)
data = bytes(1 << 16)
while time.monotonic() < until:
    connection.sendall(data)
"""


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def namespaces() -> Iterator[None]:
    """Two namespaces with a veth pair; gone afterwards, also when an earlier run was killed."""
    for name in (NEAR, FAR):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    try:
        for name in (NEAR, FAR):
            _run("ip", "netns", "add", name)
        _run("ip", "-n", NEAR, "link", "add", DEVICE, "type", "veth", "peer", "name", "vb", "netns", FAR)
        for name, device, address in ((NEAR, DEVICE, NEAR_ADDRESS), (FAR, "vb", FAR_ADDRESS)):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", device)
            _run("ip", "-n", name, "link", "set", device, "up")
        yield
    finally:
        for name in (NEAR, FAR):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _python(namespace: str, program: str) -> subprocess.Popen[bytes]:
    command = ["nsenter", f"--net=/run/netns/{namespace}", sys.executable, "-S", "-c", program]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def flows(seconds: float, *dscps: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One saturating TCP flow for each code point, for at most so long."""
    started = []
    try:
        for index, dscp in enumerate(dscps):
            port = 9000 + index
            started.append(_python(FAR, SINK.format(address=FAR_ADDRESS, port=port)))
            source = SOURCE.format(address=FAR_ADDRESS, port=port, seconds=seconds, dscp=dscp)
            started.append(_python(NEAR, source))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def settle(seconds: float) -> None:
    """Let flows reach their speed."""
    time.sleep(seconds)
