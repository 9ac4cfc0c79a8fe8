"""Store clients' corrections, and learn phrases to boost from the corrections. Each access key has its own file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from aiohttp import web

from ..corrections import CorrectionLog
from ..corrections.log import MOST_CHARACTERS
from .access import Access
from .connection import timeout
from .contexts import ContextMaker
from .limits import Full, Limits
from .problems import Problem

PATH = "/v1/corrections"
FIELDS = {name: {"type": "string", "maxLength": MOST_CHARACTERS} for name in ("heard", "meant")}
_KEPT = 256  # logs in memory
_AT_ONCE = 50  # corrections that are compared in one turn, in half a second at most
_FILE = re.compile(r"^.*\.jsonl: ?")  # the file's name in a message about a log, which clients don't see


class Corrections:
    """Handle requests about corrections.

    Args:
        folder: the folder of the files. The files' names are hashes of the clients' access keys.
        access: the access rules with the keys.

    Raises:
        ValueError: the server has no keys, so it can't distinguish the clients' corrections.
    """

    def __init__(self, folder: str | Path, limits: Limits, access: Access) -> None:
        if not access.needs_key:
            raise ValueError("corrections are kept for each key; give the server keys (--api-key-file, or Access(keys=[...]))")
        self.folder, self.limits, self.access = Path(folder), limits, access
        self._logs: OrderedDict[str, CorrectionLog] = OrderedDict()  # by file name, the last used at the end
        # A thread of its own, so that slow comparisons delay nothing but corrections.
        self._maker = ContextMaker(lambda function, argument: function(argument))
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def start(self) -> None:
        self._maker.start()

    def stop(self, _: float | None = None) -> bool:
        self._maker.stop()
        return True

    async def show(self, request: web.Request) -> web.Response:
        """List the client's corrections, and the phrases that the corrections teach."""
        return await self._answered(request, lambda log: None)

    async def add(self, request: web.Request) -> web.Response:
        """Add a correction. It has the recognised text ("heard") and the correct text ("meant")."""
        heard, meant = await self._pair(request)

        def add(log: CorrectionLog) -> None:
            if len(log) >= self.limits.corrections:
                raise Problem(f"{self.limits.corrections} corrections are the most; undo some", status=413)
            log.add(heard, meant)

        return await self._answered(request, add)

    async def undo(self, request: web.Request) -> web.Response:
        """Remove the last correction."""
        return await self._answered(request, CorrectionLog.undo)

    async def phrases(self, request: web.Request) -> list[str]:
        """Return the phrases that a client's corrections teach."""
        return await self._in_turn(request, lambda log: [phrase.text for phrase in log.phrases()])

    async def _answered(self, request: web.Request, change: Callable[[CorrectionLog], Any]) -> web.Response:
        def answer(log: CorrectionLog) -> dict[str, Any]:
            change(log)
            pairs = [correction._asdict() for correction in log.corrections]
            return {"corrections": pairs, "phrases": [phrase.text for phrase in log.phrases()]}

        return web.json_response(await self._in_turn(request, answer))

    async def _in_turn(self, request: web.Request, function: Callable[[CorrectionLog], Any]) -> Any:
        """In the thread for corrections, call a function with the client's log. The clients' calls have a fair order."""
        try:
            key = self.access.key(request).encode(errors="surrogateescape")
            name = hashlib.sha256(b"corrections of " + key).hexdigest()
            async with self._locks.setdefault(name, asyncio.Lock()):
                log = self._logs.pop(name, None)
                self._logs[name] = log = await self._made(self._opened, name) if log is None else log
                if len(self._logs) > _KEPT:
                    self._logs.popitem(last=False)
                while not await self._made(lambda log: log.compare(_AT_ONCE), log):
                    pass  # between two calls, other clients take their turns
                return await self._made(function, log)
        except ValueError as error:
            raise Problem(_FILE.sub("", str(error))) from None
        except OSError:
            raise Full("the server can't read or write corrections at the moment; try again later") from None

    async def _made(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return await self._maker.of({"function": function, "argument": argument}, cost=1.0)

    async def _pair(self, request: web.Request) -> tuple[str, str]:
        """Return the texts "heard" and "meant" of a request. Raises Problem if the body isn't a JSON object with both texts."""
        data = b""
        try:
            async with timeout(self.limits.send_seconds):
                while len(data) <= self.limits.message_bytes and (chunk := await request.content.readany()):
                    data += chunk
        except asyncio.TimeoutError:
            raise Problem("the correction took too long to arrive", status=408) from None
        if len(data) > self.limits.message_bytes:
            raise Problem(f"the correction is larger than {self.limits.message_bytes:,} bytes", status=413)
        try:
            pair = json.loads(data)
        except (ValueError, RecursionError):
            pair = None
        if not isinstance(pair, dict) or pair.keys() != FIELDS.keys():
            raise Problem('the body should be JSON: {"heard": "...", "meant": "..."}')
        for name, value in pair.items():
            if not isinstance(value, str):
                raise Problem(f"{name} should be a text", name)
        return pair["heard"], pair["meant"]

    def _opened(self, name: str) -> CorrectionLog:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return CorrectionLog(self.folder / f"{name}.jsonl")
