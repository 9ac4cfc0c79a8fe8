"""hf-ngpulm demo"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jiwer
import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..audio.files import read_audio
from ..common.bundled import bundled, is_bundled
from ..evaluation import entity_errors, word_errors
from ..language_model.model import NGramLM
from .models import load_recogniser
from .options import JsonOption

MODELS = {
    "ctc": "CTC", "rnnt": "RNN-T", "tdt": "TDT", "hat": "HAT", "stateless": "stateless RNN-T", "canary": "attention (Canary)"
}  # fmt: skip
PHRASE_SETS = ("callsigns", "contacts")
BEAMS = {"ctc": 8, "canary": 5}  # others: 6
PHRASE_WEIGHTS = {  # benchmarks/results/bundled.json
    "ctc": 2.5625, "rnnt": 2.90625, "tdt": 2.34375, "hat": 2.5, "stateless": 1.8125, "canary": 1.71875
}  # fmt: skip
BATCH_SIZE = 16


@dataclass
class Clips:
    """A set of clips, and what was recognised in it by `(model, search)`."""

    name: str
    references: list[str]
    entities: list[list[str]]
    audio: list[dict[str, Any]]
    seconds: float
    texts: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    rtfx: dict[tuple[str, str], float] = field(default_factory=dict)

    def recognise(self, asr: Any, model: str, search: str, **settings: Any) -> None:
        logger = logging.getLogger("hf_ngpulm")
        level = logger.level
        logger.setLevel(logging.ERROR)  # the tables say which weights are tuned ones
        try:
            self._recognise(asr, model, search, **settings)
        finally:
            logger.setLevel(level)

    def _recognise(self, asr: Any, model: str, search: str, **settings: Any) -> None:
        asr([dict(recording) for recording in self.audio[:1]], **settings)  # warm-up
        begin = time.perf_counter()
        outputs = asr([dict(recording) for recording in self.audio], batch_size=BATCH_SIZE, **settings)
        self.rtfx[model, search] = self.seconds / (time.perf_counter() - begin)
        self.texts[model, search] = [output["text"].strip() for output in outputs]


def demo(
    model: Annotated[list[str] | None, typer.Option("--model", help=f"Only these models: {', '.join(MODELS)}.")] = None,
    clips: Annotated[int, typer.Option("--clips", min=0, help="Transcripts to show of each set.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Transcribe bundled clips by small models of several kinds: alone, with a language model, a beam, phrases. Offline."""
    present = [name for name in MODELS if is_bundled(f"examples/models/{name}")]
    chosen = list(dict.fromkeys(model or present))
    unknown = [name for name in chosen if name not in MODELS]
    if unknown:
        raise ValueError(f"--model {unknown[0]}: there is no such model; there are {', '.join(MODELS)}")
    speech = bundled("examples/speech")
    lm = NGramLM.from_pretrained(speech / "harbour" / "lm")
    sets = {name: _read(speech / name) for name in ("harbour", *PHRASE_SETS)}
    for number, name in enumerate(chosen, start=1):
        print(f"{number} of {len(chosen)}: {MODELS[name]}", file=sys.stderr, flush=True)
        asr = load_recogniser(str(bundled("examples/models") / name), "cpu", dtype=torch.float32)
        harbour = sets["harbour"]
        greedy: dict[str, Any] = {"num_beams": 1} if name in ("ctc", "canary") else {"strategy": "greedy"}
        beam: dict[str, Any] = {"num_beams": BEAMS.get(name, 6)}
        harbour.recognise(asr, name, "alone", **greedy)
        harbour.recognise(asr, name, "LM", lm=lm, **greedy)
        harbour.recognise(asr, name, "LM, beam", lm=lm, **beam)
        for of_set in PHRASE_SETS:
            phrases = _phrases(speech / of_set, sets[of_set])
            sets[of_set].recognise(asr, name, "beam", **beam)
            sets[of_set].recognise(asr, name, "phrases", phrases=phrases, phrase_weight=PHRASE_WEIGHTS[name], **beam)
    if len(present) < len(MODELS):
        missing = ", ".join(MODELS[name] for name in MODELS if name not in present)
        print(f"There are more models (and clips) in a clone of the repository: {missing}", file=sys.stderr)
    if as_json:
        _print_json(sets)
    else:
        _print_tables(chosen, sets, lm, clips)


