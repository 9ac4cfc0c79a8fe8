"""Word-level language models that are composed with their lexicon as searches come to their states."""

from .model import OnTheFlyLM

__all__ = ["OnTheFlyLM"]
