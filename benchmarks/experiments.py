"""Experiments over grids of settings: what language models, beams and phrases gain (see sweep.py)."""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections.abc import Generator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import corpora
import measure
import numpy as np
from corpora import LM
from recognisers import BATCH, Heard
from torch import Tensor
from ways import Peer, PeerProcess, Row, Stock, Way, experiment, grid, show, spelled

from hf_ngpulm import NGramLM, PhraseBooster
from hf_ngpulm.audio import StreamingRecognizer
from hf_ngpulm.compat import build_ctcdecoder
from hf_ngpulm.formats.arpa import ArpaFile

Ways = Generator[Way, Row, None]  # of each way, its (last) row is sent back

# What LMs gain: weights, beams, and other projects


@experiment(lm=LM, lm_weights=(0.0, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3), batch_sizes=(BATCH,), repeats=5)
def ctc(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """Greedy CTC decoding by the weight of the LM, and by the rule for repeated labels; what it takes beside the encoder."""
    yield Way("no LM", heard, fixed={"num_beams": 1}, sizes=args.batch_sizes)
    fixed = {"lm": lm, "num_beams": 1}
    for rule in ("stay", "label", "run"):
        yield Way("greedy", heard, grid(lm_weight=args.lm_weights), {**fixed, "repeats": rule}, True, {"repeats": rule})
    yield Way("greedy + LM", heard, grid(lm_weight=(0.9,)), fixed, sizes=args.batch_sizes)


@experiment(lm=LM, word_lm=str, beams=(4, 8, 16, 32), batch_sizes=(1, 16, 64), repeats=5, peers_python=str)
def ctc_beam(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """CTC beam search with an LM of tokens, beside other projects' decoders of the same outputs (--lm: an ARPA file of decimal
    token ids for them; --word-lm: one of words for pyctcdecode)."""
    weights, greedy_weights = (0.7, 0.9, 1.1, 1.3), (0.5, 0.7, 0.9, 1.1)
    yield Way("argmax", heard, fixed={"num_beams": 1}, sizes=args.batch_sizes)
    yield Way("greedy", heard, grid(lm_weight=greedy_weights), {"lm": lm, "num_beams": 1}, sizes=args.batch_sizes)
    for beams in args.beams:
        points = grid(lm_weight=weights, beta=(2.0, 3.0, 4.0, 5.0))
        yield Way(f"beam {beams}", heard, points, {"lm": lm, "num_beams": beams}, sizes=args.batch_sizes)
    tokens = {"lm": args.of_model}
    if args.peers_python:
        of_words, of_tokens = grid(lm_weight=(0.5, 0.65, 0.8, 1.0), beta=(0.5, 1.0, 1.5, 2.5)), (0.7, 0.95, 1.2)
        ask = partial(Peer, heard=heard, sizes=(1,), process=PeerProcess(args.peers_python, heard))
        for beams in (16, 100):
            if args.word_lm:
                settings = {"decoder": "pyctcdecode", "lm": args.word_lm, "beam_width": beams}
                yield ask(f"pyctcdecode, word LM, beam {beams}", grid=of_words, fixed=settings)
            settings = {"decoder": "pyctcdecode-tokens", **tokens, "beam_width": beams}
            points = grid(lm_weight=of_tokens, beta=(1.5, 2.5, 3.5))
            yield ask(f"pyctcdecode, token LM, beam {beams}", grid=points, fixed=settings)
        settings = {"decoder": "flashlight", **tokens, "beam_width": 16, **FLASHLIGHT}
        yield ask("flashlight, beam 16", grid=grid(lm_weight=(0.6, 0.8, 1.0)), fixed=settings)


FLASHLIGHT = {"beam_size_token": 20, "beam_threshold": 10.0}


@experiment(lm=LM, beams=(16, 64, 100), batch_sizes=(1, 16), repeats=5, peers_python=str)
def words(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """CTC beam search with an LM of words (--lm: an ARPA file), its words cut into pieces in one way and in several; beside
    other projects' decoders, and through `hf_ngpulm.compat` with pyctcdecode's own weights."""
    cut = NGramLM.from_arpa(args.of_model, tokenizer=heard.recogniser.processor, units="word", cuttings=4)
    for name, model, more in (("", lm, {}), (", 4 cuttings", cut, {"merge": "text"})):
        for beams in args.beams:
            fixed = {"lm": model, "num_beams": beams, "beam_threshold": 10.0, "confidence": None, **more}
            points = grid(lm_weight=(0.7, 0.9, 1.1, 1.3), beta=(1.0, 2.0, 3.0, 4.0))
            yield Way(f"hf_ngpulm{name}, beam {beams}", heard, points, fixed, sizes=args.batch_sizes)
    if not args.peers_python:
        return
    ask = partial(Peer, heard=heard, sizes=(1,), process=PeerProcess(args.peers_python, heard))
    of_flashlight = {**FLASHLIGHT, "lexicon": spelled(ArpaFile(args.of_model).words, heard.recogniser.tokenizer)}
    points = grid(lm_weight=(0.5, 0.65, 0.8, 1.0), beta=(0.5, 1.5, 2.5))
    for beams in args.beams:
        settings = {"lm": args.of_model, "beam_width": beams}
        row = yield ask(f"pyctcdecode, beam {beams}", grid=points, fixed={"decoder": "pyctcdecode", **settings})
        theirs = grid(lm_weight=[row["lm_weight"]], beta=[row["beta"]])
        yield Compat(f"hf_ngpulm.compat, beam {beams}", heard, theirs, settings, sizes=args.batch_sizes)
        yield ask(f"ctc-beam-decoder, beam {beams}", grid=theirs, fixed={"decoder": "ctc-beam-decoder", **settings})
        library = {"decoder": "flashlight-lexicon", **settings, **of_flashlight}
        yield ask(f"flashlight, lexicon, beam {beams}", grid=points, fixed=library)


class Compat(Way):
    """`hf_ngpulm.compat`, which has pyctcdecode's API."""

    def make(self, point: dict[str, float]) -> Any:
        pieces = self.heard.recogniser.tokenizer.convert_ids_to_tokens(list(range(self.heard.rows[0].shape[1] - 1)))
        made = build_ctcdecoder([*pieces, ""], self.fixed["lm"], alpha=point["lm_weight"], beta=point["beta"])

        def decode(frames: Tensor, lengths: Tensor, contexts: None = None) -> list[Any]:
            rows = [row[:length].numpy() for row, length in zip(frames, lengths)]
            texts = made.decode_batch(None, rows, beam_width=self.fixed["beam_width"])
            return [[SimpleNamespace(text=text)] for text in texts]

        return SimpleNamespace(decode=decode)


@experiment(lm=LM, beams=(1, 2, 4, 6, 8, 12), lm_weights=(0.5, 0.7, 0.9, 1.1, 1.3), batch_sizes=(1, 4, 16, 32), repeats=3)
def transducer(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """Stock `generate`, our searches with and without an LM, and without the internal LM (half the LM's weight of it), on the
    same frames. Beams other than 6 are timed in the largest batches only."""
    largest, main = max(args.batch_sizes), 6
    yield Stock("stock generate", heard, sizes=args.batch_sizes)
    searches: list[tuple[str, dict[str, Any]]] = [("greedy", {"strategy": "greedy"})]
    for strategy in ("alsd",) if heard.recogniser.is_tdt else ("alsd", "aes"):
        searches += [(f"{strategy.upper()} {beams}", {"strategy": strategy, "num_beams": beams}) for beams in args.beams]
    for name, fixed in searches:
        is_main = fixed.get("num_beams", main) == main
        sizes = args.batch_sizes if is_main else (largest,)
        yield Way(name, heard, fixed=fixed, sizes=sizes)
        for suffix, share in ((" + LM", 0.0), (" - internal LM + LM", 0.5)) if is_main else ((" + LM", 0.0),):
            points = [{"lm_weight": weight, "ilm_weight": share * weight} for weight in args.lm_weights]
            yield Way(name + suffix, heard, points, {**fixed, "lm": lm}, sizes=sizes)


def knees(rows: list[Row]) -> dict[str, Any]:
    """Return the number of beams where a line of errors (on all clips) over the logarithm of time bends most: of all points the
    furthest below the straight line from first to last (Satopää et al., "Finding a kneedle in a haystack", 2011)."""
    found = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        points = [(math.log(row["ms a clip"]), row["all"], row["beams"]) for row in rows if row["model"] == model]
        if len(points) > 2:
            (begin, most, _), *between, (end, least, _) = points
            slope = (least - most) / (end - begin)
            found[model] = max(between, key=lambda point: slope * (point[0] - begin) - point[1])[2]
    return {"batch": BATCH, "knees": found}


# Weights of the LM and of the internal one, in greedy search and with beams.
KNEE_WEIGHTS: dict[str, tuple[list[tuple[float, ...]], list[tuple[float, ...]]]] = {
    "CTC": ([(0.4,), (0.6,), (0.8,)], [(0.8,), (1.2,), (1.6,)]),
    "transducer": ([(0.5, 0.25), (0.7, 0.35), (0.9, 0.45)], [(0.8, 0.4), (1.1, 0.55), (1.4, 0.7)]),
    "attention": ([(0.5, 0.3), (0.6, 0.4), (0.7, 0.5)], [(0.6, 0.4), (0.7, 0.5), (0.8, 0.5)]),
}


@experiment(at_once=1, finish=knees, lm=LM, beams=(1, 2, 3, 4, 8, 16))
def knee(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """Errors against time by the number of beams, for all families of models: how many are worth their time."""
    family = heard.recogniser.family
    confidence = {} if family == "attention" else {"confidence": None}
    for beams in args.beams:
        points = [dict(zip(("lm_weight", "ilm_weight"), weights)) for weights in KNEE_WEIGHTS[family][beams > 1]]
        yield Way(f"{beams} beams", heard, points, {"lm": lm, "num_beams": beams, **confidence}, facts={"beams": beams})


@experiment(lm=LM, source_lm=str, beams=(1, 5), lm_weights=(0.3, 0.4, 0.5, 0.6))
def attention(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """A decoder with attention by the rules for what an LM doesn't score, and with its internal LM (or --source-lm, one of the
    text that it was trained on) subtracted."""
    less = ((0.6, 0.4), (0.7, 0.4), (0.7, 0.5), (0.8, 0.5))
    source = heard.recogniser.lm(args.source_lm)
    for beams in args.beams:
        facts, fixed = {"beams": beams}, {"num_beams": beams, "lm": lm}
        yield Way("no LM", heard, fixed={"num_beams": beams}, facts=facts)
        for name, rule in (("kept", {}), ("none", {"unscored": "none"}), ("no </s>", {"score_eos": False})):
            yield Way(name, heard, grid(lm_weight=args.lm_weights), {**fixed, **rule}, facts=facts)
        points = [{"lm_weight": weight, "ilm_weight": other} for weight, other in less]
        yield Way("less internal", heard, points, fixed, facts=facts)
        if source is not None:
            points = [{"lm_weight": weight, "source_weight": other} for weight, other in less]
            yield Way("less source", heard, points, {**fixed, "source_lm": source}, facts=facts)


# What is inside transducers, and sentences that follow one another


@experiment(lm=LM, lm_weights=(0.0, 0.3, 0.6, 0.9, 1.2, 1.5))
def blank_scoring(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """Deletions and errors of transducers' beam search (ALSD, 6 beams) by the LM's weight, with and without blank-aware
    scoring, as in figure 2 of Grigoryan et al. (arXiv 2506.00185); plots.py draws them."""
    fixed = {"lm": lm, "strategy": "alsd", "num_beams": 6, "ilm_weight": 0.0}
    yield Way("ALSD 6", heard, grid(blank_scoring=("lm_weighted", "none"), lm_weight=args.lm_weights), fixed, every=True)


def means(rows: list[Row]) -> dict[str, Any]:
    """Print the mean of all models and beams, by text, weight and share."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault((row["text"], row["lm_weight"], row.get("share", 0.0)), []).append(row)
    columns = {"mean WER": "all", "mean deletions": "deletions"}
    of_keys = [
        {
            **dict(zip(("text", "lm_weight", "share"), key)),
            **{name: np.mean([r[of] for r in own]) for name, of in columns.items()},
        }
        for key, own in found.items()
    ]
    print(measure.table(of_keys))
    return {}


@experiment(
    at_once=1, finish=means, text=("harbour",), beams=(1, 3, 8), lm_weights=(0.1, 0.3, 0.5, 0.7, 0.9),
    shares=(0.0, 0.35, 0.5, 0.7),
)  # fmt: skip
def internal_lm(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """Transducers with LMs of several texts (--text), by weights, and by shares of these with which the internal LM is
    subtracted: what the default of `ilm_weight` comes from."""
    for text in [None, *args.text]:
        trained = text and NGramLM.train(corpora.text_of(text), heard.recogniser.tokenizer, order=6)
        for beams in args.beams:
            facts = {"text": text and Path(text).stem, "beams": beams}
            if text is None:
                yield Way("no LM", heard, fixed=search_of(heard, beams), facts={**facts, "lm_weight": 0.0})
                continue
            for share in args.shares:
                points = [{"lm_weight": weight, "ilm_weight": share * weight} for weight in args.lm_weights]
                fixed = {**search_of(heard, beams), "lm": trained}
                yield Way("LM", heard, points, fixed, True, {**facts, "share": share})


def search_of(heard: Heard, beams: int) -> dict[str, Any]:
    strategy = {"strategy": "alsd" if beams > 1 else "greedy"} if heard.recogniser.family == "transducer" else {}
    return {"num_beams": beams, **strategy}


@experiment(
    at_once=1, text=("harbour",), join="frames", sizes=(1, 2, 4, 8), beams=(1, 8), lm_weights=(0.7,), beta=float, graph=False,
    ilm_weights=(0.5,), pauses=(0.24, 0.32, 0.48), share=0.5, half="odd", unit="token",
)  # fmt: skip
def joined(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """Several sentences in a recording: errors and deletions as more of them are joined, with an LM of single sentences (3-gram
    of words, 6-gram of tokens) and the same `continued`. With `--join frames` nothing changes with their number but what an LM,
    or a transducer's own prediction network, expects next; with `audio` encoders hear all of it."""
    recogniser, (text,) = heard.recogniser, args.text
    is_ctc, sentences = recogniser.family == "CTC", corpora.text_of(text)
    train = partial(NGramLM.train, sentences, recogniser.tokenizer)
    plain = train(unit="word") if args.unit == "word" else train(order=6)
    continued = train(unit="word", continued=args.share) if args.unit == "word" else plain.continued(args.share)
    chosen = heard.of(corpora.splits(heard.clips)[args.half])
    for size in args.sizes:
        together = chosen.joined(size, args.join == "audio")
        for beams in args.beams:
            own = search_of(heard, beams)
            in_graph = {"max_active": beams} if args.graph and is_ctc else own
            own_beta = {"beta": args.beta} if is_ctc and args.beta is not None and beams > 1 else {}
            ways: dict[str, dict[str, Any]] = {"none": own}
            for name, model in (("LM", plain), ("LM, continued", continued)):
                ways[name] = {**in_graph, **own_beta, "lm": model}
                if not is_ctc:
                    ways |= {f"{name} - {weight:g} ILM": {**ways[name], "ilm_weight": weight} for weight in args.ilm_weights}
                    ways[name] = {**ways[name], "ilm_weight": 0.0}
            if beams > 1:
                ways["LM, no </s>"] = {**ways["LM"], "score_eos": False}
            for name, fixed in ways.items():
                for pause in (None, *(() if is_ctc else args.pauses)):
                    facts = {"sentences": size, "beams": beams, "pause": pause}
                    points = grid(lm_weight=args.lm_weights) if "lm" in fixed else [{}]
                    paused = fixed if pause is None else {**fixed, "pause_seconds": pause}
                    yield Way(name, together, points, paused, True, facts, batch=len(together.rows))


# Seconds of a chunk, and heard before and after it; one that covers all is offline recognition.
CUTS = {"offline": (1.28, 120.0, 120.0), "2.56 + 1.28": (2.56, 4.0, 1.28), "1.28 + 1.28": (1.28, 4.0, 1.28),
        "0.64 + 0.64": (0.64, 4.0, 0.64), "0.32 + 0.48": (0.32, 4.0, 0.48)}  # fmt: skip


@experiment(lm=(str,), lm_weights=(0.9,), ilm_weights=(float,), beams=(1,), sizes=(1,), half="odd")
def buffered(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """What hearing a window at a time costs: streams of a `StreamingRecognizer`, 32 at a time, by seconds of chunk + right
    context (4 s before them). "ms a clip" has the encoder in it."""
    chosen = heard.of(corpora.splits(heard.clips)[args.half])
    points = grid(lm_weight=args.lm_weights, **({"ilm_weight": args.ilm_weights} if args.ilm_weights else {})) if lm else [{}]
    for size, beams, cut in itertools.product(args.sizes, args.beams, CUTS):
        fixed, facts = {"num_beams": beams, **({"lm": lm} if lm else {})}, {"cut": cut, "sentences": size, "beams": beams}
        yield Streamed("streamed", chosen.joined(size), points, fixed, True, facts)


class Streamed(Way):
    """Recordings that come piece by piece, half a second each."""

    def transcripts(self, point: dict[str, Any], streams: int = 32) -> list[str]:
        recogniser = self.heard.recogniser
        seconds = dict(zip(("chunk_seconds", "left_seconds", "right_seconds"), CUTS[self.facts["cut"]]))
        hears = StreamingRecognizer(recogniser.model, recogniser.processor, streams, **seconds, **self.fixed, **point)
        audio, piece = [clip.audio for clip in self.heard.clips], corpora.RATE // 2
        texts, coming, live = [""] * len(audio), list(range(len(audio))), {}
        while coming or live:
            while coming and len(live) < streams:
                live[hears.open()] = [coming.pop(0), 0]
            for sid, (number, at) in live.items():
                hears.push(sid, audio[number][at : at + piece])
                live[sid][1] += piece
                if at + piece >= len(audio[number]):
                    hears.end(sid)
            while hears.step():
                pass
            for sid in [sid for sid, (number, at) in live.items() if at >= len(audio[number])]:
                texts[live.pop(sid)[0]] = hears.close(sid)[0].text
        return texts


# Phrases

MOST_WORSE = 1.02


def contexts_of(heard: Heard, args: argparse.Namespace, most: int, own_too: bool) -> tuple[list[str], list[list[str]]]:
    """Return the distractors; and for each clip its own entities among so many of them (all together, if `own_too`)."""
    names = [line.strip() for line in Path(args.distractors).read_text(encoding="utf-8").splitlines() if line.strip()]
    drawn, entities = random.Random(0), [list(clip.entities) for clip in heard.clips]
    return names, [[*own, *drawn.sample(names, min(most - len(own) * own_too, len(names)))] for own in entities]


def harmless(rows: list[Row]) -> dict[str, Any]:
    """Choose each search's weight on the first split: that with the fewest errors of the clips' own entities of those at which
    distractors make all words no more than 2% worse."""
    chosen = []
    split = next(name for name in ("even", *rows[0]) if f"entities, {name}" in rows[0])
    for search in dict.fromkeys((row["model"], row["decoder"]) for row in rows):
        of_search = [row for row in rows if (row["model"], row["decoder"]) == search]
        (none,) = [row for row in of_search if row["phrases"] == "none"]
        kinds: dict[str, dict[float, Row]] = {}
        for row in of_search[1:]:
            kinds.setdefault(row["phrases"], {})[row["phrase_weight"]] = row
        weights = [w for w, row in kinds["distractors"].items() if row[split] <= MOST_WORSE * none[split]]
        best = min(weights or [min(kinds["own"])], key=lambda w: kinds["own"][w][f"entities, {split}"])
        chosen += [none, *(of_kind[best] for of_kind in kinds.values())]
    print("chosen:", show(chosen), sep="\n")
    return {"chosen": chosen}


@experiment(finish=harmless, lm=(str,), distractors=str)
def phrases(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """What phrases gain (each clip with its own entities, or with these among 200 distractors), and what they cost where they
    don't occur (all distractors): errors of entities and of all words, by weight; without an LM, and with --lm with it, too."""
    booster = partial(PhraseBooster, tokenizer=heard.recogniser.tokenizer)
    names, among = contexts_of(heard, args, 200, False)
    contexts = {"own": [booster(list(clip.entities)) for clip in heard.clips], "among 200": list(map(booster, among))}
    contexts["distractors"] = [booster(names)] * len(heard.clips)
    is_attention = heard.recogniser.family == "attention"
    plain: dict[str, Any] = {"ilm_weight": 0.0} if heard.recogniser.family == "transducer" else {}
    with_lm = [{"lm": lm, "lm_weight": 0.4 if is_attention else 0.9}] if lm else []
    points = grid(phrase_weight=(0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0))
    for beams, fusion in itertools.product((1, 5 if is_attention else 8), [{}, *with_lm]):
        fixed = {"num_beams": beams, **fusion, **plain}
        name = ("greedy" if beams == 1 else f"beam {beams}") + (" + LM" if fusion else "")
        yield Way(name, heard, fixed=fixed, facts={"phrases": "none"})
        for kind, given in contexts.items():
            yield Way(name, heard, points, fixed, True, {"phrases": kind}, given)


@experiment(lm=LM, word_lm=str, distractors=str, batch_sizes=(BATCH,), repeats=5)
def graph(heard: Heard, args: argparse.Namespace, lm: Any) -> Ways:
    """Graph decoding beside prefix beam search, with an LM of tokens and (--word-lm) of words; and discounts of phrases in
    graphs: each clip with its own entities, or with these among 1,000 phrases (`contexts` has what they cost)."""
    _, among = contexts_of(heard, args, 1000, True)
    own = [list(clip.entities) or None for clip in heard.clips]
    points = grid(lm_weight=(0.7, 0.9, 1.1, 1.3), beta=(1.0, 2.0, 3.0, 4.0, 5.0))
    for unit, model in {"tokens": lm, "words": heard.recogniser.lm(args.word_lm)}.items():
        if model is None:
            continue
        facts = {"lm": unit}
        for beams in (8, 16):
            fixed = {"lm": model, "num_beams": beams}
            yield Way(f"prefix beam {beams}", heard, points, fixed, facts=facts, sizes=args.batch_sizes)
        for active in (8, 16, 32, 64):
            name, fixed = f"graph, {active} active", {"lm": model, "max_active": active}
            row = yield Way(name, heard, points, fixed, facts=facts, sizes=args.batch_sizes)
            if active == 8:
                continue
            best = {what: row[what] for what in points[0]}
            yield Way(name, heard, [best], fixed, True, {**facts, "phrases": "none"})
            for kind, contexts in (("own", own), ("among 1000", among)):
                discounts = [{**best, "discount": discount} for discount in (0.5, 1.0, 1.5, 2.0, 3.0)]
                yield Way(name, heard, discounts, fixed, True, {**facts, "phrases": kind}, contexts)
