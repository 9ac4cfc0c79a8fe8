"""Decode saved CTC outputs with other projects' decoders, to set their word error rates and times beside ours.

Run it with the python of an environment that has the peers, and nothing of ours:

    pip install pyctcdecode kenlm flashlight-text ctc-beam-decoder "numpy<2"      # one environment
    pip install "nemo_toolkit[asr]==3.0.0"                                        # another one, for NeMo

    python benchmarks/peers_ctc.py pyctcdecode --logits dev.npz --vocabulary pieces.json --lm words.arpa
    python benchmarks/peers_ctc.py pyctcdecode-tokens --logits dev.npz --vocabulary pieces.json --lm tokens.arpa
    python benchmarks/peers_ctc.py flashlight --logits dev.npz --vocabulary pieces.json --lm tokens.arpa --log-add
    python benchmarks/peers_ctc.py flashlight-lexicon --logits dev.npz --vocabulary pieces.json --lm words.arpa --lexicon l.json
    python benchmarks/peers_ctc.py nemo-beam --logits dev.npz --vocabulary pieces.json --lm tokens.arpa --beam-width 8

`--logits` is an .npz with `log_probs` (float32 `[N, T, C]`, padded) and `lengths` (`[N]`); `--vocabulary` a JSON list of the
`C` SentencePiece pieces by id, the blank last. `--lm` is a plain ARPA file, of words for `pyctcdecode`, `ctc-beam-decoder` and
`flashlight-lexicon`, and of decimal token ids for the others, which search without a language model if there is none;
`--lexicon` a JSON object from words to lists of token ids. `COMMAND --help` lists the settings of each decoder.
Weights are per natural logarithm whatever the decoder's own unit is.

The JSON has the best transcript and its score for each utterance, and the median of the seconds of CPU that decoding them all
takes, on one thread: loading, and making the arrays that a decoder reads, are not counted; turning its labels into text is.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np

Hypothesis = tuple[str, float]
Decode = Callable[[], list[Hypothesis]]

NEMO_OFFSET = 100  # NeMo's ARPA files have chr(id + 100) as the unit of a token
NEVER = -1e4  # a log-probability low enough never to be chosen


def pyctcdecode(utterances: list[np.ndarray], pieces: list[str], args: argparse.Namespace) -> Decode:
    """pyctcdecode as Transformers' `Wav2Vec2ProcessorWithLM` runs it: a model of words over pieces of words."""
    return _pyctcdecode([*pieces[:-1], ""], utterances, args, text=str)


def ctc_beam_decoder(utterances: list[np.ndarray], pieces: list[str], args: argparse.Namespace) -> Decode:
    """ctc-beam-decoder, a library in C++ with pyctcdecode's interface: a model of words over pieces of words."""
    import ctc_beam_decoder as library

    lm = args.lm and str(args.lm)
    decoder = library.build_ctcdecoder(
        [*pieces[:-1], ""], lm, alpha=args.lm_weight, beta=args.length_bonus, unk_score_offset=args.unk_score_offset
    )
    return _beams_of(decoder, utterances, args, str)


def pyctcdecode_tokens(utterances: list[np.ndarray], pieces: list[str], args: argparse.Namespace) -> Decode:
    """pyctcdecode with a model of tokens: each token is a word of its own, its id, since its label begins with '▁'."""
    labels = [*(f"▁{token}" for token in range(len(pieces) - 1)), ""]
    return _pyctcdecode(labels, utterances, args, text=lambda words: detokenise(map(int, words.split()), pieces))


def _pyctcdecode(
    labels: list[str], utterances: list[np.ndarray], args: argparse.Namespace, text: Callable[[str], str]
) -> Decode:
    logging.disable(logging.WARNING)  # "Unigrams and labels don't seem to agree", which is so for ids
    from pyctcdecode import build_ctcdecoder

    decoder = build_ctcdecoder(
        labels,
        args.lm and str(args.lm),
        alpha=args.lm_weight,
        beta=args.length_bonus,
        unk_score_offset=args.unk_score_offset,
    )

    return _beams_of(decoder, utterances, args, text)


def _beams_of(decoder: Any, utterances: list[np.ndarray], args: argparse.Namespace, text: Callable[[str], str]) -> Decode:
    def decode() -> list[Hypothesis]:
        hypotheses = []
        for log_probs in utterances:
            best = decoder.decode_beams(
                log_probs,
                beam_width=args.beam_width,
                beam_prune_logp=args.beam_prune_logp,
                token_min_logp=args.token_min_logp,
                prune_history=True,  # as its `decode`, which doesn't tell the score
            )[0]
            hypotheses.append((text(best[0]), float(best[-1])))
        return hypotheses

    return decode


