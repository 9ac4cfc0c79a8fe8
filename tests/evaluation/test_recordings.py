"""Recordings: each source gives the same audio and texts, whatever holds them; audio is what libsndfile and soxr say."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import soundfile
import soxr

from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.evaluation import Recording, load_audio, read_recordings

DEMO = bundled("examples/speech/harbour")
CLIPS = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:3]
SAMPLES = [soundfile.read(DEMO / clip["audio"], dtype="float32")[0] for clip in CLIPS]
TEXTS = [clip["text"] for clip in CLIPS]
ENTITIES = [["old lighthouse"], [], ["green buoy", "starboard"]]


def tone(rate, seconds=0.5, channels=1):
    times = np.arange(int(rate * seconds)) / rate
    left = 0.5 * np.sin(2 * np.pi * 220 * times)
    return left if channels == 1 else np.stack([left, 0 * left], axis=1)


def holds(recordings, entities=True):
    assert [recording.text for recording in recordings] == TEXTS
    assert len({recording.id for recording in recordings}) == len(recordings) == 3
    for recording, samples in zip(recordings, SAMPLES):
        assert np.array_equal(load_audio(recording, 16000), samples)
        assert recording.seconds == pytest.approx(len(samples) / 16000)
    assert not entities or [list(recording.entities) for recording in recordings] == ENTITIES


@pytest.fixture
def folder(tmp_path):
    for i, samples in enumerate(SAMPLES):
        soundfile.write(tmp_path / f"{i}.flac", samples, 16000)
    return tmp_path


def rows(audio="audio", text="text"):
    return [{audio: f"{i}.flac", text: TEXTS[i], "entities": ENTITIES[i]} for i in range(3)]


@pytest.mark.parametrize(("audio", "text"), [("audio", "text"), ("audio_filepath", "text"), ("wav", "sentence")])
def test_manifest_in_json_lines(folder, audio, text):
    (folder / "m.jsonl").write_text("\n".join(map(json.dumps, rows(audio, text))))
    holds(read_recordings(folder / "m.jsonl"))
    (folder / "m.json").write_text(json.dumps(rows(audio, text)))
    holds(read_recordings(str(folder / "m.json")))
    assert len(read_recordings(folder / "m.jsonl", limit=2)) == 2


def test_nemo_segments(folder):
    soundfile.write(folder / "all.wav", np.concatenate(SAMPLES), 16000, subtype="FLOAT")
    begin, lines = 0, []
    for samples, text in zip(SAMPLES, TEXTS):
        part = {"offset": begin / 16000, "duration": len(samples) / 16000}
        lines.append(json.dumps({"audio_filepath": "all.wav", "text": text, **part}))
        begin += len(samples)
    (folder / "nemo.json").write_text("\n".join(lines))
    holds(read_recordings(folder / "nemo.json"), entities=False)
    whole = json.dumps({"audio_filepath": "all.wav", "text": "a", "duration": 1.0})  # without an offset: of the whole file
    (folder / "whole.json").write_text(whole)
    (recording,) = read_recordings(folder / "whole.json")
    assert len(load_audio(recording, 16000)) == begin
    (folder / "beyond.json").write_text(json.dumps({"audio_filepath": "all.wav", "text": "a", "offset": 1, "duration": 3600}))
    with pytest.raises(ValueError, match=r"all\.wav.*has only"):
        load_audio(read_recordings(folder / "beyond.json")[0], 16000)


@pytest.mark.parametrize("ending", ["tsv", "csv"])
def test_tables(folder, ending):
    tab = "\t" if ending == "tsv" else ","
    lines = [tab.join(("id", "path", "sentence", "entities"))]
    lines += [tab.join((f"u{i}", f"{i}.flac", TEXTS[i], ";".join(ENTITIES[i]))) for i in range(3)]
    (folder / f"m.{ending}").write_text("\n".join(lines))
    found = read_recordings(folder / f"m.{ending}")
    holds(found)
    assert [recording.id for recording in found] == ["u0", "u1", "u2"]


def test_folders_of_audio(folder):
    assert [recording.text for recording in read_recordings(folder)] == [None] * 3
    for i, text in enumerate(TEXTS):
        (folder / f"{i}.txt").write_text(text + "\n")
    holds(read_recordings(folder), entities=False)
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows("file_name", "transcription"))))
    holds(read_recordings(folder))


def test_librispeech(tmp_path):
    chapter = tmp_path / "1089" / "134686"
    chapter.mkdir(parents=True)
    for i, samples in enumerate(SAMPLES):
        soundfile.write(chapter / f"1089-134686-000{i}.flac", samples, 16000)
    (chapter / "1089-134686.trans.txt").write_text("".join(f"1089-134686-000{i} {text}\n" for i, text in enumerate(TEXTS)))
    holds(read_recordings(tmp_path), entities=False)
    assert len(read_recordings(tmp_path, split="1089")) == 3
    with pytest.raises(ValueError, match="no folder 'dev'"):
        read_recordings(tmp_path, split="dev")


def test_datasets(folder):
    datasets = pytest.importorskip("datasets")
    cells = [{"bytes": (folder / f"{i}.flac").read_bytes(), "path": None} for i in range(3)]
    data = datasets.Dataset.from_dict({"audio": cells, "text": TEXTS, "entities": ENTITIES})
    data = data.cast_column("audio", datasets.Audio())
    data.save_to_disk(folder / "saved")
    holds(read_recordings(folder / "saved"))
    for recording, whole in zip(map(read_recordings(folder / "saved").described, range(3)), read_recordings(folder / "saved")):
        assert (recording.id, recording.text, recording.entities) == (whole.id, whole.text, whole.entities)
        assert whole.audio and not recording.audio
    assert read_recordings(folder / "saved").fingerprint == read_recordings(folder / "saved").fingerprint
    assert len(read_recordings(folder / "saved", limit=1)) == 1
    datasets.DatasetDict({"test": data, "train": data.select([0])}).save_to_disk(folder / "splits")
    holds(read_recordings(folder / "splits"))
    assert len(read_recordings(folder / "splits", split="train")) == 1
    with pytest.raises(ValueError, match=r"no split 'dev'.*test, train"):
        read_recordings(folder / "splits", split="dev")
    data.to_parquet(folder / "p.parquet")
    holds(read_recordings(folder / "p.parquet"))
    with pytest.raises(ValueError, match="'sentence'"):
        read_recordings(folder / "p.parquet", text_field="sentence")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "holds no recordings"),
        ('{"text": "a"}', r"line 1: none of the fields audio, .*audio_field"),
        ('{"audio": "0.flac", "text": 3}', "line 1: the transcript isn't text, but '3'"),
        ('{"audio": "0.flac"}\n{"audio"', "line 2: not JSON"),
        ('{"audio": "0.flac", "entities": "[3]"}', "entities should be a list of texts"),
        ('{"audio": "0.flac", "offset": -1}', "offset should be seconds, 0 or more, got -1"),
    ],
)
def test_bad_manifests_are_named(tmp_path, written, message):
    (tmp_path / "m.jsonl").write_text(written)
    with pytest.raises(ValueError, match=message):
        read_recordings(tmp_path / "m.jsonl")


def test_what_isnt_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_recordings(tmp_path / "m.jsonl")
    with pytest.raises(FileNotFoundError, match=r"gone\.wav: no such audio file"):
        load_audio(Recording("a", tmp_path / "gone.wav"), 16000)
    (tmp_path / "m.txt").write_text("a")
    with pytest.raises(ValueError, match="should be a manifest"):
        read_recordings(tmp_path / "m.txt")
    (tmp_path / "m.jsonl").write_text('{"audio": "0.flac"}')
    with pytest.raises(ValueError, match="no split or config"):
        read_recordings(tmp_path / "m.jsonl", split="test")


def test_ids_are_unique(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"audio": "a.wav"}\n{"audio": "a.wav"}\n{"audio": "b.wav", "id": 7}')
    assert [recording.id for recording in read_recordings(tmp_path / "m.jsonl")] == ["a.wav", "a.wav#2", "7"]


@pytest.mark.parametrize(
    ("rate", "channels", "ending", "subtype"),
    [(16000, 2, "wav", "PCM_24"), (8000, 1, "wav", "PCM_16"), (44100, 2, "flac", "PCM_24"), (16000, 1, "mp3", None),
     (48000, 2, "ogg", "VORBIS"), (8000, 1, "wav", "ULAW")],
)  # fmt: skip
def test_channels_rates_and_encodings(tmp_path, rate, channels, ending, subtype):
    path = tmp_path / f"a.{ending}"
    soundfile.write(path, tone(rate, channels=channels), rate, subtype=subtype)
    read, _ = soundfile.read(path, always_2d=True)
    expected = soxr.resample(read.mean(1), rate, 16000)
    for audio in (path, path.read_bytes()):
        found = load_audio(Recording("a", audio), 16000)
        assert found.dtype == np.float32 and found.shape == expected.shape
        assert np.abs(found - expected).max() < 1e-3
        loudness = 0.5 / np.sqrt(2) / channels  # one of two channels is silent
        assert np.sqrt(np.mean(found[800:-800] ** 2)) == pytest.approx(loudness, rel=0.1)


def test_long_files_are_read_in_blocks(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", tone(44100, 3.0, 2), 44100, subtype="FLOAT")
    whole = load_audio(Recording("a", tmp_path / "a.wav"), 16000)
    monkeypatch.setattr("hf_ngpulm.sound.files.FRAMES_AT_ONCE", 10_007)
    assert np.abs(load_audio(Recording("a", tmp_path / "a.wav"), 16000) - whole).max() < 1e-5


def test_arrays():
    left = tone(8000).astype(np.float32)
    stereo = np.stack([left, -left])
    assert not load_audio(Recording("a", stereo, 8000), 16000).any()
    assert np.array_equal(load_audio(Recording("a", left, 8000), 8000), left)
    part = load_audio(Recording("a", left, 8000, offset=0.1, duration=0.2), 8000)
    assert np.array_equal(part, left[800:2400])
    whole_numbers = (left * 32768).astype(np.int16)
    assert np.abs(load_audio(Recording("a", whole_numbers, 8000), 8000) - left).max() < 1e-4
    unsigned = (left * 128 + 128).astype(np.uint8)
    assert np.abs(load_audio(Recording("a", unsigned, 8000), 8000) - left).max() < 2 / 128
    with pytest.raises(ValueError, match="sampling_rate"):
        load_audio(Recording("a", left), 16000)
    with pytest.raises(ValueError, match="not a number"):
        load_audio(Recording("a", np.array([0.0, np.nan]), 8000), 16000)


def test_nothing_and_damage(tmp_path):
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16000)
    assert load_audio(Recording("a", tmp_path / "empty.wav"), 8000).shape == (0,)
    data = io.BytesIO()
    soundfile.write(data, np.random.default_rng(0).standard_normal(40000) / 9, 16000, format="FLAC")
    whole = data.getvalue()
    half = whole[: len(whole) // 2]
    spoilt = whole[: len(whole) // 2] + bytes(3000) + whole[len(whole) // 2 + 3000 :]
    for content in (half, spoilt, b"", b"RIFF", b"no audio at all"):
        with pytest.raises(ValueError, match=r"clip: .*audio"):
            load_audio(Recording("clip", content), 16000)
        assert Recording("clip", content).seconds != 0
    mp3 = io.BytesIO()
    soundfile.write(mp3, np.random.default_rng(0).standard_normal(40000) / 9, 16000, format="MP3")
    with pytest.raises(ValueError, match="damaged: ends after"):
        load_audio(Recording("clip", mp3.getvalue()[: len(mp3.getvalue()) // 2]), 16000)
