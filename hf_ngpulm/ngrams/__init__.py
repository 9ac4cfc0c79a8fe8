"""N-gram tables, and how they are counted and estimated."""

from .table import NGramOrder, NGramTable

__all__ = ["NGramOrder", "NGramTable"]
