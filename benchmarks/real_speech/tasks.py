"""A small Whisper with what this project gives it and without: how much it gets right of what people say in three tasks.

    git clone https://github.com/Picovoice/speech-to-intent-benchmark          # Apache-2.0; 619 recordings, labels, a grammar
    python benchmarks/real_speech/tasks.py orders speech-to-intent-benchmark
    ... --joined 3 --most 192 --tuning 0 --weights 0.5 0 --beams 1 --decibels quiet --ways none LM "LM, continued"

    git clone https://github.com/Jakobovski/free-spoken-digit-dataset         # CC BY-SA 4.0; 3,000 digits by six people
    python benchmarks/real_speech/tasks.py digits free-spoken-digit-dataset

    git clone https://github.com/cmusphinx/pocketsphinx         # five sentences of "Sense and Sensibility", from LibriVox
    git clone https://github.com/GITenberg/Emma_158             # and so on: public domain
    python benchmarks/real_speech/tasks.py prose pocketsphinx/test/data/librivox \
        --novels Emma_158/158-0.txt Persuasion_105/105-8.txt Pride-and-Prejudice_1342/1342-0.txt \
        --book Sense-and-Sensibility_161/161.txt

Weights are chosen once for each way, on the first recordings (`--tuning`), heard in quiet and in noise by turns, and that of
phrases beside an LM with the LM's own; figures are those of the rest, with 95% bootstrap intervals over recordings. The encoder
runs once for each condition, decoders start from what it gave. LMs are 6-grams. `--ways` takes their names, also with
", adapted" (`style_of=` the model), ", adapted to transcripts" (`outputs=` those of the tuning recordings without an LM), or
", continued" (`NGramLM.continued`).

orders: coffee orders by some fifty people, in quiet and in noise. The text is the benchmark's own 431 sentences
(`data/watson/corpus.txt`) and others drawn from its grammar (`data/rhino/coffee_maker.yaml`), written as Whisper writes:
capitals, full stops, "12-ounce"; or in another style of `STYLES`. Phrases are the grammar's slot values. As in the benchmark an
order counts if each slot of its label is found with the label's value; slots are looked up in the transcript, the longest
values first. Noise is added as in its `src/mix.py`, from a fixed seed. With `--joined` so many orders follow one another in a
recording; one counts if each slot's value is found anywhere in its transcript.

digits: numbers of 4 to 8 digits, each joined from digits that one person said, with pauses of 0.1 to 0.4 s; no recording is
used twice. The text is random numbers in the styles in which Whisper writes them ("4 8 1 5", "4, 8, 1, 5.", "Four, eight, one,
five."); phrases are the digits' names. What a transcript says is its digits, written or spelled out, all else left away.

prose: a chapter of a novel, read by a volunteer. "LM" is of three other novels by the author; "LM of the book" of the novel
that is read, as for somebody who has the text beforehand: the five sentences are in it. Phrases are names in that novel. Beside
the five sentences one window has them all, joined. That is 71 words, twice: too few to choose weights on, so those that are
given hold for all, and too few to tell apart what differs by a few errors. Noise is white, so many decibels below the speech.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import soundfile
import torch
import yaml
from families import Heard, Recogniser, Row, body_of, corpora, english, grid, measure
from transformers.utils import logging

from hf_ngpulm import NGramLM
from hf_ngpulm.evaluation import word_errors
from hf_ngpulm.sound.files import read_audio

WAYS = ("none", "prompt", "phrases", "LM", "LM + phrases")
CONTINUED = ", continued"
LM_WEIGHTS, PHRASE_WEIGHTS = (0.3, 0.5, 0.7, 1.0, 1.5), (0.25, 0.5, 1.0, 2.0)
Weights = dict[str, float]


class Task:
    """Recordings, and what is right of their transcripts. Tuning is done on the first recordings.

    `noisy(noise, decibels)` returns the recordings with noise; `right(transcripts)` which of the first recordings are right as
    a whole, bool; `figures(transcripts, part)` what else there is to say of a part (a slice) of the recordings: by the first
    figure weights that get as many right differ.
    """

    audio: list[np.ndarray]  # at 16 kHz
    texts: dict[str, list[str]]  # of language models, by name; that of "LM" in Whisper's style
    phrases: list[str]
    prompt: str
    longest = 120  # tokens of a transcript
    noises: Any = ()  # names
    more: dict[str, Any] = MappingProxyType({})  # for the result file


def sorted_by_size(paths: list[Path], args: argparse.Namespace) -> list[Path]:
    """Return as many files as asked for, those that are recognised together of similar sizes."""
    most = len(paths) if args.most is None else min(args.most, len(paths))
    bounds = [0, args.tuning, min(args.fewer or most, most), most]
    if bounds != sorted(bounds) or args.tuning == bounds[2]:
        raise SystemExit(f"of {bounds[2]} recordings (--most, --fewer) --tuning {args.tuning} leaves none to count; take fewer")
    return [path for part in itertools.pairwise(bounds) for path in sorted(paths[slice(*part)], key=lambda p: p.stat().st_size)]


class Whisper:
    """A Whisper, and the language models of a task."""

    def __init__(self, task: Task, args: argparse.Namespace) -> None:
        self.task, self.args, self.recogniser = task, args, Recogniser(args.model)
        self.prompt = self.recogniser.processor.get_prompt_ids(task.prompt, return_tensors="pt")
        self.outputs: list[str] = []

    def hear(self, audio: list[np.ndarray]) -> Heard:
        return self.recogniser.hear([corpora.Clip(samples, "") for samples in audio])

    def transcripts(self, heard: Heard, way: str, weights: Weights, num_beams: int) -> list[str]:
        """Return transcripts of what the encoder made."""
        first, settings = way.removesuffix(" + phrases"), dict[str, Any](weights)
        settings |= {"num_beams": num_beams, "max_new_tokens": self.task.longest, "max_length": None}
        if first == "prompt":
            settings["prompt_ids"] = self.prompt
        if "lm_weight" in weights:
            settings |= {"lm": self.lm(first), "score_eos": self.args.score_eos}
        if "phrase_weight" in weights:
            settings["phrases"] = self.task.phrases
        return heard.decode(self.recogniser.decoder(**settings), self.args.batch_size)

    @functools.cache  # noqa: B019
    def lm(self, name: str) -> NGramLM:
        if name.endswith(CONTINUED):
            return self.lm(name.removesuffix(CONTINUED)).continued()
        texts, adapted, transcripts = name.partition(", adapted")
        style = {"style_of": self.recogniser.processor} if adapted else {}
        style |= {"outputs": self.outputs} if transcripts else {}
        return NGramLM.train(self.task.texts[texts], self.recogniser.tokenizer, order=6, **style)

    def weights_of(self, way: str, num_beams: int, tuning: Heard, chosen: dict[Any, Weights]) -> Weights:
        """Return the weights that are given, or those that get most of some recordings right (kept in `chosen`)."""
        first, with_phrases = way.removesuffix(" + phrases"), way.endswith("phrases")
        of_lm = {"lm_weight": LM_WEIGHTS} if text_of(first) in self.task.texts else {}
        of_phrases = {"phrase_weight": PHRASE_WEIGHTS} if with_phrases else {}
        if self.args.weights:
            given = dict(zip(("lm_weight", "phrase_weight"), self.args.weights))
            return {name: given[name] for name in (*of_lm, *of_phrases)}
        if of_lm and (first, num_beams) in chosen:
            of_lm = {"lm_weight": (chosen[first, num_beams]["lm_weight"],)}

        def quality(weights: Weights) -> tuple[int, float]:
            found = self.transcripts(tuning, way, weights, num_beams)
            return int(self.task.right(found).sum()), next(iter(self.task.figures(found, slice(None)).values()))

        if (way, num_beams) not in chosen:
            points = grid(**of_lm, **of_phrases)
            chosen[way, num_beams] = points[0] if len(points) == 1 else max(points, key=quality)
        return chosen[way, num_beams]


def text_of(way: str) -> str:
    """Return the name of the text that a way's LM is made of."""
    return way.removesuffix(CONTINUED).partition(", adapted")[0]


