"""Keys, encryption, pages of other origins, metrics, logs, several processes, and connections that ask for nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")
import contextlib

from aiohttp import ClientSession, TCPConnector, WSServerHandshakeError
from prometheus_client.parser import text_string_to_metric_families
from serving_clients import PATH, hello, pcm, serving, speak, transcript, until
from test_transcriptions import ask, wav

from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.serving import Limits, make_app
from hf_ngpulm.serving.process import listen

MODEL = str(bundled("examples/models/ctc"))


def test_keys(demo):
    async def talk():
        settings = {"keys": ["correct-horse", "battery"]}
        async with serving(demo.recognizer(1), Limits(clients=1), **settings) as server:
            for path in ("/v1/models", "/metrics", "/v1/realtime"):
                for headers, status in (
                    ({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "correct-horse"}, 401),
                    ({"Authorization": "Basic correct-horse"}, 401), ({"Authorization": "Bearer correct-hors"}, 401),
                    ({"Authorization": "Bearer \udcff"}, 401), ({"Sec-WebSocket-Protocol": "realtime"}, 401),
                ):  # fmt: skip
                    async with server.session.get(server.at + path, headers=headers) as response:
                        assert response.status == status, (path, headers)
                        assert "correct" not in await response.text() and response.headers["WWW-Authenticate"] == "Bearer"
            assert (await ask(server, wav(demo.clips[0]), 401))["error"]["type"] == "authentication_error"
            for path in ("/", "/page.js", "/health", "/ready"):
                async with server.session.get(server.at + path) as response:
                    assert response.status == 200
            for key in settings["keys"]:
                async with server.session.get(f"{server.at}/v1/models", headers={"Authorization": f"Bearer {key}"}) as response:
                    assert response.status == 200
            # As pages of browsers do, which can't set headers.
            protocols = ["realtime", "openai-insecure-api-key.battery"]
            async with server.session.ws_connect(server.at + PATH, protocols=protocols) as ws:
                assert ws.protocol == "realtime"
            with pytest.raises(WSServerHandshakeError):
                await server.session.ws_connect(server.at + PATH, protocols=["openai-insecure-api-key.x"])

    asyncio.run(talk())


def test_pages_of_other_origins(demo):
    async def talk():
        friend = "https://friend.example"
        async with serving(demo.recognizer(1), Limits(clients=1), origins=[friend], keys=["key"]) as server:
            for origin, status in ((friend, 204), ("https://foe.example", 403)):
                asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
                async with server.session.options(f"{server.at}/v1/audio/transcriptions", headers=asked) as response:
                    assert response.status == status
                    assert response.headers.get("Access-Control-Allow-Origin") == (friend if status == 204 else None)
            for headers, status in (({"Authorization": "Bearer key"}, 200), ({}, 401)):  # a page reads why it is refused
                async with server.session.get(f"{server.at}/v1/models", headers={"Origin": friend, **headers}) as response:
                    assert response.status == status and response.headers["Access-Control-Allow-Origin"] == friend
            form = {"Origin": "https://foe.example", "Authorization": "Bearer key"}
            async with server.session.post(f"{server.at}/v1/audio/transcriptions", headers=form, data=b"") as response:
                assert response.status == 403 and "foe.example" in (await response.json())["error"]["message"]

    asyncio.run(talk())


def test_metrics_and_readiness(demo):
    async def talk():
        async with serving(demo.recognizer(2), Limits(clients=2)) as server:
            await ask(server, wav(demo.clips[0]))
            await ask(server, b"", 400)
            await speak(server, pcm(demo.clips[0]))
            async with server.session.ws_connect(server.at + PATH) as ws:
                await ws.receive_json()
                async with server.session.get(f"{server.at}/metrics") as response:
                    text = await response.text()
            found = {
                (sample.name, *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert found["hf_ngpulm_clients", "live"] == 1 and found["hf_ngpulm_clients", "recording"] == 0
            assert found["hf_ngpulm_audio_seconds_total", "recording"] == pytest.approx(len(demo.clips[0]) / 16000, abs=0.01)
            assert found["hf_ngpulm_audio_seconds_total", "live"] > 1
            assert found["hf_ngpulm_requests_total", "/v1/audio/transcriptions", "200"] == 1
            assert found["hf_ngpulm_requests_total", "/v1/audio/transcriptions", "400"] == 1
            assert found["hf_ngpulm_lag_seconds_count",] >= 2 and found["hf_ngpulm_batch_size_count", "recording"] == 1
            async with server.session.get(f"{server.at}/ready") as response:
                assert (response.status, await response.json()) == (200, {"ready": True})
            async with server.session.get(f"{server.at}/nowhere/{'x' * 500}") as response:  # no label of its own
                assert response.status == 404
            async with server.session.get(f"{server.at}/metrics") as response:
                assert "xxx" not in await response.text()

    asyncio.run(talk())


def test_who_cannot_be_told_keeps_nothing_from_others():
    from hf_ngpulm.serving import engine

    told = []
    sessions = [engine.Session({}, deliver, None) for deliver in (None, told.append)]  # the first can't be called
    engine._deliver([(session, {"type": "room"}) for session in sessions])
    assert told == [{"type": "room"}]


def test_lag_is_the_time_since_a_chunk_was_there():
    from hf_ngpulm.serving import engine

    session = engine.Session({}, lambda event: None, None)
    now = [0.0]
    clock, engine.time.monotonic = engine.time.monotonic, lambda: now[0]
    try:
        for at in range(10):
            now[0] = float(at)
            session.arrived(100)
        assert session.lag(450) == 4.0  # the 550th sample came at 5 s
        now[0] = 12.0
        assert session.lag(400) == 7.0
        assert session.lag(0) == 3.0  # the last one is needed
        for _ in range(10**4):  # at once
            session.arrived(1)
        assert len(session._arrivals) == 2
    finally:
        engine.time.monotonic = clock


async def listening(app, limits, **settings):
    told = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(listen(app, "127.0.0.1", 0, limits, told.set_result, **settings))
    await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    return task, told.result()


async def stopped(task):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 20)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_connections_that_ask_for_nothing_are_cut_off(demo, caplog):
    async def talk():
        limits = Limits(clients=1, hello_seconds=0.5)
        task, at = await listening(make_app(demo.recognizer(1), limits), limits)
        port, loop = int(at.rsplit(":", 1)[1]), asyncio.get_running_loop()
        begin = loop.time()
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        connections[1][1].write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")  # a header without an end
        connections[2][1].write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for number in (0, 1):
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(connections[number][0].read(), 5) == b""
        assert loop.time() - begin < 3
        noise = await asyncio.open_connection("127.0.0.1", port)
        noise[1].write(b"\xff" * 1000 + b"\r\n\r\n")
        assert b" 400 " in await asyncio.wait_for(noise[0].readline(), 5)
        noise[1].close()
        assert b"200 OK" in await connections[2][0].readline()
        for _, writer in connections:
            writer.close()
        await stopped(task)

    asyncio.run(talk())
    assert not caplog.records  # who sends noise fills no logs


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_address_has_so_many_connections(demo, monkeypatch):
    monkeypatch.setattr("hf_ngpulm.serving.process.counted_address", lambda remote: remote)  # this machine counts, too

    async def talk():
        limits = Limits(clients=1, connections_per_address=2)
        task, at = await listening(make_app(demo.recognizer(1), limits), limits)
        port = int(at.rsplit(":", 1)[1])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        for _, each in (*held, (reader, writer)):
            each.close()
        await stopped(task)

    asyncio.run(talk())


def slow(recognizer, seconds):
    """Have each step of recordings take so long."""
    made = recognizer.for_recordings

    def for_recordings(*args, **settings):
        found = made(*args, **settings)
        step = found.step
        found.step = lambda *most: (time.sleep(seconds), step(*most))[1]
        return found

    recognizer.for_recordings = for_recordings
    return recognizer


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("step_seconds", [0.3, 60.0])
def test_recordings_that_are_cut_off_are_told(demo, step_seconds):
    """One that is decoded, one that is streamed, and one that has not arrived; also amid a step that doesn't end."""

    async def talk():
        limits = Limits(clients=1, shutdown_seconds=0.4)
        task, at = await listening(make_app(slow(demo.recognizer(1), step_seconds), limits), limits)
        long, path = wav(np.tile(demo.clips[0], 300)), f"http://{at}/v1/audio/transcriptions"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(at.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n"
                     b"Content-Type: multipart/form-data; boundary=a\r\n\r\n--a\r\n")  # fmt: skip

        async def post(**fields):
            async with ClientSession() as session, session.post(path, data={"file": io.BytesIO(long), **fields}) as response:
                return response.status, response.headers.get("Retry-After"), await response.text()

        asked = [asyncio.create_task(post()), asyncio.create_task(post(stream="true"))]
        async with ClientSession() as session:
            while True:
                async with session.get(f"http://{at}/health") as response:
                    if (await response.json())["recordings"] == 3:
                        break
        await asyncio.sleep(1.0)  # their steps have begun
        await stopped(task)
        status, later, said = await asked[0]
        assert (status, later) == (503, "1") and "shutting down" in json.loads(said)["error"]["message"]
        status, _, said = await asked[1]
        assert "shutting down" in said and (status == 503 or said.startswith("data: "))
        assert b" 503 " in await reader.readline()
        assert b"Retry-After: 1" in await reader.read()
        writer.close()

    asyncio.run(talk())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs openssl")
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_encryption(demo, certificate):
    from hf_ngpulm.serving.process import certificate as load

    async def talk():
        limits = Limits(clients=1)
        tls = load(str(certificate / "cert.pem"), str(certificate / "key.pem"))
        task, at = await listening(make_app(demo.recognizer(1), limits), limits, tls=tls)
        trusted = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        async with ClientSession(connector=TCPConnector(ssl=trusted)) as session:
            async with session.get(f"https://{at}/health") as response:
                assert response.status == 200
            async with session.ws_connect(f"wss://{at}{PATH}") as ws:
                await ws.send_json(hello())
                await until(ws, "session.updated")
        await stopped(task)

    asyncio.run(talk())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--tls-key", "x"], "add --tls-cert"),
        (["--tls-cert", __file__], "not a PEM certificate with its key"),
        (["--tls-cert", "nowhere.pem"], "No such file"),
        (["--api-key-file", "nowhere.txt"], "No such file"),
        (["--api-key", ""], "--api-key is empty"),
        (["--also-lm", "x=y.arpa"], "--also-lm needs --lm"),
        (["--lm", "a.arpa", "--also-lm", "y.arpa"], "NAME=LM"),
        (["--lm", "a.arpa", "--also-lm", "none=y.arpa"], "other than none"),
        (["--lm", "a.arpa", "--also-lm", "default=y.arpa"], "different names"),
        (["--wyoming", "tcp://localhost"], "tcp://HOST:PORT"),
        (["--wyoming", "tcp://localhost:0", "--workers", "2"], "can't share port 0, which the system chooses"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert run(["serve", MODEL, "--port", "0", "--max-clients", "1", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1


def started(*arguments, json=("--json",), **environment):
    command = [sys.executable, "-m", "hf_ngpulm.cli", "serve", MODEL, "--port", "0", *json, "--max-clients", "2", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_command_with_a_key_a_wyoming_address_and_logs(demo, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret-one\n")
    lm = str(bundled("examples/speech/harbour") / "lm.arpa.gz")
    server = started(
        "--api-key-file", str(keys), "--wyoming", "tcp://127.0.0.1:0", "--json-logs", "--served-name", "whisper-1", "--lm", lm,
        "--also-lm", f"same={lm}", HF_NGPULM_API_KEY="secret-two",
    )  # fmt: skip

    async def talk(at):
        asked, form = {"Authorization": "Bearer secret-two"}, wav(demo.clips[0])
        async with ClientSession(headers=asked) as session:
            async with session.get(f"{at}/models") as response:
                assert [model["id"] for model in (await response.json())["data"]] == ["whisper-1"]
            texts = []
            for lm in (None, "default", "same", "none"):
                fields = {"file": form, **({} if lm is None else {"lm": lm})}
                async with session.post(f"{at}/audio/transcriptions", data=fields) as response:
                    assert response.status == 200, await response.text()
                    texts.append((await response.json())["text"])
            assert texts[0] == texts[1] == texts[2] != texts[3]
        async with ClientSession() as session, session.get(f"{at}/models") as response:
            assert response.status == 401

    try:
        told = json.loads(server.stdout.readline())
        host, _, port = told["wyoming"].removeprefix("tcp://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as wyoming:  # that is where it is
            wyoming.sendall(b'{"type": "describe"}\n')
            assert b'"info"' in wyoming.recv(1000)
        asyncio.run(talk(told["openai"]))
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
        assert server.returncode == 0
        lines = [json.loads(line) for line in errors.splitlines()]
        answered = [line for line in lines if line["message"] == "answered"]
        assert [line["status"] for line in answered] == [200] * 5 + [401]
        assert {"time", "level", "logger", "path", "seconds"} <= answered[0].keys()
        assert "secret" not in errors and all(text not in errors for text in ("harbour master",))
    finally:
        server.kill()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_command_says_where_it_is_and_that_it_stops():
    """In a line each, as a terminal has it; and with Ctrl-C before the model is loaded nothing but that."""
    server = started("--wyoming", "tcp://127.0.0.1:0", json=())
    try:
        told = server.stderr.readline()
        assert re.fullmatch(
            r"http://127.0.0.1:\d+/ \(OpenAI: http\S+/v1, live audio: ws\S+, Wyoming: tcp://127.0.0.1:[1-9]\d*\); Ctrl-C to "
            r"stop\n",
            told,
        )
        server.send_signal(signal.SIGINT)
        out, errors = server.communicate(timeout=30)
        assert (server.returncode, out, errors) == (0, "", "hf-ngpulm: stopping; received audio is decoded for up to 5 s\n")
    finally:
        server.kill()


# Steps of recordings take long, within one operation; in all processes that Python starts.
LONG_STEPS = """
import torch
from hf_ngpulm.audio import StreamingRecognizer
own = StreamingRecognizer.for_recordings
def for_recordings(*args, **settings):
    made = own(*args, **settings)
    step = made.step
    def slow(*most):
        if made.ready():
            large = torch.ones(9000, 9000)
            large @ large @ large @ large
        return step(*most)
    made.step = slow
    return made
StreamingRecognizer.for_recordings = for_recordings
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="needs SO_REUSEPORT")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_with_work_stops_within_ten_seconds(demo, tmp_path, workers, number):
    """Amid a step that takes long, too, here half a minute: recordings are told 503 by then, and no process crashes."""
    (tmp_path / "sitecustomize.py").write_text(LONG_STEPS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = started("--workers", str(workers), PYTHONPATH=path)

    async def ask(at):
        async with ClientSession() as session, session.post(at, data={"file": io.BytesIO(wav(demo.clips[0]))}) as response:
            return response.status, response.headers.get("Retry-After")

    async def talk(at):
        asked = [asyncio.create_task(ask(f"{at}/audio/transcriptions")) for _ in range(8)]
        await asyncio.sleep(4)  # they are there
        server.send_signal(number)
        assert set(await asyncio.gather(*asked)) == {(503, "1")}

    try:
        asyncio.run(talk(json.loads(server.stdout.readline())["openai"]))
        server.wait(timeout=10)  # of which this needs 3; recordings have had their 5 s
        errors = server.stderr.read()
        assert server.returncode == 0 and errors.count("\n") == errors.count("a step of decoding takes long"), errors
    finally:
        server.kill()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="needs SO_REUSEPORT")
def test_several_processes_share_an_address(demo):
    server = started("--workers", "2")

    async def talk(at):
        texts = set()
        for _ in range(12):  # a connection each
            form = {"file": wav(demo.clips[0])}
            async with ClientSession() as session, session.post(f"{at}/v1/audio/transcriptions", data=form) as response:
                texts.add((await response.json())["text"])
        async with ClientSession() as session, session.get(f"{at}/metrics") as response:
            text = await response.text()
        assert len(texts) == 1
        # Of both together, whichever was asked.
        assert 'hf_ngpulm_requests_total{path="/v1/audio/transcriptions",status="200"} 12.0' in text, text

    try:
        at = json.loads(server.stdout.readline())["page"].rstrip("/")
        time.sleep(3)  # the other one, too
        asyncio.run(talk(at))
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
        assert (server.returncode, errors) == (0, "")
    finally:
        server.kill()


def test_live_audio_with_a_key(demo):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1), keys=["key"]) as server:
            server.session.headers["Authorization"] = "Bearer key"
            return transcript(await speak(server, pcm(demo.clips[0])))

    assert len(asyncio.run(talk()).split()) > 5
