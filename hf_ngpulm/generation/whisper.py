"""Extend Whisper's long-form decoding for logits processors. The extension tells the processors which recording each row
belongs to, and keeps the model's own scores.

Whisper decodes a 30 s window of each recording that hasn't ended. If the transcript of a row looks bad, Whisper decodes the row
again at another temperature, in a smaller batch. Methods of the model do this, with the processors as arguments. This module
wraps these methods, on one model object only. The wrappers tell a processor with several LMs which recordings are in the batch.
A transcript looks bad if its mean log-probability is below `logprob_threshold`. The wrapped methods compute this mean from the
model's own scores, not from the fused scores. `generate` without an `NGramLogitsProcessor` is unchanged.

A window must consume audio. Otherwise the next window would be the same, and decoding would never end. So this module rules out
timestamps after `<|notimestamps|>` (Transformers doesn't). If a window consumes no audio, the whole window counts as consumed.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor


class Window:
    """Track the recordings that are being decoded in one window.

    Args:
        sequences: for each row, the index of its sequence. Each recording has as many sequences as it returns transcripts.
        total: number of sequences of all recordings.
        prompt_length: number of tokens before the transcript.
        generation_config: the config with the current number of beams.
        judged: the first logits processor, if `logprob_threshold` is set; otherwise None. The window keeps the input of this
            processor, the model's own scores. These scores take as much memory as the fused scores that Whisper keeps.
    """

    def __init__(
        self, sequences: list[int], total: int, prompt_length: int, generation_config: Any, judged: Any = None
    ) -> None:
        self.sequences, self.total, self.prompt_length = sequences, total, prompt_length
        self.generation_config, self.judged = generation_config, judged
        self.own: list[Tensor] = []  # by step, `[B, C]`
        self._again: list[int] = []

    def keep(self, processor: Any, input_ids: Tensor, scores: Tensor) -> None:
        """If the input scores of a processor are used to judge transcripts, keep these scores, `[B, C]`."""
        if processor is self.judged:
            self.own[input_ids.shape[1] - self.prompt_length :] = [scores.clone()]

    def recordings(self, batch_size: int, count: int) -> list[int]:
        """Return each row's index among `count` recordings; -1 for padding rows (in batches of fixed size)."""
        if self.total % count:
            raise ValueError(f"there are {count} language models or weights, but {self.total} recordings")
        beams = self.generation_config.num_beams or 1
        rows = [self.recording(row, count) for row in range(len(self.sequences)) for _ in range(beams)]
        return rows[:batch_size] + [-1] * (batch_size - len(rows))

    def recording(self, row: int, count: int) -> int:
        return self.sequences[row] // (self.total // count)

    def decoded(self, row: int, again: bool) -> None:
        """Record whether `row` must be decoded again. Call the method for each row in ascending order. After the last row, the
        window has only the rows to decode again.
        """
        if row == 0:
            self._again = []
        if again:
            self._again.append(self.sequences[row])
        if row == len(self.sequences) - 1 and self._again:
            self.sequences = self._again


# The current window of Whisper's long-form decoding; each thread has its own.
WINDOW: ContextVar[Window | None] = ContextVar("window", default=None)


class Windowed:
    """Base class of logits processors that read `WINDOW`. The window keeps the input scores of the first such processor."""


def follow_recordings(model: Any) -> None:
    """Wrap the methods of a Whisper model, also of a Whisper model within another module. Other models stay unchanged."""
    for part in model.modules():
        for method in (generate_with_fallback, _need_fallback, _retrieve_segment):
            here = vars(part).get(method.__name__)
            if hasattr(type(part), method.__name__) and getattr(here, "__func__", None) is not method:
                setattr(part, method.__name__, MethodType(method, part))


