"""Attention decoders: time a step of `generate`, alone and with an n-gram LM; and word error rates of a real model.

    python benchmarks/aed.py                                         # random models: time a step
    python benchmarks/aed.py --canary MODEL --manifest clips.jsonl --lm lm.arpa      # word error rates

Random Whispers of several sizes, a Canary, and a decoder with Qwen's 151,936 tokens, each with an LM over all its text tokens.
`generate` runs a fixed number of steps, greedily and with 5 beams, with and without the processor by turns; what is reported is
the median of the differences. The cost of the processor alone is timed too, on the same scores: a difference of two noisy times
says less.

A manifest has a line {"audio": path, "text": transcript} per clip. The weight is chosen on the even clips (the first one is
even); word error rates are those of the odd ones, and of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import transformers

from hf_ngpulm import NGramLM, NGramLogitsProcessor
from hf_ngpulm.language_model import load_language_model

WEIGHTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
# hidden size, layers, heads
WHISPERS = {"tiny": (384, 4, 6), "base": (512, 6, 8), "small": (768, 12, 12), "large": (1280, 32, 20)}


@dataclass
class Subject:
    model: Any
    encoded: Any  # called with a batch size: what `generate` takes
    text_tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["whisper-tiny", "canary", "qwen-head"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--canary", help="a Canary, for word error rates")
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--lm")
    parser.add_argument("--name", default="aed", help="name of the result file")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    with torch.inference_mode():
        results = error_rates(args) if args.canary else [row for name in args.models for row in step_times(name, args)]
    header = list(results[0])
    print(measure.table(header, [[row[name] for name in header] for row in results]))
    print("results in", measure.save(args.name, {"rows": results}, args.out))


def step_times(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    subject = subject_of(name, args.device)
    model = subject.model.eval().to(args.device)
    lm = NGramLM.train(texts(subject.text_tokens), vocab_size=subject.text_tokens, order=5).to(args.device)
    rows = []
    for num_beams in args.beams:
        for batch_size in args.batch_sizes:
            processor = Timed(NGramLogitsProcessor(lm, 0.2, model=model, start=[] if name == "qwen-head" else None))
            settings = {
                "num_beams": num_beams, "do_sample": False, "max_new_tokens": args.steps, "min_new_tokens": args.steps,
            }  # fmt: skip
            ways = {"stock": {}, "fused": {"logits_processor": [processor]}}
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(args.turns + 1):
                for way in list(ways)[:: 1 if turn % 2 else -1]:
                    given = subject.encoded(batch_size)  # anew: beam search changes what it is given
                    begin = clock(args.device)
                    model.generate(**given, **settings, **ways[way])
                    if turn:  # the first compiles
                        seconds[way].append((clock(args.device) - begin) / args.steps)
                if not turn:
                    processor.seconds.clear()
            stock = statistics.median(seconds["stock"])
            added = statistics.median(fused - own for fused, own in zip(seconds["fused"], seconds["stock"]))
            alone = statistics.median(processor.seconds)
            rows.append({
                "model": name, "beams": num_beams, "batch": batch_size, "ms a step": 1e3 * stock,
                "added %": 100 * added / stock, "processor ms": 1e3 * alone, "processor %": 100 * alone / stock,
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


class Timed(transformers.LogitsProcessor):
    """A processor that keeps how long its calls take."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.seconds: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        begin = clock(scores.device.type)
        scores = self.processor(input_ids, scores)
        self.seconds.append(clock(scores.device.type) - begin)
        return scores


