"""Receive forms with text fields and a recording. Recordings are stored in temporary files of limited total size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from aiohttp import BodyPartReader, hdrs, web
from aiohttp.http import HttpProcessingError

from .connection import timeout
from .limits import Full, Limits
from .problems import Problem

_PIECE = 256 * 1024  # bytes to collect before they are written to disk
_MOST_TEXT = 64 * 1024  # bytes of a form's texts, besides phrases
_MOST_FIELDS = 64  # besides keywords
_IDENTITY = ("", "identity", "binary", "8bit", "7bit")  # codings that leave the data unchanged


@dataclass
class Form:
    """Hold a received form."""

    file: IO[bytes]  # the recording, positioned at its beginning
    texts: dict[str, list[str]] = field(default_factory=dict)  # all values of each field, by the field's name
    name: str = ""  # the client's name for the file
    size: int = 0  # size of the file, in bytes


class Forms:
    """Receives the forms of all clients."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._spooled = 0  # bytes of all files

    @asynccontextmanager
    async def received(self, request: web.Request) -> AsyncIterator[Form]:
        """Receive a form. At the end of the `with` block, the form's file is deleted.

        Raises:
            Problem: the form is damaged, too large, or took too long to arrive.
            Full: the files of all clients together exceed `Limits.spool_bytes`.
            ConnectionError: the client is gone.
        """
        limits = self.limits
        with SpooledTemporaryFile(max_size=limits.upload_memory, prefix="hf-ngpulm-") as file:
            form = Form(file)  # type: ignore[arg-type]
            try:
                try:
                    async with timeout(limits.upload_seconds):
                        await self._receive(request, form)
                except asyncio.TimeoutError:
                    raise Problem("the recording took too long to arrive", "file", 408) from None
                yield form
            finally:
                self._spooled -= form.size

    async def _receive(self, request: web.Request, form: Form) -> None:
        limits = self.limits
        kind = request.headers.get(hdrs.CONTENT_TYPE, "none").partition(";")[0].strip()  # `content_type` would parse it as mail
        if kind.lower() != "multipart/form-data":
            raise Problem(f"the body should be multipart/form-data, got {kind[:60]!r}")
        _check_coding(request.headers, hdrs.CONTENT_ENCODING)
        if (request.content_length or 0) > limits.upload_bytes + limits.phrase_bytes + limits.grammar_bytes + _MOST_TEXT:
            raise self._too_large()
        left, parts = limits.phrase_bytes + limits.grammar_bytes + _MOST_TEXT, limits.phrases + _MOST_FIELDS
        try:
            reader = await request.multipart()
            while (part := await self._soon(reader.next())) is not None:
                parts -= 1
                name = (part.name or "").partition("[")[0] if isinstance(part, BodyPartReader) else ""
                if not isinstance(part, BodyPartReader) or not name or parts < 0:
                    raise Problem("the form should have named fields only, and no more of them than allowed keywords")
                for header in (hdrs.CONTENT_ENCODING, hdrs.CONTENT_TRANSFER_ENCODING):
                    _check_coding(part.headers, header, name)
                if name == "file":
                    if form.name:
                        raise Problem("file is given twice; once is enough", "file")
                    form.name = " ".join((part.filename or "file").split())[:100] or "file"
                    await self._write(request, part, form)
                    continue
                data = b""
                while chunk := await self._soon(part.read_chunk()):
                    data += chunk
                    left -= len(chunk)
                    if left < 0:
                        raise Problem("the form's texts are too long", name[:40], 413)
                form.texts.setdefault(name, []).append(data.decode())
        except UnicodeDecodeError:
            raise Problem("the form's texts should be UTF-8") from None
        # aiohttp raises these if the body isn't a form or contradicts its headers, or if the headers of a part are wrong.
        except (ValueError, AssertionError, RuntimeError, HttpProcessingError, web.RequestPayloadError) as error:
            why = getattr(error, "message", None) or str(error)
            raise Problem(f"the form is damaged: {' '.join(why.split())[:200]}") from None
        if not form.name:
            raise Problem("the form should have a file", "file", code="missing_required_parameter")

    async def _write(self, request: web.Request, part: BodyPartReader, form: Form) -> None:
        waiting, limits = bytearray(), self.limits
        while True:
            chunk = await self._soon(part.read_chunk(1 << 16))
            if is_gone(request):
                raise ConnectionResetError("the client is gone")
            waiting += chunk
            form.size += len(chunk)
            self._spooled += len(chunk)
            if form.size > limits.upload_bytes:
                raise self._too_large()
            if self._spooled > limits.spool_bytes:
                raise Full("other clients' recordings leave no room for this one; try again later")
            if form.size > limits.upload_memory and (len(waiting) >= _PIECE or not chunk):  # to the disk
                await asyncio.to_thread(form.file.write, bytes(waiting))
                waiting.clear()
            if not chunk:
                form.file.write(waiting)
                form.file.seek(0)
                return

    async def _soon(self, awaitable: Any) -> Any:
        async with timeout(self.limits.send_seconds):
            return await awaitable

    def _too_large(self) -> Problem:
        return Problem(f"the recording is larger than {self.limits.upload_bytes:,} bytes, the limit", "file", 413)


def is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _check_coding(headers: Any, name: str, param: str | None = None) -> None:
    """Raise Problem if a body is compressed, because a small compressed body could become huge. `name`: the header that names
    the compression. `param`: the form's field to which the header belongs.
    """
    coding = headers.get(name, "").strip()
    if coding.lower() not in _IDENTITY:
        raise Problem(f"{name} {coding[:40]!r} isn't supported; send the body uncompressed", param and param[:40], 415)