def flashlight(utterances: list[np.ndarray], pieces: list[str], args: argparse.Namespace) -> Decode:
    """flashlight-text's lexicon-free beam search, as torchaudio's `ctc_decoder` calls it.

    It has no length bonus. One that isn't 0 comes from a model written in Python around its own, at the price of a call of
    Python for each score.
    """
    from flashlight.lib.text.decoder import LM, CriterionType, LexiconFreeDecoder, LexiconFreeDecoderOptions, LMState, ZeroLM
    from flashlight.lib.text.dictionary import Dictionary

    class LengthBonus(LM):
        def __init__(self, lm: LM) -> None:
            LM.__init__(self)
            self.lm = lm

        def start(self, start_with_nothing: bool) -> LMState:
            return self.lm.start(start_with_nothing)

        def score(self, state: LMState, token: int) -> tuple[LMState, float]:
            next_state, score = self.lm.score(state, token)
            return next_state, lm_weight * score + args.length_bonus

        def finish(self, state: LMState) -> tuple[LMState, float]:
            final_state, score = self.lm.finish(state)
            return final_state, lm_weight * score

    blank = len(pieces) - 1
    lm_weight = args.lm_weight * math.log(10)  # its KenLM scores are base-10 logarithms
    if args.lm:
        from flashlight.lib.text.decoder.kenlm import KenLM

        lm = KenLM(str(args.lm), Dictionary([*map(str, range(blank)), "<blank>"]))
    else:
        lm = ZeroLM()
    options = LexiconFreeDecoderOptions(
        beam_size=args.beam_width,
        beam_size_token=min(args.beam_size_token, len(pieces)),
        beam_threshold=args.beam_threshold,
        lm_weight=1.0 if args.length_bonus else lm_weight,
        sil_score=0.0,
        log_add=args.log_add,
        criterion_type=CriterionType.CTC,
    )
    if args.length_bonus:
        lm = LengthBonus(lm)

    def decode() -> list[Hypothesis]:
        # The path begins and ends with the silence token: as the blank, it can't be taken for a token's repetition.
        decoder = LexiconFreeDecoder(options, lm, sil_token_idx=blank, blank_token_idx=blank, transitions=[])
        hypotheses = []
        for log_probs in utterances:
            best = decoder.decode(log_probs.ctypes.data, *log_probs.shape)[0]
            hypotheses.append((detokenise(collapse(best.tokens, blank), pieces), best.score))
        return hypotheses

    return decode


def flashlight_lexicon(utterances: list[np.ndarray], pieces: list[str], args: argparse.Namespace) -> Decode:
    """flashlight-text's beam search along the trie of a lexicon, with a model of words."""
    from flashlight.lib.text.decoder import CriterionType, LexiconDecoder, LexiconDecoderOptions, SmearingMode, Trie
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import create_word_dict

    lexicon = {word: [tokens] for word, tokens in json.loads(args.lexicon.read_text(encoding="utf-8")).items()}
    blank = len(pieces) - 1
    words = create_word_dict(
        {word: [list(map(str, tokens)) for tokens in ways] for word, ways in lexicon.items()} | {"<unk>": []}
    )
    lm = KenLM(str(args.lm), words)
    trie = Trie(len(pieces), blank)
    start = lm.start(False)
    for word, ways in lexicon.items():
        index = words.get_index(word)
        _, score = lm.score(start, index)
        for tokens in ways:
            trie.insert(tokens, index, score)
    trie.smear(SmearingMode.MAX)
    options = LexiconDecoderOptions(
        beam_size=args.beam_width,
        beam_size_token=min(args.beam_size_token, len(pieces)),
        beam_threshold=args.beam_threshold,
        lm_weight=args.lm_weight * math.log(10),  # its KenLM scores are base-10 logarithms
        word_score=args.length_bonus,
        unk_score=-math.inf,
        sil_score=0.0,
        log_add=args.log_add,
        criterion_type=CriterionType.CTC,
    )

    def decode() -> list[Hypothesis]:
        decoder = LexiconDecoder(options, trie, lm, blank, blank, words.get_index("<unk>"), [], False)
        hypotheses = []
        for log_probs in utterances:
            best = decoder.decode(log_probs.ctypes.data, *log_probs.shape)[0]
            hypotheses.append((" ".join(words.get_entry(word) for word in best.words if word >= 0), best.score))
        return hypotheses

    return decode


