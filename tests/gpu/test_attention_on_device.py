"""Decoders with attention on a real GPU: steps equal to the reference, in CUDA graphs, without waiting, and in `generate`."""

from __future__ import annotations

import copy

import pytest
import torch
from on_gpu import DEVICE, ENGINE, needs_cuda, sized
from speech_models import FAMILIES

from hf_ngpulm import NGramLM, NGramLogitsProcessor
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.search import attention_step as fused
from hf_ngpulm.search.attention_step import END, HOLD, START, TEXT, UNSCORED, FusedRows, Roles
from hf_ngpulm.search.attention_step.loops import end_loops

pytestmark = pytest.mark.gpu
VOCAB_SIZE = sized(51_865, 1500)


@pytest.fixture(scope="module")
def lm():
    generator = torch.Generator().manual_seed(0)
    ranks = (torch.rand(sized(30_000, 200), 15, generator=generator) * torch.tensor(VOCAB_SIZE).log()).exp().long() - 1
    return NGramLM.train(ranks.clamp(0, VOCAB_SIZE - 1).tolist(), vocab_size=VOCAB_SIZE, order=4)


def problem(lm, batch_size, length=40, extra=137):
    """Scores, tokens, rows and roles on the CPU; a row in three has no LM."""
    generator = torch.Generator().manual_seed(batch_size)
    classes = lm.vocab_size + extra
    roles = torch.full((classes,), TEXT)
    roles[lm.vocab_size :] = UNSCORED
    roles[::97] = UNSCORED
    roles[lm.vocab_size], roles[lm.vocab_size + 1], roles[lm.vocab_size + 2] = END, START + UNSCORED, HOLD + UNSCORED
    starts = lm.initial_states(batch_size)
    starts[torch.arange(batch_size) % 3 == 2] = -1
    weights = torch.rand(batch_size, generator=generator)
    rows = FusedRows(lm.tensors, lm.vocab_size, lm.context_length, starts, torch.zeros_like(starts) + lm.roots[0], weights)
    ids = torch.randint(0, lm.vocab_size, (batch_size, length), generator=generator)
    ids[:, 0] = lm.vocab_size + 1
    return 3 * torch.randn(batch_size, classes, generator=generator), ids, rows, Roles.of(roles.to(torch.int8))


def there(part):
    if isinstance(part, torch.Tensor):
        return part.to(DEVICE, copy=True)  # what is changed in place is nobody else's
    return type(part)(*map(there, part)) if isinstance(part, tuple) else part


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("batch_size", sized([1, 5, 33], [3]))
def test_a_step_equals_the_reference(lm, batch_size, shared):
    scores, ids, rows, roles = problem(lm, batch_size)
    ours = there(scores)
    fused.fuse(ours, there(ids), there(rows), there(roles), shared, ENGINE)
    expected = scores.clone()
    fused.fuse(expected, ids, rows, roles, shared, "reference")
    torch.testing.assert_close(ours.cpu(), expected, rtol=2e-5, atol=2e-4)


def test_carried_states_equal_the_reference(lm):
    scores, ids, rows, roles = problem(lm, 6)
    device_rows, device_roles, device_ids = there(rows), there(roles), there(ids)
    states = fused.read(device_ids[:, :-2].contiguous(), device_rows, device_roles, ENGINE)
    for place in (-2, -1):
        states = fused.follow(states, device_ids[:, place].contiguous(), device_rows, device_roles, ENGINE)
    ours = there(scores)
    fused.fuse_at(ours, states, device_rows, device_roles, True, ENGINE, keeps_sums=True)
    expected = scores.clone()
    fused.fuse(expected, ids, rows, roles, True, "reference", keeps_sums=True)
    torch.testing.assert_close(ours.cpu(), expected, rtol=2e-5, atol=5e-4)


def test_loops_equal_those_of_the_reference(lm):
    scores, _, _, roles = problem(lm, 40)
    generator = torch.Generator().manual_seed(1)
    fused_rows, ends = torch.arange(40) % 3 != 1, torch.tensor([0, 1])
    for length in sized((1, 8, 24, 100, 144, 145, 400), (8, 40)):
        ids = torch.randint(0, 3, (40, length), generator=generator)
        ids[::2] = (torch.arange(length) % 5).expand(20, length)
        ids[::4, length // 2] = lm.vocab_size + 1
        ours, expected = there(scores), scores.clone()
        begun = end_loops(ours, there(ids), there(roles).roles, there(fused_rows), there(ends), ENGINE)
        assert torch.equal(begun.cpu(), end_loops(expected, ids, roles.roles, fused_rows, ends, "reference"))
        assert torch.equal(ours.cpu(), expected)


@needs_cuda
def test_steps_run_inside_a_cuda_graph(lm):
    scores, ids, rows, roles = map(there, problem(lm, 8))
    states, tokens = fused.read(ids, rows, roles), ids[:, 0].contiguous()

    def step(scores, states):
        after = fused.follow(states, tokens, rows, roles)
        fused.fuse_at(scores, after, rows, roles)
        fused.fuse(scores, ids, rows, roles, keeps_sums=True)
        return after, end_loops(scores, ids, roles.roles, rows.starts >= 0, ids[0, :2], "auto")

    step(scores.clone(), states)
    torch.cuda.synchronize()
    graph, work = torch.cuda.CUDAGraph(), scores.clone()
    with torch.cuda.graph(graph):
        captured = step(work, states)
    work.copy_(scores)
    tokens.copy_(ids[:, 5])
    graph.replay()
    expected = scores.clone()
    for have, want in zip((*captured, work), (*step(expected, states), expected)):
        assert torch.equal(have, want)


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_processor_never_waits_for_the_device(lm, dtype):
    """A step of `generate` would take as long as all that was launched before it."""
    family = FAMILIES["whisper"]()
    small = NGramLM.train([[1, 2, 3, 4]] * 9, vocab_size=28, order=3).to(DEVICE)
    phrases = [small, small]
    processors = [
        NGramLogitsProcessor(small, 0.3, model=family.model.to(DEVICE)),
        NGramLogitsProcessor(phrases, torch.tensor([0.3, 0.5]), model=family.model),
    ]
    ids = torch.full((2, 30), 3, device=DEVICE)
    for processor in processors:
        scores = torch.randn(2, 91, device=DEVICE, dtype=dtype)
        for _ in range(2):
            processor(ids, scores.clone())
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = processor(ids, scores)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert found.dtype == dtype and not found.isnan().any()


@needs_cuda  # what `generate` does no pretended GPU can
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("way", ["processor", "strategy"])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_models_say_what_they_say_on_a_cpu(name, way, num_beams):
    family = FAMILIES[name]()
    tokens = torch.randint(4, 28, (60, 6), generator=torch.Generator().manual_seed(0)).tolist()
    lm = NGramLM.train(tokens, vocab_size=28, order=3)
    said = {}
    for device in ("cpu", DEVICE):
        model = copy.deepcopy(family.model).to(device)
        inputs = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in family.inputs.items()}
        device_lm = copy.deepcopy(lm).to(device)
        extra = {"num_beams": num_beams, "max_new_tokens": 9}
        settings = family.settings or {}
        if way == "processor":
            extra["logits_processor"] = [NGramLogitsProcessor(device_lm, 0.4, model=model, **settings)]
        else:
            own = {"processor" if key == "tokenizer" else key: value for key, value in settings.items()}
            extra |= {"custom_generate": seq2seq_generate, "lm": device_lm, "lm_weight": 0.4, **own}
        torch.manual_seed(0)
        said[device] = model.generate(**inputs, **extra).tolist()
    assert said[DEVICE] == said["cpu"]
