"""The pages with a microphone, in a browser whose microphone is a file: what they show is the offline transcript."""

from __future__ import annotations

import asyncio
import base64
import functools
import http.server
import json
import threading
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path

import chromium
import numpy as np
import pytest

pytest.importorskip("aiohttp")
import soundfile
import soxr
from serving_clients import alone, serving

from hf_ngpulm.cli.models import load_recogniser
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.serving import Limits, Voices
from hf_ngpulm.serving.attention import AttentionRecognizer
from hf_ngpulm.sound.files import Resampler

ROOT = Path(__file__).parents[2]
KEY = "correct-horse"
NAME = "the coal lie house"
AFTER = 2.0  # seconds of noise that follow the clip
# Keeps what a page sends of audio, as it was recorded; a busy machine's recording has gaps.
LISTEN = """
globalThis.sent = [];
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (message) {
  if (JSON.parse(message).audio) sent.push(JSON.parse(message).audio);
  return send.call(this, message);
};
"""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(chromium.find() is None, reason=chromium.MISSING)]


@contextmanager
def examples():
    """Give the address of a server of files, for pages of another origin."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=ROOT / "examples")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def in_browser(tmp_path, clip, page, fields, until, shown):
    """Speak a clip to a page: the text it shows when it is done, and the audio that it has sent."""
    rate, file = 48_000, tmp_path / "microphone.wav"
    noise = 3e-3 * np.random.default_rng(0).standard_normal(round(AFTER * rate))
    samples = np.concatenate([soxr.resample(clip, 16_000, rate), noise])
    soundfile.write(file, samples, rate, subtype="PCM_16")
    flags = (
        "use-fake-ui-for-media-stream",
        "use-fake-device-for-media-stream",
        f"use-file-for-fake-audio-capture={file}%noloop",
    )
    with chromium.Chromium(*(f"--{flag}" for flag in flags)) as browser:
        browser.open(page)
        browser.evaluate(LISTEN)
        for name, text in fields.items():
            browser.evaluate(f"document.getElementById('{name}').value = {json.dumps(text)}")
        browser.evaluate("document.getElementById('microphone').click()")
        browser.wait(f"document.getElementById('state').innerText == 'listening' && sent.length && {until}")
        browser.evaluate(f"new Promise(done => setTimeout(done, {1000 * len(samples) / rate}))")
        browser.evaluate("document.getElementById('microphone').click()")
        browser.wait("!document.getElementById('microphone').disabled && !document.getElementById('state').innerText")
        sent = b"".join(base64.b64decode(piece) for piece in browser.evaluate("sent"))
        return browser.evaluate(shown), np.frombuffer(sent, dtype="<i2")


def spoken_to(demo, tmp_path, path, fields=None, until="true", shown="", key="", **settings):
    """Serve, and have a browser speak; `path` is of the server itself, or the name of an example."""

    async def talk():
        with examples() as pages:
            server_settings = {"origins": [pages], "keys": [key] if key else []}
            async with serving(demo.recognizer(1, **settings), Limits(clients=1), **server_settings) as server:
                own = path.startswith("/")
                given = fields or {} if own else {"server": server.at.replace("http", "ws"), "key": key, **(fields or {})}
                page = f"{server.at}{path}" if own else f"{pages}/{path}"
                return await asyncio.to_thread(in_browser, tmp_path, demo.clips[1], page, given, until, shown)

    return asyncio.run(talk())


def heard(data, rate):
    """What the server hears of samples."""
    resample, samples = Resampler(rate, 16000), data.astype(np.float32) / 32768
    return np.concatenate([resample(samples), resample(samples[:0], last=True)])


def alike(text, wanted):
    """How much of a text is there; resampling changes a little, and a busy machine's recording has gaps."""
    return SequenceMatcher(a=text, b=wanted, autojunk=False).ratio()


COMPLETED = "[...document.querySelectorAll('.completed')].map(each => each.innerText).join(' ')"


@pytest.mark.parametrize("key", ["", KEY])
def test_the_example_speaks_the_realtime_protocol(demo, offline, tmp_path, key):
    """What it shows is what a stream says that hears the same, with keywords; that is the clip, as far as it was recorded."""
    likenesses = []
    while len(likenesses) < 3 and max(likenesses, default=0.0) <= 0.6:  # a busy machine's browser leaves gaps in what it hears
        text, sent = spoken_to(demo, tmp_path, "realtime.html", {"keywords": f"half speed\n{NAME}"}, shown=COMPLETED, key=key)
        sound = heard(sent, 24_000)
        assert len(sound) / 16_000 > len(demo.clips[1]) / 16_000
        assert text == alone(demo.recognizer(1), sound, {"phrases": ["half speed", NAME]})
        likenesses.append(alike(offline(sound).text, offline(demo.clips[1]).text))
    assert max(likenesses) > 0.6


