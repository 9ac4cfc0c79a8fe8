"""Describe the server's routes, and the schema that validates requests, in an OpenAPI document."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from aiohttp import hdrs, web

from .corrections import FIELDS as CORRECTION
from .corrections import PATH as CORRECTIONS
from .limits import Limits
from .requests import FIELDS, FORMATS, NO_LM, Voices

_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_WORD = {"type": "object", "properties": {"word": _TEXT, "start": _NUMBER, "end": _NUMBER}}
_SEGMENT = {"type": "object", "properties": {"id": {"type": "integer"}, "text": _TEXT, "start": _NUMBER, "end": _NUMBER}}
_SLOT = {"type": "object", "properties": {"name": _TEXT, "value": {}, "text": _TEXT, "start": _NUMBER, "end": _NUMBER}}
_USAGE = {"type": "object", "properties": {"type": {"const": "duration"}, "seconds": _NUMBER}}
_WARNINGS = {"type": "array", "items": _TEXT, "description": "Warnings, for example about phrases that the model can't write."}
_TRANSCRIPT = {"type": "object", "required": ["text"], "properties": {
    "text": _TEXT, "usage": _USAGE, "warnings": _WARNINGS, "task": _TEXT, "language": _TEXT, "duration": _NUMBER,
    "understood": {"type": "boolean"}, "intent": {"type": ["string", "null"]}, "slots": {"type": "array", "items": _SLOT},
    "confidence": _NUMBER, "free_text": _TEXT, "explanation": {"type": "object"},
    "segments": {"type": "array", "items": _SEGMENT}, "words": {"type": "array", "items": _WORD},
}}  # fmt: skip
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object", "properties": {
    "message": _TEXT, "type": _TEXT, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]},
}}}}  # fmt: skip
_ERRORS = {
    "400": "a field or the file is wrong", "404": "there is no such model", "413": "too large", "415": "compressed",
    "429": "too many from one address; try again later", "503": "the server is full or shutting down; try again later",
}  # fmt: skip


def description(
    routes: Collection[web.AbstractRoute], voices: Voices, limits: Limits, needs_key: bool, version: str
) -> dict[str, Any]:
    """Return the server's OpenAPI document.

    Args:
        routes: the routes to describe. The descriptions are the docstrings of the handlers.
        needs_key: whether requests need a key.
    """
    paths: dict[str, Any] = {}
    for route in routes:
        if route.resource is not None and route.method in (hdrs.METH_GET, hdrs.METH_POST, hdrs.METH_DELETE):
            operation = _operation(route, voices, limits)
            paths.setdefault(route.resource.canonical, {})[route.method.lower()] = operation
    document: dict[str, Any] = {
        "openapi": "3.1.0", "info": {"title": "hf-ngpulm", "version": version}, "paths": paths,
        "components": {"schemas": {"Transcript": _TRANSCRIPT, "Error": _ERROR}},
    }  # fmt: skip
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def form(voices: Voices, limits: Limits) -> dict[str, Any]:
    """Return the schema of a form with a recording. As in OpenAI's clients, the names of list fields end in `[]`."""
    fields = {name: dict(schema) for name, schema in FIELDS.items()}
    fields["model"]["examples"] = list(voices.models)
    fields["num_beams"]["anyOf"] = [{"type": "integer", "minimum": 1, "maximum": limits.beams}, {"const": "auto"}]
    if voices.grammars:
        fields["grammar"]["examples"] = list(voices.grammars)
    if voices.lms:
        fields["lm"] |= {"enum": [*voices.lms, NO_LM], "default": next(iter(voices.lms))}
    else:
        del fields["lm"], fields["lm_weight"]
    named = {name + "[]" * (schema.get("type") == "array"): schema for name, schema in fields.items()}
    return {"type": "object", "required": ["file"], "properties": named, "additionalProperties": False}


def _operation(route: web.AbstractRoute, voices: Voices, limits: Limits) -> dict[str, Any]:
    summary, _, more = (inspect.getdoc(route.handler) or "").partition("\n")
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "done"}}}
    if more.strip():
        operation["description"] = more.strip()
    info = route.resource.get_info() if route.resource is not None else {}
    if "formatter" in info:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]
    if route.method == hdrs.METH_POST and route.resource is not None and route.resource.canonical == CORRECTIONS:
        schema = {"type": "object", "required": list(CORRECTION), "properties": CORRECTION, "additionalProperties": False}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    elif route.method == hdrs.METH_POST:
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form(voices, limits)}}}
        kinds: dict[str, Any] = {"application/json": {"schema": {"$ref": "#/components/schemas/Transcript"}}}
        kinds |= {kind: {"schema": _TEXT} for kind in ("text/plain", "text/event-stream", "application/x-subrip", "text/vtt")}
        wrong = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        answer = f"a transcript, in the format that response_format ({', '.join(FORMATS)}) and stream select"
        operation["responses"] = {"200": {"description": answer, "content": kinds}}
        operation["responses"] |= {code: {"description": reason, "content": wrong} for code, reason in _ERRORS.items()}
    return operation
