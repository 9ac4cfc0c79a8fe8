"""CTC beam search with a language model: word error rates and times, beside other projects' decoders on the same outputs.

    python benchmarks/ctc_beam.py                                                     # the bundled clips, model and LM
    python benchmarks/ctc_beam.py --model MODEL --manifest clips.jsonl --lm lm.arpa   # your own
    ... --peers-python PEERS_ENV/bin/python --word-lm words.arpa --nemo-python NEMO_ENV/bin/python

Weights are chosen on the even clips (the first one is even), each decoder's in the same way; word error rates are reported of
the odd ones, and of all. Times are those of decoding with the weights chosen, from the outputs to text, all clips, one thread:
the audio's length over them is RTFx. The peers' environments are described in peers_ctc.py; `--lm` must be an ARPA file of
decimal token ids for them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch

sys.path.insert(0, str(measure.ROOT))

import speech

from hf_ngpulm import CTCDecoder

HERE = Path(__file__).parent
BEAMS = (4, 8, 16, 32)
GREEDY_WEIGHTS = (0.5, 0.7, 0.9, 1.1)
WEIGHTS = (0.7, 0.9, 1.1, 1.3)
BETAS = (2.0, 3.0, 4.0, 5.0)
BATCH_SIZES = (1, 16, 64)
# Decoder, options, grids of --lm-weight and --length-bonus; None: it has no such option, or one that is never worth it.
PEERS: dict[str, tuple[str, list[str], tuple[float, ...], tuple[float, ...] | None]] = {
    "pyctcdecode, word LM, beam 16": ("pyctcdecode", ["--beam-width", "16"], (0.5, 0.65, 0.8, 1.0), (0.5, 1.0, 1.5, 2.5)),
    "pyctcdecode, word LM, beam 100": ("pyctcdecode", ["--beam-width", "100"], (0.5, 0.65, 0.8, 1.0), (0.5, 1.0, 1.5, 2.5)),
    "pyctcdecode, token LM, beam 16": ("pyctcdecode-tokens", ["--beam-width", "16"], (0.7, 0.95, 1.2), (1.5, 2.5, 3.5)),
    "pyctcdecode, token LM, beam 100": ("pyctcdecode-tokens", ["--beam-width", "100"], (0.7, 0.95, 1.2), (1.5, 2.5, 3.5)),
    "flashlight, beam 16": (
        "flashlight", ["--beam-width", "16", "--beam-size-token", "20", "--beam-threshold", "10"], (0.6, 0.8, 1.0), None,
    ),
    "NeMo, greedy": ("nemo-greedy", [], GREEDY_WEIGHTS, None),
    "NeMo, beam 8": ("nemo-beam", ["--beam-width", "8"], (0.9, 1.1, 1.3), (2.0, 3.0, 4.0)),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speech.add_arguments(parser, "ctc_beam")
    parser.add_argument("--peers-python", help="Python of an environment with pyctcdecode, kenlm, flashlight-text")
    parser.add_argument("--nemo-python", help="Python of an environment with NeMo")
    parser.add_argument("--word-lm", help="ARPA file of words, for pyctcdecode")
    args = parser.parse_args()
    outputs = speech.load(args)
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        ours = tuned(outputs, results)
        peers = tuned_peers(outputs, args, results)
        times = timed(outputs, ours, peers, args)
    forward = statistics.median(times.pop("forward pass"))
    for row in results:
        row["seconds"] = {size: statistics.median(seconds) for size, seconds in times[row["decoder"]].items()}
        row["rtfx"] = {size: outputs.seconds / seconds for size, seconds in row["seconds"].items()}
    sizes = [f"RTFx, batch {size}" for size in BATCH_SIZES]
    table = [
        [row["decoder"], row["lm_weight"], row["beta"], f"{row['odd']:.1f}", f"{row['all']:.1f}"]
        + [f"{row['rtfx'][str(size)]:.0f}" if str(size) in row["rtfx"] else "" for size in BATCH_SIZES]
        for row in results
    ]
    print(measure.table(["decoder", "weight", "bonus", "WER, odd half", "WER, all", *sizes], table))
    rate = outputs.seconds / forward
    print(f"{len(outputs.texts)} clips, {outputs.seconds:.0f} s; forward pass {forward:.2f} s, RTFx {rate:.0f}")
    found = {"audio_seconds": outputs.seconds, "forward_seconds": forward, "decoders": results}
    print("results in", measure.save(args.name, found, args.out))


def best_of(outputs: speech.Outputs, found: dict[tuple[float, float | None], list[str]]) -> dict[str, Any]:
    """The settings with the lowest word error rate on the even clips."""
    import jiwer

    def wer(hypotheses: list[str], part: slice) -> float:
        return 100 * jiwer.wer(outputs.texts[part], hypotheses[part])

    (weight, beta), hypotheses = min(found.items(), key=lambda item: wer(item[1], slice(0, None, 2)))
    parts = {"even": slice(0, None, 2), "odd": slice(1, None, 2), "all": slice(None)}
    return {"lm_weight": weight, "beta": beta, **{name: wer(hypotheses, part) for name, part in parts.items()}}


def tuned(outputs: speech.Outputs, results: list[dict[str, Any]]) -> dict[str, CTCDecoder]:
    """Our decoders with their best settings."""
    processor, lm = outputs.processor, outputs.lm
    decoders = {"argmax": CTCDecoder(processor)}
    results.append({"decoder": "argmax", **best_of(outputs, {(0.0, None): outputs.decode(decoders["argmax"])})})
    found = {(weight, None): outputs.decode(CTCDecoder(processor, lm, weight, num_beams=1)) for weight in GREEDY_WEIGHTS}
    results.append({"decoder": "greedy", **best_of(outputs, found)})
    decoders["greedy"] = CTCDecoder(processor, lm, results[-1]["lm_weight"], num_beams=1)
    for num_beams in BEAMS:
        found = {
            (weight, beta): outputs.decode(CTCDecoder(processor, lm, weight, num_beams=num_beams, beta=beta))
            for weight, beta in itertools.product(WEIGHTS, BETAS)
        }
        row = {"decoder": f"beam {num_beams}", **best_of(outputs, found)}
        results.append(row)
        decoders[row["decoder"]] = CTCDecoder(processor, lm, row["lm_weight"], num_beams=num_beams, beta=row["beta"])
    return decoders


def tuned_peers(outputs: speech.Outputs, args: argparse.Namespace, results: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The commands that run the peers with their best settings."""
    if not (args.peers_python or args.nemo_python):
        return {}
    folder = Path(tempfile.mkdtemp())
    rows = outputs.rows()
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).numpy()
    np.savez(folder / "outputs.npz", log_probs=padded, lengths=np.array([len(row) for row in rows]))
    pieces = outputs.processor.tokenizer.convert_ids_to_tokens(list(range(padded.shape[2])))
    (folder / "pieces.json").write_text(json.dumps(pieces))
    commands = {}
    for name, (kind, options, weights, bonuses) in PEERS.items():
        python = args.nemo_python if kind.startswith("nemo") else args.peers_python
        lm = args.word_lm if kind == "pyctcdecode" else args.lm
        if not python or not lm:
            continue
        command = [python, str(HERE / "peers_ctc.py"), kind, "--logits", str(folder / "outputs.npz")]
        command += ["--vocabulary", str(folder / "pieces.json"), "--lm", lm, *options]
        found = {}
        for weight, bonus in itertools.product(weights, bonuses or (None,)):
            given = settings(weight, bonus)
            found[weight, bonus] = run(["--repeats", "1"], command + given)["transcripts"]
        row = {"decoder": name, **best_of(outputs, found)}
        results.append(row)
        commands[name] = command + settings(row["lm_weight"], row["beta"])
        print(f"{name}: {row}", flush=True)
    return commands


