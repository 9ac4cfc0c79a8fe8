"""File formats of language models, a module for each."""
