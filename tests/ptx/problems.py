"""A problem for every kernel of the project, with at least four warps where a kernel may have them.

Each is a function that asks the GPU's engine and the reference (or the core, which is held to it), and compares. Rows are
ragged, one is empty, one has broken logits; rows follow several automata, and texts come in.
"""

from __future__ import annotations

import torch
from automata import packed_automaton
from toys import Toy
from transducer_searches import beam_search, greedy

from hf_ngpulm import NGramLM
from hf_ngpulm.automaton import BackoffAutomaton
from hf_ngpulm.search import attention_step as fused
from hf_ngpulm.search import ctc_beam as beam
from hf_ngpulm.search import ctc_greedy as labels
from hf_ngpulm.search.attention_step import END, START, TEXT, UNSCORED, FusedRows, Roles
from hf_ngpulm.search.attention_step.loops import end_loops
from hf_ngpulm.search.networks.search import SearchSettings
from hf_ngpulm.text.hashing import hashes_of_pieces

FRAMES, CLASSES, BLANK = 7, 600, 3
LENGTHS = torch.tensor([FRAMES, 0, FRAMES - 2, FRAMES], dtype=torch.int32)
ROWS = len(LENGTHS)


def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def language_model(vocab_size: int) -> BackoffAutomaton:
    """Two models, of which one is trained on few tokens: its contexts are often met again."""
    drawn = torch.rand(2, 150, 7, generator=random())
    texts = ((vocab_size * drawn[0] ** 3).long(), (min(vocab_size, 40) * drawn[1]).long())
    models = [NGramLM.train(text.tolist(), vocab_size=vocab_size, order=order) for text, order in zip(texts, (4, 2))]
    return packed_automaton(models)


