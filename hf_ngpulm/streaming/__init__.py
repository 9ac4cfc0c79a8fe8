"""Online decoding: many streams in one batch."""

from .decoder import StreamingDecoder
from .partials import Partial

__all__ = ["Partial", "StreamingDecoder"]
