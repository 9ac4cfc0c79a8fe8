"""The operators: torch.compile passes through them, torch's own checks hold, and the engine is the one asked for."""

import importlib.util
import sys

import pytest
import torch
from automata import build_automaton, packed_automaton
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from hf_ngpulm.automaton import BackoffAutomaton, cpu, reference
from hf_ngpulm.engines import choice

VOCAB_SIZE = 5
ENGINES = ["reference", "cpu"]


def bigrams(engine="auto"):
    """A dense root, and one context for each token with a few arcs, packed with one that has a sparse root."""
    arcs = [{token: (-0.1 * token - 1.0, token + 1) for token in range(VOCAB_SIZE)} | {VOCAB_SIZE: (-2.0, 1)}]
    for token in range(VOCAB_SIZE):
        arcs.append({token: (-0.3, token + 1), VOCAB_SIZE: (-0.7, 1)})
    dense = build_automaton(VOCAB_SIZE, arcs, [0] * (VOCAB_SIZE + 1), [-0.25 * n for n in range(VOCAB_SIZE + 1)], start=2)
    sparse = build_automaton(VOCAB_SIZE, [{1: (2.0, 1)}, {3: (1.0, 0)}], [0, 0], [0.0, -2.0])
    automaton = packed_automaton([dense, sparse])
    automaton.engine = engine
    return automaton


def arguments(automaton, rows=3, longest=4):
    """Arguments of each operator."""
    tensors = list(automaton.tensors)
    states = torch.tensor([0, 3, 7], dtype=torch.int32)[:rows]
    tokens = torch.tensor([0, 4, -1], dtype=torch.int32)[:rows]
    token_ids = torch.tensor([[0, 1, 2, 3], [4, -1, 3, 3], [1, 3, 9, 0]], dtype=torch.int32)[:rows, :longest]
    lengths = torch.tensor([4, 0, 3], dtype=torch.int32)[:rows].clamp(max=longest)
    roots = torch.zeros(rows, dtype=torch.int32)
    end = (automaton.vocab_size, automaton.engine)
    return {
        "scores": (tensors, states, *end),
        "advance": (tensors, states, *end),
        "step": (tensors, states, tokens, *end),
        "walk": (tensors, states, token_ids, lengths, *end),
        "states_after": (tensors, states, roots, token_ids, lengths, automaton.context_length, *end),
    }


OPERATORS = list(arguments(bigrams()))


def tuple_of(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name, engine):
    operator = getattr(torch.ops.hf_ngpulm, name).default
    torch.library.opcheck(operator, arguments(bigrams(engine))[name])


@pytest.mark.parametrize("rows, longest", [(0, 0), (0, 3), (2, 0), (2, 3)])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", OPERATORS)
def test_fake_results_look_like_real_ones(name, engine, rows, longest):
    operator = getattr(torch.ops.hf_ngpulm, name).default
    args = arguments(bigrams(engine), rows, longest)[name]
    with FakeTensorMode() as mode:
        fake = operator(*tree_map_only(torch.Tensor, mode.from_tensor, args))
    for result, like in zip(tuple_of(operator(*args)), tuple_of(fake), strict=True):
        assert (like.shape, like.dtype, like.device) == (result.shape, result.dtype, result.device)
        assert like.is_contiguous() and result.is_contiguous()


@pytest.mark.parametrize("longest", [0, 4])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_new_tensors(name, engine, longest):
    """Also where nothing is to be done: a result that is an argument would change with it."""
    args = arguments(bigrams(engine), longest=longest)[name]
    given = {tensor.data_ptr() for tensor in tree_leaves(args) if isinstance(tensor, torch.Tensor) and tensor.numel()}
    for result in tuple_of(getattr(torch.ops.hf_ngpulm, name)(*args)):
        assert result.data_ptr() not in given


