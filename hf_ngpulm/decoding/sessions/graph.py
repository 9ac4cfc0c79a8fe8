"""Define sessions of graph decoders, which decode CTC outputs in the graph of a language model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...fusion.rows import RowModels
from ...search.ctc_graph import GraphFrames, GraphRules, GraphState, graph_engine, graph_search, in_order, initial_state
from .ctc_tensors import TensorSlots
from .session import Found


class GraphSlots(TensorSlots[GraphState]):
    """Search streams by token passing on the CPU. The models are on the CPU, too. See `hf_ngpulm.search.ctc_graph`."""

    def __init__(self, decoder: Any, models: RowModels) -> None:
        super().__init__(decoder, models, decoder.options.max_active)
        self.engine = graph_engine(decoder.options.engine)
        self.bonuses: Tensor | None = None

    def place(self, slot: int, models: RowModels) -> None:
        super().place(slot, models)
        self.bonuses = None  # they depend on the row's weights

    def feed(self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, counts: np.ndarray) -> np.ndarray:
        return super().feed(slots, logits.cpu(), torch.from_numpy(counts), counts)

    def initial(self, states: Tensor) -> GraphState:
        return initial_state(self.num_beams, states)

    def search_frames(
        self, rows: Tensor | slice, models: RowModels, state: GraphState, logits: Tensor, lengths: Tensor
    ) -> tuple[GraphState, GraphFrames]:
        options = self.decoder.options
        if self.bonuses is None or self.bonuses.shape[1] != logits.shape[2]:
            self.bonuses = self.decoder.bonuses(self.models, logits.shape[2])
        rules = GraphRules(
            models.weights, self.bonuses[rows], self.decoder.blank_id, models.vocab_size, options.beam_threshold,
            options.blank_threshold,
        )  # fmt: skip
        return graph_search(models.tensors, state, logits, lengths.to(torch.int32), rules, self.engine)

    def add_fused(self, slots: np.ndarray, more: np.ndarray) -> None:
        rows, added = torch.from_numpy(slots), torch.from_numpy(more)
        self.state.fused[rows] += added
        self.state.scores[rows] += added
        self.told = None

    def reported(self) -> dict[str, Tensor]:
        return {name: getattr(self.state, name) for name in ("scores", "last_tokens", "lm_states")}

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lm_states, last_tokens, scores = (self.heard(name)[slots] for name in ("lm_states", "last_tokens", "scores"))
        # Ties go to the order of `in_order`.
        states = (lm_states[..., m] for m in reversed(range(lm_states.shape[2])))
        places = np.lexsort((*states, last_tokens, -scores))[:, 0]
        return places, scores[np.arange(len(slots)), places]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        state, models = GraphState(*(part[rows] for part in self.state)), self.models.of(rows)
        sums = (state.scores, state.lm_scores, state.lm_states)
        scores, lm_scores, phrase_scores = models.at_end(*sums, score_eos, self.engine)
        # The same tokens can be in two search states (after a blank, and inside the last token), so twice as many are ranked.
        order = in_order(state)
        scores, places = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
        count = min(2 * most, scores.shape[1]) if most > 1 else 1
        scores, places = scores[:, :count], order.gather(1, places[:, :count])
        others = (state.scores - state.fused, lm_scores, phrase_scores)
        columns = torch.stack([scores, *(values.gather(1, places) for values in others)], 2).tolist()
        listed = [[Found(*both) for both in zip(*row)] for row in zip(places.tolist(), columns)]
        if most == 1:
            return listed
        slots = np.arange(len(self.frames))[rows].repeat(places.shape[1])
        sizes, tails = self.history.tails_of(slots, places.cpu().numpy().reshape(-1))
        distinct: list[list[Found]] = []
        for row, hypotheses in enumerate(listed):
            n_best: dict[bytes, Found] = {}
            for at, hypothesis in enumerate(hypotheses, row * places.shape[1]):
                tokens = tails.ids[at, : sizes[at]].tobytes()
                if len(n_best) < most and tokens not in n_best and (hypothesis.scores[0] > -np.inf or not n_best):
                    n_best[tokens] = hypothesis
            distinct.append([*n_best.values()])
        return distinct
