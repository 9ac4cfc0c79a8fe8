"""Word-level language models for speech recognisers that put out tokens: a lexicon, and the LM composed with it."""

from .words import compose

__all__ = ["compose"]
