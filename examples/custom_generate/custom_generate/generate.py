"""Language models and beam search for speech recognisers: see the README of this repo."""

from hf_ngpulm.generation import generate

__all__ = ["generate"]
