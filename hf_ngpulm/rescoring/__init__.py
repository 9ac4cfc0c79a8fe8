"""Score the transcripts in n-best lists with causal language models of Transformers, as a second pass."""

from .loading import load_rescorer
from .rescorer import Rescorer
from .sampling import sampled_sentences
from .selection import selected_sentences

__all__ = ["Rescorer", "load_rescorer", "sampled_sentences", "selected_sentences"]
