"""Decode a model's output into hypotheses."""
