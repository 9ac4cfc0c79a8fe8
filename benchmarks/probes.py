"""Experiments that are no grids of settings: streams, contexts, grammars, a second pass (see sweep.py)."""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import corpora
import measure
import numpy as np
import torch
from corpora import LM
from recognisers import Heard
from ways import Row, experiment, show

from hf_ngpulm import Grammar, NGramLM, PhraseBooster, StreamingDecoder
from hf_ngpulm.evaluation import paired_significance, word_errors
from hf_ngpulm.evaluation.significance import bootstrap
from hf_ngpulm.rescoring import load_rescorer
from hf_ngpulm.text.normalisation import normaliser

WEIGHT, WARM_UP = 0.9, 10
BEAMS = (4, 8)  # of streams


@experiment(lm=LM, threads=2, streams=64, chunk=8, seconds=300.0)
def streaming(heard: Heard, args: argparse.Namespace, lm: Any) -> Any:
    """What a step of many streams takes, and whether that stays so however long they are open. Each goes through all clips,
    again and again, and is never reset. A step takes a chunk of each stream and gives partials; "texts" is what reading their
    texts takes on top. A model's decoders take turns, step by step. Medians; "early" and "late" are those of the first and the
    last quarter of the steps, "95" is the 95th percentile."""
    fixed, searches = {"lm": lm, "lm_weight": WEIGHT}, dict[str, dict[str, Any]]()
    if heard.recogniser.family == "CTC":
        fixed["frame_seconds"] = heard.seconds / sum(map(len, heard.rows))
        searches = {f"beam {beams} + LM": {"num_beams": beams} for beams in (1, *BEAMS)}
    else:
        fixed["ilm_weight"], searches["greedy + LM"] = 0.0, {"strategy": "greedy"}
        for strategy, beams in itertools.product(("alsd",) if heard.recogniser.is_tdt else ("alsd", "aes"), BEAMS):
            searches[f"{strategy.upper()}++ {beams} + LM"] = {"strategy": strategy, "num_beams": beams}
    runs = [Run(heard, name, {**fixed, **settings}, args) for name, settings in searches.items()]
    for step in range(WARM_UP + round(args.seconds / (args.chunk * runs[0].frame_seconds))):
        for run in runs:
            run.step(step >= WARM_UP)
    for run in runs:
        yield run.row()


