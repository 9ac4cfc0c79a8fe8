"""CTC models, transducers and Whispers on real speech, with LMs and phrases: errors with intervals over speakers.

    python benchmarks/real_speech/manifests.py speechocean speechocean762 speechocean.jsonl
    python benchmarks/real_speech/families.py speechocean.jsonl --models run/ctc run/rnnt run/tdt --books 113-0.txt 514.txt ...

(`run/`: examples/train_on_whisper.) Only clips of the split "test" are decoded. LMs are made of the transcripts of "train"
("in-domain"), of the books ("general"), of both, mixed half and half, and of other domains ("foreign": orders on a ship's
bridge, or --foreign). "guard" compares `lm_guard`'s default with "off" at two weights. Weights are chosen for each half of
the speakers on the other half, because the models have learned the train speakers by heart. A row also has the errors with the
default weights, and those of each point of its grid for all speakers. Rare words are words of a clip that no train transcript
has. Phrases of a clip are its rare words among distractors, which are rare words of other clips and words of the lexicon. WERs
are in %, with 95% intervals over speakers (bootstrap). Whispers and Moonshines write marks, capitals and digits: transcripts
and references are normalised (`plain`), and LMs are made of text in the style of the transcripts without an LM. "end" lets
the LM score the end of a Whisper's transcript, "unscored" adds its scores by the rules of `unscored="none"`, and "length"
divides the scores of beams by their lengths, as `generate` does by itself and pipelines do in recordings of over 8 s. "ms a
clip" is the decoder's time, one thread, in batches of 16.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import corpora
import measure
from corpora import RATE
from recognisers import Frames, Heard, Recogniser
from ways import PeerProcess, Row, grid, spelled

from hf_ngpulm import NGramLM
from hf_ngpulm.evaluation import character_errors, entity_errors, word_errors
from hf_ngpulm.formats.arpa import write_arpa
from hf_ngpulm.generation.logits_processor import LM_WEIGHT
from hf_ngpulm.language_model.training import train
from hf_ngpulm.text.normalisation import normaliser

Point = dict[str, Any]
english = normaliser("whisper-en")


def plain(text: str) -> str:
    """Return a text by Whisper's rules, and digit by digit: a number in words or digits, joined or not, is the same."""
    return re.sub(r"(?<=\d)[ .]?(?=\d)", " ", re.sub(r"\bone\b", "1", english(text)))


