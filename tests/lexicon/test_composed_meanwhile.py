"""The core composes states while searches go on: to the bit what is found in the whole, with any room and number of threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from test_on_the_fly_searches import Both, facts, outputs
from toys import Toy

from hf_ngpulm import CTCDecoder, TransducerDecoder
from hf_ngpulm.engines import threads
from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.lexicon import lazy_states
from hf_ngpulm.lexicon.lazy_search import LazySearch

SEARCHES = ["ctc greedy", "ctc beam", "greedy", "alsd", "aes"]
ROWS, FRAMES = 6, 20


@pytest.fixture(scope="module", params=["letters", "pieces"])
def both(request):
    return Both(request.getfixturevalue(request.param), 3)


@pytest.fixture
def threads_for_anything(monkeypatch):
    """Whatever there is runs on several threads."""
    monkeypatch.setattr(threads, "ELEMENTS_PER_THREAD", 1)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def composed_by_python(monkeypatch):
    """The methods that have composed something: of the core's callback, or for a search that is repeated."""
    called = []

    def composed(search):
        return sum(len(lazy.composed) for lazy, _ in search._each(np.zeros(0, dtype=np.int32)))

    for name in ("replay", "compose"):
        whole = getattr(LazySearch, name)

        def counted(self, *arguments, name=name, whole=whole):
            before = composed(self)
            result = whole(self, *arguments)
            called.extend([name] * (composed(self) > before))
            return result

        monkeypatch.setattr(LazySearch, name, counted)
    return called


def decoded(both, search, lm, seed=0):
    """All that a search says of some rows of different lengths."""
    lengths = torch.linspace(FRAMES, FRAMES // 3, ROWS).long()
    if search.startswith("ctc"):
        settings = {"num_beams": 6, "num_return_sequences": 6} if search == "ctc beam" else {}
        return facts(CTCDecoder(both.tokenizer, lm, 0.6, **settings)(outputs(both.tokenizer, ROWS, FRAMES, seed), lengths))
    model = Toy(len(both.tokenizer), 0, seed=3, blank_bias=2.0)
    settings = {"strategy": search} | ({} if search == "greedy" else {"num_beams": 4})
    frames = torch.randn(ROWS, FRAMES, 6, generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(FRAMES) < lengths[:, None]).long()
    return facts(TransducerDecoder(model, both.tokenizer, lm=lm, lm_weight=0.8, engine="cpu", **settings)(frames, mask))


@pytest.mark.parametrize("room", [1, 1 << 14])
@pytest.mark.parametrize("search", SEARCHES)
def test_any_room_and_number_of_threads(both, search, room, monkeypatch, threads_for_anything):
    monkeypatch.setattr(lazy_states, "SMALLEST", room)
    expected = decoded(both, search, both.static)
    for count in (1, 3):
        threads_for_anything(count)
        lm = both.made()
        assert decoded(both, search, lm) == expected
        assert len(lm.automaton.states.composed) > 1


@pytest.mark.parametrize("search", SEARCHES)
def test_with_room_the_core_composes_all(both, search, monkeypatch, composed_by_python):
    monkeypatch.setattr(lazy_states, "SMALLEST", 1 << 14)
    lm = both.made()
    first = len(lm.automaton.states.composed)
    decoded(both, search, lm)
    assert len(lm.automaton.states.composed) > first + 20
    assert not composed_by_python


@pytest.mark.parametrize("search", SEARCHES)
def test_without_room_the_core_calls_back(both, search, monkeypatch, composed_by_python):
    monkeypatch.setattr(lazy_states, "SMALLEST", 1)
    decoded(both, search, both.made())
    assert set(composed_by_python) == {"compose"}


@pytest.mark.parametrize("search", SEARCHES)
def test_an_error_of_the_callback_reaches_the_caller(both, search, monkeypatch):
    monkeypatch.setattr(lazy_states, "SMALLEST", 1)
    lm = both.made()

    def refuse(*_):
        raise NGramFormatError("too many states")

    monkeypatch.setattr(type(lm.automaton.states), "_make_room", refuse)
    with pytest.raises(NGramFormatError, match="too many states"):
        decoded(both, search, lm)


def test_the_same_states_are_composed_on_several_threads(both, threads_for_anything):
    """In what order is another matter, and no score hangs on it."""
    seen = []
    for count in (1, 4):
        threads_for_anything(count)
        lm = both.made()
        for seed in range(3):
            decoded(both, "ctc beam", lm, seed)
        states = lm.automaton.states
        arrays = states.arrays
        number = states.composed // 2
        seen.append(sorted(zip(arrays["of_lm"][number].tolist(), arrays["nodes"][number].tolist(), arrays["mass"][number])))
        assert sorted(set(number.tolist())) == sorted(number.tolist())
    assert seen[0] == seen[1]


def test_sessions_that_share_a_model(both):
    """Decoders in threads of their own, two of which have copies of the states in pools, and a stream that stays open."""
    lm, logits = both.made(), outputs(both.tokenizer, ROWS, FRAMES, 7)

    def found(model):
        kinds = [{"num_beams": 6}, {"num_beams": 6, "phrases": ["a bad dad"]}, {}, {"phrases": ["a bad dad"]}]
        decoders = [CTCDecoder(both.tokenizer, model, 0.6, **kind) for kind in kinds]
        stream = decoders[0].stream(ROWS)
        stream.add(logits[:, :7])
        with ThreadPoolExecutor(4) as pool:
            rows = [pool.submit(decoder, logits.flip(1)) for decoder in decoders]
            texts = [facts(each.result()) for each in rows]
        stream.add(logits[:, 7:])
        return [*texts, facts(stream.hypotheses())]

    assert found(lm) == found(both.static)
