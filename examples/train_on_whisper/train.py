"""Train a CTC model, an RNN-T and a TDT on a frozen Whisper encoder's frames, as features.py left them.

    python train.py openai/whisper-base frames run --steps 2400

`run/` has the tokenizer and the state after every hundred steps, from which the same command goes on; at the end `run/ctc`,
`run/rnnt` and `run/tdt`, models that Transformers and this library load once `hf_ngpulm` is imported.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from transformers import ParakeetProcessor, WhisperForConditionalGeneration

sys.path.append(str(Path(__file__).resolve().parents[1] / "train_tiny_asr"))

from heads import DURATIONS, KINDS, Heads
from tokenizers import Tokenizer
from tokenizers_of_models import NUM_PIECES, for_transformers, learn

from hf_ngpulm.models import WhisperTopFeatureExtractor

RATE = 50  # frames of Whisper a second


class Utterances:
    """Frames and tokens of all recordings."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, letters: list[str], width: int) -> None:
        lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
        self.frames = np.memmap(folder / "frames.raw", dtype=np.float16, mode="r").reshape(-1, width)
        self.places = [(line["start"], line["end"]) for line in lines]
        texts = [line["text"] for line in lines]
        self.tokens = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        number_of = {letter: number for number, letter in enumerate(letters)}
        self.letters = [[number_of[letter] for letter in text if letter in number_of] for text in texts]

    def batches(self, seconds: float, share: float, random: np.random.Generator) -> list[list[int]]:
        """Return a random share of the recordings, in batches of so many seconds, padding included, of similar length."""
        lengths = np.array([end - start for start, end in self.places])
        drawn = random.permutation(len(lengths))[: max(1, round(share * len(lengths)))]
        order = drawn[np.argsort(lengths[drawn] * random.uniform(0.9, 1.1, len(drawn)))]
        batches: list[list[int]] = [[]]
        longest = 0
        for index in order:
            longest = max(longest, lengths[index])
            if batches[-1] and longest * (len(batches[-1]) + 1) > seconds * RATE:
                batches.append([])
                longest = lengths[index]
            batches[-1].append(int(index))
        random.shuffle(batches)
        return batches

    def batch(self, numbers: list[int], random: np.random.Generator) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """Return frames `[B, T, D]`, the mask of mel frames `[B, 2 * T]`, and each row's tokens and letters.

        Stretches of frames and channels are left out (Park et al. 2019, SpecAugment).
        """
        rows = [torch.from_numpy(self.frames[slice(*self.places[number])].astype(np.float32)) for number in numbers]
        for row in rows:
            for _ in range(2):
                length = int(random.integers(0, min(25, len(row) // 4) + 1))
                first = int(random.integers(0, len(row) - length + 1))
                row[first : first + length] = 0.0
            channels = torch.from_numpy(random.random(row.shape[1]) < 0.05)
            row[:, channels] = 0.0
        frames = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([2 * len(row) for row in rows])
        mask = (torch.arange(2 * frames.shape[1]) < lengths[:, None]).long()
        tokens, letters = ([torch.tensor(of[number]) for number in numbers] for of in (self.tokens, self.letters))
        return frames, mask, tokens, letters


def learning_rate(step: int, steps: int, peak: float, warm: int = 300) -> float:
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1))))


def export(heads: Heads, whisper: Any, run: Path) -> None:
    """Save a model of each kind, with its processor."""
    for name, model in heads.fill(whisper.model.encoder, whisper.config.to_dict()).items():
        blank = heads.pieces + (name == "tdt")
        if name != "ctc":
            model.generation_config.decoder_start_token_id = blank
        if name == "tdt":
            model.generation_config.suppress_tokens = list(range(blank + 1, blank + 1 + len(DURATIONS)))
        model.eval().half().save_pretrained(run / name)
        processor = ParakeetProcessor(
            WhisperTopFeatureExtractor(), for_transformers(run / "pieces.json", name), decoder_type=name
        )
        processor.save_pretrained(run / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("whisper", help="the Whisper that features.py had")
    parser.add_argument("frames", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seconds", type=float, default=100.0, help="of audio in a batch")
    parser.add_argument("--peak", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)

    pieces = args.run / "pieces.json"
    texts = [json.loads(line)["text"] for line in (args.frames / "index.jsonl").read_text().splitlines()]
    if not pieces.exists():
        learn(texts).save(str(pieces))
    tokenizer, letters = Tokenizer.from_file(str(pieces)), sorted(set("".join(texts)))
    whisper = WhisperForConditionalGeneration.from_pretrained(args.whisper, dtype=torch.float32)
    heads = Heads(whisper.config.to_dict(), NUM_PIECES, len(letters))
    average = copy.deepcopy(heads)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=args.peak, betas=(0.9, 0.98), weight_decay=0.02)
    step, checkpoint = 0, args.run / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        heads.load_state_dict(state["heads"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    print({name: f"{sum(p.numel() for p in part.parameters()):,}" for name, part in heads.named_children()}, flush=True)

    means: dict[str, float] = {}
    log = (args.run / "log.txt").open("a")
    columns = (TextColumn("{task.completed} of {task.total} steps"), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn()) as progress:
        bar = progress.add_task("", total=args.steps, completed=step)
        while step < args.steps:
            random = np.random.default_rng([args.seed, step])
            # Read anew, so that frames may still be computed meanwhile.
            utterances = Utterances(args.frames, tokenizer, letters, whisper.config.d_model)
            for numbers in utterances.batches(args.seconds, 0.1, random):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(step, args.steps, args.peak)
                losses = heads(*utterances.batch(numbers, random), step)
                optimizer.zero_grad()
                sum(losses.values()).backward()
                if torch.isfinite(nn.utils.clip_grad_norm_(heads.parameters(), 2.0)):
                    optimizer.step()
                step += 1
                keep = min(0.998, step / (step + 10))
                for mean, now in zip(average.state_dict().values(), heads.state_dict().values(), strict=True):
                    mean.copy_(now if not mean.is_floating_point() else keep * mean + (1 - keep) * now)
                for name, loss in losses.items():
                    means[name] = 0.98 * means.get(name, loss.item()) + 0.02 * loss.item()
                told = "  ".join(f"{name} {value:.3f}" for name, value in sorted(means.items()))
                progress.update(bar, completed=step, description=told)
                if step % 50 == 0:
                    print(step, told, file=log, flush=True)
                if step % 100 == 0 or step == args.steps:
                    state = {"heads": heads.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "step": step}, checkpoint.with_suffix(".new"))
                    checkpoint.with_suffix(".new").replace(checkpoint)
                if step == args.steps:
                    break
    export(average, whisper, args.run)
    print(f"{', '.join(KINDS)} in {args.run}")


if __name__ == "__main__":
    main()
