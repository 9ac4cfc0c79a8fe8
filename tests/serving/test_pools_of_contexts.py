"""The thread that makes what streams follow of clients' phrases."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from hf_ngpulm.serving.contexts import ContextMaker


@contextlib.contextmanager
def making(make):
    maker = ContextMaker(make)
    maker.start()
    try:
        yield maker
    finally:
        maker.stop()


def test_short_lists_do_not_wait_for_the_long_ones_of_others():
    begun, go, made = threading.Event(), threading.Event(), []

    def make(name):
        begun.set()
        go.wait(10)
        made.append(name)
        return name.upper()

    async def ask(maker):
        asked = [asyncio.create_task(maker.of({"name": "first"}, 1.0))]
        while not begun.is_set():
            await asyncio.sleep(0.01)
        names = [("long a", 1.0), ("long b", 1.0), ("short a", 0.1), ("short b", 0.1), *((f"tiny {n}", 0.01) for n in range(3))]
        for name, cost in names:
            asked.append(asyncio.create_task(maker.of({"name": name}, cost)))
            await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*asked)

    with making(make) as maker:
        found = asyncio.run(ask(maker))
    assert made == ["first", "tiny 0", "tiny 1", "tiny 2", "short a", "short b", "long a", "long b"]
    assert found[:3] == ["FIRST", "LONG A", "LONG B"]


def test_long_lists_are_not_overtaken_for_ever():
    begun, go, made = threading.Event(), threading.Event(), []

    def make(name):
        begun.set()
        go.wait(10)
        time.sleep(0.02)  # in which the other client asks again
        made.append(name)

    async def again_and_again(maker):
        while "long" not in made and len(made) < 100:
            await maker.of({"name": "short"}, 0.3)

    async def ask(maker):
        first = asyncio.create_task(maker.of({"name": "first"}, 1.0))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        asked = [first, asyncio.create_task(maker.of({"name": "long"}, 1.0))]
        asked += [asyncio.create_task(again_and_again(maker)) for _ in range(2)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*asked)

    with making(make) as maker:
        asyncio.run(ask(maker))
    assert made.index("long") <= 8  # after as much as it costs itself of each of the two others


def test_what_nobody_waits_for_is_not_made():
    begun, go, made = threading.Event(), threading.Event(), []

    def make(name):
        begun.set()
        go.wait(10)
        made.append(name)

    async def ask(maker):
        asked = [asyncio.create_task(maker.of({"name": name}, 1.0)) for name in "abc"]
        while not begun.is_set():
            await asyncio.sleep(0.01)
        for task in asked[:2]:  # the first is being made, the second waits
            task.cancel()
        await asyncio.gather(*asked[:2], return_exceptions=True)
        go.set()
        await asked[2]

    with making(make) as maker:
        asyncio.run(ask(maker))
    assert made == ["a", "c"]


def test_errors_go_to_who_asked():
    def make(name):
        if name == "bad":
            raise ValueError("bad phrases")
        return name

    async def ask(maker):
        with pytest.raises(ValueError, match="bad phrases"):
            await maker.of({"name": "bad"}, 1.0)
        return await maker.of({"name": "good"}, 1.0)

    with making(make) as maker:
        assert asyncio.run(ask(maker)) == "good"


def test_a_recogniser_keeps_so_many_contexts(demo):
    """Clients that change their phrases all the time would fill the memory."""
    recognizer = demo.recognizer(1)
    recognizer.keep_contexts(3)
    sid = recognizer.open()
    fusion = recognizer.decoder.decoder.fusion
    for number in range(10):
        recognizer.set_context(sid, recognizer.context([f"harbour {'abcdefghij'[number]}"]))
        recognizer.push(sid, demo.clips[0][:1600])
        recognizer.step()
        assert len(fusion.contexts._kept.made) <= 3
        assert all(len([key for key in pool.places if isinstance(key, str)]) <= 4 for pool in fusion._pools.values())
    assert len(fusion.contexts._kept.made) == 3
    recognizer.discard(sid)
