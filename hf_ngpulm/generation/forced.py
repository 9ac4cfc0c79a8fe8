"""Score given transcripts with an encoder-decoder (teacher forcing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def forced_scores(
    model: Any, encoder_outputs: Any, attention_mask: Tensor | None, prompt: Sequence[int], transcripts: Sequence[Sequence[int]]
) -> list[float]:
    """Return the log-probability of each row's transcript after a prompt, natural log, over all classes of the model.

    Args:
        model: an encoder-decoder.
        encoder_outputs, attention_mask: the encoder's outputs for the batch, and the mask of its inputs.
        prompt: token ids with which the decoder begins, not scored.
        transcripts: token ids of each row, with the end of the transcript.
    """
    first, longest = len(prompt), max(map(len, transcripts))
    tokens = torch.zeros((len(transcripts), first + longest), dtype=torch.int64, device=model.device)
    inside = torch.zeros((len(transcripts), longest), dtype=torch.bool, device=model.device)
    for row, transcript in enumerate(transcripts):
        tokens[row, : first + len(transcript)] = torch.tensor([*prompt, *transcript])
        inside[row, : len(transcript)] = True
    outputs = model(
        encoder_outputs=encoder_outputs, attention_mask=attention_mask, decoder_input_ids=tokens[:, :-1], use_cache=False,
        return_dict=True,
    )  # fmt: skip
    logits = outputs.logits[:, first - 1 :].float()
    scores = logits.log_softmax(-1).gather(2, tokens[:, first:, None])[..., 0]
    return scores.masked_fill(~inside, 0.0).sum(1).tolist()
