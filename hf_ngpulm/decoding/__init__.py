"""Decoders: from a model's output to hypotheses."""
