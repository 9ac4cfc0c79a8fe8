"""OpenAI's `POST /v1/audio/transcriptions`: a recording as a file of a form, its transcript as the answer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from aiohttp import BodyPartReader, hdrs, web

from ..sound.files import file_pieces
from ..sound.waves import Wave
from .answers import answer
from .attention import AttentionRecognizer
from .connection import timeout
from .engine import Engine
from .limits import Limits, PhraseBudget, Places
from .problems import Problem, problem_of
from .recordings import PIECE_SECONDS, Failure, Recordings, Take
from .requests import Voices, Wanted, of_attention, wanted

log = logging.getLogger(__name__)
_PIECE = 256 * 1024  # bytes that are received before they are written
_PLAIN = 512 * 1024  # bytes of WAV, 16 s of speech, that are read without another thread
_MOST_TEXT = 64 * 1024  # bytes of a form's texts, besides phrases
_MOST_FIELDS = 64  # besides keywords


class Transcriptions:
    """Serves recordings.

    Args:
        recordings: transcribes them.
        places: of recordings.
        address: tells whom a request counts for.
        count: is told of each recording that was heard: its seconds, and the seconds it took.
    """

    def __init__(
        self,
        recordings: Recordings,
        limits: Limits,
        places: Places,
        voices: Voices,
        address: Callable[[web.Request], str | None],
        count: Callable[[float, float], None],
    ) -> None:
        self.recordings, self.limits, self.places, self.voices = recordings, limits, places, voices
        self.address, self.count = address, count
        self.closed = False

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [_model(name) for name in self.voices.models]})

    async def model(self, request: web.Request) -> web.Response:
        self.voices.check_model(request.match_info["name"])
        return web.json_response(_model(request.match_info["name"]))

    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        begin = time.monotonic()
        response: web.StreamResponse
        if self.closed:
            raise Problem("the server is shutting down", status=503)
        with self.places.taken(self.address(request)) as budget, _spool(self.limits) as file:
            form, name = await _received(request, file, self.limits)
            recognizer = self.recordings.recognizer
            asked = wanted(form, self.voices, self.limits, recognizer)
            if isinstance(recognizer, AttentionRecognizer):
                asked.settings.update(of_attention(asked, recognizer))
            try:
                async with self.recordings.engine(asked.num_beams) as engine:
                    await follow(engine, asked.settings, budget)
                    words = asked.response_format not in ("json", "text")
                    with Take(engine, asked.settings, self.limits, lambda: is_gone(request), words) as take:
                        pieces = file_pieces(file, engine.recognizer.sampling_rate, PIECE_SECONDS, name=name)
                        events = take.events(pieces, by_thread=not _is_plain(file))
                        if asked.stream:
                            response = await self._streamed(request, events)
                        else:
                            finals = [event async for event in events if event["type"] == "final"]
                            response = _response(asked, finals[-1] if finals else None, take.seconds)
            except Failure as failure:
                blamed = failure.code == 1008
                raise Problem(str(failure), "file" if blamed else None, 400 if blamed else 500) from None
            except ValueError as error:
                raise Problem(str(error), "file") from None
            self.count(take.seconds, time.monotonic() - begin)
        return response

    async def _streamed(self, request: web.Request, events: Any) -> web.StreamResponse:
        """Send what can no longer change as it is heard, as server-sent events."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(event: dict[str, Any]) -> None:
            if not response.prepared:
                await response.prepare(request)
            async with timeout(self.limits.send_seconds):
                await response.write(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())

        text = ""
        try:
            async for event in events:
                known = event["stable"] if event["type"] == "partial" else event["text"] if event["type"] == "final" else text
                if known.startswith(text) and known != text:
                    await send({"type": "transcript.text.delta", "delta": known[len(text) :]})
                    text = known
                if event["type"] == "final":
                    text = known
            await send({"type": "transcript.text.done", "text": text})
        except (asyncio.TimeoutError, ConnectionError):  # it doesn't read
            if request.transport is not None:
                request.transport.abort()
        except Exception as error:
            if not response.prepared:
                raise
            if not isinstance(error, Failure | ValueError):
                log.exception("a transcript is broken off")
            wrong = Problem(str(error), "file") if isinstance(error, Failure | ValueError) else problem_of(error)
            await send({"type": "error", **wrong.body()})
        if response.prepared:
            await response.write_eof()
        return response


