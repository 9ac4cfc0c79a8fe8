"""What a language model gains and costs in greedy CTC decoding: word error rates over weights and rules, and time.

    python benchmarks/ctc.py                                                     # the bundled clips, model and LM
    python benchmarks/ctc.py --model MODEL --manifest clips.jsonl --lm lm.arpa   # your own

A manifest has a line {"audio": path, "text": transcript} per clip. Times are those of the model's forward pass and of decoding
alone, clips sorted by length, in batches; the decoder's share is its time over the forward pass's.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import speech

from hf_ngpulm import CTCDecoder

WEIGHTS = (0.0, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3)
RULES = ("stay", "label", "run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speech.add_arguments(parser, "ctc")
    args = parser.parse_args()

    import jiwer

    outputs = speech.load(args)
    processor, model, lm, texts = outputs.processor, outputs.model, outputs.lm, outputs.texts
    with torch.inference_mode():
        plain = CTCDecoder(processor)
        curve = {"no LM": 100 * jiwer.wer(texts, outputs.decode(plain))}
        print(f"no LM: {curve['no LM']:.1f}")
        rows_out = []
        for rule in RULES:
            wers = [100 * jiwer.wer(texts, outputs.decode(CTCDecoder(processor, lm, w, repeats=rule))) for w in WEIGHTS]
            curve[rule] = dict(zip(map(str, WEIGHTS), wers, strict=True))
            rows_out.append([rule, *(f"{wer:.1f}" for wer in wers)])
        print(measure.table(["rule \\ lm_weight", *map(str, WEIGHTS)], rows_out))

        # Forward pass and decoding by turns, so that a change of the machine's mood hits both.
        greedy = CTCDecoder(processor, lm, 0.9, num_beams=1)
        times: dict[str, list[float]] = {"forward": [], "labels": [], "hypotheses": [], "argmax_hypotheses": []}
        for _ in range(args.repeats):
            sums = dict.fromkeys(times, 0.0)
            for inputs, (_, logits, lengths) in zip(outputs.inputs, outputs.batches, strict=True):
                marks = [speech.now(args.device)]
                for call in (
                    lambda inputs=inputs: model(**inputs),
                    lambda x=logits, n=lengths: greedy.label_frames(x, n),
                    lambda x=logits, n=lengths: greedy(x, n),
                    lambda x=logits, n=lengths: plain(x, n),
                ):
                    call()
                    marks.append(speech.now(args.device))
                for name, begin, end in zip(times, marks, marks[1:], strict=False):
                    sums[name] += end - begin
            for name, value in sums.items():
                times[name].append(value)
    medians = {name: statistics.median(values) for name, values in times.items()}
    share = {name: 100 * medians[name] / medians["forward"] for name in times if name != "forward"}
    settings = f"batch {args.batch_size}, {args.device}, {args.threads} thread(s)"
    print(f"{len(texts)} clips, {outputs.seconds:.0f} s of audio, {settings}")
    print(f"forward pass {medians['forward']:.3f} s; of that time greedy + LM takes {share['labels']:.2f}% for the labels,")
    print(f"{share['hypotheses']:.2f}% with hypotheses and text (without LM: {share['argmax_hypotheses']:.2f}%)")
    results = {"audio_seconds": outputs.seconds, "wer": curve, "seconds": medians, "percent_of_forward": share, "args": {}}
    results["args"] = {k: str(v) for k, v in vars(args).items() if k in ("batch_size", "threads", "device")}
    print("results in", measure.save(args.name, results, args.out))


if __name__ == "__main__":
    main()