@pytest.mark.parametrize("engine", ENGINES)
def test_compile(engine):
    """One graph without breaks, for a number of rows that changes, with other operations around the queries."""
    automaton = bigrams(engine)

    def search(logits, states, token_ids, lengths):
        fused = logits + 0.5 * automaton.scores(states)
        tokens = fused.argmax(dim=-1)
        token_scores, after_step = automaton.step(states, tokens)
        scores, next_states = automaton.advance(after_step)
        total = automaton.score_sequences(token_ids, lengths, which=tokens % 2) + automaton.final_scores(after_step)
        after = automaton.states_after(token_ids, lengths, bos=False)
        return fused, token_scores, scores, next_states.gather(1, tokens[:, None]), total, after + next_states[:, 0]

    torch._dynamo.reset()
    compiled = torch.compile(search, fullgraph=True, backend="aot_eager", dynamic=True)
    generator = torch.Generator().manual_seed(0)
    for rows, length in ((3, 4), (5, 2), (2, 7)):
        inputs = (
            torch.randn(rows, VOCAB_SIZE, generator=generator),
            torch.randint(0, automaton.num_states, (rows,), generator=generator),
            torch.randint(-1, VOCAB_SIZE + 2, (rows, length), generator=generator),
            torch.randint(0, length + 1, (rows,), generator=generator),
        )
        for found, expected in zip(compiled(*inputs), search(*inputs)):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_export():
    automaton = bigrams("cpu")

    class Scorer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lm = automaton

        def forward(self, states):
            return self.lm.scores(states)

    program = torch.export.export(Scorer(), (torch.arange(3, dtype=torch.int32),))
    states = torch.tensor([5, 0, 7], dtype=torch.int32)
    assert torch.equal(program.module()(states), automaton.scores(states))


class TestChoice:
    @pytest.fixture(autouse=True)
    def asked(self, monkeypatch):
        """Names of the engines that answered."""
        asked = []
        for engine in (reference, cpu):
            name, plain = engine.__name__.rpartition(".")[2], engine.scores
            monkeypatch.setattr(engine, "scores", lambda *args, n=name, f=plain: asked.append(n) or f(*args))
        monkeypatch.delenv(choice.ENGINE_VARIABLE, raising=False)
        return asked

    def test_by_device(self, asked):
        bigrams().scores(torch.tensor([0]))
        assert asked == ["cpu"]
        devices = {"cpu": "cpu", "cuda": "gpu", "mps": "reference", "xpu": "reference", "meta": "reference"}
        for device, engine in devices.items():
            assert choice.engine_name("auto", torch.device(device)) == engine

    @pytest.mark.parametrize("engine", ENGINES)
    def test_by_argument(self, asked, engine, monkeypatch):
        monkeypatch.setenv(choice.ENGINE_VARIABLE, "reference" if engine == "cpu" else "cpu")
        plain = bigrams()
        automaton = BackoffAutomaton(plain.tensors, VOCAB_SIZE, 1, plain.roots, plain.starts, engine=engine)
        automaton.scores(torch.tensor([0]))
        assert asked == [engine]
        packed_automaton([automaton, plain]).scores(torch.tensor([0]))
        assert asked == [engine, engine]

    @pytest.mark.parametrize("value, engine", [("reference", "reference"), ("cpu", "cpu"), ("auto", "cpu"), ("", "cpu")])
    def test_by_environment_variable(self, asked, value, engine, monkeypatch):
        monkeypatch.setenv("HF_NGPULM_ENGINE", value)
        bigrams().scores(torch.tensor([0]))
        assert asked == [engine]

    def test_wrong_names(self, monkeypatch):
        valid = r"should be one of \('auto', 'reference', 'cpu', 'gpu'\), got 'ops'"
        plain = bigrams()
        with pytest.raises(ValueError, match=f"engine {valid}"):
            BackoffAutomaton(plain.tensors, VOCAB_SIZE, 1, plain.roots, plain.starts, engine="ops")
        plain.engine = "ops"
        with pytest.raises(ValueError, match=f"engine {valid}"):
            plain.scores(torch.tensor([0]))
        monkeypatch.setenv("HF_NGPULM_ENGINE", "ops")
        with pytest.raises(ValueError, match=f"HF_NGPULM_ENGINE {valid}"):
            bigrams().scores(torch.tensor([0]))

    def test_the_cpu_engine_is_for_tensors_on_the_cpu(self):
        with pytest.raises(ValueError, match="cuda:0"):
            choice.engine_name("cpu", torch.device("cuda:0"))


def test_a_missing_triton_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else found(name))
    choice._require_triton.cache_clear()
    automaton = bigrams("gpu")
    with pytest.raises(ImportError, match=r"needs Triton: pip install 'hf-ngpulm\[gpu\]'.*engine='reference'"):
        automaton.scores(automaton.roots)
    with pytest.raises(ImportError, match="needs Triton"):
        choice.engine_name("auto", torch.device("cuda"))
    assert choice.engine_name("auto", torch.device("cpu")) == "cpu"
