"""WebM and MP4: what is read of them, and what of those that are damaged, or made to do harm."""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")
import soxr
from containers import KINDS, packed, silent_picture, with_box

from hf_ngpulm.sound import containers, files, unpack
from hf_ngpulm.sound.files import decode_audio, file_pieces, read_audio

RATE = 16000
SPOKEN = np.concatenate([[0.3 * np.sin(2 * np.pi * hertz * np.arange(24000) / 48000)] for hertz in (300, 500, 900)], axis=1)[0]
SPOKEN = SPOKEN.astype(np.float32)


def error_of(data, **settings):
    with pytest.raises(ValueError) as caught:
        decode_audio(io.BytesIO(data), RATE, "clip", **settings)
    assert str(caught.value).startswith("clip: ")
    return str(caught.value)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_packed_comes_out(tmp_path, kind, channels):
    """As near as these codecs are, whole and in pieces, from a path and from open files."""
    data, wanted = packed(SPOKEN, kind=kind, channels=channels), soxr.resample(SPOKEN, 48000, RATE)
    path = tmp_path / "clip"
    path.write_bytes(data)
    found = read_audio(path, RATE)
    assert abs(len(found) - len(wanted)) < RATE * 0.06  # AAC is filled up to whole frames, and Opus comes a little late
    least = min(len(found), len(wanted))
    late = range(400)  # samples: AAC as it is written here begins after one frame of silence
    agree = max(np.corrcoef(found[by:least], wanted[: least - by])[0, 1] for by in late)
    assert agree > 0.97
    with path.open("rb") as file:
        pieces = list(file_pieces(file, RATE, 0.3))
        assert np.array_equal(np.concatenate(pieces), found) and len(pieces) > 4
        assert not file.closed
    assert np.array_equal(decode_audio(io.BytesIO(data), RATE), found)


def test_parts(tmp_path):
    data = packed(SPOKEN)
    whole = decode_audio(io.BytesIO(data), 48000)
    part = decode_audio(io.BytesIO(data), 48000, offset=0.25, duration=0.5)
    assert np.array_equal(part, whole[12000:36000])
    assert np.array_equal(decode_audio(io.BytesIO(data), 48000, offset=1.0), whole[48000:])
    assert "has only 1.5" in error_of(data, offset=2.0) and "from 0.5 s to 2.5 s" in error_of(data, offset=0.5, duration=2.0)


def test_who_reads_no_more_leaves_no_process():
    data = packed(np.tile(SPOKEN, 100))
    pieces = file_pieces(io.BytesIO(data), RATE, 1.0)
    next(pieces)
    pieces.close()
    with containers.Unpacked(io.BytesIO(data), "matroska", "clip") as file:
        file.read(100)
    assert file._process.returncode is not None


def test_the_other_streams_of_a_file_are_left_alone():
    found = decode_audio(io.BytesIO(packed(SPOKEN, streams=3)), 48000)
    assert np.array_equal(found, decode_audio(io.BytesIO(packed(SPOKEN)), 48000))


@pytest.mark.parametrize("kind", ["webm", "m4a"])
def test_files_that_are_cut_or_none(kind):
    data = packed(SPOKEN, kind=kind)
    for broken in (data[:12], data[:200], data[:12] + b"\0" * 1000, data[:12] + random.Random(0).randbytes(5000)):
        assert "can't be read as audio" in error_of(broken) or "holds no samples" in error_of(broken)
    assert "has no audio" in error_of(silent_picture())


def test_playlists_open_nothing(tmp_path):
    """FFmpeg has formats that name files and addresses; none is tried, whatever the file is called."""
    secret = tmp_path / "secret.wav"
    secret.write_bytes(packed(SPOKEN))
    for text in (
        f"ffconcat version 1.0\nfile {secret}\n",
        f"#EXTM3U\n#EXTINF:1,\nfile://{secret}\n",
        "v=0\nm=audio 1 RTP/AVP 0\n",
    ):
        playlist = tmp_path / "list.webm"
        playlist.write_text(text)
        with pytest.raises(ValueError, match="can't be read as audio"):
            read_audio(playlist, RATE)


