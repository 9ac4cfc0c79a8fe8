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
from hf_ngpulm.evaluation.parts import Parts

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


def started(size, *arguments):
    """Start processes as a launcher does, but that it would stop all if one ended."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = str(reserved.getsockname()[1])
    given = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "HF_HUB_OFFLINE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return [
        subprocess.Popen(command, env={**os.environ, **given, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes)
        for rank in range(size)
    ]


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
    processes = started(2, *command)
    try:
        done = killed_after(processes[1], output, 1, 4)
        assert done < count / 2, "the process was done before it could be killed"
        _, errors = processes[0].communicate(timeout=300)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[0].returncode == 2 and not os.path.exists(output)
    (line,) = (line for line in errors.splitlines() if "hf-ngpulm: error" in line)
    assert "another process has ended" in line and "run the same command again" in line
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
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port = reserved.getsockname()[1]
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


def test_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK should be a number below WORLD_SIZE"):
        rank_and_size()
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("PMI_RANK", "1")
    assert rank_and_size() == (1, 2)


@pytest.mark.slow
def test_two_processes_share_and_gather(tmp_path, capsys):
    """Three batches; the first process tells the figures, also without a file."""
    command = ["evaluate", MODEL, str(DEMO / "clips.jsonl"), "--limit", "5", *OPTIONS]
    processes = started(2, *command)
    (out, errors), (nothing, _) = (process.communicate(timeout=300) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], errors
    assert run(command) == 0
    figures, expected = (json.loads(text.splitlines()[-1]) for text in (out, capsys.readouterr().out))
    names = ("utterances", "wer", "wer_interval", "cer", "substitutions", "deletions", "insertions")
    assert not nothing and [figures[name] for name in names] == [expected[name] for name in names]


def test_a_file_is_one_process_s(tmp_path):
    first, second = Parts(tmp_path / "r.jsonl", {"a": 1}), Parts(tmp_path / "r.jsonl", {"a": 1})
    first.open()
    first.write([{"number": 0}])
    with pytest.raises(ValueError, match="another process is writing"):
        second.open()
    first.close()
    second.open()
    second.write([{"number": 1}])
    third = Parts(tmp_path / "r.jsonl", {"a": 1}, rank=1)
    third.open()
    assert list(third.records()) == [0, 1]
    for each in (second, third):
        each.close()
    third.remove()
    assert not list(tmp_path.iterdir()) and not third.records()


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_that_was_cut_short_is_dropped(tmp_path, cut):
    parts = Parts(tmp_path / "r.jsonl", {"a": 1})
    parts.open()
    parts.write([{"number": 0}])
    whole = parts.path.read_bytes()
    parts.write([{"number": 1, "hypothesis": "a b c"}])
    parts.close()
    last = parts.path.read_bytes()[len(whole) :]
    parts.path.write_bytes(whole + last[: min(cut, len(last) - 1)])
    again = Parts(tmp_path / "r.jsonl", {"a": 1})
    assert list(again.records()) == [0]
    again.open()
    again.write([{"number": 7}])
    again.close()
    assert list(Parts(tmp_path / "r.jsonl", {"a": 1}).records()) == [0, 7]
