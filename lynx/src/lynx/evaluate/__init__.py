"""Codecs measured without a network: accepted drafts, attention error, divergence, bits. Needs transformers."""

from lynx.evaluate.model import Model
from lynx.evaluate.run import evaluate, main

__all__ = ["Model", "evaluate", "main"]
