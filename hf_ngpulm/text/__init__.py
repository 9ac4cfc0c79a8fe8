"""Text for language models: where it comes from, how it is cleaned and encoded, and whether it fits the recogniser."""

from .encoding import encode_texts
from .normalisation import normaliser
from .sources import read_ids, read_texts, total_bytes
from .style import mismatches

__all__ = ["encode_texts", "mismatches", "normaliser", "read_ids", "read_texts", "total_bytes"]
