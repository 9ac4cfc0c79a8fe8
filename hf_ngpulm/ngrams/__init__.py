"""Represent, count and estimate n-gram tables."""

from .table import NGramOrder, NGramTable

__all__ = ["NGramOrder", "NGramTable"]
