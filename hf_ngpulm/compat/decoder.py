"""Define pyctcdecode's decoder, and the function that makes it."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..errors import NGramFormatError
from ..formats.wav2vec2 import constants
from ..formats.wav2vec2.alphabet import Alphabet, LabelTokenizer
from ..formats.wav2vec2.repository import ALPHABET_FILE, LM_FOLDER, download
from .beams import OutputBeam, OutputBeamMPSafe
from .language_model import HotwordScorer, LanguageModel, MultiLanguageModel
from .searching import CallSearch, Searches
from .weighed_lm import LMState, SpelledModel

__all__ = ["BeamSearchDecoderCTC", "OutputBeam", "OutputBeamMPSafe", "build_ctcdecoder"]

FOR_THE_BEST = 16  # number of best prefixes that are merged by text to find the best text


class BeamSearchDecoderCTC:
    """Decode with pyctcdecode's API on this package's engine, see `hf_ngpulm.compat`.

    The decoder can be pickled together with its language model.

    Args:
        alphabet: labels of the outputs.
        language_model: a word-level language model, several such models, or None.
        tokenizer: the recogniser's tokenizer. It spells the words. Without a tokenizer, words are spelled in labels. If these
            labels are pieces (`▁`), each word gets up to 16 spellings, namely those with the fewest pieces, because an
            uncertain recogniser mixes spellings.
        case: "lower" or "upper" changes the words of the language model before they are spelled, see
            `hf_ngpulm.lexicon.compose`.

    Attributes:
        model_container: the language models of all decoders. As in pyctcdecode, they stay until `cleanup` or
            `clear_class_models` is called.

    Raises:
        NGramFormatError: the labels can write the words of the language model only in another case.
        TypeError: the language model is of another class.
        ValueError: a weight of a language model isn't a finite number, or is too large.
    """

    model_container: ClassVar[dict[bytes, LanguageModel | MultiLanguageModel | None]] = {}

    _ALPHABET_SERIALIZED_FILENAME = ALPHABET_FILE
    _LANGUAGE_MODEL_SERIALIZED_DIRECTORY = LM_FOLDER
    _decoders: ClassVar[weakref.WeakSet[BeamSearchDecoderCTC]] = weakref.WeakSet()

    def __init__(
        self,
        alphabet: Alphabet,
        language_model: LanguageModel | MultiLanguageModel | None = None,
        tokenizer: Any = None,
        case: str = "auto",
    ) -> None:
        if not isinstance(language_model, LanguageModel | MultiLanguageModel | None):
            raise TypeError(
                "language_model should be a LanguageModel or a MultiLanguageModel of hf_ngpulm.compat (the search needs all of "
                f"its n-grams), got {type(language_model).__name__}"
            )
        self._alphabet = alphabet
        self._tokenizer = LabelTokenizer(alphabet) if tokenizer is None else tokenizer
        each = getattr(language_model, "language_models", [language_model] if language_model is not None else [])
        models = tuple(SpelledModel(lm, self._tokenizer, case) for lm in each)
        self._searches = Searches(alphabet, self._tokenizer, models)
        self._hold(language_model)

    def _hold(self, language_model: LanguageModel | MultiLanguageModel | None) -> None:
        """Store the language model in `model_container`, as pyctcdecode does."""
        self._model_key = secrets.token_bytes(16)
        self.model_container[self._model_key] = language_model
        self._decoders.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model_key": self._language_model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._hold(state["_model_key"])

    # -- decoding

    def decode(
        self,
        logits: Any,
        beam_width: int = constants.DEFAULT_BEAM_WIDTH,
        beam_prune_logp: float = constants.DEFAULT_PRUNE_LOGP,
        token_min_logp: float = constants.DEFAULT_MIN_TOKEN_LOGP,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = constants.DEFAULT_HOTWORD_WEIGHT,
        lm_start_state: LMState | None = None,
    ) -> str:
        """Return the best transcript. For the arguments see `decode_beams`."""
        scorer = HotwordScorer.build_scorer(hotwords, hotword_weight)
        search = self._search(beam_width, beam_prune_logp, token_min_logp, scorer, lm_start_state, FOR_THE_BEST)
        return search.transcripts([logits], most=1)[0][0].text

    def decode_beams(
        self,
        logits: Any,
        beam_width: int = constants.DEFAULT_BEAM_WIDTH,
        beam_prune_logp: float = constants.DEFAULT_PRUNE_LOGP,
        token_min_logp: float = constants.DEFAULT_MIN_TOKEN_LOGP,
        prune_history: bool = constants.DEFAULT_PRUNE_BEAMS,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = constants.DEFAULT_HOTWORD_WEIGHT,
        lm_start_state: LMState | None = None,
    ) -> list[OutputBeam]:
        """Return the best transcripts, best first; each text occurs once.

        Args:
            logits: `[T, C]`, numpy or torch on any device: logits, log-probabilities, or probabilities (rows that sum to one,
                without negative values).
            beam_width: number of prefixes that the search keeps (at most 1,024), and maximum number of transcripts returned.
            beam_prune_logp: natural log, at most 0. A prefix is dropped if its score minus the best prefix's score is below
                this value.
            token_min_logp: minimum log-probability of a label, natural log. The search ignores less likely labels, but always
                keeps the best label of each frame.
            prune_history: whether a transcript is dropped if a better transcript has the same last words. The compared words
                are as many as the language model's context.
            hotwords: texts with words to favour; every word of a text is a hotword. A single string is split into words, with a
                warning.
            hotword_weight: bonus of each hotword, natural log.
            lm_start_state: the preceding text's `last_lm_state`, from this decoder.

        Raises:
            InvalidLogitsError: the logits have another shape, or contain NaN or infinity.
            ValueError: an argument is out of range, or the state is from another decoder.
            TypeError: the state is of another class, such as `kenlm.State`.
        """
        scorer = HotwordScorer.build_scorer(hotwords, hotword_weight)
        search = self._search(beam_width, beam_prune_logp, token_min_logp, scorer, lm_start_state)
        (found,) = search.transcripts([logits])
        return self._without_same_history(found) if prune_history else found

    def decode_batch(
        self,
        pool: Any,
        logits_list: Iterable[Any],
        beam_width: int = constants.DEFAULT_BEAM_WIDTH,
        beam_prune_logp: float = constants.DEFAULT_PRUNE_LOGP,
        token_min_logp: float = constants.DEFAULT_MIN_TOKEN_LOGP,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = constants.DEFAULT_HOTWORD_WEIGHT,
    ) -> list[str]:
        """Return the best transcript of each utterance.

        Args:
            pool: ignored, because utterances are decoded together on torch's threads, without other processes.
            logits_list: the logits of each utterance, `[T, C]`, or a batch `[B, T, C]`. For the other arguments see
                `decode_beams`.
        """
        scorer = HotwordScorer.build_scorer(hotwords, hotword_weight)
        search = self._search(beam_width, beam_prune_logp, token_min_logp, scorer, prefixes=FOR_THE_BEST)
        return [found[0].text for found in search.transcripts(list(logits_list), most=1)]

    def decode_beams_batch(
        self,
        pool: Any,
        logits_list: Iterable[Any],
        beam_width: int = constants.DEFAULT_BEAM_WIDTH,
        beam_prune_logp: float = constants.DEFAULT_PRUNE_LOGP,
        token_min_logp: float = constants.DEFAULT_MIN_TOKEN_LOGP,
        prune_history: bool = constants.DEFAULT_PRUNE_BEAMS,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = constants.DEFAULT_HOTWORD_WEIGHT,
    ) -> list[list[OutputBeamMPSafe]]:
        """Return the best transcripts of each utterance. For the arguments see `decode_batch` and `decode_beams`."""
        scorer = HotwordScorer.build_scorer(hotwords, hotword_weight)
        search = self._search(beam_width, beam_prune_logp, token_min_logp, scorer)
        batch = search.transcripts(list(logits_list))
        if prune_history:
            batch = [self._without_same_history(found) for found in batch]
        return [[beam.get_mp_safe_beam() for beam in found] for found in batch]

    # -- parameters and files

    @property
    def _language_model(self) -> LanguageModel | MultiLanguageModel | None:
        if self._model_key not in self.model_container:
            raise RuntimeError("the decoder's language model was released (cleanup, clear_class_models); make a new decoder")
        return self.model_container[self._model_key]

    def reset_params(
        self,
        alpha: float | None = None,
        beta: float | None = None,
        unk_score_offset: float | None = None,
        lm_score_boundary: bool | None = None,
    ) -> None:
        """Change the language model's weights. A parameter that is None stays unchanged. No-op without a language model."""
        if self._language_model is not None:
            self._language_model.reset_params(
                alpha=alpha, beta=beta, unk_score_offset=unk_score_offset, score_boundary=lm_score_boundary
            )

    def cleanup(self) -> None:
        """Drop the language model; the decoder can't be used any more."""
        self.model_container.pop(self._model_key, None)
        self._searches = Searches(self._alphabet, self._tokenizer, ())

    @classmethod
    def clear_class_models(cls) -> None:
        """Drop the language models of all decoders."""
        for decoder in list(cls._decoders):
            decoder.cleanup()
        cls.model_container.clear()

    def save_to_dir(self, filepath: str | os.PathLike[str]) -> None:
        """Write `alphabet.json` to a folder. If there is a language model, also write the folder `language_model`. pyctcdecode
        can read both.
        """
        folder = Path(filepath)
        (folder / ALPHABET_FILE).write_text(self._alphabet.dumps(), encoding="utf-8")
        if self._language_model is not None:
            (folder / LM_FOLDER).mkdir()
            self._language_model.save_to_dir(folder / LM_FOLDER)

    @staticmethod
    def parse_directory_contents(filepath: str | os.PathLike[str]) -> dict[str, str | None]:
        """Return the paths of a decoder's files in a folder, by the names "alphabet" and "language_model". If the folder has no
        language model, the second path is None.

        Raises:
            NGramFormatError: the folder has no alphabet, or has other files beside the alphabet but no language model.
        """
        folder = Path(filepath)
        names = {path.name for path in folder.iterdir() if not path.name.startswith((".", "__"))}
        if ALPHABET_FILE not in names or (len(names) > 1 and LM_FOLDER not in names):
            raise NGramFormatError(
                f"{folder} should hold {ALPHABET_FILE}, and {LM_FOLDER} or nothing else; it holds {', '.join(sorted(names))}"
            )
        language_model = str(folder / LM_FOLDER) if LM_FOLDER in names else None
        return {"alphabet": str(folder / ALPHABET_FILE), "language_model": language_model}

    @classmethod
    def load_from_dir(cls, filepath: str | os.PathLike[str], unigram_encoding: str | None = None) -> BeamSearchDecoderCTC:
        """Read a folder written by `save_to_dir`, here or in pyctcdecode.

        Args:
            filepath: the folder.
            unigram_encoding: None or "utf-8"; convert `unigrams.txt` if it has another encoding.

        Raises:
            NGramFormatError: a file is missing or damaged.
            ValueError: the encoding isn't UTF-8.
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
        """Read a decoder from the Hub. Only the decoder's files are downloaded.

        Args:
            model_id: the repo.
            cache_dir: folder for downloads; by default the Hub's usual cache.
            kwargs: `revision`, `token`, `local_files_only`; `allow_patterns` is ignored.
        """
        kwargs.pop("allow_patterns", None)
        return cls.load_from_dir(download(model_id, cache_dir=cache_dir, **kwargs))

    def _search(self, *given: Any, **more: Any) -> CallSearch:
        """Return the search for a call. For the arguments see `Searches.search`."""
        self._language_model  # noqa: B018 - raises an error if the language model was released
        return self._searches.search(*given, **more)

    def _without_same_history(self, found: list[OutputBeam]) -> list[OutputBeam]:
        """Group the beams whose last N words are equal, and return each group's best beam. N is the context length of the
        language model.
        """
        language_model = self._language_model
        seen_by_lm = max(1, (1 if language_model is None else language_model.order) - 1)
        best = {tuple(beam.text.split()[-seen_by_lm:]): beam for beam in reversed(found)}
        return sorted(best.values(), key=lambda beam: -beam.lm_score)


def build_ctcdecoder(
    labels: Sequence[str],
    kenlm_model_path: str | os.PathLike[str] | None = None,
    unigrams: Collection[str] | None = None,
    alpha: float = constants.DEFAULT_ALPHA,
    beta: float = constants.DEFAULT_BETA,
    unk_score_offset: float = constants.DEFAULT_UNK_LOGP_OFFSET,
    lm_score_boundary: bool = constants.DEFAULT_SCORE_LM_BOUNDARY,
    *,
    tokenizer: Any = None,
    case: str = "auto",
) -> BeamSearchDecoderCTC:
    """Make a decoder, as pyctcdecode's `build_ctcdecoder` does.

    Args:
        labels: the label of each output class, see `Alphabet.build_alphabet`.
        kenlm_model_path: a word-level model in an ARPA file (also .gz, .bz2, .xz) or a binary of KenLM; None decodes without a
            language model.
        unigrams: the known words; by default all words of the file.
        alpha: weight of the language model.
        beta: score added for each word, natural log.
        unk_score_offset: log10, added to the log-probability of unknown words; minus infinity forbids them.
        lm_score_boundary: whether `<s>` and `</s>` are scored.
        tokenizer, case: arguments that pyctcdecode doesn't have, see `BeamSearchDecoderCTC`.

    Raises:
        ValueError: the labels are invalid, or a weight isn't a finite number.
        NGramFormatError: the file is damaged, a binary has no words and `unigrams` is None, or the labels can write the words
            only in another case.
    """
    alphabet = Alphabet.build_alphabet(labels)
    language_model = None
    if kenlm_model_path is not None:
        language_model = LanguageModel(kenlm_model_path, unigrams, alpha, beta, unk_score_offset, lm_score_boundary)
    return BeamSearchDecoderCTC(alphabet, language_model, tokenizer, case)
