"""Transcribe recordings with attention models (Whisper, Canary) for the server.

Recordings are cut into pieces, and the pieces of many clients form one batch. Live audio isn't supported.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch

from ..decoding.hypotheses import Word
from ..decoding.options import AttentionOptions
from ..errors import StreamError
from ..generation.logits_processor import LM_WEIGHT
from ..generation.second_pass import OF_RESCORER, SecondPass
from ..grammar.grammar import Grammar
from ..phrases import PhraseBooster
from ..rescoring import load_rescorer
from .answers import MEANING

log = logging.getLogger(__name__)
PIECE_SECONDS = 30.0  # the longest piece; Whisper's window has the same length
SEARCHED = 1 / 3  # the share of a piece, at its end, in which a recording may be cut
QUIET_SECONDS, SHORTEST = 0.1, 0.1
TRANSLATED = "en"  # the target language of translations
_CODE = re.compile(r"<\|[a-z]{2}\|>")
STREAMED = "this model takes whole recordings (/v1/audio/transcriptions); for live audio serve a CTC model or a transducer"


class Texts(list):
    """A list of phrases. `left_out`: the phrases that the tokenizer can't write, and the unknown characters of each phrase."""

    left_out: dict[str, str]


@dataclass
class RecordingTranscript:
    """Hold the transcript of a recording. Times are in seconds."""

    text: str
    token_ids: list[int]
    words: list[Word]  # empty if the client didn't request words
    segments: list[dict[str, Any]]
    meant: dict[str, Any]  # the pipeline's results about a grammar or phrases


@dataclass
class RecordingSoFar:
    """Hold the transcript of a recording so far. The fields are also in `hf_ngpulm.decoding.partials.Partial`."""

    frames: int
    text: str
    stable_text: str
    endpoint: bool = False


@dataclass
class _QueuedRecording:
    settings: dict[str, Any]
    waiting: list[np.ndarray] = field(default_factory=list)
    ended: bool = False
    heard: int = 0  # samples
    texts: list[str] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    meant: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.waiting))


