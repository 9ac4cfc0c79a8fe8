"""Graph decoding beside prefix beam search, and phrases in graphs: error rates, and what a thousand phrases cost.

    python benchmarks/graph.py --model CTC --manifest clips.jsonl --lm LM --word-lm words.arpa --distractors names.txt

A manifest has a line {"audio": path, "text": transcript, "entities": [names in it]} per clip; the other file a name per line
that is in no clip. Weights, bonuses and discounts are chosen on the even clips (the first one is even), figures are those of
the odd ones; beside them those of all clips. "own": each clip with a context of its own entities;
"among 1000": these and distractors, so many phrases in all, other ones for each clip. Discounts are chosen for each kind by
itself, the one with the lowest entity error rate of those at which the word error rate is no worse than without phrases;
entities are the clip's own (see hf_ngpulm.evaluation).

Searches run from the model's outputs to text. What phrases cost is told from seconds of the process, on one thread: batch by
batch decodings without and with phrases take turns, and so does the model; a turn goes over all clips, figures are medians of
turns. Contexts are made beforehand; what that takes stands by itself.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import speech

from hf_ngpulm import CTCDecoder, GraphDecoder
from hf_ngpulm.evaluation import entity_errors, word_errors
from hf_ngpulm.language_model.loading import load_language_model

BEAMS, ACTIVE = (8, 16), (8, 16, 32, 64)
WEIGHTS, BETAS = (0.7, 0.9, 1.1, 1.3), (1.0, 2.0, 3.0, 4.0, 5.0)
DISCOUNTS = (0.5, 1.0, 1.5, 2.0, 3.0)
OF_PHRASES = (16, 32, 64)  # hypotheses that phrases are tried with
BATCH_SIZES = (1, 32)
MOST_PHRASES = 1000
EVEN, ODD, ALL = slice(0, None, 2), slice(1, None, 2), slice(0, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speech.add_arguments(parser, "graph")
    parser.add_argument("--word-lm", help="a language model of words, beside that of tokens")
    parser.add_argument("--distractors", type=Path, required=True)
    args = parser.parse_args()
    outputs = speech.load(args)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()]
    entities = [clip["entities"] for clip in clips]
    names = [line.strip() for line in args.distractors.read_text().splitlines() if line.strip()]
    drawn = random.Random(0)
    among = [[*own, *drawn.sample(names, min(MOST_PHRASES - len(own), len(names)))] for own in entities]
    lms = {"tokens": outputs.lm}
    if args.word_lm:
        lms["words"] = load_language_model(args.word_lm, outputs.processor.tokenizer, args.device)
    batched = {}
    for batch_size in BATCH_SIZES:
        args.batch_size = batch_size
        batched[batch_size] = speech.load(args)
    found: dict[str, Any] = {"audio_seconds": outputs.seconds}
    for unit, lm in lms.items():
        outputs = copy.copy(outputs)
        outputs.lm = lm
        with torch.inference_mode():
            searches, chosen = searched(outputs, args)
            print(measure.table([*searches[0]], [[*row.values()] for row in searches]), flush=True)
            settings = {active: {"lm_weight": w, "beta": b, "max_active": active} for active, (w, b) in chosen.items()}
            phrases = biased(outputs, entities, among, [settings[active] for active in OF_PHRASES])
            print(measure.table([*phrases[0]], [[*row.values()] for row in phrases]), flush=True)
            costs = [
                cost(outputs, of_size, batch_size, entities, among, names, settings[active], args)
                for batch_size, of_size in batched.items()
                for active in OF_PHRASES
            ]
            print(measure.table([*costs[0]], [[*row.values()] for row in costs]), flush=True)
        making = setting_up(outputs, entities, among)
        print(making, flush=True)
        found[unit] = {"searches": searches, "phrases": phrases, "costs": costs, "milliseconds_to_set_up": making}
        print("results in", measure.save(args.name, found, args.out), flush=True)


def clock(args: argparse.Namespace) -> float:
    return time.process_time() if args.device == "cpu" else speech.now(args.device)


def seconds(call: Callable[[], Any], args: argparse.Namespace) -> float:
    begin = clock(args)
    call()
    return clock(args) - begin


def wer(outputs: speech.Outputs, found: list[str], part: slice) -> float:
    return 100 * word_errors(outputs.texts[part], found[part]).rate


def searched(outputs: speech.Outputs, args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[int, tuple[float, float]]]:
    """Each search with its best settings, and these of the graph by number of hypotheses."""
    kinds: dict[str, tuple[Any, str, int]] = {f"prefix beam {n}": (CTCDecoder, "num_beams", n) for n in BEAMS}
    kinds |= {f"graph, {n} active": (GraphDecoder, "max_active", n) for n in ACTIVE}
    rows, decoders, chosen = [], {}, {}
    for name, (kind, size, number) in kinds.items():
        made = {
            (weight, beta): kind(outputs.processor, outputs.lm, weight, beta=beta, **{size: number})
            for weight, beta in itertools.product(WEIGHTS, BETAS)
        }
        found = {settings: outputs.decode(decoder) for settings, decoder in made.items()}
        best = min(found, key=lambda settings: wer(outputs, found[settings], EVEN))
        decoders[name] = made[best]
        if kind is GraphDecoder:
            chosen[number] = best
        rates = {"WER, even": wer(outputs, found[best], EVEN), "WER, odd": wer(outputs, found[best], ODD)}
        rows.append({"search": name, "lm_weight": best[0], "beta": best[1], **rates})
    calls = {name: lambda d=decoder: seconds(lambda: outputs.decode(d), args) for name, decoder in decoders.items()}
    times = measure.by_turns(calls, args.repeats)
    return [{**row, "seconds": times[row["search"]], "RTFx": outputs.seconds / times[row["search"]]} for row in rows], chosen


def decoded(outputs: speech.Outputs, decoder: GraphDecoder, contexts: list[Any] | None) -> list[str]:
    found = [""] * len(outputs.texts)
    for numbers, logits, lengths in outputs.batches:
        given = None if contexts is None else [contexts[number] for number in numbers]
        for number, n_best in zip(numbers, decoder(logits, lengths, given), strict=True):
            found[number] = n_best[0].text
    return found


def biased(
    outputs: speech.Outputs, entities: list[Any], among: list[Any], every_settings: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Error rates with and without phrases, a row for each number of hypotheses, and discount."""

    def row(settings: dict[str, Any], phrases: str, way: dict[str, Any], found: list[str]) -> dict[str, Any]:
        figures: dict[str, Any] = {**settings, "phrases": phrases, "discount": 0.0, **way}
        for name, part in (("even", EVEN), ("odd", ODD), ("all", ALL)):
            errors = entity_errors(outputs.texts[part], found[part], entities[part])
            figures[f"wer, {name}"] = round(wer(outputs, found, part), 2)
            figures[f"entity_wer, {name}"] = round(100 * errors.entity_wer, 2)
            figures[f"f1, {name}"] = round(100 * errors.matches.f1, 2)
        return figures

    rows = []
    for settings in every_settings:
        none = decoded(outputs, GraphDecoder(outputs.processor, outputs.lm, **settings), None)
        rows.append(row(settings, "none", {}, none))
    for discount, settings in itertools.product(DISCOUNTS, every_settings):
        way = {"discount": discount}
        decoder = GraphDecoder(outputs.processor, outputs.lm, **settings, **way)
        for kind, contexts in (("own", entities), (among_name(), among)):
            found = decoded(outputs, decoder, [context or None for context in contexts])
            rows.append(row(settings, kind, way, found))
    actives = [settings["max_active"] for settings in every_settings]
    for active, kind in itertools.product(actives, ("own", among_name())):
        of_size = [r for r in rows if r["max_active"] == active]
        best = min(
            (r for r in of_size if r["phrases"] in (kind, "none") and r["wer, even"] <= of_size[0]["wer, even"]),
            key=lambda r: r["entity_wer, even"],
        )
        rows.append({**best, "phrases": f"{kind}, chosen"})
    return rows


