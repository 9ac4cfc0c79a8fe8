"""Describe errors of requests in the format that OpenAI's clients expect."""

from __future__ import annotations

from typing import Any

from aiohttp import hdrs, web

from .limits import Full

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
RETRY_SECONDS = 1


class Problem(Exception):
    """Report that a request can't be served.

    Args:
        message: the message for the client.
        param: the name of the wrong field.
        status: the HTTP status.
        code: OpenAI's name for the problem.
    """

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    def body(self) -> dict[str, Any]:
        """Return the problem as a dictionary in OpenAI's error format, for HTTP and websockets."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> web.Response:
        headers = {hdrs.RETRY_AFTER: str(RETRY_SECONDS)} if self.status in (429, 503) else {}
        if self.status == 401:
            headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
        return web.json_response(self.body(), status=self.status, headers=headers)


def problem_of(error: Exception) -> Problem:
    """Convert an error to a problem. Unexpected errors get a general message, because error messages may have private data."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Full):
        return Problem(str(error), status=error.status, code="rate_limit_exceeded" if error.status == 429 else "overloaded")
    if isinstance(error, web.HTTPException):
        return Problem((error.text or error.reason).strip(), status=error.status)
    return Problem("the server failed", status=500)
