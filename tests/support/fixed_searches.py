"""Searches whose results are compared among processes: `python fixed_searches.py RESULTS.pt ENGINE ...`."""

from __future__ import annotations

import sys

import torch
from automata import build_automaton
from toys import Toy
from transducer_searches import beam_search, greedy

from hf_ngpulm import NGramLM
from hf_ngpulm.search import ctc_beam, ctc_graph, ctc_greedy
from hf_ngpulm.search.networks.search import SearchSettings

VOCAB, CLASSES, FRAMES, ROWS = 40, 43, 60, 3


def searches(engine: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    arcs = [
        {t: (-0.31 * (t % 7) - 0.1 * state, (3 * t + state) % 5) for t in range(state, VOCAB, state + 1)} for state in range(5)
    ]
    automaton = build_automaton(VOCAB, arcs, [0, 0, 0, 1, 2], [-2.0, -1.3, -0.7, -0.2, -0.9])
    logits = 2.5 * torch.randn(ROWS, FRAMES, CLASSES, generator=generator)
    logits[..., -1] += 3.0 * (torch.rand(ROWS, FRAMES, generator=generator) < 0.6)
    lengths = torch.tensor([FRAMES, FRAMES - 9, 1], dtype=torch.int32)
    states, weights = (
        torch.tensor([[0, 1], [2, 3], [4, 0]], dtype=torch.int32),
        torch.tensor([[0.7, 0.31], [1.1, -0.2], [0.3, 0.9]]),
    )
    bonuses, unscored, blank = torch.tensor([0.3, 0.9, -0.2]), torch.tensor([-1.0, -2.5, 0.1]), CLASSES - 1
    found: dict[str, torch.Tensor] = {}

    before = torch.full((ROWS, 2), blank, dtype=torch.int32)
    for rule in ctc_greedy.RULES:
        rules = ctc_greedy.LabelRules(weights, bonuses.abs(), blank, VOCAB, rule)
        labels = ctc_greedy.ctc_greedy(list(automaton.tensors), logits, lengths, states, before, rules, engine)
        found |= {f"greedy {rule} {name}": part for name, part in labels._asdict().items()}
    for num_beams in (3, 16):
        state, frames = ctc_beam.ctc_beam(
            list(automaton.tensors), ctc_beam.initial_state(num_beams, states), logits, lengths,
            ctc_beam.BeamRules(weights, bonuses, unscored, blank, VOCAB), engine,
        )  # fmt: skip
        scores = torch.logaddexp(state.blank_scores, state.token_scores).double() + state.offsets[:, None] + state.fused
        found[f"beam {num_beams}"] = scores.sort(dim=1).values
        if engine == "cpu":  # the reference keeps them in other places
            found |= {f"beam {num_beams} {name}": part for name, part in (*state._asdict().items(), *frames._asdict().items())}
    passed, frames = ctc_graph.graph_search(
        automaton.tensors, ctc_graph.initial_state(16, states), logits, lengths,
        ctc_graph.GraphRules(weights, bonuses[:, None].repeat(1, CLASSES), blank, VOCAB), engine,
    )  # fmt: skip
    found["graph"] = passed.scores.sort(dim=1).values

    model = Toy(9, 8, seed=2)
    projected, long = 1.5 * torch.randn(ROWS, 20, 6, generator=generator), torch.tensor([20, 13, 5])
    arguments = (model, projected, long, automaton.tensors, states, weights, VOCAB)
    for measure in (None, "gibbs"):
        steps = greedy(*arguments, 3, torch.tensor([0.2, 0.0, 0.4]), measure, engine)
        inside = torch.arange(steps.tokens.shape[1]) < steps.counts[:, None]
        found[f"label looping {measure}"] = torch.where(inside, steps.tokens, -1)[:, : int(steps.counts.max())]
        found[f"label looping {measure} scores"] = steps.acoustic_scores
        if steps.confidences is not None:
            found["label looping confidences"] = torch.where(inside, steps.confidences, 0.0)[:, : int(steps.counts.max())]
    for strategy in ("alsd", "aes"):
        paths = beam_search(*arguments, SearchSettings(4, strategy), engine)
        found |= {f"{strategy} {name}": getattr(paths, name) for name in ("scores", "acoustic_scores", "sizes")}
    if engine == "cpu":
        found |= certain(generator)
    lm = NGramLM.train([[0, 1, 2, 1, 0, 2, 2, 1], [2, 1, 0, 0, 1]] * 3, vocab_size=3, order=3)
    found["scores after training"], found["targets"] = lm.advance(torch.arange(lm.num_states, dtype=torch.int32))
    return found


def certain(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The score of the empty prefix, which is that of all blanks, over many frames; and what it is in double precision."""
    frames = 400
    logits = torch.randn(1, frames, 30, generator=generator)
    logits[..., -1] += 6.0
    automaton = build_automaton(1, [{}], [0], [0.0])
    none = torch.zeros((1, 0))
    state, _ = ctc_beam.ctc_beam(
        list(automaton.tensors), ctc_beam.initial_state(1, none.int()), logits, torch.tensor([frames], dtype=torch.int32),
        ctc_beam.BeamRules(none, torch.full((1,), -1e3), torch.full((1,), -1e3), 29, 0), "cpu",
    )  # fmt: skip
    scores = state.blank_scores.double() + state.offsets[:, None]
    expected = logits.double().log_softmax(-1)[..., -1].sum(1, keepdim=True)
    return {"certain scores": scores, "certain expected": expected, "certain frames": torch.tensor(frames)}


if __name__ == "__main__":
    for path, engine in zip(sys.argv[1::2], sys.argv[2::2]):
        torch.save({name: tensor.contiguous() for name, tensor in searches(engine).items()}, path)
