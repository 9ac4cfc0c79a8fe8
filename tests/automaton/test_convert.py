"""ARPA -> table -> automaton -> table: the scores are those of the textbook and of KenLM, and nothing is lost."""

import gzip
import json
import logging
import math
import re
from pathlib import Path

import pytest
import torch
from arpa_models import ArpaModel, BruteForce, arpa_models
from automata import packed_automaton
from hypothesis import event, given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm.automaton import BackoffAutomaton, automaton_from_table, convert, table_from_automaton
from hf_ngpulm.config.config import MAX_CONTEXT_LENGTH
from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.formats.arpa import read_arpa
from hf_ngpulm.ngrams.table import NGramTable
from hf_ngpulm.text.vocabulary import Vocabulary

DATA = Path(__file__).parents[1] / "data" / "lmplz"
MODELS = sorted(path.name.removesuffix(".arpa.gz") for path in DATA.glob("*.arpa.gz"))
LN10 = math.log(10.0)

# <unk> in n-grams as SRILM's -unk writes them; tokens 3 and 4 have no unigram; the suffix "<unk> 0" of "1 <unk> 0" and
# the suffix "2 0" of "1 2 0" are missing.
WITH_UNK = r"""
\data\
ngram 1=6
ngram 2=6
ngram 3=4

\1-grams:
-1.2	</s>
-99	<s>	-0.3
-1.5	<unk>	-0.25
-0.5	0	-0.4
-0.7	1	-0.2
-0.9	2	-0.1

\2-grams:
-0.3	<s> 1	-0.15
-0.8	0 <unk>	-0.35
-0.6	1 <unk>	-0.05
-0.45	1 2	-0.01
-1.1	<unk> 1	-0.7
-0.65	<unk> <unk>	-0.6

\3-grams:
-0.2	<s> 1 <unk>
-0.33	1 <unk> 0
-0.22	1 2 0
-0.11	<unk> <unk> <unk>

\end\
"""


def read_text(text: str, vocab_size: int, folder: Path) -> NGramTable:
    path = folder / "lm.arpa"
    path.write_text(text)
    return read_arpa(path, Vocabulary(vocab_size), "id")


def rows(table: NGramTable) -> list[dict[tuple[int, ...], tuple[float, float]]]:
    """For each order the log-prob and backoff of each n-gram."""
    return [
        dict(zip(map(tuple, table.rows(n).tolist()), zip(order.log_probs.tolist(), order.backoffs.tolist())))
        for n, order in enumerate(table.orders, start=1)
    ]


def states_of(automaton: BackoffAutomaton, contexts: list[tuple[bool, list[int]]]) -> torch.Tensor:
    longest = max((len(tokens) for _, tokens in contexts), default=0)
    token_ids = torch.tensor([[*tokens, *[-1] * (longest - len(tokens))] for _, tokens in contexts]).reshape(-1, longest)
    lengths = torch.tensor([len(tokens) for _, tokens in contexts])
    after_bos = automaton.states_after(token_ids, lengths, bos=True)
    after_nothing = automaton.states_after(token_ids, lengths, bos=False)
    return torch.where(torch.tensor([bos for bos, _ in contexts]), after_bos, after_nothing)


def assert_scores(automaton: BackoffAutomaton, model: ArpaModel, share: bool) -> None:
    """All scores of all contexts equal the brute-force scorer's."""
    brute = BruteForce(model.text)
    contexts = model.contexts()
    states = states_of(automaton, contexts)
    part = math.log10(len(model.missing)) if share and model.missing and ("<unk>",) in brute.log_probs else 0.0
    expected, expected_ends = [], []
    for bos, tokens in contexts:
        words = ("<s>",) * (bos and ("<s>",) in brute.log_probs) + tuple(map(str, tokens))
        expected.append(
            [brute.score(words, str(token)) - (part if token in model.missing else 0.0) for token in range(model.vocab_size)]
        )
        expected_ends.append(brute.score(words, "</s>"))
    close = {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(automaton.scores(states) / LN10, torch.tensor(expected), **close)
    torch.testing.assert_close(automaton.final_scores(states) / LN10, torch.tensor(expected_ends), **close)


@pytest.fixture(scope="module", params=MODELS)
def golden(request):
    """An lmplz model's table, and KenLM's scores for it."""
    scores = json.loads(gzip.decompress((DATA / f"{request.param}.golden.json.gz").read_bytes()))
    return read_arpa(DATA / f"{request.param}.arpa.gz", Vocabulary(256), "id"), scores["contexts"]


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_golden_scores_of_kenlm(golden, engine):
    table, contexts = golden
    automaton, _ = automaton_from_table(table, missing_unigrams="unk")
    automaton.validate()
    automaton.engine = engine
    states = states_of(automaton, [(context["bos"], context["tokens"]) for context in contexts])
    for found, key in ((automaton.scores(states), "scores"), (automaton.final_scores(states), "eos")):
        expected = torch.tensor([context[key] for context in contexts])
        torch.testing.assert_close(found / LN10, expected, rtol=0.0, atol=1e-4)
    # The same by single steps.
    for context, state in zip(contexts[:20], states[:20]):
        current = automaton.initial_states(1, bos=context["bos"])
        for token in context["tokens"]:
            _, current = automaton.step(current, torch.tensor([token]))
        assert torch.equal(current, state[None])


def test_shared_scores_sum_to_one(golden):
    table, contexts = golden
    automaton, _ = automaton_from_table(table, missing_unigrams="share")
    states = torch.cat(
        [
            states_of(automaton, [(context["bos"], context["tokens"]) for context in contexts]),
            torch.randint(0, automaton.num_states, (200,), generator=torch.Generator().manual_seed(0)),
        ]
    )
    total = automaton.scores(states).double().exp().sum(dim=1) + automaton.final_scores(states).double().exp()
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0.0, atol=1e-4)


