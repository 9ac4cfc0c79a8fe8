"""`/v1/corrections`: off by default; each key has its own file, and its recordings are heard with what it teaches."""

from __future__ import annotations

import asyncio
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("aiohttp")
from serving_clients import serving
from test_transcriptions import ask, wav

import hf_ngpulm
from hf_ngpulm import CorrectionLog
from hf_ngpulm.serving import Access, Limits, make_app

PAIRS = [("call zer mat", "call Zermatt"), ("to zer mat", "to Zermatt"), ("a rewrite of it", "something quite different")]
PATH = "/v1/corrections"


async def call(server, method, key="one", status=200, **body):
    headers = {"Authorization": f"Bearer {key}"}
    async with server.session.request(method, server.at + PATH, headers=headers, **body) as response:
        assert response.status == status, await response.text()
        return await response.json()


def run_with(demo, folder, talk, **limits):
    async def serve():
        given = {"corrections": folder, "keys": ["one", "two"]}
        async with serving(demo.recognizer(1, lm=None, lm_weight=None), Limits(clients=1, **limits), **given) as server:
            await talk(server)

    asyncio.run(serve())


def test_each_key_has_corrections_of_its_own(demo, tmp_path):
    folder = tmp_path / "corrections"

    async def talk(server):
        assert await call(server, "GET") == {"corrections": [], "phrases": []}
        for heard, meant in PAIRS:
            told = await call(server, "POST", json={"heard": heard, "meant": meant})
        assert [each["meant"] for each in told["corrections"]] == [meant for _, meant in PAIRS]
        assert told["phrases"] == ["Zermatt"]
        assert (await call(server, "GET", "two"))["corrections"] == []
        await call(server, "DELETE")
        assert (await call(server, "DELETE"))["phrases"] == []
        await call(server, "GET", "three", 401)
        assert "no correction to undo" in (await call(server, "DELETE", "two", 400))["error"]["message"]
        async with server.session.get(f"{server.at}/openapi.json", headers={"Authorization": "Bearer one"}) as response:
            assert set((await response.json())["paths"][PATH]) == {"get", "post", "delete"}

    run_with(demo, folder, talk)
    (file,) = [path for path in folder.iterdir() if path.stat().st_size]
    assert len(CorrectionLog(file)) == 1 and "one" not in file.name
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_learning_keeps_nobody_else_waiting(demo, tmp_path, monkeypatch):
    """It has a thread of its own: not the event loop's, and none of the pool that uploads use, too."""
    learning, go_on = threading.Event(), threading.Event()

    def slow(log):
        learning.set()
        assert go_on.wait(60)
        return []

    async def talk(server):
        monkeypatch.setattr(CorrectionLog, "phrases", slow)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = asyncio.create_task(call(server, "GET"))
        assert await asyncio.to_thread(learning.wait, 60)
        async with server.session.get(server.at + "/health") as response:
            assert response.status == 200
        go_on.set()
        assert await waiting == {"corrections": [], "phrases": []}

    run_with(demo, tmp_path, talk)


def test_recordings_are_heard_with_what_was_learned(demo, tmp_path):
    audio = wav(hf_ngpulm.demo_recording())

    async def talk(server):
        server.session.headers["Authorization"] = "Bearer one"
        plain = (await ask(server, audio, num_beams="4"))["text"]
        assert "harbour" not in plain
        for text in ("the harbour master", "call the harbour master"):
            await call(server, "POST", json={"heard": text.replace("harbour", "haraber"), "meant": text})
        assert "harbour" in (await ask(server, audio, phrase_weight="4"))["text"]
        server.session.headers["Authorization"] = "Bearer two"
        assert (await ask(server, audio, num_beams="4"))["text"] == plain

    run_with(demo, tmp_path, talk)


def test_limits_and_mistakes(demo, tmp_path):
    async def talk(server):
        for body, param in (
            ({"data": b"nothing"}, None),
            ({"json": ["a", "b"]}, None),
            ({"json": {"heard": "a"}}, None),
            ({"json": {"heard": "a", "meant": "b", "more": 1}}, None),
            ({"json": {"heard": 1, "meant": "b"}}, "heard"),
            ({"json": {"heard": "a", "meant": " "}}, None),
            ({"json": {"heard": "a" * 501, "meant": "b"}}, None),
            ({"data": b"[" * 1500}, None),
        ):
            assert (await call(server, "POST", status=400, **body))["error"]["param"] == param
        await call(server, "POST", status=413, json={"heard": "a" * 5000, "meant": "b"})
        for _ in range(2):
            await call(server, "POST", json={"heard": "a", "meant": "b"})
        problem = await call(server, "POST", status=413, json={"heard": "a", "meant": "b"})
        assert problem["error"]["message"] == "2 corrections are the most; undo some"
        (file,) = tmp_path.iterdir()
        file.write_text("damaged\n")
        told = (await call(server, "GET", status=400))["error"]["message"]
        assert "a line should be" in told and str(tmp_path) not in told

    run_with(demo, tmp_path, talk, corrections=2, message_bytes=4096)


def test_phrases_stay_within_the_limits(demo, tmp_path):
    async def talk(server):
        server.session.headers["Authorization"] = "Bearer one"
        for name in ("Zermatt", "Kowalska"):
            for text in (f"call {name}", f"to {name}"):
                await call(server, "POST", json={"heard": text.replace("tt", "d").replace("sk", "s"), "meant": text})
        assert len((await call(server, "GET"))["phrases"]) == 2
        await ask(server, wav(hf_ngpulm.demo_recording()), keywords=["harbour master", "lighthouse"])

    run_with(demo, tmp_path, talk, phrases=2)


def test_off_without_a_folder_and_refused_without_keys(demo, tmp_path):
    async def talk(server):
        async with server.session.get(server.at + PATH) as response:
            assert response.status == 404

    async def serve():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            await talk(server)

    asyncio.run(serve())
    with pytest.raises(ValueError, match="corrections are kept for each key; give the server keys"):
        make_app(demo.recognizer(1), Limits(clients=1), Access(), corrections=tmp_path)
