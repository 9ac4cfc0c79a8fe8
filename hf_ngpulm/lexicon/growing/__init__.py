"""Word-level language models that are composed with their lexicon as far as searches come."""
