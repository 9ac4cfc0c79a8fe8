"""Several processes: each recording exactly once, figures of one process, and nothing lost or hanging when one is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.common.launch import rank_and_size
from hf_ngpulm.evaluation import read_results
from hf_ngpulm.evaluation.processes import Parts, Watch, WorkerLostError

DEMO = bundled("examples/speech/harbour")
MODEL = str(bundled("examples/models/ctc"))
OPTIONS = ["--batch-size", "2", "--device", "cpu", "--json"]
PROGRAM = "import sys; from hf_ngpulm.cli.app import run; sys.exit(run(sys.argv[1:]))"


def manifest(path, copies):
    clips = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()]
    lines = [
        {"id": f"{copy}-{i}", "audio": str(DEMO / clip["audio"]), "text": clip["text"]}
        for copy in range(copies)
        for i, clip in enumerate(clips[:8])
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path), len(lines)


def started(rank, size, *arguments):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def written(output, rank):
    """Recordings that a process has put into its file."""
    path = Path(f"{output}.parts") / f"{rank:05}.jsonl"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def killed_after(process, output, rank, count):
    """Kill a process once it has done some recordings; how many it had done by then."""
    while written(output, rank) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return written(output, rank)


def facts(path):
    """What results say that no clock has a part in."""
    return [(u.id, u.reference, u.hypothesis, u.score, u.audio_seconds) for u in read_results(path).utterances]


@pytest.mark.slow
def test_two_processes_one_of_which_is_killed(tmp_path, capsys):
    data, count = manifest(tmp_path / "m.jsonl", 16)
    output = str(tmp_path / "two.jsonl")
    command = ["evaluate", MODEL, data, *OPTIONS, "--output", output]
    processes = [started(rank, 2, *command) for rank in range(2)]
    try:
        done = killed_after(processes[1], output, 1, 4)
        assert done < count / 2, "the process was done before it could be killed"
        _, errors = processes[0].communicate(timeout=300)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[0].returncode == 1 and not os.path.exists(output)
    (line,) = (line for line in errors.splitlines() if "error" in line)
    assert "process 1 has died" in line and "run the same command again" in line
    kept = written(output, 0) + written(output, 1)
    assert count / 2 <= kept < count
    # The rest in one process.
    assert run(command) == 0
    (figures,) = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert not os.path.exists(f"{output}.parts")
    alone = str(tmp_path / "one.jsonl")
    assert run([*command[:-1], alone]) == 0
    (expected,) = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert facts(output) == facts(alone) and len({u.id for u in read_results(output).utterances}) == count
    names = ("utterances", "wer", "wer_interval", "cer", "substitutions", "deletions", "insertions")
    assert {name: figures[name] for name in names} == {name: expected[name] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_accelerate_launch_with_a_kill(tmp_path, victim):
    data, count = manifest(tmp_path / "m.jsonl", 40)
    output = str(tmp_path / "two.jsonl")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes"]
    command = ["-m", "hf_ngpulm.cli", "evaluate", MODEL, data, *OPTIONS]

    def launched(size, path):
        port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
        return subprocess.Popen(
            [*launch, str(size), "--main_process_port", str(port), *command, "--output", path],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip

    first = launched(2, output)
    while written(output, victim) < 4:
        assert first.poll() is None, first.communicate()
        time.sleep(0.005)
    os.kill(_children(first.pid)[victim], signal.SIGKILL)
    first.communicate(timeout=300)
    assert first.returncode != 0 and not os.path.exists(output)
    kept = {rank: written(output, rank) for rank in range(2)}
    assert 0 < sum(kept.values()) < count
    again = launched(2, output)
    out, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    alone = str(tmp_path / "one.jsonl")
    assert run([*command[2:], "--output", alone]) == 0
    assert facts(output) == facts(alone)
    (figures,) = (json.loads(line) for line in out.splitlines() if line.startswith("{"))
    assert figures["utterances"] == count and figures["wer"] == read_results(alone).summary()["wer"]


def _children(pid):
    """Processes of the launcher, by their ranks."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            environment = dict(
                entry.split("=", 1) for entry in folder.joinpath("environ").read_text().split("\0") if "=" in entry
            )
        except (OSError, ValueError):
            continue
        if parent == pid and "LOCAL_RANK" in environment:
            found[int(environment["LOCAL_RANK"])] = int(folder.name)
    return found


def test_output_is_needed(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(["evaluate", MODEL, str(DEMO / "clips.jsonl")]) == 2
    assert "--output" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="RANK should be a number below WORLD_SIZE"):
        rank_and_size()
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("PMI_RANK", "1")
    assert rank_and_size() == (1, 2)