def clock(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def texts(text_tokens: int) -> list[list[int]]:
    """Token ids as frequent as words are (Zipf), each at least once."""
    generator = torch.Generator().manual_seed(0)
    ranks = (torch.rand(20_000, 20, generator=generator).double() * torch.tensor(text_tokens).log()).exp().long()
    every = torch.arange(text_tokens).split(20)
    return [*(ranks - 1).clamp(min=0).tolist(), *(row.tolist() for row in every)]


def subject_of(name: str, device: str) -> Subject:
    torch.manual_seed(0)
    if name.startswith("whisper-"):
        size, layers, heads = WHISPERS[name.removeprefix("whisper-")]
        config = transformers.WhisperConfig(
            vocab_size=51865, d_model=size, encoder_layers=1, decoder_layers=layers, encoder_attention_heads=heads,
            decoder_attention_heads=heads, encoder_ffn_dim=4 * size, decoder_ffn_dim=4 * size, pad_token_id=50257,
            bos_token_id=50257, eos_token_id=50257, decoder_start_token_id=50258, suppress_tokens=None,
            begin_suppress_tokens=None,
        )  # fmt: skip
        model = transformers.WhisperForConditionalGeneration(config)
        model.generation_config.no_timestamps_token_id = 50363
        model.generation_config.force_unique_generate_call = True  # one window, whatever timestamps it dreams of
        return Subject(model, encodings(1500, size, device), 50257)
    if name == "canary":
        config = transformers.CanaryConfig()
        config.encoder_config.num_hidden_layers = 1
        model = transformers.CanaryForConditionalGeneration(config)
        model = model.eval().to(device)

        def encoded(batch_size: int) -> dict[str, Any]:
            features = torch.randn(batch_size, 1000, config.encoder_config.num_mel_bins, device=device)
            mask = torch.ones(batch_size, 1000, dtype=torch.int64, device=device)
            return {"encoder_outputs": model.get_encoder()(features, mask, output_attention_mask=True)}

        return Subject(model, encoded, 16384)
    if name == "qwen-head":  # the decoder of Qwen3-ASR-0.6B, with fewer layers
        config = transformers.Qwen3Config(
            vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, eos_token_id=151645, pad_token_id=151643,
        )  # fmt: skip
        model = transformers.Qwen3ForCausalLM(config)

        def prompts(batch_size: int) -> dict[str, Any]:
            return {"input_ids": torch.randint(0, 151643, (batch_size, 100), device=device)}

        return Subject(model, prompts, 151643)
    raise ValueError(f"models are whisper-{'|'.join(WHISPERS)}, canary and qwen-head, got {name!r}")


def encodings(frames: int, size: int, device: str) -> Any:
    def encoded(batch_size: int) -> dict[str, Any]:
        hidden = torch.randn(batch_size, frames, size, device=device)
        return {"encoder_outputs": transformers.modeling_outputs.BaseModelOutput(hidden)}

    return encoded


def error_rates(args: argparse.Namespace) -> list[dict[str, Any]]:
    import jiwer
    import soundfile

    model = transformers.CanaryForConditionalGeneration.from_pretrained(args.canary, dtype=torch.float32)
    model = model.eval().to(args.device)
    processor = transformers.AutoProcessor.from_pretrained(args.canary)
    lm = load_language_model(args.lm, processor.tokenizer, args.device)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()]
    audio = [soundfile.read(args.manifest.parent / clip["audio"], dtype="float32")[0] for clip in clips]
    spoken = [clip["text"] for clip in clips]
    order = sorted(range(len(audio)), key=lambda number: len(audio[number]))

    def transcribed(num_beams: int, weight: float | None, **settings: Any) -> list[str]:
        found = [""] * len(audio)
        for first in range(0, len(order), 16):
            numbers = order[first : first + 16]
            inputs = processor.feature_extractor(
                [audio[number] for number in numbers], sampling_rate=16000, return_tensors="pt", return_attention_mask=True
            ).to(args.device)
            with_lm = NGramLogitsProcessor(lm, weight or 0.0, model=model, tokenizer=processor, **settings)
            tokens = model.generate(**inputs, num_beams=num_beams, logits_processor=[] if weight is None else [with_lm])
            for number, text in zip(numbers, processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)):
                found[number] = text
        return found

    def wer(found: list[str], part: slice) -> float:
        return round(100 * jiwer.wer(spoken[part], found[part]), 1)

    parts = {"even": slice(0, None, 2), "odd": slice(1, None, 2), "all": slice(None)}
    rows = []
    for num_beams in args.beams:
        rules = {"lm_weighted": {}, "none": {"unscored": "none"}, "no </s>": {"score_eos": False}}
        found = {("", None): transcribed(num_beams, None)}
        found |= {(rule, w): transcribed(num_beams, w, **given) for rule, given in rules.items() for w in WEIGHTS}
        for rule in ("", *rules):
            tried = [weight for name, weight in found if name == rule]
            best = min(tried, key=lambda weight: wer(found[rule, weight], parts["even"]))
            row = {"beams": num_beams, "rule": rule or "no LM", "weight": best}
            rows.append(row | {f"WER, {part}": wer(found[rule, best], which) for part, which in parts.items()})
    return rows


if __name__ == "__main__":
    main()
