"""BackoffAutomaton as a module, its packing, what it refuses, and `validate` against broken and hostile tensors."""

import copy
import pickle
from unittest import mock

import checked_automaton
import numpy as np
import pytest
import torch
from automata import answers, assert_same_answers, automata, batches, build_automaton, packed_automaton, seeds, single_automata
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm.automaton import BackoffAutomaton, ops
from hf_ngpulm.automaton.tensors import AutomatonTensors
from hf_ngpulm.config.config import MAX_CONTEXT_LENGTH
from hf_ngpulm.errors import NGramFormatError

VOCAB_SIZE = 4
BUFFERS = (*AutomatonTensors._fields, "roots", "starts")


def small_automaton():
    """Four tokens; the contexts "" (dense), 1, 2 (of "0 1", backs off to 1) and 3 (of "3")."""
    return build_automaton(
        VOCAB_SIZE,
        [
            {0: (-1.0, 0), 1: (-1.5, 1), 2: (-2.0, 0), 3: (-0.5, 3), 4: (-3.0, 1)},
            {0: (-0.25, 0), 2: (-0.75, 3)},
            {},
            {1: (-0.1, 2), 4: (-0.2, 1)},
        ],
        backoff_states=[0, 0, 1, 0],
        backoff_weights=[0.0, -0.5, -0.25, -1.0],
        start=1,
    )


def with_buffers(automaton, vocab_size=None, context_length=None, **changed):
    buffers = {name: changed.get(name, getattr(automaton, name)) for name in BUFFERS}
    roots, starts = buffers.pop("roots"), buffers.pop("starts")
    return BackoffAutomaton(
        AutomatonTensors(**buffers),
        automaton.vocab_size if vocab_size is None else vocab_size,
        automaton.context_length if context_length is None else context_length,
        roots,
        starts,
    )


def changed(name, values):
    """A copy of the small automaton with some of one tensor's entries replaced."""
    automaton = small_automaton()
    for index, value in values.items():
        getattr(automaton, name)[index] = value
    return automaton


def test_answers_by_hand():
    automaton = small_automaton()
    scores, next_states = automaton.advance(torch.tensor([0, 1, 2, 3]))
    expected = [
        [-1.0, -1.5, -2.0, -0.5],
        [-0.25, -2.0, -0.75, -1.0],
        [-0.5, -2.25, -1.0, -1.25],
        [-2.0, -0.1, -3.0, -1.5],
    ]
    torch.testing.assert_close(scores, torch.tensor(expected))
    assert next_states.tolist() == [[0, 1, 0, 3], [0, 1, 3, 3], [0, 1, 3, 3], [0, 2, 0, 3]]
    torch.testing.assert_close(automaton.final_scores(torch.arange(4)), torch.tensor([-3.0, -3.5, -3.75, -0.2]))
    sequences = automaton.score_sequences(torch.tensor([[3, 1, -1, 0], [2, 9, 9, 9]]), torch.tensor([4, 1]))
    torch.testing.assert_close(sequences, torch.tensor([-1.0 - 0.1 - 0.5 - 3.0, -0.75 - 0.2]))


