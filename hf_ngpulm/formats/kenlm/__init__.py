"""Read KenLM's binary files: both its tries and its probing hash tables become n-gram tables."""

from .file import KenLMFile
from .header import MAGIC

__all__ = ["MAGIC", "KenLMFile"]