def nemo_greedy(utterances: list[np.ndarray], pieces: list[str], args: argparse.Namespace) -> Decode:
    """NeMo's batched greedy search."""
    from nemo.collections.asr.parts.submodules.ctc_greedy_decoding import GreedyBatchedCTCInfer

    blank = len(pieces) - 1
    with nemo_lm(args.lm) as lm:
        search = GreedyBatchedCTCInfer(
            blank_id=blank, ngram_lm_model=lm, ngram_lm_alpha=args.lm_weight, allow_cuda_graphs=False
        )
    return _nemo(search, utterances, pieces, args.batch_size, lambda labels: collapse(labels, blank))


def nemo_beam(utterances: list[np.ndarray], pieces: list[str], args: argparse.Namespace) -> Decode:
    """NeMo's batched beam search, which leaves out blanks and repetitions itself."""
    from nemo.collections.asr.parts.submodules.ctc_beam_decoding import BeamBatchedCTCInfer

    with nemo_lm(args.lm) as lm:
        search = BeamBatchedCTCInfer(
            blank_index=len(pieces) - 1,
            beam_size=args.beam_width,
            ngram_lm_model=lm,
            ngram_lm_alpha=args.lm_weight,
            beam_beta=args.length_bonus,
            beam_threshold=args.beam_threshold,
            allow_cuda_graphs=False,
        )
    return _nemo(search, utterances, pieces, args.batch_size, tokens=list)


def _nemo(
    search: Any,
    utterances: list[np.ndarray],
    pieces: list[str],
    batch_size: int,
    tokens: Callable[[list[int]], Iterable[int]],
) -> Decode:
    import torch

    torch.set_num_threads(1)
    by_length = sorted(range(len(utterances)), key=lambda row: len(utterances[row]))
    batches = []
    for first in range(0, len(by_length), batch_size):
        rows = by_length[first : first + batch_size]
        lengths = torch.tensor([len(utterances[row]) for row in rows])
        # Its beam search reads on past the end of a row, so the padding changes results: certain blanks do no harm.
        padded = torch.full((len(rows), int(lengths.max()), len(pieces)), NEVER)
        padded[..., -1] = 0.0
        for row, utterance in zip(rows, padded):
            utterance[: len(utterances[row])] = torch.from_numpy(utterances[row])
        batches.append((rows, padded, lengths))

    def decode() -> list[Hypothesis]:
        hypotheses: list[Hypothesis] = [("", 0.0)] * len(utterances)
        with torch.inference_mode():
            for rows, log_probs, lengths in batches:
                (best,) = search(decoder_output=log_probs, decoder_lengths=lengths)
                for row, hypothesis in zip(rows, best):
                    text = detokenise(tokens(hypothesis.y_sequence.tolist()), pieces)
                    hypotheses[row] = (text, float(hypothesis.score))
        return hypotheses

    return decode


@contextlib.contextmanager
def nemo_lm(arpa: Path | None) -> Iterator[str | None]:
    """A copy of an ARPA file of decimal ids in NeMo's units."""
    if arpa is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lm.arpa")
        with arpa.open(encoding="utf-8") as source, path.open("w", encoding="utf-8") as target:
            for line in source:
                prob, *rest = line.split("\t")
                if rest:
                    units = [chr(int(unit) + NEMO_OFFSET) if unit.isdecimal() else unit for unit in rest[0].split()]
                    end = "" if len(rest) > 1 else "\n"
                    line = "\t".join([prob, " ".join(units) + end, *rest[1:]])
                target.write(line)
        yield str(path)


def collapse(labels: Iterable[int], blank: int) -> list[int]:
    """The tokens of a path: its labels without repetitions and blanks."""
    return [label for label, _ in itertools.groupby(labels) if label != blank]


def detokenise(tokens: Iterable[int], pieces: list[str]) -> str:
    """Text of SentencePiece tokens, with one space between words and without special tokens."""
    text = "".join(piece for piece in map(pieces.__getitem__, tokens) if (piece[:1], piece[-1:]) != ("<", ">"))
    return " ".join(text.replace("▁", " ").split())


