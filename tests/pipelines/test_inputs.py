"""What pipelines read without ffmpeg and torchaudio, and that with them the stock pipeline's samples stay."""

from __future__ import annotations

import http.server
import io
import stat
import sys
import threading

import numpy as np
import pytest
import soundfile
import torch
from transformers import AutomaticSpeechRecognitionPipeline, pipeline

from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.pipelines import inputs as module
from hf_ngpulm.pipelines.inputs import readable
from hf_ngpulm.sound.files import read_audio, resample

CLIP = sorted((bundled("examples/speech/harbour") / "clips").iterdir())[0]
TASK = "automatic-speech-recognition"
RATE = 16000


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without ffmpeg and torchaudio."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "is_torchaudio_available", lambda: False)


@pytest.fixture(scope="module")
def asr():
    return pipeline(TASK, model=str(bundled("examples/models/ctc")), dtype=torch.float32)


@pytest.fixture(scope="module")
def expected(asr):
    return asr(read_audio(CLIP, RATE))


@pytest.fixture(scope="module")
def of_stereo(asr, stereo):
    return asr(read_audio(stereo, RATE))


@pytest.fixture(scope="module")
def stereo(tmp_path_factory):
    """The clip at 44.1 kHz, with two channels that are the same but for noise that they don't agree on."""
    samples = resample(read_audio(CLIP, RATE), RATE, 44100)
    noise = np.random.default_rng(0).standard_normal(len(samples)).astype(np.float32) / 4
    path = tmp_path_factory.mktemp("stereo") / "clip.wav"
    soundfile.write(path, np.stack([samples + noise, samples - noise], axis=1), 44100, subtype="FLOAT")
    return path


def test_files_bytes_and_what_data_sets_give(bare, asr, expected):
    data = CLIP.read_bytes()
    for given in (str(CLIP), CLIP, data, {"path": str(CLIP)}, {"bytes": None, "path": CLIP}, {"bytes": data, "path": "a.flac"}):
        assert asr(given) == expected
    assert asr({"bytes": data, "path": "a.flac", "speaker": 7}) == {**expected, "speaker": [7]}
    assert asr([str(CLIP), CLIP], batch_size=2) == [expected, expected]
    assert asr(str(CLIP), num_beams=4) == asr(read_audio(CLIP, RATE), num_beams=4)


def test_an_address(bare, asr, expected):
    class Clip(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/clip.flac" else 404)
            self.end_headers()
            self.wfile.write(CLIP.read_bytes())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Clip) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert asr(f"{address}/clip.flac") == expected
        with pytest.raises(Exception, match="404"):
            asr(f"{address}/other.flac")
        server.shutdown()


def test_other_rates_and_channels(bare, asr, of_stereo, stereo):
    both, rate = soundfile.read(stereo, dtype="float32")
    for given in (both.T, both.mean(axis=1), torch.from_numpy(both.T.copy()), both.T.astype(np.float64)):
        for key in ("raw", "array"):
            assert asr({key: given, "sampling_rate": rate}) == of_stereo
    assert asr(str(stereo)) == of_stereo
    assert asr({"array": both.T, "sampling_rate": rate, "path": "a.wav", "speaker": 7}) == {**of_stereo, "speaker": [7]}
    with pytest.raises(ValueError, match=r"raw should be samples \[N\], or .* with 1 or 2 channels, got \[\d+, 2\]"):
        asr({"raw": both, "sampling_rate": rate})
    for wrong in (0, -1, float("nan"), 10**9, "44100"):
        with pytest.raises(ValueError, match="sampling_rate should be a whole number from 1000 to 1000000, got"):
            asr({"raw": both.T, "sampling_rate": wrong})


def test_strides_go_along(bare, asr):
    samples = read_audio(CLIP, RATE)
    at_44 = readable({"raw": resample(samples, RATE, 44100), "sampling_rate": 44100, "stride": (4410, 8820)}, RATE)
    assert at_44["stride"] == (1600, 3200) and at_44["sampling_rate"] == RATE
    assert abs(len(at_44["raw"]) - len(samples)) <= 1


def test_decoders_of_torchcodec(bare, asr, of_stereo, stereo):
    class Decoder:
        def get_all_samples(self):
            data, rate = soundfile.read(stereo, dtype="float32")
            return type("Samples", (), {"data": torch.from_numpy(data.T.copy()), "sample_rate": rate})

    assert asr(Decoder()) == of_stereo


def test_what_cannot_be_read(bare, asr, tmp_path, monkeypatch):
    (tmp_path / "notes.wav").write_text("no audio at all")
    with pytest.raises(ValueError, match=r"notes\.wav: can't be read as audio: "):
        asr(str(tmp_path / "notes.wav"))
    soundfile.write(tmp_path / "empty.wav", np.zeros(0, dtype=np.float32), RATE)
    with pytest.raises(ValueError, match=r"empty\.wav: holds no samples"):
        asr(str(tmp_path / "empty.wav"))
    with pytest.raises(FileNotFoundError, match=r"none\.wav"):
        asr(str(tmp_path / "none.wav"))
    with pytest.raises(ValueError, match="dict needs to contain"):
        asr({"bytes": None, "path": None})

    # On a machine that lacks the extra, too, errors name the remedy.
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=r"flac: reading it needs ffmpeg, or soundfile: pip install 'hf-ngpulm\[audio\]'"):
        asr(str(CLIP))
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(ImportError, match=r"audio at 8000 Hz: .* torchaudio, or soxr: pip install 'hf-ngpulm\[audio\]'"):
        asr({"raw": np.zeros(8000, dtype=np.float32), "sampling_rate": 8000})


def test_with_ffmpeg_its_samples_are_taken(asr, tmp_path, monkeypatch):
    """A program of that name, whose samples are other ones than the file's: what comes out are the stock pipeline's results."""
    others = read_audio(sorted(CLIP.parent.iterdir())[1], RATE)
    others.astype("<f4").tofile(tmp_path / "samples")
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\n/bin/cat >/dev/null\n/bin/cat {tmp_path / 'samples'}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path))
    stock = AutomaticSpeechRecognitionPipeline(asr.model, asr.feature_extractor, asr.tokenizer)
    assert asr(str(CLIP)) == asr(CLIP.read_bytes()) == stock(str(CLIP)) == asr(others) != asr(read_audio(CLIP, RATE))

    # What it can't read, such as MP4 from a pipe with its index at the end, is read here.
    program.write_text("#!/bin/sh\n/bin/cat >/dev/null\nexit 1\n")
    assert asr(str(CLIP)) == asr(read_audio(CLIP, RATE))
    with pytest.raises(ValueError, match="audio: can't be read as audio: "):
        asr(io.BytesIO(b"no audio").getvalue())


def test_with_torchaudio_the_stock_pipeline_resamples(monkeypatch):
    monkeypatch.setattr(module, "is_torchaudio_available", lambda: True)
    given = {"raw": np.zeros(8000, dtype=np.float32), "sampling_rate": 8000}
    assert readable(given, RATE) is given
