"""Read KenLM's binary files (tries and probing hash tables) as n-gram tables."""

from .file import KenLMFile
from .header import MAGIC

__all__ = ["MAGIC", "KenLMFile"]
