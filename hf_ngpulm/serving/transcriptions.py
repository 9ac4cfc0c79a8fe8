"""Handle OpenAI's `POST /v1/audio/transcriptions` and `translations`. A request is a form with a recording."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

from aiohttp import web

from ..sound.containers import container_of
from ..sound.files import file_pieces, head_of
from ..sound.waves import Wave
from .answers import answer, meaning, warnings, whole_words
from .attention import AttentionRecognizer
from .connection import SHUTTING_DOWN, timeout
from .corrections import Corrections
from .forms import Form, Forms, is_gone
from .limits import Full, Limits, Places
from .problems import Problem, problem_of
from .recordings import LOOK_SECONDS, PIECE_SECONDS, Failure, RecordingEngines, Take
from .requests import TRANSCRIBE, TRANSLATE, Voices, Wanted, check_translates, of_attention, wanted

log = logging.getLogger(__name__)
_PLAIN = 512 * 1024  # bytes: a WAV file up to this size (16 s of speech) is read in the main thread


class Transcriptions:
    """Handle requests about recordings.

    Args:
        places: the places of current recordings.
        address: function that returns the address of a request's client, for limits per address.
        count: function that is called with the length and the processing time of each recording, in seconds.
        corrections: the clients' corrections. Phrases from corrections are boosted. None if the server stores no corrections.
    """

    def __init__(
        self,
        recordings: RecordingEngines,
        limits: Limits,
        places: Places,
        voices: Voices,
        address: Callable[[web.Request], str | None],
        count: Callable[[float, float], None],
        corrections: Corrections | None = None,
    ) -> None:
        self.recordings, self.limits, self.places, self.voices = recordings, limits, places, voices
        self.address, self.count, self.corrections = address, count, corrections
        self.forms = Forms(limits)
        self.closed = self._is_cut = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._streaming: set[asyncio.Task[Any]] = set()
        # asyncio has four threads more than cores, at most 32. This limit leaves four threads for other work.
        self._unpacking = asyncio.Semaphore(min(28, os.cpu_count() or 1))

    async def close(self, seconds: float) -> None:
        """Refuse new recordings. Wait up to `seconds` for current recordings. Cancel all others, and inform the clients."""
        self.closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        self._is_cut = True
        for task in self._tasks - self._streaming:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * LOOK_SECONDS)

    async def models(self, _: web.Request) -> web.Response:
        """List the names of the model."""
        return web.json_response({"object": "list", "data": [_model(name) for name in self.voices.models]})

    async def model(self, request: web.Request) -> web.Response:
        """Describe the model."""
        self.voices.check_model(request.match_info["name"])
        return web.json_response(_model(request.match_info["name"]))

    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        """Transcribe a recording."""
        return await self._within(self._transcribed(request, TRANSCRIBE))

    async def translate(self, request: web.Request) -> web.StreamResponse:
        """Translate a recording into English."""
        check_translates(self.recordings.recognizer)
        return await self._within(self._transcribed(request, TRANSLATE))

    async def _within(self, work: Coroutine[Any, Any, web.StreamResponse]) -> web.StreamResponse:
        """Await work that `close` may cancel. Raises Full if `close` was called earlier, or if `close` cancels the work."""
        if self.closed:
            work.close()
            raise Full(SHUTTING_DOWN)
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if not self._is_cut:
                raise
            raise Full(SHUTTING_DOWN) from None
        finally:
            self._tasks.discard(task)

    async def _transcribed(self, request: web.Request, task: str) -> web.StreamResponse:
        begin = time.monotonic()
        response: web.StreamResponse
        with self.places.taken(self.address(request)) as budget:
            async with self.forms.received(request) as form:
                recognizer = self.recordings.recognizer
                learned = [] if self.corrections is None else await self.corrections.phrases(request)
                asked = wanted(form.texts, self.voices, self.limits, recognizer, task, learned)
                if isinstance(recognizer, AttentionRecognizer):
                    asked.settings.update(of_attention(asked, recognizer))
                try:
                    async with self.recordings.engine(asked.num_beams) as engine:
                        settings = await engine.contexts.compiled(asked.settings, budget)
                        warned = warnings(settings.get("phrases"))
                        words = asked.response_format not in ("json", "text") or getattr(recognizer, "measures", False)
                        with Take(engine, settings, self.limits, lambda: self._check(request), words) as take:
                            events = take.events(*self._read(form, engine.recognizer.sampling_rate, request))
                            if asked.stream:
                                response = await self._streamed(request, events, warned, "grammar" in settings)
                            else:
                                finals = [event async for event in events if event["type"] == "final"]
                                response = _response(asked, finals[-1] if finals else None, take.seconds, warned)
                except Failure as failure:
                    blamed = failure.code == 1008
                    raise Problem(str(failure), "file" if blamed else None, 400 if blamed else 500) from None
                except ValueError as error:
                    raise Problem(str(error), "file") from None
            self.count(take.seconds, time.monotonic() - begin)
        return response

    def _check(self, request: web.Request) -> None:
        if self._is_cut:
            raise Full(SHUTTING_DOWN)
        if is_gone(request):
            raise ConnectionResetError("the client is gone")

    def _read(self, form: Form, rate: int, request: web.Request) -> tuple[Any, Any]:
        """Return the arguments of `Take.events` for a recording: `pieces` and `turns`."""
        file, is_short = form.file, form.size <= _PLAIN
        plain, packed = is_short and Wave.opened(file) is not None, container_of(head_of(file)) is not None
        pieces = file_pieces(file, rate, PIECE_SECONDS, name=form.name, give_up=lambda: self._is_cut or is_gone(request))
        return pieces, None if plain else self._unpacking if packed else nullcontext()

    async def _streamed(
        self, request: web.Request, events: Any, warned: dict[str, Any], has_grammar: bool
    ) -> web.StreamResponse:
        """As soon as words are final, send these words as server-sent events. `events`: the result of `Take.events`. `warned`:
        the result of `warnings`.
        """
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(event: dict[str, Any]) -> None:
            if not response.prepared:
                await response.prepare(request)
            async with timeout(self.limits.send_seconds):
                await response.write(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())

        text, task, meant = "", asyncio.current_task(), meaning(None, has_grammar)
        assert task is not None
        self._streaming.add(task)
        try:
            async for event in events:
                fixed = whole_words(event["stable"]) if event["type"] == "partial" else event.get("text", text)
                if fixed.startswith(text) and fixed != text:
                    await send({"type": "transcript.text.delta", "delta": fixed[len(text) :]})
                    text = fixed
                if event["type"] == "final":
                    text, meant = fixed, meaning(event, has_grammar)
            await send({"type": "transcript.text.done", "text": text, **meant, **warned})
        except (asyncio.TimeoutError, ConnectionError):  # the client doesn't read
            if request.transport is not None:
                request.transport.abort()
        except Exception as error:
            if not response.prepared:
                raise
            if not isinstance(error, Failure | ValueError | Full):
                log.exception("a streamed transcript failed")
            wrong = Problem(str(error), "file") if isinstance(error, Failure | ValueError) else problem_of(error)
            await send({"type": "error", **wrong.body()})
        finally:
            self._streaming.discard(task)
        if response.prepared:
            await response.write_eof()
        return response


def _response(asked: Wanted, final: dict[str, Any] | None, seconds: float, warned: dict[str, Any]) -> web.Response:
    form = asked.response_format
    body = answer(form, final, seconds, asked.granularities, asked.language, warned, asked.task, "grammar" in asked.settings)
    if isinstance(body, str):
        kinds = {"vtt": "text/vtt", "srt": "application/x-subrip"}
        return web.Response(text=body, content_type=kinds.get(form, "text/plain"), charset="utf-8")
    return web.json_response(body)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hf-ngpulm"}
