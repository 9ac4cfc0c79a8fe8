"""hf-ngpulm stream and serve: what they print, and users' mistakes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from hf_ngpulm.cli.app import run
from hf_ngpulm.cli.models import phrases_and_entities, read_phrases
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.sound import files
from hf_ngpulm.sound.files import file_pieces, read_audio

DEMO = bundled("examples/speech/harbour")
MODEL, CLIP, LM = str(bundled("examples/models/ctc")), str(DEMO / "clips" / "00.flac"), str(DEMO / "lm.arpa.gz")
CUT = ["--chunk", "0.64", "--right", "0.32"]


def test_stream_prints_utterances_and_json_what_grows(capsys, monkeypatch):
    assert run(["stream", MODEL, CLIP, "--no-wait", "--lm", LM, "--lm-weight", "1", "--num-beams", "8"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("set a course for the old")
    assert run(["stream", MODEL, CLIP, "--no-wait", "--json", *CUT]) == 0
    *partials, final = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert len(partials) >= 4 and all(event["type"] == "partial" for event in partials)
    assert partials[0]["end"] == 0.64 and partials[-1]["text"] == final["text"]
    assert [word["text"] for word in final["words"]] == final["text"].split() and final["type"] == "final"
    assert run(["stream", MODEL, CLIP, "--no-wait", "--phrases", "coal lie house", "--phrase-weight", "20", *CUT]) == 0
    assert "coal" in capsys.readouterr().out and "coal" not in final["text"]
    assert run(["stream", MODEL, CLIP, "--no-wait", "--phrases", "gohalf", "--phrase-weight", "0", *CUT]) == 0
    assert capsys.readouterr().out.strip() == final["text"]  # a weight of 0 isn't the default one
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert run(["stream", MODEL, CLIP, "--no-wait", *CUT]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\x1b[1m") >= 4 and final["text"] in shown  # what can no longer change is bold


def test_silence_between_utterances_gives_a_line_for_each(capsys, tmp_path):
    samples = read_audio(CLIP, 16000)
    quiet = 1e-3 * np.random.default_rng(0).standard_normal(40000)
    soundfile.write(tmp_path / "two.wav", np.concatenate([samples, quiet, samples]), 16000)
    assert run(["stream", MODEL, str(tmp_path / "two.wav"), "--no-wait", *CUT, "--endpoint", "0.8"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run(["stream", MODEL, str(tmp_path / "two.wav"), "--no-wait", *CUT, "--endpoint", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_files_are_read_in_pieces(tmp_path, monkeypatch):
    """Resampled and mixed as a whole; in real time a piece comes when a microphone would have heard it."""
    times = np.arange(44100) / 44100
    stereo = np.stack([0.2 * np.sin(2 * np.pi * 440 * times), 0.1 * np.sin(2 * np.pi * 1000 * times)], 1)
    soundfile.write(tmp_path / "stereo.wav", stereo, 44100)
    whole = read_audio(tmp_path / "stereo.wav", 16000)
    pieces = list(file_pieces(tmp_path / "stereo.wav", 16000))
    assert len(pieces) == 11 and len(np.concatenate(pieces)) == len(whole)
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=2e-3)
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(files.time, "sleep", sleep)
    for _ in file_pieces(tmp_path / "stereo.wav", 16000, seconds=0.25, in_real_time=True):
        now[0] += 0.05  # what decoding takes
    assert slept == pytest.approx([0.25, 0.2, 0.2, 0.2])


def test_phrases_are_texts_or_files_of_them(tmp_path):
    (tmp_path / "names.txt").write_text("anna smith\n\n  bob \n", encoding="utf-8")
    assert read_phrases(["coast guard", str(tmp_path / "names.txt")]) == ["coast guard", "anna smith", "bob"]
    assert read_phrases(None) == []
    assert phrases_and_entities(["a", "from-entities", "b"]) == (["a", "b"], True)
    assert phrases_and_entities(None) == ([], False)
    with pytest.raises(FileNotFoundError, match=r"nobody\.txt: no such file"):
        read_phrases(["anna smith", "nobody.txt"])
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(ValueError, match="holds no phrases"):
        read_phrases([str(tmp_path / "none.txt")])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give an audio file or --microphone"),
        ([CLIP, "--microphone"], "not both"),
        (["--microphone", "--no-wait"], "--no-wait is for files"),
        ([CLIP, "--lm-weight", "1"], "--lm-weight needs a language model; add --lm"),
        ([CLIP, "--phrase-weight", "1"], "--phrase-weight needs phrases"),
        ([CLIP, "--lookahead", "1"], "num_lookahead_tokens"),
        (["nowhere.flac", "--no-wait"], "no such audio file"),
        ([LM, "--no-wait"], "can't be read as audio"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert run(["stream", MODEL, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err and printed.err.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_serve_until_it_is_told_to_stop():
    aiohttp = pytest.importorskip("aiohttp")
    from serving_clients import COMMIT, DONE, append, hello, pcm, until

    command = [sys.executable, "-m", "hf_ngpulm.cli", "serve", MODEL, "--port", "0", "--json", "--max-clients", "2", *CUT]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )

    async def talk(at):
        async with aiohttp.ClientSession() as session, session.ws_connect(at) as ws:
            await ws.send_json(hello())
            await ws.send_json(append(pcm(read_audio(CLIP, 16000))))
            await ws.send_json({"type": COMMIT})
            return (await until(ws, DONE))[-1]["transcript"]

    try:
        at = json.loads(server.stdout.readline())["realtime"]
        assert "course" in asyncio.run(talk(at))
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
        assert (server.returncode, errors) == (0, "")
    finally:
        server.kill()


@pytest.mark.parametrize(
    "arguments, asked, status",
    [
        ([], {"Host": "evil.example"}, 403),
        (["--origin", "https://friend.example"], {"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        (["--origin", "https://friend.example"], {"Host": "evil.example", "Origin": "https://friend.example"}, 403),
        (["--origin", "https://friend.example"], {"Host": "friend.example"}, 200),
        (["--origin", "https://friend.example"], {"Host": "localhost:80", "Origin": "https://friend.example"}, 200),
        (["--origin", "*"], {"Host": "evil.example"}, 403),
        (["--host", "0.0.0.0"], {"Host": "any.example"}, 200),
    ],
)
def test_serve_checks_what_it_is_called(arguments, asked, status, monkeypatch):
    """Also where other pages may connect: one that has its name lead to this machine (DNS rebinding) mustn't."""
    test_utils = pytest.importorskip("aiohttp.test_utils")
    decoder = SimpleNamespace(max_streams=64)

    class Recognizer(SimpleNamespace):
        def __len__(self):
            return 0

    recognizer = Recognizer(
        decoder=decoder, latency_seconds=2.0, chunk_seconds=1.0, frame_seconds=0.08, context=None, tokenizer=None
    )
    recognizer.keep_contexts = lambda most: None
    statuses = []

    async def ask(app, *_):
        async with test_utils.TestClient(test_utils.TestServer(app)) as client:
            response = await client.get("/health", headers=asked)
            statuses.append(response.status)

    monkeypatch.setattr("hf_ngpulm.cli.serve.load_serving", lambda *_, **__: recognizer)
    monkeypatch.setattr("hf_ngpulm.cli.serve.warm_up", lambda _: None)
    monkeypatch.setattr("hf_ngpulm.cli.library.listen", ask)
    assert run(["serve", MODEL, *arguments]) == 0
    assert statuses == [status]


