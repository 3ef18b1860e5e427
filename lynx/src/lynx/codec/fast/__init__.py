"""The fast CPU path: numba kernels that agree with `lynx.codec.reference` bit for bit.

Why numba: `docs/codec.md`.
"""
