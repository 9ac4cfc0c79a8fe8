"""`make gpu` without a GPU: that it runs through, says what fails, and leaves nothing running."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import goals  # noqa: E402
import gpu  # noqa: E402
import measure  # noqa: E402

GRANDCHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_what_takes_too_long_is_killed_with_all_that_it_started(capsys):
    outcome = gpu.run_part(gpu.Part("slow", ["-c", GRANDCHILD], 60), 5)
    assert outcome.status == "not done in 5 s"
    (line,) = [line for line in outcome.lines if line.startswith("child")]
    for _ in range(50):
        if not is_alive(int(line.split()[1])):
            break
        time.sleep(0.1)
    assert not is_alive(int(line.split()[1]))


def test_a_part_that_fails_is_named_with_its_last_lines(tmp_path, capsys):
    parts = [
        gpu.Part("good", ["-c", "print('fine')"], 60),
        gpu.Part("bad", ["-c", "print('before'); raise SystemExit(3)"], 60),
        gpu.Part("mute", ["-c", ""], 60, "mute", goals.of_training),
    ]
    outcomes = [gpu.run_part(part, part.limit) for part in parts]
    capsys.readouterr()
    failed = gpu.report(parts, outcomes, tmp_path, 1.0)
    printed = capsys.readouterr().out
    assert [outcome.name for outcome in failed] == ["bad", "mute"]
    assert "bad: exit status 3" in printed and "before" in printed and "fine" not in printed
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert [part["status"] for part in kept["parts"]][:2] == ["done", "exit status 3"]


def test_limits_make_up_the_time_that_there_is(tmp_path):
    parts = gpu.parts_of(argparse.Namespace(tiny=False, out=tmp_path), tmp_path)
    assert sum(part.limit for part in parts) <= gpu.SECONDS


def test_parts_find_what_else_is_on_the_path_of_python(tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere.py").write_text("print('found')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert list(gpu.run_part(gpu.Part("elsewhere", ["-c", "import elsewhere, hf_ngpulm"], 60), 60).lines) == ["found"]


@pytest.mark.slow
def test_a_training_that_fails_is_no_success(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "train_lm.py"), "--tokens", "50", "--orders", "3", "--repeats", "1"]
    command += ["--out", str(tmp_path), "--prune", "nonsense"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and "nonsense" in done.stderr.splitlines()[-1]


def test_results_need_no_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measure.machine()["commit"] is None


def test_training_is_held_to_the_kept_times_of_the_cpu():
    assert goals.kept_training_seconds(10_000_000) == pytest.approx(10.4, abs=0.1)
    assert goals.kept_training_seconds(100_000_000) == pytest.approx(170.9, abs=0.1)
    assert 31.2 < goals.kept_training_seconds(30_000_000) < 51.3  # in proportion to either
    (goal,) = goals.of_training({"training": [{"tokens": 30_000_000, "order": 6, "cuda": {"seconds": 4.0}}]})
    assert goal.is_met and 7.8 < goal.value < 12.9


def test_transducers_are_held_to_those_without():
    def row(decoder, seconds):
        return {"model": "RNNT", "decoder": decoder, "decoder_seconds": {"32": seconds}, "encoder_seconds": {"32": 9.0}}

    rows = [row("greedy", 1.0), row("greedy + LM", 1.05), row("ALSD 6 + LM", 3.0)]
    found = goals.of_transducers({"decoders": rows})
    values = {(goal.what.split(" over")[0], goal.unit): (goal.value, goal.is_met) for goal in found}
    assert values["RNNT greedy + LM", "% more"] == (pytest.approx(0.5), True)
    assert values["RNNT greedy + LM", "x"] == (pytest.approx(1.05), False)
    assert values["RNNT ALSD 6 + LM", "% more"] == (pytest.approx(20.0), False)


@pytest.mark.slow  # minutes: an emulator does a GPU's work
def test_the_whole_command_runs_with_a_cpu_in_place_of_the_gpu(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_NGPULM")}
    environment |= {"OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--tiny"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    files = {path.name for path in tmp_path.iterdir()}
    assert "gpu.json" in files and len(files) <= 8
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert all(part["status"] == "done" for part in found["parts"])
    words = " ".join(goal["what"] for goal in found["goals"])
    for what in (
        "LM query scores",
        "CTC greedy + LM",
        "RNNT greedy + LM",
        "TDT ALSD",
        "processor in a step",
        "contexts per row",
    ):
        assert what in words
