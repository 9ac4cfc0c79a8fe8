"""Compose word-level language models with a lexicon, for speech recognisers whose outputs are tokens."""

from .words import compose

__all__ = ["compose"]
