"""Fast n-gram language models for every speech recogniser in Hugging Face Transformers."""

from .errors import InvalidLogitsError, NGramFormatError, TokenizerMismatchError
from .language_model import NGramLM

__all__ = ["InvalidLogitsError", "NGramFormatError", "NGramLM", "TokenizerMismatchError"]