def test_golden_tables_come_back_from_their_automata(golden):
    table, _ = golden
    automaton, parts = automaton_from_table(table)
    assert rows(table_from_automaton(automaton, **parts)) == rows(table)


@pytest.mark.parametrize("name", MODELS)
def test_kenlm_itself(name, tmp_path):
    kenlm = pytest.importorskip("kenlm")
    text = gzip.decompress((DATA / f"{name}.arpa.gz").read_bytes())
    (tmp_path / "lm.arpa").write_bytes(text)
    try:
        model = kenlm.Model(str(tmp_path / "lm.arpa"), quiet())
    except OSError as error:
        assert "KENLM_MAX_ORDER" in str(error)
        pytest.skip("this kenlm module was built for lower orders")
    table = read_arpa(tmp_path / "lm.arpa", Vocabulary(256), "id")
    assert_like_kenlm(model, automaton_from_table(table, missing_unigrams="unk")[0], 40, 256)


def quiet():
    import kenlm

    config = kenlm.Config()
    config.show_progress = False
    return config


def assert_like_kenlm(model, automaton, num_contexts, vocab_size):
    import kenlm

    generator = torch.Generator().manual_seed(1)
    for number in range(num_contexts):
        bos, length = number % 2 == 0, number // 2 % 8
        tokens = torch.randint(0, vocab_size, (1, length), generator=generator)
        state, following = kenlm.State(), kenlm.State()
        model.BeginSentenceWrite(state) if bos else model.NullContextWrite(state)
        for token in tokens[0].tolist():
            model.BaseScore(state, str(token), following)
            state, following = following, state
        ours = automaton.states_after(tokens, bos=bos)
        theirs = [model.BaseScore(state, str(token), following) for token in range(vocab_size)]
        torch.testing.assert_close(automaton.scores(ours)[0] / LN10, torch.tensor(theirs), rtol=0.0, atol=1e-4)
        end = model.BaseScore(state, "</s>", following)
        assert float(automaton.final_scores(ours)) / LN10 == pytest.approx(end, abs=1e-4)


@settings(deadline=None, max_examples=examples(80))
@given(arpa_models(), st.sampled_from(["share", "unk"]), st.sampled_from(["reference", "cpu"]))
def test_scores_are_the_textbook_s(tmp_path_factory, model, missing, engine):
    table = read_text(model.text, model.vocab_size, tmp_path_factory.getbasetemp())
    automaton, _ = automaton_from_table(table, missing_unigrams=missing)
    automaton.validate()
    automaton.engine = engine
    assert_scores(automaton, model, share=missing == "share")


@settings(deadline=None, max_examples=60)
@given(arpa_models(orders=st.integers(2, 5), specials=("</s>", "<s>", "<unk>"), highest_backoff=0.0))
def test_scores_are_kenlm_s_for_any_model(tmp_path_factory, model):
    # No backoffs above 0: with them KenLM gives suffixes that it has to fill in the wrong sign (it keeps a flag there).
    kenlm = pytest.importorskip("kenlm")
    table = read_text(model.text, model.vocab_size, tmp_path_factory.getbasetemp())
    try:
        theirs = kenlm.Model(str(tmp_path_factory.getbasetemp() / "lm.arpa"), quiet())
    except OSError as error:  # it refuses orders without n-grams, and small models that lack many suffixes
        assert re.search("more blank spaces|no n-grams|should appear|counts", str(error)), error
        event("KenLM refuses the model")
        return
    assert_like_kenlm(theirs, automaton_from_table(table, "unk")[0], 30, model.vocab_size)


