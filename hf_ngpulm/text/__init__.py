"""Read, clean and encode text for language models, and compare the style of the text with the recogniser's style."""

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
