"""Codecs: pages of KV in, planes of bytes out, and back."""
