"""examples/space: its functions, the page, what the Hub reads of it; and in a browser, with a file as microphone."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import chromium
import numpy as np
import pytest
import soundfile
from huggingface_hub import SpaceCard

ROOT = Path(__file__).parent.parent
SPACE = ROOT / "examples" / "space"
CLIPS = ROOT / "examples" / "speech" / "harbour" / "clips"
ALONE = "set a course for the old light hherse and gohalf speed"


@pytest.fixture(scope="module")
def app():
    pytest.importorskip("gradio")
    spec = importlib.util.spec_from_file_location("space_app", SPACE / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recogniser(app):
    return app.Recogniser()


def text_of(parts):
    return " ".join(part for part, _ in parts)


@pytest.mark.slow
def test_changed_words_are_marked(app):
    assert app.marked("a red boy is her", "the red buoy is here") == (
        [("a", "changed"), ("red", None), ("boy", "changed"), ("is", None), ("her", "changed")],
        [("the", "new"), ("red", None), ("buoy", "new"), ("is", None), ("here", "new")],
    )
    assert app.marked("Get it, now!", "get it now") == ([("Get it, now!", None)], [("get it now", None)])
    assert app.marked("", "one two") == ([], [("one two", "new")])
    assert app.marked("same words", "same words") == ([("same words", None)],) * 2


def test_with_and_without(recogniser):
    clip = str(CLIPS / "00.flac")
    alone, fused = recogniser.compare(clip, "", "", 0.9, 1.5, 5)
    assert text_of(alone) == ALONE and ("lighthouse", "new") in fused
    # Text that is typed in takes the place of the language model; phrases work with none.
    alone, fused = recogniser.compare(clip, "", "the gohalf light hherse\n\nspeed\n", 1.0, 0, 5)
    assert "lighthouse" not in text_of(fused)
    alone, fused = recogniser.compare(clip, "lighthouse\n\nhalf speed\n", "", 0, 2.5, 8)
    assert "lighthouse" in text_of(fused) and "half speed" in text_of(fused)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((None, "", "", 1, 1, 5), "Record something"),
        (("clip", "", "", 0, 1, 5), "nothing to compare"),
        (("clip", "a\n" * 501, "", 1, 1, 5), "500 phrases"),
        (("clip", "a" * 201, "", 1, 1, 5), "200 characters"),
        (("clip", "", "a" * 1_000_001, 1, 1, 5), "1,000,000 characters"),
        (("short", "", "", 1, 1, 5), "0.1 seconds"),
        (("long", "", "", 1, 1, 5), "31.0 seconds"),
        (("text", "", "", 1, 1, 5), "audio"),
    ],
)
def test_what_cannot_be_compared(recogniser, given, said, tmp_path):
    name, *others = given
    if name is not None:
        path = tmp_path / f"{name}.wav"
        if name == "text":
            path.write_text("no audio")
        else:
            soundfile.write(path, [0.0] * round(16_000 * {"short": 0.1, "long": 31, "clip": 2}[name]), 16_000)
        name = str(path)
    with pytest.raises(ValueError, match=said):
        recogniser.compare(name, *others)


def test_the_page_is_built(app, recogniser):
    import gradio

    blocks = app.page(recogniser)
    labels = [block.label for block in blocks.blocks.values() if getattr(block, "label", None)]
    assert {"Speech", "Phrases, one a line", "Weight of the language model", "Without", "With"} <= set(labels)
    (endpoint,) = (each for each in blocks.fns.values() if each.api_name == "compare")
    alone, fused = endpoint.fn(str(CLIPS / "00.flac"), "", "", 0.9, 1.5, 5)
    assert text_of(alone) == ALONE != text_of(fused)
    with pytest.raises(gradio.Error, match="Record something"):
        endpoint.fn(None, "", "", 0.9, 1.5, 5)


def test_what_the_hub_reads():
    card = SpaceCard((SPACE / "README.md").read_text(encoding="utf-8"))
    data = card.data.to_dict()
    assert data["sdk"] == "gradio" and (SPACE / data["app_file"]).is_file() and len(data["short_description"]) <= 60
    needed = (SPACE / "requirements.txt").read_text()
    assert f"gradio>={data['sdk_version'].split('.')[0]}" in needed and "hf-ngpulm[audio]" in needed


@pytest.mark.slow
@pytest.mark.skipif(chromium.find() is None, reason=chromium.MISSING)
def test_in_a_browser(tmp_path):
    """A person speaks, reads both transcripts, and chooses a file with phrases then."""
    pytest.importorskip("gradio")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    samples, rate = soundfile.read(CLIPS / "00.flac")
    samples = np.concatenate([samples, np.random.default_rng(0).normal(0, 0.003, rate)])
    microphone = tmp_path / "microphone.wav"  # goes round and round
    soundfile.write(microphone, samples, rate, subtype="PCM_16")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
    command = [sys.executable, str(SPACE / "app.py"), "--port", str(port)]
    flags = (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}",
        "--window-size=1280,1000",
    )
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server:
        try:
            wait_for(port, server, tmp_path / "log")
            with chromium.Chromium(*flags) as browser:
                use(browser, f"http://127.0.0.1:{port}", 2 * samples.size / rate)
        finally:
            server.terminate()


def wait_for(port, server, log):
    for _ in range(1800):
        time.sleep(0.1)
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None, log.read_text()
    raise AssertionError(log.read_text())


def use(browser, address, seconds):
    def shown(where):
        return f"[...document.querySelectorAll('#{where} .text')].map(each => each.innerText).join(' ')"

    def press(label):
        found = f"[...document.querySelectorAll('button')].find(each => each.innerText.trim() == {json.dumps(label)})"
        browser.wait(found)
        browser.evaluate(f"{found}.click()")

    def write(where, text):
        field = f"document.querySelector('#{where} :is(textarea, input[type=number])')"
        browser.evaluate(f"{field}.value = {json.dumps(text)}, {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    browser.open(address)
    press("Record")
    browser.evaluate(f"new Promise(done => setTimeout(done, {1000 * seconds}))")
    press("Stop")
    with_lm = browser.wait(shown("with"))
    said = {"set", "a", "course", "for", "the", "old", "lighthouse", "and", "go", "half", "speed"}
    # A busy machine's recording has gaps, and the browser suppresses what it takes for noise.
    assert len(said & set(with_lm.split())) >= 5 and browser.evaluate(shown("without")) != with_lm
    for where in ("with", "without"):
        assert browser.evaluate(f"document.querySelectorAll('#{where} .highlighted').length")

    press("keep the green buoy on the starboard side")
    browser.wait("document.querySelector('#lm-weight input')")
    write("lm-weight", "0")
    write("phrase-weight", "2")
    write("phrases", "green buoy\nstarboard")
    press("Transcribe")
    found = browser.wait(f"{shown('with')}.includes('green') && {shown('with')}")
    assert "green buoy" in found and "starboard side" in found
    assert browser.evaluate(shown("without")) == "keep the green boy und the stabbered side"