def test_serve_hands_on_who_may_come(monkeypatch):
    given = []
    monkeypatch.setattr("hf_ngpulm.cli.serve.load_serving", lambda *_, **__: None)
    monkeypatch.setattr("hf_ngpulm.cli.serve.warm_up", lambda _: None)
    monkeypatch.setattr("hf_ngpulm.cli.library.make_app", lambda _, *limits_and_access, **__: given.extend(limits_and_access))
    monkeypatch.setattr("hf_ngpulm.cli.library.listen", lambda *_: asyncio.sleep(0))
    assert (
        run(
            [
                "serve",
                MODEL,
                "--max-per-address",
                "3",
                "--max-phrase-bytes",
                "7",
                "--proxy",
                "10.0.0.0/8",
                "--proxy",
                "192.0.2.7",
            ]
        )
        == 0
    )
    limits, access = given
    assert (limits.clients_per_address, limits.phrase_bytes) == (3, 7)
    assert access.proxies == ["10.0.0.0/8", "192.0.2.7"]


def test_serve_on_an_address_that_is_taken(capsys):
    pytest.importorskip("aiohttp")
    assert run(["serve", MODEL, "--host", "256.0.0.1", "--port", "0", "--max-clients", "1"]) == 2
    assert capsys.readouterr().err.startswith("hf-ngpulm: error: ")
