"""KenLM binaries of tests/data/kenlm, and KenLM's scores for them."""

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np

from hf_ngpulm.ngrams import NGramTable

DATA = Path(__file__).parents[1] / "data" / "kenlm"
LN10 = np.log(10.0)
_NAMES = sorted(path.name.removesuffix(".bin.gz") for path in DATA.glob("*.bin.gz"))
PROBING = [name for name in _NAMES if "probing" in name]
WITH_TABLE = [name for name in _NAMES if "no_words" not in name and "1_bit" not in name]


@cache
def content(name: str) -> bytes:
    """A binary's bytes."""
    return gzip.decompress((DATA / f"{name}.bin.gz").read_bytes())


def unpack(name: str, folder: Path) -> Path:
    path = folder / f"{name}.bin"
    path.write_bytes(content(name))
    return path


def arpa_of(name: str) -> Path:
    """The ARPA file that a binary was built from."""
    order = name.split("_")[0]
    changes = [change for change in ("no_unk", "gaps", "ids") if name.endswith(change)]
    return DATA / ("_".join([order, *changes]) + ".arpa.gz")


@cache
def golden() -> dict:
    return json.loads(gzip.decompress((DATA / "golden.json.gz").read_bytes()))


def sentences() -> list[list[str]]:
    """The words that the golden scores are of, `</s>` included."""
    return [[*words, "</s>"] for words in golden()["sentences"]]


def scores(name: str) -> list[np.ndarray]:
    """KenLM's scores of the words of each sentence, natural logs."""
    return [np.array(row) * LN10 for row in golden()["scores"][name]]


class DictionaryModel:
    """A backoff model asked in the plainest way: n-grams in a dictionary."""

    def __init__(self, table: NGramTable, words: list[str]) -> None:
        self.order = table.order
        self.ids = {word: token_id for token_id, word in enumerate(words)}
        self.ids |= {"<s>": table.bos, "</s>": table.eos}
        self.unk = table.unk
        self.ngrams = {}
        for n, order in enumerate(table.orders, start=1):
            weights = zip(order.log_probs.tolist(), order.backoffs.tolist())
            self.ngrams |= dict(zip(map(tuple, table.rows(n).tolist()), weights))

    def score(self, words: list[str]) -> list[float]:
        """Natural log-probability of each word after `<s>` and those before it."""
        ids = [self.ids["<s>"], *(self.ids.get(word, self.unk) for word in words)]
        return [self._score(tuple(ids[max(0, i - self.order + 1) : i]), ids[i]) for i in range(1, len(ids))]

    def _score(self, context: tuple[int, ...], word: int) -> float:
        if (*context, word) in self.ngrams:
            return self.ngrams[(*context, word)][0]
        return self.ngrams.get(context, (0, 0))[1] + self._score(context[1:], word)
