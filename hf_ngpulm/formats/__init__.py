"""File formats of language models, one module per format."""