def measured(task: Task, args: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each condition, way and number of beams."""
    conditions: list[tuple[str, float | None]] = []
    for level in getattr(args, "decibels", ["quiet"]):
        conditions += [("quiet", None)] if level == "quiet" else [(noise, float(level)) for noise in task.noises]
    for first in (way.removesuffix(" + phrases") for way in args.ways):
        if text_of(first) not in (*WAYS[:3], *task.texts):
            raise SystemExit(f"--ways: {first!r} is none of {[*WAYS[:3], *task.texts]}; only ' + phrases' may follow")
    whisper, count, chosen = Whisper(task, args), args.tuning, dict[Any, Weights]()
    audio = {(n, level): task.audio if level is None else task.noisy(n, level) for n, level in conditions}
    turns = itertools.cycle(audio.values())
    tuning = whisper.hear([next(turns)[number] for number in range(0 if args.weights else count)])
    if any(way.endswith("to transcripts") for way in args.ways):
        whisper.outputs = whisper.transcripts(whisper.hear(task.audio[:count]), "none", {}, 1)
    if args.transcripts:
        args.transcripts.write_text("")
    hear = functools.cache(lambda condition, most: whisper.hear(audio[condition][count:most]))
    for num_beams, condition, way in itertools.product(args.beams, conditions, args.ways):
        most = args.fewer if args.fewer and (num_beams > 1 or condition[1] is not None) else len(task.audio)
        heard, weights = hear(condition, most), whisper.weights_of(way, num_beams, tuning, chosen)
        row = {"noise": condition[0], "decibels": condition[1], "way": way, "num_beams": num_beams, **weights}
        begin = measure.now()
        found = whisper.transcripts(heard, way, weights, num_beams)
        row["decoder_seconds"] = measure.now() - begin
        all_found = [""] * count + found
        right = task.right(all_found)[count:]
        row |= {"recordings": len(right), "right": float(right.mean()), "interval": measure.interval(right)}
        if args.transcripts:
            with args.transcripts.open("a") as file:
                file.write(json.dumps({**row, "transcripts": found}) + "\n")
        yield {**row, **task.figures(all_found, slice(count, count + len(found)))}


# Orders

NUMBERS = {"eight": "8", "twelve": "12", "sixteen": "16", "twenty": "20"}
QUESTIONS = ("can ", "may ")
# Of `src/plot.py` there: with noise of a kitchen, at 6, 9, ... 24 dB.
PUBLISHED = {
    "Amazon Lex": (0.80, 0.84, 0.85, 0.87, 0.87, 0.87, 0.88),
    "Google Dialogflow": (0.70, 0.78, 0.78, 0.80, 0.81, 0.82, 0.83),
    "IBM Watson": (0.72, 0.84, 0.89, 0.93, 0.95, 0.95, 0.96),
    "Microsoft LUIS": (0.86, 0.89, 0.90, 0.91, 0.92, 0.93, 0.93),
    "Picovoice Rhino": (0.96, 0.97, 0.98, 0.99, 0.99, 0.99, 0.99),
}
DECIBELS = tuple(range(6, 25, 3))


class Orders(Task):
    """Recordings of orders, so many `joined` in each, with the `slots` of each order by name."""

    prompt = (
        "Coffee orders, such as: Can I get a small light roast single shot iced coffee with a bit of soy milk and some brown "
        "sugar?"
    )

    def __init__(self, args: argparse.Namespace) -> None:
        data = args.data / "data"
        labels = json.loads((data / "label/label.json").read_text())
        paths = sorted((data / "speech/clean").glob("*.wav"))
        random.Random(0).shuffle(paths)
        paths, self.joined = sorted_by_size(paths, args), args.joined
        self.longest = 120 if args.joined == 1 else 200
        grammar = yaml.safe_load((data / "rhino/coffee_maker.yaml").read_text())["context"]
        audio = [soundfile.read(path, dtype="float32")[0] for path in paths]
        self.audio = [np.concatenate(audio[first : first + args.joined]) for first in range(0, len(audio), args.joined)]
        self.slots = [{name: value.strip() for name, value in labels[path.name]["slots"].items()} for path in paths]
        sentences = [*(data / "watson/corpus.txt").read_text().splitlines(), *draw(grammar, args.drawn)]
        self.texts = {style: list(map(write, sentences)) for style, write in STYLES.items()}
        self.values: dict[str, list[str]] = grammar["slots"]
        self.phrases = sorted({value for values in self.values.values() for value in values})
        self.more = {"published": {"decibels": DECIBELS, "right": PUBLISHED}}
        self.noises = {path.stem: soundfile.read(path)[0] for path in sorted((data / "noise").glob("*.wav"))}

    def found(self, transcript: str) -> dict[str, str]:
        """Return the slots of a transcript. What is one slot's value isn't also another's: no size is in "medium roast"."""
        text = f" {plain(transcript)} "
        found: dict[str, str] = {}
        pairs = [(name, value) for name, values in self.values.items() for value in values]
        for name, value in sorted(pairs, key=lambda pair: -len(pair[1])):
            if name not in found and f" {value} " in text:
                found[name] = value
                text = text.replace(f" {value} ", " | ", 1)
        return found

    def right(self, transcripts: list[str]) -> np.ndarray:
        if self.joined > 1:
            texts = np.repeat([f" {plain(text)} " for text in transcripts], self.joined)
            return np.array([all(f" {value} " in text for value in s.values()) for text, s in zip(texts, self.slots)])
        pairs = zip(self.slots, map(self.found, transcripts))
        return np.array([all(found.get(name) == value for name, value in slots.items()) for slots, found in pairs])

    def figures(self, transcripts: list[str], part: slice) -> dict[str, float]:
        """Return the F1 of slots and the share of transcripts that the LM has seen (of joined orders: the words), and the share
        of those in Whisper's own style."""
        styled = float(np.mean([is_styled(text) for text in transcripts[part]]))
        if self.joined > 1:
            return {"words": sum(len(text.split()) for text in transcripts[part]), "styled": styled}
        found = [set(self.found(text).items()) for text in transcripts[part]]
        wanted = [set(slots.items()) for slots, _ in zip(self.slots[part], found)]
        hits = sum(len(a & b) for a, b in zip(found, wanted))
        seen = set(map(plain, self.texts["LM"]))
        share = float(np.mean([plain(text) in seen for text in transcripts[part]]))
        return {"slot_f1": 2 * hits / max(1, sum(map(len, found)) + sum(map(len, wanted))), "seen": share, "styled": styled}

    def noisy(self, noise: str, decibels: float) -> list[np.ndarray]:
        """Return the recordings with noise, the loudest 128 ms of both so many decibels apart."""
        generator = np.random.default_rng(0)
        found = []
        for speech in self.audio:
            first = generator.integers(0, len(self.noises[noise]) - len(speech))
            added = self.noises[noise][first : first + len(speech)]
            mixed = speech + added * np.sqrt(loudest(speech) / (loudest(added) * 10 ** (decibels / 10)))
            found.append((mixed / (2 * np.abs(mixed).max())).astype(np.float32))
        return found


def loudest(samples: np.ndarray) -> float:
    """Return the energy of the loudest 128 ms."""
    return float((samples[: len(samples) // 2048 * 2048].reshape(-1, 2048) ** 2).sum(1).max())


def draw(grammar: dict[str, Any], count: int) -> list[str]:
    """Return sentences of the grammar."""
    generator, found = random.Random(0), []
    for _ in range(count):
        sentence = generator.choice(grammar["expressions"]["orderDrink"])
        sentence = re.sub(r"\[([^\]]*)\]", lambda match: generator.choice(match[1].split(", ")), sentence)
        found.append(re.sub(r"\$(\w+):\w+", lambda match: generator.choice(grammar["slots"][match[1]]), sentence))
    return found


def plain(transcript: str) -> str:
    """Return a transcript in the grammar's own style."""
    text = re.sub(r"[^a-z0-9' ]", " ", transcript.lower().replace("-", " "))
    for word, digits in NUMBERS.items():
        text = re.sub(rf"\b{digits}\b", word, text)
    return " ".join(text.split())


def is_styled(transcript: str) -> bool:
    """Return whether a transcript begins with a capital, ends with a mark, and has sizes in digits."""
    whole = re.fullmatch(r"[A-Z0-9].*[.?!]", transcript.strip())
    return whole is not None and not re.search(rf"\b({'|'.join(NUMBERS)})[ -]ounce", transcript.lower())


def as_whisper_writes(sentence: str) -> str:
    """Return a sentence as Whisper writes it."""
    mark = "?" if sentence.startswith(QUESTIONS) else "."
    for word, digits in NUMBERS.items():
        sentence = sentence.replace(f"{word} ounce", f"{digits}-ounce")
    return f" {sentence[0].upper()}{sentence[1:]}{mark}"


STYLES = {"LM": as_whisper_writes, "LM as the grammar writes": str.lower}


# Digits

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = re.compile("|".join([r"\d", *(rf"\b{name}\b" for name in NAMES)]))


class Digits(Task):
    """Numbers read out, of `digits`."""

    phrases, prompt = list(NAMES), "4, 0, 7, 1, 9, 2. 3, 5, 8, 6."

    def __init__(self, args: argparse.Namespace) -> None:
        generator, left = random.Random(0), dict[str, list[Path]]()
        for path in sorted((args.data / "recordings").glob("*.wav")):
            left.setdefault(path.stem.split("_")[1], []).append(path)
        for paths in left.values():
            generator.shuffle(paths)
        joined: list[list[Path]] = []
        while len(joined) < (args.most or 300):
            speaker = sorted(left)[len(joined) % len(left)]
            if len(left[speaker]) < 8:
                raise SystemExit(f"{speaker}'s recordings are used up after {len(joined)} numbers; take so many: --most")
            joined.append([left[speaker].pop() for _ in range(generator.randint(4, 8))])
        self.audio = [one_after_the_other(paths, generator) for paths in joined]
        self.digits = ["".join(path.name[0] for path in paths) for paths in joined]
        self.texts = {"LM": [a_number(generator) for _ in range(args.drawn)]}

    def right(self, transcripts: list[str]) -> np.ndarray:
        return np.array([said(text) == digits for text, digits in zip(transcripts, self.digits)])

    def figures(self, transcripts: list[str], part: slice) -> dict[str, float]:
        """Return the share of digits that are right, as 1 - the error rate."""
        found = [" ".join(said(text)) for text in transcripts[part]]
        return {"digits_right": 1 - word_errors([" ".join(digits) for digits in self.digits[part]][: len(found)], found).rate}


def one_after_the_other(paths: list[Path], generator: random.Random) -> np.ndarray:
    """Return recordings as loud as each other, with pauses."""
    parts = []
    for path in paths:
        samples = read_audio(path, corpora.RATE)
        pause = np.zeros(int(generator.uniform(0.1, 0.4) * 16_000), np.float32)
        parts += [pause, samples / np.abs(samples).max() / 2]
    return np.concatenate([*parts, pause])


def a_number(generator: random.Random) -> str:
    """Return a random number in one of Whisper's styles."""
    digits = generator.choices(range(10), k=generator.randint(4, 8))
    style = generator.randrange(3)
    if style == 2:
        return f" {', '.join(NAMES[digit] for digit in digits).capitalize()}."
    return f" {', '.join(map(str, digits))}." if style else f" {' '.join(map(str, digits))}"


def said(transcript: str) -> str:
    """Return the digits of a transcript."""
    found = DIGITS.findall(transcript.lower())
    return "".join(str(NAMES.index(digit)) if digit in NAMES else digit for digit in found)


# Prose

PHRASES = ["Dashwood", "Mr. John Dashwood", "Norland", "Norland Park", "Elinor", "Marianne", "Fanny", "Sussex", "Willoughby"]
SENTENCE = re.compile(r"(?<=[.?!])(?<!Mr\.|Dr\.)(?<!Mrs\.)\s+(?=[A-Z])")
CLAUSE = re.compile(r"[,;:]\s+(?=\w)")


class Prose(Task):
    """Sentences read aloud, and all of them in one window."""

    noises, prompt = ("white",), "From Sense and Sensibility, by Jane Austen."

    def __init__(self, args: argparse.Namespace) -> None:
        self.phrases = PHRASES
        lines = (args.data / "transcription").read_text().splitlines()
        read = [re.fullmatch(r"<s> (.*) </s> \((.*)\)", line).groups() for line in lines]
        audio = [soundfile.read(args.data / f"{name}.wav", dtype="float32")[0] for _, name in read]
        references = [english(text) for text, _ in read]
        self.audio, self.references = [*audio, np.concatenate(audio)], [*references, " ".join(references)]
        novels = [sentence for path in args.novels for sentence in sentences(path)]
        self.texts = {"LM": novels, "LM of the book": sentences(args.book)}

    def noisy(self, noise: str, decibels: float) -> list[np.ndarray]:
        """Return the recordings with white noise, so many decibels below the speech's own power."""
        generator, found = np.random.default_rng(0), []
        for speech in self.audio:
            power = float(np.mean(speech**2)) / 10 ** (decibels / 10)
            found.append((speech + generator.normal(0, np.sqrt(power), len(speech))).astype(np.float32))
        return found

    def right(self, transcripts: list[str]) -> np.ndarray:
        return np.array([english(text) == wanted for text, wanted in zip(transcripts, self.references)])

    def figures(self, transcripts: list[str], part: slice) -> dict[str, float]:
        """Return the errors in all sentences, those in the window that has them all, and the words of either."""
        found, wanted = [english(text) for text in transcripts[part]], self.references[part]
        single, window = word_errors(wanted[:-1], found[:-1]), word_errors(wanted[-1:], found[-1:])
        figures = {"words": window.length, "errors": single.errors, "errors_in_window": window.errors}
        return {**figures, "deletions_in_window": window.deletions}


def sentences(path: Path) -> list[str]:
    """Return the sentences of a book of Project Gutenberg's, as Whisper would write them, and again what follows their commas.

    Recordings are cut where a reader pauses: the third of the five begins in the middle of a sentence.
    """
    paragraphs = (" ".join(re.sub('[_"“”]', "", block).split()) for block in body_of(path).split("\n\n"))
    whole = [sentence for block in paragraphs if block.endswith((".", "!", "?")) for sentence in SENTENCE.split(block)]
    clauses = [clause for sentence in whole for clause in CLAUSE.split(sentence.rstrip(".!?"))[1:]]
    return [f" {sentence}" for sentence in whole] + [f" {clause[0].upper()}{clause[1:]}." for clause in clauses]


# Commands

ABOUT = {
    "ways": "of: %(default)s; other LMs of the task by name, also adapted, and continued",
    "tuning": "recordings that weights are chosen on, not counted",
    "weights": {"nargs": 2, "help": "of LMs and of phrases, where none shall be chosen"},
    "most": "take so many recordings only",
    "fewer": "take so many with noise and with beams",
    "score_eos": {"default": None, "help": "have LMs score the end of transcripts"},
    "transcripts": "file to write all transcripts to, as JSON lines",
    "joined": "orders in a recording",
    "decibels": "of noise, or quiet",
    "drawn": "sentences from the grammar, or numbers, that the LM is made of",
    "novels": {"required": True, "help": "text files of Project Gutenberg's"},
    "book": {"required": True, "help": "such a file of the novel that is read"},
}
OPTIONS = {
    "model": "openai/whisper-tiny.en", "ways": WAYS, "beams": (1, 5), "tuning": 60, "weights": (float,), "most": int,
    "fewer": int, "batch_size": 16, "score_eos": False, "transcripts": Path,
}  # fmt: skip
TASKS: dict[str, tuple[type[Task], dict[str, Any]]] = {
    "orders": (Orders, {"joined": 1, "decibels": ("quiet", "6", "12", "24"), "drawn": 5000}),
    "digits": (Digits, {"drawn": 5000}),
    "prose": (Prose, {
        "novels": (Path,), "book": Path, "decibels": ("quiet", "6", "0"), "tuning": 0, "weights": (0.3, 0.5),
        "ways": (*WAYS, "LM of the book"),
    }),
}  # fmt: skip

if __name__ == "__main__":
    parser = measure.Command(__doc__)
    commands = parser.add_subparsers(dest="task", required=True)
    for name, (_, options) in TASKS.items():
        command = measure.arguments(None, f"real_{name}", commands.add_parser(name), ABOUT, **{**OPTIONS, **options})
        command.add_argument("data", type=Path, help="a clone of the data's repository")
    args = parser.parse_args()
    logging.set_verbosity_error()
    task = TASKS[args.task][0](args)
    with torch.inference_mode():
        measure.report(measured(task, args), args, task.more)
