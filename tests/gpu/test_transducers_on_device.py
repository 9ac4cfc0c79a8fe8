"""Transducers on a real GPU: what the CPU finds, also from the third batch on, when a search is a CUDA graph."""

from __future__ import annotations

import copy

import pytest
import torch
from letters import Letters
from on_gpu import sized
from toys import Toy

from hf_ngpulm import NGramLM, TransducerDecoder
from hf_ngpulm.search.networks.graphs import Repeated

pytestmark = pytest.mark.gpu


SEARCHES = [(None, "greedy"), (None, "alsd"), (None, "aes"), ((0, 1, 2, 3, 4), "greedy"), ((0, 1, 2, 3, 4), "alsd")]


@pytest.mark.slow
@pytest.mark.parametrize(("durations", "strategy"), sized(SEARCHES, SEARCHES[2:]))
@pytest.mark.parametrize("with_lm", sized([False, True], [True]))
def test_batches_equal_those_of_the_cpu(durations, strategy, with_lm, monkeypatch):
    recorded, record = [], Repeated.record
    monkeypatch.setattr(Repeated, "record", lambda work, device: (recorded.append(work), record(work, device)))
    generator = torch.Generator().manual_seed(0)
    lm = NGramLM.train(torch.randint(0, 30, (sized(300, 40), 9), generator=generator).tolist(), vocab_size=30, order=4)
    options = {"lm_weight": 0.6, "strategy": strategy, **({} if strategy == "greedy" else {"num_beams": sized(6, 3)})}
    model, letters = Toy(31, 30, durations, seed=4, size=24), Letters([chr(97 + i) for i in range(30)])
    on_cpu = TransducerDecoder(model, letters, lm if with_lm else None, **options)
    device_lm = copy.deepcopy(lm).to("cuda") if with_lm else None
    on_gpu = TransducerDecoder(copy.deepcopy(model).to("cuda"), letters, device_lm, **options)
    for size, longest in sized(((5, 50), (8, 33), (6, 60), (7, 64), (1, 10)), ((3, 4), (4, 3), (1, 2))):
        frames = 1.5 * torch.randn(size, longest, 24, generator=generator)
        lengths = torch.randint(0, longest + 1, (size,), generator=generator)
        for (ours,), (expected,) in zip(on_gpu.decode(frames.cuda(), lengths.cuda()), on_cpu.decode(frames, lengths)):
            assert (ours.token_ids, ours.token_frames, ours.token_ends) == (
                expected.token_ids, expected.token_frames, expected.token_ends
            )  # fmt: skip
            assert ours.score == pytest.approx(expected.score, abs=1e-2)
            assert ours.token_confidences == pytest.approx(expected.token_confidences, abs=1e-3)
    assert sum(each.is_recorded for each in recorded) == 1


@pytest.mark.parametrize("strategy", ["alsd", "aes"])
def test_beams_too_large_for_kernels_are_searched_on_the_cpu(strategy):
    """The networks stay on the device."""
    generator = torch.Generator().manual_seed(0)
    lm = NGramLM.train(torch.randint(0, 6, (40, 5), generator=generator).tolist(), vocab_size=6, order=2)
    model, letters, options = Toy(7, 6, seed=4), Letters("abcdef"), {"strategy": strategy, "num_beams": 45}
    on_gpu = TransducerDecoder(copy.deepcopy(model).to("cuda"), letters, copy.deepcopy(lm).to("cuda"), 0.5, **options)
    frames, lengths = 1.5 * torch.randn(3, 9, 6, generator=generator), torch.tensor([9, 0, 5])
    expected = TransducerDecoder(model, letters, lm, 0.5, **options).decode(frames, lengths)
    found = on_gpu.decode(frames.cuda(), lengths.cuda())
    for (ours,), (theirs,) in zip(found, expected):
        assert (ours.token_ids, ours.token_frames) == (theirs.token_ids, theirs.token_frames)
        assert ours.score == pytest.approx(theirs.score, abs=1e-3)