def test_a_share_of_nothing_hangs_nobody(tmp_path, monkeypatch, capsys):
    """One batch for two processes: the second has nothing to do, and ends before or after the first."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    command = ["evaluate", MODEL, str(DEMO / "clips.jsonl"), "--limit", "2", *OPTIONS, "--output"]
    for order in ((1, 0), (0, 1)):
        output = str(tmp_path / f"{order[0]}.jsonl")
        for rank in order:
            monkeypatch.setenv("RANK", str(rank))
            assert run([*command, output]) == 0
            out = capsys.readouterr().out
            assert bool(out) == (rank == 0)
        assert len(read_results(output).utterances) == 2 and not os.path.exists(f"{output}.parts")


def test_a_file_is_one_process_s(tmp_path):
    first, second = Parts(tmp_path / "r.jsonl", {"a": 1}), Parts(tmp_path / "r.jsonl", {"a": 1})
    first.write([{"number": 0}])
    with pytest.raises(ValueError, match="another process is writing"):
        second.write([{"number": 1}])
    first.close()
    second.write([{"number": 1}])
    assert [record["number"] for record in second.found()] == [0, 1]
    second.write([{"number": 2}])
    assert [record["number"] for record in second.found()] == [2]  # what is new
    second.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_that_was_cut_short_is_dropped(tmp_path, cut):
    parts = Parts(tmp_path / "r.jsonl", {"a": 1})
    parts.write([{"number": 0}])
    whole = parts.path.read_bytes()
    parts.write([{"number": 1, "hypothesis": "a b c"}])
    parts.close()
    last = parts.path.read_bytes()[len(whole) :]
    parts.path.write_bytes(whole + last[: min(cut, len(last) - 1)])
    again = Parts(tmp_path / "r.jsonl", {"a": 1})
    assert [record["number"] for record in again.found()] == [0]
    again.write([{"number": 7}])
    again.close()
    assert [record["number"] for record in Parts(tmp_path / "r.jsonl", {"a": 1}).found()] == [0, 7]


OTHER = """
import sys, time
from hf_ngpulm.evaluation.processes import Parts
parts = Parts(sys.argv[1], {}, 1)
parts.open()
print("open", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """Start process 1 of two, which opens its file and never ends by itself."""
    started = []

    def start():
        command = [sys.executable, "-c", OTHER, str(tmp_path / "r.jsonl")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "open\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_that_dies_is_noticed(tmp_path, other):
    parts = Parts(tmp_path / "r.jsonl", {})
    watch = Watch(parts, 2, patience=0.3)
    with pytest.raises(WorkerLostError, match=r"process 1 has died, or not begun: nothing .* for 0\.3 s\. Again"):
        watch.wait(lambda: False, "Again")
    first = other()
    begin = time.monotonic()
    watch.wait(lambda: time.monotonic() - begin > 0.6, "")  # it lives, longer than patience lasts
    first.send_signal(signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="process 1 has died, or failed"):
        watch.wait(lambda: False, "")
    watch.wait(lambda: True, "")  # all is there, whoever is dead


@pytest.mark.slow
def test_a_file_from_before(tmp_path, other):
    """It is an earlier run's, or that of a process that began before the first one looked, and may be dead by now."""
    other().send_signal(signal.SIGKILL)
    patient, watch = (Watch(Parts(tmp_path / "r.jsonl", {}), 2, patience) for patience in (30, 0.3))
    begin = time.monotonic()
    patient.wait(lambda: time.monotonic() - begin > 0.6, "")
    with pytest.raises(WorkerLostError, match="or not begun"):
        watch.wait(lambda: False, "")
    again = other()
    begin = time.monotonic()
    for each in (patient, Watch(Parts(tmp_path / "r.jsonl", {}), 2, patience=0.3)):
        each.wait(lambda: time.monotonic() - begin > 0.6, "")
    again.send_signal(signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="process 1 has died, or failed"):
        patient.wait(lambda: False, "")


@pytest.mark.slow
def test_a_process_of_another_machine(tmp_path, other, monkeypatch):
    """Its lock may not be seen, but what it writes is."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    parts, begin = Parts(tmp_path / "r.jsonl", {}, 1), time.monotonic()
    watch = Watch(Parts(tmp_path / "r.jsonl", {}), 2, patience=0.3)
    parts.write([{"number": 0}])
    parts.close()

    def writing():
        os.utime(parts.path)
        return time.monotonic() - begin > 1

    watch.wait(writing, "")
    with pytest.raises(WorkerLostError, match="nothing is new from it for"):
        watch.wait(lambda: False, "")
    other()  # its lock is seen
    begin = time.monotonic()
    watch.wait(lambda: time.monotonic() - begin > 0.6, "")


def test_opened_when_all_is_done_already(tmp_path):
    parts = Parts(tmp_path / "r.jsonl", {})
    parts.open()
    parts.leave()
    assert not list(tmp_path.iterdir())
