"""What the server says of itself is what it does."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("aiohttp")
from serving_clients import serving
from test_transcriptions import PATH, ask, wav

from hf_ngpulm.serving import Limits, Voices
from hf_ngpulm.serving.app import _PAGES
from hf_ngpulm.serving.attention import AttentionRecognizer

LIMITS = Limits(clients=1, beams=4)


async def described(server):
    async with server.session.get(f"{server.at}/openapi.json") as response:
        assert response.status == 200
        return await response.json()


def fields_of(document, path=PATH):
    return document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]


def values_of(schema):
    """Values that a field takes, and that it doesn't, as a form has them."""
    if "anyOf" in schema:  # a number or auto
        good, bad = values_of(schema["anyOf"][0])
        return [*good, schema["anyOf"][1]["const"]], bad
    if schema.get("type") == "array":
        return values_of(schema["items"])
    if "enum" in schema:
        return schema["enum"], ["nonsense"]
    if "minimum" in schema:
        least, most = schema["minimum"], schema["maximum"]
        return [str(least), str(most)], [str(least - 1), str(most + 1), "nonsense"]
    return (["true", "false"], ["nonsense"]) if schema.get("type") == "boolean" else (["de"], [])


def test_every_field_takes_what_is_said_and_nothing_else(demo):
    async def talk():
        voices = Voices(["mine"], {"default": demo.lm, "other": demo.other_lm})
        recognizer, audio = demo.recognizer(1, lm=[demo.lm, demo.other_lm]), wav(demo.clips[0][:4000])
        async with serving(recognizer, LIMITS, voices=voices) as server:
            fields, tried = fields_of(await described(server)), 0
            assert {"file", "model", "lm", "keywords[]", "timestamp_granularities[]"} <= fields.keys()
            for name, schema in fields.items():
                if name in ("file", "model"):
                    continue
                needed = {"response_format": "verbose_json"} if name.startswith("timestamp") else {}
                needed |= {"grammar": '["drop the anchor"]'} if name == "explain" else {}
                needed |= {"hotwords": "anchor"} if name == "false_alarms_per_hour" else {}
                good, bad = values_of(schema)
                if name == "grammar":  # a text that names none of this server's, and sentences
                    good, bad = ['["drop the anchor"]'], [*bad, *good]
                for value in good:
                    await ask(server, audio, **needed, **{name: value})
                for value in bad:
                    error = (await ask(server, audio, 400, **needed, **{name: value}))["error"]
                    assert error["param"] == name.removesuffix("[]")
                tried += len(bad)
            assert tried > 10
            await ask(server, audio, 400, unheard_of="1")

    asyncio.run(talk())


def test_every_path_is_there_and_what_the_model_cannot_do_is_not(demo):
    from test_attention import load_recogniser

    from hf_ngpulm.common.bundled import bundled

    async def talk():
        async with serving(demo.recognizer(1, lm=None, lm_weight=None), LIMITS) as server:
            document = await described(server)
            routes = {route.resource.canonical for route in server.runner.app.router.routes()}
            assert routes - set(_PAGES) - document["paths"].keys() == {"/v1/audio/translations"}
            assert all(each["summary"] for path in document["paths"].values() for each in path.values())
            assert "lm" not in fields_of(document) and "security" not in document
        canary = load_recogniser(str(bundled("examples/models/canary")), "cpu")
        async with serving(AttentionRecognizer(canary), LIMITS) as server:
            paths = (await described(server))["paths"]
            assert PATH in paths and "/v1/realtime" not in paths

    asyncio.run(talk())


def test_it_is_openapi(demo):
    """As far as a validator of schemas knows; a server with keys tells who names one."""
    jsonschema = pytest.importorskip("jsonschema")

    async def talk():
        async with serving(demo.recognizer(1), LIMITS, keys=["key"]) as server:
            for path, status in (("/openapi.json", 401), ("/docs", 200), ("/docs.js", 200)):
                async with server.session.get(server.at + path) as response:
                    assert response.status == status
            server.session.headers["Authorization"] = "Bearer key"
            return await described(server)

    document = asyncio.run(talk())
    assert document["openapi"].startswith("3.1") and document["info"].keys() == {"title", "version"} and document["security"]
    schemas = [*document["components"]["schemas"].values(), *fields_of(document).values()]
    for path, operations in document["paths"].items():
        assert path.startswith("/") and all(each["responses"] for each in operations.values())
        named = {parameter["name"] for each in operations.values() for parameter in each.get("parameters", ())}
        assert all("{" + name + "}" in path for name in named) and len(named) == path.count("{")
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
