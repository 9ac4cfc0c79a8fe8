"""Search greedily or sample. A row has one hypothesis. Each step extends it by the likeliest token, or by a random token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList

from ...errors import InvalidLogitsError
from ...search.attention_step.candidates import best_tokens
from .model import SteppedDecoder
from .states import Scoring


def greedy(
    decoder: SteppedDecoder,
    scoring: Scoring,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
    input_ids: Tensor,
    streamer: Any = None,
) -> Any:
    """Extend rows of tokens, int64 `[R, L]`, until they end. Return the result of `generate`. Raises InvalidLogitsError if all
    tokens of a row are ruled out, or if a row's scores are NaN.
    """
    rows, length = input_ids.shape
    pad: Any = config._pad_token_tensor
    ends = any(hasattr(criteria, "eos_token_id") for criteria in stopping_criteria)
    sequences = input_ids.new_zeros((rows, max(config.max_length, length + 1)))
    sequences[:, :length] = input_ids
    unfinished = torch.ones(rows, dtype=torch.bool, device=input_ids.device)
    every = torch.arange(rows, device=input_ids.device)
    own: list[Tensor] = []
    with decoder.decoding():
        while True:
            so_far = sequences[:, :length]
            logits = decoder.logits(so_far)
            scores = scoring(so_far, logits, decoder.unheard)
            decoder.keep_scores(scores)
            if config.do_sample:
                tokens = torch.multinomial(probabilities(scores), num_samples=1)
            else:
                tokens = best_tokens(scores, 1)[1]
            chosen, tokens = scores.gather(1, tokens)[:, 0], tokens[:, 0]
            log_probs = scoring.own_log_probs(every, tokens)
            if log_probs is not None:
                own.append(log_probs)
            if ends:
                tokens = torch.where(unfinished, tokens, pad.to(tokens))
            if length == sequences.shape[1]:  # the caller's stopping criteria may allow more than the config
                sequences = torch.nn.functional.pad(sequences, (0, length))
            sequences[:, length] = tokens
            length += 1
            if streamer is not None:
                streamer.put(tokens.cpu())
            impossible = unfinished & ~(chosen > -torch.inf)
            unfinished = unfinished & ~stopping_criteria(sequences[:, :length], decoder.scores)
            # The only synchronisation with the device in a step.
            going_on, broken = torch.stack([unfinished.any(), impossible.any()]).tolist()
            if broken:
                refuse_impossible(impossible, scores.isnan().any(1), scoring.recordings)
            if not going_on:
                break
            scoring.follow(tokens)
    if streamer is not None:
        streamer.end()
    return decoder.result(sequences[:, :length].contiguous(), **({"own_log_probs": torch.stack(own, 1)} if own else {}))


def probabilities(scores: Tensor) -> Tensor:
    """Return probabilities from which to draw tokens. Rows without a possible token get equal probabilities, so that drawing
    doesn't crash. `refuse_impossible` refuses such rows later.
    """
    possible = scores.amax(1, keepdim=True) > -torch.inf
    return torch.where(possible, torch.softmax(scores, -1), 1.0)


def refuse_impossible(impossible: Tensor, nan: Tensor, recordings: list[int]) -> None:
    """Refuse rows without a possible token, except padding rows.

    Args:
        impossible: bool `[R]`, rows without a possible token.
        nan: bool `[R]`, rows with NaN scores.
        recordings: the index of each row's recording; -1 for padding rows.

    Raises:
        InvalidLogitsError: a recording has a row without a possible token; the error names the first recording.
    """
    for recording, can_not, because in zip(recordings, impossible.tolist(), nan.tolist(), strict=True):
        if can_not and recording >= 0:
            what = "the model's scores are NaN" if because else "all tokens are ruled out (-inf) by logits processors"
            raise InvalidLogitsError(f"recording {recording} can't go on: {what}")
