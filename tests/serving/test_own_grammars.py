"""Grammars that clients send, in all formats: understood, kept, refused within limits, and no other client waits meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("hassil")
from serving_clients import DONE, until, update
from test_realtime import appended, connected, pcm24
from test_served_grammars import SENTENCE, SLOTS, pairs, run_with
from test_transcriptions import ask, wav

import hf_ngpulm
from hf_ngpulm import Grammar
from hf_ngpulm.grammar.trial import Cost, Trial
from hf_ngpulm.serving import Limits
from hf_ngpulm.serving.limits import PhraseBudget
from hf_ngpulm.serving.own_grammars import KEPT, OwnGrammars
from hf_ngpulm.serving.problems import Problem

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
JSGF = """#JSGF V1.0;
grammar harbour;
public <tell> = tell the (harbour master {who=hm} | mate {who=m}) we will be <minutes> minutes late;
<minutes> = (ten {minutes=10} | twenty {minutes=20});
"""
TEMPLATES = {
    "intents": {"tell": {"data": [{"sentences": ["tell the {who} we will be {1..60:minutes} minutes late"]}]}},
    "lists": {"who": {"values": [{"in": "harbour master", "out": "hm"}]}},
}
RHINO = {"context": {
    "expressions": {"tell": ["tell the $who:who we will be $pv.TwoDigitInteger:minutes minutes late"]},
    "slots": {"who": ["harbour master"]},
}}  # fmt: skip
YAML = """
intents:
  tell:
    data:
      - sentences: ["tell the {who} we will be {1..60:minutes} minutes late"]
lists:
  who: {values: [{in: harbour master, out: hm}]}
