"""Transcribing and evaluating on a cluster: each recording once, with the transcripts of one process, though a machine dies."""

from __future__ import annotations

import json
import math
import time
from copy import copy

import pyarrow.parquet
import pytest
from ray_clusters import ray_nodes
from test_evaluate_processes import DEMO, MODEL, facts, manifest

from hf_ngpulm.cli.app import run
from hf_ngpulm.common.cluster import Actors, InProcess
from hf_ngpulm.evaluation import (
    Transcriber,
    TranscriptionStep,
    evaluate,
    evaluating,
    read_recordings,
    transcribe_into,
    transcribing,
)
from hf_ngpulm.evaluation.transcribing import batches_by_seconds
from hf_ngpulm.pipelines import CTCNGramPipeline
from hf_ngpulm.pipelines.loading import load_pipeline

# The guard is off, as conftest.py changes it in this process only.
CLIP = str(DEMO / "clips" / "01.flac")
SETTINGS = {"device": "cpu", "lm": str(DEMO / "lm"), "num_beams": 4, "lm_guard": "off"}


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    monkeypatch.setattr(transcribing, "GROUP", 3)
    return read_recordings(manifest(tmp_path / "m.jsonl", 1)[0])


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_batches_of_as_many_seconds():
    assert list(batches_by_seconds({0: 1.0, 1: 5.0, 2: 4.0, 3: 1.0, 4: 50.0}, 10.0)) == [[4], [1, 2], [0, 3]]
    assert list(batches_by_seconds({}, 10.0)) == []


def test_results_go_on_where_a_run_was_killed(tmp_path, recordings, monkeypatch):
    transcriber, output = Transcriber(MODEL, recordings, SETTINGS, {"return_timestamps": "word"}), tmp_path / "r.jsonl"
    every = list(transcribe_into(output, transcriber, InProcess()))
    assert lines(output) == every and [line["audio"] for line in every] == [each.id for each in recordings]
    assert every[0]["text"] and every[0]["chunks"]
    first, content = transcriber.groups(set())[0], output.read_bytes()
    output.write_bytes(content[: content.index(b"\n") + 20])
    asked = []
    monkeypatch.setattr(Transcriber, "_asr", None, raising=False)
    called = Transcriber.__call__
    monkeypatch.setattr(Transcriber, "__call__", lambda self, group: [asked.append(group), called(self, group)][1])
    again = list(transcribe_into(output, transcriber, InProcess()))
    assert first in asked and len(again) == len(every) - 1
    assert sorted(map(str, lines(output))) == sorted(map(str, every))
    assert list(transcribe_into(output, transcriber, InProcess())) == []
    for foreign in ("[]\n", '{"notes": "a line without an end"}'):
        output.write_text(foreign)
        with pytest.raises(ValueError, match="has lines that aren't results of recordings"):
            list(transcribe_into(output, transcriber, InProcess()))
        assert output.read_text() == foreign


def test_a_step_in_the_shape_of_datatrove(tmp_path, recordings):
    whole = list(transcribe_into(tmp_path / "r.jsonl", Transcriber(MODEL, recordings, SETTINGS, {}), InProcess()))
    for rank in range(2):
        step = TranscriptionStep(Transcriber(MODEL, recordings, SETTINGS, {}), tmp_path / "parts")
        before, *found = step(iter(["document"]), rank, 2)
        assert before == "document" and found == lines(tmp_path / "parts" / f"{rank:05}.jsonl")
    parts = [line for path in sorted((tmp_path / "parts").iterdir()) for line in lines(path)]
    assert sorted(map(str, parts)) == sorted(map(str, whole))
    # Another number of tasks goes on with what any task has done.
    path = tmp_path / "parts" / "00001.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rest) + first[:20])
    found = [line for rank in range(3) for line in TranscriptionStep(step.transcriber, tmp_path / "parts")(None, rank, 3)]
    assert [line["audio"] for line in found] == [json.loads(first)["audio"]]
    parts = [line for each in (tmp_path / "parts").iterdir() for line in lines(each)]
    assert sorted(map(str, parts)) == sorted(map(str, whole))


