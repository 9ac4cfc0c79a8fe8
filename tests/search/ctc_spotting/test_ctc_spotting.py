"""Phrases in CTC outputs: the core finds what the definition finds, and its sums are those over all alignments."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_ngpulm.search.ctc_spotting import Aligned, Borders, SpellingTree, forced, spotted

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))
CLASSES = 7


@st.composite
def problems(draw):
    """Logits of some rows with aligned transcripts, spellings, and where words begin."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    blank = draw(st.sampled_from([0, 3, CLASSES - 1]))
    tokens = st.sampled_from([token for token in range(CLASSES) if token != blank])
    spellings = draw(st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=6))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    logits = 2 * torch.randn(len(lengths), max(lengths), CLASSES, generator=generator)
    transcripts = []
    for length in lengths:
        cuts = sorted(draw(st.sets(st.integers(0, length), max_size=6)))
        spans = [(a, b) for a, b in itertools.pairwise(cuts) if draw(st.booleans())]
        transcripts.append(
            Aligned([draw(tokens) for _ in spans], *(list(each) for each in (zip(*spans) if spans else ((), ()))))
        )
    begins = np.array(draw(st.lists(st.booleans(), min_size=CLASSES, max_size=CLASSES)))
    delimiter = draw(st.sampled_from([-1, draw(tokens)]))
    return logits, torch.tensor(lengths), blank, spellings, Borders(begins, delimiter), transcripts


@RELAXED
@given(problems(), st.sampled_from([math.inf, 3.0]), st.integers(1, 40))
def test_without_pruning_the_core_finds_what_the_definition_finds(problem, slack, most):
    logits, lengths, blank, spellings, borders, transcripts = problem
    needed = [-1.5 * (number % 3) for number in range(len(spellings))]
    every = SpellingTree.of(spellings, needed, slack)
    open_to_all = every._replace(bounds=np.full_like(every.bounds, -np.inf))
    found = spotted(logits, lengths, blank, open_to_all, borders, transcripts, most)
    expected = spotted(logits, lengths, blank, every, borders, transcripts, most, engine="reference")
    for spots, others in zip(found, expected, strict=True):
        assert [spot[:3] for spot in spots] == [spot[:3] for spot in others]
        assert [spot.score for spot in spots] == pytest.approx([spot.score for spot in others], abs=1e-4)
    if slack == 3.0:
        pruned = spotted(logits, lengths, blank, every, borders, transcripts, most)
        for spots, others in zip(pruned, expected):
            assert {spot[:3] for spot in spots} <= {spot[:3] for spot in others} or most < 40


@RELAXED
@given(problems())
def test_readings_sum_all_alignments(problem):
    logits, lengths, blank, spellings, *_ = problem
    readings = [[], *spellings]
    rows = [number % len(logits) for number in range(len(readings))]
    found = forced(logits, lengths, blank, rows, readings)
    assert found.tolist() == pytest.approx(
        forced(logits, lengths, blank, rows, readings, engine="reference").tolist(), abs=1e-4
    )


def test_the_tree_has_each_prefix_once():
    tree = SpellingTree.of([[3, 1], [3], [3, 1, 2], [1], [3, 1]], [-4.0, 2.0, -9.0, -1.0, 0.0], slack=1.0)
    assert tree.tokens.tolist() == [-1, 1, 3, 1, 2] and tree.firsts.tolist() == [1, 3, 3, 4, 5, 5]
    assert tree.ends.tolist() == [-1, 3, 1, 0, 2]
    assert tree.bounds.tolist() == [0.0, -2.0, -4.0, -7.0, -10.0]


def test_a_phrase_takes_the_place_of_whole_words():
    logits = torch.full((1, 6, 5), -9.0)
    for frame, classes in enumerate([(1,), (4,), (2, 3), (4,), (1,), (4,)]):
        logits[0, frame, list(classes)] = torch.tensor([0.0, -0.5])[: len(classes)]
    transcript = Aligned([1, 2, 1], [0, 2, 4], [1, 3, 5])
    tree = SpellingTree.of([[3], [3, 1]], [-2.0, -2.0])
    borders = Borders(np.array([False, True, True, False, False]), -1)
    (spots,) = spotted(logits, torch.tensor([6]), 4, tree, borders, [transcript])
    assert [(spot.spelling, spot.first, spot.last, round(spot.score, 3)) for spot in spots] == [
        (0, 1, 2, -0.5),
        (1, 1, 3, -0.5),
    ]
    (spots,) = spotted(logits, torch.tensor([6]), 4, tree, borders._replace(begins=np.eye(5, dtype=bool)[2]), [transcript])
    assert [(spot.spelling, spot.first, spot.last) for spot in spots] == [(1, 1, 3)]


def test_what_does_not_fit_is_refused():
    tree, borders = SpellingTree.of([[2]], [0.0]), Borders(np.ones(4, dtype=bool), -1)
    logits, lengths = torch.zeros(1, 3, 4), torch.tensor([3])
    with pytest.raises(IndexError, match="transcript of row 0 doesn't fit"):
        spotted(logits, lengths, 3, tree, borders, [Aligned([1, 1], [0, 1], [2, 3])])
    with pytest.raises(ValueError, match="phrases have the token 9"):
        spotted(logits, lengths, 3, SpellingTree.of([[9]], [0.0]), borders, [Aligned([], [], [])])
    with pytest.raises(IndexError, match="reading 0 has tokens"):
        forced(logits, lengths, 3, [0], [[7]])
    with pytest.raises(IndexError, match=r"rows should lie in 0\.\.0"):
        forced(logits, lengths, 3, [1], [[1]])
