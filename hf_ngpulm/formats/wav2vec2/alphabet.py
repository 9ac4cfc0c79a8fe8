"""Represent the labels of a CTC model's outputs in pyctcdecode's notation, and as a tokenizer."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ...errors import NGramFormatError

logger = logging.getLogger(__name__)

BPE_TOKEN = "▁"
UNK_TOKEN = "⁇"
UNK_BPE_TOKEN = "▁⁇▁"
BLANK_TOKEN_PTN = re.compile(r"^[<\[]pad[>\]]$", re.IGNORECASE)
UNK_TOKEN_PTN = re.compile(r"^[<\[]unk[>\]]$", re.IGNORECASE)
_SPECIAL = re.compile(r"^[<\[].+[>\]]$")


class Alphabet:
    """Hold labels in pyctcdecode's notation.

    `""` is the blank, and `⁇` is the unknown token. Either `" "` separates words, or `▁` begins a word.

    Args:
        labels: one label per class of the outputs, all different.
        is_bpe: whether a label with `▁` begins a word; otherwise the label `" "` separates words.
    """

    def __init__(self, labels: Sequence[str], is_bpe: bool) -> None:
        self._labels, self._is_bpe = list(labels), bool(is_bpe)

    @property
    def labels(self) -> list[str]:
        """A copy of the labels."""
        return list(self._labels)

    @property
    def is_bpe(self) -> bool:
        return self._is_bpe

    @classmethod
    def build_alphabet(cls, labels: Iterable[str]) -> Alphabet:
        """Convert labels to pyctcdecode's notation.

        If no label is a space, `|` becomes the space. `<pad>`, `[PAD]` or else `_` becomes the blank. If there is no such
        label, a blank is appended. `<unk>` becomes `⁇`. WordPiece's notation (`##` marks a piece that continues a word) becomes
        SentencePiece's notation (`▁` marks a piece that begins a word).

        Raises:
            ValueError: a label occurs twice, or a label contains a space although other labels begin words with `▁`.
        """
        labels = list(labels)
        doubles = sorted({label for label in labels if labels.count(label) > 1})
        if doubles:
            raise ValueError(f"labels should be all different, but {doubles[:5]} occur more than once")
        has_hashes = any(label.startswith("##") for label in labels)
        is_bpe = has_hashes or any(label.startswith(BPE_TOKEN) for label in labels)
        if is_bpe and any(" " in label for label in labels):
            raise ValueError(f"labels with {BPE_TOKEN} or ## say where words begin; a label with a space has no place there")
        if has_hashes:
            labels = [_begins_word(label) for label in labels]
        elif not is_bpe and "|" in labels and " " not in labels:
            labels[labels.index("|")] = " "
        labels = ["" if BLANK_TOKEN_PTN.match(label) else label for label in labels]
        if not is_bpe and "_" in labels and "" not in labels:
            labels[labels.index("_")] = ""
        if "" not in labels:
            logger.info("no label is the CTC blank's: it is appended to the end")
            labels.append("")
        unknown = UNK_BPE_TOKEN if is_bpe else UNK_TOKEN
        labels = [unknown if UNK_TOKEN_PTN.match(label) else label for label in labels]
        if not is_bpe and " " not in labels:
            logger.warning("no label stands between words (' ' or '|')")
        return cls(labels, is_bpe)

    def dumps(self) -> str:
        """Return the alphabet as JSON."""
        return json.dumps({"labels": self._labels, "is_bpe": self._is_bpe})

    @classmethod
    def loads(cls, text: str) -> Alphabet:
        """Read the alphabet from JSON.

        Raises:
            NGramFormatError: the text isn't JSON, or the JSON isn't an alphabet.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NGramFormatError(f"alphabet.json isn't JSON: {error}") from None
        labels = values.get("labels") if isinstance(values, dict) else None
        if (
            not isinstance(labels, list)
            or not all(isinstance(label, str) for label in labels)
            or labels.count("") != 1
            or len(set(labels)) != len(labels)
            or not isinstance(values.get("is_bpe"), bool)
        ):
            raise NGramFormatError(
                "alphabet.json should be an object with labels (texts, all different, one of them empty: the blank) and is_bpe "
                f"(true or false), is {text[:80]!r}"
            )
        return cls(labels, values["is_bpe"])


