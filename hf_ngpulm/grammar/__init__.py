"""Grammars: the sentences that may be said, with slots."""
