"""Read, clean and encode text for language models, and check that its style fits the recogniser."""

from .encoding import encode_texts
from .normalisation import normaliser
from .sources import TextFiles, read_ids, read_texts, total_bytes
from .style import mismatches
from .words import begins_with_blank, with_blank

__all__ = [
    "TextFiles",
    "begins_with_blank",
    "encode_texts",
    "mismatches",
    "normaliser",
    "read_ids",
    "read_texts",
    "total_bytes",
    "with_blank",
]
