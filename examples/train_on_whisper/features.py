"""Compute a frozen Whisper encoder's frames of recordings, once.

    python features.py openai/whisper-base train.jsonl frames --speeds 1.0 0.9 1.1

A manifest has a line {"audio": path, "text": transcript} per recording. Lines with another "split" than `--split` are left out.
Each recording is heard at each speed. `frames/` has the frames, 50 a second, in half precision, and an index of them. If the
command is stopped, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
from rich.progress import track
from transformers import WhisperForConditionalGeneration

from hf_ngpulm.models import WhisperTopConfig, WhisperTopFeatureExtractor
from hf_ngpulm.models.whisper_top import WhisperFrames
from hf_ngpulm.sound.files import read_audio

RATE = 16_000
SECONDS = 60  # of audio that Whisper hears at once


def whisper_frames(source: str) -> WhisperFrames:
    """Return a Whisper's encoder, as `WhisperTopEncoder` has it."""
    model = WhisperForConditionalGeneration.from_pretrained(source, dtype=torch.float32)
    frames = WhisperFrames(WhisperTopConfig(whisper=model.config.to_dict()))
    frames.whisper.load_state_dict(model.model.encoder.state_dict())
    return frames.eval()


def recordings(manifests: list[Path], split: str, speeds: list[float]) -> list[dict[str, Any]]:
    """Return a line for each recording and speed; the plain speed first."""
    lines = []
    for manifest in manifests:
        for row in manifest.read_text(encoding="utf-8").splitlines():
            line = json.loads(row)
            if line.get("split", split) == split:
                lines.append({**line, "audio": str(manifest.parent / line["audio"])})
    return [{**line, "speed": speed} for speed in speeds for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("whisper", help="a Whisper: a folder or an id of the Hub")
    parser.add_argument("manifests", type=Path, nargs="+")
    parser.add_argument("frames", type=Path, help="folder for the frames")
    parser.add_argument("--speeds", type=float, nargs="+", default=[1.0, 0.9, 1.1])
    parser.add_argument("--split", default="train")
    args = parser.parse_args()
    args.frames.mkdir(parents=True, exist_ok=True)
    hears, extractor = whisper_frames(args.whisper), WhisperTopFeatureExtractor()
    index, data = args.frames / "index.jsonl", args.frames / "frames.raw"
    done = [json.loads(line) for line in index.read_text().splitlines()] if index.exists() else []
    left = recordings(args.manifests, args.split, args.speeds)[len(done) :]
    width = hears.whisper.config.d_model
    end = done[-1]["end"] if done else 0
    with index.open("a") as lines, data.open("ab") as frames, torch.inference_mode():
        frames.truncate(end * width * 2)
        batch: list[dict[str, Any]] = []
        audio: list[np.ndarray] = []
        for number, line in enumerate(track(left, "Whisper hears")):
            samples = read_audio(line["audio"], RATE)
            audio.append(samples if line["speed"] == 1 else soxr.resample(samples, RATE * line["speed"], RATE))
            batch.append(line)
            if number + 1 < len(left) and sum(map(len, audio)) < SECONDS * RATE:
                continue
            inputs = extractor(audio, sampling_rate=RATE, return_tensors="pt")
            for line, row, mask in zip(batch, hears.heard(**inputs), inputs.attention_mask, strict=True):
                heard = row[: int(mask[::2].sum())].half().numpy()
                frames.write(heard.tobytes())
                lines.write(json.dumps({**line, "start": end, "end": end + len(heard)}) + "\n")
                end += len(heard)
            frames.flush()
            lines.flush()
            batch, audio = [], []
    print(f"{end / 50 / 3600:.1f} h of frames in {args.frames}")


if __name__ == "__main__":
    main()
