"""Ways to decode, which are rows of a table: ours, stock `generate`, and those of other projects; their times, by turns; and
the table of experiments, whose loop sweep.py has."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import corpora
import measure
import numpy as np
import torch
from recognisers import BATCH, Heard, stock_generate

from hf_ngpulm.lexicon.spellings import make_lexicon

Point = dict[str, Any]
Row = dict[str, Any]


def grid(**values: Iterable[Any]) -> list[Point]:
    """Return all combinations of settings."""
    return [dict(zip(values, point)) for point in itertools.product(*values.values())]


@dataclass(eq=False)
class Way:
    """A decoder of this project.

    Args:
        name: as it stands in the table.
        heard: what it decodes.
        grid: settings to try. The row has the best ones, those with the fewest errors on the first split.
        fixed: settings of the decoder that the table doesn't show.
        every: each point of the grid has a row.
        facts: what else the row says; where that is "phrases", errors of entities are counted.
        contexts: phrases of each clip.
        sizes: of batches that it is timed in.
        batch: size of those that it is tried in.
    """

    name: str
    heard: Heard
    grid: list[Point] = field(default_factory=lambda: [{}])
    fixed: dict[str, Any] = field(default_factory=dict)
    every: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    contexts: list[Any] | None = None
    sizes: tuple[int, ...] = ()
    batch: int = BATCH

    def make(self, point: Point) -> Any:
        return self.heard.recogniser.decoder(**self.fixed, **point)

    def decoder(self, point: Point) -> Any:
        """Return the decoder at a point, the same one again for the same point: it keeps things for further batches."""
        if getattr(self, "_made", (None,))[0] != point:
            self._made = point, self.make(point)
        return self._made[1]

    def transcripts(self, point: Point) -> list[str]:
        return self.heard.decode(self.decoder(point), self.batch, self.contexts)

    def seconds(self, point: Point, size: int) -> float:
        """Return how long all clips take, in batches of a size."""
        decoder, batches = self.decoder(point), self.heard.batches(size)
        call = lambda: [decoder.decode(frames, lengths) for _, frames, lengths in batches]  # noqa: E731
        return measure.seconds_of(call, self.heard.recogniser.device)

    def rows(self) -> list[Row]:
        """Return what came of each point, or of the best one; "ms a clip" is the least time of any."""
        found = []
        for point in self.grid:
            begin = time.process_time()
            texts = self.transcripts(point)
            row = {"model": self.heard.recogniser.name, "decoder": self.name, **self.facts, **point}
            row["ms a clip"] = 1e3 * (time.process_time() - begin) / len(texts)
            found.append(row | corpora.figures(self.heard.clips, texts, entities="phrases" in self.facts))
        if self.every:
            return found
        first = next(iter(corpora.splits(self.heard.clips)))
        best = min(found, key=lambda row: row[first])
        return [best | {"ms a clip": min(row["ms a clip"] for row in found)}]

    def point_of(self, row: Row) -> Point:
        return {name: row[name] for name in self.grid[0]}


class Stock(Way):
    """`generate` of Transformers for a transducer, handed the encoder's frames."""

    def make(self, point: Point) -> Any:
        return SimpleNamespace(decode=partial(stock_generate, self.heard.recogniser.model))

    def transcripts(self, point: Point) -> list[str]:
        # Alone: in a batch stock TDT adds tokens to rows that have ended.
        alone = (self.make(point).decode(row[None], torch.tensor([len(row)])) for row in self.heard.rows)
        return [text_of(self.heard, tokens[0].tolist()) for tokens in alone]


@dataclass(eq=False)
class Peer(Way):
    """A decoder of another project; `fixed` is what peers.py is asked, with the point.

    Args:
        process: that answers.
    """

    process: Any = None

    def ask(self, point: Point) -> dict[str, Any]:
        given = {"length_bonus" if name == "beta" else name: value for name, value in point.items()}
        return self.process.ask(**self.fixed, **given)

    def transcripts(self, point: Point) -> list[str]:
        return self.ask(point)["texts"]

    def seconds(self, point: Point, size: int) -> float:
        return self.ask(point)["seconds"]


