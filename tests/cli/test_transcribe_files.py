"""hf-ngpulm transcribe: which files it reads and writes."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_ngpulm.cli import transcribe
from hf_ngpulm.cli.app import run
from hf_ngpulm.cli.files import audio_of, refuse_existing, transcript_files
from hf_ngpulm.common.bundled import bundled

MODEL = str(bundled("examples/models/ctc"))
CLIPS = [bundled("examples/speech/harbour") / "clips" / f"{i:02}.flac" for i in range(3)]


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Three recordings, one of them in a folder within, and what isn't one."""
    monkeypatch.chdir(tmp_path)
    for clip, name in zip(CLIPS, ("calls/a.flac", "calls/b[1].flac", "calls/old/c.FLAC")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(clip, tmp_path / name)
    (tmp_path / "calls" / "notes.txt").write_text("no audio")
    return ["calls/a.flac", "calls/b[1].flac", "calls/old/c.FLAC"]


def test_folders_and_patterns(calls, tmp_path):
    every = dict(zip(calls, ("a.flac", "b[1].flac", "old/c.FLAC")))
    assert audio_of(["calls"]) == audio_of(["calls/**"]) == every
    assert audio_of(["calls/**/*.[fF]*"]) == every and list(audio_of(["calls/*.flac"])) == calls[:2]
    assert audio_of(["calls/b[1].flac", "calls/a.flac"]) == {calls[1]: "b[1].flac", calls[0]: "a.flac"}
    assert audio_of(["nowhere.wav", str(tmp_path / "calls/a.flac")]).keys() == {
        "nowhere.wav",
        str(tmp_path / "calls/a.flac"),
    }
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: a folder without audio files"):
        audio_of(["empty"])
    with pytest.raises(FileNotFoundError, match=r"calls/\*.wav: no audio file matches this pattern"):
        audio_of(["calls/*.wav"])


def test_what_is_written_where(calls, tmp_path):
    one, every = {"calls/talk.2.wav": "talk.2.wav"}, audio_of(["calls"])
    assert transcript_files("talk.SRT", None, one) == ("srt", [Path("talk.SRT")])
    assert transcript_files("talk.sub", "srt", one)[0] == "srt"
    kind, files = transcript_files("out", "vtt", one | every)
    assert (kind, [file.as_posix() for file in files]) == (
        "vtt",
        ["out/talk.2.vtt", "out/a.vtt", "out/b[1].vtt", "out/old/c.vtt"],
    )
    assert transcript_files("calls", None, one)[1][0].as_posix() == "calls/talk.2.txt"
    for output, kind, audio, message in (
        ("talk.srtt", None, one, "talk.srtt: should end in txt, srt, vtt, json; otherwise add --format"),
        ("talk.srt", None, every, "is one file, but there are 3 recordings; name a folder: --output FOLDER --format srt"),
        ("out", None, {"x/a.wav": "a.wav", "y/a.wav": "a.wav"}, r"a\.txt: would be written for both x/a.wav and y/a.wav"),
    ):
        with pytest.raises(ValueError, match=message):
            transcript_files(output, kind, audio)
    refuse_existing(["new", "calls"], False)
    (tmp_path / "calls" / "config.json").write_text("{}")
    for there in ("calls", "calls/notes.txt"):
        refuse_existing([there], True)
        with pytest.raises(FileExistsError, match="exists already; write somewhere else, or add --overwrite"):
            refuse_existing([there], False)


def test_files_of_every_kind(calls, tmp_path, capsys):
    command = ["transcribe", "calls/a.flac", "-m", MODEL, "--device", "cpu"]
    assert run([*command, "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    for name, expected in (("a.txt", text + "\n"), ("a.json", json.dumps({"audio": "calls/a.flac", "text": text}) + "\n")):
        assert run([*command, "--output", name]) == 0 and (tmp_path / name).read_text() == expected
    assert run([*command, "--output", "a.srt"]) == 0
    number, times, line, *_ = (tmp_path / "a.srt").read_text().splitlines()
    assert (number, line) == ("1", text) and times.startswith("00:00:00,")
    assert run([*command, "--output", "a.srt"]) == 2 and "a.srt exists already" in capsys.readouterr().err
    (tmp_path / "a.srt").write_text("")
    assert run([*command, "--output", "a.srt", "--overwrite"]) == 0 and text in (tmp_path / "a.srt").read_text()
    several = ["transcribe", "calls", "-m", MODEL, "--device", "cpu", "--lm", str(CLIPS[0].parents[1] / "lm.arpa.gz")]
    capsys.readouterr()
    assert run([*several, "--lm-weight", "1", "--output", "out", "--format", "vtt"]) == 0
    assert capsys.readouterr().out.splitlines() == ["out/a.vtt", "out/b[1].vtt", "out/old/c.vtt"]
    found = [(tmp_path / "out" / name).read_text() for name in ("a.vtt", "b[1].vtt", "old/c.vtt")]
    assert all(file.startswith("WEBVTT\n\n00:00:") for file in found) and "lighthouse" in found[0]
    for arguments, message in (
        (["--format", "srt"], "--format applies to written files; add --output"),
        (["--overwrite"], "--overwrite applies to written files; add --output"),
        (["--output", "b.srt", "--timestamps", "char"], "--timestamps has no effect on srt files"),
        (["--output", "out", "--format", "doc"], "--format should be one of"),
    ):
        assert run([*command, *arguments]) == 2 and message in capsys.readouterr().err


def test_models_that_know_segments_or_no_times(calls, tmp_path, capsys, monkeypatch):
    """Whisper says itself where segments are, of the last perhaps not the end; other decoders are refused by their names."""

    class Silent(SimpleNamespace):
        def __call__(self, recordings, **options):
            raise ValueError("We cannot return_timestamps yet")

    class Whisper(Silent):
        def __call__(self, recordings, **options):
            assert options["return_timestamps"] is True
            segments = [{"text": " One two.", "timestamp": (0.0, 1.5)}, {"text": " Three.", "timestamp": (1.5, None)}]
            yield from ({"text": " One two. Three.", "chunks": segments} for _ in recordings)

    parts = {"feature_extractor": SimpleNamespace(sampling_rate=16000), "_forward_params": {"ngram_decoder": None}}
    model = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True))
    monkeypatch.setattr("hf_ngpulm.cli.library.is_seq2seq", lambda model: True)
    for made, status in (
        (Silent(**parts, model=model, type="seq2seq"), 2),
        (Whisper(**parts, model=model, type="seq2seq_whisper"), 0),
    ):
        monkeypatch.setattr(transcribe, "load_recogniser", lambda *_, made=made, **__: made)
        assert run(["transcribe", "calls/a.flac", "-m", "m", "-o", "a.srt"]) == status
        if status:
            assert "srt files need times, and SimpleNamespace gives none: We cannot" in capsys.readouterr().err
    shown = (tmp_path / "a.srt").read_text().splitlines()
    assert shown[:6] == ["1", "00:00:00,000 --> 00:00:01,500", "One two.", "", "2", shown[5]] and shown[6] == "Three."
    assert shown[5].startswith("00:00:01,500 --> 00:00:0")
