"""The examples run as they are written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_ngpulm import NGramLM
from hf_ngpulm.rescoring import load_rescorer

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("transcribe_with_lm.py", "with LM:"),
        pytest.param("query_lm.py", "after 'call the'", marks=pytest.mark.slow),
        pytest.param("train_lm.py", "pruned to ", marks=pytest.mark.slow),
        pytest.param("boost_phrases.py", "green buoy", marks=pytest.mark.slow),
        pytest.param("stream.py", "final: ", marks=pytest.mark.slow),
    ],
)
def test_example_runs(script, expected):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@pytest.mark.slow
def test_a_source_domains_model_of_a_decoder(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    lm, source = ROOT / "examples/speech/harbour/lm", tmp_path / "source"
    script = [ROOT / "examples/sample_source_lm.py", ROOT / "examples/models/canary", lm, source]
    command = [sys.executable, *map(str, script), "--sentences", "60", "--batch-size", "40", "--longest", "9"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    made = NGramLM.from_pretrained(source)
    assert made.vocab_size == NGramLM.from_pretrained(lm).vocab_size and made.num_ngrams[3] > 50


@pytest.mark.slow
def test_a_small_causal_language_model(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    script, text = ROOT / "examples/train_causal_lm.py", ROOT / "examples/speech/harbour_sentences.txt"
    size = ["--epochs", "2", "--size", "64", "--layers", "1", "--vocab-size", "500"]
    command = [sys.executable, str(script), str(text), "--output", str(tmp_path), *size]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = (float(line.split()[-3]) for line in done.stdout.splitlines())
    assert second < first
    said, reversed_words = text.read_text().splitlines()[0], " ".join(text.read_text().splitlines()[0].split()[::-1])
    ((more, less),) = load_rescorer(tmp_path).scores([[said, reversed_words]])
    assert more > less
