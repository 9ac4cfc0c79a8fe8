"""WAV files of 16-bit samples, read by the standard library, against libsndfile."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from hf_ngpulm.sound.files import decode_audio
from hf_ngpulm.sound.waves import Wave


def written(samples, rate=16000, subtype="PCM_16", kind="WAV"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def noise(frames, channels=1, seed=0):
    return np.random.default_rng(seed).integers(-(2**15), 2**15, (frames, channels), dtype=np.int16)


def by_libsndfile(data, rate):
    """Decode it as before: as what isn't a WAV file of this kind is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wave, "opened", lambda source: None)
        return decode_audio(io.BytesIO(data), rate, "it")


@given(st.integers(1, 500), st.integers(1, 3), st.sampled_from([8000, 16000, 44100]), st.integers(1, 200))
def test_samples_are_those_of_libsndfile(frames, channels, rate, piece):
    data = written(noise(frames, channels), rate)
    with Wave.opened(io.BytesIO(data)) as ours, soundfile.SoundFile(io.BytesIO(data)) as theirs:
        assert (ours.frames, ours.samplerate, ours.channels) == (theirs.frames, theirs.samplerate, theirs.channels)
        while len(block := theirs.read(piece, dtype="float32", always_2d=True)):
            found = ours.read(piece)
            assert found.dtype == block.dtype and np.array_equal(found, block)
        assert ours.read(piece).shape == (0, channels)
        ours.seek(frames // 2), theirs.seek(frames // 2)
        assert np.array_equal(ours.read(piece), theirs.read(piece, dtype="float32", always_2d=True))


@given(st.data())
def test_damaged_files_are_what_libsndfile_makes_of_them(data):
    """Bytes of the header changed, the end cut off: refused by both, or with the same samples."""
    content = bytearray(written(noise(200)))
    for place in data.draw(st.lists(st.integers(4, 43), max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))]) if data.draw(st.booleans()) else bytes(content)
    found = []
    for read in (lambda: decode_audio(io.BytesIO(content), 16000, "it"), lambda: by_libsndfile(content, 16000)):
        try:
            found.append(read())
        except ValueError:
            found.append(None)
    ours, theirs = found
    assert (ours is None) == (theirs is None)
    assert ours is None or np.array_equal(ours, theirs)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "FLOAT", "ULAW"])
def test_other_kinds_are_left_to_libsndfile(subtype):
    data = written(noise(100).astype(np.float32) / 2**15, subtype=subtype)
    source = io.BytesIO(data)
    assert Wave.opened(source) is None and source.tell() == 0
    assert np.array_equal(decode_audio(source, 16000), by_libsndfile(data, 16000))


def test_other_chunks_are_passed_over():
    samples = noise(100)
    head = written(samples)[12:36]
    extra = b"LIST" + struct.pack("<I", 6) + b"INFOab"
    body = b"WAVE" + head + extra + b"data" + struct.pack("<I", 200) + samples.tobytes() + extra
    source = io.BytesIO(b"RIFF" + struct.pack("<I", len(body)) + body)
    assert Wave.opened(source) is not None
    assert np.array_equal(decode_audio(source, 16000), samples[:, 0] / np.float32(2**15))


@pytest.mark.parametrize("place, value", [(4, 0), (16, 20), (19, 9), (40, 0xFF)])
def test_lengths_that_do_not_fit_are_left_to_libsndfile(place, value):
    """Of the file, of the format, and of the samples."""
    data = bytearray(written(noise(200)))
    data[place] = value
    assert Wave.opened(io.BytesIO(data)) is None


def test_files_are_closed_unless_they_were_open(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(written(noise(100)))
    with Wave.opened(path) as ours:
        assert len(ours.read(1000)) == 100
    assert ours._file.closed
    with path.open("rb") as file:
        with Wave.opened(file):
            pass
        assert not file.closed


def test_a_file_that_promises_more_than_it_has(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(written(noise(1000))[:-1])
    assert Wave.opened(path) is None
    assert len(decode_audio(path, 16000)) == 999
