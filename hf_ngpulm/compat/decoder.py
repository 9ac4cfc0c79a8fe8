"""pyctcdecode's decoder, and what makes one."""

from __future__ import annotations

import logging
import math
import os
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..boosting import PhraseBooster
from ..ctc import CTCDecoder
from ..ctc.decoder import MOST_BEAMS
from ..ctc.stream import BeamStream
from ..errors import NGramFormatError
from ..hypotheses import Hypothesis
from ..language_model import NGramLM
from .alphabet import Alphabet, LabelTokenizer
from .constants import (
    DEFAULT_ALPHA,
    DEFAULT_BEAM_WIDTH,
    DEFAULT_BETA,
    DEFAULT_HOTWORD_WEIGHT,
    DEFAULT_MIN_TOKEN_LOGP,
    DEFAULT_PRUNE_BEAMS,
    DEFAULT_PRUNE_LOGP,
    DEFAULT_SCORE_LM_BOUNDARY,
    DEFAULT_UNK_LOGP_OFFSET,
)
from .fused import CUTTINGS, FusedModel, LMState
from .language_model import LanguageModel
from .outputs import log_probs_of, without_unlikely
from .repository import ALPHABET_FILE, LM_FOLDER, download
from .transcripts import OutputBeam, OutputBeamMPSafe, Transcript, merged

logger = logging.getLogger(__name__)

MOST_ENTRIES = 1 << 25  # of a batch: rows x frames x prefixes
KEPT_HOTWORDS = 16
MORE_PREFIXES = 16  # of pieces a text has several, until they are joined
FOR_THE_BEST = 16  # prefixes that may together be the best text


