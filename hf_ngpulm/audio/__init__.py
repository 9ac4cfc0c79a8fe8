"""From audio to an encoder's frames, chunk by chunk, for many streams at once."""

from .recognizer import StreamingRecognizer

__all__ = ["StreamingRecognizer"]