"""
HOSTILE = "#JSGF V1.0;\ngrammar a;\npublic <a> = (a|b)* a " + " ".join(["(a|b)"] * 18) + ";"


def run_own(own, talk):
    own.start()
    try:
        asyncio.run(talk())
    finally:
        own.stop()


@pytest.mark.slow
def test_recordings_and_live_audio_follow_them(demo):
    audio = wav(hf_ngpulm.demo_recording())

    async def talk(server):
        for text in (JSGF, json.dumps(TEMPLATES), YAML):
            told = await ask(server, audio, grammar=text)
            assert told["understood"] and told["intent"] == "tell" and told["text"] == SENTENCE
            assert [(name, int(value) if name == "minutes" else value) for name, value in pairs(told)] == SLOTS
        told = await ask(server, audio, grammar=json.dumps(RHINO))
        assert pairs(told) == [("who", "harbour master"), ("minutes", 20)]
        ws, _ = await connected(server)
        await ws.send_json(update(transcription={"grammar": TEMPLATES}))  # here as an object, too
        for message in appended(pcm24(hf_ngpulm.demo_recording())):
            await ws.send_json(message)
        await ws.send_json({"type": "session.update", "session": {"type": "transcription"}})  # which leaves the grammar
        await ws.send_json({"type": "input_audio_buffer.commit"})
        done = (await until(ws, DONE))[-1]
        assert done["understood"] and done["intent"] == "tell" and pairs(done) == SLOTS
        await ws.send_json(update(transcription={"grammar": JSGF.replace("<minutes>", "<hours>", 1)}))
        error = (await until(ws, "error"))[-1]["error"]
        assert error["param"] == "grammar" and "JSGF:3:" in error["message"] and "<hours> is unknown" in error["message"]

    run_with(demo, talk)


@pytest.mark.slow
def test_hostile_ones_are_refused_while_others_are_served(demo):
    audio = wav(hf_ngpulm.demo_recording())
    big = "#JSGF V1.0;\n" + "//" + "x" * 5000

    async def talk(server):
        await ask(server, audio, grammar=JSGF)  # the process has started
        attacks = [asyncio.create_task(ask(server, audio, 400, grammar=f"{HOSTILE} // {number}")) for number in range(3)]
        served = 0
        while not all(attack.done() for attack in attacks):
            begin = time.monotonic()
            assert (await ask(server, audio, grammar="harbour"))["understood"] and time.monotonic() - begin < 20
            async with server.session.get(server.at + "/health") as response:
                assert response.status == 200
            served += 1
        assert served > 1
        for attack in attacks:
            error = attack.result()["error"]
            assert error["param"] == "grammar" and "takes more than 0.5 s" in error["message"]
        for wrong, why in (
            (big, f"a grammar may have at most 4096 bytes, got {len(big)}"),
            ("{" * 2000, "isn't valid YAML"),
            ("{}", "neither JSGF nor YAML|no sentences"),
        ):
            error = (await ask(server, audio, 400, grammar=wrong))["error"]
            assert error["param"] == "grammar" and any(each in error["message"] for each in why.split("|")), error

    run_with(demo, talk, limits=Limits(clients=2, grammar_bytes=4096, grammar_seconds=0.5))


def test_they_are_kept_by_content_within_bounds(demo, monkeypatch):
    recognizer, limits = demo.recognizer(1), Limits(clients=1, grammar_parts=1000)
    tried = []

    def counted(self, text):
        tried.append(text)
        assert threading.current_thread().name == "hf-ngpulm-contexts"
        return Cost(900, 0.0)

    monkeypatch.setattr(Trial, "__call__", counted)
    budget = PhraseBudget(limits, clock=lambda: len(tried) * 1000.0)  # full each time

    def text(number):
        return f"#JSGF V1.0;\ngrammar a;\npublic <a{number}> = b;"

    async def talk():
        first = await own.grammar(text(0), budget)
        assert isinstance(first, Grammar) and await own.grammar(text(0), budget) is first and len(tried) == 1
        same = await asyncio.gather(*(own.grammar(text(1), budget) for _ in range(4)))
        assert len(tried) == 2 and all(each is same[0] for each in same)
        for number in range(2, 7):
            await own.grammar(text(0), budget)
            await own.grammar(text(number), budget)
        assert await own.grammar(text(0), budget) is first and len(tried) == 7  # it was used last, so others had to go
        assert len(own._kept) == 5 and await own.grammar(text(1), budget) is not same[0]
        with pytest.raises(Problem, match="unknown"):
            await own.grammar("#JSGF V1.0;\ngrammar a;\npublic <a> = <b>;", budget)
        with pytest.raises(Problem, match="unknown"):
            await own.grammar("#JSGF V1.0;\ngrammar a;\npublic <a> = <b>;", budget)
        assert len(tried) == 9
        for number in range(KEPT + 10):
            with pytest.raises(Problem):
                await own.grammar(f"#JSGF {number}", budget)
        assert len(own._kept) == KEPT

    own = OwnGrammars(recognizer, limits)
    run_own(own, talk)


def test_a_client_waits_for_its_own_budget(monkeypatch):
    """Compiling is charged by the seconds that it took, so one client can't take all of them."""
    recognizer = SimpleNamespace(tokenizer=None, context=lambda _, grammar: None)
    limits = Limits(grammar_seconds=2.0)
    monkeypatch.setattr(Trial, "__call__", lambda self, text: Cost(1, 2.0))
    waited = []

    async def sleep(seconds, real=asyncio.sleep):
        waited.append(seconds)
        await real(0)

    async def talk():
        budget = PhraseBudget(limits, clock=lambda: 0.0)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        for number in range(3):
            await own.grammar(f"#JSGF V1.0;\ngrammar a;\npublic <a{number}> = b;", budget)

    own = OwnGrammars(recognizer, limits)
    run_own(own, talk)
    assert waited[0] == 0 and waited[1] > 0 and waited[2] > waited[1] >= 0.001


def test_a_client_that_leaves_while_its_grammar_compiles_pays_for_it(monkeypatch):
    """Otherwise it could have one after the other compiled, for nothing."""
    recognizer = SimpleNamespace(tokenizer=None, context=lambda _, grammar: None)
    limits, begun, ends = Limits(grammar_seconds=2.0), threading.Event(), threading.Event()

    def compiling(self, text):
        begun.set()
        assert ends.wait(20)
        return Cost(1, 2.0)

    monkeypatch.setattr(Trial, "__call__", compiling)

    async def talk():
        budget = PhraseBudget(limits, clock=lambda: 0.0)
        asked = asyncio.create_task(own.grammar(JSGF, budget))
        assert await asyncio.to_thread(begun.wait, 20)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        ends.set()
        assert budget.take(0.0) > 0

    own = OwnGrammars(recognizer, limits)
    run_own(own, talk)
