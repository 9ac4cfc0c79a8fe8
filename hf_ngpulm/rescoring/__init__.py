"""Score transcripts with causal language models of Transformers: a second pass over n-best lists."""

from .loading import load_rescorer
from .rescorer import Rescorer

__all__ = ["Rescorer", "load_rescorer"]
