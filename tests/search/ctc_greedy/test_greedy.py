"""Greedy CTC with language models: every engine gives what the plain reference gives, and the rules do what they say."""

from __future__ import annotations

import pytest
import torch
from automata import automata, build_automaton, seeds
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from interpreted import aligned
from property_examples import examples
from toys import SHARES, moved, noises

from hf_ngpulm.search import ctc_greedy as greedy

DEVICE = {"cpu": "cpu", "gpu": "cuda" if torch.cuda.is_available() else "cpu"}
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


def call(automaton, logits, lengths, states, weights, stay_costs, blank, rule, engine, before=None):
    if engine == "gpu":
        pytest.importorskip("triton")  # there is none but on Linux
    device = DEVICE.get(engine, "cpu")
    tensors = [tensor.to(device) for tensor in automaton.tensors]
    before = torch.full((len(logits), 2), blank, dtype=torch.int32) if before is None else before
    rules = greedy.LabelRules(weights.to(device), stay_costs.to(device), blank, automaton.vocab_size, rule)
    result = greedy.ctc_greedy(tensors, *(a.to(device) for a in (logits, lengths, states, before)), rules, engine)
    return greedy.GreedyLabels(*(tensor.cpu() for tensor in result))


DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LAYOUTS = ["plain", "classes first", "sliced", "time first"]
KINDS = st.tuples(st.integers(1, 2), st.sampled_from(DTYPES), st.sampled_from(greedy.RULES), st.sampled_from(LAYOUTS))
# Kernels are compiled for each, which takes seconds.
FEW_KINDS = st.sampled_from([(1 + number % 2, *kind) for number, kind in enumerate(zip(DTYPES, greedy.RULES, LAYOUTS))])


