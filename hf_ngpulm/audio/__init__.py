"""Recognise audio in chunks, for many streams at once."""

from .recognizer import StreamingRecognizer

__all__ = ["StreamingRecognizer"]
