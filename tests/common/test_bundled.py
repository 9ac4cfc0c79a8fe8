"""The model, the language model and the recording that pages begin with."""

from __future__ import annotations

import sys

import pytest
from transformers import pipeline

import hf_ngpulm


def test_the_demo_needs_its_language_model_to_be_understood():
    samples = hf_ngpulm.demo_recording()
    assert (samples.dtype, samples.ndim) == ("float32", 1) and 2.5 < len(samples) / 16000 < 3.5
    asr = pipeline("automatic-speech-recognition", model=hf_ngpulm.demo_model())
    said = "tell the harbour master we will be twenty minutes late"
    assert asr(samples)["text"] != said
    assert asr(samples, lm=hf_ngpulm.demo_lm())["text"] == said


def test_a_recording_needs_what_reads_audio(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ModuleNotFoundError, match=r"soundfile.*hf-ngpulm\[audio\]"):
        hf_ngpulm.demo_recording()
