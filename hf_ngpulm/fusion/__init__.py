"""Which language models and phrases the rows of a batch follow, with what weights."""
