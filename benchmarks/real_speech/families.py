"""CTC models, transducers and Whispers on real speech, with LMs, phrases and both: errors with intervals over speakers.

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
import itertools
import json
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
from corpora import RATE, Clip
from recognisers import Heard, Recogniser
from ways import PeerProcess

from hf_ngpulm import NGramLM
from hf_ngpulm.evaluation import character_errors, entity_errors, word_errors
from hf_ngpulm.formats.arpa import write_arpa
from hf_ngpulm.generation.logits_processor import LM_WEIGHT
from hf_ngpulm.language_model.training import train
from hf_ngpulm.lexicon.spellings import make_lexicon
from hf_ngpulm.sound.files import read_audio
from hf_ngpulm.text.normalisation import normaliser

LM_WEIGHTS = (0.35, 0.5, 0.65, 0.8, 0.95, 1.2)
ATTENTION_WEIGHTS = (LM_WEIGHT, 0.1, 0.4)
PHRASE_WEIGHTS = (0.25, 0.5, 1.0, 1.5, 2.0)
Point = dict[str, Any]
english = normaliser("whisper-en")


def plain(text: str) -> str:
    """Return a text by Whisper's rules, and digit by digit: a number in words or digits, joined or not, is the same."""
    return re.sub(r"(?<=\d)[ .]?(?=\d)", " ", re.sub(r"\bone\b", "1", english(text)))


