"""What benchmarks of decoding share: clips, and the outputs of an acoustic model for them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import torch

from hf_ngpulm.decoding.families import frame_lengths
from hf_ngpulm.language_model.loading import load_language_model

DEMO = measure.ROOT / "examples" / "speech" / "harbour"
MODEL = measure.ROOT / "examples" / "models" / "ctc"


@dataclass
class Outputs:
    """An acoustic model's outputs for some clips, in batches of similar length.

    Args:
        processor, model, lm: what was loaded.
        texts: transcripts.
        seconds: of audio, all clips together.
        inputs: of the model, by batch.
        batches: numbers of the clips, logits `[B, T, C]`, lengths `[B]`.
    """

    processor: Any
    model: Any
    lm: Any
    texts: list[str]
    seconds: float
    inputs: list[dict[str, torch.Tensor]]
    batches: list[tuple[list[int], torch.Tensor, torch.Tensor]]

    def rows(self) -> list[torch.Tensor]:
        """Log-probabilities of each clip, `[T, C]`."""
        found = {}
        for numbers, logits, lengths in self.batches:
            log_probs = torch.log_softmax(logits.float(), -1).cpu()
            found |= {number: log_probs[i, : lengths[i]] for i, number in enumerate(numbers)}
        return [found[number] for number in range(len(found))]

    def decode(self, decoder: Any) -> list[str]:
        """Transcripts of all clips."""
        found = [""] * len(self.texts)
        for numbers, logits, lengths in self.batches:
            for number, n_best in zip(numbers, decoder(logits, lengths), strict=True):
                found[number] = n_best[0].text
        return found

    def rebatched(self, batch_size: int) -> Outputs:
        """The same outputs in batches of another size, without inputs."""
        rows = self.rows()
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        batches = []
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            padded = torch.nn.utils.rnn.pad_sequence([rows[i] for i in numbers], batch_first=True)
            batches.append((numbers, padded, torch.tensor([len(rows[i]) for i in numbers])))
        return Outputs(self.processor, self.model, self.lm, self.texts, self.seconds, [], batches)


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--manifest", type=Path, default=DEMO / "clips.jsonl")
    parser.add_argument("--lm", default=str(DEMO / "lm.arpa.gz"))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--name", default=name, help="name of the result file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)


def load(args: argparse.Namespace) -> Outputs:
    """Load model, LM and clips, and run the model."""
    import soundfile
    from transformers import AutoModelForCTC, AutoProcessor

    torch.set_num_threads(args.threads)
    processor = AutoProcessor.from_pretrained(args.model)
    model = AutoModelForCTC.from_pretrained(args.model, dtype=torch.float32).eval().to(args.device)
    lm = load_language_model(args.lm, processor.tokenizer, args.device)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()]
    audio = [soundfile.read(args.manifest.parent / clip["audio"], dtype="float32")[0] for clip in clips]
    rate = processor.feature_extractor.sampling_rate
    order = sorted(range(len(audio)), key=lambda i: len(audio[i]))
    inputs, batches = [], []
    for first in range(0, len(order), args.batch_size):
        numbers = order[first : first + args.batch_size]
        features = processor.feature_extractor(
            [audio[i] for i in numbers], sampling_rate=rate, return_tensors="pt", padding=True, return_attention_mask=True
        ).to(args.device)
        inputs.append({name: features[name] for name in (model.main_input_name, "attention_mask")})
        with torch.inference_mode():
            logits = model(**inputs[-1]).logits
        lengths = frame_lengths(model, inputs[-1]["attention_mask"].sum(-1))
        batches.append((numbers, logits, torch.full((len(numbers),), logits.shape[1]) if lengths is None else lengths))
    texts = [clip["text"] for clip in clips]
    return Outputs(processor, model, lm, texts, sum(map(len, audio)) / rate, inputs, batches)


def now(device: str) -> float:
    """Seconds, once the device has done its work; with one thread on a CPU those that this process has had of it."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


def seconds_of(call: Callable[[], Any], device: str) -> float:
    """How long a call takes."""
    begin = now(device)
    call()
    return now(device) - begin