def refusing(monkeypatch, frames, why="too many frames"):
    """Let CTC pipelines refuse batches with more frames."""
    decode = CTCNGramPipeline._decode

    def refuse(self, decoder, found, *more):
        if found.shape[1] > frames:
            raise ValueError(why)
        return decode(self, decoder, found, *more)

    monkeypatch.setattr(CTCNGramPipeline, "_decode", refuse)


def test_recordings_that_are_refused_get_a_line(tmp_path, recordings, monkeypatch):
    transcriber = Transcriber(MODEL, recordings, SETTINGS, {})
    whole = list(transcribe_into(tmp_path / "r.jsonl", transcriber, InProcess()))
    refusing(monkeypatch, 38)
    found = list(transcribe_into(tmp_path / "s.jsonl", transcriber, InProcess()))
    refused = {line["audio"] for line in found if line.get("error") == f"{line['audio']}: too many frames"}
    assert 0 < len(refused) < len(whole) and [line for line in found if line["audio"] not in refused] == [
        line for line in whole if line["audio"] not in refused
    ]
    assert list(transcribe_into(tmp_path / "s.jsonl", transcriber, InProcess())) == []
    refusing(monkeypatch, 0, "the settings")
    with pytest.raises(ValueError, match=r"^the settings$"):
        list(transcribe_into(tmp_path / "t.jsonl", transcriber, InProcess()))


def test_rows_of_json_and_parquet(tmp_path, capsys, monkeypatch):
    (tmp_path / "broken.wav").write_text("no audio")
    rows = [{"audio": str(DEMO / "clips" / f"{i:02}.flac"), "offset": 0.25 * i, "duration": 2.0} for i in range(3)]
    rows.append({"audio": "broken.wav", "offset": 0.0, "duration": 1.0})
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "m.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transcribing, "ROWS", 2)
    options = ["--model", MODEL, "--device", "cpu", "--timestamps", "word", "--output"]
    assert run(["transcribe", "m.jsonl", *options, "r.jsonl"]) == 1
    assert "1 of 4 files could not be read" in capsys.readouterr().err
    expected = lines(tmp_path / "r.jsonl")
    assert [set(line) for line in expected] == [{"audio", "text", "chunks"}] * 3 + [{"audio", "error"}]
    # Nothing is done again; the status is the same.
    with monkeypatch.context() as patched:
        patched.setattr(Transcriber, "__call__", None)
        assert run(["transcribe", "m.jsonl", *options, "r.jsonl"]) == 1
        assert "1 of 4 files could not be read" in capsys.readouterr().err
    (tmp_path / "r.parquet.jsonl").write_text(json.dumps({"audio": "0", "text": "kept"}) + "\n")
    assert run(["transcribe", "m.parquet", *options, "r.parquet"]) == 1 and not (tmp_path / "r.parquet.jsonl").exists()
    found = pyarrow.parquet.read_table("r.parquet").to_pylist()
    assert [row["audio"] for row in found] == ["0", "1", "2", "3"] and found[0]["text"] == "kept"
    for row, line in zip(found[1:3], expected[1:]):
        assert row["text"] == line["text"] and row["chunks"] == line["chunks"] and row["error"] is None
    assert found[3]["text"] is None and "broken.wav: can't be read" in found[3]["error"]
    capsys.readouterr()
    for arguments, message in (
        (["m.parquet", *options, "r.parquet"], "r.parquet exists already; write somewhere else, or add --overwrite"),
        (["m.parquet", *options, "r.jsonl", "--overwrite"], "--overwrite has no effect with r.jsonl"),
        (["m.parquet", *options[:-1]], "m.parquet: a manifest or Parquet file; add --output results.jsonl or"),
    ):
        assert run(["transcribe", *arguments]) == 2 and message in capsys.readouterr().err


