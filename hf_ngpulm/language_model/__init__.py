"""`NGramLM`: training, pruning, interpolation, perplexity."""
