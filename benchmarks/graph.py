"""Graph decoding beside prefix beam search, and phrases on the graph's arcs: error rates, and what a thousand phrases cost.

    python benchmarks/graph.py --model CTC --manifest clips.jsonl --lm LM --distractors names.txt

A manifest has a line {"audio": path, "text": transcript, "entities": [names in it]} per clip; the other file a name per line
that is in no clip. Weights, bonuses and discounts are chosen on the even clips (the first one is even), figures are those of
the odd ones. "own": each clip with a context of its own entities; "among 1000": these and distractors, so many phrases in all,
other ones for each clip. Discounts are chosen for each kind by itself, the one with the lowest entity error rate of those at
which the word error rate is no worse than without phrases; entities are the clip's own (see hf_ngpulm.evaluation). Times are
medians of decoding all clips, by turns, from the model's outputs to text, with the contexts made beforehand; what that takes
stands by itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import speech

from hf_ngpulm import CTCDecoder, GraphDecoder
from hf_ngpulm.evaluation import entity_errors, word_errors

BEAMS, ACTIVE = (8, 16), (8, 16, 32, 64, 128)
WEIGHTS, BETAS = (0.7, 0.9, 1.1, 1.3), (1.0, 2.0, 3.0, 4.0, 5.0)
DISCOUNTS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
PAPERS = 2.0  # Nigmatulina et al. 2023
OF_PHRASES = (16, 32)  # hypotheses that phrases are tried with
MOST_PHRASES = 1000
EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speech.add_arguments(parser, "graph")
    parser.add_argument("--distractors", type=Path, required=True)
    args = parser.parse_args()
    outputs = speech.load(args)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()]
    entities = [clip["entities"] for clip in clips]
    names = [line.strip() for line in args.distractors.read_text().splitlines() if line.strip()]
    drawn = random.Random(0)
    among = [[*own, *drawn.sample(names, min(MOST_PHRASES - len(own), len(names)))] for own in entities]
    with torch.inference_mode():
        searches, makers = searched(outputs, args)
        print(measure.table([*searches[0]], [[*row.values()] for row in searches]), flush=True)
        phrases = [
            biased(outputs, entities, among, active, *settings) for active, settings in makers.items() if active in OF_PHRASES
        ]
        print(json.dumps(phrases, indent=1), flush=True)
        costs = [cost(outputs, among, names, active, *settings, args) for active, settings in makers.items()]
        print(measure.table([*costs[0]], [[*row.values()] for row in costs]))
        forward = measure.by_turns({"": lambda: seconds(lambda: forward_pass(outputs), args)}, args.repeats)[""]
    found = {"audio_seconds": outputs.seconds, "forward_seconds": forward, "searches": searches, "phrases": phrases}
    print("results in", measure.save(args.name, {**found, "costs": costs}, args.out))


def seconds(call: Callable[[], Any], args: argparse.Namespace) -> float:
    begin = speech.now(args.device)
    call()
    return speech.now(args.device) - begin


def forward_pass(outputs: speech.Outputs) -> None:
    for inputs in outputs.inputs:
        outputs.model(**inputs)


def wer(outputs: speech.Outputs, found: list[str], part: slice) -> float:
    return 100 * word_errors(outputs.texts[part], found[part]).rate


def searched(outputs: speech.Outputs, args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[int, tuple[float, float]]]:
    """Each search with its best settings, and these of the graph by number of hypotheses."""
    kinds: dict[str, tuple[Any, str, int]] = {f"prefix beam {n}": (CTCDecoder, "num_beams", n) for n in BEAMS}
    kinds |= {f"graph, {n} active": (GraphDecoder, "max_active", n) for n in ACTIVE}
    rows, decoders, makers = [], {}, {}
    for name, (kind, size, number) in kinds.items():
        made = {
            (weight, beta): kind(outputs.processor, outputs.lm, weight, beta=beta, **{size: number})
            for weight, beta in itertools.product(WEIGHTS, BETAS)
        }
        found = {settings: outputs.decode(decoder) for settings, decoder in made.items()}
        best = min(found, key=lambda settings: wer(outputs, found[settings], EVEN))
        decoders[name] = made[best]
        if kind is GraphDecoder:
            makers[number] = best
        rates = {"WER, even": wer(outputs, found[best], EVEN), "WER, odd": wer(outputs, found[best], ODD)}
        rows.append({"search": name, "lm_weight": best[0], "beta": best[1], **rates})
    calls = {name: lambda d=decoder: seconds(lambda: outputs.decode(d), args) for name, decoder in decoders.items()}
    times = measure.by_turns(calls, args.repeats)
    return [{**row, "seconds": times[row["search"]], "RTFx": outputs.seconds / times[row["search"]]} for row in rows], makers


def decoded(outputs: speech.Outputs, decoder: GraphDecoder, contexts: list[Any] | None) -> list[str]:
    found = [""] * len(outputs.texts)
    for numbers, logits, lengths in outputs.batches:
        given = None if contexts is None else [contexts[number] for number in numbers]
        for number, n_best in zip(numbers, decoder(logits, lengths, given), strict=True):
            found[number] = n_best[0].text
    return found


def biased(
    outputs: speech.Outputs, entities: list[Any], among: list[Any], active: int, weight: float, beta: float
) -> dict[str, Any]:
    """Error rates with and without phrases."""

    def rates(found: list[str], part: slice) -> dict[str, float]:
        errors = entity_errors(outputs.texts[part], found[part], entities[part])
        figures = {"wer": wer(outputs, found, part), "entity_wer": 100 * errors.entity_wer, "f1": 100 * errors.matches.f1}
        return {name: round(figure, 2) for name, figure in figures.items()}

    settings = {"lm_weight": weight, "beta": beta, "max_active": active}
    none = decoded(outputs, GraphDecoder(outputs.processor, outputs.lm, **settings), None)
    result: dict[str, Any] = {**settings, "none": {"even": rates(none, EVEN), "odd": rates(none, ODD)}}
    for unseen in ("backoff", "stop"):
        curves: dict[str, dict[float, dict[str, Any]]] = {"own": {}, f"among {MOST_PHRASES}": {}}
        for discount in DISCOUNTS:
            decoder = GraphDecoder(outputs.processor, outputs.lm, **settings, discount=discount, unseen=unseen)
            for kind, contexts in zip(curves, (entities, among)):
                found = decoded(outputs, decoder, [context or None for context in contexts])
                curves[kind][discount] = {"even": rates(found, EVEN), "odd": rates(found, ODD)}
        result[unseen] = {}
        for kind, curve in curves.items():
            harmless = [d for d in DISCOUNTS if curve[d]["even"]["wer"] <= result["none"]["even"]["wer"]] or DISCOUNTS[:1]
            best = min(harmless, key=lambda discount: curve[discount]["even"]["entity_wer"])
            chosen = {"discount": best, **curve[best]["odd"]}
            result[unseen][kind] = {"chosen": chosen, "the paper's": curve[PAPERS]["odd"], "by_discount": curve}
    return result


def cost(
    outputs: speech.Outputs,
    among: list[Any],
    names: list[str],
    active: int,
    weight: float,
    beta: float,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Seconds of decoding with a thousand phrases beside those without."""
    decoder = GraphDecoder(outputs.processor, outputs.lm, weight, beta=beta, max_active=active, discount=PAPERS)
    making = []
    for phrases in among[:20]:
        making.append(seconds(lambda given=phrases: decoder.context(given), args))
    one = decoder.context(names[:MOST_PHRASES])
    each = [decoder.context(phrases) for phrases in among]
    calls: dict[Any, Callable[[], float]] = {}
    for again in range(2):  # two of everything, to see what chance does
        for name, contexts in (("none", None), ("one", [one] * len(among)), ("each", each)):
            calls[name, again] = lambda given=contexts: seconds(lambda: decoded(outputs, decoder, given), args)
    times = measure.by_turns(calls, args.repeats)
    both = {name: statistics.mean(times[name, again] for again in range(2)) for name in ("none", "one", "each")}
    return {
        "active": active,
        "seconds": both["none"],
        "same, again": times["none", 1] / times["none", 0],
        "one context": both["one"] / both["none"],
        "one for each clip": both["each"] / both["none"],
        "arcs": len(one),
        "milliseconds to make": 1e3 * statistics.median(making),
    }


if __name__ == "__main__":
    main()
