"""A fork while another thread composes: the child finds what the parent does, and waits for nobody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, threading, torch
from lazy_models import random_words
from hf_ngpulm import CTCDecoder, LogLinear
from hf_ngpulm.lexicon import lazy_states

static, lazy = random_words(list(range(1, 30)), order=3)
logits = 2 * torch.randn(3, 100, 30, generator=torch.Generator().manual_seed(0))


def made(lm):
    several = LogLinear([lm, static], [0.5, 0.5])
    return [CTCDecoder(None, models, 0.6, blank_id=0, num_beams=6) for models in (lm, several)]


def found(decoders):
    return [[(h.token_ids, h.score) for row in decoder(logits) for h in row] for decoder in decoders]


def compose():
    while True:
        lazy.forget()
        for decoder in made(lazy):
            decoder(logits)


forget = lazy.automaton.forget
expected, decoders = found(made(static)), made(lazy)
lazy.forget = lambda: len(lazy.automaton._searches) or forget()
threading.Thread(target=compose, daemon=True).start()
signal.alarm(100)
held = 0
for _ in range(20):
    while lazy_states.LOCK.acquire(blocking=False):  # until the other thread has it
        lazy_states.LOCK.release()
    held += 1
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # rather than wait for ever
        os._exit(found(decoders) != expected)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"fork {held}: status {status}"
print(held, "forks")
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_while_another_thread_composes():
    support = Path(__file__).parents[1] / "support"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(support)])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "20 forks\n", done.stderr
