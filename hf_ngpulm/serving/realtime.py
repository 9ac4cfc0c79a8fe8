"""OpenAI's realtime transcription: `/v1/realtime?intent=transcription`, a websocket with OpenAI's events.

Each item of a conversation is an utterance. Where turns are detected, items end where the recogniser finds that utterances do;
otherwise, and besides, where the client commits its audio. Deltas are words that can no longer change.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from aiohttp import WSCloseCode, WSMsgType, web

from ..sound.files import Resampler
from .answers import warnings, whole_words
from .connection import Connection
from .engine import Engine, Session, unwritable
from .limits import Limits, PhraseBudget
from .messages import HIGHEST_RATE, LOWEST_RATE, ProtocolError, parse
from .messages import samples as pcm_samples
from .problems import Problem
from .requests import OF_SEARCH, Voices

Said = dict[str, Any]
PCM, PCMU, PCMA = "audio/pcm", "audio/pcmu", "audio/pcma"
BETA_FORMATS = {"pcm16": PCM, "g711_ulaw": PCMU, "g711_alaw": PCMA}
_IGNORED = {"language", "languages", "delay"}  # within `transcription`
_OF_TURNS = {
    "type",
    "threshold",
    "prefix_padding_ms",
    "silence_duration_ms",
    "create_response",
    "interrupt_response",
    "idle_timeout_ms",
}


def ulaw(codes: np.ndarray) -> np.ndarray:
    """Return samples of G.711 u-law, uint8 -> float32 from -1 to 1 (ITU-T G.711, table 2)."""
    inverted = ~codes
    exponent, mantissa = (inverted >> 4 & 7).astype(np.int32), (inverted & 15).astype(np.int32)
    magnitude = ((mantissa << 3) + 132 << exponent) - 132
    return (np.where(inverted & 128, -magnitude, magnitude) / 32768).astype(np.float32)


def alaw(codes: np.ndarray) -> np.ndarray:
    """Return samples of G.711 A-law, likewise (table 1)."""
    even = codes ^ 0x55
    exponent, mantissa = (even >> 4 & 7).astype(np.int32), (even & 15).astype(np.int32)
    magnitude = np.where(exponent == 0, (mantissa << 4) + 8, (mantissa << 4) + 264 << np.maximum(exponent - 1, 0))
    return (np.where(even & 128, magnitude, -magnitude) / 32768).astype(np.float32)


@dataclass
class Config:
    """Hold what a session is told: how audio is written, for what it is searched, and whether turns are detected."""

    form: str = PCM
    rate: int = 24_000
    search: Said = field(default_factory=dict)
    turns: bool = True

    def samples(self, data: bytes) -> np.ndarray:
        """Return audio as float32 `[N]` from -1 to 1."""
        if self.form == PCM:
            return pcm_samples(data, np.dtype("<i2"))
        return (ulaw if self.form == PCMU else alaw)(np.frombuffer(data, dtype=np.uint8))


class Realtime(Connection):
    """A client of the realtime protocol.

    Args:
        beta: whether it speaks the protocol as it was before: flat sessions, `transcription_session.created`.
    """

    def __init__(
        self,
        ws: web.WebSocketResponse,
        engine: Engine,
        limits: Limits,
        transport: asyncio.Transport | None,
        budget: PhraseBudget,
        voices: Voices,
        beta: bool = False,
    ) -> None:
        super().__init__(ws, engine, limits, transport, budget, voices)
        self.beta = beta
        decoder = engine.recognizer.decoder
        frames = decoder.endpoint_frames
        self._silence = None if frames is None else round(1000 * frames * (engine.recognizer.frame_seconds or 0.0))
        self._config = Config(turns=self._silence is not None)
        self._settings = voices.settings({}, limits, engine.recognizer)
        self._follows: Any = None  # what the engine has made of phrases
        self._id = f"sess_{secrets.token_hex(12)}"
        self._generation = 0  # of the stream: what one says that was cleared is nobody's any more
        self._done = asyncio.Event()
        self._heard = 0  # samples of the item, as they came
        self._before = 0.0  # seconds of audio before the stream
        self._resample: Resampler | None = None
        self._quiet = self._decoded = 0.0  # seconds of the stream: up to where nothing was said in this item, and in all
        # The writer's own.
        self._events = 0
        self._previous: str | None = None
        self._next_item()

    # What the client says.

    async def _read(self) -> tuple[int, str]:
        self._say(self._session_event("created", self.beta))
        seconds = self.limits.hello_seconds
        while True:
            message = await self._receive(seconds)
            seconds = self.limits.idle_seconds
            if message is None or self._is_gone():
                return WSCloseCode.OK, ""
            if self._farewell == WSCloseCode.GOING_AWAY:
                continue
            said: Said = {}
            try:
                if message.type != WSMsgType.TEXT:
                    raise Problem("audio comes as input_audio_buffer.append, in base64")
                said = parse(message.data)
                await self._hear(said)
            except (ProtocolError, Problem) as error:
                problem = error if isinstance(error, Problem) else Problem(str(error))
                event_id = said.get("event_id") if isinstance(said.get("event_id"), str) else None
                self._say({"type": "error", "error": {**problem.body()["error"], "event_id": event_id}})

    async def _hear(self, said: Said) -> None:
        kind = said["type"]
        if kind in ("session.update", "transcription_session.update"):
            await self._update(said.get("session"), kind.startswith("transcription"))
        elif kind == "input_audio_buffer.append":
            await self._append(said.get("audio"))
        elif kind == "input_audio_buffer.commit":
            await self._commit()
        elif kind == "input_audio_buffer.clear":
            self._forget()
            self._say({"type": "input_audio_buffer.cleared"})
        else:
            raise Problem(f"unknown type: {kind[:60]}; this server has transcription sessions", "type", code="unknown_event")

    async def _update(self, given: Any, beta: bool) -> None:
        """Take what is given of a session; all of it, or nothing."""
        form, transcription, turns = _flat(given) if beta else _nested(given)
        config = Config(**vars(self._config))
        if form is not None:
            config.form, config.rate = _format(form)
            if self._heard and (config.form, config.rate) != (self._config.form, self._config.rate):
                raise Problem("the format can't change amid an utterance; commit or clear the audio first", "format")
        if transcription is not None:
            _only(transcription, {"model", *OF_SEARCH, *_IGNORED}, "transcription")
            self.voices.check_model(transcription.get("model"))
            config.search = {**config.search, **{name: transcription[name] for name in OF_SEARCH if name in transcription}}
        if turns is not ...:
            config.turns = _detects(turns)
            if config.turns and self._silence is None:
                raise Problem("this server doesn't detect turns; set turn_detection to null", "turn_detection")
        settings = self.voices.settings(config.search, self.limits, self.engine.recognizer)
        follows = self._follows
        if transcription is not None:
            follows = await self._context({"phrases": None, **settings})
        settings.pop("phrases", None)
        if self.session is not None:
            self.session.endpoints = config.turns
            if transcription is not None:
                self.engine.set_context(self.session, follows)
        self._config, self._settings, self._follows = config, settings, follows
        self._say({**self._session_event("updated", beta), **warnings(unwritable(follows))})

    async def _append(self, audio: Any) -> None:
        if not isinstance(audio, str):
            raise Problem("audio should be a text in base64", "audio")
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            raise Problem("audio should be a text in base64", "audio") from None
        samples = self._config.samples(data)
        if not len(samples):
            return
        self._heard += len(samples)
        await self._push(self._stream(), self._resampler()(samples))

    async def _commit(self) -> None:
        if not self._heard:
            raise Problem("there is no audio to commit", code="input_audio_buffer_commit_empty")
        session = self._stream()
        rest = self._resampler()(np.zeros(0, dtype=np.float32), last=True)
        if len(rest):
            self.engine.push(session, rest)
        self._say({"type": "commit", "until": self._heard / self._config.rate})
        self._ended = True
        self.engine.end(session)
        await self._done.wait()  # nothing that follows is heard before: a client has a stream at a time
        self._forget()

    def _stream(self) -> Session:
        if self.session is None:
            self._done.clear()
            phrases = {} if self._follows is None else {"phrases": self._follows}
            deliver = partial(self._take, self._generation)
            self.session = Session({**self._settings, **phrases}, deliver, self._loop, self._config.turns)
            self.engine.enter(self.session)
        return self.session

    def _resampler(self) -> Resampler:
        if self._resample is None:
            self._resample = Resampler(self._config.rate, self.engine.recognizer.sampling_rate)
        return self._resample

    def _forget(self) -> None:
        """Have done with the stream; the next audio opens another."""
        if self.session is not None:
            self.engine.leave(self.session)
        self._before += self._heard / self._config.rate
        self.session, self._resample, self._heard, self._ended = None, None, 0, False
        self._generation += 1
        self._quiet = self._decoded = 0.0
        self._say({"type": "begin", "before": self._before})

    def _take(self, generation: int, event: Said) -> None:
        if generation == self._generation:
            if event["type"] == "partial":
                # Kept here, since of partials that wait to be sent only the last one is.
                self._quiet = self._quiet if event["text"] else event["end"]
                self._decoded, event = event["end"], {**event, "quiet": self._quiet}
            elif event["type"] == "final":
                self._quiet = self._decoded
            self._deliver(event)
            if event["type"] in ("done", "failed"):
                self._done.set()

    def _say(self, event: Said) -> None:
        self._deliver({"type": "say", "event": event})

    # What the client is told.

    def _is_over(self) -> bool:
        return self._farewell == WSCloseCode.GOING_AWAY

    def _messages(self, event: Said) -> list[Said]:
        """Return the protocol's events for what a stream says, or for what was told to say."""
        said = event["event"] if event["type"] == "say" else event
        if event["type"] == "say" and said["type"] == "commit":
            self._until = said["until"]  # partials may be passed over
            found = self._committed()
        elif event["type"] == "say" and said["type"] == "begin":
            self._next_item(said["before"])
            found = []
        elif event["type"] == "say":
            found = [said]
        else:
            found = list({"partial": self._heard_so_far, "final": self._heard_all, "done": self._heard_nothing}.get(
                said["type"], lambda _: ())(said))  # fmt: skip
        for message in found:
            self._events += 1
            message["event_id"] = f"event_{self._events}"
        return found

    def _next_item(self, before: float | None = None) -> None:
        self._item = f"item_{secrets.token_hex(10)}"
        self._sent, self._starts, self._is_committed = "", False, False
        if before is not None:
            self._stream_begins, self._until, self._begin = before, 0.0, 0.0

    # Seconds: where the stream begins; of it, how far it has been heard, and where the item begins.
    _stream_begins = _until = _begin = 0.0

    def _milliseconds(self, seconds: float) -> int:
        return round(1000 * (self._stream_begins + seconds))

    def _heard_so_far(self, partial: Said) -> Iterable[Said]:
        if partial["text"] and not self._starts and self._config.turns:
            start = self._milliseconds(partial["quiet"])
            yield {"type": "input_audio_buffer.speech_started", "audio_start_ms": start, "item_id": self._item}
        self._starts = self._starts or bool(partial["text"])
        self._until = max(self._until, partial["end"])
        yield from self._delta(whole_words(partial["stable"]))

    def _delta(self, text: str) -> Iterable[Said]:
        if text.startswith(self._sent) and text != self._sent:
            yield {**self._transcription("delta"), "delta": text[len(self._sent) :]}
            self._sent = text

    def _heard_all(self, final: Said) -> Iterable[Said]:
        if not self._is_committed:
            if self._config.turns:
                end = max((word.get("end", 0.0) for word in final["words"]), default=0.0)
                at = self._milliseconds(end)
                yield {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": at, "item_id": self._item}
            yield from self._committed()
        yield from self._delta(final["text"])
        yield from self._completed(final["text"])

    def _heard_nothing(self, _: Said) -> Iterable[Said]:
        """End an item that was committed, and in which nothing was said."""
        if self._is_committed:
            yield from self._completed("")

    def _committed(self) -> list[Said]:
        self._is_committed = True
        item = {"id": self._item, "object": "realtime.item", "type": "message", "status": "completed", "role": "user",
                "content": [{"type": "input_audio", "transcript": None}]}  # fmt: skip
        previous = {"previous_item_id": self._previous}
        kinds = ("created",) if self.beta else ("added", "done")
        found: list[Said] = [{"type": "input_audio_buffer.committed", "item_id": self._item, **previous}]
        return found + [{"type": f"conversation.item.{kind}", "item": item, **previous} for kind in kinds]

    def _completed(self, text: str) -> Iterable[Said]:
        usage = {"type": "duration", "seconds": round(self._until - self._begin, 3)}
        yield {**self._transcription("completed"), "transcript": text, "usage": usage}
        self._previous, self._begin = self._item, self._until
        self._next_item()

    def _transcription(self, kind: str) -> Said:
        return {"type": f"conversation.item.input_audio_transcription.{kind}", "item_id": self._item, "content_index": 0}

    def _session_event(self, kind: str, beta: bool) -> Said:
        config = self._config
        turns = {"type": "server_vad", "silence_duration_ms": self._silence} if config.turns else None
        transcription = {"model": self.voices.models[0], **config.search}
        named = {"id": self._id, "object": "realtime.transcription_session"}
        if beta:
            known = next(name for name, form in BETA_FORMATS.items() if form == config.form)
            session = {
                **named,
                "input_audio_format": known,
                "input_audio_transcription": transcription,
                "turn_detection": turns,
            }
            return {"type": f"transcription_session.{kind}", "session": session}
        form: Said = {"type": config.form} | ({"rate": config.rate} if config.form == PCM else {})
        heard = {"format": form, "transcription": transcription, "turn_detection": turns, "noise_reduction": None}
        return {"type": f"session.{kind}", "session": {**named, "type": "transcription", "audio": {"input": heard}}}


def _nested(session: Any) -> tuple[Any, Any, Any]:
    """Return the format, the transcription and the turn detection of a session; None, None and ... where they aren't given."""
    _only(session, {"type", "audio", "include"}, "session")
    if session.get("type", "transcription") != "transcription":
        raise Problem("this server has sessions of the type transcription", "session.type")
    _no_include(session)
    audio = session.get("audio", {})
    _only(audio, {"input"}, "session.audio")
    heard = audio.get("input", {})
    _only(heard, {"format", "transcription", "turn_detection", "noise_reduction"}, "session.audio.input")
    return heard.get("format"), heard.get("transcription"), heard.get("turn_detection", ...)


def _flat(session: Any) -> tuple[Any, Any, Any]:
    """Return the same of a session as it was before."""
    known = {"input_audio_format", "input_audio_transcription", "turn_detection", "input_audio_noise_reduction", "include"}
    _only(session, known, "session")
    _no_include(session)
    form = session.get("input_audio_format")
    if form is not None and (not isinstance(form, str) or form not in BETA_FORMATS):
        raise Problem(f"input_audio_format should be one of {', '.join(BETA_FORMATS)}", "session.input_audio_format")
    turns = session.get("turn_detection", ...)
    return None if form is None else {"type": BETA_FORMATS[form]}, session.get("input_audio_transcription"), turns


def _format(given: Any) -> tuple[str, int]:
    _only(given, {"type", "rate"}, "format")
    kind = given.get("type")
    if kind in (PCMU, PCMA) and given.get("rate", 8000) == 8000:
        return kind, 8000
    rate = given.get("rate", 24_000)
    if kind != PCM or isinstance(rate, bool) or not isinstance(rate, int) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise Problem(f"format should be {PCM} at {LOWEST_RATE} to {HIGHEST_RATE} Hz (24000), {PCMU} or {PCMA}", "format")
    return PCM, rate


def _detects(turns: Any) -> bool:
    if turns is None:
        return False
    _only(turns, _OF_TURNS, "turn_detection")
    if turns.get("type", "server_vad") != "server_vad":
        raise Problem("turn_detection should be of the type server_vad, or null", "turn_detection.type")
    return True


def _no_include(session: Said) -> None:
    if session.get("include"):
        raise Problem("log-probabilities aren't given; leave include out", "session.include")


def _only(given: Any, known: Iterable[str], name: str) -> None:
    if not isinstance(given, dict):
        raise Problem(f"{name} should be an object", name)
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise Problem(f"unknown in {name}: {unknown[0][:40]}", f"{name}.{unknown[0][:40]}")