class TestModule:
    @pytest.mark.parametrize(
        "cast",
        [
            lambda m: m.half(),
            lambda m: m.to(torch.bfloat16),
            lambda m: m.double(),
            lambda m: m.to("cpu", torch.float16),
            lambda m: m.type(torch.float16),
        ],
    )
    def test_casts_leave_the_tensors_as_they_are(self, cast):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lm, self.linear = small_automaton(), torch.nn.Linear(2, 2)

        model = cast(Model())
        assert model.linear.weight.dtype != torch.float32
        for name in BUFFERS:
            original = getattr(small_automaton(), name)
            assert getattr(model.lm, name).dtype == original.dtype
            assert torch.equal(getattr(model.lm, name), original)

    def test_it_moves(self):
        automaton = small_automaton().to("meta")
        assert automaton.device.type == "meta"
        assert all(buffer.is_meta for buffer in automaton.buffers())
        assert automaton.scores(torch.zeros(3, dtype=torch.int32)).shape == (3, VOCAB_SIZE)

    def test_state_dict_round_trip(self):
        automaton = changed("arc_weights", {0: -9.0})
        state = automaton.state_dict()
        assert set(state) == set(BUFFERS)
        other = small_automaton()
        other.load_state_dict(state)
        assert torch.equal(other.scores(torch.arange(4)), automaton.scores(torch.arange(4)))

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda automaton: pickle.loads(pickle.dumps(automaton))])
    def test_copies(self, duplicate):
        automaton = small_automaton()
        automaton.engine = "reference"
        twin = duplicate(automaton)
        assert (twin.vocab_size, twin.context_length, twin.engine) == (VOCAB_SIZE, 2, "reference")
        expected = automaton.scores(torch.arange(4))
        assert torch.equal(twin.scores(torch.arange(4)), expected)
        twin.arc_weights.zero_()
        assert torch.equal(automaton.scores(torch.arange(4)), expected)

    def test_sizes(self):
        automaton = small_automaton()
        assert (automaton.num_states, automaton.num_arcs) == (4, 9)
        assert automaton.nbytes == 4 * 5 + 9 * (2 + 4 + 4) + 4 * (4 + 4) + 4 + 4
        assert "vocab_size=4, states=4, arcs=9" in repr(automaton)

    def test_buffers_are_made_contiguous(self):
        automaton = small_automaton()
        gaps = {name: torch.stack([getattr(automaton, name)] * 2, dim=1)[:, 0] for name in BUFFERS}
        assert all(buffer.is_contiguous() for buffer in with_buffers(automaton, **gaps).buffers())


class TestPack:
    @given(st.data())
    @settings(max_examples=30, deadline=None)
    def test_each_row_follows_its_own(self, data):
        vocab_size = data.draw(st.integers(1, 20))
        parts = data.draw(st.lists(single_automata(vocab_size), min_size=1, max_size=4))
        parts.append(parts[0])  # the same object twice
        pack = packed_automaton(parts)
        pack.validate()
        assert pack.context_length == max(part.context_length for part in parts)
        first = 0
        for number, part in enumerate(parts):
            batch = data.draw(batches(part))
            expected = answers(part, batch, "reference")
            shifted = {
                "scores": pack.scores(batch.states + first),
                "advance states": pack.advance(batch.states + first)[1] - first,
                "final_scores": pack.final_scores(batch.states + first),
            }
            if batch.which is None:
                which = torch.full((batch.token_ids.shape[0],), number)
                walked = pack.score_tokens(batch.token_ids, batch.lengths, batch.bos, which)
                shifted |= {"score_tokens": walked[0], "score_tokens states": walked[1] - first}
            assert_same_answers({query: expected[query] for query in shifted}, shifted, part)
            first += part.num_states

    def test_a_pack_of_packs(self):
        parts = [small_automaton() for _ in range(3)]
        pack = packed_automaton([parts[0], packed_automaton(parts[1:])])
        assert pack.roots.tolist() == [0, 4, 8]
        assert pack.starts.tolist() == [1, 5, 9]
        assert pack.initial_states(3, which=torch.tensor([2, 0, 1])).tolist() == [9, 1, 5]
        assert pack.initial_states(2, bos=False).tolist() == [0, 0]