def verify_alphabet_coverage(alphabet: Alphabet, unigrams: Collection[str]) -> None:
    """Warn if more than a fifth of the unigrams' distinct characters are in no label."""
    of_words, of_labels = set("".join(unigrams)), set("".join(alphabet.labels))
    missing = of_words - of_labels
    if len(missing) > 0.2 * len(of_words):
        shown = ", ".join(map(repr, sorted(missing)[:5]))
        logger.warning(
            "the labels lack %s of the %s characters of the unigrams, such as %s", len(missing), len(of_words), shown
        )


def _begins_word(label: str) -> str:
    """Return a WordPiece label in SentencePiece's notation."""
    if label.startswith("##"):
        return label[2:]
    special = _SPECIAL.match(label) or label in ("", BPE_TOKEN, UNK_BPE_TOKEN)
    return label if special else BPE_TOKEN + label


class LabelTokenizer:
    """Tokenize with the labels of an alphabet. The class has the methods that decoders with words need.

    If the labels are letters, a word is spelled label by label. If the labels are pieces (`▁`), a word is spelled with the
    fewest pieces. This segmentation may differ from the segmentation in the recogniser's training.
    """

    is_fast = False
    name_or_path = "the labels"

    def __init__(self, alphabet: Alphabet) -> None:
        self.labels, self.is_bpe = alphabet.labels, alphabet.is_bpe
        self._written = [label.replace(BPE_TOKEN, " ") if self.is_bpe else label for label in self.labels]
        self.ids = {label: token for token, label in enumerate(self.labels)}
        self.pad_token_id = self.ids[""]
        self.all_special_ids = [self.pad_token_id]
        self.word_delimiter_token = None if self.is_bpe else " "
        self.word_delimiter_token_id = None if self.is_bpe else self.ids.get(" ")
        # With letters, an unknown letter is left out; with pieces, the whole word is unknown.
        self.unk_token_id = len(self.labels) if self.is_bpe else None
        # Longest first, if some labels have several characters.
        ways = sorted((label for label in self.labels if label), key=len, reverse=True)
        self._label = re.compile("|".join(map(re.escape, ways)))

    def __len__(self) -> int:
        return len(self.labels)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.ids)

    def __call__(self, texts: str | list[str], **_: Any) -> dict[str, Any]:
        if isinstance(texts, str):
            return {"input_ids": self._encode(texts)}
        return {"input_ids": [self._encode(text) for text in texts]}

    def _encode(self, text: str) -> list[int]:
        if not self.is_bpe:
            return [self.ids[label] for label in self._label.findall(text)]
        return [token for word in text.split() for token in self._fewest(BPE_TOKEN + word)]

    def _fewest(self, word: str) -> list[int]:
        """Return the token ids of the fewest pieces that form a word. If no pieces form the word, return the unknown token."""
        ways: list[list[int] | None] = [[]]
        for end in range(1, len(word) + 1):
            begun = [(before, word[begin:end]) for begin, before in enumerate(ways) if before is not None]
            segmentations = [[*before, self.ids[piece]] for before, piece in begun if piece in self.ids]
            ways.append(min(segmentations, key=len, default=None))
        return [len(self.labels)] if ways[-1] is None else ways[-1]

    def tokenize(self, text: str) -> list[str]:
        return [self.labels[token] if token < len(self.labels) else UNK_TOKEN for token in self._encode(text)]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.labels[token] for token in ids]

    def decode(self, ids: Iterable[int], **_: Any) -> str:
        return " ".join("".join([self._written[token] for token in ids]).split())
