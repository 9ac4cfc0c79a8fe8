"""Train one small FastConformer encoder under six heads: CTC, RNN-T, TDT, HAT, a stateless transducer, an attention decoder.

    python train.py speech run --steps 5000            (speech: as speak.py left it)

All heads learn at once from the same encoder. Noise is new at every pass. `run/` has the tokenizer, the state after every
few hundred steps (from which the same command goes on) and a log. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from heads import Heads
from tokenizers import Tokenizer
from tokenizers_of_models import learn
from torch import Tensor

SAMPLING_RATE = 16_000


def feature_extractor() -> transformers.ParakeetFeatureExtractor:
    return transformers.ParakeetFeatureExtractor(feature_size=80)


class Speech:
    """What speak.py made: batches of about the same length, with noise."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        lines = [json.loads(line) for line in (folder / "utterances.jsonl").read_text().splitlines()]
        self.samples = np.memmap(folder / "samples.raw", dtype=np.int16, mode="r")
        self.places = [(line["start"], line["end"]) for line in lines]
        self.tokens = [encoding.ids for encoding in tokenizer.encode_batch([line["text"] for line in lines])]

    def batches(self, seconds: float, random: np.random.Generator) -> list[list[int]]:
        """All utterances once, in batches of so many seconds of audio, padding included."""
        lengths = np.array([end - start for start, end in self.places])
        order = np.argsort(lengths * random.uniform(0.9, 1.1, len(lengths)))
        batches: list[list[int]] = [[]]
        longest = 0
        for index in order:
            longest = max(longest, lengths[index])
            if longest * (len(batches[-1]) + 1) > seconds * SAMPLING_RATE:
                batches.append([])
                longest = lengths[index]
            batches[-1].append(int(index))
        random.shuffle(batches)
        return batches

    def audio(self, index: int, random: np.random.Generator) -> np.ndarray:
        """An utterance with silence around it and noise of 8 to 35 dB."""
        start, end = self.places[index]
        samples = self.samples[start:end].astype(np.float32) / 32_768
        before, after = random.integers(0, SAMPLING_RATE // 4, 2)
        samples = np.pad(samples, (before, after))
        noise = random.standard_normal(samples.size, dtype=np.float32)
        if random.random() < 0.5:  # half of it with more power in low frequencies
            noise[1:] += 0.9 * noise[:-1]
        power = np.sqrt(np.mean(samples**2) / np.mean(noise**2))
        return samples + noise * power * 10 ** (-random.uniform(8, 35) / 20)


def masked(features: Tensor, random: np.random.Generator) -> Tensor:
    """With one band and one stretch of each row taken out (Park et al. 2019, SpecAugment)."""
    for row in features:
        width = int(random.integers(0, 12))
        low = int(random.integers(0, row.shape[1] - width))
        row[:, low : low + width] = 0.0
        length = int(random.integers(0, 12))
        first = int(random.integers(0, max(row.shape[0] - length, 1)))
        row[first : first + length] = 0.0
    return features


def learning_rate(step: int, steps: int, peak: float) -> float:
    warm = 600
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("speech", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=100.0, help="of audio in a batch")
    parser.add_argument("--peak", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.run.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(arguments.seed)

    pieces = arguments.run / "pieces.json"
    if not pieces.exists():
        texts = [json.loads(line)["text"] for line in (arguments.speech / "utterances.jsonl").read_text().splitlines()]
        learn(texts).save(str(pieces))
    speech = Speech(arguments.speech, Tokenizer.from_file(str(pieces)))
    extractor = feature_extractor()
    heads = Heads()
    print({name: f"{sum(p.numel() for p in part.parameters()):,}" for name, part in heads.named_children()}, flush=True)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=arguments.peak, betas=(0.9, 0.98), weight_decay=0.01)

    step, epoch, done = 0, 0, 0
    checkpoint = arguments.run / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        heads.load_state_dict(state["heads"])
        optimizer.load_state_dict(state["optimizer"])
        step, epoch, done = state["step"], state["epoch"], state["done"]

    averages: dict[str, float] = {}
    began, since = time.time(), step
    while step < arguments.steps:
        random = np.random.default_rng([arguments.seed, epoch])
        for number, batch in enumerate(speech.batches(arguments.seconds, random)):
            if number < done:
                continue
            of_batch = np.random.default_rng([arguments.seed, epoch, number])
            inputs = extractor(
                [speech.audio(index, of_batch) for index in batch], sampling_rate=SAMPLING_RATE, return_tensors="pt"
            )
            tokens = [torch.tensor(speech.tokens[index]) for index in batch]
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, arguments.steps, arguments.peak)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses = heads(masked(inputs.input_features, of_batch), inputs.attention_mask, tokens, step)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            norm = torch.nn.utils.clip_grad_norm_(heads.parameters(), 2.0)
            if torch.isfinite(norm):
                optimizer.step()
            step, done = step + 1, number + 1
            for name, loss in losses.items():
                averages[name] = 0.98 * averages.get(name, loss.item()) + 0.02 * loss.item()
            if step % 50 == 0:
                seconds = (time.time() - began) / (step - since)
                said = "  ".join(f"{name} {value:.3f}" for name, value in sorted(averages.items()))
                print(f"step {step}  epoch {epoch}  {seconds:.2f} s a step  {said}", flush=True)
            if step % 250 == 0 or step == arguments.steps:
                state = {"heads": heads.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step, "epoch": epoch, "done": done}, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
            if step == arguments.steps:
                return
        epoch, done = epoch + 1, 0


if __name__ == "__main__":
    main()
