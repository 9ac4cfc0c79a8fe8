"""`grammar=` for live audio: the recogniser and `hf-ngpulm stream`, on bundled models and a bundled recording."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

import hf_ngpulm
from hf_ngpulm import Grammar
from hf_ngpulm.cli.app import run
from hf_ngpulm.cli.models import load_streaming
from hf_ngpulm.cli.options import Chunks, Decoding
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.grammar.expressions import Number, Optional, Sequence, Slot

TELL = Sequence("tell the", Slot("who", ["harbour master", "first mate"]), "we will be", Slot("minutes", Number(1, 60)),
                "minutes late", Optional("please"))  # fmt: skip
GRAMMAR = Grammar({"tell": TELL, "sail": ["drop the anchor", "start the engine"]})
OTHER = Grammar({"sail": ["drop the anchor", "start the engine"]})
SLOTS = {"who": "harbour master", "minutes": 20}


@pytest.fixture(scope="module", params=["ctc", "tdt"])
def recognizer(request):
    chunks = Chunks(0.32, 30, 0.32, endpoint_seconds=1.6)
    return load_streaming(str(bundled("examples/models") / request.param), None, Decoding(), chunks, 4)


def followed(recognizer, sid, audio):
    """Yield the partial result of each step, while audio arrives."""
    for at in range(0, len(audio), 1600):
        recognizer.push(sid, audio[at : at + 1600])
        yield from recognizer.step().values()


def test_a_command_is_understood_and_ends_before_its_pause(recognizer):
    audio = np.concatenate([hf_ngpulm.demo_recording(), np.zeros(3 * 16000, dtype=np.float32)])
    plain, sid = recognizer.open(), recognizer.open(grammar=GRAMMAR)
    ends, seen = {}, []
    for at in range(0, len(audio), 1600):
        for each in {plain, sid} - ends.keys():
            recognizer.push(each, audio[at : at + 1600])
        for each, partial in recognizer.step().items():
            if each == sid:
                seen.append({slot.name: slot.value for slot in partial.slots})
            if partial.endpoint:
                ends.setdefault(each, partial.frames)
    assert ends[sid] * recognizer.frame_seconds <= ends[plain] * recognizer.frame_seconds - 0.6
    (meant,) = recognizer.reset(sid)
    assert meant.understood and meant.intent == "tell" and {slot.name: slot.value for slot in meant.slots} == SLOTS
    assert {"who": "harbour master"} in seen and seen[-1] == SLOTS
    recognizer.set_grammar(sid, OTHER)
    recognizer.push(sid, hf_ngpulm.demo_recording())
    (meant,) = recognizer.close(sid)
    assert not meant.understood and meant.text == meant.free_text and not meant.slots
    recognizer.discard(plain)


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_switch_in_silence_begins_an_utterance(recognizer, is_silent, monkeypatch):
    """These small models hear a word in silence, so here it is said what was heard."""
    sid = recognizer.open(grammar=OTHER)
    for _ in followed(recognizer, sid, np.zeros(2 * 16000, dtype=np.float32)):
        pass
    assert recognizer.decoder.has_heard(sid)
    monkeypatch.setattr(recognizer.decoder, "has_heard", lambda sid: not is_silent)
    recognizer.set_grammar(sid, GRAMMAR)
    assert (recognizer.utterance_begin(sid) > 1) == is_silent
    recognizer.discard(sid)


def test_the_command(tmp_path, capsys):
    rule = "tell the (harbour master {who=hm} | mate {who=m}) we will be twenty minutes late"
    (tmp_path / "a.jsgf").write_text(f"#JSGF V1.0;\ngrammar harbour;\npublic <tell> = {rule};\n")
    soundfile.write(tmp_path / "a.wav", hf_ngpulm.demo_recording(), 16000)
    command = ["stream", str(bundled("examples/models/ctc")), str(tmp_path / "a.wav"), "--no-wait"]
    run([*command, "--grammar", str(tmp_path / "a.jsgf"), "--json"])
    *partials, final = map(json.loads, capsys.readouterr().out.splitlines())
    assert final["understood"] and [(slot["name"], slot["value"]) for slot in final["slots"]] == [("who", "hm")]
    assert [each["slots"] for each in partials][-1][0]["value"] == "hm" and partials[-1]["intent"] == "tell"
    run([*command, "--grammar", str(tmp_path / "a.jsgf"), "--grammar-mode", "strict"])
    assert "tell(who='hm'), confidence 1.00" in capsys.readouterr().out
    assert run([*command, "--sensitivity", "0.5"]) == 2
    assert "--sensitivity" in capsys.readouterr().err
