"""Windows around chunks: no frame is lost, doubled or displaced where they meet."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCTC, AutoProcessor, Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

from hf_ngpulm.audio.buffered import BufferedEncoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.families import encoded

DEMO = bundled("examples/speech/harbour")


class Sums:
    """A model of which each frame is the sum of `width` samples, every `stride` of them, padded at the end or not."""

    main_input_name, device, dtype = "input_values", torch.device("cpu"), torch.float64

    def __init__(self, stride, width, padded):
        self.stride, self.width, self.padded = stride, width, padded

    def _get_feat_extract_output_lengths(self, lengths):
        if self.padded:
            return -(-lengths // self.stride)
        return torch.where(lengths < self.width, 0, (lengths - self.width) // self.stride + 1)

    def __call__(self, input_values, attention_mask):
        return SimpleNamespace(logits=self.encode(input_values, attention_mask)[0])

    def encode(self, samples, mask):
        lengths = self._get_feat_extract_output_lengths(mask.sum(1))
        padded = torch.nn.functional.pad(samples * mask, (0, self.width + self.stride))
        frames = padded.unfold(1, self.width, self.stride).sum(-1)
        return frames[..., None], lengths


class Raw:
    """An extractor that leaves audio as it is."""

    sampling_rate, padding_value = 100, 0.0

    def __call__(self, pieces, sampling_rate, padding, return_tensors):
        (samples,) = pieces
        values = torch.from_numpy(samples).double()[None]
        return {"input_values": values, "attention_mask": torch.ones(values.shape, dtype=torch.bool)}


def in_pieces(encoder, audio, draw):
    """The frames of several recordings, pushed in pieces of any size; each chunk as long as it should be."""
    found = {sid: [] for sid in range(len(audio))}
    at = dict.fromkeys(found, 0)
    for sid in found:
        encoder.open(sid)
    while True:
        ready = [sid for sid in found if encoder.ready(sid)]
        for sid, frames in zip(ready, encoder.encode(ready) if ready else []):
            assert len(frames) == encoder.chunk or encoder.audio[sid].ended
            found[sid].append(frames)
        if not ready and all(recording.ended for recording in encoder.audio.values()):
            break
        for sid in found:
            end = at[sid] + draw()
            encoder.audio[sid].append(audio[sid][at[sid] : end])
            at[sid], encoder.audio[sid].ended = end, end >= len(audio[sid])
    return [torch.cat(frames) if frames else None for frames in found.values()]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 20),
    st.booleans(),
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
    st.integers(0, 1000),
)
def test_frames_that_hear_little_are_those_of_whole_recordings(stride, width, padded, lengths, cut, seed):
    """Any stride, width and cut; a frame that is padded at the end must not hear padding within the recording."""
    width = min(width, stride) if padded else width
    model, generator = Sums(stride, width, padded), np.random.default_rng(seed)
    chunk, left, right = (frames * stride / Raw.sampling_rate for frames in cut)
    encoder = BufferedEncoder(model, Raw(), chunk, left, right)
    assert (encoder.stride, encoder.chunk, encoder.left, encoder.right) == (stride, *cut)
    audio = [generator.integers(1, 1000, length).astype(np.float32) for length in lengths]
    found = in_pieces(encoder, audio, lambda: int(generator.integers(0, 40)))
    for samples, ours in zip(audio, found):
        frames, count = model.encode(torch.from_numpy(samples).double()[None], torch.ones((1, len(samples))))
        theirs = frames[0, : int(count[0])]
        assert (ours is None and not len(theirs)) or torch.equal(ours, theirs)


def test_what_is_kept_of_a_long_recording_is_bounded():
    model = Sums(4, 4, True)
    encoder = BufferedEncoder(model, Raw(), 0.4, 0.8, 0.4)
    encoder.open(0)
    for _ in range(300):
        encoder.audio[0].append(np.ones(7, dtype=np.float32))
        while encoder.ready(0):
            encoder.encode([0])
    assert encoder.waiting(0) < 100 and sum(map(len, encoder.audio[0]._pieces)) <= (10 + 20 + 10) * 4 + 2 * 7


def wav2vec2(mask):
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=5, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8),
        conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, feat_extract_norm="layer" if mask else "group",
    )  # fmt: skip
    return Wav2Vec2ForCTC(config).eval(), Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=mask)


def parakeet():
    return AutoModelForCTC.from_pretrained(
        bundled("examples/models/ctc"), dtype=torch.float32
    ).eval(), AutoProcessor.from_pretrained(bundled("examples/models/ctc")).feature_extractor


@torch.inference_mode()
@pytest.mark.parametrize(
    "make", [parakeet, lambda: wav2vec2(True), lambda: wav2vec2(False)], ids=["parakeet", "wav2vec2", "wav2vec2 without mask"]
)
def test_windows_that_cover_all_give_the_frames_of_whole_recordings(make):
    """Together in a batch; by models without a mask they are encoded apart, since padding would be heard."""
    model, extractor = make()
    encoder = BufferedEncoder(model, extractor, 0.3, 10, 10)
    generator = np.random.default_rng(0)
    audio = [(0.1 * generator.standard_normal(length)).astype(np.float32) for length in (9000, 12800, 15999, 16000, 4000)]
    found = in_pieces(encoder, audio, lambda: 4000)
    for samples, ours in zip(audio, found):
        inputs = extractor([samples], sampling_rate=16000, return_tensors="pt")
        (theirs,), lengths = encoded(model, inputs[model.main_input_name], inputs.get("attention_mask"))
        theirs = theirs if lengths is None else theirs[: int(lengths[0])]
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)


@torch.inference_mode()
def test_a_window_doesnt_hear_its_neighbours():
    """Windows of other lengths in the batch, with and without them."""
    model, extractor = parakeet()
    generator = np.random.default_rng(1)
    audio = [(0.1 * generator.standard_normal(length)).astype(np.float32) for length in (40000, 9000, 25000)]
    together = in_pieces(BufferedEncoder(model, extractor, 0.64, 0.64, 0.32), audio, lambda: 7000)
    for samples, ours in zip(audio, together):
        (alone,) = in_pieces(BufferedEncoder(model, extractor, 0.64, 0.64, 0.32), [samples], lambda: 3000)
        torch.testing.assert_close(ours, alone, atol=2e-4, rtol=0)


def test_models_that_cannot_be_cut():
    model = SimpleNamespace(main_input_name="input_values", device="cpu", dtype=torch.float32)
    with pytest.raises(ValueError, match="can't be streamed: it has no _get_feat"):
        BufferedEncoder(model, Raw(), 1.0, 1.0, 1.0)
    model = Sums(4, 4, True)
    for cut in ((0, 1, 1), (-1, 1, 1), (1, 1, 1e9)):
        with pytest.raises(ValueError, match="_seconds should be from 0 to 600"):
            BufferedEncoder(model, Raw(), *cut)
    for cut in ((1, float("nan"), 1), ("1", 1, 1)):
        with pytest.raises(ValueError, match="_seconds should be from 0 to 600"):
            BufferedEncoder(model, Raw(), *cut)