class TestArguments:
    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
    @pytest.mark.parametrize("engine", ["reference", "cpu"])
    def test_all_integers_are_taken(self, dtype, engine):
        automaton = small_automaton()
        automaton.engine = engine
        states, tokens = torch.tensor([0, 3, 2], dtype=dtype), torch.tensor([3, 1, 100], dtype=dtype)
        scores, next_states = automaton.step(states, tokens)
        torch.testing.assert_close(scores, torch.tensor([-0.5, -0.1, 0.0]))
        assert next_states.tolist() == [3, 2, 2]
        assert next_states.dtype == torch.int32
        lengths = torch.tensor([2, 100, 0], dtype=dtype)
        assert automaton.states_after(tokens[:, None], lengths).tolist() == [3, 1, 1]

    @pytest.mark.parametrize("engine", ["reference", "cpu"])
    def test_token_ids_that_int32_cannot_hold_are_outside_the_vocabulary(self, engine):
        automaton = small_automaton()
        automaton.engine = engine
        tokens = torch.tensor([2**32, 2**32 + 1, -(2**32), 2**63 - 1])
        scores, next_states = automaton.step(torch.arange(4), tokens)
        assert scores.tolist() == [0.0] * 4
        assert next_states.tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "call, message",
        [
            (lambda a: a.scores(torch.tensor(0)), r"\[B\], got \(\)"),
            (lambda a: a.scores(torch.zeros(2, 2, dtype=torch.int32)), r"\[B\], got \(2, 2\)"),
            (lambda a: a.advance(torch.zeros(2)), "states should be integers, got torch.float32"),
            (lambda a: a.final_scores(torch.zeros(2)), "states should be integers, got torch.float32"),
            (
                lambda a: a.step(torch.zeros(2).bool(), torch.zeros(2).long()),
                "states should be integers, got torch.bool",
            ),
            (lambda a: a.step(torch.tensor([0]), torch.tensor([0, 1])), r"\(1,\) and tokens \(2,\)"),
            (lambda a: a.step(torch.tensor([0]), torch.tensor([0.0])), "token ids should be integers"),
            (lambda a: a.score_tokens(torch.tensor([0])), r"\[B, L\], got \(1,\)"),
            (lambda a: a.score_tokens(torch.tensor([[0.5]])), "token ids should be integers"),
            (
                lambda a: a.states_after(torch.tensor([[0]]), torch.tensor([1, 1])),
                r"lengths should have the shape \[1\]",
            ),
            (lambda a: a.states_after(torch.tensor([[0]]), torch.tensor([1.0])), "lengths should be integers"),
            (lambda a: a.states_after(torch.tensor([[0]]), which=torch.tensor([0, 0])), r"which should have the shape"),
            (lambda a: a.score_sequences(torch.tensor([[0]]), which=torch.tensor([0.0])), "which should be integers"),
        ],
    )
    def test_wrong_shapes_and_types_are_refused(self, call, message):
        with pytest.raises(ValueError, match=message):
            call(small_automaton())

    def test_a_packed_automaton_that_is_not_there(self):
        with pytest.raises(IndexError):
            small_automaton().initial_states(1, which=torch.tensor([1]))


