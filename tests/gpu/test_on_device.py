"""The kernels on a real GPU: equal to the reference, inside CUDA graphs, and at sizes that no CPU reaches."""

from __future__ import annotations

import pytest
import torch
from automata import packed_automaton
from on_gpu import HALVES, needs_cuda, sized

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.automaton import BackoffAutomaton
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.ngrams.table import NGramTable
from hf_ngpulm.search import ctc_beam as beam
from hf_ngpulm.search import ctc_greedy as greedy

pytestmark = pytest.mark.gpu


def random_lm(vocab_size: int, order: int, ngrams: int, seed: int) -> NGramLM:
    """An LM of random n-grams that is closed under prefixes."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for n in range(1, order + 1):
        if n == 1:
            tokens = torch.arange(vocab_size + 3)[:, None]
        else:
            prefixes = rows[-1][0]
            prefixes = prefixes[(prefixes[:, -1] < vocab_size) | ((prefixes[:, -1] == vocab_size) & (n == 2))]
            chosen = prefixes[torch.randint(0, len(prefixes), (ngrams,), generator=generator)]
            last = torch.randint(0, vocab_size + 1, (ngrams, 1), generator=generator)
            last = torch.where(last == vocab_size, vocab_size + 1, last)  # </s>
            tokens = torch.unique(torch.cat([chosen, last], dim=1), dim=0)
        log_probs = -5 * torch.rand(len(tokens), generator=generator) - 0.01
        backoffs = -torch.rand(len(tokens), generator=generator) * (torch.rand(len(tokens), generator=generator) < 0.7)
        rows.append((tokens, log_probs, backoffs))
    return NGramLM.from_table(NGramTable.from_rows(vocab_size, rows))


def some_states(lm: BackoffAutomaton, batch_size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, lm.num_states, (batch_size,), dtype=torch.int32, generator=generator)


SIZES = [(1, 2, 3), (37, 4, 500), (1024, 6, 20_000), (51_865, 3, 90_000)]


@pytest.mark.parametrize(("vocab_size", "order", "ngrams"), sized(SIZES, [*SIZES[:2], (1024, 3, 900)]))
@pytest.mark.parametrize("batch_size", sized([0, 1, 33, 256], [0, 9]))
def test_queries_equal_the_reference(vocab_size, order, ngrams, batch_size):
    lm = random_lm(vocab_size, order, ngrams, seed=1)
    if batch_size * vocab_size > 1 << 22:
        batch_size = 16
    states = some_states(lm, batch_size)
    tokens = torch.randint(-1, vocab_size + 1, (batch_size,))
    sequences, lengths = torch.randint(-1, vocab_size, (batch_size, 12)), torch.randint(0, 13, (batch_size,))
    gpu = packed_automaton([lm]).to("cuda")
    lm.engine = "reference"
    for ours, expected in (
        ((gpu.scores(states),), (lm.scores(states),)),
        (gpu.advance(states), lm.advance(states)),
        (gpu.step(states, tokens), lm.step(states, tokens)),
        (gpu.score_tokens(sequences, lengths), lm.score_tokens(sequences, lengths)),
        ((gpu.states_after(sequences, lengths),), (lm.states_after(sequences, lengths),)),
        ((gpu.final_scores(states),), (lm.final_scores(states),)),
    ):
        for have, want in zip(ours, expected, strict=True):
            torch.testing.assert_close(have.cpu(), want, rtol=1e-5, atol=1e-5)


def test_a_pack_gives_each_row_its_own_model():
    models = [random_lm(64, 4, 300, seed=i) for i in range(5)]
    which = torch.randint(0, 5, (40,))
    sequences = torch.randint(0, 64, (40, 9))
    pack = packed_automaton(models).to("cuda")
    totals = pack.score_sequences(sequences, which=which).cpu()
    for row in range(40):
        expected = models[which[row]].score_sequences(sequences[row : row + 1])
        torch.testing.assert_close(totals[row : row + 1], expected, rtol=1e-5, atol=1e-4)


@needs_cuda
def test_queries_run_inside_a_cuda_graph():
    lm = random_lm(1024, 5, 5000, seed=3).to("cuda")
    states, tokens = some_states(lm, 32).cuda(), torch.randint(0, 1024, (32,), device="cuda")
    lm.advance(states), lm.step(states, tokens), lm.final_scores(states)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores, targets = lm.advance(states)
        step_scores, step_targets = lm.step(states, tokens)
        finals = lm.final_scores(states)
    states.copy_(some_states(lm, 32, seed=9))
    graph.replay()
    for have, want in zip(
        (scores, targets, step_scores, step_targets, finals),
        (*lm.advance(states), *lm.step(states, tokens), lm.final_scores(states)),
        strict=True,
    ):
        torch.testing.assert_close(have, want, rtol=0, atol=0)


@needs_cuda
def test_torch_compile_passes_through():
    lm = random_lm(128, 3, 400, seed=4).to("cuda")

    def advance_twice(states):
        scores, targets = lm.advance(states)
        return lm.scores(targets[:, 5].contiguous()) + scores

    states = some_states(lm, 8).cuda()
    torch.testing.assert_close(torch.compile(advance_twice, fullgraph=True)(states), advance_twice(states))


FRAMES = sized(50, 8)
CLASSES = [(64, 65, 64), (1024, 1025, 0), *sized([(5000, 6000, 5999)], [])]


@pytest.mark.parametrize("rule", greedy.RULES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("vocab_size", "classes", "blank"), CLASSES)
def test_greedy_ctc_equals_the_cpu(rule, dtype, vocab_size, classes, blank):
    lm = random_lm(vocab_size, 4, 3000, seed=5)
    torch.manual_seed(0)
    logits = torch.randn(7, FRAMES, classes)
    logits[..., blank] += 3 * torch.randn(7, FRAMES).abs()
    logits = logits.to(dtype)
    lengths = torch.tensor([FRAMES, 0, 1, FRAMES - 1, 6, 2, FRAMES], dtype=torch.int32)
    states = lm.initial_states(7)[:, None]
    weights = torch.linspace(0, 1.2, 7)[:, None].contiguous()
    before = torch.full((7, 2), blank, dtype=torch.int32)
    arguments, rules = (logits, lengths, states, before), (weights, 3 * weights[:, 0])
    rest = (blank, vocab_size, rule)
    expected = greedy.ctc_greedy(list(lm.tensors), *arguments, greedy.LabelRules(*rules, *rest), "cpu")
    lm.to("cuda")
    on_gpu = greedy.LabelRules(*(a.cuda() for a in rules), *rest)
    ours = greedy.ctc_greedy(list(lm.tensors), *(a.cuda() for a in arguments), on_gpu, "gpu")
    torch.testing.assert_close(ours.labels.cpu(), expected.labels)
    torch.testing.assert_close(ours.states.cpu(), expected.states)
    torch.testing.assert_close(ours.acoustic_scores.cpu(), expected.acoustic_scores, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(ours.lm_scores.cpu(), expected.lm_scores, rtol=1e-4, atol=1e-3)


def beam_arguments(lm: NGramLM, logits: torch.Tensor, blank: int, num_beams: int, device: str) -> list:
    batch_size, frames, _ = logits.shape
    lengths = torch.tensor([frames, 0, 1, frames - 1, 6, 2, frames], dtype=torch.int32)[:batch_size]
    weights = torch.linspace(0, 1.2, batch_size)[:, None].contiguous()
    state = beam.initial_state(num_beams, lm.initial_states(batch_size)[:, None].cpu())
    weights = [tensor.to(device) for tensor in (weights, 0.5 + weights[:, 0], -2 - weights[:, 0])]
    arguments = [[tensor.to(device) for tensor in lm.tensors], beam.BeamState(*(tensor.to(device) for tensor in state))]
    return [*arguments, logits.to(device), lengths.to(device), beam.BeamRules(*weights, blank, lm.vocab_size)]


def scores_by_prefix(state: beam.BeamState, row: int) -> dict[tuple[int, int], torch.Tensor]:
    """Length and hash of each prefix of a row with its score, LM score and LM state."""
    alignments = torch.logaddexp(state.blank_scores[row], state.token_scores[row]).double()
    totals = alignments + state.offsets[row] + state.fused[row]
    keys = zip(state.sizes[row].tolist(), state.hashes[row].tolist())
    values = torch.stack([totals, state.lm_scores[row, :, 0].double(), state.lm_states[row, :, 0].double()], dim=1).cpu()
    return {key: value for key, value in zip(keys, values) if value[0] > -torch.inf}


@pytest.mark.parametrize("num_beams", sized([1, 4, 8, 32], [4]))
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("vocab_size", "classes", "blank"), CLASSES)
def test_beam_ctc_equals_the_cpu(num_beams, dtype, vocab_size, classes, blank):
    if dtype != torch.float32 and (num_beams, vocab_size) != (sized(8, 4), 1024):
        pytest.skip("one size is enough for half precision")
    lm = random_lm(vocab_size, 4, 3000, seed=5)
    torch.manual_seed(0)
    logits = torch.randn(7, FRAMES, classes)
    logits[..., blank] += 3 * torch.randn(7, FRAMES).abs()
    logits = logits.to(dtype)
    expected, expected_frames = beam.ctc_beam(*beam_arguments(lm, logits, blank, num_beams, "cpu"), engine="cpu")
    ours, frames = beam.ctc_beam(*beam_arguments(lm, logits, blank, num_beams, "cuda"), engine="gpu")
    assert frames.bad_frames.tolist() == expected_frames.bad_frames.tolist()
    size = common = 0
    for row in range(7):
        found, wanted = scores_by_prefix(ours, row), scores_by_prefix(expected, row)
        assert max(found, key=lambda key: found[key][0]) == max(wanted, key=lambda key: wanted[key][0])
        size, common = size + len(wanted), common + len(found.keys() & wanted.keys())
        for key in found.keys() & wanted.keys():
            torch.testing.assert_close(found[key], wanted[key], rtol=1e-4, atol=2e-3)
    assert common >= 0.95 * size  # in single and double precision the last of a beam may differ


@needs_cuda
@pytest.mark.parametrize("num_beams", [4, 32])
def test_beam_ctc_runs_inside_a_cuda_graph(num_beams):
    lm = random_lm(1024, 5, 5000, seed=3)
    torch.manual_seed(0)
    samples = torch.randn(2, 7, 50, 1025)
    samples[..., 1024] += 3 * torch.randn(2, 7, 50).abs()
    arguments = beam_arguments(lm, samples[0], 1024, num_beams, "cuda")
    beam.ctc_beam(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = beam.ctc_beam(*arguments)
    arguments[2].copy_(samples[1])
    graph.replay()
    for have, want in zip(captured, beam.ctc_beam(*arguments), strict=True):
        for ours, expected in zip(have, want, strict=True):
            assert torch.equal(ours, expected)


def test_beam_ctc_goes_on_where_it_stopped():
    lm = random_lm(1024, 4, 3000, seed=5)
    torch.manual_seed(0)
    logits = torch.randn(7, FRAMES, 1025)
    logits[..., 1024] += 3 * torch.randn(7, FRAMES).abs()
    arguments = beam_arguments(lm, logits, 1024, 8, "cuda")
    whole, _ = beam.ctc_beam(*arguments)
    lengths, begin = arguments[3], 0
    for end in (1, 5, FRAMES):
        arguments[2], arguments[3] = logits[:, begin:end].cuda(), (lengths - begin).clamp(0, end - begin)
        arguments[1], _ = beam.ctc_beam(*arguments)
        begin = end
    for row in range(7):
        parts, together = scores_by_prefix(arguments[1], row), scores_by_prefix(whole, row)
        assert parts.keys() == together.keys()
        for key in parts:
            torch.testing.assert_close(parts[key], together[key], rtol=1e-5, atol=1e-4)


def test_nan_logits_are_reported():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    lm = NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id", device="cuda")
    logits = torch.randn(2, 9, 257, device="cuda")
    logits[1, 4, 7] = float("nan")
    with pytest.raises(ValueError, match=r"row 1 .* frame 4"):
        CTCDecoder(tokenizer, lm)(logits)
    assert len(CTCDecoder(tokenizer, lm)(logits, torch.tensor([9, 4]))) == 2


def test_a_model_may_move_between_calls():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    lm = random_lm(256, 3, 500, seed=6)
    logits = torch.randn(3, 20, 257, generator=torch.Generator().manual_seed(0))
    decoder = CTCDecoder(tokenizer, lm, 0.5)
    expected = [best.token_ids for (best,) in decoder(logits)]
    lm.to("cuda")
    assert [best.token_ids for (best,) in decoder(logits)] == expected
    assert [best.token_ids for (best,) in decoder(logits.cuda())] == expected
