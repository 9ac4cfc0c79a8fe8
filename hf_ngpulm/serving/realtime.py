"""Serve OpenAI's realtime transcription: `/v1/realtime?intent=transcription`, a websocket with OpenAI's events.

Each item of a conversation is an utterance. An item ends where the client commits audio. If turn detection is on, an item also
ends where the recogniser detects the end of an utterance. Deltas contain words that can no longer change. The server extends
OpenAI's protocol. `transcription` may have phrases, language models and weights. `completed` events have words with times.
Clients can request `partial` events.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from aiohttp import WSCloseCode, WSMsgType, web

from ..decoding.look_streams import LookContext
from ..sound.files import Resampler
from .answers import MEANING, warnings, whole_words
from .connection import Connection
from .engine import Engine, Session
from .limits import Limits, PhraseBudget
from .messages import HIGHEST_RATE, LOWEST_RATE, parse, samples
from .problems import Problem
from .requests import OF_SEARCH, Voices

Event = dict[str, Any]
PCM, PCMU, PCMA = "audio/pcm", "audio/pcmu", "audio/pcma"
_IGNORED = ("language", "languages", "delay")  # within `transcription`
_OF_TURNS = (
    "type", "threshold", "prefix_padding_ms", "silence_duration_ms", "create_response", "interrupt_response", "idle_timeout_ms",
)  # fmt: skip


def ulaw(codes: np.ndarray) -> np.ndarray:
    """Decode G.711 u-law, uint8 `[N]`, to samples, float32 `[N]` in the range -1 to 1 (ITU-T G.711, table 2)."""
    inverted = ~codes
    exponent, mantissa = (inverted >> 4 & 7).astype(np.int32), (inverted & 15).astype(np.int32)
    magnitude = ((mantissa << 3) + 132 << exponent) - 132
    return (np.where(inverted & 128, -magnitude, magnitude) / 32768).astype(np.float32)


def alaw(codes: np.ndarray) -> np.ndarray:
    """Decode G.711 A-law, uint8 `[N]`, to samples, float32 `[N]` in the range -1 to 1 (ITU-T G.711, table 1)."""
    even = codes ^ 0x55  # A-law inverts every other bit
    exponent, mantissa = (even >> 4 & 7).astype(np.int32), (even & 15).astype(np.int32)
    magnitude = np.where(exponent == 0, (mantissa << 4) + 8, (mantissa << 4) + 264 << np.maximum(exponent - 1, 0))
    return (np.where(even & 128, magnitude, -magnitude) / 32768).astype(np.float32)


@dataclass(frozen=True)
class Config:
    """Hold the configuration of a session."""

    form: str = PCM  # encoding of the audio
    rate: int = 24_000  # sampling rate of the audio, in hertz
    search: Event = field(default_factory=dict)  # the fields of `OF_SEARCH` that the client has set in `transcription`
    turns: bool = True  # whether the detected end of an utterance ends an item
    partials: bool = False  # whether the client also gets words that may still change

    def samples(self, data: bytes) -> np.ndarray:
        """Decode audio to float32 `[N]` in the range -1 to 1."""
        if self.form == PCM:
            return samples(data)
        return (ulaw if self.form == PCMU else alaw)(np.frombuffer(data, dtype=np.uint8))


class Realtime(Connection):
    """Speaks the realtime protocol with one client."""

    def __init__(
        self,
        ws: web.WebSocketResponse,
        engine: Engine,
        limits: Limits,
        transport: asyncio.Transport | None,
        budget: PhraseBudget | None = None,
        voices: Voices | None = None,
    ) -> None:
        super().__init__(ws, engine, limits, transport, budget)
        self.voices = voices or Voices()
        frames = engine.recognizer.decoder.endpoint_frames
        self._silence = None if frames is None else round(1000 * frames * (engine.recognizer.frame_seconds or 0.0))
        self._config = Config(turns=self._silence is not None)
        self._settings = self.voices.settings({}, limits, engine.recognizer)
        self._context: Any = None  # compiled phrases
        self._id = f"sess_{secrets.token_hex(12)}"
        self._generation = 0  # number of the current stream; events of earlier streams are dropped
        self._done = asyncio.Event()
        self._heard = 0  # samples of this stream, at the client's rate
        self._before = 0.0  # seconds of audio before this stream
        self._resample: Resampler | None = None
        # Positions in the stream, in seconds: the end of the silence at the item's beginning, and the end of the decoded audio.
        self._quiet = self._decoded = 0.0
        # Only the writer uses the following attributes. Three of them are times in seconds: the start of the stream in the
        # session, the end of the decoded audio in the stream, and the start of the item in the stream.
        self._events = 0
        self._previous: str | None = None
        self._stream_begins = self._until = self._begin = 0.0
        self._next_item()

    # Messages from the client

    async def _read(self) -> tuple[int, str]:
        self._say(self._session("created"))
        seconds = self.limits.hello_seconds
        while True:
            message = await self._receive(seconds)
            seconds = self.limits.idle_seconds
            if message is None or self._is_gone():
                return WSCloseCode.OK, ""  # the audio of a client that has left isn't decoded
            if self._stopping:
                continue
            event: Event = {}
            try:
                if message.type != WSMsgType.TEXT:
                    raise Problem("audio should be sent as input_audio_buffer.append, in base64")
                event = parse(message.data)
                await self._hear(event)
            except Problem as problem:
                event_id = event.get("event_id") if isinstance(event.get("event_id"), str) else None
                self._say({"type": "error", "error": {**problem.body()["error"], "event_id": event_id}})

    async def _hear(self, event: Event) -> None:
        match event["type"]:
            case "session.update":
                await self._update(event.get("session"))
            case "input_audio_buffer.append":
                await self._append(event.get("audio"))
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self._forget()
                self._say({"type": "input_audio_buffer.cleared"})
            case kind:
                raise Problem(
                    f"unknown type: {kind[:60]}; known are session.update, input_audio_buffer.append, .commit and .clear",
                    "type", code="unknown_event",
                )  # fmt: skip

    async def _update(self, session: Any) -> None:
        """Apply a `session.update`. If one field is invalid, no field is applied."""
        heard = _input(session)
        config, context, transcription = self._config, self._context, heard.get("transcription")
        if heard.get("format") is not None:
            form, rate = _format(heard["format"])
            if self._heard and (form, rate) != (config.form, config.rate):
                raise Problem("the format can't change within an utterance; commit or clear the audio first", "format")
            config = replace(config, form=form, rate=rate)
        if transcription is not None:
            _only(transcription, ("model", "partials", *OF_SEARCH, *_IGNORED), "transcription")
            self.voices.check_model(transcription.get("model"))
            partials = transcription.get("partials", config.partials)
            if not isinstance(partials, bool):
                raise Problem(f"partials should be true or false, got {str(partials)[:40]}", "partials")
            search = config.search | {name: transcription[name] for name in OF_SEARCH if name in transcription}
            config = replace(config, search=search, partials=partials)
        if "turn_detection" in heard:
            config = replace(config, turns=_detects(heard["turn_detection"]))
            if config.turns and self._silence is None:
                raise Problem("this server doesn't detect turns; set turn_detection to null", "turn_detection")
        settings, looked = self._settings, isinstance(self._context, LookContext)
        if transcription is not None:
            # The reader waits for the compilation, so later messages use the new phrases.
            settings = self.voices.settings(config.search, self.limits, self.engine.recognizer)
            settings = await self.engine.contexts.compiled(settings, self._budget)
            context = settings.get("phrases")
            if self._heard and (looked or isinstance(context, LookContext)) and not _same_look(settings, self._settings):
                raise Problem(
                    "false_alarms_per_hour and the settings of its search can't change within an utterance; commit or clear "
                    "the audio first", "false_alarms_per_hour",
                )  # fmt: skip
        if self.session is not None:
            self.session.endpoints = config.turns
            if transcription is not None:
                self.engine.set_context(self.session, context)
        followed = {} if context is None else {"phrases": context}
        unfollowed = {name: value for name, value in settings.items() if name != "phrases"}
        self._config, self._settings, self._context = config, {**unfollowed, **followed}, context
        self._say({**self._session("updated"), **warnings(context)})

    async def _append(self, audio: Any) -> None:
        try:
            data = base64.b64decode(audio if isinstance(audio, str) else "?", validate=True)
        except (binascii.Error, ValueError):
            raise Problem("audio should be a text in base64", "audio") from None
        pcm = self._config.samples(data)
        if len(pcm):
            self._heard += len(pcm)
            await self._push(self._stream(), self._resampler()(pcm))

    async def _commit(self) -> None:
        if not self._heard:
            raise Problem("there is no audio to commit", code="input_audio_buffer_commit_empty")
        session = self._stream()
        rest = self._resampler()(np.zeros(0, dtype=np.float32), last=True)
        if len(rest):
            self.engine.push(session, rest)
        self._deliver({"type": "commit", "until": self._heard / self._config.rate})
        self._ended = True
        self.engine.end(session)
        await self._done.wait()  # later messages wait, because a client has one stream at a time
        self._forget()

    def _stream(self) -> Session:
        if self.session is None:
            self._done.clear()
            self.session = Session(self._settings, partial(self._take, self._generation), self._loop, self._config.turns)
            self.engine.enter(self.session)
        return self.session

    def _resampler(self) -> Resampler:
        if self._resample is None:
            self._resample = Resampler(self._config.rate, self.engine.recognizer.sampling_rate)
        return self._resample

    def _forget(self) -> None:
        """Leave the stream. The next audio opens a new stream."""
        if self.session is not None:
            self.engine.leave(self.session)
        self._before += self._heard / self._config.rate
        self.session, self._resample, self._heard, self._ended = None, None, 0, False
        self._generation += 1
        self._quiet = self._decoded = 0.0
        self._deliver({"type": "begin", "before": self._before})

    def _take(self, generation: int, event: Event) -> None:
        """Deliver an event of the current stream. Events of earlier streams are dropped. `generation`: number of the event's
        stream.
        """
        if generation != self._generation:
            return
        if event["type"] == "partial":
            # Computed here, because a later partial replaces one that waits to be sent.
            self._quiet = self._quiet if event["text"] else event["end"]
            self._decoded, event = event["end"], {**event, "quiet": self._quiet}
        elif event["type"] == "final":
            self._quiet = self._decoded
        self._deliver(event)
        if event["type"] in ("done", "failed"):
            self._done.set()

    def _say(self, message: Event) -> None:
        self._deliver({"type": "say", "message": message})

    # Messages to the client

    def _messages(self, event: Event) -> Iterator[Event]:
        for message in self._unnumbered(event):
            self._events += 1
            yield {**message, "event_id": f"event_{self._events}"}

    def _unnumbered(self, event: Event) -> Iterable[Event]:
        match event["type"]:
            case "say":
                return [event["message"]]
            case "partial":
                return self._partial(event)
            case "final":
                return self._final(event)
            case "commit":
                self._until = event["until"]  # the last partials may have been skipped
                return self._committed()
            case "done" if self._is_committed:  # the item contains no speech
                return self._completed("", [], {})
            case "begin":
                self._stream_begins, self._until, self._begin = event["before"], 0.0, 0.0
                self._next_item()
        return []

    def _next_item(self) -> None:
        self._item = f"item_{secrets.token_hex(10)}"
        self._sent, self._has_started, self._is_committed = "", False, False

    def _milliseconds(self, seconds: float) -> int:
        return round(1000 * (self._stream_begins + seconds))

    def _partial(self, event: Event) -> Iterable[Event]:
        if event["text"] and not self._has_started and self._config.turns:
            start = self._milliseconds(event["quiet"])
            yield {"type": "input_audio_buffer.speech_started", "audio_start_ms": start, "item_id": self._item}
        self._has_started = self._has_started or bool(event["text"])
        self._until = max(self._until, event["end"])
        yield from self._delta(whole_words(event["stable"]))
        if self._config.partials:
            end = self._milliseconds(event["end"])
            text = {"text": event["text"], "stable": event["stable"], **self._meaning(event)}
            yield {**self._transcription("partial"), **text, "audio_end_ms": end}

    def _delta(self, text: str) -> Iterable[Event]:
        if text.startswith(self._sent) and text != self._sent:
            yield {**self._transcription("delta"), "delta": text[len(self._sent) :]}
            self._sent = text

    def _final(self, event: Event) -> Iterable[Event]:
        if not self._is_committed:
            if self._config.turns:
                at = self._milliseconds(max((word.get("end", 0.0) for word in event["words"]), default=0.0))
                yield {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": at, "item_id": self._item}
            yield from self._committed()
        yield from self._delta(event["text"])
        yield from self._completed(event["text"], event["words"], self._meaning(event))

    def _committed(self) -> Iterable[Event]:
        self._is_committed = True
        item = {"id": self._item, "object": "realtime.item", "type": "message", "status": "completed", "role": "user",
                "content": [{"type": "input_audio", "transcript": None}]}  # fmt: skip
        previous = {"previous_item_id": self._previous}
        yield {"type": "input_audio_buffer.committed", "item_id": self._item, **previous}
        for kind in ("added", "done"):
            yield {"type": f"conversation.item.{kind}", "item": item, **previous}

    def _meaning(self, event: Event) -> Event:
        """Return an event's entries that concern a grammar or phrases. Convert times to seconds since the session began."""
        meant = {name: event[name] for name in MEANING if name in event}
        for timed in (*meant.get("slots", ()), *meant.get("phrases", ())):
            timed.update({name: round(self._stream_begins + timed[name], 3) for name in ("start", "end") if name in timed})
        return meant

    def _completed(self, text: str, words: list[Event], meant: Event) -> Iterable[Event]:
        usage = {"type": "duration", "seconds": round(self._until - self._begin, 3)}
        times = [
            {name: round(self._stream_begins + word[name], 3) for name in ("start", "end") if name in word} for word in words
        ]
        sure = [{"confidence": word["confidence"]} if "confidence" in word else {} for word in words]
        timed = [{"word": word["text"], **of_word, **own} for word, of_word, own in zip(words, times, sure)]
        yield {**self._transcription("completed"), "transcript": text, **meant, "usage": usage, "words": timed}
        self._previous, self._begin = self._item, self._until
        self._next_item()

    def _transcription(self, kind: str) -> Event:
        return {"type": f"conversation.item.input_audio_transcription.{kind}", "item_id": self._item, "content_index": 0}

    def _session(self, kind: str) -> Event:
        config = self._config
        turns = {"type": "server_vad", "silence_duration_ms": self._silence} if config.turns else None
        transcription = {"model": self.voices.models[0], **config.search, "partials": config.partials}
        form = {"type": config.form, **({"rate": config.rate} if config.form == PCM else {})}
        heard = {"format": form, "transcription": transcription, "turn_detection": turns, "noise_reduction": None}
        named = {"id": self._id, "object": "realtime.transcription_session", "type": "transcription"}
        return {"type": f"session.{kind}", "session": {**named, "audio": {"input": heard}}}


