"""N-gram tables: counting and estimation."""

from .table import NGramOrder, NGramTable

__all__ = ["NGramOrder", "NGramTable"]