def text_of(heard: Heard, tokens: list[int]) -> str:
    """Return the text of a transducer's tokens, special ones and blanks left out."""
    tokens = [token for token in tokens if token != heard.recogniser.model.config.blank_token_id]
    return heard.recogniser.tokenizer.decode(tokens, group_tokens=False, skip_special_tokens=True)


def spelled(words: list[str], tokenizer: Any) -> dict[str, list[int]]:
    """Return the token ids of words, for a decoder that goes along a lexicon."""
    lexicon = make_lexicon(words, tokenizer)
    tokens = np.split(lexicon.tokens, lexicon.offsets[1:-1])
    return {words[word]: ids.tolist() for word, ids in zip(lexicon.words, tokens, strict=True)}


class PeerProcess:
    """peers.py in an environment of its own, with what a CTC model makes of clips."""

    def __init__(self, python: str, heard: Heard) -> None:
        self.folder = tempfile.TemporaryDirectory()
        folder, recogniser = Path(self.folder.name), heard.recogniser
        frames = torch.cat(heard.rows).cpu().numpy()
        pieces = recogniser.tokenizer.convert_ids_to_tokens(list(range(frames.shape[1])))
        np.savez(folder / "outputs.npz", lengths=[len(row) for row in heard.rows], frames=frames, pieces=np.array(pieces))
        self.log = (folder / "log").open("w+")
        command = [python, str(Path(__file__).with_name("peers.py")), "--outputs", str(folder / "outputs.npz")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request."""
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            self.log.seek(0)
            sys.exit(f"peers.py failed on {request}:\n{self.log.read()[-2000:]}")
        return json.loads(answer)


def timed(chosen: list[tuple[Way, Row]], repeats: int) -> list[Row]:
    """Return rows with their times for all clips by batch size, medians; ways and their encoders take turns.

    RTFx is the length of the audio over the time of the decoder; "whole_rtfx" that over the decoder's and the encoder's, which
    hears batches of the same size.
    """
    calls = {}
    for place, (way, row) in enumerate(chosen):
        for size in way.sizes:
            calls["encoder", id(way.heard), size] = partial(way.heard.encoder_seconds, size)
            calls[place, size] = partial(way.seconds, way.point_of(row), size)
    medians: dict[Any, float] = measure.by_turns(calls, repeats)
    found = []
    for place, (way, row) in enumerate(chosen):
        decoder = {size: medians[place, size] for size in way.sizes}
        encoder = {size: medians["encoder", id(way.heard), size] for size in way.sizes}
        rtfx = {size: way.heard.seconds / decoder[size] for size in decoder}
        whole = {size: way.heard.seconds / (decoder[size] + encoder[size]) for size in decoder}
        times = {"decoder_seconds": decoder, "encoder_seconds": encoder, "rtfx": rtfx, "whole_rtfx": whole}
        found.append({**row, "clips": len(way.heard.clips), "audio_seconds": way.heard.seconds, **times} if way.sizes else row)
    return found


def show(rows: list[Row]) -> str:
    """Return rows as a table; times by batch size are ms a clip, and RTFx."""
    flat = []
    for row in rows:
        cells = dict(row)
        for size, seconds in row.get("decoder_seconds", {}).items():
            cells[f"ms, batch {size}"] = 1e3 * seconds / row["clips"]
            cells[f"RTFx, {size}"] = row["rtfx"][size]
            cells[f"% of encoder, {size}"] = 100 * seconds / row["encoder_seconds"][size]
        flat.append(cells)
    return measure.table(flat)


# The table of experiments


class Experiment(NamedTuple):
    """What is tried with each model; options and their defaults; and what is made of all rows: more for the result file."""

    ways: Callable[[Heard, argparse.Namespace, Any], Generator[Way | Row, Row, None]]
    options: dict[str, Any]
    at_once: int
    finish: Callable[[list[Row]], dict[str, Any]] | None


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(at_once: int = BATCH, finish: Any = None, **options: Any) -> Callable[[Any], Any]:
    """Enter an experiment: the clips that an encoder hears at once (0: none), and its options with their defaults.

    The function yields a `Way` for each row of the table, and is sent its (last) row; or a finished row.
    """

    def enter(ways: Any) -> Any:
        EXPERIMENTS[ways.__name__] = Experiment(ways, options, at_once, finish)
        return ways

    return enter
