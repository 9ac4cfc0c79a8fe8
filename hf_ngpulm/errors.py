"""Named errors. All are ``ValueError``: bad input, never a bug; each message names the value and the remedy."""


class NGramFormatError(ValueError):
    """A file or repo that should hold an n-gram language model doesn't, or holds a broken one."""


class TokenizerMismatchError(ValueError):
    """A language model is used with a tokenizer whose token ids mean something else."""


class InvalidLogitsError(ValueError):
    """Model outputs that can't be decoded: NaN, infinity, or the wrong shape."""