def test_turns_are_completed_while_it_listens(demo, offline, tmp_path):
    text, _ = spoken_to(
        demo, tmp_path, "realtime.html", until="document.querySelector('.completed')", shown=COMPLETED, endpoint_seconds=0.6
    )
    assert alike(text, offline(demo.clips[1]).text) > 0.6


def test_the_page_of_the_server(demo, tmp_path):
    lines = "[...document.querySelectorAll('#text p:not(#current)')].map(each => each.innerText).join(' ')"
    shown = f"[{lines}, new AudioContext().sampleRate]"
    (text, rate), sent = spoken_to(demo, tmp_path, f"/#key={KEY}", {"phrases": NAME}, shown=shown, key=KEY)
    assert text and text == alone(demo.recognizer(1), heard(sent, rate), {"phrases": [NAME]})


LINES = "[...document.querySelectorAll('#text p:not(#current)')].map(each => each.innerText)"


def in_thread(recognizer, path, talk, **settings):
    """Serve, and have a browser on a page of the server do something in a thread."""

    async def served():
        async with serving(recognizer, Limits(clients=1), keys=[KEY], **settings) as server:

            def browse():
                with chromium.Chromium() as browser:
                    browser.open(f"{server.at}{path}#key={KEY}")
                    talk(browser)

            await asyncio.to_thread(browse)

    asyncio.run(served())


def choose(browser, path):
    """Give the page a file as a person would."""
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])


def test_files_and_language_models_on_the_page(demo, offline, tmp_path):
    """Each with the LM that is chosen; copied, cleared, and told what is wrong."""
    path, broken = tmp_path / "clip.flac", tmp_path / "broken.wav"
    soundfile.write(path, demo.clips[1], 16_000)
    samples, _ = soundfile.read(path, dtype="float32")
    broken.write_bytes(b"RIFF")
    texts = [
        offline(samples).text,
        offline(samples, lm=demo.other_lm).text,
        offline(samples, lm=None, lm_weight=None, num_beams=4).text,
    ]

    def talk(browser):
        browser.wait("document.getElementById('lm').options.length == 3")
        assert browser.evaluate("[...document.getElementById('lm').options].map(each => each.value)") == [
            "harbour",
            "other",
            "none",
        ]
        assert not browser.evaluate("document.getElementById('microphone').hidden")
        browser.evaluate("document.getElementById('phrases').value = '日本'")
        for number, name in enumerate(("harbour", "other", "none"), 1):
            browser.evaluate(f"document.getElementById('lm').value = '{name}'")
            choose(browser, path)
            browser.wait(f"{LINES}.length == {number} && !document.getElementById('choose').disabled")
        assert browser.evaluate(LINES) == texts
        assert "日本" in browser.evaluate("document.getElementById('unwritable').innerText")
        # A page without a window has no clipboard: first one that stands for it, then none.
        for clipboard, state, copied in (
            ("async (text) => { globalThis.copied = text }", "copied", "copied"),
            ("async () => { throw new Error() }", "selected: copy it with Ctrl-C", "getSelection().toString()"),
        ):
            browser.evaluate(f"navigator.clipboard.writeText = {clipboard}")
            browser.evaluate("document.getElementById('copy').click()")
            browser.wait(f"document.getElementById('state').innerText == '{state}'")
            assert browser.evaluate(copied).split() == " ".join(texts).split()
        browser.evaluate("document.getElementById('clear').click()")
        assert browser.evaluate(LINES) == [] and browser.evaluate("document.getElementById('current') != null")
        choose(browser, broken)
        browser.wait("document.getElementById('state').innerText.startsWith('broken.wav: broken.wav: ')")

    voices = Voices(lms={"harbour": demo.lm, "other": demo.other_lm})
    in_thread(demo.recognizer(1, lm=[demo.lm, demo.other_lm]), "/", talk, voices=voices)


def test_the_page_of_fields(demo):
    def talk(browser):
        browser.wait("document.querySelectorAll('section').length > 5")
        text = browser.evaluate("document.body.innerText")
        for shown in (
            "POST /v1/audio/transcriptions",
            "GET /v1/realtime",
            "timestamp_granularities[]",
            "from 0 to 100",
            "(required)",
        ):
            assert shown in text
        assert browser.evaluate("document.getElementById('state').innerText") == ""

    in_thread(demo.recognizer(1), "/docs", talk)


def test_the_page_of_a_model_that_hears_recordings(demo):
    model = load_recogniser(str(bundled("examples/models/canary")), "cpu")

    def talk(browser):
        browser.wait("document.getElementById('microphone').hidden")
        choose(browser, bundled("examples/speech/harbour") / "clips" / "00.flac")
        browser.wait(f"{LINES}.length == 1")
        assert len(browser.evaluate(LINES)[0].split()) > 5
        assert browser.evaluate("document.getElementById('models').hidden")

    in_thread(AttentionRecognizer(model), "/", talk)
