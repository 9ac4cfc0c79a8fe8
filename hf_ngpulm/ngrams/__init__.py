"""N-gram tables, and everything from and to them."""

from .arpa import read_arpa, write_arpa
from .nemo import read_nemo
from .table import NGramOrder, NGramTable

__all__ = ["NGramOrder", "NGramTable", "read_arpa", "read_nemo", "write_arpa"]