def among_name() -> str:
    return f"among {MOST_PHRASES}"


def cost(
    outputs: speech.Outputs,
    batched: speech.Outputs,
    batch_size: int,
    entities: list[Any],
    among: list[Any],
    names: list[str],
    settings: dict[str, Any],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Seconds of the model and of decoding, and how much a thousand phrases add to both together."""
    decoder = GraphDecoder(outputs.processor, outputs.lm, **settings)
    one = decoder.context(names[:MOST_PHRASES])
    contexts: dict[str, list[Any]] = {
        "none": [None] * len(among),
        "none, again": [None] * len(among),
        "own": [decoder.context(own) if own else None for own in entities],
        f"{MOST_PHRASES}": [one] * len(among),
        f"{MOST_PHRASES} for each": [decoder.context(phrases) for phrases in among],
    }
    turns: list[dict[str, float]] = []
    for turn in range(args.repeats + 1):
        spent = dict.fromkeys(("model", *contexts), 0.0)
        for number, ((clips, logits, lengths), inputs) in enumerate(zip(batched.batches, batched.inputs, strict=True)):
            begin = clock(args)
            if turn < 4:
                batched.model(**inputs)
            spent["model"] += clock(args) - begin
            kinds = list(contexts)
            first = (turn + number) % len(kinds)
            for kind in (*kinds[first:], *kinds[:first]):
                given = [contexts[kind][clip] for clip in clips]
                begin = clock(args)
                decoder(logits, lengths, given)
                spent[kind] += clock(args) - begin
        turns += [spent] if turn else []  # the first one loads compiled code
    model = statistics.median(spent["model"] for spent in turns[:3])
    middle = {kind: statistics.median(spent[kind] for spent in turns) for kind in contexts}
    row: dict[str, Any] = {"batch_size": batch_size, **settings, "model_seconds": model, "seconds": middle["none"]}
    for kind in list(contexts)[1:]:
        more = statistics.median(spent[kind] - spent["none"] for spent in turns)
        row[f"{kind}: of search"] = round(1 + more / middle["none"], 4)
        row[f"{kind}: of both"] = round(1 + more / (model + middle["none"]), 4)
    return row


def setting_up(outputs: speech.Outputs, entities: list[Any], among: list[Any]) -> dict[str, float]:
    """Milliseconds to make a context of phrases, and to find it again by what is in it (medians)."""
    found = {}
    for kind, contexts in (("own", [own for own in entities if own]), (among_name(), among)):
        decoder = GraphDecoder(outputs.processor, outputs.lm)
        times: dict[str, list[float]] = {"": [], ", again": []}
        for phrases, again in itertools.product(contexts[:40], times):
            begin = time.process_time()
            decoder.context(phrases)
            times[again].append(1e3 * (time.process_time() - begin))
        found |= {kind + again: statistics.median(values) for again, values in times.items()}
    return found


if __name__ == "__main__":
    main()