# Per decoder: what makes it, its settings with their defaults, which are the peer's own, and the packages that it is in.
PYCTCDECODE: dict[str, Any] = {
    "lm_weight": 0.5,
    "length_bonus": 1.5,
    "beam_width": 100,
    "beam_prune_logp": -10.0,
    "token_min_logp": -5.0,
    "unk_score_offset": -10.0,
}
Make = Callable[[list[np.ndarray], list[str], argparse.Namespace], Decode]
DECODERS: dict[str, tuple[Make, dict[str, Any], tuple[str, ...]]] = {
    "pyctcdecode": (pyctcdecode, PYCTCDECODE, ("pyctcdecode", "kenlm", "numpy")),
    "ctc-beam-decoder": (ctc_beam_decoder, PYCTCDECODE, ("ctc-beam-decoder", "numpy")),
    "pyctcdecode-tokens": (pyctcdecode_tokens, PYCTCDECODE, ("pyctcdecode", "kenlm", "numpy")),
    "flashlight": (
        flashlight,
        {
            "lm_weight": 0.87,
            "length_bonus": 0.0,
            "beam_width": 50,
            "beam_size_token": 1 << 30,
            "beam_threshold": 50.0,
            "log_add": False,
        },
        ("flashlight-text",),
    ),
    "flashlight-lexicon": (
        flashlight_lexicon,
        {
            "lm_weight": 0.8,
            "length_bonus": 0.0,
            "beam_width": 50,
            "beam_size_token": 1 << 30,
            "beam_threshold": 50.0,
            "log_add": False,
        },
        ("flashlight-text",),
    ),
    "nemo-greedy": (nemo_greedy, {"lm_weight": 0.0, "batch_size": 16}, ("nemo_toolkit", "torch")),
    "nemo-beam": (
        nemo_beam,
        {"lm_weight": 1.0, "length_bonus": 1.0, "beam_width": 4, "beam_threshold": 20.0, "batch_size": 16},
        ("nemo_toolkit", "torch"),
    ),
}
HELP = {
    "lm_weight": "weight of a natural logarithm of the model's",
    "length_bonus": "added for each word (pyctcdecode, flashlight-lexicon) or token (the others)",
    "beam_width": "hypotheses that are kept",
    "beam_prune_logp": "leave out hypotheses that are this much worse than the best one",
    "token_min_logp": "leave out tokens below this log-probability in a frame, but for the best one",
    "unk_score_offset": "added for each word that the model lacks",
    "beam_size_token": "best tokens of a frame that are tried, at most all of them",
    "beam_threshold": "leave out hypotheses that are this much worse than the best one",
    "log_add": "add up the probabilities of a hypothesis's paths, instead of taking the best",
    "batch_size": "utterances decoded together, of like length",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="decoder", required=True)
    for name, (make, defaults, _) in DECODERS.items():
        command = commands.add_parser(name, help=make.__doc__, description=make.__doc__)
        command.add_argument("--logits", type=Path, required=True, help=".npz with log_probs [N, T, C] and lengths [N]")
        command.add_argument("--vocabulary", type=Path, required=True, help="JSON list of C pieces, the blank last")
        command.add_argument("--lm", type=Path, help="ARPA file, plain text")
        if name == "flashlight-lexicon":
            command.add_argument("--lexicon", type=Path, required=True, help="JSON object from words to lists of token ids")
        command.add_argument("--repeats", type=int, default=3, help="times to decode everything")
        command.add_argument("--out", type=Path, help="file for the JSON instead of the standard output")
        for setting, default in defaults.items():
            option = "--" + setting.replace("_", "-")
            if default is False:
                command.add_argument(option, action="store_true", help=HELP[setting])
            else:
                command.add_argument(option, type=type(default), default=default, help=f"{HELP[setting]} (default {default})")
    args = parser.parse_args()
    if args.lm and args.lm.suffix != ".arpa":  # or pyctcdecode doesn't read its words
        parser.error(f"--lm must be the name of an .arpa file, got {args.lm}")

    saved = np.load(args.logits)
    pieces = json.loads(args.vocabulary.read_text(encoding="utf-8"))
    if saved["log_probs"].shape[-1] != len(pieces):
        parser.error(f"--vocabulary has {len(pieces)} pieces, --logits are over {saved['log_probs'].shape[-1]}")
    padded = saved["log_probs"].astype(np.float32, copy=False)
    utterances = [np.ascontiguousarray(row[:length]) for row, length in zip(padded, saved["lengths"])]

    with contextlib.redirect_stdout(sys.stderr):  # NeMo logs and draws progress bars
        make, defaults, packages = DECODERS[args.decoder]
        decode = make(utterances, pieces, args)
        seconds = []
        for _ in range(args.repeats):
            begin = time.process_time()
            hypotheses = decode()
            seconds.append(time.process_time() - begin)
    report = {
        "decoder": args.decoder,
        "settings": {"lm": args.lm and args.lm.name, **{setting: getattr(args, setting) for setting in defaults}},
        "seconds": statistics.median(seconds),
        "transcripts": [text for text, _ in hypotheses],
        "scores": [score for _, score in hypotheses],
        "versions": {"python": platform.python_version(), **{package: metadata.version(package) for package in packages}},
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
