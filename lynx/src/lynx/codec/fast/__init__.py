"""The fast CPU path: numba kernels that agree with `lynx.codec.reference` bit for bit.

Chosen over a C extension by measurement: `docs/decisions/0001-codec-kernel.md`.
"""
