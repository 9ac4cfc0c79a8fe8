"""Decoders of transducers that are set side by side: stock `generate`, ours, NeMo's."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import encoded
import measure
import numpy as np
import speech
import torch

from hf_ngpulm import NGramLM, TransducerDecoder


@dataclass(eq=False)
class Candidate(ABC):
    """A decoder for some clips, at any weight of the LM (None: without).

    Args:
        name: as it stands in tables.
        clips: what it decodes.
        sizes: of the batches to time it in.
    """

    name: str
    clips: encoded.Clips
    sizes: tuple[int, ...]

    @abstractmethod
    def transcripts(self, weight: float | None) -> list[str]: ...

    @abstractmethod
    def seconds(self, weight: float | None, size: int) -> float:
        """How long all clips take."""


@dataclass(eq=False)
class Stock(Candidate):
    """`generate` of Transformers, handed the encoder's frames."""

    def transcripts(self, weight: float | None) -> list[str]:
        # Alone: in a batch stock TDT adds tokens to rows that have ended.
        found = encoded.generate(self.clips.model, encoded.batched(self.clips.rows, 1))
        texts = {number: self.clips.text(sequences[0].tolist()) for (number,), sequences in found}
        return [texts[number] for number in range(len(texts))]

    def seconds(self, weight: float | None, size: int) -> float:
        call = functools.partial(encoded.generate, self.clips.model, self.clips.batches[size])
        return speech.seconds_of(call, self.clips.device)


@dataclass(eq=False)
class Ours(Candidate):
    """A `TransducerDecoder`.

    Args:
        lm: the language model.
        settings: more arguments of the decoder.
        ilm_share: weight of the internal LM that is subtracted, as a share of the LM's weight.
    """

    lm: NGramLM
    settings: dict[str, Any]
    ilm_share: float = 0.0

    def __post_init__(self) -> None:
        self.decoders: dict[float | None, TransducerDecoder] = {}  # with what they keep for further batches

    def decoder(self, weight: float | None) -> TransducerDecoder:
        if weight not in self.decoders:
            fused = {} if weight is None else {"lm": self.lm, "lm_weight": weight, "ilm_weight": self.ilm_share * weight}
            self.decoders[weight] = TransducerDecoder(self.clips.model, self.clips.processor, **fused, **self.settings)
        return self.decoders[weight]

    def transcripts(self, weight: float | None) -> list[str]:
        return self.clips.transcripts(self.decoder(weight))

    def seconds(self, weight: float | None, size: int) -> float:
        decoder = self.decoder(weight)

        def decode() -> None:
            for _, frames, lengths in self.clips.batches[size]:
                decoder.decode(frames, lengths)

        return speech.seconds_of(decode, self.clips.device)


@dataclass(eq=False)
class NeMo(Candidate):
    """A decoder of NeMo.

    Args:
        process: what runs it.
        settings: the decoder, as peers_transducer.py wants it.
    """

    process: NeMoProcess
    settings: dict[str, Any]

    def transcripts(self, weight: float | None) -> list[str]:
        size = max(self.sizes)
        return list(map(self.clips.text, self.process.ask(**self.settings, lm_weight=weight, batch_size=size)["tokens"]))

    def seconds(self, weight: float | None, size: int) -> float:
        return self.process.ask(**self.settings, lm_weight=weight, batch_size=size)["seconds"]


class NeMoProcess:
    """peers_transducer.py in an environment of its own, with the clips' frames and the model's weights."""

    def __init__(self, python: str, clips: encoded.Clips, lm: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        modules = {"decoder": clips.model.decoder, "joint": clips.model.joint}
        weights = {f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}
        np.savez(
            folder / "outputs.npz",
            frames=torch.cat(clips.rows).cpu().numpy(),
            lengths=np.array(list(map(len, clips.rows))),
            durations=np.array(getattr(clips.model.config, "durations", []), dtype=np.int64),
            activation=clips.model.config.hidden_act,
            **{name: value.cpu().numpy() for name, value in weights.items()},
        )
        self.log = (folder / "log").open("w+")
        script = str(measure.ROOT / "benchmarks" / "peers_transducer.py")
        command = [python, script, "--outputs", str(folder / "outputs.npz"), "--lm", lm, "--device", clips.device]
        command += ["--threads", str(torch.get_num_threads())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.log.seek(0)
            sys.exit(f"{' '.join(self.process.args)} failed:\n{self.log.read()[-2000:]}")
        return json.loads(answer)


def timed(
    chosen: list[tuple[Candidate, float | None]], clips: encoded.Clips, repeats: int
) -> list[dict[str, dict[int, float]]]:
    """Seconds for all clips, and RTFx, of each decoder at a weight, by batch size; by turns, medians.

    RTFx is the length of the audio over the time of the decoder, or over that of the whole model: the decoder and the encoder
    in batches of the same size.
    """
    calls = {
        ("encoder", size): functools.partial(speech.seconds_of, functools.partial(clips.encode, size), clips.device)
        for size in clips.inputs
    }
    for place, (candidate, weight) in enumerate(chosen):
        calls |= {(place, size): functools.partial(candidate.seconds, weight, size) for size in candidate.sizes}
    medians = measure.by_turns(calls, repeats)
    found = []
    for place, (candidate, _) in enumerate(chosen):
        decoder = {size: medians[place, size] for size in candidate.sizes}
        encoder = {size: medians["encoder", size] for size in candidate.sizes}
        found.append(
            {
                "decoder_seconds": decoder,
                "encoder_seconds": encoder,
                "decoder_rtfx": {size: clips.seconds / decoder[size] for size in decoder},
                "model_rtfx": {size: clips.seconds / (decoder[size] + encoder[size]) for size in decoder},
            }
        )
    return found


def columns(rows: list[dict[str, Any]], sizes: tuple[int, ...]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a table's columns for what `timed` found."""
    header = [f"{what}, {size}" for what in ("ms a clip", "RTFx", "whole RTFx") for size in sizes]
    cells = []
    for row in rows:
        per_clip = {size: f"{1e3 * seconds / row['clips']:.2f}" for size, seconds in row["decoder_seconds"].items()}
        rates = [{size: f"{rate:.0f}" for size, rate in row[key].items()} for key in ("decoder_rtfx", "model_rtfx")]
        cells.append([of.get(size, "") for of in (per_clip, *rates) for size in sizes])
    return header, cells
