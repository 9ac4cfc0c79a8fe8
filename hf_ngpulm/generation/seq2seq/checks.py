"""What can't be decoded, said in words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerationMode

from ...errors import InvalidLogitsError
from ..transcripts import configs_of

MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)


def check_call(
    model: Any, config: GenerationConfig | None, input_ids: Tensor, assistant: Any, streamer: Any, synced_gpus: bool
) -> None:
    """Check that this is a call which the strategy can answer.

    Raises:
        ValueError: it isn't.
    """
    name = type(model).__name__
    if hasattr(model, "joint"):
        raise ValueError(f"{name} is a transducer; pass custom_generate=hf_ngpulm.generation.transducer_generate")
    for loop in ("_sample", "_beam_search"):
        if getattr(type(model), loop, None) is not getattr(GenerationMixin, loop):
            raise ValueError(f"{name} has a way of generating of its own ({loop}), which this strategy would pass over")
    if config is None:
        raise ValueError("call this strategy as model.generate(..., custom_generate=seq2seq_generate)")
    mode = config.get_generation_mode(assistant)
    if mode not in MODES:
        raise ValueError(
            f"{mode.value.replace('_', ' ')} isn't among what this strategy does: greedy search, sampling and beam search. "
            "Leave custom_generate out, and pass an NGramLogitsProcessor instead"
        )
    if synced_gpus:
        raise ValueError(
            "synced_gpus (a model that is sharded over GPUs) isn't supported; pass an NGramLogitsProcessor instead"
        )
    beams, returned = config.num_beams or 1, config.num_return_sequences or 1
    if beams > 1:
        if streamer is not None:
            raise ValueError("a streamer can't be used with beam search; pass num_beams=1")
        if getattr(config, "low_memory", None):
            raise ValueError("low_memory=True isn't supported")
        if returned > beams:
            raise ValueError(f"num_return_sequences={returned} is more than there are beams, num_beams={beams}")
    places = [
        value
        for part in configs_of(model)
        for value in (
            getattr(part, key, None) for key in ("max_target_positions", "max_text_positions", "max_position_embeddings")
        )
        if isinstance(value, int)
    ]
    if places and input_ids.shape[1] >= max(places):
        raise ValueError(
            f"the prompt has {input_ids.shape[1]} tokens, which leaves no room for a transcript in the {max(places)} positions "
            f"of {name}; shorten it"
        )


def probabilities(scores: Tensor) -> Tensor:
    """Return what to draw from; where nothing is possible, anything, for this must be refused and not crash."""
    possible = scores.amax(1, keepdim=True) > -torch.inf
    return torch.where(possible, torch.softmax(scores, -1), 1.0)


def refuse_impossible(impossible: Tensor, nan: Tensor, recordings: list[int]) -> None:
    """Refuse recordings that can't go on, but not rows (-1) that only fill up a batch.

    Args:
        impossible: bool `[R]`, those that have no token to choose.
        nan: bool `[R]`, those that have scores which are no numbers.
        recordings: which they are.

    Raises:
        InvalidLogitsError: there is one.
    """
    for recording, can_not, because in zip(recordings, impossible.tolist(), nan.tolist(), strict=True):
        if can_not and recording >= 0:
            what = "the model's scores are NaN" if because else "all tokens are ruled out (-inf) by logits processors"
            raise InvalidLogitsError(f"recording {recording} can't go on: {what}")