class TestValidate:
    @given(st.data())
    @settings(max_examples=60, deadline=None)
    def test_valid_automata_pass(self, data):
        data.draw(automata()).validate()

    @pytest.mark.parametrize(
        "automaton, message",
        [
            (changed("arc_offsets", {1: 8}), "arc_offsets are out of order"),
            (changed("arc_offsets", {2: -1}), "arc_offsets are out of order"),
            (changed("arc_offsets", {0: 1}), "arc_offsets don't run from 0 to 9"),
            (changed("arc_offsets", {4: 10}), "arc_offsets don't run from 0 to 9"),
            (changed("arc_offsets", {4: 2**31 - 1}), "arc_offsets don't run from 0 to 9"),
            (changed("arc_targets", {3: 4}), "arc_targets reach from 0 to 4, not 0..3"),
            (changed("arc_targets", {3: -1}), "arc_targets reach from -1 to 3, not 0..3"),
            (changed("arc_tokens", {4: 5}), "arc_tokens reach from 0 to 5, not 0..4"),
            (changed("arc_tokens", {0: -1}), "arc_tokens reach from -1 to 4, not 0..4"),
            (changed("arc_tokens", {5: 2}), "ascending"),
            (changed("arc_tokens", {5: 3}), "ascending"),
            (changed("arc_tokens", {1: 0}), "ascending"),
            (changed("backoff_states", {1: 2, 2: 1}), "shorter context"),
            (changed("backoff_states", {0: 3, 3: 0}), "shorter context"),
            (changed("backoff_states", {1: 3}), "shorter context"),
            (changed("backoff_states", {3: 4}), "shorter context"),
            (changed("backoff_states", {1: -1}), "negative"),
            (changed("backoff_weights", {1: float("nan")}), "backoff_weights holds a value that isn't finite"),
            (changed("backoff_weights", {1: float("inf")}), "backoff_weights holds a value that isn't finite"),
            (changed("arc_weights", {8: float("nan")}), "arc_weights holds a value that isn't finite"),
            (changed("arc_weights", {8: float("-inf")}), "arc_weights holds a value that isn't finite"),
            (changed("roots", {0: 4}), "roots points outside 0..3"),
            (changed("roots", {0: -1}), "roots points outside 0..3"),
            (changed("roots", {0: 1}), "a root doesn't back off to itself"),
            (changed("starts", {0: 4}), "starts points outside 0..3"),
            (changed("starts", {0: -5}), "starts points outside 0..3"),
            (with_buffers(small_automaton(), context_length=1), "more than 1 steps"),
            (with_buffers(small_automaton(), context_length=0), "more than 0 steps"),
            (with_buffers(small_automaton(), context_length=-1), "context length is -1"),
            (with_buffers(small_automaton(), context_length=MAX_CONTEXT_LENGTH + 1), "context length is 1024"),
            (with_buffers(small_automaton(), context_length=2.0), "context length is 2.0"),
            (with_buffers(small_automaton(), context_length="2"), "context length is '2'"),
            (with_buffers(small_automaton(), vocab_size=3), "arc_tokens reach from 0 to 4, not 0..3"),
            (with_buffers(small_automaton(), vocab_size=0), "vocabulary size is 0"),
            (with_buffers(small_automaton(), vocab_size=-4), "vocabulary size is -4"),
            (with_buffers(small_automaton(), vocab_size=2**31 - 1), "vocabulary size is 2147483647"),
            (with_buffers(small_automaton(), vocab_size=4.0), "vocabulary size is 4.0"),
            (with_buffers(small_automaton(), vocab_size="4"), "vocabulary size is '4'"),
            (with_buffers(small_automaton(), vocab_size=2**15), "arc_tokens should be torch.int32, is torch.int16"),
        ],
    )
    def test_broken_values(self, automaton, message):
        with pytest.raises(NGramFormatError, match=message):
            automaton.validate()

    @pytest.mark.parametrize("name", BUFFERS)
    @pytest.mark.parametrize(
        "dtype",
        [torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool],
    )
    def test_wrong_types(self, name, dtype):
        automaton = small_automaton()
        right = getattr(automaton, name).dtype
        broken = with_buffers(automaton, **{name: torch.zeros(getattr(automaton, name).numel(), dtype=dtype)})
        if dtype != right:
            with pytest.raises(NGramFormatError, match=f"{name} should be {right}, is {dtype}"):
                broken.validate()

    @pytest.mark.parametrize("name", BUFFERS)
    @pytest.mark.parametrize(
        "reshape",
        [lambda t: t[:0], lambda t: t[:-1], lambda t: torch.cat([t, t[-1:]]), lambda t: t[None], lambda t: t[0]],
        ids=["empty", "shorter", "longer", "two dimensions", "no dimension"],
    )
    def test_wrong_sizes(self, name, reshape):
        automaton = small_automaton()
        with pytest.raises(NGramFormatError, match=r"entries for|has no states|one dimension|empty|don't run|in number"):
            with_buffers(automaton, **{name: reshape(getattr(automaton, name))}).validate()

    def test_nothing_at_all(self):
        empty = {name: getattr(small_automaton(), name)[:0] for name in BUFFERS}
        with pytest.raises(NGramFormatError, match="it has no states"):
            with_buffers(small_automaton(), **empty).validate()

    @pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 7, 8, 9, MAX_CONTEXT_LENGTH])
    def test_chains_have_to_end_within_the_context_length(self, depth):
        def chain(context_length):
            backoff_states = [max(state - 1, 0) for state in range(depth + 1)]
            return build_automaton(3, [{}] * (depth + 1), backoff_states, [0.5] * (depth + 1), context_length)

        chain(depth).validate()
        with pytest.raises(NGramFormatError, match=f"more than {depth - 1} steps"):
            chain(depth - 1).validate()

    def test_a_million_states_in_one_chain_are_refused_at_once(self):
        backoff_states = (torch.arange(1_000_000, dtype=torch.int32) - 1).clamp(min=0)
        zeros = torch.zeros(1_000_000)
        automaton = with_buffers(
            small_automaton(),
            context_length=MAX_CONTEXT_LENGTH,
            arc_offsets=torch.zeros(1_000_001, dtype=torch.int32),
            **{name: getattr(small_automaton(), name)[:0] for name in ("arc_tokens", "arc_weights", "arc_targets")},
            backoff_states=backoff_states,
            backoff_weights=zeros,
        )
        with pytest.raises(NGramFormatError, match="more than 1023 steps"):
            automaton.validate()

    def test_what_is_broken_in_a_part_is_found_in_the_pack(self):
        pack = packed_automaton([small_automaton(), changed("arc_targets", {0: -5})])
        with pytest.raises(NGramFormatError, match="arc_targets"):
            pack.validate()


