"""Score given transcripts with an encoder-decoder (teacher forcing), and compute its confidence in each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..search.confidence import frame_confidence
from ..text.words import WordSplitter
from .transcripts import positions_of

AT_ONCE = 8  # transcripts whose logits are held at a time


@torch.no_grad()
def forced_scores(
    model: Any, encoder_outputs: Any, attention_mask: Tensor | None, prompts: Sequence[Sequence[int]],
    transcripts: Sequence[Sequence[int]], rows: Sequence[int] | None = None,
) -> list[float]:  # fmt: skip
    """Return each transcript's log-probability (natural log) after the prompt of its row, normalised over all classes. A
    transcript that is too long for the decoder gets -inf.

    Args:
        model: an encoder-decoder.
        encoder_outputs, attention_mask: the encoder's outputs for the batch, and the mask of its inputs.
        prompts: the tokens with which the decoder began in each row. All prompts are equally long, and aren't scored.
        transcripts: token ids of each transcript, including the token that ends the transcript.
        rows: each transcript's row in the batch; by default there is one transcript for each row.
    """
    places = positions_of(model)
    most = None if places is None else places - len(prompts[0]) + 1  # the last token is scored, but not read
    rows = range(len(transcripts)) if rows is None else rows
    fitting = [number for number, transcript in enumerate(transcripts) if most is None or len(transcript) <= most]
    parts = [transcripts[number] for number in fitting], [rows[number] for number in fitting]
    scores: list[float] = []
    for log_probs, tokens, inside in _forced(model, encoder_outputs, attention_mask, prompts, *parts):
        scores += log_probs.gather(2, tokens[..., None])[..., 0].masked_fill(~inside, 0.0).sum(1).tolist()
    of_fitting = dict(zip(fitting, scores))
    return [of_fitting.get(number, -torch.inf) for number in range(len(transcripts))]


class OwnScores:
    """Score transcripts and their ends with the decoder alone (teacher forcing).

    Args:
        model: the encoder-decoder.
        outputs: the encoder's outputs for the batch.
        attention_mask: mask of the encoder's inputs.
        prompts: for each recording, the tokens before its transcript.
        end: the token that ends a transcript.
        splitter: the splitter that distinguishes text from special tokens.
    """

    def __init__(
        self, model: Any, outputs: Any, attention_mask: Tensor | None, prompts: list[list[int]], end: int,
        splitter: WordSplitter,
    ) -> None:  # fmt: skip
        self.model, self.outputs, self.mask = model, outputs, attention_mask
        self.prompts, self.end, self.splitter = prompts, end, splitter

    def outputs_of(self, rows: Sequence[int]) -> Any:
        """Return the encoder's outputs for some recordings."""
        return type(self.outputs)(**{name: value[list(rows)] for name, value in self.outputs.items()})

    def __call__(self, tokens: Tensor, rows: Sequence[int]) -> list[tuple[float, int]]:
        """Return the log-probability (natural log) and the number of text tokens of each transcript.

        Args:
            tokens: the transcripts, int64 `[N, L]`.
            rows: the recording of each transcript.
        """
        texts = texts_of(tokens, self.splitter)
        return list(zip(self.of(texts, rows), map(len, texts)))

    def of(self, transcripts: Sequence[Sequence[int]], rows: Sequence[int] | None = None) -> list[float]:
        """Return the log-probability (natural log) of each transcript. `transcripts`: text tokens. `rows`: the recording of
        each transcript; by default there is one transcript for each recording.
        """
        ended = [[*transcript, self.end] for transcript in transcripts]
        return forced_scores(self.model, self.outputs, self.mask, self.prompts, ended, rows)


def texts_of(tokens: Tensor, splitter: WordSplitter) -> list[list[int]]:
    """Return the text tokens of each row of tokens, int64 `[B, L]`."""
    return [[token for token in row if token not in splitter.special] for row in tokens.tolist()]


@torch.no_grad()
def token_confidences(
    model: Any, encoder_outputs: Any, attention_mask: Tensor | None, prompts: Sequence[Sequence[int]],
    transcripts: Sequence[Sequence[int]], measure: str,
) -> list[list[float]]:  # fmt: skip
    """Return the model's own confidence in each token of transcripts, from 0 to 1. Language models and rules of `generate`
    don't affect it.

    "max_prob" is the model's probability of the token that was chosen. The other measures depend on the probabilities of all
    classes at that step (see `hf_ngpulm.search.confidence`).

    Args:
        model, encoder_outputs, attention_mask, prompts: as for `forced_scores`.
        transcripts: tokens of each row, without the end.
        measure: one of `hf_ngpulm.search.confidence.MEASURES`.
    """
    rows = [row for row, transcript in enumerate(transcripts) if transcript]
    some = [transcripts[row] for row in rows]
    sure: list[list[float]] = []
    for log_probs, tokens, _ in _forced(model, encoder_outputs, attention_mask, prompts, some, rows):
        if measure == "max_prob":
            sure += log_probs.gather(2, tokens[..., None])[..., 0].exp().tolist()
        else:
            sure += frame_confidence(log_probs, measure).tolist()
    by_row = {row: values[: len(transcripts[row])] for row, values in zip(rows, sure)}
    return [by_row.get(row, []) for row in range(len(transcripts))]


def _forced(
    model: Any, encoder_outputs: Any, attention_mask: Tensor | None, prompts: Sequence[Sequence[int]],
    transcripts: Sequence[Sequence[int]], rows: Sequence[int],
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Process up to `AT_ONCE` transcripts at a time. Each time, yield the log-probabilities of all classes at each token,
    `[N, L, C]`, the tokens `[N, L]`, and a mask of real tokens, bool `[N, L]`. Arguments are as for `forced_scores`.
    """
    first = len(prompts[0])
    of_all = torch.tensor(rows, dtype=torch.int64)
    for at in range(0, len(transcripts), AT_ONCE):
        some, part = of_all[at : at + AT_ONCE], transcripts[at : at + AT_ONCE]
        longest = max(map(len, part))
        tokens = torch.zeros((len(part), first + longest), dtype=torch.int64, device=model.device)
        inside = torch.zeros((len(part), longest), dtype=torch.bool, device=model.device)
        for place, (row, transcript) in enumerate(zip(some.tolist(), part)):
            tokens[place, : first + len(transcript)] = torch.tensor([*prompts[row], *transcript])
            inside[place, : len(transcript)] = True
        of_part = {name: value[some.to(value.device)] for name, value in encoder_outputs.items()}
        outputs = model(
            encoder_outputs=type(encoder_outputs)(**of_part),
            attention_mask=None if attention_mask is None else attention_mask[some.to(attention_mask.device)],
            decoder_input_ids=tokens[:, :-1],
            use_cache=False,
            return_dict=True,
        )
        yield outputs.logits[:, first - 1 :].float().log_softmax(-1), tokens[:, first:], inside
