"""TransducerDecoder: from audio features, or an encoder's frames, to hypotheses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.batches import Outputs, checked_lengths, tensor_of
from ..errors import InvalidLogitsError
from ..fusion.fusion import RowModels, weights_of
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..search.networks.graphs import Kept
from ..search.networks.model import transducer_of
from ..search.networks.opening import lent_search
from ..search.networks.search import SearchSettings
from .decoder import Decoder, refuse_broken
from .hypotheses import Hypothesis
from .options import TransducerOptions, takes
from .pauses import Piece, by_pieces, pieces_of
from .sessions.transducer import Path, TransducerSlots

ILM_SHARE = 0.5  # of the LM's weight: what the internal LM is subtracted with where nothing else is said
OUTPUTS = "outputs for"  # of which row, when they are broken


class TransducerDecoder(Decoder, caches={"_kept": dict}):
    """Decoding of transducers (RNN-T, TDT), greedily or with a beam, with n-gram language models fused in.

    In greedy search the blank stays where it is the model's own choice; any other token is chosen anew among those that the LM
    scores. Durations (TDT) are the model's own. The prediction network runs once for each token (label looping, Bataev et al.,
    SLT 2024). For the two beam searches see `hf_ngpulm.search.transducer_beam`.

    Args:
        model: a transducer of Transformers (Parakeet, Nemotron), or a `TransducerModel` of your own.
        tokenizer_or_processor: the model's tokenizer, or a processor that has it; None for hypotheses without texts.
        lm, lm_weight, phrases, phrase_weight, confidence, engine: as for `hf_ngpulm.CTCDecoder`.
        frame_seconds: how long a frame of the encoder is; by default what model and processor say. Where nothing says it,
            words have no times in seconds.
        strategy: "greedy"; "alsd", beam search by the length of alignments (RNN-T and TDT); or "aes", beam search by frames
            (RNN-T). By default "greedy" with `num_beams=1`, or without `num_beams`, `lm` and `phrases`; else "alsd".
        num_beams: hypotheses that beam search keeps; "auto" is 3 (or `num_return_sequences`, if that is more), most of the gain
            at little cost. The default is "auto" with `lm` or `phrases`, lists of them included; 4 if `strategy` asks for a
            beam search; else 1.
        num_return_sequences: hypotheses that are returned for each row; at most `num_beams`.
        max_symbols: tokens that may be emitted at one frame (but see `aes_steps`); the model's own number if left out.
        ilm_weight: weight with which the log-probabilities of the model's internal LM (what the joint network says without an
            encoder, Meng et al., SLT 2021) are subtracted from those of tokens: a number, or a tensor `[B]` with one per row.
            None, the default, for half the LM's weight where there is an LM and no `source_lm`; 0 for none.
        blank_scoring: in beam search, "lm_weighted" (default): the blank's score grows with the LM's weight, which keeps the LM
            from favouring short transcripts; or "none".
        pruning: in beam search, "late" (default): LM scores are added before the best extensions of a hypothesis are chosen;
            or "early": after, to those of the `num_beams` tokens that the model alone finds likeliest. (In a TDT the best pairs
            of token and duration are taken after that.)
        merging: in beam search, "log_sum" (default): the probabilities of all ways to the same tokens at the same frame are
            summed; or "max": the best one counts.
        length_normalization: whether beam search ranks the hypotheses of an utterance by their scores divided by the number
            of tokens and one more (default), or by their scores.
        score_eos: whether the LM's score of `</s>` counts there (default); switch it off for utterances that may end within a
            sentence.
        aes_steps: tokens that "aes" takes at one frame (default 2).
        aes_beta: classes, more than `num_beams`, that "aes" extends a hypothesis by at most (default 1).
        aes_gamma: how much less than its best class a class may score for that (natural log, default 2.3).
        source_lm, source_weight: as for `hf_ngpulm.CTCDecoder`; an alternative to the internal LM, which is then subtracted
            only if `ilm_weight` says so.
        pause_seconds: for recordings of several sentences: where nothing is heard for so long, a new sentence begins, for the
            prediction network, for LMs and for phrases (see `hf_ngpulm.decoding.pauses`). None, the default, for nowhere.

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range, or a model that isn't a transducer.
    """

    kind = TransducerOptions
    options: TransducerOptions

    @takes(TransducerOptions)
    def __init__(
        self,
        model: Any,
        tokenizer_or_processor: Any,
        lm: NGramLM | LogLinear | Sequence[NGramLM | LogLinear | None] | None = None,
        lm_weight: float | Tensor | None = None,
        phrases: Any = None,
        phrase_weight: float | Tensor | None = None,
        **options: Any,
    ) -> None:
        if options.get("frame_seconds") is None:
            options["frame_seconds"] = _frame_seconds(model, tokenizer_or_processor)
        self.model = transducer_of(model, options["frame_seconds"])
        if options["frame_seconds"] is None:
            options["frame_seconds"] = self.model.frame_seconds
        given = {"lm_weight": lm_weight, "phrase_weight": phrase_weight, **options}
        super().__init__(tokenizer_or_processor, lm, phrases, getattr(self.model, "model", None), given)
        _ = self.settings  # to tell of what doesn't suit the model
        if self.options.pause_seconds is not None and self.options.frame_seconds is None:
            raise ValueError("pause_seconds needs to know how long a frame is: pass frame_seconds too")
        self._kept: Kept = {}

    @property
    def _made_for(self) -> list[str]:
        return [type(getattr(self.model, "model", self.model)).__name__]

    @property
    def settings(self) -> SearchSettings:
        """Return what the search takes."""
        return self.options.settings(self.model)

    @property
    def has_ilm(self) -> bool:
        """Return whether an internal LM is subtracted in any row."""
        weight = self.options.ilm_weight
        if weight is None:
            return bool(self.fusion.lms) and self.fusion.source is None
        return isinstance(weight, Tensor) or weight != 0

    def ilm_weights(self, models: RowModels) -> Tensor | None:
        """Return with what weights the internal LM is subtracted in some rows, float32 `[B]`; None if it isn't.

        Raises:
            ValueError: a tensor of weights for another number of rows.
        """
        if not self.has_ilm:
            return None
        weight, lm_weights = self.options.ilm_weight, models.lm_weights
        if weight is None:
            return (ILM_SHARE * lm_weights).clamp(min=0)
        return weights_of(weight, "ilm_weight", len(lm_weights), lm_weights.device)

    @property
    def _device(self) -> torch.device | None:
        return next((weight.device for weight in self.model.parameters()), None)

    @torch.inference_mode()
    def __call__(
        self, input_features: Outputs, attention_mask: Outputs | None = None, phrases: Any = None, **kwargs: Any
    ) -> list[list[Hypothesis]]:
        """Encode and decode a batch.

        Args:
            input_features: what the model's feature extractor gives: a tensor; or an array or lists, which go to the model's
                device.
            attention_mask: the same; without it padding is decoded too.
            phrases: for this batch in place of the decoder's: one context, or a list with one (or None) per row.
            kwargs: for the encoder (such as `prompt_ids`).

        Returns:
            For each row up to `num_return_sequences` hypotheses, the best one first.

        Raises:
            InvalidLogitsError: the model's outputs hold NaN or infinity.
        """
        input_features = tensor_of(input_features, "input_features", self._device)
        if attention_mask is not None:
            attention_mask = tensor_of(attention_mask, "attention_mask", self._device)
        frames, lengths = self.model.encode(input_features, attention_mask, **kwargs)
        return self.decode(frames, lengths, phrases)

    @torch.inference_mode()
    def decode(
        self, encoder_hidden_states: Outputs, lengths: Outputs | None = None, phrases: Any = None
    ) -> list[list[Hypothesis]]:
        """Decode an encoder's frames.

        Args:
            encoder_hidden_states: `[B, T, D]`, projected for the joint network, as the model's `encode` gives them (in
                Transformers: `model.get_audio_features(...).pooler_output`): a tensor, an array or lists.
            lengths: integers `[B]`, frames of each row; all T if left out.
            phrases: as for a call.

        Raises:
            InvalidLogitsError: the frames, or the outputs for them, hold NaN or infinity, or have a wrong shape.
            ValueError: lengths that don't fit the frames.
        """
        frames = tensor_of(encoder_hidden_states, "encoder_hidden_states", self._device)
        lengths, writing = _checked(frames, lengths), self.writing
        paths = self.guided(phrases)._paths(frames, lengths, phrases)
        return [[path.written(writing, length) for path in of_row] for of_row, length in zip(paths, lengths.tolist())]

    @torch.inference_mode()
    def paths(self, frames: Tensor, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Path]]:
        """Return the best paths of each row of a batch, blanks included. Arguments and errors as for `decode`."""
        return self._paths(frames, _checked(frames, lengths), phrases, keeps_blanks=True)

    def _paths(self, frames: Tensor, lengths: Tensor, phrases: Any, keeps_blanks: bool = False) -> list[list[Path]]:
        """Return the best paths of each row, cut in pauses if these are looked for; `keeps_blanks`: with their blanks."""
        models = self.fusion.shared_rows(len(frames), frames.device, phrases)
        models = models._replace(ilm_weights=self.ilm_weights(models))
        if self.options.pause_seconds is None or not len(frames):
            return self._search(frames, lengths.cpu().numpy(), models, keeps_blanks)
        pieces = pieces_of(self.model, frames, lengths, self._pause_frames)

        def search(frames: Tensor, pieces: list[Piece]) -> list[list[Path]]:
            rows, sizes = np.array([(row, last - first) for row, first, last in pieces]).T
            of_rows = models.of(torch.from_numpy(rows).to(frames.device))
            return self._search(frames, sizes.copy(), of_rows, keeps_blanks, pieces)

        return by_pieces(pieces, frames, search, len(frames), self._rank, self.options.num_return_sequences)

    def _search(
        self, frames: Tensor, lengths: np.ndarray, models: RowModels, keeps_blanks: bool,
        pieces: Sequence[Piece] | None = None,
    ) -> list[list[Path]]:  # fmt: skip
        """Open a session, feed it once, and return its paths."""
        with lent_search(self.model, frames, models, self.settings, self.options.engine, self._kept) as search:
            slots = TransducerSlots(self, models, search, frames, keeps_blanks)
            slots.feed_whole(lengths)
            paths = slots.paths()
        refuse_broken(slots.bad, OUTPUTS, pieces)
        return paths

    def _rank(self, path: Path) -> float:
        """Return how good a path is beside others of the same frames."""
        tokens = int((path.steps.ids != self.model.blank_id).sum())
        return path.scores[0] / (tokens + 1 if self.options.length_normalization else 1)

    @property
    def _pause_frames(self) -> int:
        """Return how many frames a pause has at least."""
        seconds, frame_seconds = self.options.pause_seconds, self.options.frame_seconds
        assert seconds is not None and frame_seconds is not None  # checked when the decoder was made
        return max(1, math.ceil(seconds / frame_seconds - 1e-6))


def _checked(frames: Tensor, lengths: Outputs | None) -> Tensor:
    """Return the lengths of the rows of frames, int64 `[B]`.

    Raises:
        InvalidLogitsError: frames of a wrong shape or type.
        ValueError: lengths that don't fit the frames.
    """
    if frames.dim() != 3 or not frames.dtype.is_floating_point:
        problem = f"encoder_hidden_states should be floating point of the shape [B, T, D], got {frames.dtype} "
        problem += f"{tuple(frames.shape)}"
        if frames.dim() == 2:
            problem += "; of one utterance add a batch dimension: encoder_hidden_states[None]"
        raise InvalidLogitsError(problem)
    return checked_lengths(lengths, frames.shape[0], frames.shape[1], frames.device)


def _frame_seconds(model: Any, processor: Any) -> float | None:
    extractor: Any = getattr(processor, "feature_extractor", None)
    encoder = getattr(getattr(model, "config", None), "encoder_config", None)
    step, factor = getattr(extractor, "hop_length", None), getattr(encoder, "subsampling_factor", None)
    return None if step is None or factor is None else step * factor / extractor.sampling_rate
