"""Define `NGramLM`, with training, pruning, interpolation and perplexity."""
