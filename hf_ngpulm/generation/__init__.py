"""Language models in Transformers' `generate`."""

from .logits_processor import NGramLogitsProcessor

__all__ = ["NGramLogitsProcessor"]
