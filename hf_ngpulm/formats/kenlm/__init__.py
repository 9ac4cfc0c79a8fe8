"""KenLM's binary files: tries and the hash tables of probing models become n-gram tables."""

from .file import KenLMFile
from .header import MAGIC

__all__ = ["MAGIC", "KenLMFile"]
