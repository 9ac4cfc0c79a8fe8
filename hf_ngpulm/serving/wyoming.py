"""Serve Wyoming, Home Assistant's protocol: JSON lines and audio on a plain TCP connection.

The package `wyoming` defines the events. This module has its own reader, because the package's reader accepts events of any
length.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from wyoming.asr import Transcript
from wyoming.error import Error
from wyoming.event import Event, async_write_event
from wyoming.info import AsrModel, AsrProgram, Attribution, Info, IntentModel, IntentProgram
from wyoming.intent import Entity, Intent, NotRecognized
from wyoming.ping import Pong

from ..sound.files import Resampler
from .access import counted_address
from .connection import SHUTTING_DOWN, timeout
from .limits import Full, Limits, PhraseBudget, Places
from .messages import HIGHEST_RATE, LOWEST_RATE
from .problems import Problem
from .recordings import Failure, RecordingEngines, Take
from .requests import Voices

log = logging.getLogger(__name__)
_LINE = 64 * 1024  # bytes of a header
_CHANNELS = 8


class Wyoming:
    """A server for the Wyoming protocol.

    Args:
        uri: `tcp://HOST:PORT`.
        places: the places of current recordings. A connected client takes one place.
        reuse_port: whether other processes listen at the same address, too.

    Attributes:
        at: the address; empty until the server listens. If the port was 0, the address has the port that the system chose.

    Raises:
        ValueError: `uri` isn't `tcp://HOST:PORT`, or its port is 0 although other processes share the port.
    """

    def __init__(
        self, uri: str, recordings: RecordingEngines, limits: Limits, places: Places, voices: Voices, reuse_port: bool = False
    ) -> None:
        self.host, self.port = host_and_port(uri, reuse_port)
        self.recordings, self.limits, self.places, self.voices = recordings, limits, places, voices
        self.reuse_port, self.at = reuse_port, ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, self.host, self.port, limit=_LINE, reuse_port=self.reuse_port or None
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        self.at = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    async def stop(self, seconds: float) -> None:
        """Refuse new clients, and disconnect the current clients after at most `seconds`."""
        if self._server is not None:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            remote = writer.get_extra_info("peername")
            with self.places.taken(counted_address(remote[0] if remote else "")) as budget:
                await _Client(self, reader, writer, budget).run()
        except (Problem, Full, Failure) as error:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await _send(writer, Error(str(error)).event(), self.limits)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError):  # the client is silent or has left
            pass
        except asyncio.CancelledError:  # by `stop`
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await _send(writer, Error(SHUTTING_DOWN).event(), self.limits)
        except Exception:
            log.exception("a client of Wyoming is closed")
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()


def host_and_port(uri: str, is_shared: bool = False) -> tuple[str, int]:
    """Return the host and the port of `tcp://HOST:PORT`.

    Raises:
        ValueError: `uri` isn't `tcp://HOST:PORT`, or its port is 0 although several processes share the port (`is_shared`).
    """
    try:
        parts = urlsplit(uri)
        kind, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        kind, host, port = "", None, None
    if kind != "tcp" or host is None or port is None:
        raise ValueError(f"wyoming should be tcp://HOST:PORT, such as tcp://0.0.0.0:10300, got {uri!r}")
    if is_shared and not port:
        raise ValueError(f"wyoming: several processes can't share port 0, which the system chooses; name a port, got {uri!r}")
    return host, port


class _Client:
    """Serves one connection. A connection may have any number of recordings, one after the other."""

    def __init__(
        self, server: Wyoming, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: PhraseBudget
    ) -> None:
        self.server, self.reader, self.writer, self.budget = server, reader, writer, budget
        self.limits = server.limits

    async def run(self) -> None:
        asked: dict[str, Any] = {}
        seconds = self.limits.hello_seconds
        while (event := await self._read(seconds)) is not None:
            seconds = self.limits.idle_seconds
            if event.type == "describe":
                await self._send(self._info())
            elif event.type == "ping":
                await self._send(Pong(text=str(event.data.get("text", ""))[:100]).event())
            elif event.type == "transcribe":
                asked = event.data
            elif event.type in ("audio-start", "audio-chunk"):
                await self._send(await self._transcribe(asked, event))
                asked = {}
            elif event.type in ("recognize", "transcript"):  # Home Assistant sends texts as transcripts
                await self._send(await self._recognized(event.data))

    async def _transcribe(self, asked: dict[str, Any], event: Event | None) -> Event:
        """Read audio until it ends. Return the transcript as an event. `asked`: the data of the client's `transcribe` event. If
        there is no such event, `asked` is empty. `event`: the first event of the audio.
        """
        voices, recordings = self.server.voices, self.server.recordings
        voices.check_model(asked.get("name"))
        names = [asked.get(field) or [] for field in ("transcript_names", "transcript_terms")]
        if not all(isinstance(listed, list) for listed in names):
            raise Problem("transcript_names and transcript_terms should be lists of texts")
        given: dict[str, Any] = {"keywords": [*names[0], *names[1]]}
        if voices.grammars:
            given["grammar"] = next(iter(voices.grammars))
        settings = voices.settings(given, self.limits, recordings.recognizer)
        resample, form = None, None
        async with recordings.engine(None) as engine:
            settings = await engine.contexts.compiled(settings, self.budget)
            with Take(engine, settings, self.limits, self._check, words=False) as take:
                while event is not None and event.type != "audio-stop":
                    if event.type == "audio-chunk":
                        rate, channels = _format(event)
                        if form not in (None, (rate, channels)):
                            raise Problem("the audio's format can't change within a recording")
                        form = rate, channels
                        resample = resample or Resampler(rate, engine.recognizer.sampling_rate)
                        samples = np.frombuffer(event.payload or b"", dtype="<i2").reshape(-1, channels).mean(axis=1) / 32768
                        take.push(resample(samples))
                        await take.room()
                    event = await self._read(self.limits.idle_seconds)
                if event is None:
                    raise ConnectionResetError("the client is gone")
                rest = [] if resample is None else [resample(np.zeros(0, dtype=np.float32), last=True)]
                finals = [said["text"] async for said in take.events(rest) if said["type"] == "final"]
        return Transcript(text=" ".join(finals)).event()

    async def _recognized(self, asked: dict[str, Any]) -> Event:
        """Return an event with the meaning of the text `asked["text"]`. The first grammar that has an intent for the text
        defines the meaning. `asked`: the data of the client's event.
        """
        text, context = asked.get("text"), asked.get("context")
        if not isinstance(text, str):
            raise Problem("recognize and transcript should have a text")
        text, context = text[: self.limits.phrase_bytes], context if isinstance(context, dict) else None
        for grammar in self.server.voices.grammars.values():
            reading = await asyncio.to_thread(grammar.reading, text)
            if reading is not None and reading.intent is not None:
                words = text.split()
                said = [" ".join(words[slot.first : slot.last]).rstrip(".,?!;:") for slot in reading.slots]
                entities = [Entity(slot.name, _entity(slot.value, each)) for slot, each in zip(reading.slots, said)]
                return Intent(reading.intent, entities, context=context).event()
        return NotRecognized(context=context).event()

    def _check(self) -> None:
        if self.writer.is_closing():
            raise ConnectionResetError("the client is gone")

    async def _read(self, seconds: float) -> Event | None:
        """Return the next event; None at the connection's end. Raises Problem if the data aren't an event or are too long."""
        async with timeout(seconds):
            try:
                line = await self.reader.readline()
            except ValueError:
                raise Problem(f"a header may have at most {_LINE} bytes") from None
            if not line:
                return None
            head = _object(line)
            if not isinstance(head.get("type"), str):
                raise Problem("an event should have a type")
            data = head.get("data") or {}
            size, payload = _length(head, "data_length", _LINE), _length(head, "payload_length", self.limits.message_bytes)
            if size:
                data = {**data, **_object(await self.reader.readexactly(size))} if isinstance(data, dict) else None
            if not isinstance(data, dict):
                raise Problem("an event's data should be a JSON object")
            return Event(head["type"], data, await self.reader.readexactly(payload) if payload else None)

    async def _send(self, event: Event) -> None:
        await _send(self.writer, event, self.limits)

    def _info(self) -> Event:
        about: dict[str, Any] = {
            "attribution": Attribution("hf-ngpulm", "https://pypi.org/project/hf-ngpulm/"),
            "installed": True,
            "version": package_version(),
        }
        models = [
            AsrModel(name=name, description=name, languages=list(self.server.voices.languages), **about)
            for name in self.server.voices.models
        ]
        program = AsrProgram(name="hf-ngpulm", description="Speech recognition with a language model", models=models, **about)
        grammars = [
            IntentModel(name=name, description=name, languages=list(self.server.voices.languages), **about)
            for name in self.server.voices.grammars
        ]
        intents = [IntentProgram(name="hf-ngpulm", description="Grammars", models=grammars, **about)] if grammars else []
        return Info(asr=[program], intent=intents).event()


async def _send(writer: asyncio.StreamWriter, event: Event, limits: Limits) -> None:
    async with timeout(limits.send_seconds):
        await async_write_event(event, writer)


def _object(text: bytes) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise Problem("an event should be a JSON object")
    return event


def _entity(value: Any, said: str) -> Any:
    """Return a slot's value for Home Assistant. Grammars store lists and mappings as JSON. If the slot has no value, return
    `said`, the spoken words of the slot.
    """
    if value is None:
        return said
    try:
        return json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else value
    except (ValueError, RecursionError):
        return value


def _length(head: dict[str, Any], name: str, most: int) -> int:
    length = head.get(name) or 0
    if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= most:
        raise Problem(f"{name} should be a whole number up to {most}")
    return length


def _format(chunk: Event) -> tuple[int, int]:
    """Return the sampling rate (in hertz) and the number of channels of a piece of audio. Raises Problem if the format isn't
    supported, or the audio ends within a sample.
    """
    values = [chunk.data.get(name) for name in ("rate", "width", "channels")]
    rate, width, channels = (value if isinstance(value, int) and not isinstance(value, bool) else 0 for value in values)
    if width != 2 or not LOWEST_RATE <= rate <= HIGHEST_RATE or not 1 <= channels <= _CHANNELS:
        raise Problem(
            f"audio should have 2 bytes per sample, {LOWEST_RATE} to {HIGHEST_RATE} Hz and at most {_CHANNELS} channels"
        )
    if len(chunk.payload or b"") % (2 * channels):
        raise Problem("audio should consist of whole samples")
    return rate, channels


def package_version() -> str:
    try:
        return version("hf-ngpulm")
    except Exception:
        return "0"
