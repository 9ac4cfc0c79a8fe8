"""Grammars on the Hub: the real client in a fresh interpreter, against the stand-in of `hub_server.py`."""

from __future__ import annotations

import json

import pytest
from hub_server import HubServer

from hf_ngpulm.common.bundled import bundled

CODE = """
import json
from hf_ngpulm import Grammar
from hf_ngpulm.grammar.expressions import List, Sequence, Slot

grammar = Grammar({"go": Sequence("go to", Slot("place", List("places")))}, {"places": {"the harbour": 1, "bed": 2}})
url = grammar.push_to_hub("alice/orders")
back = Grammar.from_pretrained("alice/orders")
try:
    Grammar.from_pretrained("alice/nothing")
except FileNotFoundError as error:
    failed = str(error)
print(json.dumps([url, back.reading("Go to bed").slots[0].value, back.lists == grammar.lists, failed]))
"""


@pytest.mark.slow
def test_they_are_pushed_and_pulled(tmp_path):
    with HubServer(tmp_path / "hub") as hub:
        done = hub.run(CODE, PYTHONPATH=str(bundled("hf_ngpulm").parent))
        assert done.returncode == 0, done.stderr
        url, value, are_equal, failed = json.loads(done.stdout.splitlines()[-1])
        assert "alice/orders" in url and value == 2 and are_equal
        assert "neither a folder nor a repo of the Hub with a grammar.json" in failed
        assert "grammar.json" in hub.files("alice/orders")
