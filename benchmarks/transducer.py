"""Transducers: word error rates and times of label looping, with and without a language model, beside stock `generate`.

    python benchmarks/transducer.py --model MODEL [MODEL ...] --manifest clips.jsonl --lm lm.arpa

A manifest has a line {"audio": path, "text": transcript} per clip. The weight of the LM is chosen on the even clips (the first
one is even); word error rates are those of the odd ones, and of all. Times are those of decoding alone: the encoder has
run before (stock `generate` is handed what it gave), clips sorted by length, in batches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import speech

from hf_ngpulm import TransducerDecoder
from hf_ngpulm.language_model import load_language_model

WEIGHTS = (0.5, 0.7, 0.9, 1.1)
BATCH_SIZES = (1, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="transducer", help="name of the result file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", message="Using the model-agnostic default")
    results = []
    with torch.inference_mode():
        for name in args.model:
            results += measured(name, args)
    header = ["model", "decoder", "weight", "WER, odd half", "WER, all"]
    header += [f"ms a clip, batch {size}" for size in BATCH_SIZES]
    rows = [
        [row["model"], row["decoder"], row["lm_weight"], f"{row['odd']:.1f}", f"{row['all']:.1f}"]
        + [f"{1e3 * row['decoder_seconds'][str(size)] / row['clips']:.2f}" for size in BATCH_SIZES]
        for row in results
    ]
    print(measure.table(header, rows))
    print("results in", measure.save(args.name, {"decoders": results}, args.out))


def measured(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table for one model."""
    import jiwer
    import soundfile
    import transformers
    from transformers import AutoConfig, AutoProcessor

    (architecture,) = AutoConfig.from_pretrained(name).architectures
    model = getattr(transformers, architecture).from_pretrained(name, dtype=torch.float32).eval().to(args.device)
    processor = AutoProcessor.from_pretrained(name)
    lm = load_language_model(args.lm, processor.tokenizer, args.device)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()]
    audio = [soundfile.read(args.manifest.parent / clip["audio"], dtype="float32")[0] for clip in clips]
    texts = [clip["text"] for clip in clips]
    order = sorted(range(len(audio)), key=lambda i: len(audio[i]))
    batches: dict[int, list[tuple[list[int], torch.Tensor, torch.Tensor]]] = {}
    for size in BATCH_SIZES:
        for first in range(0, len(order), size):
            numbers = order[first : first + size]
            features = processor.feature_extractor(
                [audio[i] for i in numbers],
                sampling_rate=processor.feature_extractor.sampling_rate,
                return_tensors="pt",
                padding=True,
                return_attention_mask=True,
            ).to(args.device)
            batches.setdefault(size, []).append((numbers, features["input_features"], features["attention_mask"]))

    def decode(decoder: TransducerDecoder, size: int = 16) -> list[str]:
        found = [""] * len(audio)
        for numbers, features, mask in batches[size]:
            for number, (best,) in zip(numbers, decoder(features, mask), strict=True):
                found[number] = best.text
        return found

    def wer(found: list[str], part: slice) -> float:
        return 100 * jiwer.wer(texts[part], found[part])

    def row(decoder: str, weight: float | None, found: list[str]) -> dict[str, Any]:
        parts = {"even": slice(0, None, 2), "odd": slice(1, None, 2), "all": slice(None)}
        facts = {"model": Path(name).name, "decoder": decoder, "lm_weight": weight, "clips": len(audio)}
        return facts | {part: wer(found, which) for part, which in parts.items()}

    plain = TransducerDecoder(model, processor)
    fused = {weight: decode(TransducerDecoder(model, processor, lm, weight)) for weight in WEIGHTS}
    best = min(WEIGHTS, key=lambda weight: wer(fused[weight], slice(0, None, 2)))
    with_lm = TransducerDecoder(model, processor, lm, best)
    # Alone: in a batch stock TDT adds tokens to rows that have ended.
    stock = [""] * len(audio)
    for (number,), features, mask in batches[1]:
        sequence = model.generate(input_features=features, attention_mask=mask).sequences[0]
        stock[number] = processor.tokenizer.decode(
            [token for token in sequence.tolist() if token != plain.model.blank_id], group_tokens=False
        )
    rows = [row("stock generate", None, stock), row("greedy", None, decode(plain)), row("greedy + LM", best, fused[best])]

    encode = model.get_audio_features
    seconds: dict[str, dict[str, list[float]]] = {}
    for turn in range(args.repeats + 1):
        for size in BATCH_SIZES:
            times = dict.fromkeys(("encoder", "stock generate", "greedy", "greedy + LM"), 0.0)
            for _, features, mask in batches[size]:
                marks = [speech.now(args.device)]
                outputs = encode(input_features=features, attention_mask=mask, output_attention_mask=True)
                marks.append(speech.now(args.device))
                model.get_audio_features = lambda outputs=outputs, **_: outputs
                model.generate(input_features=features, attention_mask=mask)
                marks.append(speech.now(args.device))
                for decoder in (plain, with_lm):
                    decoder.decode(outputs.pooler_output, outputs.attention_mask.sum(-1))
                    marks.append(speech.now(args.device))
                for what, begin, end in zip(times, marks, marks[1:]):
                    times[what] += end - begin
            for what, value in times.items():
                if turn:  # the first one loads compiled code
                    seconds.setdefault(what, {}).setdefault(str(size), []).append(value)
    model.get_audio_features = encode
    medians = {what: {size: statistics.median(times) for size, times in of.items()} for what, of in seconds.items()}
    for entry in rows:
        entry |= {"decoder_seconds": medians[entry["decoder"]], "encoder_seconds": medians["encoder"]}
    return rows


if __name__ == "__main__":
    main()