def states_and_weights(automaton: BackoffAutomaton, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    states = torch.randint(0, automaton.num_states, (rows, 2), dtype=torch.int32, generator=random())
    return states, torch.tensor([[0.5, 0.3], [1.0, 0.0], [0.2, -0.2], [0.7, 0.4]]).repeat(-(-rows // 4), 1)[:rows].contiguous()


def logits(classes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Few classes are likely, so that prefixes meet again; in the first row very few, in the last one a logit is NaN."""
    found = 2 * torch.randn(ROWS, FRAMES, classes, generator=random())
    found[..., 4:60] += 3.0
    found[..., BLANK] += 5 * torch.rand(ROWS, FRAMES, generator=random())
    found[0] *= 4
    found[2, :2, 11] = -torch.inf
    found[3, FRAMES - 2, 9] = torch.nan
    return found.to(dtype)


def close(found, expected, **more) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3, equal_nan=True, **more)


def queries(vocab_size: int = 3001) -> None:
    automaton = language_model(vocab_size)
    states = torch.cat([torch.randint(0, automaton.num_states, (9,), generator=random()), torch.tensor([-1])]).int()
    tokens = torch.randint(-1, vocab_size + 1, (len(states), 6), generator=random())
    lengths = torch.tensor([6, 0, 3, 5, 6, 6, 1, 2, 4, 6])
    answers = []
    for engine in ("gpu", "cpu"):
        automaton.engine = engine
        inside = states.clamp(min=0) if engine == "cpu" else states
        found = [automaton.scores(inside), *automaton.advance(inside), *automaton.step(inside, tokens[:, 0])]
        found = [part[:9] for part in found]
        answers.append([*found, *automaton.score_tokens(tokens, lengths), automaton.states_after(tokens, lengths)])
    close(*answers)
    automaton.engine = "gpu"
    assert automaton.scores(states[:0]).shape == (0, vocab_size)


def greedy_ctc(classes: int = CLASSES) -> None:
    automaton = language_model(classes - 4)
    states, weights = states_and_weights(automaton)
    before = torch.full((ROWS, 2), BLANK, dtype=torch.int32)
    for rule in labels.RULES:
        rules = labels.LabelRules(weights, weights[:, 0], BLANK, automaton.vocab_size, rule)
        arguments = (list(automaton.tensors), logits(classes), LENGTHS, states, before, rules)
        found, expected = (labels.ctc_greedy(*arguments, engine) for engine in ("gpu", "reference"))
        close(found, expected)


def best_of_beam(state, frames) -> list:
    totals = torch.logaddexp(state.blank_scores, state.token_scores).double() + state.fused + state.offsets[:, None]
    best, places = totals.sort(dim=1, descending=True)
    return [best[:, :2], state.hashes.gather(1, places)[:, :1], frames.bad_frames]


def beam_ctc(classes: int = CLASSES, with_texts: bool = True) -> None:
    automaton = language_model(classes - 4)
    states, weights = states_and_weights(automaton)
    hashes = hashes_of_pieces([chr(97 + token % 7) * (1 + token % 2) for token in range(classes)]) if with_texts else None
    lm_weights = weights[:, 0]
    rules = beam.BeamRules(weights, 0.2 + lm_weights, -lm_weights, BLANK, automaton.vocab_size, 20.0, 0.99, hashes)
    arguments = (list(automaton.tensors), beam.initial_state(8, states), logits(classes), LENGTHS, rules)
    close(*(best_of_beam(*beam.ctc_beam(*arguments, engine)) for engine in ("gpu", "reference")))


def transducer(vocab_size: int = 2050) -> None:
    automaton = language_model(vocab_size)
    model = Toy(vocab_size + 10, vocab_size + 9, (0, 1, 2), seed=3, blank_bias=6.0)
    frames = 1.5 * torch.randn(ROWS, FRAMES, 6, generator=random())
    states, weights = states_and_weights(automaton)
    ilm_weights = torch.tensor([0.1, 0.0, 0.2, 0.1])
    arguments = (model, frames, LENGTHS.long(), automaton.tensors, states, weights, vocab_size, 3, ilm_weights, "max_prob")
    found, expected = (greedy(*arguments, engine) for engine in ("gpu", "reference"))
    assert torch.equal(found.counts, expected.counts) and expected.counts.sum() > 3
    close(*([each.acoustic_scores, each.lm_scores, each.ilm_scores] for each in (found, expected)))


def transducer_beam(strategy: str, durations: tuple[int, ...] | None, num_beams: int, vocab_size: int = 2050) -> None:
    automaton = language_model(vocab_size)
    model = Toy(vocab_size + 10, vocab_size + 9, durations, seed=3, blank_bias=7.0)
    frames = 1.5 * torch.randn(2, 3, 6, generator=random())
    states, weights = states_and_weights(automaton, 2)
    options = SearchSettings(num_beams, strategy, log_sum=True, max_symbols=2, confidence="tsallis")
    arguments = (model, frames, torch.tensor([3, 2]), automaton.tensors, states, weights, vocab_size, options)
    more = {"num_lms": 1, "ilm_weights": torch.tensor([0.1, 0.2])}
    found, expected = (beam_search(*arguments, engine, **more) for engine in ("gpu", "cpu"))
    close((found.scores[:, :2], found.lm_scores[:, 0]), (expected.scores[:, :2], expected.lm_scores[:, 0]))


def attention(vocab_size: int = 3001) -> None:
    automaton = language_model(vocab_size)
    classes = vocab_size + 9
    roles = torch.full((classes,), TEXT)
    roles[vocab_size:] = UNSCORED
    roles[::97] = UNSCORED
    roles[vocab_size], roles[vocab_size + 1] = END, START + UNSCORED
    roles = Roles.of(roles.to(torch.int8))
    which, follows = torch.tensor([0, 1, 0, 0]), torch.tensor([True, True, False, True])
    starts = torch.where(follows, automaton.starts[which], -1)
    rows = FusedRows(
        automaton.tensors, vocab_size, automaton.context_length, starts, automaton.roots[which],
        torch.rand(4, generator=random()),
    )  # fmt: skip
    ids = torch.randint(0, 40, (4, 12), generator=random())
    scores = 3 * torch.randn(4, classes, generator=random())
    for shared in (True, False):
        answers = []
        for engine in ("gpu", "reference"):
            whole, carried = scores.clone(), scores.clone()
            fused.fuse(whole, ids, rows, roles, shared, engine)
            states = fused.read(ids[:, :-1].contiguous(), rows, roles, engine)
            states = fused.follow(states, ids[:, -1].contiguous(), rows, roles, engine)
            fused.fuse_at(carried, states, rows, roles, shared, engine, keeps_sums=True)
            answers.append((whole, carried))
        close(*answers)


def loops() -> None:
    roles = torch.zeros(600, dtype=torch.int8)
    roles[0] = START
    ids = torch.randint(1, 4, (6, 60), generator=random())
    ids[::2] = (torch.arange(60) % 5 + 1).expand(3, 60)
    ids[4, 30] = 0
    is_fused, ends = torch.arange(6) % 3 != 1, torch.tensor([5, 7, 599])
    answers = []
    for engine in ("gpu", "reference"):
        scores = torch.randn(6, 600, generator=random())
        answers.append((end_loops(scores, ids, roles, is_fused, ends, engine), scores))
    close(*answers)


PROBLEMS = {
    "queries": queries,
    "greedy_ctc": greedy_ctc,
    "beam_ctc": beam_ctc,
    "beam_ctc_alone": lambda: beam_ctc(with_texts=False),
    "transducer": transducer,
    "alsd": lambda: transducer_beam("alsd", (0, 1, 2), 16),
    "alsd_of_two": lambda: transducer_beam("alsd", None, 2),  # so few candidates that several threads hold each
    "aes": lambda: transducer_beam("aes", None, 16),
    "attention": attention,
    "loops": loops,
}
