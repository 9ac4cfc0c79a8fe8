"""Define the generation strategy for transducers: language models and beam search in `model.generate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.logits_process import SuppressTokensLogitsProcessor

from ..common.checks import refuse_idle
from ..decoding.options import TransducerOptions, takes
from ..decoding.transducer import TransducerDecoder
from ..search.networks.model import TransformersTransducer
from .lm_argument import GivenLM, given_lm

OF_HYPOTHESES = ("frame_seconds", "confidence")  # `generate` returns no hypotheses


@takes(TransducerOptions, but=OF_HYPOTHESES)  # `generate` only passes arguments that the signature names
@torch.inference_mode()
def transducer_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    generation_config: GenerationConfig | None = None,
    synced_gpus: bool = False,
    streamer: Any = None,
    lm: GivenLM = None,
    lm_weight: float | Tensor | None = None,
    phrases: Any = None,
    phrase_weight: float | Tensor | None = None,
    processor: Any = None,
    **more: Any,
) -> Tensor:
    """Decode with a language model or a beam: `model.generate(**inputs, custom_generate=transducer_generate, lm=lm)`.

    The output of `generate` has the same form as without this strategy, for Parakeet's and Nemotron's transducers: `sequences`
    with blanks, and `durations`, the number of frames advanced after each step. There are `num_return_sequences` rows per
    recording, best first.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer: passed by `generate`.
        lm: a language model; the id of a Hub repo, a folder or a file with a language model (cached for later calls); or a list
            with a language model (or None) for each row. The default is `ngram_lm` in the generation config (with the weight
            `ngram_lm_weight`), if it is set. False decodes without a language model.
        lm_weight, phrases, phrase_weight, strategy, num_beams, ... aes_gamma: as for `hf_ngpulm.TransducerDecoder`. Without
            `lm_weight`, settings that were tuned for the model are taken from the LM's config.
        processor: the model's processor or tokenizer, to check that the LM was made for it, and to spell phrases. Without a
            processor only vocabulary sizes are compared, and phrases must be a `hf_ngpulm.PhraseBooster`.

    Raises:
        ValueError: a setting of `generate` isn't supported by this search (logits processors, a streamer).
        TokenizerMismatchError: the LM was made for another tokenizer.
        InvalidLogitsError: the model's outputs contain NaN or infinity.
    """
    options = {name: more.pop(name) for name in TransducerOptions.names() if name in more and name not in OF_HYPOTHESES}
    if "encoder_outputs" not in more or "encoder_valid_lengths" not in more:
        raise ValueError(f"{type(model).__name__} isn't a transducer that generates from encoder_outputs")
    _check(model, logits_processor, streamer)
    if getattr(model, "_streaming", False):
        raise ValueError("input_features that come chunk by chunk can't be decoded by this strategy; pass them as one tensor")
    frames = more["encoder_outputs"].pooler_output
    if "source_lm" in options:
        options["source_lm"], _ = given_lm(options["source_lm"], None, None, processor, frames.device, model)
    models, lm_weight = given_lm(lm, lm_weight, generation_config, processor, frames.device, model)
    decoder = TransducerDecoder(
        TransformersTransducer(model), processor, models, lm_weight, phrases, phrase_weight, confidence=None, **options
    )
    for language_model in decoder.fusion.models:
        if language_model.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"the language model has {language_model.vocab_size} tokens, {type(model).__name__} only "
                f"{model.config.vocab_size}; was it made for another tokenizer?"
            )
    paths = [path.steps for of_row in decoder.paths(frames, more["encoder_valid_lengths"]) for path in of_row]
    longest = max([1, *(len(steps.ids) for steps in paths)])
    pad = generation_config.pad_token_id if generation_config is not None else None
    shape = len(paths), longest
    steps = torch.full(shape, model.config.blank_token_id if pad is None else pad, device=frames.device)
    durations = torch.zeros_like(steps)
    for i, (ids, starts, ends, _) in enumerate(paths):
        steps[i, : len(ids)] = torch.from_numpy(ids)
        durations[i, : len(ids)] = torch.from_numpy(np.append(starts[1:], ends[-1:]) - starts)
    most = _most_steps(model, generation_config, frames.shape[1])
    if most is not None:
        steps, durations = steps[:, :most], durations[:, :most]
    model._step_durations = list(durations.unbind(1))  # where the model's own `generate` collects them
    return torch.cat([input_ids[:1].expand(len(steps), -1), steps], 1)


def _most_steps(model: Any, config: GenerationConfig | None, frames: int) -> int | None:
    """Return the maximum number of steps that the caller set; None if the caller didn't change `generate`'s default."""
    if config is None or config.max_length is None:
        return None
    by_itself = config.max_new_tokens is None and config.max_length == model.max_symbols_per_step * frames
    return None if by_itself else max(1, config.max_length - 1)  # minus the initial token


def _check(model: Any, processors: LogitsProcessorList | None, streamer: Any) -> None:
    refuse_idle({"streamer": streamer}, "can't be used with this strategy, which finds all tokens at once")
    for processor in processors or ():
        suppressed = getattr(processor, "suppress_tokens", ())
        if type(processor) is not SuppressTokensLogitsProcessor or min(map(int, suppressed)) < model.config.vocab_size:
            raise ValueError(
                f"{type(processor).__name__} can't be used with this strategy: a transducer chooses tokens from its own "
                "logits. Pass a language model as lm=... instead"
            )