class BeamSearchDecoderCTC:
    """pyctcdecode's decoder on this package's engine, see `hf_ngpulm.compat`.

    Args:
        alphabet: labels of the outputs.
        language_model: of words, or None.
        tokenizer: of the recogniser: words are spelled as it writes them only. Without it they are spelled in labels, and where
            these are pieces (`▁`) in the ways that take fewest, up to 16 a word: recognisers that aren't sure mix them.
        case: "lower" or "upper" changes the words of the language model before they are spelled, see
            `hf_ngpulm.lexicon.compose`.

    Raises:
        NGramFormatError: the words can't be written in these labels, or only in another case.
    """

    _ALPHABET_SERIALIZED_FILENAME = ALPHABET_FILE
    _LANGUAGE_MODEL_SERIALIZED_DIRECTORY = LM_FOLDER
    _decoders: ClassVar[weakref.WeakSet[BeamSearchDecoderCTC]] = weakref.WeakSet()

    def __init__(
        self,
        alphabet: Alphabet,
        language_model: LanguageModel | None = None,
        tokenizer: Any = None,
        case: str = "auto",
    ) -> None:
        self._alphabet = alphabet
        self._tokenizer = LabelTokenizer(alphabet) if tokenizer is None else tokenizer
        # Where users of pyctcdecode look for the model; of this decoder only, and gone with it.
        self._model_key = secrets.token_bytes(16)
        self.model_container: dict[bytes, LanguageModel | None] = {self._model_key: language_model}
        self._fused = None if language_model is None else FusedModel(language_model, self._tokenizer, case)
        self._made: OrderedDict[Any, CTCDecoder] = OrderedDict()
        self._hotwords: OrderedDict[Any, PhraseBooster | None] = OrderedDict()
        self._decoders.add(self)

    # -- decoding

    def decode(
        self,
        logits: Any,
        beam_width: int = DEFAULT_BEAM_WIDTH,
        beam_prune_logp: float = DEFAULT_PRUNE_LOGP,
        token_min_logp: float = DEFAULT_MIN_TOKEN_LOGP,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = DEFAULT_HOTWORD_WEIGHT,
        lm_start_state: LMState | None = None,
    ) -> str:
        """The best transcript. Arguments as for `decode_beams`."""
        search = self._search(
            beam_width, beam_prune_logp, token_min_logp, hotwords, hotword_weight, lm_start_state, prefixes=FOR_THE_BEST
        )
        return self._transcripts([logits], search)[0][0].text

    def decode_beams(
        self,
        logits: Any,
        beam_width: int = DEFAULT_BEAM_WIDTH,
        beam_prune_logp: float = DEFAULT_PRUNE_LOGP,
        token_min_logp: float = DEFAULT_MIN_TOKEN_LOGP,
        prune_history: bool = DEFAULT_PRUNE_BEAMS,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = DEFAULT_HOTWORD_WEIGHT,
        lm_start_state: LMState | None = None,
    ) -> list[OutputBeam]:
        """The best transcripts, each text once.

        Args:
            logits: `[T, C]`, numpy or torch on any device: logits, log-probabilities, or probabilities (rows that sum to one,
                none below zero).
            beam_width: prefixes that the search keeps, and transcripts that are returned at most; 1 to 1024.
            beam_prune_logp: those that score so much less (below 0) than the best one are dropped.
            token_min_logp: labels less likely than this are left out, but for the likeliest of a frame.
            prune_history: leave out transcripts that differ from a better one only in words further back than the language
                model sees.
            hotwords: words that shall be recognised; of several in a text each counts.
            hotword_weight: natural log, what each earns.
            lm_start_state: `last_lm_state` of what was said before, by this decoder.

        Raises:
            InvalidLogitsError: another shape, or NaN or infinite logits.
            ValueError: an argument out of range, or the state of another decoder.
        """
        search = self._search(beam_width, beam_prune_logp, token_min_logp, hotwords, hotword_weight, lm_start_state)
        (found,) = self._transcripts([logits], search)
        if prune_history:
            found = self._without_same_history(found)
        return [transcript.beam(self._fused) for transcript in found]

    def decode_batch(
        self,
        pool: Any,
        logits_list: Iterable[Any],
        beam_width: int = DEFAULT_BEAM_WIDTH,
        beam_prune_logp: float = DEFAULT_PRUNE_LOGP,
        token_min_logp: float = DEFAULT_MIN_TOKEN_LOGP,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = DEFAULT_HOTWORD_WEIGHT,
    ) -> list[str]:
        """The best transcript of each utterance.

        Args:
            pool: anything: utterances are decoded together, on all of torch's threads, without other processes.
            logits_list: of each utterance `[T, C]`; a batch `[B, T, C]` will do.
            beam_width, beam_prune_logp, token_min_logp, hotwords, hotword_weight: as for `decode_beams`.
        """
        search = self._search(beam_width, beam_prune_logp, token_min_logp, hotwords, hotword_weight, prefixes=FOR_THE_BEST)
        return [found[0].text for found in self._transcripts(list(logits_list), search)]

    def decode_beams_batch(
        self,
        pool: Any,
        logits_list: Iterable[Any],
        beam_width: int = DEFAULT_BEAM_WIDTH,
        beam_prune_logp: float = DEFAULT_PRUNE_LOGP,
        token_min_logp: float = DEFAULT_MIN_TOKEN_LOGP,
        prune_history: bool = DEFAULT_PRUNE_BEAMS,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = DEFAULT_HOTWORD_WEIGHT,
    ) -> list[list[OutputBeamMPSafe]]:
        """The best transcripts of each utterance. Arguments as for `decode_batch` and `decode_beams`."""
        search = self._search(beam_width, beam_prune_logp, token_min_logp, hotwords, hotword_weight)
        batch = self._transcripts(list(logits_list), search)
        if prune_history:
            batch = [self._without_same_history(found) for found in batch]
        return [[transcript.beam_without_state() for transcript in found] for found in batch]

    # -- parameters and files

    @property
    def _language_model(self) -> LanguageModel | None:
        return self.model_container[self._model_key]

    def reset_params(
        self,
        alpha: float | None = None,
        beta: float | None = None,
        unk_score_offset: float | None = None,
        lm_score_boundary: bool | None = None,
    ) -> None:
        """Weigh the language model anew; None leaves a parameter as it is. Without a language model nothing happens."""
        if self._language_model is not None:
            self._language_model.reset_params(
                alpha=alpha, beta=beta, unk_score_offset=unk_score_offset, score_boundary=lm_score_boundary
            )

    def cleanup(self) -> None:
        """Let go of the language model. (It goes with the decoder, too.)"""
        self.model_container.clear()
        self._fused = None
        self._made.clear()

    @classmethod
    def clear_class_models(cls) -> None:
        """Let go of the language models of all decoders."""
        for decoder in list(cls._decoders):
            decoder.cleanup()

    def save_to_dir(self, filepath: str | os.PathLike[str]) -> None:
        """Write `alphabet.json`, and a folder `language_model` if there is one, to a folder, as pyctcdecode reads them."""
        folder = Path(filepath)
        (folder / ALPHABET_FILE).write_text(self._alphabet.dumps(), encoding="utf-8")
        if self._language_model is not None:
            (folder / LM_FOLDER).mkdir()
            self._language_model.save_to_dir(folder / LM_FOLDER)

    @classmethod
    def load_from_dir(cls, filepath: str | os.PathLike[str], unigram_encoding: str | None = None) -> BeamSearchDecoderCTC:
        """Read what `save_to_dir`, here or of pyctcdecode, has written.

        Args:
            filepath: the folder.
            unigram_encoding: None or "utf-8"; words in another encoding have to be rewritten.

        Raises:
            NGramFormatError: a file is missing or damaged.
        """
        if unigram_encoding is not None and unigram_encoding.lower().replace("-", "") not in ("utf8", "utf8sig"):
            raise ValueError(f"unigrams.txt is read as UTF-8; convert it from {unigram_encoding!r}")
        folder = Path(filepath)
        if not (folder / ALPHABET_FILE).is_file():
            raise NGramFormatError(f"{folder} holds no decoder: it has no {ALPHABET_FILE}")
        alphabet = Alphabet.loads((folder / ALPHABET_FILE).read_text(encoding="utf-8"))
        has_lm = (folder / LM_FOLDER).is_dir()
        return cls(alphabet, LanguageModel.load_from_dir(folder / LM_FOLDER) if has_lm else None)

    @classmethod
    def load_from_hf_hub(cls, model_id: str, cache_dir: str | None = None, **kwargs: Any) -> BeamSearchDecoderCTC:
        """Read a decoder from the Hub, of whose repo only its own files are downloaded.

        Args:
            model_id: the repo.
            cache_dir: where downloads go; the Hub's usual cache if left out.
            kwargs: `revision`, `token`, `local_files_only`; `allow_patterns` is as it is.
        """
        kwargs.pop("allow_patterns", None)
        return cls.load_from_dir(download(model_id, cache_dir=cache_dir, **kwargs))

    # -- the search

    def _search(
        self,
        beam_width: int,
        beam_prune_logp: float,
        token_min_logp: float,
        hotwords: Iterable[str] | None,
        hotword_weight: float,
        lm_start_state: LMState | None = None,
        prefixes: int = MOST_BEAMS,
    ) -> _Search:
        """What a call asks for, checked; `prefixes`: of how many, the best ones, transcripts are made."""
        if isinstance(beam_width, bool) or not isinstance(beam_width, int | np.integer) or not 1 <= beam_width <= MOST_BEAMS:
            raise ValueError(f"beam_width should be a whole number from 1 to {MOST_BEAMS}, got {beam_width!r}")
        if not beam_prune_logp < 0:
            raise ValueError(f"beam_prune_logp should be below 0, got {beam_prune_logp!r}")
        if math.isnan(token_min_logp):
            raise ValueError(f"token_min_logp should be a number, got {token_min_logp!r}")
        threshold = min(-float(beam_prune_logp), 1e9)
        decoder = self._decoder(int(beam_width), threshold, prefixes)
        lm = decoder.fusion.models[0] if decoder.fusion.models else None
        booster = self._booster(hotwords, hotword_weight)
        if booster is not None:
            decoder = decoder.with_phrases(booster)
        start = None if lm_start_state is None else lm_start_state.of(self._fused)
        return _Search(decoder, lm, int(beam_width), threshold, float(token_min_logp), start)

    def _decoder(self, beam_width: int, threshold: float, prefixes: int) -> CTCDecoder:
        """The decoder of this package, with the language model as it is weighed at the moment."""
        language_model = self._language_model
        attrs = None if language_model is None else language_model.attrs
        if self._made and next(iter(self._made))[0] != attrs:
            self._made.clear()
        key = (attrs, beam_width, threshold, prefixes)
        if key not in self._made:
            lm = None if self._fused is None or attrs is None else self._fused.weighed(attrs)
            # 1 would be another search, that of alignments.
            num_beams = min(MOST_BEAMS, max(2, beam_width + MORE_PREFIXES * self._alphabet.is_bpe))
            self._made[key] = CTCDecoder(
                self._tokenizer, lm, 1.0, num_beams=num_beams, beta=0.0, beam_threshold=threshold,
                score_eos=attrs is not None and attrs.score_boundary, merge="text" if self._alphabet.is_bpe else None,
                num_return_sequences=min(prefixes, num_beams),
                blank_id=self._alphabet.labels.index(""), confidence=None,
            )  # fmt: skip
        return self._made[key]

    def _booster(self, hotwords: Iterable[str] | None, weight: float) -> PhraseBooster | None:
        if isinstance(hotwords, str):
            raise TypeError(f"hotwords should be a list of words, got the text {hotwords!r}")
        words = tuple(dict.fromkeys(word for text in hotwords or () for word in text.split()))
        if not words:
            return None
        key = (words, weight)
        if key not in self._hotwords:
            size = None if self._fused is None else self._fused.composed.vocab_size
            has_words = self._alphabet.is_bpe or " " in self._alphabet.labels
            self._hotwords[key] = _booster(words, weight, self._tokenizer, has_words, size)
            if len(self._hotwords) > KEPT_HOTWORDS:
                self._hotwords.popitem(last=False)
        return self._hotwords[key]

    def _transcripts(self, logits_list: list[Any], search: _Search) -> list[list[Transcript]]:
        """Transcripts of utterances, decoded in batches of similar length."""
        rows = [log_probs_of(logits, len(self._alphabet.labels)) for logits in logits_list]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        found: list[list[Transcript]] = [[] for _ in rows]
        while order:
            count = max(1, MOST_ENTRIES // (max(1, len(rows[order[-1]])) * search.decoder.num_beams))
            batch = [row for row in order[-count:] if rows[row].device == rows[order[-1]].device]
            order = [row for row in order if row not in set(batch)]
            for row, beams in zip(batch, self._batch([rows[row] for row in batch], search)):
                found[row] = beams
        return found

    def _batch(self, rows: list[Tensor], search: _Search) -> list[list[Transcript]]:
        decoder, lm = search.decoder, search.lm
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=padded.device)
        kept, left_out = without_unlikely(padded, lengths, search.token_min_logp)
        lengths = decoder.check(kept, lengths)
        if lm is None or (search.start is None and decoder.score_eos):
            batch = decoder.decode_checked(kept, lengths)
        else:
            batch = self._batch_from(search, lm, kept, lengths)
        start = 0 if lm is None else int(lm.starts[0]) if search.start is None else search.start
        return [
            merged(n_best, offset, start, search.threshold, search.beam_width)
            for n_best, offset in zip(batch, left_out.tolist(), strict=True)
        ]

    def _batch_from(self, search: _Search, lm: NGramLM, logits: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode from another state of the language model, or without `</s>`, where the last word ends by itself."""
        decoder = search.decoder
        models = decoder.fusion.rows(len(logits), logits.device)
        place = int(models.states[0, 0]) - int(lm.starts[0])  # of the automaton, where it lies beside others
        states = models.states.clone()
        states[:, 0] = place + (int(lm.starts[0]) if search.start is None else search.start)
        stream = BeamStream(decoder, models._replace(states=states), logits.device)
        stream.add_checked(logits, lengths)
        if self._fused is not None and not decoder.score_eos:
            ends = self._fused.word_end_scores(lm, (stream.state.lm_states[..., 0] - place).to(lm.device)).to(logits.device)
            stream.state = stream.state._replace(fused=stream.state.fused + ends)
        return stream.hypotheses()

    def _without_same_history(self, transcripts: list[Transcript]) -> list[Transcript]:
        language_model = self._language_model
        seen_by_lm = max(1, (1 if language_model is None else language_model.order) - 1)
        best = {tuple(transcript.text.split()[-seen_by_lm:]): transcript for transcript in reversed(transcripts)}
        return sorted(best.values(), key=lambda transcript: -transcript.lm_score)


class _Search(NamedTuple):
    """What a call asks for, checked."""

    decoder: CTCDecoder
    lm: NGramLM | None
    beam_width: int
    threshold: float
    token_min_logp: float
    start: int | None


def build_ctcdecoder(
    labels: Sequence[str],
    kenlm_model_path: str | os.PathLike[str] | None = None,
    unigrams: Collection[str] | None = None,
    alpha: float = DEFAULT_ALPHA,
    beta: float = DEFAULT_BETA,
    unk_score_offset: float = DEFAULT_UNK_LOGP_OFFSET,
    lm_score_boundary: bool = DEFAULT_SCORE_LM_BOUNDARY,
    *,
    tokenizer: Any = None,
    case: str = "auto",
) -> BeamSearchDecoderCTC:
    """Make a decoder, as pyctcdecode's function of this name does.

    Args:
        labels: of the classes of the outputs, see `Alphabet.build_alphabet`.
        kenlm_model_path: an ARPA file (also .gz, .bz2, .xz) or a binary of KenLM, over words; None decodes without.
        unigrams: words that are known; all of the file's if left out, also of a binary.
        alpha: weight of the language model.
        beta: natural log, added for each word.
        unk_score_offset: log10, added to the log-probability of unknown words.
        lm_score_boundary: whether `<s>` and `</s>` count.
        tokenizer, case: not in pyctcdecode, see `BeamSearchDecoderCTC`.

    Raises:
        ValueError: labels that can't be, numbers that aren't finite.
        NGramFormatError: a damaged file, a binary without words and no unigrams, or words that the labels don't write.
    """
    alphabet = Alphabet.build_alphabet(labels)
    language_model = None
    if kenlm_model_path is not None:
        language_model = LanguageModel(kenlm_model_path, unigrams, alpha, beta, unk_score_offset, lm_score_boundary)
    return BeamSearchDecoderCTC(alphabet, language_model, tokenizer, case)


def _booster(words: tuple[str, ...], weight: float, tokenizer: Any, has_words: bool, vocab_size: int | None) -> PhraseBooster:
    """Words that earn a weight each when they are complete, and their share of it letter by letter until then."""
    return PhraseBooster(
        list(words), tokenizer, weight, "phrase", whole_words=has_words, case="keep", tokenizations=CUTTINGS,
        vocab_size=vocab_size,
    )  # fmt: skip