def _read(folder: Path) -> Clips:
    lines = [json.loads(line) for line in (folder / "clips.jsonl").read_text(encoding="utf-8").splitlines()]
    rate = 16_000
    audio: list[dict[str, Any]] = [{"raw": read_audio(folder / line["audio"], rate), "sampling_rate": rate} for line in lines]
    seconds = sum(len(recording["raw"]) for recording in audio) / rate
    return Clips(folder.name, [line["text"] for line in lines], [line["entities"] for line in lines], audio, seconds)


def _phrases(folder: Path, clips: Clips) -> list[str]:
    """Return all entities of the clips, and as many others."""
    here = list(dict.fromkeys(entity for entities in clips.entities for entity in entities))
    return here + (folder / "others.txt").read_text(encoding="utf-8").splitlines()[: len(here)]


def _rates(clips: Clips, key: tuple[str, str]) -> dict[str, float]:
    rates = {"wer": 100 * word_errors(clips.references, clips.texts[key]).rate, "rtfx": clips.rtfx[key]}
    if any(clips.entities):
        rates["entity_wer"] = 100 * entity_errors(clips.references, clips.texts[key], clips.entities).entity_wer
    return rates


def _print_json(sets: dict[str, Clips]) -> None:
    for name, clips in sets.items():
        for key, texts in clips.texts.items():
            transcripts = [{"reference": a, "text": b} for a, b in zip(clips.references, texts, strict=True)]
            line = {"set": name, "model": key[0], "search": key[1], **_rates(clips, key), "transcripts": transcripts}
            print(json.dumps(line))


def _print_tables(models: list[str], sets: dict[str, Clips], lm: Any, shown: int) -> None:
    console = Console(highlight=False)
    for clips in sets.values():
        for number in range(min(shown, len(clips.references))):
            console.print(f"[dim]{clips.name}/{number:02d}[/dim]  {clips.references[number]}", soft_wrap=True)
            for (model, search), texts in clips.texts.items():
                if model == models[0]:
                    marked = _marked(clips.references[number], texts[number])
                    console.print(f"  {MODELS[model] + ', ' + search:>24}  ", marked, sep="", soft_wrap=True)
    harbour = sets["harbour"]
    table = Table(title=f"Orders on a launch: {len(harbour.audio)} clips. Word error rate (times real time)")
    table.add_column("")
    for heading in ("alone", "with LM", "with LM and beam"):
        table.add_column(heading, justify="right")
    for model in models:
        rates = [_rates(harbour, (model, search)) for search in ("alone", "LM", "LM, beam")]
        first = rates[0]["wer"]
        cells = [f"{rates[0]['wer']:.1f}% ({rates[0]['rtfx']:.0f})"]
        cells += [f"{rate['wer']:.1f}% {_change(first, rate['wer'])} ({rate['rtfx']:.0f})" for rate in rates[1:]]
        table.add_row(MODELS[model], *cells)
    console.print(table)
    console.print(
        f"The LM: order {lm.order}, {sum(lm.num_ngrams):,} n-grams, {lm.nbytes / 1e6:.1f} MB, trained on text of that domain; "
        "the weights are in its config.",
        soft_wrap=True,
    )
    table = Table(title="Phrases, with beams and no LM: word error rate in entities (in all words)")
    table.add_column("")
    for of_set in PHRASE_SETS:
        table.add_column(of_set, justify="right")
    for model in models:
        cells = []
        for of_set in PHRASE_SETS:
            alone, boosted = (_rates(sets[of_set], (model, search)) for search in ("beam", "phrases"))
            entities = f"{alone['entity_wer']:.1f}% > {boosted['entity_wer']:.1f}%"
            cells.append(f"{entities} ({alone['wer']:.1f}% > {boosted['wer']:.1f}%)")
        table.add_row(MODELS[model], *cells)
    console.print(table)


def _change(before: float, after: float) -> str:
    return f"{100 * (after - before) / before:+.0f}%" if before else ""


def _marked(reference: str, hypothesis: str) -> Text:
    """Return the hypothesis with its errors marked: [wrong], and (missing) words of the reference."""
    text = Text()
    alignment: Any = jiwer.process_words(reference, hypothesis).alignments[0] if hypothesis.strip() else None
    if alignment is None:
        return Text(f"({reference})", style="yellow")
    for chunk in alignment:
        words = " ".join(hypothesis.split()[chunk.hyp_start_idx : chunk.hyp_end_idx])
        missing = " ".join(reference.split()[chunk.ref_start_idx : chunk.ref_end_idx])
        if text:
            text.append(" ")
        if chunk.type == "equal":
            text.append(words)
        elif chunk.type == "delete":
            text.append(f"({missing})", style="yellow")
        else:
            text.append(f"[{words}]", style="bold red")
    return text