def test_claims_take_no_memory():
    """Tables that say of a few bytes that they are hundreds of millions of samples."""
    count = (150_000_000).to_bytes(4, "big")
    data = packed(SPOKEN, kind="m4a")
    data = with_box(data, b"stsz", lambda box: box[:4] + (1).to_bytes(4, "big") + count + box[12:])
    data = with_box(data, b"stsc", lambda box: box[:12] + count + box[16:])
    assert "can't be read as audio" in error_of(data) or "holds no samples" in error_of(data)


def test_a_duration_that_is_claimed_means_nothing():
    data = packed(SPOKEN, kind="m4a")
    data = with_box(data, b"mvhd", lambda box: box[:16] + b"\x7f\xff\xff\xff" + box[20:])
    data = with_box(data, b"mdhd", lambda box: box[:16] + b"\x7f\xff\xff\xff" + box[20:])
    assert len(decode_audio(io.BytesIO(data), RATE)) < 2 * RATE


def test_what_lasts_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 1 / 3600)
    assert "longer than" in error_of(packed(SPOKEN))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
@pytest.mark.parametrize("name, most", [("CPU_SECONDS", 1), ("MEMORY_BYTES", 50 << 20)])
def test_a_process_that_takes_too_much_is_stopped(monkeypatch, tmp_path, name, most):
    script = tmp_path / "unpack.py"
    text = Path(unpack.__file__).read_text(encoding="utf-8").replace("    limit()\n", f"    {name} = {most}\n    limit()\n")
    text = text.replace("    import av\n", "    import av\n    while True: pass\n") if name == "CPU_SECONDS" else text
    script.write_text(text)
    monkeypatch.setattr(containers, "UNPACK", script)
    assert "clip: can't be read as audio" in error_of(packed(SPOKEN))


SILENT = "import time; time.sleep(600)"
DRIPPING = """
import sys, time
sys.stdout.buffer.write(b"16000\\n" + bytes(4 * 8000))
sys.stdout.flush()
time.sleep(600)
"""


@pytest.mark.parametrize("script", [SILENT, DRIPPING], ids=["silent", "dripping"])
def test_who_gives_samples_too_slowly_is_given_up(monkeypatch, tmp_path, script):
    """Before the first, and amid others: it waits for something without taking time of the processor."""
    (tmp_path / "unpack.py").write_text(script)
    monkeypatch.setattr(containers, "UNPACK", tmp_path / "unpack.py")
    monkeypatch.setattr(containers, "PATIENCE", 1.0)
    assert "takes too much time or memory" in error_of(packed(SPOKEN))


def test_nobody_waits_for_what_nobody_wants(monkeypatch, tmp_path):
    (tmp_path / "unpack.py").write_text(SILENT)
    monkeypatch.setattr(containers, "UNPACK", tmp_path / "unpack.py")
    monkeypatch.setattr(containers, "PATIENCE", 600.0)
    pieces = file_pieces(io.BytesIO(packed(SPOKEN)), RATE, name="clip", give_up=lambda: True)
    with pytest.raises(ValueError, match="clip: can't be read as audio"):
        next(pieces)


def test_without_pyav_it_is_named(monkeypatch):
    monkeypatch.setattr(containers.importlib.util, "find_spec", lambda name: None)
    assert "pip install av" in error_of(packed(SPOKEN))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_told_or_read(kind):
    """Whatever FFmpeg makes of them, this process gets samples, or an error of its own."""
    data, generator = packed(SPOKEN, kind=kind), random.Random(0)
    for _ in range(40):
        broken = bytearray(data)
        for _ in range(generator.choice([1, 5, 50])):
            broken[generator.randrange(12, len(broken))] = generator.randrange(256)
        try:
            found = decode_audio(io.BytesIO(bytes(broken)), RATE, "clip")
            assert np.isfinite(found).all() and len(found) < 100 * RATE
        except ValueError as error:
            assert str(error).startswith("clip: ")
