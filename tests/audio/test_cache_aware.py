"""Nemotron's encoder chunk by chunk: the frames of the whole recording, whatever else is in the batch."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from tiny_transducers import FAMILIES, tiny_model

from hf_ngpulm.audio.cache_aware import CacheAwareEncoder
from hf_ngpulm.decoding.families import CACHE

FAMILIES = [family for family in FAMILIES if family[0].startswith("Nemotron")]
if not FAMILIES:
    pytest.skip("Transformers without Nemotron", allow_module_level=True)
from transformers.models.nemotron_asr_streaming.feature_extraction_nemotron_asr_streaming import (  # noqa: E402
    NemotronAsrStreamingFeatureExtractor,
)

EXTRACTOR = NemotronAsrStreamingFeatureExtractor(feature_size=8)
if "is_last_audio_chunk" not in inspect.signature(type(EXTRACTOR).__call__).parameters:
    pytest.skip("Transformers that doesn't know the last chunk of a stream", allow_module_level=True)
HOP = EXTRACTOR.hop_length
# Around where frames and chunks begin, and of some length.
LENGTHS = [HOP, HOP + 1, 5000, 8 * HOP, 9 * HOP, 10 * HOP - 1, 16000, 33333, 40 * HOP, 41 * HOP, 42 * HOP, 48000]


def model_of(family, sliding_window):
    name, extra = family
    model = tiny_model(name, extra, layers=1, seed=3)
    model.encoder.config.sliding_window = sliding_window
    return model


def recordings(lengths, seed=0):
    generator = np.random.default_rng(seed)
    return [(0.1 * generator.standard_normal(length)).astype(np.float32) for length in lengths]


@torch.inference_mode()
def offline(model, samples, lookahead):
    inputs = EXTRACTOR([samples], sampling_rate=16000, return_tensors="pt")
    outputs = model.get_audio_features(**inputs, num_lookahead_tokens=lookahead, output_attention_mask=True)
    return outputs.pooler_output[0, : int(outputs.attention_mask.sum())]


@pytest.mark.parametrize("lookahead, sliding_window", [(0, 9), (1, 9), (1, 8), (3, 21), (6, 71), (13, 9)])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family[0])
def test_streams_of_any_age_give_the_frames_of_whole_recordings(family, lookahead, sliding_window):
    """Five slots for twelve recordings, which begin and end at any time and come in pieces of any size."""
    model = model_of(family, sliding_window)
    encoder = CacheAwareEncoder(model, EXTRACTOR, 5, lookahead)
    audio = recordings(LENGTHS)
    found = {sid: [] for sid in range(len(audio))}
    coming, live, generator, widest = list(found), {}, np.random.default_rng(lookahead), 0
    while coming or live:
        while coming and len(live) < 5 and generator.random() < 0.5:
            sid = coming.pop()
            encoder.open(sid)
            live[sid] = 0
        for sid, at in live.items():
            end = at + int(generator.integers(0, 4000))
            encoder.audio[sid].append(audio[sid][at:end])
            live[sid], encoder.audio[sid].ended = end, end >= len(audio[sid])
        ready = [sid for sid in live if encoder.ready(sid)]
        if ready:
            widest = max(widest, len(ready))
            for sid, frames in zip(ready, encoder.encode(ready)):
                assert len(frames) <= lookahead + 1
                found[sid].append(frames)
        for sid in [sid for sid in live if encoder.audio[sid].ended and not encoder.ready(sid)]:
            assert encoder.waiting(sid) < (lookahead + 2) * 8 * HOP
            encoder.close(sid)
            del live[sid]
    assert widest > 1
    for sid, samples in enumerate(audio):
        torch.testing.assert_close(torch.cat(found[sid]), offline(model, samples, lookahead), atol=1e-5, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("lookahead", [0, 2])
def test_whole_chunks_are_those_of_the_models_own_streaming(lookahead):
    model = model_of(FAMILIES[0], 9)
    encoder = CacheAwareEncoder(model, EXTRACTOR, 1, lookahead)
    encoder.open(0)
    (samples,) = recordings([48000])
    mels = EXTRACTOR([samples], sampling_rate=16000, return_tensors="pt")["input_features"]
    encoder.audio[0].append(samples)
    first, caches = 1 + 8 * lookahead, {CACHE: None, "padding_cache": None}
    while first <= mels.shape[1]:
        chunk = mels[:, max(0, first - 8 * (lookahead + 1)) : first]
        theirs = model.get_audio_features(
            chunk, num_lookahead_tokens=lookahead, use_cache=True, output_attention_mask=False, **caches
        )
        caches = {name: getattr(theirs, name) for name in caches}
        (ours,) = encoder.encode([0])
        torch.testing.assert_close(ours, theirs.pooler_output[0], atol=1e-5, rtol=0)
        first += 8 * (lookahead + 1)


def test_a_broken_recording_leaves_nothing_in_its_slot():
    model = model_of(FAMILIES[0], 9)
    encoder = CacheAwareEncoder(model, EXTRACTOR, 2, 1)
    (samples,) = recordings([20000])
    for sids, loudness in (((0, 1), 1e30), ((2, 3), 1)):
        for sid, factor in zip(sids, (loudness, 1)):
            encoder.open(sid)
            encoder.audio[sid].append(samples * np.float32(factor))
            encoder.audio[sid].ended = True
        chunks = []
        while encoder.ready(sids[0]):
            chunks.append(encoder.encode(sids))
        first, second = (torch.cat(of_stream) for of_stream in zip(*chunks))
        assert bool(torch.isfinite(first).all()) == (loudness == 1)
        for frames in (second, first)[: 1 + (loudness == 1)]:
            torch.testing.assert_close(frames, offline(model, samples, 1), atol=1e-5, rtol=0)
        for sid in sids:
            encoder.close(sid)


def test_encoders_built_otherwise_are_refused():
    model = model_of(FAMILIES[0], 9)
    with pytest.raises(ValueError, match="num_lookahead_tokens"):
        CacheAwareEncoder(model, EXTRACTOR, 2, -1)
    model.config.encoder_config.subsampling_conv_kernel_size = 5
    with pytest.raises(ValueError, match="kernels of 5"):
        CacheAwareEncoder(model, EXTRACTOR, 2, 1)