@st.composite
def problems(draw, longest=12, most_classes=40, kinds=KINDS):
    """An automaton (or a pack) and a batch of logits: all arguments of `call` but the engine.

    Args:
        kinds: number of automata, type of the logits, rule for repeats, and how the logits lie in memory. With few kinds there
            are two frames or more: strides of one would be a kind.
    """
    automaton = draw(automata(st.integers(1, most_classes), most=3))
    generator = torch.Generator().manual_seed(draw(seeds))
    batch_size, frames = draw(st.integers(1, 4)), draw(st.integers(0 if kinds is KINDS else 2, longest))
    classes = draw(st.integers(2, most_classes))
    blank = draw(st.sampled_from([0, classes // 2, classes - 1]))
    num_automata, dtype, rule, layout = draw(kinds)
    logits = 3 * torch.randn(batch_size, frames, classes, generator=generator)
    logits[..., blank] += draw(st.sampled_from([-3.0, 1.0, 4.0]))
    if draw(st.booleans()):  # some classes can't be
        logits = torch.where(torch.rand(logits.shape, generator=generator) < 0.2, -torch.inf, logits)
        logits[..., blank] = logits[..., blank].clamp(min=-9.0)
    if draw(st.booleans()):  # runs of frames that are alike
        logits = logits[:, torch.arange(frames) // 2]
    logits = logits.to(dtype)
    if layout == "time first":
        logits = logits.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "sliced":
        logits = torch.nn.functional.pad(logits, (2, 3), value=99.0)[..., 2 : 2 + classes]
    elif layout == "classes first":
        logits = logits.transpose(1, 2).contiguous().transpose(1, 2)
    lengths = torch.randint(0, frames + 1, (batch_size,), dtype=torch.int32, generator=generator)
    shape = (batch_size, num_automata)
    states = torch.randint(0, automaton.num_states, shape, dtype=torch.int32, generator=generator)
    weights = torch.randint(-2, 5, shape, generator=generator) / 4
    stay_costs = 3 * torch.rand(batch_size, generator=generator)
    return automaton, logits, lengths, states, weights, stay_costs, blank, rule


def assert_same(found, expected):
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.states.tolist() == expected.states.tolist()
    assert found.bad_frames.tolist() == expected.bad_frames.tolist()
    assert found.before.tolist() == expected.before.tolist()
    torch.testing.assert_close(found.acoustic_scores, expected.acoustic_scores, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.lm_scores, expected.lm_scores, rtol=1e-4, atol=1e-4)


@given(problems())
@settings(RELAXED, max_examples=examples(150))
def test_cpu_equals_the_reference(problem):
    assert_same(call(*problem, "cpu"), call(*problem, "reference"))


@given(problems(longest=6, most_classes=12, kinds=FEW_KINDS))
@settings(RELAXED, max_examples=30)
def test_gpu_equals_the_reference(problem):
    assert_same(call(*problem, "gpu"), call(*problem, "reference"))


@pytest.mark.slow
@given(problems(longest=6, most_classes=12))
@settings(RELAXED, max_examples=60)
def test_gpu_equals_the_reference_in_all_kinds(problem):
    assert_same(call(*problem, "gpu"), call(*problem, "reference"))


@given(problems(longest=40, most_classes=9, kinds=FEW_KINDS))
@settings(RELAXED, max_examples=10)
def test_gpu_equals_the_reference_in_rows_longer_than_a_span(problem):
    assert_same(call(*problem, "gpu"), call(*problem, "reference"))


@given(problems(longest=8, most_classes=6, kinds=FEW_KINDS), st.data())
@settings(RELAXED, max_examples=20)
def test_cutting_the_frames_in_two_changes_nothing(problem, data):
    automaton, logits, lengths, states, *rest = problem
    logits = logits.nan_to_num(0.0)
    engine, cut = data.draw(st.sampled_from(["cpu", "gpu"])), data.draw(st.integers(0, logits.shape[1]))
    first = call(automaton, logits[:, :cut], lengths.clamp(max=cut), states, *rest, engine)
    later = (lengths - cut).clamp(min=0)
    second = call(automaton, aligned(logits[:, cut:]), later, first.states, *rest, engine, before=first.before)
    both = greedy.GreedyLabels(
        torch.cat([first.labels, second.labels], 1),
        first.acoustic_scores + second.acoustic_scores,
        first.lm_scores + second.lm_scores,
        *second[3:],
    )
    assert_same(both, call(automaton, logits, lengths, states, *rest, "reference"))


@given(automata(st.integers(40, 60), most=3), seeds, st.sampled_from(greedy.RULES), st.sampled_from([0.0, 0.3, 3.0]))
@settings(RELAXED, max_examples=8)
def test_a_token_far_from_the_best_wins_if_it_scores_best(automaton, seed, rule, weight):
    """The GPU asks the automata about tokens near the best alone, where no others can win."""
    generator = torch.Generator().manual_seed(seed)
    if seed % 2:  # as language models are: nothing adds to a score
        automaton = automaton.with_tensors(
            automaton.tensors._replace(
                arc_weights=-5 * automaton.tensors.arc_weights.abs(), backoff_weights=-automaton.tensors.backoff_weights.abs()
            )
        )
    logits = torch.tensor([0.5, 3.0, 9.0])[:, None, None] * torch.randn(3, 5, automaton.vocab_size + 1, generator=generator)
    lengths, states = torch.full((3,), 5, dtype=torch.int32), torch.zeros((3, 1), dtype=torch.int32)
    weights = torch.full((3, 1), weight)
    problem = automaton, logits, lengths, states, weights, torch.ones(3), automaton.vocab_size, rule
    assert_same(call(*problem, "gpu"), call(*problem, "reference"))


@pytest.mark.parametrize("rule", greedy.RULES)
@pytest.mark.parametrize("engine", ["cpu", "gpu"])
def test_more_classes_than_a_block(rule, engine):
    torch.manual_seed(0)
    automaton = build_automaton(
        2500, [{t: (-0.01 * (t % 7), t % 2) for t in range(0, 2500, 3)}, {9: (0.5, 1)}], [0, 0], [-1.0, -0.2]
    )
    logits = torch.randn(1, 5, 2600)
    logits[0, 3, :2048] = -torch.inf  # nothing is possible in the whole first block
    problem = (automaton, logits, torch.tensor([5], dtype=torch.int32), torch.tensor([[1]], dtype=torch.int32))
    problem = (*problem, torch.tensor([[1.0]]), torch.tensor([3.0]), 2599, rule)
    assert_same(call(*problem, engine), call(*problem, "reference"))


@given(problems(), st.sampled_from(["stay", "label"]))
@settings(RELAXED, max_examples=60)
def test_without_weight_it_is_argmax(problem, rule):
    automaton, logits, lengths, states, weights, stay_costs, blank, _ = problem
    problem = (automaton, logits, lengths, states, 0 * weights, 0 * stay_costs, blank, rule)
    result = call(*problem, "cpu")
    inside = torch.arange(logits.shape[1]) < lengths[:, None]
    best = logits.float().max(-1).values if logits.shape[1] else torch.zeros(logits.shape[:2])
    chosen = logits.float().gather(2, result.labels.to(torch.int64)[..., None])[..., 0]
    assert torch.equal(chosen[inside], best[inside])  # equal logits may be ordered either way
    assert (result.labels[~inside] == blank).all()


def check_rows_alone(problem, row, engine):
    """A row alone and without padding is the row in its batch, whatever the padding holds."""
    automaton, logits, lengths, states, weights, stay_costs, blank, rule = problem
    padding = torch.arange(logits.shape[1]) >= lengths[:, None]
    padded = logits.masked_fill(padding[..., None], torch.nan)
    whole = call(automaton, padded, *problem[2:], engine)
    length = int(lengths[row])
    alone = slice(row, row + 1)
    cut = (logits[alone, :length], lengths[alone], states[alone], weights[alone], stay_costs[alone])
    single = call(automaton, *map(aligned, cut), blank, rule, engine)
    assert single.labels[0].tolist() == whole.labels[row, :length].tolist()
    assert (whole.labels[padding] == blank).all()
    assert single.states[0].tolist() == whole.states[row].tolist()
    assert single.bad_frames[0] == whole.bad_frames[row]
    assert single.lm_scores[0].tolist() == whole.lm_scores[row].tolist()
    torch.testing.assert_close(single.acoustic_scores[0], whole.acoustic_scores[row], rtol=1e-5, atol=1e-5)


@st.composite
def tied_problems(draw, longest=12):
    """Whole numbers as logits, an LM that gives many tokens the same score, and noise that leaves the same what is the same."""
    classes = draw(st.integers(2, 7))
    generator = torch.Generator().manual_seed(draw(seeds))
    size = draw(st.integers(1, 3)), draw(st.integers(1, longest))
    logits = torch.randint(-1, 2, (*size, classes), generator=generator).float()
    arcs = [{token: (-1.37, token % 2) for token in range(classes)}, {0: (-0.61, 0)}]
    automaton = build_automaton(classes, arcs, [0, 0], [0.0, -0.83])
    lengths = torch.randint(0, size[1] + 1, size[:1], dtype=torch.int32, generator=generator)
    states, weights, stay_costs = (
        torch.zeros((size[0], 1), dtype=torch.int32),
        torch.full((size[0], 1), 0.71),
        torch.ones(size[0]),
    )
    blank = draw(st.sampled_from([0, classes // 2, classes - 1]))
    rest = lengths, states, weights, stay_costs, blank, draw(st.sampled_from(greedy.RULES))
    return automaton, logits, noises(size, generator), rest


@pytest.mark.parametrize("engine", ["cpu", "gpu"])
@given(st.data())
@settings(RELAXED, max_examples=40)
def test_the_first_of_those_that_score_the_same_is_chosen(engine, data):
    automaton, logits, moves, rest = data.draw(tied_problems(12 if engine == "cpu" else 4))
    several = [moved(logits, share * moves) for share in SHARES]
    expected, *others = (call(automaton, each, *rest, "reference").labels.tolist() for each in several)
    assume(all(other == expected for other in others))  # no tie of rounding alone
    assert call(automaton, several[0], *rest, engine).labels.tolist() == expected


@given(problems(), st.data())
@settings(RELAXED, max_examples=60)
def test_a_row_does_not_depend_on_its_batch(problem, data):
    check_rows_alone(problem, data.draw(st.integers(0, len(problem[1]) - 1)), data.draw(st.sampled_from(["reference", "cpu"])))


@given(problems(longest=5, most_classes=9, kinds=FEW_KINDS), st.data())
@settings(RELAXED, max_examples=10)
def test_a_row_does_not_depend_on_its_batch_on_the_gpu(problem, data):
    check_rows_alone(problem, data.draw(st.integers(0, len(problem[1]) - 1)), "gpu")


@pytest.mark.parametrize("engine", ["cpu", "gpu"])
def test_arguments_in_any_layout(engine):
    """Transposed weights and states, and lengths and costs that are one number expanded."""
    arcs = [{t: (-0.3 * t - state, t % 3) for t in range(4)} for state in range(3)]
    automaton = build_automaton(4, arcs, [0, 0, 0], [0.0, -1.0, -2.0])
    logits = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    states = torch.tensor([[0, 1, 2], [2, 2, 1]], dtype=torch.int32).T
    weights = torch.tensor([[0.0, 1.0, -0.5], [2.0, 0.25, 0.75]]).T
    lengths, stay_costs = torch.tensor(5, dtype=torch.int32).expand(3), torch.tensor(0.7).expand(3)
    plain = [tensor.contiguous() for tensor in (lengths, states, weights, stay_costs)]
    for rule in greedy.RULES:
        expected = call(automaton, logits, *plain, 4, rule, "reference")
        assert_same(call(automaton, logits, lengths, states, weights, stay_costs, 4, rule, engine), expected)
        assert_same(call(automaton, logits, *plain, 4, rule, engine), expected)


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
def test_normalising_makes_no_ties(engine):
    automaton = build_automaton(3, [{0: (-1.0, 0), 1: (-2.0, 0), 2: (-3.0, 0)}], [0], [0.0])
    logits = torch.tensor([[[1e-8, 2e-8, -20.0, -20.0]]])
    states, nothing = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, 1)
    result = call(automaton, logits, torch.tensor([1], dtype=torch.int32), states, nothing, nothing[0], 3, "stay", engine)
    assert result.labels.tolist() == [[1]] and result.lm_scores.tolist() == [[-2.0]]


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_logits_are_reported_unless_they_are_padding(engine, value):
    automaton = build_automaton(3, [{0: (-1.0, 0), 1: (-1.0, 0), 2: (-1.0, 0)}], [0], [0.0])
    logits = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    logits[0, 4, 1] = value
    logits[1, 2, 3] = value
    states, weights = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1)
    for lengths, expected in (([6, 6], [4, 2]), ([4, 2], [-1, -1]), ([5, 0], [4, -1])):
        lengths = torch.tensor(lengths, dtype=torch.int32)
        result = call(automaton, logits, lengths, states, weights, torch.ones(2), 3, "stay", engine)
        assert result.bad_frames.tolist() == expected
        assert torch.isfinite(result.acoustic_scores).all()


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("label", [1, 0, 0, 3]),  # the rest of the acoustic run isn't the re-chosen label, so it yields a token of its own
        ("run", [1, 1, 1, 3]),  # the re-chosen label swallows the acoustic run
        ("stay", [1, 1, 1, 3]),  # staying in b costs 1.1 - 0.1 more acoustically a frame, a new a 4.0 in the LM
    ],
)
def test_a_rechosen_label_and_the_rest_of_its_run(engine, rule, expected):
    """Frames `a a a blank` (a = 0, b = 1), where the LM turns the first a into b."""
    automaton = build_automaton(3, [{0: (-4.0, 0), 1: (-0.1, 0), 2: (-9.0, 0)}], [0], [0.0])
    frame = torch.tensor([2.0, 1.0, -5.0, -2.0])
    logits = torch.stack([frame, frame, frame, torch.tensor([0.0, 0.0, 0.0, 9.0])])[None]
    states, weights = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    lengths, stay_costs = torch.tensor([4], dtype=torch.int32), torch.tensor([1.0])
    result = call(automaton, logits, lengths, states, weights, stay_costs, 3, rule, engine)
    assert result.labels[0].tolist() == expected
    assert result.lm_scores[0, 0].item() == pytest.approx(-4.1 if rule == "label" else -0.1)


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
def test_blank_and_unscored_classes_are_never_flipped(engine):
    """Class 2 is beyond the LM's vocabulary; the LM would love to have token 1 everywhere."""
    automaton = build_automaton(2, [{0: (-50.0, 0), 1: (0.0, 0)}], [0], [0.0])
    logits = torch.full((1, 4, 4), -1.0)
    for frame, best in enumerate([3, 2, 0, 3]):
        logits[0, frame, best] = 0.0
    states, weights = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    lengths = torch.tensor([4], dtype=torch.int32)
    for rule in greedy.RULES:
        result = call(automaton, logits, lengths, states, weights, torch.ones(1), 3, rule, engine)
        assert result.labels[0].tolist() == [3, 2, 1, 3]


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
def test_an_overflow_loses_no_token(engine):
    """Where the LM makes everything impossible, the frame's own class stays."""
    automaton = build_automaton(2, [{0: (-5.0, 0), 1: (-4.0, 0)}], [0], [0.0])
    logits = torch.tensor([[[0.0, 1.0, -9.0], [0.0, -9.0, 9.0], [2.0, 1.0, 0.0]]])
    states, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    for rule in greedy.RULES:
        result = call(automaton, logits, lengths, states, torch.tensor([[3e38]]), torch.ones(1), 2, rule, engine)
        assert result.labels.tolist() == [[1, 2, 0]] and result.lm_scores.tolist() == [[-9.0]]


@given(problems(longest=5, most_classes=9), st.sampled_from(["reference", "cpu"]))
@settings(RELAXED, max_examples=4)
def test_opcheck(problem, engine):
    automaton, logits, lengths, states, weights, stay_costs, blank, rule = problem
    before = torch.full((len(logits), 2), blank, dtype=torch.int32)
    arguments = (list(automaton.tensors), logits, lengths, states, before, weights, stay_costs, blank, automaton.vocab_size)
    torch.library.opcheck(torch.ops.hf_ngpulm.ctc_greedy.default, (*arguments, rule, engine))


@given(problems())
@settings(RELAXED, max_examples=5)
def test_torch_compile_passes_through(problem):
    automaton, logits, lengths, states, weights, stay_costs, blank, rule = problem
    assume(logits.shape[1] > 0)
    tensors, before = list(automaton.tensors), torch.full((len(logits), 2), blank, dtype=torch.int32)

    def decode(x, n):
        labels, scores, *_ = torch.ops.hf_ngpulm.ctc_greedy(
            tensors, x, n, states, before, weights, stay_costs, blank, automaton.vocab_size, rule, "cpu"
        )
        return labels + 0, scores * 2

    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(logits, lengths), decode(logits, lengths)):
        assert torch.equal(found, expected)
    torch._dynamo.reset()


def test_what_lies_outside_is_refused():
    automaton = build_automaton(3, [{0: (-1.0, 0)}], [0], [0.0])
    logits, lengths, weights = torch.zeros(2, 3, 4), torch.tensor([3, 3], dtype=torch.int32), torch.ones(2, 1)
    for state in (1, -1):
        states = torch.tensor([[0], [state]], dtype=torch.int32)
        with pytest.raises(IndexError, match=rf"states \[{state}\] in row 1 should lie in 0\.\.0"):
            call(automaton, logits, lengths, states, weights, torch.ones(2), 3, "stay", "cpu")
    for blank in (4, -1):
        with pytest.raises(ValueError, match=f"the blank has the id {blank}, but the logits have 4 classes"):
            call(automaton, logits, lengths, torch.zeros_like(states), weights, torch.ones(2), blank, "stay", "cpu")
