"""What hearing a window at a time costs in accuracy, and what it takes: buffered streaming against offline recognition.

python benchmarks/buffered.py --model MODEL --manifest dev.jsonl --lm tokens.arpa --lm-weight 1.0 --num-beams 8 --joined 1 8

Clips are streamed 32 at a time; with `--joined 8` eight of them follow each other in a stream.
Prints, for each cut, the word error rate, and audio decoded in a second (encoder included) on one thread. A cut that covers all
is offline recognition.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import torch
from transformers import AutoProcessor, pipeline

from hf_ngpulm.audio import StreamingRecognizer
from hf_ngpulm.language_model.loading import load_language_model
from hf_ngpulm.sound.files import read_audio

# Seconds of a chunk, and heard before and after it.
CUTS = {"offline": (1.28, 120.0, 120.0), "2.56 + 1.28": (2.56, 4.0, 1.28), "1.28 + 1.28": (1.28, 4.0, 1.28),
        "0.64 + 0.64": (0.64, 4.0, 0.64), "0.32 + 0.48": (0.32, 4.0, 0.48)}  # fmt: skip
STREAMS, PIECE = 32, 0.5


def said(recognizer: StreamingRecognizer, audio: list[np.ndarray]) -> list[str]:
    """What is said in some recordings, as many of them at a time as there are streams."""
    texts, piece = [""] * len(audio), int(PIECE * recognizer.sampling_rate)
    coming, live = list(range(len(audio))), {}
    while coming or live:
        while coming and len(live) < STREAMS:
            live[recognizer.open()] = [coming.pop(0), 0]
        for sid, (number, at) in live.items():
            recognizer.push(sid, audio[number][at : at + piece])
            live[sid][1] += piece
            if at + piece >= len(audio[number]):
                recognizer.end(sid)
        while recognizer.step():
            pass
        for sid in [sid for sid, (number, at) in live.items() if at >= len(audio[number])]:
            texts[live.pop(sid)[0]] = recognizer.close(sid)[0].text
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a CTC model, or a transducer")
    parser.add_argument("--manifest", type=Path, required=True, help="JSON lines with audio (beside the manifest) and text")
    parser.add_argument("--lm")
    parser.add_argument("--lm-weight", type=float)
    parser.add_argument("--ilm-weight", type=float)
    parser.add_argument("--num-beams", type=int)
    parser.add_argument("--joined", type=int, nargs="+", default=[1])
    parser.add_argument("--half", action="store_true", help="only every other clip, from the second on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    asr = pipeline("automatic-speech-recognition", model=args.model, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(args.model)
    names = ("lm_weight", "ilm_weight", "num_beams")
    settings: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    settings.setdefault("num_beams", 1)
    if args.lm is not None:
        settings["lm"] = load_language_model(args.lm, asr.tokenizer)
    clips = [json.loads(line) for line in args.manifest.read_text(encoding="utf-8").splitlines()]
    clips = clips[1::2] if args.half else clips
    rate = asr.feature_extractor.sampling_rate
    recordings = [read_audio(args.manifest.parent / clip["audio"], rate) for clip in clips]
    seconds = sum(map(len, recordings)) / rate
    for joined in args.joined:
        firsts = range(0, len(clips), joined)
        audio = [np.concatenate(recordings[first : first + joined]) for first in firsts]
        texts = [" ".join(clip["text"] for clip in clips[first : first + joined]) for first in firsts]
        for name, (chunk, left, right) in CUTS.items():
            recognizer = StreamingRecognizer(
                asr.model, processor, STREAMS, chunk_seconds=chunk, left_seconds=left, right_seconds=right, **settings
            )
            said(recognizer, audio[:1])  # compiled loops are loaded
            begin = time.perf_counter()
            found = said(recognizer, audio)
            took = time.perf_counter() - begin
            line = {"model": Path(args.model).name, "num_beams": settings["num_beams"], "joined": joined, "cut": name}
            print(
                json.dumps({**line, "wer": round(100 * jiwer.wer(texts, found), 1), "rtfx": round(seconds / took)}), flush=True
            )


if __name__ == "__main__":
    main()
