"""Find the words in sequences of tokens."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

# Marks of pieces that begin a word: SentencePiece's and byte-level BPE's.
MARKS = ("▁", "Ġ")
# All marks that show where words begin or end, including those of WordPiece, subword-nmt and older BPE.
WORD_MARKS = (*MARKS, "##", "@@", "</w>")
# Characters of scripts without blanks between words, for a regular expression.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_BEGINS_UNSPACED = re.compile(f"[{UNSPACED}]")


def begins_with_blank(tokenizer: Any) -> bool:
    """Return whether transcripts begin with a space that the tokenizer doesn't add, as in Whisper."""
    return {"<|startoftranscript|>", "Ġ"} <= tokenizer.get_vocab().keys() and not tokenizer.tokenize("a")[0].startswith("Ġ")


def with_blank(text: str) -> str:
    """Return a text with a leading space. An empty text, or a text in a script without spaces, stays unchanged."""
    return text if not text or text[0].isspace() or _BEGINS_UNSPACED.match(text) else f" {text}"


class WordSplitter:
    """Cut token sequences of one tokenizer into words.

    If the vocabulary has pieces with the mark of SentencePiece or byte-level BPE, words begin at these pieces. Otherwise words
    end at the tokenizer's word delimiter (`|` in many vocabularies of characters), or at spaces.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = copy.copy(tokenizer)
        # Some tokenizers look this up for every token, which takes most of the time.
        vars(self.tokenizer)["pad_token_id"] = getattr(tokenizer, "pad_token_id", None)
        vocabulary = tokenizer.get_vocab()
        self.mark = next((mark for mark in MARKS if any(piece.startswith(mark) for piece in vocabulary)), None)
        delimiter = getattr(tokenizer, "word_delimiter_token", None)
        self.delimiter = delimiter if delimiter in vocabulary else " "
        self.special = set(tokenizer.all_special_ids)

    def words(self, token_ids: Sequence[int]) -> list[tuple[str, int, int]]:
        """Return each word's text and token span: the index of its first token and the index after its last token."""
        spans = ((self.text(token_ids[first:last]).strip(), first, last) for first, last in self.spans(token_ids))
        return [word for word in spans if word[0]]

    def spans(self, token_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return each word's token span: the index of its first token and the index after its last token."""
        spans: list[tuple[int, int]] = []
        inside = False
        for i, (token_id, piece) in enumerate(zip(token_ids, self.tokenizer.convert_ids_to_tokens(list(token_ids)))):
            if token_id in self.special or (self.mark is None and piece == self.delimiter):
                inside = False
            elif not inside or (self.mark is not None and piece.startswith(self.mark)):
                spans.append((i, i + 1))
                inside = True
            else:
                spans[-1] = spans[-1][0], i + 1
        return spans

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text of each token; a word delimiter becomes a space."""
        texts = []
        for token_id, piece in zip(token_ids, self.tokenizer.convert_ids_to_tokens(list(token_ids))):
            begins_word = piece == self.delimiter if self.mark is None else piece.startswith(self.mark)
            text = self.text([token_id]).strip()
            texts.append(f" {text}" if begins_word else text)
        return texts

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens. Repeated tokens stay, because a search has already merged repeated labels."""
        return self.tokenizer.decode(list(token_ids), group_tokens=False)