def generate_with_fallback(self: Any, *args: Any, **kwargs: Any) -> Any:
    stock = type(self).generate_with_fallback
    arguments = _bound("generate_with_fallback", self, args, kwargs).arguments
    processors = [processor for processor in arguments["logits_processor"] or () if isinstance(processor, Windowed)]
    config = arguments["generation_config"]
    if not processors:
        return stock(self, *args, **kwargs)
    prompt_length = arguments["decoder_input_ids"].shape[1]
    judged = None if config.logprob_threshold is None else processors[0]
    window = Window(list(arguments["batch_idx_map"]), len(arguments["seek"]), prompt_length, config, judged)
    before = WINDOW.set(window)
    try:
        return stock(self, *args, **kwargs)
    finally:
        WINDOW.reset(before)


def _need_fallback(self: Any, *args: Any, **kwargs: Any) -> Any:
    stock = type(self)._need_fallback
    bound = _bound("_need_fallback", self, args, kwargs)
    arguments = bound.arguments
    window, row = WINDOW.get(), arguments["index"]
    output = arguments["seek_outputs"][row]
    own_log_probs = output.get("own_log_probs") if isinstance(output, dict) else None
    if (window is not None or own_log_probs is not None) and arguments["generation_config"].logprob_threshold is not None:
        outputs = list(arguments["seek_outputs"])
        if own_log_probs is not None:
            own = _artificial_scores(own_log_probs, arguments)
        else:
            own = _own_scores(cast(Window, window), arguments)
        outputs[row] = {**outputs[row], "scores": own}
        arguments["seek_outputs"] = outputs
    result = stock(*bound.args, **bound.kwargs)
    if window is not None:
        window.decoded(row, result[0])
    return result


def _retrieve_segment(self: Any, *args: Any, **kwargs: Any) -> Any:
    segments, offset = type(self)._retrieve_segment(*args, **kwargs)
    if offset <= 0:
        given = inspect.signature(type(self)._retrieve_segment).bind(*args, **kwargs).arguments
        offset = given["seek_num_frames"][given["prev_idx"]]
    return segments, offset


def rule_out_timestamps(scores: Tensor, input_ids: Tensor, no_timestamps: int, rows: Tensor) -> None:
    """Rule out timestamps in scores `[B, C]`, in place.

    A row is affected if the mask `rows`, bool `[B]`, is True and the row's tokens, `[B, L]`, contain `<|notimestamps|>`.
    """
    without = (input_ids == no_timestamps).any(1) & rows
    scores[:, no_timestamps + 1 :].masked_fill_(without[:, None], -torch.inf)


def _bound(method: str, model: Any, args: Any, kwargs: Any) -> inspect.BoundArguments:
    """Bind arguments to the parameter names of Transformers' own method."""
    from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

    return inspect.signature(getattr(WhisperGenerationMixin, method)).bind(model, *args, **kwargs)


def _own_scores(window: Window, given: dict[str, Any]) -> list[Tensor]:
    """Return the model's own scores at each step of a row, to replace the fused scores. `given`: the arguments of
    `_need_fallback`, by name.
    """
    output, temperature = given["seek_outputs"][given["index"]], given["temperature"] or 1.0
    fused = output["scores"][: len(given["seek_sequence"])]
    # A beam may come from another row at each step. Tokens that later processors ruled out stay ruled out.
    rows = output["beam_indices"].tolist() if "beam_indices" in output else [given["index"]] * len(fused)
    own = [(scores[row] / temperature).to(each) for scores, row, each in zip(window.own, rows, fused)]
    return [each.masked_fill(scores == -torch.inf, -torch.inf) for each, scores in zip(own, fused)]


def _artificial_scores(log_probs: Tensor, given: dict[str, Any]) -> list[Tensor]:
    """Return artificial scores `[V]` for each step of a row, from which Transformers' `_need_fallback` computes the mean of
    `log_probs`. `given`: the arguments of `_need_fallback`, by name.
    """
    sequence = given["seek_sequence"].cpu()
    scores = torch.full((min(len(log_probs), len(sequence)), given["vocab_size"]), -torch.inf)
    steps, said = torch.arange(len(scores)), sequence[: len(scores)]
    rest = torch.where(said == 0, 1, 0)  # a token that wasn't chosen gets the remaining probability
    scores[steps, said] = log_probs[: len(scores)].float()
    scores[steps, rest] = torch.log1p(-log_probs[: len(scores)].float().exp())
    return list(scores / (given["temperature"] or 1.0))
