"""What `model.generate` of Transformers takes: strategies with language models for `custom_generate=`."""

from .transducer import transducer_generate

__all__ = ["transducer_generate"]
