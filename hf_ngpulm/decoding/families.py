"""Find a model's family (CTC, transducer, attention encoder-decoder), and compute the decoder's input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import ALL_CACHE_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CTC_MAPPING_NAMES, MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

from ..search.networks.model import transducer_of

CACHE = ALL_CACHE_NAMES[0]  # what models call their cache: "past_key_values", or since Transformers 5.24 "cache"
ONE_CHANNEL = ("omniasr_ctc",)  # model types that take waveforms `[B, 1, N]` and a `padding_mask`
TRANSDUCERS = ("parakeet_tdt", "parakeet_rnnt", "nemotron_asr_streaming", "nemotron3_5_asr")


def is_ctc(model: Any) -> bool:
    """Return whether a model is a CTC model, by the name of its class."""
    name = type(model).__name__
    return name in MODEL_FOR_CTC_MAPPING_NAMES.values() or name.endswith("ForCTC")


def is_seq2seq(model: Any) -> bool:
    """Return whether a model is an attention encoder-decoder."""
    return type(model).__name__ in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.values()


def is_transducer(model: Any) -> bool:
    """Return whether a model is a transducer: a transducer of Transformers, or a model with the method `as_transducer`."""
    return hasattr(model, "as_transducer") or getattr(getattr(model, "config", None), "model_type", None) in TRANSDUCERS


def family_of(model: Any) -> str:
    """Return "ctc", "transducer" or "attention". Raises ValueError for any other model."""
    families = {"ctc": is_ctc, "transducer": is_transducer, "attention": is_seq2seq}
    found = next((name for name, is_one in families.items() if is_one(model)), None)
    if found is None:
        raise ValueError(f"a CTC model, a transducer or an encoder-decoder is needed, got {type(model).__name__}")
    return found


def frame_lengths(model: Any, input_lengths: Tensor) -> Tensor | None:
    """Return the number of output frames for input lengths, int64 `[B]`; None if unknown."""
    for owner in (model, getattr(model, "encoder", None)):
        for name in ("_get_subsampling_output_length", "_get_feat_extract_output_lengths"):
            if hasattr(owner, name):
                return getattr(owner, name)(input_lengths).to(torch.int64)
    return None


def takes_one_channel(model: Any) -> bool:
    """Return whether a model takes waveforms `[B, 1, N]` and a `padding_mask`. The stock pipeline can't run such models."""
    return getattr(getattr(model, "config", None), "model_type", None) in ONE_CHANNEL


def usual(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a CTC model or transducer in the usual form: without a dimension of channels, and with an
    `attention_mask` instead of a `padding_mask`.
    """
    if "padding_mask" not in inputs or "attention_mask" in inputs:
        return inputs
    others = {name: value for name, value in inputs.items() if name != "padding_mask"}
    return {**others, "input_values": inputs["input_values"][:, 0], "attention_mask": inputs["padding_mask"]}


def encoded(model: Any, features: Tensor, attention_mask: Tensor | None, **more: Any) -> tuple[Tensor, Tensor | None]:
    """Run a CTC model, or a transducer's encoder.

    Args:
        features, attention_mask: the outputs of the feature extractor, in the form that `usual` returns.
        more: arguments of a transducer's encoder.

    Returns:
        Two values. The first is the decoder's input: logits or the encoder's frames, `[B, T, ...]`. The second is each row's
        number of frames, int64 `[B]`; None if all rows have T frames.
    """
    if is_transducer(model):
        return transducer_of(model).encode(features, attention_mask, **more)
    if takes_one_channel(model):
        logits = model(**{model.main_input_name: features[:, None]}, padding_mask=attention_mask).logits
    else:
        logits = model(**{model.main_input_name: features}, attention_mask=attention_mask).logits
    return logits, None if attention_mask is None else frame_lengths(model, attention_mask.sum(-1).long())