class Run:
    """Streams of one decoder, and the times of their steps."""

    def __init__(self, heard: Heard, name: str, settings: dict[str, Any], args: argparse.Namespace) -> None:
        decoder = heard.recogniser.decoder(**settings)
        self.names, self.chunk, self.device = {"model": heard.recogniser.name, "decoder": name}, args.chunk, args.device
        self.frame_seconds, self.frames = decoder.frame_seconds, torch.cat(heard.rows)
        self.stream = StreamingDecoder(decoder, max_streams=args.streams)
        begins = torch.tensor([0, *map(len, heard.rows)]).cumsum(0)
        at = begins[torch.linspace(0, len(heard.rows) - 1, args.streams).long()].tolist()
        self.at = {self.stream.open(): first for first in at}
        self.steps: list[float] = []
        self.texts: list[float] = []

    def step(self, counts: bool) -> None:
        chunks = {}
        for sid, at in self.at.items():
            first = at if at + self.chunk <= len(self.frames) else 0
            chunks[sid], self.at[sid] = self.frames[first : first + self.chunk], first + self.chunk
        partials, seconds = measure.timed(lambda: self.stream.step(chunks), self.device)
        reading = measure.seconds_of(lambda: [each.text for each in partials.values()], self.device)
        if counts:
            self.steps.append(1e3 * seconds)
            self.texts.append(1e3 * reading)

    def row(self) -> Row:
        median, quarter = statistics.median, max(1, len(self.steps) // 4)
        step, late = median(self.steps), sorted(self.steps)[int(0.95 * len(self.steps))]
        row = {**self.names, "step_ms": step, "step_ms_95": late, "texts_ms": median(self.texts)}
        row |= {"early_ms": median(self.steps[:quarter]), "late_ms": median(self.steps[-quarter:])}
        return row | {"share": step / 1e3 / (self.chunk * self.frame_seconds), "steps": len(self.steps)}


# What phrases cost

PER_ROW, STREAMS, CHUNK = 200, 32, 8  # phrases of a row; streams, and frames that they take at a time


def show_contexts(rows: list[Row]) -> dict[str, Any]:
    """Print throughput, as a multiple of that without phrases; of streams, of that of those that never switch."""
    for kind in ("throughput", "whole_model", "switching"):
        of_kind = [{**row, **row[kind]} for row in rows if kind in row]
        print(kind.replace("_", " "), show(of_kind), sep="\n")
    return {}


@experiment(finish=show_contexts, lm=LM, batch_sizes=(32, 128), repeats=5)
def contexts(heard: Heard, args: argparse.Namespace, lm: Any) -> Any:
    """What phrases cost: throughput with contexts, of decoding alone and of the whole model, and of streams, by how often they
    are switched. Phrases are made of the transcripts' words, so that matches begin and fail all the time. "per row": each row
    has a context of its own. "new": contexts never seen before, of which boosters are made on the way. "none again" shows the
    noise. Streams take chunks of 8 frames, each with a context of its own."""
    words = sorted({word for clip in heard.clips for word in clip.text.split()})
    own = [PhraseBooster(made_up(words, PER_ROW, row), heard.recogniser.tokenizer) for row in range(max(args.batch_sizes))]
    searches: dict[str, dict[str, Any]] = {"greedy": {"num_beams": 1}, "beam 6": {"num_beams": 6}}
    searches |= {"graph": {"max_active": 32}} if heard.recogniser.family == "CTC" else {}
    fused = {"lm": lm, "lm_weight": WEIGHT, **({} if heard.recogniser.family == "CTC" else {"ilm_weight": 0.0})}
    for (search, settings), size in itertools.product(searches.items(), args.batch_sizes):
        decoder = heard.recogniser.decoder(**fused, **settings)
        row = {"model": heard.recogniser.name, "decoder": f"{search} + LM", "batch size": size}
        calls = ways_of_contexts(heard, decoder, size, words, own) | {"encoder": partial(heard.encoder_seconds, size)}
        medians = measure.by_turns(calls, args.repeats)
        encoder, plain = medians.pop("encoder"), medians["none"]
        row |= {"ms a clip": 1e3 * plain / len(heard.clips), "seconds": medians, "encoder_seconds": {size: encoder}}
        row["throughput"] = {way: plain / seconds for way, seconds in medians.items()}
        row["whole_model"] = {way: (encoder + plain) / (encoder + seconds) for way, seconds in medians.items()}
        if size == args.batch_sizes[0] and search != "graph":
            streams = measure.by_turns(switching(heard, decoder, own), args.repeats)
            never = encoder + streams["never"]
            row |= {"switching": {how: never / (encoder + s) for how, s in streams.items()}, "switching_seconds": streams}
        yield row


@experiment(models=("ctc", "rnnt", "tdt"), beams=(1, 4, 16, 64, 256), batch_sizes=(1,), sentences=2000, order=5, repeats=9)
def grammars(heard: Heard, args: argparse.Namespace, lm: Any) -> Any:
    """What a strict grammar costs a search beside an LM with about as many arcs: milliseconds a clip, by the number of beams,
    of a grammar of --sentences of the harbour's text and of an n-gram model of these sentences. "default" is each one's own
    number of beams; the LM's guard is off."""
    said = list(dict.fromkeys(corpora.text_of("harbour")))[: args.sentences]
    lm = NGramLM.train(said, tokenizer=heard.recogniser.tokenizer, order=args.order)
    grammar = Grammar.from_phrases(said).compiled(heard.recogniser.tokenizer)
    sizes = {f"{name} {what}": getattr(each.tensors, f"num_{what}") for what in ("states", "arcs")
             for name, each in (("grammar", grammar), ("LM", lm))}  # fmt: skip
    is_ctc = heard.recogniser.family == "CTC"
    plain, fixed = heard.recogniser.decoder(), {"lm": lm, "lm_weight": WEIGHT, "lm_guard": "off"} if is_ctc else {"lm": lm}
    for beams, size in itertools.product((None, *args.beams), args.batch_sizes):
        if not is_ctc and beams == 256:  # which takes longer than the audio
            continue
        settings = {} if is_ctc or beams in (None, 1) else {"strategy": "alsd"}
        with_lm = heard.recogniser.decoder(**fixed, **settings, num_beams="auto" if beams is None else beams)
        calls = {"LM": partial(heard.decode, with_lm, size)}
        calls["grammar"] = partial(heard.decode, plain.in_grammar(grammar, beams), size)
        seconds = measure.by_turns({name: partial(measure.seconds_of, call) for name, call in calls.items()}, args.repeats)
        row = {"model": heard.recogniser.name, "beams": beams or "default", "batch size": size, **sizes}
        row |= {f"{name} ms": 1e3 * each / len(heard.clips) for name, each in seconds.items()}
        yield row | {"ratio": seconds["grammar"] / seconds["LM"]}


def made_up(words: list[str], count: int, seed: int) -> list[str]:
    """Return so many different phrases of one to three words."""
    drawn, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found[" ".join(drawn.choices(words, k=drawn.randint(1, 3)))] = None
    return list(found)


def ways_of_contexts(heard: Heard, decoder: Any, size: int, words: list[str], own: list[Any]) -> dict[str, Any]:
    """Return what is timed: each gives the seconds that it took to decode all clips."""
    unseen = itertools.count(1)

    def run(contexts: Callable[[int], Any]) -> float:
        seconds = 0.0
        for numbers, frames, lengths in heard.batches(size):
            call = partial(decoder.decode, frames, lengths, contexts(len(numbers)))
            seconds += measure.seconds_of(call, heard.recogniser.device)
        return seconds

    def new(rows: int) -> list[list[str]]:
        number = next(unseen)
        drawn = random.Random(number)
        return [[*drawn.sample(words, min(len(words), PER_ROW)), f"x{'abcdefghij'[number % 10]}"] for _ in range(rows)]

    kinds: dict[str, Callable[[int], Any]] = {"none": lambda rows: None}
    for count in (PER_ROW, 1000):
        one = PhraseBooster(made_up(words, count, count), heard.recogniser.tokenizer)
        kinds[f"one of {count}"] = lambda rows, one=one: one
    kinds |= {f"per row, {PER_ROW}": lambda rows: own[:rows], "new": new, "none again": kinds["none"]}
    return {name: partial(run, contexts) for name, contexts in kinds.items()}


def switching(heard: Heard, decoder: Any, own: list[Any]) -> dict[str, Callable[[], float]]:
    """Return what is timed of streams, by how often they are switched: each gives the seconds that all clips took."""
    streams, passes = StreamingDecoder(decoder, max_streams=STREAMS), itertools.count(1)
    shares = [heard.rows[n::STREAMS] for n in range(min(STREAMS, len(heard.rows)))]

    def run(how: str) -> None:
        turn = next(passes)
        sids = [streams.open(**({} if how == "none" else {"phrases": own[n % len(own)]})) for n in range(len(shares))]
        at = [(0, 0)] * len(shares)  # clip, frame
        while live := [n for n, (clip, _) in enumerate(at) if clip < len(shares[n])]:
            switched = [n for n in live if how == "every chunk" or (how == "every utterance" and at[n][1] == 0)]
            streams.set_contexts({sids[n]: own[(n + turn) % len(own)] for n in switched})
            streams.step({sids[n]: shares[n][at[n][0]][at[n][1] : at[n][1] + CHUNK] for n in live})
            turn += 1
            for n in live:
                clip, frame = at[n]
                at[n] = (clip, frame + CHUNK)
                if frame + CHUNK >= len(shares[n][clip]):
                    streams.reset(sids[n])
                    at[n] = (clip + 1, 0)
        for sid in sids:
            streams.close(sid)

    kinds = ("none", "never", "every utterance", "every chunk", "never again")
    return {how: partial(measure.seconds_of, partial(run, how), heard.recogniser.device) for how in kinds}


# A second pass with a causal language model

WEIGHTS, BONUSES = np.arange(0, 2.05, 0.1).tolist(), np.arange(-2, 8.5, 0.5).tolist()
DELAYED = (0.2, 0.3, 0.4), (0.0, 0.5)  # weights and bonuses


@experiment(
    at_once=0, lm=(str,), lm_weight=float, rescorer=str, end="\n", beams=32, n_best=(8, 32), split=str, spread=int,
    every=(float,), best=int, alone=0,
)  # fmt: skip
def second_pass(heard: Heard, args: argparse.Namespace, lm: Any) -> Any:
    """What a second pass with a causal language model (--rescorer) gains over the first pass alone. The n-best lists of one
    search are scored once, 8 at a time. The rescorer's weight and the bonus per word are chosen on the even recordings, errors
    are those of the odd ones: of the first pass, of its --n-best best hypotheses rescored, and of the best choice that there is
    in a list (oracle); p compares with the first pass. Seconds are of the processor, for a second of audio. With --alone
    so many of the lists are scored text by text, too: "times faster", and by how much scores differ. --every is delayed fusion
    after so many seconds of audio (decoders with attention: after each word), as many beams as the first --n-best, and the
    weight and bonus chosen for it; with --best in the whole beam, where the rescorer reads so many hypotheses, and weight and
    bonus are chosen by searches of the even recordings."""
    clips = [clip for clip in heard.clips if args.split in (None, clip.split)]
    clips = clips[:: max(1, len(clips) // (args.spread or len(clips)))][: args.spread]
    given = {"lm": lm} | ({"lm_weight": args.lm_weight} if args.lm_weight else {}) if lm else {}
    attends = heard.recogniser.family == "attention"
    given |= {"length_penalty": 0.0} if attends and lm else {}  # as in pipelines
    rows, encoding = measure.timed(lambda: heard.recogniser.hear(clips, 1).rows)
    written = normaliser("whisper-en") if attends else str
    audio, references = sum(clip.seconds for clip in clips), [written(clip.text) for clip in clips]

    def errors(said: list[str], found: list[str]) -> Any:
        return word_errors(said, list(map(written, found)))

    def searched(some: Any, **settings: Any) -> list[Any]:
        decoder = heard.recogniser.decoder(**given, **settings)
        return [decoder.decode(row[None])[0] for row in some]

    lists, searching = measure.timed(lambda: searched(rows, num_beams=args.beams, num_return_sequences=args.beams))
    facts = {"model": heard.recogniser.name, "recordings": len(clips)}
    facts |= {"model_seconds": encoding / audio, "search_seconds": searching / audio}
    divided = heard.recogniser.family == "transducer" or (attends and not lm)
    first = [hypotheses[0].text for hypotheses in lists]

    def told(way: str, texts: list[str], **more: Any) -> Row:
        counts, of_first = (errors(references[1::2], found[1::2]) for found in (texts, first))
        interval, p = bootstrap(counts), {"p": paired_significance(counts, of_first).p_value} if texts != first else {}
        rates = {"wer": 100 * counts.rate, "low": 100 * interval.low, "high": 100 * interval.high}
        return {**facts, "way": way, **rates, **p, **more}

    def fewest(tried: dict[tuple[float, float], list[str]]) -> tuple[float, float]:
        counts = {way: errors(references[::2], found).errors for way, found in tried.items()}
        return min(counts, key=lambda way: (counts[way], way[0], abs(way[1])))

    yield told("first pass", first)
    of_lists = {}
    for most in args.n_best:
        rescorer, texts = fresh(args), [[hypothesis.text for hypothesis in of_row[:most]] for of_row in lists]
        scores, seconds = measure.timed(partial(together, rescorer, texts))
        best = {way: ranked(lists, scores, *way, divided) for way in itertools.product(WEIGHTS, BONUSES)}
        way = of_lists[most] = fewest({way: found[::2] for way, found in best.items()})
        more = {"seconds": seconds / audio, "tokens_read": rescorer.read_tokens}
        yield told(f"{most}-best", best[way], weight=way[0], word_bonus=way[1], **more)
        said_and_found = zip(references, texts)
        oracle = [min(found, key=lambda t, s=said: errors([s], [t]).errors) for said, found in said_and_found]
        yield told(f"{most}-best, oracle", oracle)
    for every in args.every or ():
        beams = args.beams if args.best else args.n_best[0]
        fixed = {"frame_seconds": audio / sum(map(len, rows)), "rescorer_every": every, "rescorer_best": args.best}
        fixed = {"num_beams": beams, **({"rescorer_every": "word"} if attends else fixed)}

        def fused(some: Any, way: Any, rescorer: Any, fixed: Any = fixed) -> list[str]:
            found = searched(some, rescorer=rescorer, rescorer_weight=way[0], word_bonus=way[1], **fixed)
            return [hypotheses[0].text for hypotheses in found]

        trial = fresh(args)
        of_even = {way: fused(rows[::2], way, trial) for way in itertools.product(*DELAYED)} if args.best else {}
        way, rescorer = fewest(of_even) if args.best else of_lists[args.n_best[0]], fresh(args)
        texts, seconds = measure.timed(partial(fused, rows, way, rescorer))
        more = {"seconds": seconds / audio, "tokens_read": rescorer.read_tokens, "best": args.best}
        when = "word" if attends else f"{every} s"
        yield told(f"{beams} beams, every {when}", texts, weight=way[0], word_bonus=way[1], **more)
    if args.alone:
        texts = [list(dict.fromkeys(hypothesis.text for hypothesis in of_row)) for of_row in lists[: args.alone]]
        rescorer = fresh(args)
        these, seconds = measure.timed(partial(together, rescorer, texts))
        those, single = measure.timed(lambda: [alone(rescorer, of_row) for of_row in texts])
        row = {"way": "text by text", "lists": len(texts), "seconds together": seconds, "seconds alone": single}
        row |= {"tokens_read": rescorer.read_tokens}
        row |= {"tokens alone": sum(len(rescorer.tokens(text)) for of_row in texts for text in of_row)}
        apart = max(abs(a - b) for pair in zip(these, those) for a, b in zip(*pair))
        yield {**row, "times faster": single / seconds, "largest difference": apart}


def fresh(args: argparse.Namespace) -> Any:
    """Return the rescorer, loaded anew: it keeps what it has scored."""
    rescorer = load_rescorer(args.rescorer, end=args.end)
    rescorer.scores([["warm up"]])
    rescorer.read_tokens = 0
    return rescorer


def together(rescorer: Any, texts: list[list[str]]) -> list[list[float]]:
    return [scores for at in range(0, len(texts), 8) for scores in rescorer.scores(texts[at : at + 8])]


def ranked(lists: list[Any], scores: list[list[float]], weight: float, bonus: float, divided: bool) -> list[str]:
    """Return the best text of each list, of those that have scores."""
    texts = []
    for hypotheses, of_row in zip(lists, scores):
        totals = [h.score + weight * s + bonus * len(h.text.split()) for h, s in zip(hypotheses, of_row)]
        if divided:
            totals = [total / (len(h.token_ids) + 1) for total, h in zip(totals, hypotheses)]
        texts.append(hypotheses[int(np.argmax(totals))].text)
    return texts


def alone(rescorer: Any, texts: list[str]) -> list[float]:
    """Score each text by itself, in a forward pass of its own."""
    scores = []
    for ids in map(rescorer.tokens, texts):
        logits = rescorer.model(input_ids=torch.tensor([[rescorer.first, *ids[:-1]]])).logits[0].log_softmax(1)
        scores.append(float(logits[torch.arange(len(ids)), torch.tensor(ids)].double().sum()))
    return scores