def _input(session: Any) -> Event:
    """Check a session, and return its `audio.input`. Raises Problem if a field is unknown, or a value isn't supported."""
    _only(session, ("type", "audio", "include"), "session")
    if session.get("type", "transcription") != "transcription":
        raise Problem("session.type should be transcription", "session.type")
    if session.get("include"):
        raise Problem("log-probabilities aren't available; leave include out", "session.include")
    audio = session.get("audio", {})
    _only(audio, ("input",), "session.audio")
    heard = audio.get("input", {})
    _only(heard, ("format", "transcription", "turn_detection", "noise_reduction"), "session.audio.input")
    return heard


def _same_look(one: Event, other: Event) -> bool:
    """Return whether two streams have equal settings. The phrases may differ."""
    return {**one, "phrases": None} == {**other, "phrases": None}


def _format(form: Any) -> tuple[str, int]:
    """Return the encoding and the sampling rate (in hertz) of audio. Raises Problem if the format isn't supported."""
    _only(form, ("type", "rate"), "format")
    kind = form.get("type")
    if kind in (PCMU, PCMA) and form.get("rate", 8000) == 8000:
        return kind, 8000
    rate = form.get("rate", 24_000)
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


def _only(fields: Any, names: Iterable[str], where: str) -> None:
    """Raise Problem if `fields` isn't a JSON object, or has a field that isn't permitted. `names`: the permitted fields.
    `where`: the object's place in the request, for messages.
    """
    if not isinstance(fields, dict):
        raise Problem(f"{where} should be an object", where)
    unknown = sorted(fields.keys() - set(names))
    if unknown:
        raise Problem(f"unknown field in {where}: {unknown[0][:40]}", f"{where}.{unknown[0][:40]}")
