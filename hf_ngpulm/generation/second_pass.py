"""Rank the beams of `generate` with a causal language model, at the end and during the search (see `hf_ngpulm.rescoring`).

`generate` ranks beams by score / length ** `length_penalty`, where the length counts the generated tokens and the end. The
rescorer's addition to a score is divided by the same power of the length.

If a transcript repeats a phrase without end, the rescorer reads the phrase only once, and the repeated words get no bonus.
Otherwise the bonuses would prolong such loops, because a decoder with attention gives repeated words a high probability.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from ..common.checks import check, refuse_idle
from ..decoding.options import KINDS
from ..decoding.second_pass import EVERY_WORD, RESCORER_WEIGHT, share_of, what_is_added
from .runaways import before_running_away
from .transcripts import ANNOUNCED_BY

OF_RESCORER = ("rescorer", "rescorer_weight", "word_bonus", "rescorer_every")


class SecondPass(NamedTuple):
    """Hold a rescorer and its settings. Weight and bonus per word are numbers, or tensors with a value per recording."""

    rescorer: Any
    weight: float | Tensor = RESCORER_WEIGHT
    word_bonus: float | Tensor = 0.0
    every: str | None = None  # "word" for delayed fusion

    @classmethod
    def of(
        cls, rescorer: Any = None, rescorer_weight: Any = None, word_bonus: Any = None, rescorer_every: Any = None
    ) -> SecondPass | None:
        """Check settings, and return the second pass; None without a rescorer.

        Raises:
            ValueError: a setting is out of range, or is given without a rescorer.
        """
        given = {"rescorer_weight": rescorer_weight, "word_bonus": word_bonus, "rescorer_every": rescorer_every}
        if rescorer is None:
            refuse_idle(given, "given without rescorer=; pass the model too")
            return None
        check("rescorer", rescorer, KINDS["rescorer"])
        if rescorer_every not in (None, EVERY_WORD):
            raise ValueError(
                f"rescorer_every={rescorer_every!r}: decoders with attention have no clock that could count seconds; pass "
                f'rescorer_every="{EVERY_WORD}"'
            )
        given = {name: check(name, value, KINDS[name]) for name, value in given.items() if value is not None}
        return cls(rescorer, given.get("rescorer_weight", RESCORER_WEIGHT), given.get("word_bonus", 0.0), rescorer_every)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of `seq2seq_generate`."""
        return dict(zip(OF_RESCORER, self))

    @property
    def num_recordings(self) -> int | None:
        """Return the number of recordings for which there are weights. Return None if all recordings have the same weights."""
        return next((len(each) for each in (self.weight, self.word_bonus) if isinstance(each, Tensor)), None)

    def best(
        self, search: Callable[[Any, list[Any]], Any], texts: Texts, prompt: int, config: Any, recordings: Sequence[int]
    ) -> Any:
        """Run a beam search, and let the rescorer rank all beams. Return the best beams in the form of `generate`'s output.

        `sequences_scores` are the scores of the first pass.

        Args:
            search: function from a generation config and logits processors to the outputs of all beams.
            texts: turns tokens into transcripts.
            prompt: number of tokens before the transcript.
            config: the generation config.
            recordings: the index of each row's recording, an index into tensors of weights.

        Raises:
            ValueError: there is only one beam, or scores are normalised, which would undo delayed fusion.
        """
        beams, returned = config.num_beams or 1, config.num_return_sequences or 1
        if beams == 1:
            raise ValueError("rescorer= has one hypothesis only to choose from; pass num_beams=8, for example, or leave it out")
        if self.every is not None and getattr(config, "renormalize_logits", None):
            raise ValueError(
                "rescorer_every= adds to the scores of beams, which renormalize_logits=True would undo; leave one out"
            )
        both = [self._of(recording) for recording in recordings[::beams]]
        weights, bonuses = (torch.tensor(column, dtype=torch.float64) for column in zip(*both))
        shares = None if self.every is None else Shares(self.rescorer, weights, bonuses, texts, prompt, beams)
        every = copy.copy(config)
        every.num_return_sequences, every.return_dict_in_generate = beams, True
        out = search(every, [] if shares is None else [shares])

        lengths = (out.beam_indices >= 0).sum(1).tolist()  # 0: there are fewer hypotheses than beams
        powers = [max(1, length) ** config.length_penalty for length in lengths]
        tokens = [row[prompt : prompt + length] for row, length in zip(out.sequences.tolist(), lengths)]
        first = out.sequences_scores.tolist()
        if shares is not None:  # the last token came after the last turn
            first = [
                score - shares.of(row // beams, ids[:-1]) / powers[row] for row, (score, ids) in enumerate(zip(first, tokens))
            ]
        lists = _parted([_without_runaway(text) for text in texts(tokens)], beams)
        scores = self.rescorer.scores(lists) if shares is None else shares.finish(lists)
        added = [each for of_row in what_is_added(lists, scores, weights, bonuses) for each in of_row]
        ranks = np.array([score + each / power for score, each, power in zip(first, added, powers)]).reshape(-1, beams)
        order = (-ranks).argsort(axis=1, kind="stable")[:, :returned] + beams * np.arange(len(ranks))[:, None]
        best = torch.from_numpy(order.flatten()).to(out.sequences.device)
        if not config.return_dict_in_generate:
            return out.sequences[best]
        out.sequences, out.beam_indices = out.sequences[best], out.beam_indices[best]
        out.sequences_scores = torch.tensor(first, device=best.device)[best] if config.output_scores else None
        if getattr(out, "own_log_probs", None) is not None:
            out.own_log_probs = out.own_log_probs[best.to(out.own_log_probs.device)]
        if shares is not None and out.scores is not None:
            out.scores = tuple(scores - added[:, None] for scores, added in zip(out.scores, shares.added))
        return out

    def _of(self, recording: int) -> tuple[float, float]:
        """Return the weight and the bonus of a recording. A padding row, -1, has the weight 0."""
        both = self.weight, self.word_bonus
        if recording < 0:
            return 0.0, 0.0
        weight, bonus = (float(each[recording]) if isinstance(each, Tensor) else each for each in both)
        return weight, bonus


class Texts:
    """Write the generated tokens of a model as texts."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        announced = ANNOUNCED_BY.get(getattr(model.config, "model_type", ""))
        self.tokenizer = tokenizer
        self.start = None if announced is None else tokenizer.convert_tokens_to_ids(announced)

    def __call__(self, rows: Sequence[list[int]]) -> list[str]:
        """Return the texts of rows of tokens, without the preamble that some models write before a transcript."""
        if self.start is not None:
            rows = [row[len(row) - row[::-1].index(self.start) :] if self.start in row else [] for row in rows]
        return [text.strip() for text in self.tokenizer.batch_decode(list(rows), skip_special_tokens=True)]


class Shares(LogitsProcessor):
    """Let a rescorer take part in the beam search of `generate` (delayed fusion, see `hf_ngpulm.decoding.sessions.delayed`).

    At each step the rescorer scores the complete words of each beam. The rescorer's share in the beam's score is added to all
    scores of the next token, and its share from the previous step is subtracted. So a beam's score contains only one share.

    Attributes:
        added: a tensor `[B * K]` for each step. It has the number that was added to each row's scores: the new share minus the
            previous share.
    """

    def __init__(self, rescorer: Any, weights: Tensor, bonuses: Tensor, texts: Texts, prompt: int, beams: int) -> None:
        self.weights, self.bonuses, self.texts, self.prompt, self.beams = (
            weights.tolist(),
            bonuses.tolist(),
            texts,
            prompt,
            beams,
        )
        self.growing = rescorer.growing(len(weights))
        self.rows = list(range(len(weights)))
        self.known: list[dict[tuple[int, ...], float]] = [{} for _ in self.rows]  # by tokens, for each recording
        self.added: list[Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        tokens = input_ids[:, self.prompt :].tolist()
        # More tokens may continue the last word.
        words = _parted([before_running_away(text.split()[:-1]) for text in self.texts(tokens)], self.beams)
        found = self.growing.scores(self.rows, [[" ".join(each) for each in of_row] for of_row in words])
        added: list[float] = []
        for row, (of_row, values) in enumerate(zip(words, found)):
            mine = tokens[row * self.beams : (row + 1) * self.beams]
            shares = share_of(values, list(map(len, of_row)), self.weights[row], self.bonuses[row])
            added += [share - self.of(row, ids[:-1]) for share, ids in zip(shares, mine)]
            self.known[row] |= zip(map(tuple, mine), shares)
        self.added.append(torch.tensor(added, device=scores.device, dtype=scores.dtype))
        return scores + self.added[-1][:, None]

    def of(self, recording: int, tokens: Sequence[int]) -> float:
        """Return the rescorer's share in the score of a beam with these tokens."""
        return self.known[recording].get(tuple(tokens), 0.0)

    def finish(self, lists: list[list[str]]) -> list[list[float]]:
        """Return the rescorer's scores of the whole texts."""
        return self.growing.scores(self.rows, lists, ended=True)


def _without_runaway(text: str) -> str:
    words = text.split()
    first = before_running_away(words)
    return text if len(first) == len(words) else " ".join(first)


def _parted(values: list[Any], size: int) -> list[list[Any]]:
    return [values[first : first + size] for first in range(0, len(values), size)]
