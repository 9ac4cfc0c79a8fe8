"""A tokenizer of single letters: as much of one as a decoder asks for."""

from __future__ import annotations


class Letters:
    """Token i is `pieces[i]`; `|` stands between words. With an `lm` it claims that model's vocabulary size."""

    all_special_ids = ()
    word_delimiter_token = "|"

    def __init__(self, pieces, blank=None, lm=None):
        self.pieces, self.pad_token_id = pieces, blank
        self.size = len(pieces) if lm is None else lm.vocab_size

    def get_vocab(self):
        return {piece: i for i, piece in enumerate(self.pieces)}

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[i] for i in ids]

    def decode(self, ids, group_tokens=False):
        return "".join(" " if self.pieces[i] == "|" else self.pieces[i] for i in ids)

    def __len__(self):
        return self.size
