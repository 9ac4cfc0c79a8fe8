"""NGramTable: rows in any order become sorted columns; what isn't a backoff model is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.ngrams.table import NUM_SPECIAL, NGramTable

BOS, EOS, UNK = 3, 4, 5  # after a vocabulary of 3


def columns(*ngrams, log_prob=-1.0, backoff=-0.5):
    """Rows of one order, all with the same values."""
    tokens = torch.tensor(ngrams)
    return tokens, torch.full((len(ngrams),), log_prob), torch.full((len(ngrams),), backoff)


def contents(table):
    return [
        dict(zip(map(tuple, table.rows(n).tolist()), zip(order.log_probs.tolist(), order.backoffs.tolist())))
        for n, order in enumerate(table.orders, start=1)
    ]


@pytest.fixture
def table():
    return NGramTable.from_rows(3, [columns([2], [EOS], [0], [BOS]), columns([2, 0], [BOS, 2], [0, EOS]), columns([BOS, 2, 0])])


def test_sizes_and_special_ids(table):
    assert (table.vocab_size, table.order, table.num_ngrams) == (3, 3, (4, 3, 1))
    assert (table.bos, table.eos, table.unk, table.num_ids) == (BOS, EOS, UNK, 3 + NUM_SPECIAL)
    assert table.offsets == [1, 5, 8, 9]
    assert [len(order) for order in table.orders] == [4, 3, 1]


def test_columns(table):
    unigrams, bigrams, trigrams = table.orders
    assert unigrams.tokens.tolist() == [0, 2, BOS, EOS]
    assert unigrams.prefixes.tolist() == [0, 0, 0, 0]
    assert bigrams.tokens.tolist() == [EOS, 0, 2]
    assert bigrams.prefixes.tolist() == [0, 1, 2]
    assert (trigrams.tokens.tolist(), trigrams.prefixes.tolist()) == ([0], [2])
    assert trigrams.backoffs.tolist() == [0.0]  # no context is as long as that
    for order in table.orders:
        dtypes = [order.prefixes.dtype, order.tokens.dtype, order.log_probs.dtype, order.backoffs.dtype]
        assert dtypes == [torch.int64, torch.int32, torch.float32, torch.float32]
    assert table.rows(3).tolist() == [[BOS, 2, 0]]
    assert table.rows(2).dtype == torch.int64


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_rows_in_any_order(data):
    vocab_size = data.draw(st.integers(1, 5))
    grams = [set(data.draw(st.sets(st.tuples(st.integers(0, vocab_size + 2)), min_size=1)))]
    for _ in range(data.draw(st.integers(0, 3))):
        following = st.tuples(st.sampled_from(sorted(grams[-1])), st.integers(0, vocab_size + 2))
        grams.append({(*prefix, token) for prefix, token in data.draw(st.sets(following, min_size=1, max_size=12))})
    expected = [
        {gram: (-float(sum(gram)), float(n != len(grams) and gram[-1])) for gram in level}
        for n, level in enumerate(grams, start=1)
    ]
    rows = []
    for level in expected:
        shuffled = data.draw(st.permutations(sorted(level)))
        values = torch.tensor([level[gram] for gram in shuffled], dtype=torch.float64)
        rows.append((torch.tensor(shuffled), values[:, 0], values[:, 1]))
    table = NGramTable.from_rows(vocab_size, rows)
    assert contents(table) == expected
    for n, order in enumerate(table.orders, start=1):
        assert table.rows(n).tolist() == sorted(table.rows(n).tolist())
        keys = order.prefixes * table.num_ids + order.tokens
        assert bool((keys[1:] > keys[:-1]).all())


def test_large_vocabularies_and_orders():
    size = 2_000_000
    tokens = torch.arange(size - 1000, size + NUM_SPECIAL)
    pairs = torch.stack([tokens, tokens.flip(0)], dim=1)
    ones = torch.ones(len(tokens))
    table = NGramTable.from_rows(size, [(tokens[:, None], -ones, ones), (pairs, -ones, ones)])
    assert torch.equal(table.rows(2), pairs)
    chain = [columns([0] * n) for n in range(1, 61)]
    assert NGramTable.from_rows(1, chain).rows(60).tolist() == [[0] * 60]


def test_an_order_may_be_empty():
    empty = (torch.empty(0, 2, dtype=torch.int64), torch.empty(0), torch.empty(0))
    table = NGramTable.from_rows(3, [columns([0]), empty])
    assert table.num_ngrams == (1, 0)
    assert table.rows(2).shape == (0, 2)
    assert table.orders[0].backoffs.tolist() == [-0.5]
    with pytest.raises(NGramFormatError, match=r"3-gram \(0 0 0\) has no prefix: \(0 0\) isn't among the 2-grams"):
        NGramTable.from_rows(3, [columns([0]), empty, columns([0, 0, 0])])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one unigram"),
        ([(torch.empty(0, 1, dtype=torch.int64), torch.empty(0), torch.empty(0))], "at least one unigram"),
        ([columns([0], [-1])], r"token id -1 in a 1-gram is outside the vocabulary 0\.\.2"),
        ([columns([0], [6])], r"token id 6 in a 1-gram is outside the vocabulary 0\.\.2"),
        ([columns([0]), columns([0, 10**12])], r"token id 1000000000000 in a 2-gram"),
        ([columns([0], [2], [0])], r"the 1-gram \(0\) occurs more than once"),
        ([columns([0], [BOS]), columns([BOS, EOS], [0, UNK], [BOS, EOS])], r"the 2-gram \(<s> </s>\) occurs more"),
        ([columns([0]), columns([2, 0])], r"2-gram \(2 0\) has no prefix: \(2\) isn't among the 1-grams"),
        ([columns([0]), columns([0, 0]), columns([0, 1, 0])], r"3-gram \(0 1 0\) has no prefix: \(0 1\)"),
        ([columns([0], log_prob=0.1)], r"1-gram \(0\) has the log-probability 0\.1, which .* at most 0"),
        ([columns([0], log_prob=float("nan"))], "log-probability nan"),
        ([columns([0], log_prob=float("-inf"))], "log-probability -inf"),
        ([columns([0], backoff=float("nan")), columns([0, 0])], "the backoff nan, which should be a finite number"),
        ([columns([0], backoff=float("inf")), columns([0, 0])], "the backoff inf"),
    ],
)
def test_what_is_no_backoff_model(rows, message):
    with pytest.raises(NGramFormatError, match=message):
        NGramTable.from_rows(3, rows)


def test_values_beyond_float32():
    tokens, big = torch.tensor([[0]]), torch.tensor([-1e300], dtype=torch.float64)
    with pytest.raises(NGramFormatError, match="log-probability -inf"):
        NGramTable.from_rows(1, [(tokens, big, torch.zeros(1))])
