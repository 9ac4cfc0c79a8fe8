"""KenLM's binary files: tries become n-gram tables; the hash tables of probing models are queried as they are, or listed."""

from .file import KenLMFile, read_binary
from .header import is_kenlm_binary

__all__ = ["KenLMFile", "is_kenlm_binary", "read_binary"]
