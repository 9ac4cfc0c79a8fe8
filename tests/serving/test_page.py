"""The page's audio worklet, run by Node.js where there is one."""

import json
import shutil
import subprocess

import pytest

from hf_ngpulm.serving.app import PAGE

HARNESS = """
const sent = [];
globalThis.sampleRate = 1000;
globalThis.AudioWorkletProcessor = class {
  constructor() { this.port = { postMessage: (data) => sent.push(data === "end" ? data : [...new Int16Array(data)]) }; }
};
globalThis.registerProcessor = (name, Kind) => { globalThis.Kind = Kind; };
"""
TALK = """
const pieces = new Kind();
const alive = [];
alive.push(pieces.process([[new Float32Array(150).fill(0.5)]]), pieces.process([[]]));
pieces.port.onmessage({ data: "end" });
alive.push(pieces.process([[new Float32Array(300)]]));  // a stopped microphone goes on as silence
pieces.port.onmessage({ data: "end" });
console.log(JSON.stringify({ sent, alive }));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_nothing_is_sent_after_the_end():
    """What comes after the commit would be the begin of another item."""
    script = HARNESS + (PAGE / "worklet.js").read_text(encoding="utf-8") + TALK
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found == {"sent": [[16384] * 100, [16384] * 50, "end"], "alive": [True, True, False]}
