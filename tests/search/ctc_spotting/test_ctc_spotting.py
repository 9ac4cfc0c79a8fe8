"""Phrases in CTC outputs: the core finds what the definition finds, and its sums are those over all alignments."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_ngpulm.search.ctc_spotting import Aligned, SpellingTree, aligned, forced, spotted

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
    return logits, torch.tensor(lengths), blank, spellings, (begins, delimiter), transcripts


@RELAXED
@given(problems(), st.sampled_from([math.inf, 3.0]), st.integers(1, 40))
def test_without_pruning_the_core_finds_what_the_definition_finds(problem, slack, most):
    logits, lengths, blank, spellings, borders, transcripts = problem
    needed = [-1.5 * (number % 3) for number in range(len(spellings))]
    every = SpellingTree.of(spellings, needed, *borders, slack=slack)
    open_to_all = replace(every, bounds=np.full_like(every.bounds, -np.inf), kept={})
    found = spotted(logits, lengths, blank, open_to_all, transcripts, most)
    expected = spotted(logits, lengths, blank, every, transcripts, most, engine="reference")
    for spots, others in zip(found, expected, strict=True):
        assert [spot[:3] for spot in spots] == [spot[:3] for spot in others]
        assert [spot.score for spot in spots] == pytest.approx([spot.score for spot in others], abs=1e-4)
    if slack == 3.0:
        pruned = spotted(logits, lengths, blank, every, transcripts, most)
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


@RELAXED
@given(st.integers(1, 6), st.lists(st.integers(1, 2), min_size=1, max_size=3), st.integers(0, 1000))
def test_the_best_alignment_is_that_of_a_brute_force(frames, tokens, seed):
    logits = torch.randn(frames, 3, generator=torch.Generator().manual_seed(seed))
    ways = []
    for labels in itertools.product(range(3), repeat=frames):
        runs = [(label, len(list(run))) for label, run in itertools.groupby(labels)]
        if [label for label, _ in runs if label] == tokens:
            ends = list(itertools.accumulate(size for _, size in runs))
            spans = [(end - size, end) for (label, size), end in zip(runs, ends) if label]
            ways.append((float(logits[torch.arange(frames), list(labels)].sum()), spans))
    if ways:
        assert list(zip(*aligned(logits, tokens, 0))) == max(ways)[1]
    else:
        with pytest.raises(ValueError, match="tokens don't fit into"):
            aligned(logits, tokens, 0)


def test_the_tree_has_each_prefix_once():
    spellings, needed = [[3, 1], [3], [3, 1, 2], [1], [3, 1]], [-4.0, 2.0, -9.0, -1.0, 0.0]
    tree = SpellingTree.of(spellings, needed, np.ones(CLASSES, dtype=bool), slack=1.0)
    assert tree.tokens.tolist() == [-1, 1, 3, 1, 2] and tree.firsts.tolist() == [1, 3, 3, 4, 5, 5]
    assert tree.ends.tolist() == [-1, 3, 1, 0, 2]
    assert tree.bounds.tolist() == [0.0, -2.0, -4.0, -7.0, -10.0]


def test_a_phrase_takes_the_place_of_whole_words():
    logits = torch.full((1, 6, 5), -9.0)
    for frame, classes in enumerate([(1,), (4,), (2, 3), (4,), (1,), (4,)]):
        logits[0, frame, list(classes)] = torch.tensor([0.0, -0.5])[: len(classes)]
    transcript = Aligned([1, 2, 1], [0, 2, 4], [1, 3, 5])
    tree = SpellingTree.of([[3], [3, 1]], [-2.0, -2.0], np.array([False, True, True, False, False]))
    (spots,) = spotted(logits, torch.tensor([6]), 4, tree, [transcript])
    assert [(spot.spelling, spot.first, spot.last, round(spot.score, 3)) for spot in spots] == [
        (0, 1, 2, -0.5),
        (1, 1, 3, -0.5),
    ]
    tree = SpellingTree.of([[3], [3, 1]], [-2.0, -2.0], np.eye(5, dtype=bool)[2])
    (spots,) = spotted(logits, torch.tensor([6]), 4, tree, [transcript])
    assert [(spot.spelling, spot.first, spot.last) for spot in spots] == [(1, 1, 3)]


def test_what_does_not_fit_is_refused():
    begins = np.ones(4, dtype=bool)
    tree = SpellingTree.of([[2]], [0.0], begins)
    logits, lengths = torch.zeros(1, 3, 4), torch.tensor([3])
    with pytest.raises(IndexError, match="transcript of row 0 doesn't fit"):
        spotted(logits, lengths, 3, tree, [Aligned([1, 1], [0, 1], [2, 3])])
    with pytest.raises(ValueError, match="the phrases are for 4 classes, but the logits have 5"):
        spotted(torch.zeros(1, 3, 5), lengths, 3, tree, [Aligned([], [], [])])
    with pytest.raises(IndexError, match="reading 0 has tokens"):
        forced(logits, lengths, 3, [0], [[7]])
    with pytest.raises(IndexError, match=r"rows should lie in 0\.\.0"):
        forced(logits, lengths, 3, [1], [[1]])
