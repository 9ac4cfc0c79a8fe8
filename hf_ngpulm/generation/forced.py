"""Score given transcripts with an encoder-decoder (teacher forcing), and measure how sure it is of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..search.confidence import frame_confidence

AT_ONCE = 8  # rows whose logits are held at a time


@torch.no_grad()
def forced_scores(
    model: Any, encoder_outputs: Any, attention_mask: Tensor | None, prompts: Sequence[Sequence[int]],
    transcripts: Sequence[Sequence[int]],
) -> list[float]:  # fmt: skip
    """Return the log-probability of each row's transcript after its prompt, natural log, over all classes of the model.

    Args:
        model: an encoder-decoder.
        encoder_outputs, attention_mask: the encoder's outputs for the batch, and the mask of its inputs.
        prompts: the tokens of each row with which the decoder began, all of one length. They aren't scored.
        transcripts: token ids of each row, with the end of the transcript.
    """
    log_probs, tokens, inside = _forced(model, encoder_outputs, attention_mask, prompts, transcripts)
    return log_probs.gather(2, tokens[..., None])[..., 0].masked_fill(~inside, 0.0).sum(1).tolist()


@torch.no_grad()
def token_confidences(
    model: Any, encoder_outputs: Any, attention_mask: Tensor | None, prompts: Sequence[Sequence[int]],
    transcripts: Sequence[Sequence[int]], measure: str,
) -> list[list[float]]:  # fmt: skip
    """Return how sure the model itself is of each token of transcripts, from 0 to 1, whatever language models and rules of
    `generate` have chosen them.

    "max_prob" is the model's probability of the token that was chosen. The other measures are of its probabilities of all
    classes at that step (see `hf_ngpulm.search.confidence`).

    Args:
        model, encoder_outputs, attention_mask, prompts: as for `forced_scores`.
        transcripts: tokens of each row, without the end.
        measure: one of `hf_ngpulm.search.confidence.MEASURES`.
    """
    found: list[list[float]] = []
    for at in range(0, len(transcripts), AT_ONCE):
        some = slice(at, at + AT_ONCE)
        if not any(transcripts[some]):
            found += [[] for _ in transcripts[some]]
            continue
        outputs = type(encoder_outputs)(**{name: value[some] for name, value in encoder_outputs.items()})
        mask = None if attention_mask is None else attention_mask[some]
        log_probs, tokens, _ = _forced(model, outputs, mask, prompts[some], transcripts[some])
        if measure == "max_prob":
            sure = log_probs.gather(2, tokens[..., None])[..., 0].exp()
        else:
            sure = frame_confidence(log_probs, measure)
        found += [row[: len(of)] for row, of in zip(sure.tolist(), transcripts[some])]
    return found


def _forced(
    model: Any, encoder_outputs: Any, attention_mask: Tensor | None, prompts: Sequence[Sequence[int]],
    transcripts: Sequence[Sequence[int]],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the log-probabilities of all classes after each token `[B, L, C]`, the tokens `[B, L]`, and where they are."""
    first, longest = len(prompts[0]), max(map(len, transcripts))
    tokens = torch.zeros((len(transcripts), first + longest), dtype=torch.int64, device=model.device)
    inside = torch.zeros((len(transcripts), longest), dtype=torch.bool, device=model.device)
    for row, (prompt, transcript) in enumerate(zip(prompts, transcripts)):
        tokens[row, : first + len(transcript)] = torch.tensor([*prompt, *transcript])
        inside[row, : len(transcript)] = True
    outputs = model(
        encoder_outputs=encoder_outputs, attention_mask=attention_mask, decoder_input_ids=tokens[:, :-1], use_cache=False,
        return_dict=True,
    )  # fmt: skip
    return outputs.logits[:, first - 1 :].float().log_softmax(-1), tokens[:, first:], inside
