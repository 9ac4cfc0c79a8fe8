"""Replicas: what clients hear through the bridge is what the server says; a replica that dies takes only its own streams."""

from __future__ import annotations

import asyncio
import contextlib
import json

import aiohttp
import numpy as np
import pytest
from aiohttp import ClientSession, FormData, WSMsgType, web
from ray_clusters import ray_nodes
from serving_clients import COMMIT, DONE, PATH, append, hello, pcm, serving, until

from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.serving import Limits, deployment
from hf_ngpulm.serving.replicas import Bridge, _headers, _target

CLIP = bundled("examples/speech/harbour") / "clips" / "01.flac"


@contextlib.asynccontextmanager
async def bridged(url):
    """The address of a bridge, in an ASGI server."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(Bridge(url), "127.0.0.1", 0, log_level="warning", proxy_headers=False))
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


async def said(session, at, samples):
    """What the server makes of live audio."""
    async with session.ws_connect(at + PATH) as ws:
        await ws.send_json(hello())
        for piece in np.array_split(pcm(samples), 4):
            await ws.send_json(append(piece))
        await ws.send_json({"type": COMMIT})
        return (await until(ws, DONE))[-1]["transcript"]


def test_the_bridge_changes_nothing(demo, offline):
    async def main():
        limits = Limits(clients=4)
        async with serving(demo.recognizer(4), limits, keys=["k"]) as server, bridged(server.at) as at:
            async with ClientSession(headers={"Authorization": "Bearer k"}) as session:
                answers = []
                for address in (server.at, at):
                    form = FormData({"model": "whisper-1"})
                    form.add_field("file", CLIP.read_bytes(), filename="a.flac")
                    async with session.post(address + "/v1/audio/transcriptions", data=form) as response:
                        answers.append((response.status, await response.json()))
                    async with session.get(address + "/v1/models/none%2Fa?x=1") as response:
                        answers[-1] += (response.status, await response.text())
                assert answers[0] == answers[1] and answers[0][0] == 200
                assert await said(session, at, demo.clips[2]) == offline(demo.clips[2]).text
                async with session.ws_connect(at + PATH) as ws:
                    await ws.send_str("x" * 300_000)
                    while (await ws.receive(timeout=10)).type == WSMsgType.TEXT:
                        pass
                    assert ws.close_code == 1009
            async with ClientSession() as session:
                with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
                    await session.ws_connect(at + PATH)

    asyncio.run(main())


def test_the_client_s_address_is_passed_on():
    async def main():
        async def show(request):
            return web.json_response({"for": request.headers.getall("X-Forwarded-For"), "host": request.host})

        app = web.Application()
        app.router.add_get("/", show)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with bridged(f"http://127.0.0.1:{runner.addresses[0][1]}") as at, ClientSession() as session:
            headers = {"X-Forwarded-For": "203.0.113.9", "Host": "speech.example"}
            async with session.get(at, headers=headers) as response:
                assert await response.json() == {"for": ["203.0.113.9", "127.0.0.1"], "host": "speech.example"}
        await runner.cleanup()

    asyncio.run(main())


def test_more_streams_than_aiohttp_s_limit_of_connections():
    async def main():
        async def echo(request):
            ws = web.WebSocketResponse()
            await ws.prepare(request)
            async for message in ws:
                await ws.send_str(message.data)
            return ws

        app = web.Application()
        app.router.add_get("/", echo)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        unlimited = aiohttp.TCPConnector(limit=0)
        async with bridged(f"http://127.0.0.1:{runner.addresses[0][1]}") as at, ClientSession(connector=unlimited) as session:
            streams = [await asyncio.wait_for(session.ws_connect(at), 10) for _ in range(101)]
            await streams[-1].send_str("hello")
            assert await streams[-1].receive_str(timeout=10) == "hello"
            await asyncio.gather(*(ws.close() for ws in streams))
        await runner.cleanup()

    asyncio.run(main())


def test_requests_that_would_go_elsewhere_or_have_two_lengths():
    for path, found in ((b"@elsewhere/", "/@elsewhere/"), (b"*", "/*"), (b"/a%2F", "/a%2F?x"), (b"//b/c", "//b/c")):
        assert _target({"raw_path": path, "path": "", "query_string": b"x" if found.endswith("x") else b""}) == found
    length, chunks = (b"content-length", b"9"), (b"transfer-encoding", b"chunked")
    assert _headers({"headers": [length]}) == [("content-length", "9")]
    assert _headers({"headers": [length, chunks]}) == []


def test_replicas_that_make_no_sense():
    with pytest.raises(ValueError, match=r"replicas should be the fewest and the most, such as \(1, 4\), got \(3, 2\)"):
        deployment(web.Application, (3, 2))


def served():
    """A server in a replica, whose key names its process."""
    import os

    import torch
    from transformers import AutoModelForCTC, AutoProcessor

    from hf_ngpulm.audio import StreamingRecognizer
    from hf_ngpulm.serving import Limits, make_app

    torch.set_num_threads(1)
    name = bundled("examples/models/ctc")
    model = AutoModelForCTC.from_pretrained(name, dtype=torch.float32).eval()
    cut = {"chunk_seconds": 1.28, "left_seconds": 1.28, "right_seconds": 0.32, "lm_guard": "off"}
    recognizer = StreamingRecognizer(
        model, AutoProcessor.from_pretrained(name), 32, lm=str(CLIP.parents[1] / "lm"), lm_weight=0.9, **cut
    )
    app = make_app(recognizer, Limits(clients=32))

    async def process(_):
        return web.json_response(os.getpid())

    app.router.add_get("/process", process)
    return app


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--replicas", "2"], "--replicas needs a cluster; add --ray"),
        (["--ray", "--workers", "2"], "--workers can't be used with --ray"),
        (["--ray", "--wyoming", "tcp://127.0.0.1:10300"], "--wyoming can't be used with --ray"),
        (["--ray", "--port", "0"], "--port can't be used with --ray"),
        (["--ray", "--replicas", "8-"], "--replicas should be a number, or the fewest and the most, as in 1-8; got '8-'"),
    ],
)
def test_options_of_the_command(given, message, capsys):
    assert run(["serve", str(bundled("examples/models/ctc")), *given]) == 2
    assert message in capsys.readouterr().err


async def transcript(session, at):
    form = FormData({"model": "whisper-1"})
    form.add_field("file", CLIP.read_bytes(), filename="a.flac")
    async with session.post(at + "/v1/audio/transcriptions", data=form) as response:
        assert response.status == 200
        return (await response.json())["text"]


@pytest.mark.slow
def test_the_command_serves_on_a_cluster(offline, demo, tmp_path):
    import os
    import signal
    import subprocess
    import sys

    with ray_nodes(3):
        import ray

        address = ray.get_runtime_context().gcs_address
        (tmp_path / "model").symlink_to(bundled("examples/models/ctc"))

        def started(model, *more):
            command = [
                sys.executable,
                "-m",
                "hf_ngpulm.cli",
                "serve",
                model,
                "--ray",
                address,
                "--json",
                "--port",
                "18766",
                *more,
            ]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return subprocess.Popen(command, cwd=tmp_path, **pipes)

        async def main(at):
            async with ClientSession() as session:
                return await transcript(session, at), await said(session, at, demo.clips[2])

        # A relative path is one of the command's folder.
        server = started("model", "--replicas", "2", "--max-clients", "4")
        try:
            at = json.loads(server.stdout.readline())["page"].rstrip("/")
            assert at == "http://127.0.0.1:18766" and all(asyncio.run(main(at)))
            other = started("model")
            assert "Ray Serve runs on this cluster already" in other.communicate(timeout=120)[1] and other.returncode == 2
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
            assert server.returncode == 0
        finally:
            server.kill()
        wrong = started("model", "--lm", os.fspath(tmp_path / "nowhere.arpa"))
        errors = wrong.communicate(timeout=300)[1]
        (line,) = (line for line in errors.splitlines() if line.startswith("hf-ngpulm: error"))
        assert wrong.returncode == 2 and "the replicas can't start" in line and "nowhere.arpa" in line


@pytest.mark.slow
def test_streams_start_a_second_replica(demo, offline):
    """Four streams are all that a replica takes; a fifth request waits for the second replica."""
    with ray_nodes(3):
        from ray import cloudpickle, serve

        cloudpickle.register_pickle_by_value(__import__(__name__))
        serve.start(http_options={"port": 18_767})
        serve.run(deployment(served, replicas=(1, 2), streams=4), route_prefix="/")
        at, expected = "http://127.0.0.1:18767", offline(demo.clips[2], lm_guard="off").text

        async def process(session):
            async with session.get(at + "/process") as response:
                return await response.text()

        async def main():
            async with ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                first = await process(session)
                streams = [await session.ws_connect(at + PATH, max_msg_size=0) for _ in range(4)]
                heard = [asyncio.ensure_future(until(ws, DONE)) for ws in streams]  # they answer pings only while they listen
                for ws in streams:
                    await ws.send_json(hello())
                    await ws.send_json(append(pcm(demo.clips[2])))
                fifth = asyncio.ensure_future(process(session))
                for _ in range(60):
                    await asyncio.wait([fifth], timeout=5)
                    for ws in streams:  # so that they aren't idle
                        await ws.send_json(hello())
                    if fifth.done():
                        break
                assert fifth.result() != first
                assert await said(session, at, demo.clips[2]) == expected
                for ws in streams:
                    await ws.send_json({"type": COMMIT})
                assert {found[-1]["transcript"] for found in await asyncio.gather(*heard)} == {expected}

        asyncio.run(main())
        (deployed,) = serve.status().applications["default"].deployments.values()
        assert sum(deployed.replica_states.values()) == 2
        serve.shutdown()


@pytest.mark.slow
def test_a_replica_that_dies_takes_only_its_own_streams(demo, offline):
    import os
    import signal

    with ray_nodes(3):
        from ray import cloudpickle, serve

        cloudpickle.register_pickle_by_value(__import__(__name__))
        serve.start(http_options={"port": 18_765})
        serve.run(deployment(served, replicas=2, streams=64), route_prefix="/")
        at, expected = "http://127.0.0.1:18765", offline(demo.clips[2], lm_guard="off").text

        async def stream(session, start, told):
            """What a stream hears; None if its replica died."""
            async with session.ws_connect(at + PATH, max_msg_size=0) as ws:
                await ws.send_json(hello())
                pieces = np.array_split(pcm(demo.clips[2]), 4)
                await ws.send_json(append(pieces[0]))
                told.release()
                await start.wait()
                try:
                    for piece in pieces[1:]:
                        await ws.send_json(append(piece))
                    await ws.send_json({"type": COMMIT})
                    return (await until(ws, DONE))[-1]["transcript"]
                except (ConnectionError, TypeError, aiohttp.ClientError):
                    return None

        async def main():
            async with ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                assert await transcript(session, at)
                start, told = asyncio.Event(), asyncio.Semaphore(0)
                streams = [asyncio.ensure_future(stream(session, start, told)) for _ in range(64)]
                for _ in streams:
                    await told.acquire()
                async with session.get(at + "/process") as response:
                    os.kill(int(await response.text()), signal.SIGKILL)
                start.set()
                return await asyncio.gather(*streams)

        heard = asyncio.run(main())
        alive = [text for text in heard if text is not None]
        assert 16 <= len(alive) < 64 and set(alive) == {expected}
        serve.shutdown()
