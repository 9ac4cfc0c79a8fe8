"""Define `TransducerDecoder`, which decodes audio features or encoder frames into hypotheses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.batches import Outputs, checked_frames, tensor_of
from ..fusion.rows import RowModels
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..search.networks.graphs import Kept
from ..search.networks.model import frame_seconds_of, transducer_of
from ..search.networks.opening import lent_search, open_search
from ..search.networks.search import SearchSettings
from .decoder import Decoder, refuse_broken
from .hypotheses import Hypothesis
from .internal_lm import ilm_weights_of
from .options import TransducerOptions, takes
from .pauses import Piece, by_pieces, frames_of_pause, pieces_of
from .sessions.transducer import TransducerPath, TransducerSlots, rescored_paths

LEAST_ROOM = 16  # frames of a stream
NAMES = "encoder_hidden_states", "D"  # of frames and their last dimension, in errors


class TransducerDecoder(Decoder, caches={"_kept": dict}):
    """Decode transducers (RNN-T, TDT), greedily or with a beam, with n-gram LMs and phrases (shallow fusion, biasing).

    In greedy search a frame stays blank if the model prefers the blank. Otherwise the scores of the model and the LM together
    choose the token. The model alone chooses durations (TDT). The prediction network runs once per token instead of once per
    frame (label looping, Bataev et al., SLT 2024, arXiv 2406.06220). For the two beam searches see
    `hf_ngpulm.search.transducer_beam`.

    Args:
        model: a transducer of Transformers (Parakeet, Nemotron), or a `TransducerModel` of your own.
        tokenizer_or_processor: the model's tokenizer, or the processor that contains it; None for hypotheses without texts.
        lm, lm_weight, phrases, phrase_weight, confidence, lm_guard, engine: as for `hf_ngpulm.CTCDecoder`.
        frame_seconds: duration of an encoder frame; default: from the model and processor. Without it words have no times.
        strategy: "greedy"; "alsd", beam search synchronous in alignment length (RNN-T and TDT); or "aes", beam search
            synchronous in frames (RNN-T only). The default is "greedy" if `num_beams` is 1, or if `num_beams`, `lm` and
            `phrases` are all absent; otherwise "alsd".
        num_beams: number of hypotheses that beam search keeps. "auto" is 3, or `num_return_sequences` if that is more; 3 beams
            give most of the gain at little cost. The default is "auto" with `lm` or `phrases`, also if a call passes the
            phrases. Otherwise it is 4 if `strategy` names a beam search, and 1 if not.
        num_return_sequences: number of hypotheses per row, at most `num_beams`.
        rescorer, rescorer_weight, word_bonus, rescorer_best, rescorer_every: as for `hf_ngpulm.CTCDecoder`. With
            `pause_seconds` the rescorer reads the words since the last pause in the search, and whole transcripts at the end.
        max_symbols: maximum number of tokens per frame; the default comes from the model. "aes" uses `aes_steps` instead.
        ilm_weight: weight of the model's internal LM, whose log-probabilities are subtracted from the tokens' scores: a number,
            or a tensor `[B]` with one per row. The internal LM is the joint network without encoder input (Meng et al., SLT
            2021). The default is 0.7 of `lm_weight`, or 0 without an LM or with `source_lm`.
        blank_scoring: "lm_weighted" (default) scales the blank's score with `lm_weight`, so that the LM doesn't favour short
            transcripts; "none" doesn't change the blank's score. Beam search only.
        pruning: "late" (default) adds LM scores before it chooses a hypothesis's best extensions; "early" lets the model alone
            choose `num_beams` tokens and then adds their LM scores (in a TDT, before durations are chosen). Beam search only.
        merging: how the search merges alignments that have the same tokens up to the same frame: "log_sum" (default) adds their
            probabilities, "max" keeps the better alignment. Beam search only.
        length_normalization: True (default) ranks the final hypotheses by score / (number of tokens + 1), False by score. Beam
            search only.
        score_eos: adds the LM's score of `</s>` when the final hypotheses are ranked (default). Set it to False for utterances
            that may stop in mid-sentence. Beam search only.
        aes_steps: maximum number of tokens per frame in "aes" (default 2).
        aes_beta: "aes" extends a hypothesis by at most `num_beams + aes_beta` classes (default 1).
        aes_gamma: "aes" doesn't extend a hypothesis by a class whose score is lower than the best class's score by more than
            this (natural log, default 2.3).
        source_lm, source_weight: as for `hf_ngpulm.CTCDecoder`; a source LM is an alternative to the internal LM, so the
            internal LM is then subtracted only if `ilm_weight` is given.
        pause_seconds: for recordings of several sentences: a pause of at least this length begins a new sentence for the
            prediction network, LMs and phrases (see `hf_ngpulm.decoding.pauses`). None (default): rows aren't cut at pauses.

    Raises:
        TokenizerMismatchError: an LM belongs to another tokenizer.
        ValueError: an argument is out of range or has no effect in this search, or the model isn't a transducer.
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
            options["frame_seconds"] = frame_seconds_of(model, tokenizer_or_processor)
        self.model = transducer_of(model, options["frame_seconds"])
        if options["frame_seconds"] is None:
            options["frame_seconds"] = self.model.frame_seconds
        given = {"lm_weight": lm_weight, "phrase_weight": phrase_weight, **options}
        super().__init__(tokenizer_or_processor, lm, phrases, getattr(self.model, "model", None), given)
        _ = self.settings  # raises for options that don't suit the model
        self._kept: Kept = {}

    @property
    def _made_for(self) -> list[str]:
        return [type(getattr(self.model, "model", self.model)).__name__]

    @property
    def blank_id(self) -> int:
        return self.model.blank_id

    @property
    def settings(self) -> SearchSettings:
        """Return the options in the form that the search takes."""
        return self.options.settings(self.model)

    def ilm_weights(self, models: RowModels) -> Tensor | None:
        """Return the weight of the internal LM in each row, float32 `[B]`; None if no internal LM is subtracted."""
        return ilm_weights_of(self.options.ilm_weight, self.fusion, models)

    @property
    def _device(self) -> torch.device | None:
        return next((weight.device for weight in self.model.parameters()), None)

    @torch.inference_mode()
    def __call__(
        self, input_features: Outputs, attention_mask: Outputs | None = None, phrases: Any = None, **kwargs: Any
    ) -> list[list[Hypothesis]]:
        """Encode and decode a batch.

        Args:
            input_features: output of the model's feature extractor: a tensor, an array or lists. Arrays and lists are moved to
                the model's device.
            attention_mask: the feature extractor's mask. Without it, padding is decoded as audio.
            phrases: replaces the decoder's phrases in this batch: one context, or a list with one context (or None) per row.
            kwargs: arguments of the encoder, for example `prompt_ids`.

        Returns:
            Up to `num_return_sequences` hypotheses per row, the best one first.

        Raises:
            InvalidLogitsError: the model's outputs contain NaN or infinity.
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
        """Decode encoder frames.

        Args:
            encoder_hidden_states: `[B, T, D]`, projected for the joint network, as the model's `encode` returns them (in
                Transformers: `model.get_audio_features(...).pooler_output`): a tensor, an array or lists.
            lengths: integers `[B]`, number of frames of each row (default T).
            phrases: as for a call.

        Returns:
            Up to `num_return_sequences` hypotheses per row, the best one first.

        Raises:
            InvalidLogitsError: the frames or the model's outputs contain NaN or infinity, or the frames have a wrong shape.
            ValueError: the lengths don't fit the frames.
        """
        frames = tensor_of(encoder_hidden_states, "encoder_hidden_states", self._device)
        lengths, writing = checked_frames(frames, lengths, *NAMES), self.writing
        phrases = list(phrases) if isinstance(phrases, Iterator) else phrases
        paths = self.guided(phrases)._paths(frames, lengths, phrases)
        found = [[path.written(writing, length) for path in of_row] for of_row, length in zip(paths, lengths.tolist())]
        return self.finished(found, phrases)

    def rank(self, hypothesis: Hypothesis) -> float:
        return hypothesis.score / (len(hypothesis.token_ids) + 1 if self.options.length_normalization else 1)

    @torch.inference_mode()
    def paths(self, frames: Tensor, lengths: Outputs | None = None, phrases: Any = None) -> list[list[TransducerPath]]:
        """Return the best paths of each row of a batch, blanks included. Arguments and errors are as for `decode`."""
        paths = self._paths(frames, checked_frames(frames, lengths, *NAMES), phrases, keeps_blanks=True)
        if self.options.rescorer is None:
            return paths
        texts = [[self._text(path) for path in of_row] for of_row in paths]
        ranked = rescored_paths(paths, texts, *self.options.second_pass, self._rank)
        return [of_row[: self.options.num_return_sequences] for of_row in ranked]

    def _paths(self, frames: Tensor, lengths: Tensor, phrases: Any, keeps_blanks: bool = False) -> list[list[TransducerPath]]:
        """Return the best paths of each row, with blanks if `keeps_blanks`. With `pause_seconds`, cut rows at pauses first."""
        if not self.is_guarded:
            return self._paths_of(frames, lengths, phrases, keeps_blanks)
        if phrases is not None:  # they may be read once only
            phrases = self.fusion.contexts.of_rows(phrases, len(frames))
        paths = self._paths_of(frames, lengths, phrases, keeps_blanks)
        judged = [self.judged(best.tokens(self.blank_id), best.scores[2], best.scores[1]) for best, *_ in paths]

        def again(decoder: TransducerDecoder, rows: Tensor, phrases: Any) -> list[list[TransducerPath]]:
            return decoder._paths_of(frames[rows], lengths[rows], phrases, keeps_blanks)

        for row, found in self.guarded(judged, phrases, again, lambda paths: paths[0].scores[1], frames.device):
            paths[row] = [path._replace(lm_left_out=True) for path in found]
        return paths

    def _paths_of(self, frames: Tensor, lengths: Tensor, phrases: Any, keeps_blanks: bool) -> list[list[TransducerPath]]:
        """Return the best paths of each row. The search uses all language models of the row."""
        models = self.fusion.shared_rows(len(frames), frames.device, phrases)
        models = models._replace(ilm_weights=self.ilm_weights(models))
        if self.options.pause_seconds is None or not len(frames):
            return self._search(frames, lengths.cpu().numpy(), models, keeps_blanks)
        pieces = pieces_of(self.model, frames, lengths, frames_of_pause(self.options.pause_seconds, self.options.frame_seconds))

        def search(frames: Tensor, pieces: list[Piece]) -> list[list[TransducerPath]]:
            rows, sizes = np.array([(row, last - first) for row, first, last in pieces]).T
            of_rows = models.of(torch.from_numpy(rows).to(frames.device))
            decoder = self._with(options=self.options.select(rows.tolist()))
            return decoder._search(frames, sizes.copy(), of_rows, keeps_blanks, pieces)

        return by_pieces(pieces, frames, search, len(frames), self._rank, self.options.num_searched)

    def _search(
        self, frames: Tensor, lengths: np.ndarray, models: RowModels, keeps_blanks: bool,
        pieces: Sequence[Piece] | None = None,
    ) -> list[list[TransducerPath]]:  # fmt: skip
        """Search rows `[B, T, D]`, or `pieces` of rows, in one call. Return the best paths of each row or piece."""
        with lent_search(self.model, frames, models, self.settings, self.options.engine, self._kept) as search:
            slots = TransducerSlots(self, models, search, frames, keeps_blanks)
            slots.feed_whole(lengths)
            paths = slots.paths()
        if slots.delayed is not None and pieces is None:
            slots.delayed.finish(np.arange(len(paths)), [[self._text(path) for path in of_row] for of_row in paths])
        refuse_broken(slots.bad, "outputs for", pieces)
        return paths

    def slots(self, models: RowModels, dtype: torch.dtype) -> TransducerSlots:
        """Return a new search. It has a slot for each row of `models`. `dtype` is the type of the streams' frames."""
        rows = len(models.states)
        like = torch.zeros((rows, LEAST_ROOM, 0), dtype=dtype, device=models.states.device)
        of_search = models._replace(ilm_weights=self.ilm_weights(models))
        search = open_search(self.model, like, rows, of_search, self.settings, self.options.engine)
        return TransducerSlots(self, models, search, like.new_zeros((rows, LEAST_ROOM, search.width or 0)))

    def _text(self, path: TransducerPath) -> str:
        return self.writing.text(path.tokens(self.blank_id))

    def _rank(self, path: TransducerPath) -> float:
        """Return the score by which paths over the same frames are compared."""
        return path.scores[0] / (len(path.tokens(self.blank_id)) + 1 if self.options.length_normalization else 1)