async def follow(engine: Engine, settings: dict[str, Any], budget: PhraseBudget) -> None:
    """Put in place of the phrases among some settings what streams of an engine follow.

    Raises:
        Problem: phrases that can't be followed.
    """
    phrases = settings.get("phrases")
    if not phrases:
        return
    texts = [phrase if isinstance(phrase, str) else phrase[0] for phrase in phrases]
    cost = budget.cost(len(texts), sum(len(text.encode()) for text in texts))
    await asyncio.sleep(budget.take(cost))
    try:
        settings["phrases"] = await engine.contexts.of(settings, cost)
    except ValueError as error:
        raise Problem(str(error), "keywords") from None


def is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _received(request: web.Request, file: IO[bytes], limits: Limits) -> tuple[dict[str, list[str]], str]:
    """Receive a form: its texts by field, and the name of its file, which is written to `file`."""
    kind = request.headers.get(hdrs.CONTENT_TYPE, "none").partition(";")[0].strip()  # `content_type` would parse it as mail
    if kind.lower() != "multipart/form-data":
        raise Problem(f"the body should be multipart/form-data, got {kind[:60]!r}")
    if (request.content_length or 0) > limits.upload_bytes + limits.phrase_bytes + _MOST_TEXT:
        raise _too_large(limits)
    texts: dict[str, list[str]] = {}
    name, left, parts = "", limits.phrase_bytes + _MOST_TEXT, limits.phrases + _MOST_FIELDS
    try:
        async with timeout(limits.upload_seconds):
            reader = await request.multipart()
            while (part := await _soon(reader.next(), limits)) is not None:
                parts -= 1
                field = (part.name or "").partition("[")[0] if isinstance(part, BodyPartReader) else ""
                if not isinstance(part, BodyPartReader) or not field or parts < 0:
                    raise Problem("the form should have fields with names, as many as there are keywords at most")
                if field == "file":
                    if name:
                        raise Problem("file is given twice; once is enough", "file")
                    name = " ".join((part.filename or "file").split())[:100] or "file"
                    await _written(part, file, limits)
                    continue
                data = b""
                while chunk := await _soon(part.read_chunk(), limits):
                    data += chunk
                    left -= len(chunk)
                    if left < 0:
                        raise Problem("the form's texts are too long", field[:40], 413)
                texts.setdefault(field, []).append(data.decode())
    except asyncio.TimeoutError:
        raise Problem("the recording took too long to arrive", "file", 408) from None
    except UnicodeDecodeError:
        raise Problem("the form's texts should be UTF-8") from None
    except (ValueError, AssertionError, RuntimeError) as error:  # aiohttp's words on a form that isn't one
        raise Problem(f"the form is damaged: {str(error)[:200]}") from None
    if not name:
        raise Problem("the form should have a file", "file", code="missing_required_parameter")
    return texts, name


async def _soon(awaitable: Any, limits: Limits) -> Any:
    async with timeout(limits.send_seconds):
        return await awaitable


async def _written(part: BodyPartReader, file: IO[bytes], limits: Limits) -> None:
    waiting, size = bytearray(), 0
    while True:
        chunk = await _soon(part.read_chunk(1 << 16), limits)
        waiting += chunk
        size += len(chunk)
        if size > limits.upload_bytes:
            raise _too_large(limits)
        if size > limits.upload_memory and (len(waiting) >= _PIECE or not chunk):  # goes to the disk
            await asyncio.to_thread(file.write, bytes(waiting))
            waiting.clear()
        if not chunk:
            file.write(waiting)
            file.seek(0)
            return


def _is_plain(file: IO[bytes]) -> bool:
    """Return whether a file is so plain, and so short, that reading it takes no time; it is at its begin then."""
    is_plain = file.seek(0, os.SEEK_END) <= _PLAIN and Wave.opened(file) is not None
    file.seek(0)
    return is_plain


def _too_large(limits: Limits) -> Problem:
    return Problem(f"the recording is larger than {limits.upload_bytes:,} bytes, as large as it may be", "file", 413)


@contextmanager
def _spool(limits: Limits) -> Iterator[IO[bytes]]:
    with SpooledTemporaryFile(max_size=limits.upload_memory, prefix="hf-ngpulm-") as file:
        yield file  # type: ignore[misc]


def _response(asked: Wanted, final: dict[str, Any] | None, seconds: float) -> web.Response:
    found = answer(asked.response_format, final, seconds, asked.granularities, asked.language)
    if isinstance(found, str):
        kinds = {"vtt": "text/vtt", "srt": "application/x-subrip"}
        return web.Response(text=found, content_type=kinds.get(asked.response_format, "text/plain"), charset="utf-8")
    return web.json_response(found)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hf-ngpulm"}