def without_unmet(table: NGramTable, unk_stands: bool) -> list[dict[tuple[int, ...], tuple[float, float]]]:
    """The table's rows without what no text can meet; backoffs that nothing can follow are 0."""
    kept = []
    for n, grams in enumerate(rows(table), start=1):
        kept.append(
            {
                words: (log_prob, backoff if unk_stands or words != (table.unk,) else 0.0)
                for words, (log_prob, backoff) in grams.items()
                if n == 1 or unk_stands or table.unk not in words
            }
        )
        kept[-1] = {words: (values[0], 0.0 if words[-1] == table.eos else values[1]) for words, values in kept[-1].items()}
    return kept


@settings(deadline=None, max_examples=examples(150))
@given(arpa_models(), st.sampled_from(["share", "unk", -3.5]))
def test_tables_come_back_from_their_automata(tmp_path_factory, model, missing):
    table = read_text(model.text, model.vocab_size, tmp_path_factory.getbasetemp())
    automaton, parts = automaton_from_table(table, missing_unigrams=missing)
    automaton.validate()
    back = table_from_automaton(automaton, **parts)
    unk_stands = bool(model.missing) and missing != -3.5
    expected, found = without_unmet(table, unk_stands), rows(back)
    expected[0].setdefault((table.eos,), (pytest.approx(convert.MISSING_LOG_PROB), 0.0))
    assert [set(grams) for grams in found] == [set(grams) for grams in expected]
    for n, grams in enumerate(expected, start=1):
        for words, (log_prob, backoff) in grams.items():
            shared = missing == "share" and n > 1 and words[-1] == table.unk
            assert found[n - 1][words][0] == (pytest.approx(log_prob, abs=1e-5) if shared else log_prob)
            assert found[n - 1][words][1] == backoff
    # What comes back is sorted as any table is, and gives the same automaton.
    again, _ = automaton_from_table(back, missing_unigrams=missing)
    for name, tensor in automaton.tensors._asdict().items():
        torch.testing.assert_close(getattr(again, name), tensor, rtol=0.0, atol=1e-5)


class TestUnk:
    """`<unk>` stands for every token without a unigram: in contexts, and in n-grams of any order."""

    @pytest.fixture
    def table(self, tmp_path):
        return read_text(WITH_UNK, 5, tmp_path)

    @pytest.mark.parametrize("missing", ["share", "unk"])
    def test_scores(self, table, missing):
        assert_scores(automaton_from_table(table, missing)[0], ArpaModel(WITH_UNK, 5, 3), share=missing == "share")

    def test_as_kenlm(self, table, tmp_path):
        kenlm = pytest.importorskip("kenlm")
        automaton = automaton_from_table(table, "unk")[0]
        assert_like_kenlm(kenlm.Model(str(tmp_path / "lm.arpa"), quiet()), automaton, 100, 5)

    def test_comes_back(self, table):
        for missing in ("share", "unk"):
            automaton, parts = automaton_from_table(table, missing)
            found = rows(table_from_automaton(automaton, **parts))
            for expected, grams in zip(rows(table), found, strict=True):
                assert grams.keys() == expected.keys()
                for words, values in expected.items():
                    assert grams[words] == pytest.approx(values, abs=1e-6)

    def test_no_token_is_missing(self, tmp_path, caplog):
        table = read_text(WITH_UNK, 3, tmp_path)
        with caplog.at_level(logging.WARNING):
            automaton, parts = automaton_from_table(table)
        assert "7 n-grams are left out" in caplog.text
        assert parts["unk_tokens"].numel() == 0
        assert_scores(automaton, ArpaModel(WITH_UNK, 3, 3), share=True)
        assert table_from_automaton(automaton, **parts).num_ngrams == (6, 2, 1)

    def test_a_number_takes_its_place(self, table):
        automaton, parts = automaton_from_table(table, -3.5)
        state = automaton.states_after(torch.tensor([[1]]), bos=False)
        assert automaton.scores(state)[0, 3].item() == pytest.approx(-3.5 - 0.2 * LN10)
        assert torch.equal(automaton.states_after(torch.tensor([[3]]), bos=False), automaton.roots)
        assert table_from_automaton(automaton, **parts).num_ngrams == (6, 2, 1)

    def test_more_arcs_than_there_is_room_for(self, table, monkeypatch, caplog):
        monkeypatch.setattr(convert, "MAX_UNK_ARCS", 9)
        with caplog.at_level(logging.WARNING):
            automaton, parts = automaton_from_table(table)
        assert "left out" in caplog.text
        assert table_from_automaton(automaton, **parts).num_ngrams == (6, 2, 1)
        assert automaton.scores(automaton.roots)[0, 4].item() == pytest.approx(-1.5 * LN10 - math.log(2), rel=1e-6)

    def test_absent(self, tmp_path, caplog):
        text = "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3 1\n-0.3 </s>\n\n\\end\\\n"
        with caplog.at_level(logging.WARNING):
            automaton, _ = automaton_from_table(read_text(text, 3, tmp_path))
        assert "2 token ids have no unigram and the language model has no <unk>" in caplog.text
        scores = automaton.scores(automaton.roots)[0]
        torch.testing.assert_close(scores, torch.tensor([-100.0, -0.3, -100.0]) * LN10)

    @pytest.mark.parametrize("wrong", ["even", True, math.nan, -math.inf])
    def test_missing_unigrams_must_make_sense(self, table, wrong):
        with pytest.raises(ValueError, match="missing_unigrams"):
            automaton_from_table(table, wrong)