class Corpus:
    """The clips of a manifest's test split (each n-th with `every`), and the texts of LMs.

    Args:
        lexicon: a file whose lines begin with a word.
        foreign: texts of other domains: files, bundled corpora, or manifests, of whose split "train" they are.
    """

    def __init__(self, path: Path, books: list[Path], lexicon: Path | None, foreign: list[str], every: int = 1) -> None:
        self.clips = corpora.load(path, split="test", every=every)
        speakers = sorted({clip.speaker for clip in self.clips})
        random.Random(0).shuffle(speakers)
        first = set(speakers[: len(speakers) // 2])
        self.halves = [[n for n, clip in enumerate(self.clips) if (clip.speaker in first) == half] for half in (True, False)]
        self.texts = {"in-domain": texts_of(path), "general": [sentence for book in books for sentence in sentences(book)]}
        self.foreign = [f"{Path(source).stem} (foreign)" for source in foreign]
        for name, source in zip(self.foreign, foreign):
            self.texts[name] = [" ".join(re.findall("[a-z']+", text.lower())) for text in texts_of(source)]
        known = {word for text in self.texts["in-domain"] for word in text.split()}
        self.rare = [sorted(set(clip.text.split()) - known) for clip in self.clips]
        words = {word for words in self.rare for word in words}
        if lexicon is not None:
            words |= {line.split()[0].lower() for line in lexicon.read_text().splitlines() if line.strip()} - known
        self.distractors = sorted(words)

    def normalised(self) -> Corpus:
        """Return the corpus for decoders with attention, which write capitals, marks and digits: by the rules of `plain`."""
        other = copy.copy(self)
        other.clips = [dataclasses.replace(clip, text=plain(clip.text)) for clip in self.clips]
        other.rare = [sorted({word for each in words for word in plain(each).split()}) for words in self.rare]
        return other

    def phrases(self, count: int) -> list[list[str]]:
        """Return each clip's rare words among so many others, which it doesn't have."""
        drawn, contexts = random.Random(1), []
        for clip, own in zip(self.clips, self.rare):
            others = sorted(set(self.distractors) - set(clip.text.split()))
            contexts.append([*own, *drawn.sample(others, min(count, len(others)))])
        return contexts

    def figures(self, texts: list[str]) -> dict[str, Any]:
        """Return error rates of transcripts of all clips, in %."""
        said = [clip.text for clip in self.clips]
        words, rare = word_errors(said, texts), entity_errors(said, texts, self.rare)
        errors, lengths = np.array([[each.errors, each.length] for each in words.utterances]).T
        rates: dict[str, Any] = {"wer": 100 * words.rate, "cer": 100 * character_errors(said, texts).rate}
        rates["interval"] = measure.interval(100 * errors, lengths, [clip.speaker for clip in self.clips])
        rates |= {"rare": 100 * rare.entity_wer, "others": 100 * rare.other_wer}
        rates |= {kind: 100 * getattr(words, kind) / words.length for kind in ("deletions", "insertions", "substitutions")}
        for group in sorted({clip.group for clip in self.clips}):
            chosen = [clip.group == group for clip in self.clips]
            rates[group] = float(100 * errors[chosen].sum() / lengths[chosen].sum())
        return rates

    def errors(self, texts: list[str], numbers: list[int]) -> int:
        """Return word errors of some clips."""
        return word_errors([self.clips[n].text for n in numbers], [texts[n] for n in numbers]).errors


def texts_of(source: str | Path) -> list[str]:
    """Return the sentences of a file or a bundled corpus, or the transcripts of a manifest's split "train"."""
    if not str(source).endswith(".jsonl"):
        return corpora.text_of(source)
    return [line["text"] for line in corpora.lines_of(source, "train")]


def body_of(book: Path) -> str:
    """Return the text of a file of Project Gutenberg's, without its head and its licence."""
    try:
        text = book.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        text = book.read_bytes().decode("latin-1")
    return re.split(r"\*\*\* ?(?:START|END) OF TH.*\*\*\*", text.replace("\r", ""))[1]


def sentences(book: Path) -> list[str]:
    """Return the sentences of a book in lower case, without marks."""
    whole = re.split(r'[.?!:;"“”]+', " ".join(body_of(book).replace("’", "'").split()))
    return [cleaned for one in whole if (cleaned := " ".join(re.sub(r"[^a-z' ]", " ", one.lower()).split()))]


class Bench:
    """A recogniser's outputs for a corpus, and its LMs."""

    def __init__(self, corpus: Corpus, heard: Heard, peers_python: str | None) -> None:
        self.heard, self.peers_python = heard, peers_python
        self.attention = heard.recogniser.family == "attention"
        self.corpus = corpus.normalised() if self.attention else corpus

    @functools.cache  # noqa: B019
    def lm(self, name: str) -> NGramLM:
        tokenizer = self.heard.recogniser.tokenizer
        if name == "mixed":
            return NGramLM.interpolate([self.lm("in-domain"), self.lm("general")], [0.5, 0.5])
        if name.startswith("words"):
            return NGramLM.from_texts(self.corpus.texts[name[6:] or "in-domain"], tokenizer, order=3, unit="word")
        style = {"style_of": self.written({"num_beams": 1}, None), "language": "en"} if self.attention else {}
        return NGramLM.from_texts(self.corpus.texts[name], tokenizer, order=6, **style)

    def written(self, settings: Point, contexts: list[Any] | None) -> list[str]:
        """Return transcripts as the recogniser writes them."""
        if "lm_guard" in settings and self.attention:  # of pipelines
            model, processor = self.heard.recogniser.model, self.heard.recogniser.processor
            parts = {"tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor}
            asr = transformers.pipeline("automatic-speech-recognition", model=model, **parts)
            audio = ({"raw": clip.audio, "sampling_rate": RATE} for clip in self.corpus.clips)
            return [found["text"] for found in asr(audio, batch_size=16, max_new_tokens=60, **settings)]
        if self.attention:
            settings = {**settings, "max_new_tokens": 60, "max_length": None}
        return self.heard.decode(self.heard.recogniser.decoder(**settings), contexts=contexts)

    def decoded(self, settings: Point, contexts: list[Any] | None) -> tuple[list[str], float]:
        """Return transcripts, and the milliseconds of a clip."""
        if "decoder" in settings:  # of another project
            answer = self.process.ask(**{"length_bonus" if key == "beta" else key: value for key, value in settings.items()})
            return answer["texts"], 1e3 * answer["seconds"] / len(answer["texts"])
        settings = {key: self.lm(value) if key == "lm" else value for key, value in settings.items()}
        begin = time.process_time()
        texts = self.written(settings, contexts)
        spent = 1e3 * (time.process_time() - begin) / len(texts)
        return ([plain(text) for text in texts] if self.attention else texts), spent

    def row(self, name: str, fixed: Point, points: list[Point], phrases: int | None = None) -> Row:
        """Return the figures of a way to decode at the points chosen on the other half of the speakers, and by default.

        Args:
            phrases: distractors in each clip's list.
        """
        contexts = None if phrases is None else self.corpus.phrases(phrases)
        tried = [(point, *self.decoded({**fixed, **point}, contexts)) for point in points]
        merged, chosen = [""] * len(self.corpus.clips), []
        for mine, other in zip(self.corpus.halves, reversed(self.corpus.halves)):
            point, texts, _ = min(tried, key=lambda each: self.corpus.errors(each[1], other))
            chosen.append(point)
            for number in mine:
                merged[number] = texts[number]
        found: Row = {"model": self.heard.recogniser.name, "way": name, "phrases": phrases, **self.corpus.figures(merged)}
        found |= {"ms a clip": min(spent for *_, spent in tried), "chosen": chosen}
        if len(points) > 1:
            found["default"] = self.corpus.figures(self.decoded(fixed, contexts)[0])
            found["points"] = [{**point, **self.corpus.figures(texts)} for point, texts, _ in tried]
        return found

    def rows(self, ways: list[str]) -> Iterator[Row]:
        """Yield the rows of each way that is asked for."""
        is_ctc, family = self.heard.recogniser.family == "CTC", self.heard.recogniser.family
        lm_weights = (LM_WEIGHT, 0.1, 0.4) if self.attention else (0.35, 0.5, 0.65, 0.8, 0.95, 1.2)
        weights = grid(lm_weight=lm_weights)
        if family == "transducer":
            shares = (0.0, 0.3, 0.5, 0.6, 0.7)
            weights = [{"lm_weight": weight, "ilm_weight": share * weight} for weight in lm_weights for share in shares]
        beamed = [*weights, *(grid(lm_weight=lm_weights, beta=(1.0, 2.0, 3.5)) if is_ctc else ())]
        boosts = grid(phrase_weight=(0.25, 0.5, 1.0) if self.attention else (0.25, 0.5, 1.0, 1.5, 2.0))
        of_guard = grid(lm_weight=(LM_WEIGHT,) if self.attention else (0.5, 0.8), lm_guard=("off", "auto"))
        foreign = weights[::2] if self.attention else grid(lm_weight=lm_weights[1:5])
        guarded = [name for name in ("in-domain", "general", *self.corpus.foreign) if self.corpus.texts[name]]
        with_words = ["words", *(f"words {text}" for text in self.corpus.foreign)] if is_ctc else []

        def fused(text: str, beams: int, points: list[Point], name: str = "", **more: Any) -> tuple[str, Point, list[Point]]:
            return f"{text} LM, {name or f'{beams} beams'}", {"num_beams": beams, "lm": text, **more}, points

        options = {"end": {"score_eos": True}, "unscored": {"unscored": "none"}, "length": {"length_penalty": 1.0}}
        of_ways: dict[str, list[Any]] = {
            "none": [("none, greedy", {"num_beams": 1}, [{}]), ("none, 4 beams", {"num_beams": 4}, [{}])],
            **{text: [fused(text, 1, weights, "greedy"), fused(text, 4, beamed)] for text in ("in-domain", "general", "mixed")},
            "foreign": [fused(text, beams, foreign) for text in self.corpus.foreign for beams in (1, 4)],
            "guard": [fused(text, beams, of_guard) for text in guarded for beams in (1, 4)]
            + [fused(text, 8, of_guard) for text in with_words],
            "beams": [fused("in-domain", beams, beamed) for beams in (2, 8, 16)],
            "phrases": [("phrases, 4 beams", {"num_beams": 4}, boosts, count) for count in (0, 100, 1000)],
        }
        if is_ctc:
            of_ways["words"] = [("word LM, 16 beams", {"num_beams": 16, "lm": "words"}, beamed)]
            of_ways["graph"] = [("word LM, graph", {"max_active": 64, "lm": "words"}, beamed)]
        if self.attention:
            of_ways |= {way: [fused("in-domain", 4, weights, f"4 beams, {of}", **of)] for way, of in options.items()}
        for way in ways:
            yield from self.peers() if way == "peers" and is_ctc else (self.row(*each) for each in of_ways.get(way, ()))

    def peers(self) -> Iterator[Row]:
        """Yield rows of other projects' decoders, with the LM of words of the train transcripts."""
        if self.peers_python is None:
            raise SystemExit("--ways peers takes --peers-python, the Python of an environment with other projects' decoders")
        self.process, tokenizer = PeerProcess(self.peers_python, self.heard), self.heard.recogniser.tokenizer
        table, words = train(self.corpus.texts["in-domain"], tokenizer, order=3, unit="word").of_words
        points = grid(lm_weight=(0.5, 0.65, 0.8, 1.0), beta=(0.5, 1.5, 2.5))
        with tempfile.TemporaryDirectory() as folder:
            arpa = str(Path(folder) / "words.arpa")
            write_arpa(table, arpa, "piece", words)
            for name, beams in (("pyctcdecode", 16), ("pyctcdecode", 100), ("ctc-beam-decoder", 16), ("ctc-beam-decoder", 100)):
                fixed = {"decoder": name, "lm": arpa, "beam_width": beams}
                yield self.row(f"{name}, word LM, {beams} beams", fixed, points)
            fixed = {"decoder": "flashlight-lexicon", "lm": arpa, "beam_width": 16, "beam_size_token": 20}
            fixed |= {"beam_threshold": 10.0, "lexicon": spelled(words, tokenizer)}
            yield self.row("flashlight, lexicon, 16 beams", fixed, points)


WAYS = ("none", "in-domain", "general", "mixed", "foreign", "beams", "words", "graph", "phrases")
SPECIAL = ("guard", "peers", "end", "unscored", "length")


def main() -> None:
    about = {
        "models": {"required": True},
        "books": "text files of Project Gutenberg's",
        "lexicon": "a file whose lines begin with a word, for distractors",
        "foreign": "texts of other domains: files, bundled corpora or manifests",
        "frames": "folder of Whisper's frames of the clips (examples/train_on_whisper/features.py)",
        "peers_python": "Python of an environment with other projects' decoders (peers.py), for the way peers",
        "ways": {"choices": (*WAYS, *SPECIAL)},
        "every": "take every n-th clip only",
    }
    parser = measure.arguments(
        __doc__, "real_families", None, about, models=(str,), books=(Path,), lexicon=Path, foreign=("harbour",), frames=Path,
        peers_python=str, ways=WAYS, every=1,
    )  # fmt: skip
    parser.add_argument("manifest", type=Path)
    args = parser.parse_args()
    corpus = Corpus(args.manifest, args.books or [], args.lexicon, args.foreign, args.every)
    frames = Frames([args.frames]) if args.frames else None
    facts = {"clips": len(corpus.clips), "seconds": sum(clip.seconds for clip in corpus.clips)}
    facts |= {"speakers": len({clip.speaker for clip in corpus.clips})}
    facts |= {"rare words": sum(map(len, corpus.rare)), "distractors": len(corpus.distractors)}
    benches = (Bench(corpus, Recogniser(model).hear(corpus.clips, frames=frames), args.peers_python) for model in args.models)
    with torch.inference_mode():
        measure.report((row for bench in benches for row in bench.rows(args.ways)), args, facts)


if __name__ == "__main__":
    main()
