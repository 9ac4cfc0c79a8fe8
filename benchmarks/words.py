"""Word-level language models in CTC beam search: word error rates and times beside other projects' decoders.

    python benchmarks/words.py --model MODEL --manifest clips.jsonl --lm words.arpa --peers-python PEERS_ENV/bin/python

All decode the same outputs with the same ARPA file of words, on one thread. Weights are chosen on the even clips (the first one
is even), for each decoder and beam; those of pyctcdecode and ctc-beam-decoder may be given (`--pyctcdecode 0.8 1.5`). Ours
also decodes through `hf_ngpulm.compat` with pyctcdecode's own alpha, beta and beam. Word error rates are reported of the odd
clips; times are of all of them, from outputs to text, by turns, in seconds of CPU. See peers_ctc.py for the peers' environment.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch

sys.path.insert(0, str(measure.ROOT))

import ctc_beam
import speech

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.compat import build_ctcdecoder
from hf_ngpulm.formats.arpa import ArpaFile
from hf_ngpulm.lexicon.spellings import make_lexicon

BEAMS = (16, 64, 100)
BATCH_SIZES = (1, 16)
WEIGHTS, BETAS = (0.7, 0.9, 1.1, 1.3), (1.0, 2.0, 3.0, 4.0)
PEER_WEIGHTS, PEER_BONUSES = (0.5, 0.65, 0.8, 1.0), (0.5, 1.5, 2.5)
CUTTINGS = 4
FLASHLIGHT = ["--beam-size-token", "20", "--beam-threshold", "10"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speech.add_arguments(parser, "words")
    parser.add_argument("--peers-python", help="Python of the peers' environment")
    parser.add_argument(
        "--pyctcdecode", type=float, nargs=2, metavar=("ALPHA", "BETA"), help="its weights, if not to be chosen"
    )
    args = parser.parse_args()
    outputs = speech.load(args)
    rows: list[dict[str, Any]] = []
    calls: dict[str, Callable[[], float]] = {}
    with torch.inference_mode():
        batched = {size: outputs.rebatched(size) for size in BATCH_SIZES}
        cut = NGramLM.from_arpa(args.lm, tokenizer=outputs.processor, units="word", cuttings=CUTTINGS)
        for name, lm, settings in (("", outputs.lm, {}), (f", {CUTTINGS} cuttings", cut, {"merge": "text"})):
            ours(f"hf_ngpulm{name}", lm, settings, outputs, batched, rows, calls)
        if args.peers_python:
            peers(outputs, args, rows, calls)
        seconds = measure.by_turns(calls, args.repeats)
    for row in rows:
        row["seconds"] = {size: seconds[f"{row['decoder']}, batch {size}"] for size in row.pop("batch_sizes")}
        row["rtfx"] = {size: outputs.seconds / taken for size, taken in row["seconds"].items()}
    table = [
        [row["decoder"], row["lm_weight"], row["beta"], f"{row['odd']:.1f}", f"{row['all']:.1f}"]
        + [f"{row['rtfx'][size]:.0f}" if size in row["rtfx"] else "" for size in BATCH_SIZES]
        for row in rows
    ]
    header = ["decoder", "weight", "bonus", "WER, odd half", "WER, all", *(f"RTFx, batch {size}" for size in BATCH_SIZES)]
    print(measure.table(header, table))
    found = {"audio_seconds": outputs.seconds, "clips": len(outputs.texts), "decoders": rows}
    print("results in", measure.save(args.name, found, args.out))


def ours(
    kind: str,
    lm: NGramLM,
    options: dict[str, Any],
    outputs: speech.Outputs,
    batched: dict[int, speech.Outputs],
    rows: list[dict[str, Any]],
    calls: dict[str, Callable[[], float]],
) -> None:
    """Our decoder with a language model, of words cut into pieces in one way or in several, and its best weights."""
    for num_beams in BEAMS:

        def made(weight: float, beta: float, num_beams: int = num_beams) -> CTCDecoder:
            settings = {"num_beams": num_beams, "beta": beta, "beam_threshold": 10.0, "confidence": None, **options}
            return CTCDecoder(outputs.processor, lm, weight, **settings)

        pairs = itertools.product(WEIGHTS, BETAS)
        best = ctc_beam.best_of(outputs, {pair: outputs.decode(made(*pair)) for pair in pairs})
        name = f"{kind}, beam {num_beams}"
        rows.append({"decoder": name, **best, "batch_sizes": BATCH_SIZES})
        decoder = made(best["lm_weight"], best["beta"])
        for size, batches in batched.items():
            calls[f"{name}, batch {size}"] = lambda b=batches, d=decoder: speech.seconds_of(lambda: b.decode(d), "cpu")
        print(rows[-1], flush=True)


def peers(
    outputs: speech.Outputs, args: argparse.Namespace, rows: list[dict[str, Any]], calls: dict[str, Callable[[], float]]
) -> None:
    """The peers with their best weights, and ours through pyctcdecode's API with pyctcdecode's."""
    folder = Path(tempfile.mkdtemp())
    log_probs = outputs.rows()
    padded = torch.nn.utils.rnn.pad_sequence(log_probs, batch_first=True).numpy()
    np.savez(folder / "outputs.npz", log_probs=padded, lengths=np.array([len(row) for row in log_probs]))
    tokenizer = outputs.processor.tokenizer
    pieces = tokenizer.convert_ids_to_tokens(list(range(padded.shape[2])))
    (folder / "pieces.json").write_text(json.dumps(pieces))
    words = ArpaFile(args.lm).words
    lexicon = make_lexicon(words, tokenizer)
    spelled = zip(lexicon.words, np.split(lexicon.tokens, lexicon.offsets[1:-1]), strict=True)
    (folder / "lexicon.json").write_text(json.dumps({words[word]: tokens.tolist() for word, tokens in spelled}))
    base = ["--logits", str(folder / "outputs.npz"), "--vocabulary", str(folder / "pieces.json"), "--lm", args.lm]
    script = str(Path(__file__).parent / "peers_ctc.py")
    utterances = [row.numpy() for row in log_probs]
    for num_beams in BEAMS:
        theirs = {
            "pyctcdecode": ["pyctcdecode", *base],
            "ctc-beam-decoder": ["ctc-beam-decoder", *base],
            "flashlight, lexicon": ["flashlight-lexicon", *base, "--lexicon", str(folder / "lexicon.json"), *FLASHLIGHT],
        }
        for kind, options in theirs.items():
            command = [args.peers_python, script, *options, "--beam-width", str(num_beams)]
            pairs: Any = itertools.product(PEER_WEIGHTS, PEER_BONUSES)
            pairs = [tuple(args.pyctcdecode)] if kind != "flashlight, lexicon" and args.pyctcdecode else list(pairs)
            runs = {pair: ctc_beam.run(["--repeats", "1"], command + ctc_beam.settings(*pair)) for pair in pairs}
            best = ctc_beam.best_of(outputs, {pair: run["transcripts"] for pair, run in runs.items()})
            name = f"{kind}, beam {num_beams}"
            versions = next(iter(runs.values()))["versions"]
            rows.append({"decoder": name, **best, "batch_sizes": (1,), "versions": versions})
            chosen = command + ctc_beam.settings(best["lm_weight"], best["beta"])
            calls[f"{name}, batch 1"] = lambda command=chosen: ctc_beam.run(["--repeats", "2"], command)["seconds"]
            print(rows[-1], flush=True)
            if kind == "pyctcdecode":
                through_compat(outputs, args, rows, calls, utterances, pieces, best, num_beams)


def through_compat(
    outputs: speech.Outputs,
    args: argparse.Namespace,
    rows: list[dict[str, Any]],
    calls: dict[str, Callable[[], float]],
    utterances: list[np.ndarray],
    pieces: list[str],
    theirs: dict[str, Any],
    num_beams: int,
) -> None:
    """`hf_ngpulm.compat` with the weights of pyctcdecode, one utterance after another and in batches."""
    weights = {"alpha": theirs["lm_weight"], "beta": theirs["beta"]}
    decoder = build_ctcdecoder([*pieces[:-1], ""], args.lm, **weights)
    name = f"hf_ngpulm.compat, beam {num_beams}"
    texts = [decoder.decode(row, beam_width=num_beams) for row in utterances]
    best = ctc_beam.best_of(outputs, {(theirs["lm_weight"], theirs["beta"]): texts})
    rows.append({"decoder": name, **best, "batch_sizes": BATCH_SIZES})
    for size in BATCH_SIZES:

        def decode(size: int = size) -> None:
            for first in range(0, len(utterances), size):
                decoder.decode_batch(None, utterances[first : first + size], beam_width=num_beams)

        calls[f"{name}, batch {size}"] = lambda decode=decode: speech.seconds_of(decode, "cpu")
    print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
