"""Choose the language models and phrases that the rows of a batch follow, and their weights."""
