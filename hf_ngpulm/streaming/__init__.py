"""Online decoding: many streams in one batch."""

from .audio import StreamingRecognizer
from .decoder import StreamingDecoder
from .partials import Partial

__all__ = ["Partial", "StreamingDecoder", "StreamingRecognizer"]
