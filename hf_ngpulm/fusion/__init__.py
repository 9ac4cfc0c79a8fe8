"""Choose the language models, the phrases and the weights for each row of a batch."""
