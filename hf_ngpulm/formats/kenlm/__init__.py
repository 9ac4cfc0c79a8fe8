"""KenLM's binary files: tries and the hash tables of probing models become n-gram tables."""

from .file import KenLMFile, is_kenlm_binary, read_binary

__all__ = ["KenLMFile", "is_kenlm_binary", "read_binary"]