def test_ngrams_that_no_text_can_meet(tmp_path, caplog):
    """`</s>` with a backoff and with followers, `<s>` inside: neither loses anything else nor breaks the way back."""
    strange = WITH_UNK.replace("ngram 2=6", "ngram 2=9").replace("-1.2	</s>", "-1.2	</s>	-0.6")
    strange = strange.replace(
        "-0.3	<s> 1", "-0.1	0 <s>	-0.4\n-0.1	</s> 0	-0.9\n-0.2	0 </s>	-0.5\n-0.3	<s> 1"
    )
    table = read_text(strange, 5, tmp_path)
    with caplog.at_level(logging.WARNING):
        automaton, parts = automaton_from_table(table)
    assert "2 n-grams are left out" in caplog.text
    automaton.validate()
    assert_scores(automaton, ArpaModel(strange, 5, 3), share=True)
    assert table_from_automaton(automaton, **parts).num_ngrams == (6, 7, 4)


def test_tokens_without_a_unigram_in_longer_ngrams():
    """A file can't hold them, a table can."""
    columns = [([[0], [3], [4]], 3), ([[0, 1], [0, 4]], 2)]
    table = NGramTable.from_rows(2, [(torch.tensor(t), torch.full((n,), -1.0), torch.zeros(n)) for t, n in columns])
    automaton, parts = automaton_from_table(table)
    automaton.validate()
    assert rows(table_from_automaton(automaton, **parts))[1] == {(0, 4): (pytest.approx(-1.0), 0.0)}


def test_states_that_behave_as_their_backoff_state_are_merged(golden):
    table, _ = golden
    automaton, parts = automaton_from_table(table)
    assert sum(parts["states_per_depth"]) == automaton.num_states < sum(table.num_ngrams[:-1])
    has_arcs = automaton.arc_offsets.diff() > 0
    assert bool((has_arcs | (automaton.backoff_weights != 0)).all())


def test_one_unigram(tmp_path):
    table = read_text("\\data\\\nngram 1=1\n\\1-grams:\n-0.5 0\n\\end\\", 1, tmp_path)
    automaton, parts = automaton_from_table(table)
    automaton.validate()
    assert (automaton.num_states, automaton.context_length) == (1, 0)
    assert automaton.scores(automaton.initial_states(2))[:, 0].tolist() == pytest.approx([-0.5 * LN10] * 2)
    assert parts["bos_log_prob"] is None


def test_more_orders_than_an_automaton_may_have(monkeypatch):
    assert convert.MAX_CONTEXT_LENGTH == MAX_CONTEXT_LENGTH
    monkeypatch.setattr(convert, "MAX_CONTEXT_LENGTH", 7)
    chain = [(torch.zeros(1, n, dtype=torch.int64), -torch.ones(1), torch.zeros(1)) for n in range(1, 10)]
    automaton_from_table(NGramTable.from_rows(1, chain[:8]))[0].validate()
    with pytest.raises(NGramFormatError, match="order 9; at most order 8"):
        automaton_from_table(NGramTable.from_rows(1, chain))


def test_wrong_parts_are_refused(tmp_path):
    automaton, parts = automaton_from_table(read_text(WITH_UNK, 5, tmp_path))
    depths = parts["states_per_depth"]
    for wrong in (
        [*depths, 0],
        depths[:-1],
        [1, depths[1] + 1, depths[2] - 1],
        [-1, depths[1], depths[2] + 2],
        [0, 0, 0],
    ):
        with pytest.raises(NGramFormatError, match="depth"):
            table_from_automaton(automaton, **{**parts, "states_per_depth": wrong})
    with pytest.raises(NGramFormatError, match="one language model"):
        packed = packed_automaton([automaton, automaton])
        table_from_automaton(packed, **{**parts, "states_per_depth": [1, 2 * automaton.num_states - 1, 0]})
