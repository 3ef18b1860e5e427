"""Every error that Lynx raises, as one tree.

A message is one sentence: which field, what was found, what would do.

LynxError
├── BadInput        the caller's value cannot be used (exit code 2, HTTP 400)
├── ProtocolError   a peer sent bytes that the wire specification forbids
├── LayoutMismatch  two instances disagree on model, layout or codec
├── TransferLost    a peer or link is gone and the transfer cannot be completed
└── PageCorrupt     a page's checksum or code is not what it must be
"""


class LynxError(Exception):
    """Root of the tree; never raised itself."""


class BadInput(LynxError):
    """The caller's value cannot be used."""


class ProtocolError(LynxError):
    """A peer sent bytes that the wire specification forbids."""


class LayoutMismatch(LynxError):
    """Two instances disagree on model, layout or codec."""


class TransferLost(LynxError):
    """A peer or link is gone and the transfer cannot be completed."""


class PageCorrupt(LynxError):
    """A page's checksum or code is not what it must be."""
