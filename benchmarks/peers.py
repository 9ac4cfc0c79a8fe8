"""CTC decoders of other projects, on the outputs of our models: their error rates and times beside ours.

Run with the Python of an environment that has them, and nothing of ours; the benchmarks start it (`--peers-python`), talk to
it in lines of JSON, and describe in `ways.PeerProcess` what `--outputs` has:

    pip install pyctcdecode kenlm flashlight-text ctc-beam-decoder "numpy<2"
    echo '{"decoder": "pyctcdecode", "lm": "words.arpa", "lm_weight": 0.5}' | python benchmarks/peers.py --outputs outputs.npz

A request names a `decoder` (a key of `DECODERS`) and its settings (as far as they shan't be the peer's own defaults). `lm`
is a plain ARPA file, of words for `pyctcdecode`, `ctc-beam-decoder` and `flashlight-lexicon` (`lexicon`: from words to
lists of token ids), of decimal token ids for the others. Weights are per natural logarithm whatever the decoder's own unit
is. The answer has the best transcripts (`texts`) and the seconds that decoding them all takes: loading is not counted,
turning labels into text is. A decoder that was asked for before is used again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np


class Outputs:
    """What a model made of clips: frames `[T, C]` of each, and its pieces by id, the blank last."""

    def __init__(self, path: Path) -> None:
        saved = np.load(path)
        ends = np.cumsum(saved["lengths"])
        self.rows = [np.ascontiguousarray(row) for row in np.split(saved["frames"], ends[:-1])]
        self.pieces = saved["pieces"].tolist()

    @property
    def blank(self) -> int:
        return len(self.pieces) - 1

    def text(self, tokens: Iterable[int]) -> str:
        """Return the text of SentencePiece tokens, with one space between words and without special tokens."""
        text = "".join(piece for piece in map(self.pieces.__getitem__, tokens) if (piece[:1], piece[-1:]) != ("<", ">"))
        return " ".join(text.replace("▁", " ").split())


Decode = Callable[[], list[str]]  # of all rows, in their order


def pyctcdecode(
    library: str, tokens: bool, outputs: Outputs, lm: str | None = None, lm_weight: float = 0.5, length_bonus: float = 1.5,
    beam_width: int = 100,
) -> Decode:  # fmt: skip
    """pyctcdecode as Transformers' `Wav2Vec2ProcessorWithLM` runs it, or a library with its interface, with a model of words
    over pieces of words; or with one of tokens: each is a word of its own, its id, since its label begins with '▁'."""
    logging.disable(logging.WARNING)  # "Unigrams and labels don't seem to agree", which is so for ids
    labels = [f"▁{token}" for token in range(outputs.blank)] if tokens else outputs.pieces[:-1]
    make = importlib.import_module(library).build_ctcdecoder
    beams = functools.partial(make([*labels, ""], lm, alpha=lm_weight, beta=length_bonus).decode_beams, prune_history=True)
    text = (lambda of_ids: outputs.text(map(int, of_ids.split()))) if tokens else str
    return lambda: [text(beams(row, beam_width=beam_width)[0][0]) for row in outputs.rows]


def flashlight(
    outputs: Outputs, lm: str, lm_weight: float = 0.87, beam_width: int = 50, beam_size_token: int = 1 << 30,
    beam_threshold: float = 50.0, length_bonus: float = 0.0, lexicon: dict[str, list[int]] | None = None,
) -> Decode:  # fmt: skip
    """flashlight-text's lexicon-free beam search, as torchaudio's `ctc_decoder` calls it, without a length bonus; or along the
    trie of a lexicon, with a model of words."""
    from flashlight.lib.text import decoder as library
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import Dictionary, create_word_dict

    blank, settings = outputs.blank, {"beam_size": beam_width, "beam_size_token": min(beam_size_token, len(outputs.pieces))}
    settings |= {"beam_threshold": beam_threshold, "sil_score": 0.0, "log_add": False}
    # Its KenLM scores are base-10 logarithms.
    settings |= {"lm_weight": lm_weight * math.log(10), "criterion_type": library.CriterionType.CTC}

    def best(decoder: Any) -> list[Any]:
        return [decoder.decode(row.ctypes.data, *row.shape)[0] for row in outputs.rows]

    if lexicon is None:
        model = KenLM(lm, Dictionary([*map(str, range(blank)), "<blank>"]))
        options = library.LexiconFreeDecoderOptions(**settings)
        # The path begins and ends with the silence token: as the blank, it can't be taken for a token's repetition.
        ids = {"sil_token_idx": blank, "blank_token_idx": blank, "transitions": []}
        make = functools.partial(library.LexiconFreeDecoder, options, model, **ids)
        return lambda: [outputs.text(collapse(found.tokens, blank)) for found in best(make())]
    words = create_word_dict({word: [list(map(str, tokens))] for word, tokens in lexicon.items()} | {"<unk>": []})
    model, trie = KenLM(lm, words), library.Trie(len(outputs.pieces), blank)
    start = model.start(False)
    for word, tokens in lexicon.items():
        index = words.get_index(word)
        trie.insert(tokens, index, model.score(start, index)[1])
    trie.smear(library.SmearingMode.MAX)
    options = library.LexiconDecoderOptions(**settings, word_score=length_bonus, unk_score=-math.inf)
    make = functools.partial(library.LexiconDecoder, options, trie, model, blank, blank, words.get_index("<unk>"), [], False)
    return lambda: [" ".join(words.get_entry(word) for word in found.words if word >= 0) for found in best(make())]


def collapse(labels: Iterable[int], blank: int) -> list[int]:
    """Return the tokens of a path: its labels without repetitions and blanks."""
    return [label for label, _ in itertools.groupby(labels) if label != blank]


DECODERS: dict[str, Callable[..., Decode]] = {
    "pyctcdecode": functools.partial(pyctcdecode, "pyctcdecode", False),
    "pyctcdecode-tokens": functools.partial(pyctcdecode, "pyctcdecode", True),
    "ctc-beam-decoder": functools.partial(pyctcdecode, "ctc_beam_decoder", False),  # in C++
    "flashlight": flashlight,
    "flashlight-lexicon": flashlight,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=Path, required=True, help=".npz with what a model made of clips")
    outputs, answers, made = Outputs(parser.parse_args().outputs), sys.stdout, dict[str, Decode]()
    with contextlib.redirect_stdout(sys.stderr):  # libraries may print, too
        for line in sys.stdin:
            request = json.loads(line)
            if line not in made:
                made[line] = DECODERS[request.pop("decoder")](outputs, **request)
            begin = time.process_time()
            texts = made[line]()
            print(json.dumps({"texts": texts, "seconds": time.process_time() - begin}), file=answers, flush=True)


if __name__ == "__main__":
    main()
