"""Decoding of CTC models."""

from .decoder import CTCDecoder

__all__ = ["CTCDecoder"]
