"""The native core builds the automaton that torch builds, bit for bit."""

from unittest import mock

import numpy as np
import pytest
import torch
from arpa_models import arpa_models
from automata import tables
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm.automaton import automaton_from_table, convert, steps
from hf_ngpulm.automaton.steps import cpu, reference
from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.formats.arpa import read_arpa
from hf_ngpulm.ngrams.counting import NGramCounter
from hf_ngpulm.ngrams.kneser_ney import estimate
from hf_ngpulm.ngrams.table import NGramOrder, NGramTable
from hf_ngpulm.text.vocabulary import Vocabulary

missing_unigrams = st.sampled_from(["share", "unk", -3.5])


def built_by(engine, table, missing, **constants):
    """All that comes out, and what is said: tensors as their bytes, so that -0 isn't 0."""
    messages = []
    with (
        mock.patch.object(convert, "steps_for", lambda table: engine),
        mock.patch.object(cpu, "ELEMENTS_PER_BLOCK", constants.get("block", cpu.ELEMENTS_PER_BLOCK)),
        mock.patch.object(convert, "MAX_UNK_ARCS", constants.get("most_unk_arcs", convert.MAX_UNK_ARCS)),
        mock.patch.object(convert.logger, "warning", lambda *message: messages.append(message)),
    ):
        automaton, parts = automaton_from_table(table, missing)
    tensors = {**automaton.tensors._asdict(), "roots": automaton.roots, "starts": automaton.starts}
    tensors["unk_tokens"] = parts.pop("unk_tokens")
    columns = {name: (t.dtype, t.shape, t.numpy().tobytes()) for name, t in tensors.items()}
    return columns | {"parts": parts, "messages": messages, "context length": automaton.context_length}


def assert_same(table, missing="share", **constants):
    assert built_by(cpu, table, missing, **constants) == built_by(reference, table, missing, **constants)


@settings(deadline=None, max_examples=examples(200))
@given(st.data(), st.integers(1, 7), missing_unigrams, st.sampled_from([1, 3, 1 << 18]), st.sampled_from([0, 12, 1 << 24]))
def test_tables_of_any_kind(data, vocab_size, missing, block, most_unk_arcs):
    table = data.draw(tables(vocab_size, most=data.draw(st.sampled_from([5, 30, 150]))))
    assert_same(table, missing, block=block, most_unk_arcs=most_unk_arcs)


@settings(deadline=None, max_examples=100)
@given(arpa_models(), missing_unigrams, st.sampled_from([1, 4]))
def test_arpa_files(tmp_path_factory, model, missing, block):
    path = tmp_path_factory.getbasetemp() / "lm.arpa"
    path.write_text(model.text)
    assert_same(read_arpa(path, Vocabulary(model.vocab_size), "id"), missing, block=block)


@pytest.mark.parametrize("prune", [(), (0, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize("order", [1, 2, 3, 6])
@pytest.mark.parametrize("vocab_size", [60, 40_000])  # token ids of 16 and of 32 bits
def test_estimated_models(order, prune, vocab_size):
    rng = np.random.default_rng(order)
    lengths = rng.integers(0, 30, 600)
    token_ids = np.minimum(rng.geometric(0.08, lengths.sum()) - 2, 55)  # -1 is unknown, and some tokens never occur
    with NGramCounter(vocab_size, order) as counter:
        counter.add(token_ids, lengths)
        table = estimate(counter.finish(), prune[:order]).table
    for missing in ("share", "unk"):
        assert_same(table, missing)
        assert_same(table, missing, block=100)


def with_columns(table, change):
    return NGramTable(table.vocab_size, tuple(change(order) for order in table.orders))


@settings(deadline=None, max_examples=60)
@given(st.data(), missing_unigrams)
def test_zeros_keep_their_signs(data, missing):
    table = data.draw(tables(4, most=60))
    signs = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))

    def zeros(column):
        return torch.where(torch.rand(column.shape, generator=signs) < 0.5, 0.0 * column.sign(), column)

    def change(order):
        return NGramOrder(order.prefixes, order.tokens, zeros(order.log_probs), zeros(order.backoffs))

    assert_same(with_columns(table, change), missing)


@settings(deadline=None, max_examples=60)
@given(st.data(), missing_unigrams)
def test_backoffs_of_the_highest_order_and_columns_with_gaps(data, missing):
    """A table made by hand may have them."""
    table = data.draw(tables(3, most=40))

    def change(order):
        columns = (order.prefixes, order.log_probs, torch.full_like(order.backoffs, -0.5))
        prefixes, log_probs, backoffs = (torch.stack([column, column], 1)[:, 0] for column in columns)
        return NGramOrder(prefixes, order.tokens, log_probs, backoffs)

    assert_same(with_columns(table, change), missing)


def test_too_many_arcs():
    table = NGramTable.from_rows(1, [(torch.tensor([[0], [2]]), torch.full((2,), -1.0), torch.zeros(2))])
    with pytest.raises(NGramFormatError, match="2147483648 n-grams are more"):
        reference.check_arcs(2**31)
    for engine in (reference, cpu):
        failing = mock.Mock(side_effect=NGramFormatError)
        with mock.patch.object(engine, "check_arcs", failing), pytest.raises(NGramFormatError):
            built_by(engine, table, "share")
        failing.assert_called_once_with(2)


def test_which_engine(monkeypatch):
    table = NGramTable.from_rows(1, [(torch.tensor([[0], [2]]), torch.full((2,), -1.0), torch.zeros(2))])
    assert steps.steps_for(table) is cpu
    monkeypatch.setattr(steps, "MOST_NUMBERED", 1)
    assert steps.steps_for(table) is reference
    monkeypatch.setattr(steps, "MOST_NUMBERED", 2)
    monkeypatch.setenv("HF_NGPULM_ENGINE", "reference")
    assert steps.steps_for(table) is reference


@pytest.mark.parametrize("block", [1, 1 << 18])
@pytest.mark.parametrize(
    "column, row, value, message",
    [
        ("prefixes", 3, 7, "row 3 of the 2-grams, prefix 7 and token 1: .*prefixes below 4"),
        ("prefixes", 0, -1, "row 0 of the 2-grams, prefix -1 and token 0"),
        ("prefixes", 2, 0, "row 2 of the 2-grams, prefix 0 and token 0"),
        ("tokens", 1, 0, "row 1 of the 2-grams, prefix 0 and token 0"),
        ("tokens", 3, 6, "row 3 of the 2-grams, prefix 1 and token 6: .*tokens below 6"),
        ("tokens", 3, -1, "row 3 of the 2-grams, prefix 1 and token -1"),
    ],
)
def test_tables_that_no_reader_makes_are_refused(column, row, value, message, block):
    rows = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    unigrams = (torch.tensor([[0], [1], [2], [4]]), torch.full((4,), -1.0), torch.zeros(4))
    table = NGramTable.from_rows(3, [unigrams, (rows, torch.full((4,), -1.0), torch.zeros(4))])
    getattr(table.orders[1], column)[row] = value
    with mock.patch.object(cpu, "ELEMENTS_PER_BLOCK", block), pytest.raises(NGramFormatError, match=message):
        automaton_from_table(table)