class AttentionRecognizer:
    """Transcribes recordings with a pipeline. The class has the methods of `StreamingRecognizer` that an engine needs.

    A long recording is cut into pieces, so that no client waits for the whole recording of another client. Each cut is at the
    quietest place in the last third of a piece. The pipeline transcribes each piece like a file. If the pipeline measures
    confidences, results without times include the confidences.

    Args:
        pipeline: a `Seq2SeqNGramPipeline` without a language model of its own.
        lms: language models for recordings. The first language model is the default.
        settings: `lm_weight`, `num_beams`, `rescorer` and other settings of the pipeline. The defaults are the settings that
            the first LM remembers. Recordings with a grammar or a second look at phrases aren't rescored.

    Raises:
        ValueError: there is no language model, but a setting needs a language model (all settings except `num_beams` and a
            rescorer's settings). Or a rescorer gets only one hypothesis, because there is a single beam.
    """

    def __init__(self, pipeline: Any, lms: Any = (), **settings: Any) -> None:
        self.pipeline, self.language_models, self._lock = pipeline, list(lms), threading.Lock()
        self.model, self.tokenizer = pipeline.model, pipeline.tokenizer
        first = self.language_models[0] if self.language_models else None
        beams = {name: settings[name] for name in ("num_beams",) if settings.get(name) is not None}
        of_rescorer = {name: settings.pop(name) for name in OF_RESCORER if settings.get(name) is not None}
        if "rescorer" in of_rescorer:
            of_rescorer["rescorer"] = load_rescorer(of_rescorer["rescorer"], pipeline.device)
        SecondPass.of(**of_rescorer)  # raises for settings that are out of range
        tuned = {} if first is None else pipeline.remembered({"lm": first, **settings}, beams)
        self.settings = AttentionOptions.settled({**tuned, **settings, **of_rescorer})
        idle = sorted(self.settings.keys() - {"num_beams", *OF_RESCORER})
        if first is None and idle:
            raise ValueError(f"{', '.join(idle)} without a language model; pass one, too")
        extractor, config = pipeline.feature_extractor, self.model.generation_config
        if "rescorer" in of_rescorer and (self.settings.get("num_beams") or getattr(config, "num_beams", None) or 1) == 1:
            raise ValueError("rescorer= has a single hypothesis to choose from; pass num_beams=8, for example, or leave it out")
        self.sampling_rate: int = extractor.sampling_rate
        self.is_whisper = pipeline.type == "seq2seq_whisper"
        self.chunk_seconds = self.latency_seconds = float(extractor.chunk_length) if self.is_whisper else PIECE_SECONDS
        self.has_words = self.is_whisper and getattr(config, "alignment_heads", None) is not None
        codes = getattr(config, "lang_to_id", None) or {} if getattr(config, "is_multilingual", False) else {}
        is_canary = self.model.config.model_type == "canary" and self._prompt("en", "en") is not None
        codes = codes or [token for token in self.tokenizer.get_vocab() if is_canary and _CODE.fullmatch(token)]
        self.languages = sorted(code.strip("<|>") for code in codes)
        # Canary's prompt needs the languages of the speech and of the text. Whisper detects the spoken language itself.
        self.translates = is_canary or "translate" in (getattr(config, "task_to_id", None) or {} if codes else {})
        self.frame_seconds, self.encoder = 0.01, self
        self.measures = pipeline._forward_params.get("confidence") is not None  # whether words have confidences
        self._recordings: dict[int, _QueuedRecording] = {}
        self._numbers = count()

    def for_recordings(
        self, max_streams: int, chunk_seconds: float, context_seconds: float, num_beams: int | None = None
    ) -> AttentionRecognizer:
        """Return another recogniser with the same pipeline. The two recognisers never generate at the same time."""
        beams = {} if num_beams is None else {"num_beams": num_beams}
        made = AttentionRecognizer(self.pipeline, self.language_models, **{**self.settings, **beams})
        made._lock = self._lock
        return made

    # The methods of `StreamingRecognizer`.

    def keep_contexts(self, _: int) -> None:
        """Do nothing, because each batch compiles its own phrases."""

    def context(self, phrases: Any = None, grammar: Grammar | None = None, **_: Any) -> Texts | None:
        """Check phrases, and return the phrases. Without phrases, return None. Also compile the grammar, and cache the result.

        Raises:
            ValueError: the phrases or the grammar are invalid.
        """
        if grammar is not None:
            for size in {lm.vocab_size for lm in self.language_models} or {None}:
                grammar.compiled(self.tokenizer, size)
        if not phrases:
            return None
        texts = Texts(phrases)
        texts.left_out = PhraseBooster(list(phrases), tokenizer=self.tokenizer).left_out
        return texts

    def open(self, **settings: Any) -> int:
        sid = next(self._numbers)
        self._recordings[sid] = _QueuedRecording(settings)
        return sid

    def push(self, sid: int, samples: np.ndarray) -> None:
        """Queue audio, float32 `[N]`. Raises ValueError if a recording with a grammar is longer than a piece."""
        recording = self._recordings[sid]
        recording.waiting.append(samples)
        if recording.settings.get("grammar") is not None and recording.size > self.chunk_seconds * self.sampling_rate:
            raise ValueError(
                f"with a grammar this model takes recordings of at most {self.chunk_seconds:g} s; cut the recording"
            )

    def end(self, sid: int) -> None:
        self._recordings[sid].ended = True

    def discard(self, sid: int) -> None:
        del self._recordings[sid]

    def waiting(self, sid: int) -> int:
        return self._recordings[sid].size

    def utterance_begin(self, sid: int) -> float:
        return 0.0

    def __len__(self) -> int:
        return len(self._recordings)

    def ready(self) -> list[int]:
        """Return the ids of the recordings that have a whole piece, or their last piece, to transcribe. The recording that has
        waited longest is first.
        """
        most = self.chunk_seconds * self.sampling_rate
        return [sid for sid, each in self._recordings.items() if each.size > most or (each.ended and each.size)]

    def close(self, sid: int) -> list[RecordingTranscript]:
        recording = self._recordings.pop(sid)
        text = " ".join(recording.texts)
        token_ids = self.tokenizer(text).input_ids
        return [RecordingTranscript(text, token_ids, recording.words, recording.segments, recording.meant)] if text else []

    def step(self, most: int | None = None, seconds: float | None = None) -> dict[int, RecordingSoFar]:
        """Transcribe the next piece of several recordings as one batch.

        Args:
            most: maximum number of recordings in the batch; None sets no limit.
            seconds: maximum audio in the batch, in seconds; None sets no limit.

        Returns:
            The transcript so far of each recording in the batch, by the recording's id.

        Raises:
            StreamError: some recordings failed. The error has the problems of the failed recordings, and the transcripts of the
                other recordings.
        """
        sids = self._chosen(self.ready(), most or len(self._recordings), seconds)
        pieces = {sid: self._next(self._recordings[sid]) for sid in sids}
        problems: dict[int, str] = {}
        try:
            results = self._transcribed(pieces)
        except Exception as error:  # find the recordings that fail by transcribing each one alone
            log.warning("a batch failed, so its recordings are transcribed one by one: %s", error)
            results = {}
            for sid, samples in pieces.items():
                try:
                    results |= self._transcribed({sid: samples})
                except Exception as alone:
                    problems[sid] = str(alone)
        partials = {sid: self._kept(sid, result, len(pieces[sid])) for sid, result in results.items()}
        if problems:
            raise StreamError(problems, partials)
        return partials

    def _chosen(self, sids: list[int], most: int, seconds: float | None) -> list[int]:
        """Return the recordings of the next batch. These are the first recording of `sids`, and other recordings with an equal
        result of `_key`. `most`: maximum number of recordings. `seconds`: maximum audio in the batch, in seconds.
        """
        alike = [sid for sid in sids if self._key(sid) == self._key(sids[0])]
        whole = max(1, int(seconds // self.chunk_seconds)) if seconds else most
        return alike[: min(most, whole)]

    def _key(self, sid: int) -> tuple[Any, ...]:
        """Return a recording's settings that must be the same for all recordings of a batch."""
        settings = self._recordings[sid].settings
        return tuple(
            settings.get(name) for name in ("language", "task", "times", "grammar", "explain", "false_alarms_per_hour")
        )

    def _prompt(self, source: str, target: str) -> list[int] | None:
        """Return Canary's prompt (version 2) for text with punctuation, without timestamps. If the tokenizer lacks a token of
        the prompt, return None. `source`, `target`: languages of the speech and the transcript, such as "en".
        """
        names = f"startofcontext startoftranscript emo:undefined {source} {target} pnc noitn notimestamp nodiarize".split()
        vocabulary = self.tokenizer.get_vocab()
        tokens = [f"<|{name}|>" for name in names]
        return [vocabulary[token] for token in tokens] if vocabulary.keys() >= set(tokens) else None

    def _generate_arguments(self, language: str | None, task: str | None, count: int) -> dict[str, Any]:
        """Return the arguments of `generate` that select a language and a task for a batch of `count` recordings."""
        if self.is_whisper:
            return {name: value for name, value in (("language", language), ("task", task)) if value is not None}
        if language is None:
            return {}
        prompt = self._prompt(language, TRANSLATED if task else language)
        return {"decoder_input_ids": torch.tensor([prompt] * count, device=self.model.device)}

    def _lm(self, settings: dict[str, Any]) -> Any:
        return settings.get("lm", self.language_models[0] if self.language_models else None)

    def _next(self, recording: _QueuedRecording) -> np.ndarray:
        """Remove the next piece of a recording from its queue, and return the piece."""
        samples, most = np.concatenate(recording.waiting), round(self.chunk_seconds * self.sampling_rate)
        size = len(samples) if len(samples) <= most else _quietest(samples[:most], round(QUIET_SECONDS * self.sampling_rate))
        recording.waiting = [samples[size:]] if size < len(samples) else []
        return samples[:size]

    def _transcribed(self, pieces: dict[int, np.ndarray]) -> dict[int, dict[str, Any]]:
        if not pieces:
            return {}
        language, task, times, grammar, explain, rate = self._key(next(iter(pieces)))
        each = [self._recordings[sid].settings for sid in pieces]
        lms = [self._lm(given) for given in each]
        always = {"num_beams", *OF_RESCORER}
        options: dict[str, Any] = {name: value for name, value in self.settings.items() if name in always}
        if any(lm is not None for lm in lms):
            weight = self.settings.get("lm_weight", LM_WEIGHT)
            options |= {**self.settings, "lm": lms, "lm_weight": [given.get("lm_weight", weight) for given in each]}
        phrases = [list(given["phrases"]) if given.get("phrases") else None for given in each]
        if any(phrases):
            options |= {"phrases": phrases, "phrase_weight": [given.get("phrase_weight", 1.0) for given in each]}
        if arguments := self._generate_arguments(language, task, len(pieces)):
            options["generate_kwargs"] = arguments
        if times is not None:
            options["return_timestamps"] = times
        if self.measures and (times is not None or grammar is not None):
            options["confidence"] = None  # the pipeline gives no confidences with times or a grammar
        if grammar is not None or rate is not None:
            options = {name: value for name, value in options.items() if name not in OF_RESCORER}
            look = {"false_alarms_per_hour": rate, "thresholds": each[0].get("thresholds")}
            options |= {"explain": bool(explain), **({"grammar": grammar} if rate is None else look)}
        least = round(SHORTEST * self.sampling_rate)
        audio = [np.pad(samples, (0, max(0, least - len(samples)))) for samples in pieces.values()]
        raw = [{"raw": samples, "sampling_rate": self.sampling_rate} for samples in audio]
        with self._lock, torch.inference_mode():
            return dict(zip(pieces, self.pipeline(raw, batch_size=len(raw), **options)))

    def _kept(self, sid: int, result: dict[str, Any], size: int) -> RecordingSoFar:
        """Append the pipeline's result for a piece to the recording. Return the recording's transcript so far. `size`: the
        piece's number of samples.
        """
        recording = self._recordings.pop(sid)
        self._recordings[sid] = recording  # at the end of the queue
        begin, recording.heard = recording.heard / self.sampling_rate, recording.heard + size
        end, text = recording.heard / self.sampling_rate, result["text"].strip()
        if text:
            recording.texts.append(text)
        meant = {name: result[name] for name in MEANING if name in result}
        if "phrases" in meant:
            meant["phrases"] = _together([*recording.meant.get("phrases", ()), *meant["phrases"]])
        recording.meant = meant
        times = recording.settings.get("times")
        chunks = result.get("chunks") if times else [{"text": text, "timestamp": (0.0, end - begin)}]
        for chunk in chunks or ():
            # The last chunk may end after the piece, or may have no end.
            start, stop = (min(end, begin + (time if time is not None else end)) for time in chunk["timestamp"])
            said = chunk["text"].strip()
            if times == "word":
                recording.words.append(Word(said, start, stop, None))
            elif said:
                recording.segments.append({"start": round(start, 3), "end": round(stop, 3), "text": said})
        if times != "word":
            recording.words += [Word(word["text"], None, None, word["confidence"]) for word in result.get("words", ())]
        so_far = " ".join(recording.texts)
        return RecordingSoFar(round(end / self.frame_seconds), so_far, so_far)


def _together(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join several pieces' reports on phrases. If a phrase was judged in one piece, the result doesn't report the phrase as
    missing in other pieces.
    """
    judged = [report for report in reports if report["heard"] or "ratio" in report]
    texts = {report["text"] for report in judged}
    missing = {report["text"]: report for report in reports if report["text"] not in texts}
    return [*judged, *missing.values()]


def _quietest(samples: np.ndarray, width: int) -> int:
    """Return the place of a cut. It is the middle of the quietest `width` samples in the last third of the samples."""
    begin = round(len(samples) * (1 - SEARCHED))
    energy = np.cumsum(np.square(samples[begin:], dtype=np.float64))
    return begin + int(np.argmin(energy[width:] - energy[:-width])) + width // 2 if len(energy) > width else len(samples)
