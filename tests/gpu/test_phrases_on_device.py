"""Phrases on a real GPU: contexts of rows, of streams and of recordings give what they give on the CPU."""

from __future__ import annotations

import pytest
import torch
from on_gpu import sized
from toys import Toy
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, NGramLM, NGramLogitsProcessor, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BLANK = 256
STRATEGIES = sized([(None, ("greedy", "alsd", "aes")), ((0, 1, 2), ("greedy", "alsd"))], [((0, 1, 2), ("greedy",))])
LENGTH, STEP = sized((24, 7), (3, 2))
CONTEXTS = [["call anna", "new york"], None, [("what", 3.0), "the day"], {"weather": 2.0, "alarm": -1.0}, ["a", "the", "to"]]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


def frames_of(size, length=LENGTH):
    generator = torch.Generator().manual_seed(0)
    frames = 2 * torch.randn(len(CONTEXTS), length, size, generator=generator)
    if size == 257:
        frames[..., BLANK] += 4 * torch.rand(frames.shape[:2], generator=generator)
    return frames


def close(found, expected):
    for mine, other in zip(found, expected, strict=True):
        assert mine.token_ids == other.token_ids
        for name in ("score", "acoustic_score", "lm_score", "phrase_score"):
            assert getattr(mine, name) == pytest.approx(getattr(other, name), abs=2e-2), name


def decoders(device, tokenizer, lm):
    settings = {"lm": lm, "lm_weight": 0.4, "phrase_weight": 2.0}
    yield CTCDecoder(tokenizer, **settings), 257
    yield CTCDecoder(tokenizer, **settings, num_beams=4), 257
    for durations, strategies in STRATEGIES:
        for strategy in strategies:
            model = Toy(257, BLANK, durations, seed=1, blank_bias=3.0).to(device)
            yield TransducerDecoder(model, tokenizer, **settings, strategy=strategy, frame_seconds=0.08), 6


@pytest.mark.slow
def test_contexts_of_rows_and_streams(tokenizer, lm):
    for (here, size), (there, _) in zip(decoders("cpu", tokenizer, lm), decoders(DEVICE, tokenizer, lm)):
        frames = frames_of(size)
        calls = [each if isinstance(each, CTCDecoder) else each.decode for each in (here, there)]
        expected = calls[0](frames, None, CONTEXTS)
        for row, found in enumerate(calls[1](frames.to(DEVICE), None, CONTEXTS)):
            close(found, expected[row])
        streams = StreamingDecoder(there, max_streams=len(CONTEXTS), device=DEVICE)
        sids = [streams.open(phrases=context) for context in CONTEXTS]
        for first in range(0, frames.shape[1], STEP):
            streams.step({sid: frames[row, first : first + STEP].to(DEVICE) for row, sid in enumerate(sids)})
        for row, sid in enumerate(sids):
            close(streams.close(sid), expected[row])


def test_contexts_of_recordings(tokenizer, lm):
    class Bare:
        """What a processor asks a model for."""

        class config:
            model_type, is_encoder_decoder, eos_token_id, decoder_start_token_id = "speech_to_text", True, 258, 257

        generation_config = None

        def modules(self):
            return []

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(len(CONTEXTS), 260, generator=generator)
    ids = torch.tensor([[257, *tokenizer("call what", add_special_tokens=False)["input_ids"]]]).repeat(len(CONTEXTS), 1)
    processor = NGramLogitsProcessor(lm, 0.3, model=Bare(), phrases=CONTEXTS, tokenizer=tokenizer, in_place=False)
    found = processor(ids.to(DEVICE), scores.to(DEVICE)).cpu()
    torch.testing.assert_close(found, processor(ids, scores), rtol=1e-4, atol=1e-4)
