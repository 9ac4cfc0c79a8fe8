"""Apply grammars to encoder-decoders, which search with Transformers' `generate`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from ..decoding.hypotheses import Hypothesis
from ..decoding.understanding import Understanding, Weighing, understood
from ..grammar.grammar import Grammar
from ..text.words import WordSplitter
from .forced import OwnScores, texts_of
from .logits_processor import NGramLogitsProcessor
from .runaways import without_runaways
from .transcripts import ends_of, no_timestamps_of
from .whisper import rule_out_timestamps

Generate = Callable[[list[Any]], Tensor]


class GeneratedGrammar:
    """Add a grammar to a logits processor's language models and phrases.

    Args:
        processor: the processor of the language models and phrases; None if there are none.
        grammar: the grammar of all recordings.
        weighing: decides whether a recording is in the grammar.
        model, tokenizer: the recogniser.

    Raises:
        ValueError: the model isn't an encoder-decoder, and the mode compares likelihoods.
    """

    def __init__(
        self, processor: NGramLogitsProcessor | None, grammar: Grammar, weighing: Weighing, model: Any, tokenizer: Any
    ) -> None:
        if weighing.mode == "reject" and not model.config.is_encoder_decoder:
            raise ValueError(
                f"grammar_mode='reject' compares likelihoods, which takes an encoder-decoder; {type(model).__name__} takes "
                "grammar_mode='strict', 'soft' or 'free'"
            )
        self.processor, self.weighing, self.model = processor, weighing.calibrated(grammar, "attention"), model
        self.splitter, self.end = WordSplitter(tokenizer), min(ends_of(model))
        size = None if processor is None else processor.fusion.contexts.vocab_size
        self.compiled = grammar.compiled(tokenizer, size, weighing.leaving)
        self.grammar = NGramLogitsProcessor(phrases=self.compiled, model=model, tokenizer=tokenizer)

    def select(self, recordings: Sequence[int]) -> GeneratedGrammar:
        """Return a copy for some of the recordings."""
        changed = copy.copy(self)
        changed.processor = None if self.processor is None else self.processor.select(recordings)
        return changed

    def understood(
        self, generate: Generate, encoded: Callable[[], Any], attention_mask: Tensor | None
    ) -> tuple[list[Understanding], Tensor | None, Tensor | None]:
        """Return three results: the meanings of a batch's recordings, the tokens of the search in the grammar, and the
        tokens of the search without the grammar, int64 `[B, L]` each. If the mode skips a search, its tokens are None.

        Args:
            generate: returns the tokens of the batch, int64 `[B, L]`, for a list of logits processors.
            encoded: returns the encoder's outputs after `generate` has run. `generate` may have repeated rows for beams.
            attention_mask: mask of the encoder's inputs.
        """
        processors = [] if self.processor is None else [self.processor]
        beginning = Beginning(no_timestamps_of(self.model))
        free = generate([beginning, *processors]) if self.weighing.needs_free else None
        inside = generate([beginning, *processors, self.grammar]) if self.weighing.needs_inside else None
        rows = [texts_of(tokens, self.splitter) for tokens in (inside, free) if tokens is not None]
        scores = [[0.0] * len(of) for of in rows]
        if free is not None and self.weighing.mode == "reject":
            given = of_rows(encoded(), len(free)), attention_mask, beginning.prompts_of(len(free))
            own = OwnScores(self.model, *given, self.end, self.splitter)
            rows[-1] = without_runaways(rows[-1], own.of)
            free = self._with_texts(free, rows[-1])
            scores = [own.of(of) for of in rows]
        hypotheses = [[[self._hypothesis(*each)] for each in zip(*of)] for of in zip(rows, scores)]
        each_free = hypotheses[-1] if free is not None else [None] * len(hypotheses[0])
        return [understood(self.compiled, self.weighing, *row) for row in zip(hypotheses[0], each_free)], inside, free

    def _with_texts(self, tokens: Tensor, transcripts: list[list[int]]) -> Tensor:
        """Return `tokens`, int64 `[B, L]`, with changed rows. If the text tokens of a row differ from the row's transcript in
        `transcripts`, the row gets the tokens of this transcript.
        """
        changed = tokens.clone()
        for row, (before, after) in enumerate(zip(texts_of(tokens, self.splitter), transcripts)):
            if before != after:
                changed[row] = self.end
                changed[row, : len(after)] = torch.tensor(after)
        return changed

    def _hypothesis(self, token_ids: list[int], score: float) -> Hypothesis:
        text = self.splitter.text(token_ids).strip()
        return Hypothesis(text, token_ids, score, score, 0.0, [], splitter=self.splitter)


class Beginning(LogitsProcessor):
    """Store the decoder's first tokens in `prompts`, and rule out timestamps after `<|notimestamps|>`.

    After a timestamp, Whisper would decode another window and join the windows' transcripts.

    Args:
        no_timestamps: the id of `<|notimestamps|>`; None for models without this token.
    """

    def __init__(self, no_timestamps: int | None) -> None:
        self.prompts: list[list[int]] = []  # of all rows, several for beams
        self.no_timestamps = no_timestamps

    def prompts_of(self, recordings: int) -> list[list[int]]:
        """Return the first tokens of each recording. Recordings may begin differently if Whisper detects their languages."""
        return self.prompts[:: len(self.prompts) // recordings]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not self.prompts:
            self.prompts = input_ids.tolist()
        if self.no_timestamps is not None:
            every = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
            rule_out_timestamps(scores, input_ids.to(scores.device), self.no_timestamps, every)
        return scores


def of_rows(encoded: Any, rows: int) -> Any:
    """Return the encoder's outputs with a single copy of each row. (`generate` has made a copy of each row for each beam.)"""
    beams = len(encoded[0]) // rows
    values = {name: value[::beams] for name, value in encoded.items() if isinstance(value, Tensor)}
    return type(encoded)(**values)
