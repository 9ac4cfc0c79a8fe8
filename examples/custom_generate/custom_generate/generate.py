"""Language models and beam search for Parakeet's and Nemotron's transducers: see the README of this repo."""

from hf_ngpulm.generation.transducer import generate

__all__ = ["generate"]