def settings(weight: float, bonus: float | None) -> list[str]:
    return ["--lm-weight", str(weight), *(["--length-bonus", str(bonus)] if bonus is not None else [])]


def run(options: list[str], command: list[str]) -> dict[str, Any]:
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def timed(
    outputs: speech.Outputs, ours: dict[str, CTCDecoder], peers: dict[str, list[str]], args: argparse.Namespace
) -> dict[str, Any]:
    """Seconds of each decoder for all clips, by batch size; by turns, so that a change of the machine's mood hits all."""
    batched = {size: outputs.rebatched(size) for size in BATCH_SIZES}
    times: dict[str, Any] = {"forward pass": []}
    for turn in range(args.repeats + 1):
        begin = speech.now(args.device)
        for inputs in outputs.inputs:
            outputs.model(**inputs)
        times["forward pass"] += [speech.now(args.device) - begin] if turn else []
        for name, decoder in ours.items():
            for size, batches in batched.items():
                begin = speech.now(args.device)
                batches.decode(decoder)
                seconds = speech.now(args.device) - begin
                if turn:  # the first one loads compiled code
                    times.setdefault(name, {}).setdefault(str(size), []).append(seconds)
        for name, command in peers.items():
            if turn:
                # NeMo alone decodes batches.
                size = "16" if name.startswith("NeMo") else "1"
                times.setdefault(name, {}).setdefault(size, []).append(run(["--repeats", "2"], command)["seconds"])
    return times


if __name__ == "__main__":
    main()
