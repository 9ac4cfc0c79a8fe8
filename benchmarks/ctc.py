"""What a language model gains and costs in greedy CTC decoding: word error rates over weights and rules, and time.

    python benchmarks/ctc.py                                                     # the bundled clips, model and LM
    python benchmarks/ctc.py --model MODEL --manifest clips.jsonl --lm lm.arpa   # your own

A manifest has a line {"audio": path, "text": transcript} per clip. Times are those of the model's forward pass and of decoding
alone, clips sorted by length, in batches; the decoder's share is its time over the forward pass's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

from hf_ngpulm import CTCDecoder
from hf_ngpulm.language_model import load_language_model
from hf_ngpulm.pipelines.ctc import frame_lengths

DEMO = measure.ROOT / "examples" / "demo"
WEIGHTS = (0.0, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3)
RULES = ("stay", "label", "run")


def load_clips(manifest: Path) -> tuple[list[Any], list[str]]:
    import soundfile

    rows = [json.loads(line) for line in manifest.read_text().splitlines() if line.strip()]
    return [soundfile.read(manifest.parent / row["audio"], dtype="float32")[0] for row in rows], [row["text"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(DEMO / "model"))
    parser.add_argument("--manifest", type=Path, default=DEMO / "clips.jsonl")
    parser.add_argument("--lm", default=str(DEMO / "lm.arpa.gz"))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--name", default="ctc", help="name of the result file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    import jiwer
    from transformers import AutoModelForCTC, AutoProcessor

    processor = AutoProcessor.from_pretrained(args.model)
    model = AutoModelForCTC.from_pretrained(args.model, dtype=torch.float32).eval().to(args.device)
    lm = load_language_model(args.lm, processor.tokenizer, args.device)
    audio, texts = load_clips(args.manifest)
    by_length = sorted(range(len(audio)), key=lambda i: len(audio[i]))
    batches = []
    for first in range(0, len(by_length), args.batch_size):
        rows = by_length[first : first + args.batch_size]
        rate = processor.feature_extractor.sampling_rate
        inputs = processor.feature_extractor(
            [audio[i] for i in rows], sampling_rate=rate, return_tensors="pt", padding=True, return_attention_mask=True
        ).to(args.device)
        batches.append((rows, {k: inputs[k] for k in (model.main_input_name, "attention_mask")}))

    def wait() -> float:
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    with torch.inference_mode():
        outputs = []
        for rows, inputs in batches:
            logits = model(**inputs).logits
            lengths = frame_lengths(model, inputs["attention_mask"].sum(-1))
            outputs.append((rows, logits, torch.full((len(rows),), logits.shape[1]) if lengths is None else lengths))

        def decode(decoder: CTCDecoder) -> list[str]:
            hypotheses = [""] * len(audio)
            for rows, logits, lengths in outputs:
                for row, (best,) in zip(rows, decoder(logits, lengths), strict=True):
                    hypotheses[row] = best.text
            return hypotheses

        plain = CTCDecoder(processor)
        curve = {"no LM": 100 * jiwer.wer(texts, decode(plain))}
        print(f"no LM: {curve['no LM']:.1f}")
        rows_out = []
        for rule in RULES:
            wers = [100 * jiwer.wer(texts, decode(CTCDecoder(processor, lm, w, repeats=rule))) for w in WEIGHTS]
            curve[rule] = dict(zip(map(str, WEIGHTS), wers, strict=True))
            rows_out.append([rule, *(f"{wer:.1f}" for wer in wers)])
        print(measure.table(["rule \\ lm_weight", *map(str, WEIGHTS)], rows_out))

        # Forward pass and decoding by turns, so that a change of the machine's mood hits both.
        greedy = CTCDecoder(processor, lm, 0.9)
        times: dict[str, list[float]] = {"forward": [], "labels": [], "hypotheses": [], "argmax_hypotheses": []}
        for _ in range(args.repeats):
            sums = dict.fromkeys(times, 0.0)
            for (_, inputs), (_, logits, lengths) in zip(batches, outputs, strict=True):
                marks = [wait()]
                for call in (
                    lambda inputs=inputs: model(**inputs),
                    lambda x=logits, n=lengths: greedy.label_frames(x, n),
                    lambda x=logits, n=lengths: greedy(x, n),
                    lambda x=logits, n=lengths: plain(x, n),
                ):
                    call()
                    marks.append(wait())
                for name, begin, end in zip(times, marks, marks[1:], strict=False):
                    sums[name] += end - begin
            for name, value in sums.items():
                times[name].append(value)
    medians = {name: statistics.median(values) for name, values in times.items()}
    seconds = sum(map(len, audio)) / processor.feature_extractor.sampling_rate
    share = {name: 100 * medians[name] / medians["forward"] for name in times if name != "forward"}
    print(f"{len(audio)} clips, {seconds:.0f} s of audio, batch {args.batch_size}, {args.device}, {args.threads} thread(s)")
    print(f"forward pass {medians['forward']:.3f} s; of that time greedy + LM takes {share['labels']:.2f}% for the labels,")
    print(f"{share['hypotheses']:.2f}% with hypotheses and text (without LM: {share['argmax_hypotheses']:.2f}%)")
    results = {"audio_seconds": seconds, "wer": curve, "seconds": medians, "percent_of_forward": share, "args": vars(args)}
    results["args"] = {k: str(v) for k, v in vars(args).items() if k in ("batch_size", "threads", "device")}
    print("results in", measure.save(args.name, results, args.out))


if __name__ == "__main__":
    main()