def test_settings_are_those_of_the_workers(recordings, monkeypatch):
    """The machine with the command loads no model, and workers with other settings are refused."""

    class Elsewhere(InProcess):
        def each(self, worker, work, actors):
            with monkeypatch.context() as patched:
                patched.setattr(evaluating, "load_pipeline", lambda *_, **__: pipeline)
                yield from InProcess.each(self, copy(worker), work, actors)

    pipeline = load_pipeline(MODEL, "cpu", "bfloat16")
    monkeypatch.setattr(evaluating, "load_pipeline", None)
    found = evaluate(MODEL, recordings, batch_size=3, cluster=Elsewhere())
    assert found.settings["dtype"] == "torch.bfloat16" and found.measured and found.clock is None
    worker = evaluating._Worker(
        (pipeline, None, None, {}, recordings, 3, 40.0, False), {**found.settings, "dtype": "torch.half"}
    )
    with pytest.raises(ValueError, match=r"two workers differ: dtype is torch\.bfloat16 here and torch\.half there\. Give"):
        worker([0])


def test_rows_of_different_kinds(tmp_path, monkeypatch):
    monkeypatch.setattr(transcribing, "ROWS", 1)
    chunk = {"text": "2020-01-01", "timestamp": [0.0, None]}
    rows: list[dict] = [
        {"audio": "a", "text": "2020-01-01", "chunks": [chunk], "score": 1, "slots": [{"name": "n", "value": 1}]},
        {"audio": "b", "text": "é", "chunks": [], "score": -math.inf, "slots": [{"name": "n", "value": "one"}]},
        {"audio": "c", "error": "no"},
        {"audio": "d", "text": "", "explanation": {"readings": [{"slots": {}}]}},
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    transcribing.write_parquet(tmp_path / "r.jsonl", tmp_path / "r.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "r.parquet").to_pylist()
    for row in found:
        row |= {name: json.loads(row[name]) for name in ("slots", "explanation") if row[name] is not None}
    assert [{name: value for name, value in row.items() if value is not None} for row in found] == rows
    (tmp_path / "r.jsonl").write_text('{"audio": "a", "score": 1}\n{"audio": "b", "score": "high"}\n')
    with pytest.raises(ValueError, match=r"r\.jsonl: can't be written as Parquet: .*score"):
        transcribing.write_parquet(tmp_path / "r.jsonl", tmp_path / "s.parquet")
    assert not (tmp_path / "s.parquet").exists()


def test_evaluating_elsewhere(tmp_path, recordings, monkeypatch):
    broken = tmp_path / "broken.wav"
    broken.write_text("no audio")
    with open(tmp_path / "m.jsonl", "a") as file:
        file.write("\n" + json.dumps({"id": "broken", "audio": str(broken), "text": "nothing"}))
    recordings, told = read_recordings(tmp_path / "m.jsonl"), []
    options = {**SETTINGS, "batch_size": 3, "report": told.append}
    here = evaluate(MODEL, recordings, **options)
    there = evaluate(MODEL, recordings, cluster=InProcess(), **options)
    names = ("id", "hypothesis", "score", "audio_seconds", "error")
    assert [[getattr(u, name) for name in names] for u in here.utterances] == [
        [getattr(u, name) for name in names] for u in there.utterances
    ]
    assert here.settings == there.settings and told[0] == told[1] and "broken" in told[0]
    refusing(monkeypatch, 38)
    told.clear()
    less = evaluate(MODEL, recordings, **options)
    pairs = list(zip(less.utterances, here.utterances))
    refused = [u.id for u, _ in pairs if u.error == f"{u.id}: too many frames"]
    assert refused and all(u.hypothesis == v.hypothesis for u, v in pairs if u.id not in refused)
    assert [u.error for u in less.utterances] == [
        u.error for u in evaluate(MODEL, recordings, cluster=InProcess(), **options).utterances
    ]
    refusing(monkeypatch, 0, "the settings")
    with pytest.raises(ValueError, match=r"^the settings$"):
        evaluate(MODEL, recordings, **options)
    with pytest.raises(ValueError, match="a cluster loads the model on its machines: name it"):
        evaluate(object(), recordings, cluster=InProcess())


def test_options_of_the_command(tmp_path, capsys):
    for given, message in (
        (["--actors", "2"], "--actors needs a cluster; add --ray"),
        (["--ray", "auto"], "add --output results.jsonl"),
        (["--ray", "auto", "--output", "r.jsonl", "--format", "srt"], "--format has no effect with r.jsonl"),
    ):
        assert run(["transcribe", CLIP, "--model", MODEL, *given]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (["--ray", CLIP], "auto"),
        ([CLIP, "--ray"], "auto"),
        (["--ray", "--actors", "2", CLIP], "auto"),
        (["--ray", "auto", CLIP], "auto"),
        (["--ray", "head:6379", CLIP], "head:6379"),
        ([CLIP, "--ray", "ray://10.0.0.1:10001"], "ray://10.0.0.1:10001"),
        ([CLIP, "--ray=head:6379"], "head:6379"),
        ([CLIP], None),
    ],
)
def test_an_address_may_be_left_out(tmp_path, monkeypatch, given, address):
    asked = []
    monkeypatch.setattr(
        "hf_ngpulm.cli.library.cluster_of", lambda cluster: [asked.append(cluster), InProcess()][1], raising=False
    )
    monkeypatch.setattr(Transcriber, "__call__", lambda self, group: [{"audio": CLIP, "text": "a"}])
    assert run(["transcribe", "--model", MODEL, "--output", str(tmp_path / "r.jsonl"), *given]) == 0
    assert asked == [address] and lines(tmp_path / "r.jsonl") == [{"audio": CLIP, "text": "a"}]


@pytest.mark.slow
def test_a_node_dies_while_it_transcribes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(transcribing, "GROUP", 4)
    source, count = manifest(tmp_path / "m.jsonl", 63)
    recordings = read_recordings(source)
    transcriber = Transcriber(MODEL, recordings, SETTINGS, {})
    alone = list(transcribe_into(tmp_path / "alone.jsonl", transcriber, InProcess()))
    assert len(alone) == count

    class Slower(Transcriber):
        def __call__(self, group):
            time.sleep(0.2)
            return Transcriber.__call__(self, group)

    with ray_nodes(1, 1) as nodes:
        from hf_ngpulm.common.cluster import OnRay

        found = []
        results = transcribe_into(tmp_path / "r.jsonl", Slower(MODEL, recordings, SETTINGS, {}), OnRay(), Actors(count=2))
        for result in results:
            found.append(result)
            if len(found) == count // 4:
                nodes[1]()
        assert sorted(map(str, found)) == sorted(map(str, alone)) == sorted(map(str, lines(tmp_path / "r.jsonl")))
        capsys.readouterr()
        source, count = manifest(tmp_path / "less.jsonl", 4)
        output = tmp_path / "evaluated.jsonl"
        command = ["evaluate", MODEL, source, "--lm", SETTINGS["lm"], "--lm-guard", "off", "--device", "cpu", "--json"]
        assert run([*command, "--output", str(output), "--ray", "auto"]) == 0
        assert run([*command, "--output", str(tmp_path / "one.jsonl")]) == 0
        assert facts(output) == facts(tmp_path / "one.jsonl")
        capsys.readouterr()
        command = ["transcribe", source, "--model", MODEL, "--ray", "auto", "--output", str(tmp_path / "no.jsonl")]
        for given, message in ((["--lm", "/nowhere/lm"], "/nowhere/lm"), (["--num-gpus", "1"], "should get 1 GPUs")):
            assert run([*command, *given]) == 2
            (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("hf-ngpulm: error"))
            assert message in line
        command = ["transcribe", source, "--model", MODEL, "--output", str(tmp_path / "cli.jsonl"), "--ray"]
        assert run(command) == 0 and len(lines(tmp_path / "cli.jsonl")) == count
        (tmp_path / "broken.wav").write_text("no audio")
        paths = [*(str(DEMO / "clips" / f"{i:02}.flac") for i in range(5)), str(tmp_path / "broken.wav")]
        pyarrow.parquet.write_table(pyarrow.table({"id": paths, "audio": paths}), tmp_path / "m.parquet")
        command = [
            "transcribe",
            str(tmp_path / "m.parquet"),
            "--model",
            MODEL,
            "--output",
            str(tmp_path / "r.parquet"),
            "--ray",
        ]
        assert run(command) == 1 and "1 of 6 files could not be read" in capsys.readouterr().err
        rows = pyarrow.parquet.read_table(tmp_path / "r.parquet").to_pylist()
        assert sorted(row["audio"] for row in rows) == sorted(paths)
        assert [row["audio"] for row in rows if row["error"]] == paths[5:] and sum(bool(row["text"]) for row in rows) == 5
