"""Take a second look at the phrases that encoder-decoders recognise. These models search with Transformers' `generate`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.checks import check
from ..decoding.forced import lm_scores
from ..decoding.hypotheses import Hypothesis, PhraseReport
from ..decoding.second_look import RATE, PhraseList, entering_of, readings_of, regions_of, words_of
from ..decoding.thresholds import THRESHOLDS, Thresholds
from ..generation import NGramLogitsProcessor
from ..generation.forced import OwnScores
from ..generation.grammars import Beginning, Generate
from ..generation.runaways import without_runaways
from ..generation.transcripts import ends_of, no_timestamps_of
from ..phrases.contexts import is_per_row
from ..text.words import WordSplitter


class GeneratedLooks:
    """Take a second look at the phrases that `generate` has recognised (see `hf_ngpulm.decoding.second_look`).

    The second look compares transcripts, called readings. The acoustic score of a reading is the model's log-probability of the
    reading's tokens and of the end token (teacher forcing).

    Args:
        processor: the logits processor of the language models, without phrases.
        phrases, phrase_weight: as for `NGramLogitsProcessor`.
        rate, explain: `false_alarms_per_hour` and `explain`, as for `hf_ngpulm.PhraseDecoder`.
        model, tokenizer: the recogniser.
        thresholds: as for `hf_ngpulm.PhraseDecoder`.

    Raises:
        ValueError: the model isn't an encoder-decoder, or the processor subtracts scores.
    """

    def __init__(
        self, processor: NGramLogitsProcessor, phrases: Any, phrase_weight: Any, rate: float | None, explain: bool, model: Any,
        tokenizer: Any, thresholds: Thresholds | None = None,
    ) -> None:  # fmt: skip
        if not model.config.is_encoder_decoder:
            raise ValueError(
                f"a second look at phrases needs an encoder-decoder; with {type(model).__name__} leave out "
                "false_alarms_per_hour=, explain= and thresholds"
            )
        ilm_weight = processor.options.ilm_weight
        if processor.fusion.source is not None or isinstance(ilm_weight, Tensor) or ilm_weight:
            raise ValueError("a second look at phrases can't subtract scores; leave out ilm_weight= and source_lm=")
        self.rate = None if rate is None else check("false_alarms_per_hour", rate, RATE)
        usual = THRESHOLDS.get(model.config.model_type, THRESHOLDS["attention"])
        self.explain, self.thresholds = explain, usual if thresholds is None else thresholds
        self.per_row = is_per_row(phrases)
        self.lists = [PhraseList(each) for each in (phrases if self.per_row else [phrases])]
        boosted = [each.boosted for each in self.lists]
        self.without = processor if processor.fusion.lms else None
        self.processor = processor.with_phrases(boosted if self.per_row else boosted[0], phrase_weight)
        self.model, self.splitter, self.ends = model, WordSplitter(tokenizer), sorted(ends_of(model))

    def select(self, recordings: Sequence[int]) -> GeneratedLooks:
        """Return a copy for some of the recordings."""
        changed = copy.copy(self)
        changed.processor = self.processor.select(recordings)
        changed.without = None if self.without is None else self.without.select(recordings)
        changed.lists = [self.lists[row] for row in recordings] if self.per_row else self.lists
        return changed

    def looked(
        self, generate: Generate, encoded: Callable[[], Any], attention_mask: Tensor | None
    ) -> tuple[Tensor, list[Hypothesis]]:
        """Recognise a batch with and without phrases, and keep the phrases that pass the second look.

        Args:
            generate: function that returns the tokens of the batch, int64 `[B, L]`, for a list of logits processors.
            encoded: function that returns the encoder's outputs for the batch, once `generate` has run.
            attention_mask: mask of the encoder's inputs.

        Returns:
            The tokens of the recordings, int64 `[B, L]`, and hypotheses with their texts and reports.
        """
        beginning = Beginning(no_timestamps_of(self.model))
        boosted = generate([beginning, self.processor])
        plain = generate([beginning] if self.without is None else [beginning, self.without])
        own_scores = OwnScores(
            self.model, encoded(), attention_mask, beginning.prompts_of(len(plain)), self.ends[0], self.splitter
        )
        lists = self.lists if self.per_row else self.lists * len(plain)
        bests, bases = ([self._hypothesis(row) for row in tokens.tolist()] for tokens in (boosted, plain))
        if self.rate is not None:
            texts = without_runaways([base.token_ids for base in bases], own_scores.of)
            bases = [self._hypothesis(tokens) for tokens in texts]
        matches = [own.forms.found(words_of(best)) for own, best in zip(lists, bests)]
        regions = [regions_of(*each) for each in zip(bests, bases, matches)]
        readings = [
            [base.token_ids, *readings_of(best, base, of_row)] if of_row else []
            for best, base, of_row in zip(bests, bases, regions)
        ]
        ratios = self._ratios(own_scores, readings)
        results, rows = [], []
        for row, (best, base, own) in enumerate(zip(bests, bases, lists)):
            rule = (own, self.thresholds, self.rate)
            entering, reports = entering_of(best, matches[row], regions[row], ratios[row], *rule)
            if self.rate is None and len(entering) == len(regions[row]):
                token_ids, tokens = best.token_ids, boosted[row].tolist()
            else:
                (token_ids,) = readings_of(best, base, entering, joined=True)
                tokens = self._tokens(plain[row].tolist(), token_ids)
            if self.explain:
                reported = {report.text for report in reports}
                reports += [PhraseReport(text, False) for text in own.texts if text not in reported]
            results.append(self._hypothesis(token_ids, reports).written(own.written))
            rows.append(tokens)
        longest = max(map(len, rows))
        padded = [[*tokens, *[self.ends[0]] * (longest - len(tokens))] for tokens in rows]
        return torch.tensor(padded, device=plain.device), results

    def _ratios(self, own_scores: OwnScores, readings: list[list[list[int]]]) -> list[list[float]]:
        """For each row, return the log-likelihood ratio of each reading to the row's first reading.

        `readings`: the readings of each row, in token ids without the end.
        """
        rows = [row for row, of_row in enumerate(readings) for _ in of_row]
        scores = own_scores.of([reading for of_row in readings for reading in of_row], rows)
        ratios, at = [], 0
        for row, of_row in enumerate(readings):
            own = torch.tensor(scores[at : at + len(of_row)], dtype=torch.float64)
            at += len(of_row)
            if of_row and self.without is not None:
                own += lm_scores(self.without.select([row]).fusion, of_row)[1]
            ratios.append((own[1:] - own[:1]).tolist())
        return ratios

    def _tokens(self, row: list[int], token_ids: list[int]) -> list[int]:
        """Return a row's tokens from `generate`. The tokens `token_ids` replace the row's text tokens."""
        text = [place for place, token in enumerate(row) if token not in self.splitter.special]
        first, last = (text[0], text[-1] + 1) if text else (len(row), len(row))
        while not text and first and row[first - 1] in self.ends:
            first = last = first - 1
        return [*row[:first], *token_ids, *row[last:]]

    def _hypothesis(self, tokens: Sequence[int], reports: Sequence[PhraseReport] = ()) -> Hypothesis:
        token_ids = [token for token in tokens if token not in self.splitter.special]
        frames = [0] * len(token_ids)  # tokens have no times
        text = self.splitter.text(token_ids)
        return Hypothesis(text, token_ids, 0.0, 0.0, 0.0, frames, frames, splitter=self.splitter, phrases=tuple(reports))
