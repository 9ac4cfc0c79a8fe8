"""Rescore the hypotheses of `generate`, for encoder-decoders."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.checks import check, refuse_idle
from ..decoding.options import KINDS
from ..decoding.second_pass import RESCORER_WEIGHT
from ..rescoring import load_rescorer

OF_RESCORER = ("rescorer", "rescorer_weight", "word_bonus")


class SecondPass(NamedTuple):
    """Hold a rescorer, its weight, and the bonus per word; the latter two are numbers, or tensors `[B]`."""

    rescorer: Any
    weight: float | Tensor = RESCORER_WEIGHT
    word_bonus: float | Tensor = 0.0

    @classmethod
    def of(cls, settings: Mapping[str, Any], device: Any) -> SecondPass | None:
        """Return the second pass that settings describe; None without a rescorer. Raises ValueError if a setting is out of
        range, or weights are given without a rescorer.
        """
        rescorer, weight, word_bonus = (settings.get(name) for name in OF_RESCORER)
        if rescorer is None:
            refuse_idle({"rescorer_weight": weight, "word_bonus": word_bonus}, "given without rescorer=; pass the model too")
            return None
        weight = RESCORER_WEIGHT if weight is None else check("rescorer_weight", weight, KINDS["rescorer_weight"])
        word_bonus = 0.0 if word_bonus is None else check("word_bonus", word_bonus, KINDS["word_bonus"])
        return cls(load_rescorer(rescorer, device), weight, word_bonus)

    @contextlib.contextmanager
    def in_place(self, model: Any, tokenizer: Any) -> Iterator[None]:
        """Make the model's `generate` rerank its beams with the rescorer, within the `with` block.

        `generate` ranks beams by score / length ** `length_penalty`, where the length counts the transcript's tokens and its
        end. The rescorer's weighted score and the word bonuses are divided by the same power before they are added.

        Raises:
            ValueError: there is one beam only, or the model is Whisper, whose `generate` decodes windows by itself.
        """
        if model.config.model_type == "whisper":
            raise ValueError(
                "rescorer= doesn't work with Whisper, whose generate decodes windows by itself; it works with other "
                "encoder-decoders, CTC models and transducers"
            )
        own = model.generate

        def generate(*args: Any, **kwargs: Any) -> Tensor:
            config = kwargs.get("generation_config") or model.generation_config
            beams, penalty = (_setting(name, kwargs, config) for name in ("num_beams", "length_penalty"))
            if beams == 1:
                raise ValueError(
                    "rescorer= has one hypothesis only to choose from; pass num_beams=8, for example, or leave it out"
                )
            more = {"num_return_sequences": beams, "return_dict_in_generate": True, "output_scores": True}
            out = own(*args, **{**kwargs, **more})
            texts = [text.strip() for text in tokenizer.batch_decode(out["sequences"], skip_special_tokens=True)]
            special = torch.tensor(tokenizer.all_special_ids, device=out["sequences"].device)
            lengths = (~torch.isin(out["sequences"], special)).sum(1).add(1).reshape(-1, beams)
            lists = [texts[first : first + beams] for first in range(0, len(texts), beams)]
            scores = torch.tensor(self.rescorer.scores(lists), device=lengths.device)
            words = torch.tensor([[len(text.split()) for text in of_row] for of_row in lists], device=lengths.device)
            added = _column(self.weight, lengths) * scores + _column(self.word_bonus, lengths) * words
            ranks = out["sequences_scores"].reshape(-1, beams).double() + added / lengths.double() ** penalty
            best = ranks.argmax(1) + beams * torch.arange(len(lists), device=lengths.device)
            return out["sequences"][best]

        model.generate = generate
        try:
            yield
        finally:
            del model.generate


def _setting(name: str, kwargs: Mapping[str, Any], config: Any) -> Any:
    found = kwargs[name] if kwargs.get(name) is not None else getattr(config, name, None)
    return 1 if found is None else found


def _column(weight: float | Tensor, like: Tensor) -> Any:
    return weight.to(like.device)[:, None] if isinstance(weight, Tensor) else weight