def is_valid(automaton):
    try:
        automaton.validate()
    except NGramFormatError:
        return False
    return True


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_changed_number_is_refused_or_harmless(data):
    """What `validate` lets through neither hangs an engine nor leads it outside the tensors."""
    automaton = copy.deepcopy(data.draw(automata(st.integers(1, 8), most=2)))
    name = data.draw(st.sampled_from([*BUFFERS, "vocab_size", "context_length"]))
    rng = np.random.default_rng(data.draw(seeds))
    if name in ("vocab_size", "context_length"):
        setattr(automaton, name, getattr(automaton, name) + data.draw(st.sampled_from([-1, 1, 2, 10])))
    else:
        tensor = getattr(automaton, name)
        assume(tensor.numel())
        index = int(rng.integers(tensor.numel()))
        if data.draw(st.booleans()):
            bits = tensor.view(torch.int32) if tensor.element_size() == 4 else tensor
            flipped = np.array(bits[index].item(), dtype=np.int64) ^ (1 << int(rng.integers(8 * bits.element_size())))
            bits[index] = torch.from_numpy(np.array(flipped)).to(bits.dtype)
        else:
            sizes = [0, 1, automaton.num_states, automaton.num_arcs, automaton.vocab_size, tensor[index].item()]
            tensor[index] = float(rng.choice(sizes)) + float(rng.choice([-1, 0, 1]))
    if not is_valid(automaton):
        return
    automaton.engine = "cpu"
    states = torch.arange(automaton.num_states, dtype=torch.int32)
    size, vocab_size = automaton.num_states, automaton.vocab_size
    scores, next_states = automaton.advance(states)
    assert scores.shape == next_states.shape == (size, vocab_size)
    token_ids = torch.from_numpy(rng.integers(-1, vocab_size + 1, (size, 6)))
    walked, last_states = automaton.score_tokens(token_ids)
    after = automaton.states_after(token_ids)
    for found in (next_states, last_states, after):
        assert ((found >= 0) & (found < size)).all()
    assert not torch.isnan(automaton.final_scores(states)).any()

    with mock.patch.object(ops, "load_engine", lambda package, name, device, automaton: checked_automaton):
        rows = slice(0, 12)
        found = automaton.advance(states[rows])
        torch.testing.assert_close(found, (scores[rows], next_states[rows]))
        torch.testing.assert_close(automaton.score_tokens(token_ids[rows]), (walked[rows], last_states[rows]))
        assert torch.equal(automaton.states_after(token_ids[rows]), after[rows])
