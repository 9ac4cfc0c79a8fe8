"""Graph decoding of logits on a GPU: what is found where they are on the CPU, also where phrases change in mid-utterance."""

from __future__ import annotations

import pytest
import torch
from on_gpu import sized
from transformers import AutoTokenizer

from hf_ngpulm import GraphDecoder, NGramLM
from hf_ngpulm.common.bundled import bundled

pytestmark = pytest.mark.gpu
LENGTH, CUT = sized((24, 10), (6, 3))
CONTEXTS = [["call anna", "new york"], None, [("what", 3.0), "the day"], ["a", "the", "to"]]


def test_graphs():
    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    lm = NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4, LENGTH, 257, generator=generator)
    logits[..., 256] += 4 * torch.rand(4, LENGTH, generator=generator)
    found = []
    for device in ("cpu", "cuda"):
        decoder = GraphDecoder(tokenizer, lm.to(device), 0.6, max_active=16, beta=2.0)
        stream = decoder.stream(4, device, CONTEXTS)
        stream.add(logits[:, :CUT].to(device))
        for row in range(4):
            stream.set_context(row, CONTEXTS[row - 1])
        stream.add(logits[:, CUT:].to(device), torch.tensor([LENGTH - CUT, 0, 2, LENGTH - CUT - 1]))
        found.append(stream.hypotheses())
    for (mine,), (other,) in zip(*found):
        assert mine.token_ids == other.token_ids and mine.token_frames == other.token_frames
        for name in ("score", "acoustic_score", "lm_score", "phrase_score"):
            assert getattr(mine, name) == pytest.approx(getattr(other, name), abs=1e-2), name