class Corpus:
    """The clips of a manifest's test split, and the texts of LMs.

    Args:
        path: the manifest.
        books: text files.
        lexicon: a file whose lines begin with a word.
        foreign: texts of other domains, see `texts_of`.
        every: take every n-th clip.
    """

    def __init__(self, path: Path, books: list[Path], lexicon: Path | None, foreign: list[str], every: int = 1) -> None:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        train = [line["text"] for line in lines if line["split"] == "train"]
        lines = [line for line in lines if line["split"] == "test"][::every]
        self.clips = [Clip(read_audio(path.parent / line["audio"], RATE), line["text"], (), line["speaker"]) for line in lines]
        self.groups = [line["group"] for line in lines]
        speakers = sorted({clip.speaker for clip in self.clips})
        random.Random(0).shuffle(speakers)
        first = set(speakers[: len(speakers) // 2])
        self.halves = [[n for n, clip in enumerate(self.clips) if (clip.speaker in first) == half] for half in (True, False)]
        self.texts = {"in-domain": train, "general": [sentence for book in books for sentence in sentences(book)]}
        self.foreign = {f"{Path(source).stem} (foreign)": source for source in foreign}
        for name, source in self.foreign.items():
            self.texts[name] = [" ".join(re.findall("[a-z']+", text.lower())) for text in texts_of(source)]
        known = {word for text in train for word in text.split()}
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
        counts = np.array([[each.errors, each.length] for each in words.utterances], dtype=float)
        rates = {"wer": 100 * words.rate, "cer": 100 * character_errors(said, texts).rate, "interval": self.interval(counts)}
        rates |= {"rare": 100 * rare.entity_wer, "others": 100 * rare.other_wer}
        for kind in ("deletions", "insertions", "substitutions"):
            rates[kind] = 100 * getattr(words, kind) / words.length
        for group in sorted(set(self.groups)):
            chosen = counts[[each == group for each in self.groups]].sum(0)
            rates[group] = float(100 * chosen[0] / chosen[1])
        return rates

    def interval(self, counts: np.ndarray) -> list[float]:
        """Return the bounds of the 95% interval of the WER, by drawing speakers; `counts` has errors and words of each clip."""
        speakers = sorted({clip.speaker for clip in self.clips})
        numbers = np.array([speakers.index(clip.speaker) for clip in self.clips])
        sums = np.stack([np.bincount(numbers, weights=column) for column in counts.T], -1)
        drawn = sums[np.random.default_rng(0).integers(0, len(sums), (2000, len(sums)))].sum(1)
        return [float(100 * np.quantile(drawn[:, 0] / drawn[:, 1], bound)) for bound in (0.025, 0.975)]

    def errors(self, texts: list[str], numbers: list[int]) -> int:
        """Return word errors of some clips."""
        return word_errors([self.clips[n].text for n in numbers], [texts[n] for n in numbers]).errors


def texts_of(source: str) -> list[str]:
    """Return the sentences of a file or a bundled corpus, or the transcripts of a manifest's split "train"."""
    if not source.endswith(".jsonl"):
        return corpora.text_of(source)
    lines = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
    return [line["text"] for line in lines if line["split"] == "train"]


def sentences(book: Path) -> list[str]:
    """Return the sentences of a text file of Project Gutenberg's, in lower case without marks."""
    data = book.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    text = re.split(r"\*\*\* ?(?:START|END) OF TH.*\*\*\*", text.replace("\r", ""))[1].replace("’", "'")
    whole = re.split(r'[.?!:;"“”]+', " ".join(text.split()))
    return [cleaned for one in whole if (cleaned := " ".join(re.sub(r"[^a-z' ]", " ", one.lower()).split()))]


class Bench:
    """A recogniser's outputs for a corpus, its LMs, and what was measured."""

    def __init__(self, corpus: Corpus, source: str, heard: Heard, every_text: bool, peers_python: str | None = None) -> None:
        self.attention = heard.recogniser.family == "attention"
        self.corpus, self.name, self.heard = corpus.normalised() if self.attention else corpus, source, heard
        self.process = None if peers_python is None else PeerProcess(peers_python, heard)
        self.family, self.texts = heard.recogniser.family, every_text
        self.contexts: list[Any] | None = None

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
            assert self.process is not None
            answer = self.process.ask(**{"length_bonus" if key == "beta" else key: value for key, value in settings.items()})
            return answer["texts"], 1e3 * answer["seconds"] / len(answer["texts"])
        settings = {key: self.lm(value) if key == "lm" else value for key, value in settings.items()}
        begin = time.process_time()
        texts = self.written(settings, contexts)
        spent = 1e3 * (time.process_time() - begin) / len(texts)
        return ([plain(text) for text in texts] if self.attention else texts), spent

    def row(self, name: str, fixed: Point, grid: list[Point], default: Point, phrases: int | None = None) -> dict[str, Any]:
        """Return the figures of a way to decode, with weights chosen on the other half of the speakers.

        Args:
            grid: settings to try.
            default: settings instead of those, for the errors without a choice.
            phrases: distractors in each clip's list.
        """
        contexts = None if phrases is None else self.corpus.phrases(phrases)
        tried = [(point, *self.decoded({**fixed, **point}, contexts)) for point in grid]
        merged, chosen = [""] * len(self.corpus.clips), []
        for mine, other in zip(self.corpus.halves, reversed(self.corpus.halves)):
            point, texts, _ = min(tried, key=lambda each: self.corpus.errors(each[1], other))
            chosen.append(point)
            for number in mine:
                merged[number] = texts[number]
        told = {"model": self.name, "way": name, "phrases": phrases, **self.corpus.figures(merged)}
        told |= {"ms a clip": min(spent for *_, spent in tried), "chosen": chosen}
        if len(grid) > 1:
            same = [texts for point, texts, _ in tried if self.attention and point == {"lm_weight": LM_WEIGHT}]
            of_default = same[0] if same else self.decoded({**fixed, **default}, contexts)[0]
            told["default"] = self.corpus.figures(of_default)
            told["points"] = [
                {**point, **{k: v for k, v in self.corpus.figures(t).items() if k != "interval"}} for point, t, _ in tried
            ]
        if self.texts:
            told["texts"] = merged
        return told

    def rows(self, ways: set[str]) -> Iterator[dict[str, Any]]:
        """Yield the row of each way that is asked for."""
        ctc, transducer = self.family == "CTC", self.family == "transducer"
        lm_weights = ATTENTION_WEIGHTS if self.attention else LM_WEIGHTS
        weights = [{"lm_weight": weight} for weight in lm_weights]
        boosts = [{"phrase_weight": weight} for weight in (PHRASE_WEIGHTS[:3] if self.attention else PHRASE_WEIGHTS)]
        betas = [{"beta": beta} for beta in (1.0, 2.0, 3.5)] if ctc else [{}]
        shares = (0.0, 0.3, 0.5, 0.6, 0.7)
        if transducer:
            weights = [{"lm_weight": weight, "ilm_weight": share * weight} for weight in LM_WEIGHTS for share in shares]
        beamed = [{**weight, **beta} for weight in weights for beta in [{}, *(betas if ctc else [])]]
        both = [
            {"lm_weight": weight, **boost}
            for weight in (lm_weights[:2] if self.attention else lm_weights[2:5])
            for boost in boosts[1:4]
        ]
        if "none" in ways:
            yield self.row("none, greedy", {"num_beams": 1}, [{}], {})
            yield self.row("none, 4 beams", {"num_beams": 4}, [{}], {})
        for text in ("in-domain", "general", "mixed"):
            if text in ways:
                yield self.row(f"{text} LM, greedy", {"num_beams": 1, "lm": text}, weights, {})
                yield self.row(f"{text} LM, 4 beams", {"num_beams": 4, "lm": text}, beamed, {})
        options = {"end": {"score_eos": True}, "unscored": {"unscored": "none"}, "length": {"length_penalty": 1.0}}
        for way, option in options.items() if self.attention else ():
            if way in ways:
                fixed = {"num_beams": 4, "lm": "in-domain", **option}
                yield self.row(f"in-domain LM, 4 beams, {option}", fixed, weights, {})
        if "foreign" in ways:
            points = weights[::2] if self.attention else [{"lm_weight": weight} for weight in lm_weights[1:5]]
            for text, beams in itertools.product(self.corpus.foreign, (1, 4)):
                yield self.row(f"{text} LM, {beams} beams", {"num_beams": beams, "lm": text}, points, {})
        if "guard" in ways:
            texts = [name for name in ("in-domain", "general", *self.corpus.foreign) if self.corpus.texts[name]]
            with_words = ["words", *(f"words {text}" for text in self.corpus.foreign)] if ctc else []
            for text, beams in [*itertools.product(texts, (1, 4)), *((text, 8) for text in with_words)]:
                weighed = (LM_WEIGHT,) if self.attention else (0.5, 0.8)
                guards = [{"lm_weight": weight, "lm_guard": at} for weight in weighed for at in ("off", "auto")]
                yield self.row(f"{text} LM, {beams} beams", {"num_beams": beams, "lm": text}, guards, {})
        if "beams" in ways:
            for beams in (2, 8, 16):
                yield self.row(f"in-domain LM, {beams} beams", {"num_beams": beams, "lm": "in-domain"}, beamed, {})
        if ctc and "words" in ways:
            yield self.row("word LM, 16 beams", {"num_beams": 16, "lm": "words"}, beamed, {})
        if ctc and "graph" in ways:
            yield self.row("word LM, graph", {"max_active": 64, "lm": "words"}, beamed, {})
        if ctc and "peers" in ways:
            yield from self.peers()
        for count, name in itertools.product((0, 100, 1000), ("phrases",) * ("phrases" in ways)):
            yield self.row(f"{name}, 4 beams", {"num_beams": 4}, boosts, {}, count)
        for count in (0, 100) if "both" in ways else ():
            yield self.row("in-domain LM + phrases, 4 beams", {"num_beams": 4, "lm": "in-domain"}, both, {}, count)

    def peers(self) -> Iterator[dict[str, Any]]:
        """Yield rows of other projects' decoders, with the LM of words of the train transcripts."""
        tokenizer = self.heard.recogniser.tokenizer
        of_words = train(self.corpus.texts["in-domain"], tokenizer, order=3, unit="word").of_words
        assert of_words is not None
        table, words = of_words
        lexicon = make_lexicon(words, tokenizer)
        spelled = zip(lexicon.words, np.split(lexicon.tokens, lexicon.offsets[1:-1]), strict=True)
        spellings = {words[word]: tokens.tolist() for word, tokens in spelled}
        points = [{"lm_weight": weight, "beta": beta} for weight in (0.5, 0.65, 0.8, 1.0) for beta in (0.5, 1.5, 2.5)]
        with tempfile.TemporaryDirectory() as folder:
            arpa = str(Path(folder) / "words.arpa")
            write_arpa(table, arpa, "piece", words)
            for name, beams in (("pyctcdecode", 16), ("pyctcdecode", 100), ("ctc-beam-decoder", 16), ("ctc-beam-decoder", 100)):
                fixed = {"decoder": name, "lm": arpa, "beam_width": beams, "batch_size": 1, "repeats": 1}
                yield self.row(f"{name}, word LM, {beams} beams", fixed, points, {})
            fixed = {"decoder": "flashlight-lexicon", "lm": arpa, "beam_width": 16, "lexicon": spellings, "batch_size": 1}
            fixed |= {"beam_size_token": 20, "beam_threshold": 10.0, "repeats": 1}
            yield self.row("flashlight, lexicon, 16 beams", fixed, points, {"lm_weight": 0.8, "beta": 0.0})


WAYS = [
    "none",
    "in-domain",
    "general",
    "mixed",
    "foreign",
    "guard",
    "beams",
    "words",
    "graph",
    "peers",
    "phrases",
    "both",
    "end",
    "unscored",
    "length",
]
SPECIAL = {"guard", "peers", "end", "unscored", "length"}


def heard_once(recogniser: Recogniser, clips: list[Clip], frames: Path | None) -> Heard:
    """Return clips as a model hears them; `frames` is a folder of examples/train_on_whisper/features.py with all of them."""
    if frames is None:
        return recogniser.hear(clips)
    encoder = recogniser.model.encoder.subsampling
    index = {line["audio"]: line for line in map(json.loads, (frames / "index.jsonl").read_text().splitlines())}
    width = encoder.whisper.config.d_model
    data = np.memmap(frames / "frames.raw", dtype=np.float16, mode="r").reshape(-1, width)
    places = [index[name] for name in recogniser.paths]
    rows = [torch.from_numpy(data[place["start"] : place["end"]].astype(np.float32)) for place in places]
    heard: dict[int, torch.Tensor] = {}
    encoder.heard = lambda features, mask: features
    for numbers in (range(first, min(first + 16, len(rows))) for first in range(0, len(rows), 16)):
        padded = torch.nn.utils.rnn.pad_sequence([rows[n] for n in numbers], batch_first=True)
        mask = (torch.arange(2 * padded.shape[1]) < torch.tensor([2 * len(rows[n]) for n in numbers])[:, None]).long()
        name = recogniser.model.main_input_name
        heard |= zip(numbers, recogniser.encode({name: padded, "attention_mask": mask}))
    del encoder.heard
    return Heard(recogniser, clips, [heard[n] for n in range(len(rows))])


def main() -> None:
    parser = measure.arguments(__doc__, "real_families")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--books", type=Path, nargs="*", default=[], help="text files of Project Gutenberg's")
    parser.add_argument("--lexicon", type=Path, help="a file whose lines begin with a word, for distractors")
    parser.add_argument(
        "--foreign", nargs="+", default=["harbour"], help="texts of other domains: files, bundled corpora or manifests"
    )
    parser.add_argument("--frames", type=Path, help="Whisper's frames of the clips (examples/train_on_whisper/features.py)")
    parser.add_argument(
        "--peers-python", help="Python of an environment with other projects' decoders (peers.py), for the way peers"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[way for way in WAYS if way not in SPECIAL])
    parser.add_argument("--every", type=int, default=1, help="take every n-th clip only")
    parser.add_argument("--texts", action="store_true", help="keep the transcripts in the result file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = Corpus(args.manifest, args.books, args.lexicon, args.foreign, args.every)
    seconds = sum(clip.seconds for clip in corpus.clips)
    facts = {"clips": len(corpus.clips), "seconds": seconds, "speakers": len({clip.speaker for clip in corpus.clips})}
    facts |= {"rare words": sum(map(len, corpus.rare)), "distractors": len(corpus.distractors)}
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for source in args.models:
            recogniser = Recogniser(source)
            if args.frames:
                lines = [json.loads(line) for line in args.manifest.read_text(encoding="utf-8").splitlines()]
                recogniser.paths = [str(args.manifest.parent / e["audio"]) for e in lines if e["split"] == "test"][
                    :: args.every
                ]
            python = args.peers_python if "peers" in args.ways and recogniser.family == "CTC" else None
            heard = heard_once(recogniser, corpus.clips, args.frames)
            bench = Bench(corpus, recogniser.name, heard, args.texts, python)
            for row in bench.rows(set(args.ways)):
                rows.append(row)
                shown = ("model", "way", "phrases", "wer", "rare", "others", "ms a clip", "chosen")
                print(
                    {key: row[key] if not isinstance(row[key], float) else round(row[key], 2) for key in shown},
                    round(row.get("default", row)["wer"], 2),
                    flush=True,
                )
                path = measure.save(args.name, {**facts, "rows": rows}, args.out)
    header = ["model", "way", "phrases", "wer", "cer", "rare", "others", "ms a clip"]
    print(measure.table(header, [[f"{row[k]:.1f}" if isinstance(row[k], float) else row[k] for k in header] for row in rows]))
    print("results in", path)


if __name__ == "__main__":
    main()
