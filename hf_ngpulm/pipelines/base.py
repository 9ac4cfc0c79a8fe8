"""Define the base class of the pipelines of all model families."""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AutomaticSpeechRecognitionPipeline
from transformers.pipelines.automatic_speech_recognition import rescale_stride

from ..common.checks import refuse_idle
from ..config.tuned import SETTINGS, with_remembered
from ..decoding.calibration import confidence_for
from ..decoding.families import encoded, frame_lengths, takes_one_channel, usual
from ..decoding.hypotheses import Hypothesis
from ..decoding.options import Options
from ..decoding.second_look import PhraseDecoder
from ..decoding.thresholds import thresholds_for
from ..decoding.understanding import GrammarDecoder
from ..grammar.grammar import Grammar
from ..language_model.loading import configured_lm, loaded_models, located
from ..phrases.contexts import has_thresholds
from ..rescoring import load_rescorer
from .corrected import taught, with_log
from .inputs import readable
from .keywords import refuse_unknown, with_our_names
from .per_item import RECORDING, Numbered, NumberedInputs, listed_values, numbered, numbers_in
from .precision import in_single_precision
from .results import result_of
from .saving import save_settings

NO_PHRASES: list[str] = []
OF_LOOKS = ("false_alarms_per_hour", "explain", "thresholds")
OF_GRAMMARS = ("grammar", "grammar_mode", "sensitivity")
logger = logging.getLogger(__name__)


class NGramPipeline(AutomaticSpeechRecognitionPipeline):
    """Recognise speech with Transformers' pipeline and a language model.

    The constructor returns an object of the class for the model's family. For a family without such a class, the pipeline
    decodes like Transformers' own pipeline, the *stock pipeline*, and refuses an LM. The default language model is named in the
    model's generation config (`ngram_lm`, `ngram_lm_weight`). `lm=None` decodes without a language model. Settings may be
    lists with a value per recording (see `hf_ngpulm.pipelines.per_item`).

    With a single `lm` and no `lm_weight`, the tuned settings that the LM's config has for the model apply: weights, and the
    search for which the weights were tuned (see `hf_ngpulm.config.tuned`). For CTC models an LM may also have its own defaults
    (`NGramLM.from_wav2vec2_with_lm`). An explicit setting overrides its tuned value; an explicit `lm_weight` overrides all
    tuned values.

    If `pipeline(...)` gets settings of this package and loads a half-precision model on a CPU, the model is converted to
    float32, because CPUs compute half precision more slowly. To prevent this, pass `dtype=torch.float16` or a model object.
    Without settings of this package, the precision and the results are the same as in the stock pipeline.

    All families take these arguments, in `pipeline(...)` and in a call (for that call only):

    Args:
        lm: an `NGramLM`; a Hub repo id or folder with an `NGramLM`, or with the LM of a `Wav2Vec2ProcessorWithLM`; or an ARPA
            (`.arpa`, `.arpa.gz`), KenLM (`.bin`) or NeMo (`.nemo`) file. None decodes without an LM. A list has one LM (or
            None) for each recording of the call.
        lm_weight: weight of the LM's log-probabilities; a list or a tensor has one weight per recording. The default is the
            weight in the LM's config that was tuned for the model, together with the other tuned settings. Without tuned
            settings it is the LM's own default, or else 0.8 (0.2 for encoder-decoders).
        source_lm: a language model of the recogniser's training text, given as for `lm`; its scores are subtracted.
        source_weight: weight of `source_lm`, half of `lm_weight` by default; a list or a tensor has one weight per recording.
        phrases: phrases to boost (hotwords): a list of texts or of pairs (text, weight), or a `hf_ngpulm.PhraseBooster`. For
            different phrases per recording, pass a list with such a value (or None) for each recording of the call.
        phrase_weight: factor of the phrases' bonuses (default 1); a list or a tensor has one factor per recording.
        corrections: a `hf_ngpulm.CorrectionLog`, or the path of its file, which must exist. Each call adds the phrases and the
            language model that the log has learned so far to `phrases` and `lm`.
        false_alarms_per_hour: approximate limit of wrong phrases per hour of speech. Each recognised phrase is checked in a
            second look (see `hf_ngpulm.PhraseDecoder`).
        thresholds: this model's thresholds for `false_alarms_per_hour`: a file that `hf-ngpulm tune --phrases` has written, or
            `hf_ngpulm.decoding.thresholds.Thresholds`. The default is fitted to the family of models.
        explain: whether results have explanations. With phrases, a result gets `phrases`: a report on each phrase. With a
            grammar, a result gets an `explanation`: the best readings and the free transcript, with their scores.
        rescorer: a causal language model that reranks all hypotheses of the beam: a Hub id, a folder, or a
            `hf_ngpulm.Rescorer`. With a rescorer `num_beams="auto"` means 8.
        rescorer_weight: weight of the rescorer's log-probabilities (default 0.3).
        word_bonus: bonus that rescoring adds for each word (default 0).
        rescorer_best: number of hypotheses that the rescorer reads, the best ones first (CTC models, transducers).
        rescorer_every: interval in seconds of audio at which the rescorer also ranks the hypotheses during the search, or
            "word" (see `hf_ngpulm.CTCDecoder`). Encoder-decoders take "word" only.
        num_return_sequences: number of transcripts, with their scores, in the list `hypotheses` of each result. With 1, results
            have no such list (CTC models and transducers).
        grammar: a `hf_ngpulm.Grammar`. Results then have `understood`, `intent`, `slots`, `confidence` and `free_text`.
        grammar_mode: "reject" (default), "strict", "soft" or "free", see `hf_ngpulm.decoding.understanding.GrammarDecoder`.
        sensitivity: from 0 to 1 (default 0.5): with `grammar_mode="reject"` an utterance is understood if its confidence is at
            least 1 - sensitivity.
        confidence: a measure of words' confidences (see `hf_ngpulm.search.confidence`). The chunks of `return_timestamps` then
            have a `confidence`, and results of encoder-decoders have `words`. With a
            `hf_ngpulm.search.confidence.Calibration`, or a file that `hf-ngpulm tune --word-confidence` has written, the
            confidence is the probability that the word is correct.

    Raises:
        ValueError: the length of a list isn't the number of recordings; a setting of language models is passed without a
            language model; or a setting is out of range.
        TokenizerMismatchError: the LM was made for another tokenizer.
    """

    # Names of the family's settings. With one of `reasons`, this class decodes instead of the stock pipeline.
    settings: ClassVar[tuple[str, ...]] = (
        "lm",
        "lm_weight",
        "phrases",
        "phrase_weight",
        "corrections",
        "explain",
        *OF_GRAMMARS,
    )
    reasons: ClassVar[tuple[str, ...]] = ("lm", "phrases")
    of_an_lm: ClassVar[frozenset[str]] = frozenset({"lm_weight", "source_lm", "source_weight"})
    takes_what_lms_come_with: ClassVar[bool] = False
    writes_aliases: ClassVar[bool] = True  # whether transcripts have a phrase's text in place of its alias
    # Settings whose names `generate` also uses, so that the stock pipeline would pass them on.
    shared_with_generation: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, model: Any = None, *args: Any, **kwargs: Any) -> NGramPipeline:
        if cls is NGramPipeline:
            cls = next((kind for kind in cls.families if kind.serves(model)), cls)
        return object.__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "serves" in vars(cls):
            NGramPipeline.families.append(cls)

    # The table of families: each class says which models it serves. The options of the classes' decoders define
    # `num_beams="auto"` (`hf_ngpulm.decoding.options.KNEES`).
    families: ClassVar[list[type[NGramPipeline]]] = []

    @staticmethod
    def serves(model: Any) -> bool:
        """Return whether the class can decode a model."""
        return False

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = with_our_names(kwargs)
        self._held = {name: kwargs.pop(name) for name in self.shared_with_generation if name in kwargs}
        lm, weight = configured_lm(getattr(model, "generation_config", None) or getattr(model, "config", None))
        if lm is not None and "lm" not in kwargs and type(self) is not NGramPipeline:
            kwargs["lm"] = located(lm, model)
            if weight is not None:
                kwargs.setdefault("lm_weight", weight)
        if kwargs.get("lm") is not None and kwargs.get("decoder") is not None:
            # If pyctcdecode is installed, `pipeline` makes a decoder for models whose repos have one.
            logger.warning("lm= replaces the decoder of pyctcdecode that the model's repo has")
            del kwargs["decoder"]
        super().__init__(model, *args, **kwargs)

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        kwargs = with_our_names(kwargs) | self.__dict__.pop("_held", {})
        given = {name: kwargs.pop(name) for name in self.settings if name in kwargs}
        unset = {name for name, value in given.items() if value is None and name in SETTINGS}  # None means the default
        search = self._search_given(kwargs)
        if isinstance(given.get("phrases"), Iterator):  # an iterator is exhausted after one call
            given["phrases"] = list(given["phrases"])
        # The stock pipeline accepts unknown names silently.
        of_others = {name for family in self.families for name in set(family.settings) - set(family.shared_with_generation)}
        foreign = sorted(kwargs.keys() & of_others)
        if foreign:
            raise ValueError(f"{', '.join(foreign)}: no settings for {type(self.model).__name__}; leave them out")
        if "custom_generate" not in kwargs:  # a custom strategy may have settings of its own
            refuse_unknown(kwargs, list(dict.fromkeys((*self.settings, "num_beams"))), self.model)
        preprocess, forward, postprocess = super()._sanitize_parameters(**kwargs)
        constructing = not hasattr(self, "_forward_params")
        learns = (self._ngram_settings or {}).get("corrections") is not None  # the log may have grown since the last call
        if given or learns or (search and self._ngram_settings) or (constructing and self._decodes_always):
            settings = _without({**(self._ngram_settings or {}), **given}, unset)
            given = _without(given, unset)
            if isinstance(settings.get("rescorer"), str | os.PathLike):
                settings["rescorer"] = load_rescorer(settings["rescorer"], self.device)
            settings = with_log(settings)
            lists = listed_values(settings)
            settings |= lists
            for name in {"lm", "source_lm"} & settings.keys():
                settings[name] = loaded_models(settings[name], self.tokenizer, self.device)
            if constructing:
                self._ngram_settings = settings
            settings = taught(settings, self.tokenizer, self.writes_aliases)
            given = {name: value for name, value in given.items() if name in settings}
            decodes = self._decodes_always or any(settings.get(name) is not None for name in self.reasons)
            if constructing and decodes:
                in_single_precision(self.model, self.device)
            tuned = self.remembered(settings, search)
            forward |= self._of_generation(tuned)
            decoder = self._understanding_decoder({**tuned, **settings}, given)
            for parameters in (preprocess, forward, postprocess):
                parameters["ngram_decoder"] = decoder
            idle = self.of_an_lm if settings.get("lm") is None else frozenset()
            idle |= {"phrase_weight"} if settings.get("phrases") is None else frozenset()
            preprocess["per_item"] = {name: len(values) for name, values in lists.items() if name not in idle}
        return preprocess, forward, postprocess

    def _search_given(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call that choose the search but aren't in `settings`: `num_beams`, if `generate` takes it.
        (`_search` has the constructor's arguments that choose the search.)
        """
        return {}

    def _of_generation(self, tuned: dict[str, Any]) -> dict[str, Any]:
        """Remove the settings for `generate` from the tuned settings, and return the removed settings."""
        return {}

    def remembered(self, settings: dict[str, Any], search: dict[str, Any]) -> dict[str, Any]:
        """Return the LM's tuned settings for this model and the requested search, without settings that are explicit."""
        given = {**dict.fromkeys((*self.settings, "num_beams")), **self._search, **search, **settings}
        found = with_remembered(settings.get("lm"), self.model, given, came_with=self.takes_what_lms_come_with)
        return {name: value for name, value in found.items() if given[name] is None and value is not None}

    def _understanding_decoder(self, settings: dict[str, Any], given: dict[str, Any]) -> Any:
        """Return the decoder for the pipeline's and a call's settings, with the grammar if there is one. `settings`: all
        settings. `given`: only the explicit settings, which may be refused.
        """
        grammar, mode, sensitivity = (settings.get(name) for name in OF_GRAMMARS)
        idle = sorted(name for name in OF_GRAMMARS[1:] if given.get(name) is not None)
        if grammar is None and idle:
            raise ValueError(f"{', '.join(idle)} given without grammar=; pass the grammar too")
        explain, ours = bool(settings.get("explain")), {*OF_GRAMMARS, *(() if grammar is None else ("explain",))}
        settings, given = ({k: v for k, v in part.items() if k not in ours} for part in (settings, given))
        if grammar is None:
            if given.get("explain") and settings.get("phrases") is None:
                raise ValueError("explain given without grammar= or phrases=; pass one of them too")
            return self._ngram_decoder(settings, given)
        refuse_idle({"rescorer=": settings.get("rescorer")}, "can't be combined with grammar=; leave one of them out")
        refuse_idle({OF_LOOKS[0]: settings.get(OF_LOOKS[0])}, "applies to phrases, not to a grammar; leave it out")
        if settings.get("phrases") is not None and has_thresholds(settings["phrases"]):
            raise ValueError("a phrase's threshold needs a second look, which a grammar doesn't have; leave the threshold out")
        if not isinstance(grammar, Grammar):
            raise TypeError(f"grammar should be a hf_ngpulm.Grammar (Grammar.load reads files), got {grammar!r}")
        weighing = {"mode": "reject" if mode is None else mode, "sensitivity": sensitivity, "explain": explain}
        return self._in_grammar(settings, given, grammar, weighing)

    def _in_grammar(self, settings: dict[str, Any], given: dict[str, Any], grammar: Grammar, weighing: dict[str, Any]) -> Any:
        """Return a decoder with a grammar. `weighing`: fields of `Weighing`. Other arguments: see `_understanding_decoder`."""
        decoder = self._ngram_decoder(settings, given)
        if decoder is None:
            decoder = self._made(_without(settings, self.of_an_lm))
        return GrammarDecoder(decoder, grammar, **weighing)

    def _ngram_decoder(self, settings: dict[str, Any], given: dict[str, Any]) -> Any:
        """Return the decoder without a grammar; None if the stock pipeline decodes. Arguments: see `_understanding_decoder`."""
        # A list of None only is allowed: no recording has an LM, and settings of LMs are dropped.
        none_each = isinstance(settings.get("lm"), list) and all(lm is None for lm in settings["lm"])
        if none_each:
            settings, given = _without(settings, {"lm"}), {}
        reasons = [name for name in self.reasons if settings.get(name) is not None]
        if settings.get("phrases") is None:
            named = [name for name in ("phrase_weight", *OF_LOOKS) if given.get(name)]
            if named:
                raise ValueError(f"{', '.join(named)} given without phrases=; pass the phrases too")
            of_phrases = {"phrase_weight", *OF_LOOKS}
            settings, given = _without(settings, of_phrases), _without(given, of_phrases)
        if settings.get("confidence") is not None:
            settings = {**settings, "confidence": confidence_for(self.model, settings["confidence"])}
        # If a call leaves out a model, the pipeline's weights of this model are dropped; the call's own weights are an error.
        for model, weights in (
            ("source_lm", {"source_weight"}),
            ("rescorer", {"rescorer_weight", "word_bonus", "rescorer_best", "rescorer_every"}),
        ):
            if settings.get(model) is None:
                left_out = {model} | (weights - given.keys())
                settings, given = _without(settings, left_out), _without(given, left_out)
        if settings.get("lm") is None and not (self._decodes_always and not given.keys() & self.of_an_lm):
            others = " or ".join(f"{name}=" for name in self.reasons if name != "confidence")
            for idle, missing in (
                (given.keys() & self.of_an_lm, "lm=; pass the language model"),
                (given.keys() - self.of_an_lm - set(self.reasons) if not reasons else set(), f"{others}; pass one of them"),
            ):
                if idle:
                    raise ValueError(f"{', '.join(sorted(idle))} given without {missing} too")
            settings = _without(settings, self.of_an_lm)
        if not reasons and not self._decodes_always:
            return None
        if self.type == "ctc_with_lm" or type(self) is NGramPipeline:
            kind = "a pyctcdecode decoder" if self.type == "ctc_with_lm" else type(self.model).__name__
            raise ValueError(
                f"{reasons[0]}= works with CTC models, transducers and encoder-decoders, but this pipeline decodes with {kind}"
            )
        look = {name: settings.pop(name) for name in OF_LOOKS if name in settings}
        phrases = [settings.pop(name) for name in ("phrases", "phrase_weight") if settings.get(name) is not None]
        if not phrases:
            return self._made(settings)
        if all(settings.get(name) is None for name in {"lm", *self.reasons} - {"phrases"}):
            settings["phrases"] = NO_PHRASES  # the decoder needs a reason to decode; `with_phrases` then sets the real phrases
        if look.get("thresholds") is not None and look.get(OF_LOOKS[0]) is None:
            raise ValueError("thresholds given without false_alarms_per_hour=; pass that too")
        if any(look.values()) or has_thresholds(phrases[0]):
            look = {
                "false_alarms_per_hour": look.get(OF_LOOKS[0]),
                "explain": bool(look.get("explain")),
                "thresholds": thresholds_for(self.model, look.get("thresholds")),
            }
            return self._looking(self._made(settings), phrases[0], phrases[1] if phrases[1:] else 1.0, look)
        return self._made(settings).with_phrases(*phrases)

    def _looking(self, decoder: Any, phrases: Any, phrase_weight: Any, look: dict[str, Any]) -> Any:
        """Return a decoder with a second look at phrases. `look`: the settings `OF_LOOKS`."""
        return PhraseDecoder(decoder, phrases, phrase_weight, **look)

    @property
    def _decodes_always(self) -> bool:
        """Return whether the stock pipeline can't decode the model."""
        return hasattr(self.model, "as_transducer") or takes_one_channel(self.model)

    def _made(self, settings: dict[str, Any]) -> Any:
        """Return the last decoder, with its cached phrases, if the settings are unchanged; otherwise make a new one."""
        last, decoder = self._last_made
        if last is None or last.keys() != settings.keys() or not all(_same(last[name], settings[name]) for name in last):
            decoder = self._make_decoder(settings)
            self._last_made = (dict(settings), decoder)
        return decoder

    # A pipeline without any of the settings never calls `_ngram_decoder`.
    _ngram_settings: dict[str, Any] | None = None
    _search: Mapping[str, Any] = MappingProxyType({})
    _last_made: tuple[dict[str, Any] | None, Any] = (None, None)

    def _make_decoder(self, settings: dict[str, Any]) -> Any:
        """Return the decoder of the model's family."""
        raise NotImplementedError

    def _frames(self, model_inputs: dict[str, Any], **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return the decoder's input for a batch, `[B, T, ...]`, and each row's number of frames, as `encoded` does."""
        attention_mask = model_inputs.pop("attention_mask", None)
        return encoded(self.model, model_inputs.pop(self.model.main_input_name), attention_mask, **kwargs)

    def _decode(self, decoder: Any, frames: Tensor, lengths: Tensor | None) -> list[list[Hypothesis]]:
        return decoder.decode(frames, lengths)

    @property
    def _frame_seconds(self) -> float:
        return self._samples_per_frame / cast(Any, self.feature_extractor).sampling_rate

    @property
    def _align_to(self) -> float:
        # Without a ratio in the config, the stock pipeline treats a frame as a sample. Its greedy results are kept that way.
        return self._samples_per_frame if self.type == "ctc_with_lm" else super()._align_to

    @cached_property
    def _samples_per_frame(self) -> float:
        # The stock `_align_to` doesn't know every model, and `hop_length` isn't every extractor's step (Granite stacks frames,
        # MCTCT means milliseconds). So the ratio is measured with the extractor and the model. The probe's length is divisible
        # by any extractor's step and any model's stride (2^12 x 3^2 x 5^2), and small enough for lengths in float32.
        probe = 921_600
        inputs = [self._input_length(samples) for samples in (probe // 16, probe // 8)]
        lengths = frame_lengths(self.model, 16 * (inputs[1] - inputs[0]) * torch.tensor([1, 2]))
        return super()._align_to if lengths is None else probe / int(lengths[1] - lengths[0])

    def _input_length(self, samples: int) -> int:
        """Return the length of the model's input for a number of samples."""
        extract = cast(Any, self.feature_extractor)
        tone = np.sin(np.arange(samples)).astype(np.float32)
        inputs = usual(extract(tone, sampling_rate=extract.sampling_rate, return_tensors="pt"))
        return inputs[self.model.main_input_name].shape[1]

    def frames(self, inputs: Iterable[Any], batch_size: int = 1, chunk_length_s: float | None = None) -> Iterator[Tensor]:
        """Yield the decoder's input for each recording, for decoding a recording several times (CTC models and transducers).

        Args:
            inputs: recordings, in any form that a call takes.
            batch_size: as for a call. (The padding in a batch affects the outputs of most models.)
            chunk_length_s: as for a call.

        Yields:
            Logits, or an encoder's projected frames, `[T, ...]` on the CPU, in the precision of the model.
        """
        itself = {"ngram_decoder": FramesThemselves()}
        params = ({**given, **itself} for given in (self._preprocess_params, self._forward_params, self._postprocess_params))
        preprocess, forward, postprocess = params
        preprocess.pop("per_item", None)
        if chunk_length_s is not None:
            preprocess["chunk_length_s"] = chunk_length_s
        for result in self.get_iterator((audio for audio in inputs), 0, batch_size, preprocess, forward, postprocess):
            yield result["frames"]

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save the stock pipeline's parts and the language model with its weight.

        `pipeline(task, model=save_directory)` loads the pipeline again. A warning names settings that can't be saved.

        Raises:
            ValueError: `push_to_hub` is set, which would upload the pipeline without the language model.
        """
        if kwargs.get("push_to_hub") and self._ngram_settings:
            raise ValueError("push_to_hub= wouldn't upload the language model: call push_to_hub(repo_id) of the pipeline")
        super().save_pretrained(save_directory, *args, **kwargs)
        save_settings(self._ngram_settings or {}, Path(save_directory))

    def get_iterator(
        self, inputs: Any, num_workers: int, batch_size: int, preprocess_params: dict[str, Any], *params: dict[str, Any]
    ) -> Any:
        # All kinds of inputs of a call come through here.
        preprocess_params = dict(preprocess_params)
        counts = preprocess_params.pop("per_item", None)
        if counts:
            inputs = NumberedInputs(inputs, counts)
        return super().get_iterator(inputs, num_workers, batch_size, preprocess_params, *params)

    def preprocess(
        self,
        inputs: Any,
        chunk_length_s: float = 0,
        stride_length_s: float | Sequence[float] | None = None,
        ngram_decoder: Any = None,
    ) -> Iterator[dict[str, Any]]:
        if ngram_decoder is not None and chunk_length_s:
            # Round to whole frames, so that chunks fit together without a gap.
            frame = self._samples_per_frame / cast(Any, self.feature_extractor).sampling_rate
            strides = chunk_length_s / 6 if stride_length_s is None else stride_length_s
            left, right = (strides, strides) if isinstance(strides, int | float) else strides
            chunk_length_s = max(round(chunk_length_s / frame), 1) * frame
            left, right = (round(seconds / frame) * frame for seconds in (left, right))
            stride_length_s = [left, right]
        yield from self._pieces(inputs, chunk_length_s, stride_length_s)

    def _pieces(self, inputs: Any, *args: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        """Yield a recording's model inputs from the stock pipeline. Convert recordings that the stock pipeline can't read."""
        audio, number = (inputs.audio, inputs.number) if isinstance(inputs, Numbered) else (inputs, None)
        audio = readable(audio, cast(Any, self.feature_extractor).sampling_rate)
        pieces = map(usual, AutomaticSpeechRecognitionPipeline.preprocess(self, audio, *args, **kwargs))
        return numbered(pieces, number)

    def _forward(self, model_inputs: dict[str, Any], ngram_decoder: Any = None, **kwargs: Any) -> dict[str, Any]:
        recordings = numbers_in(model_inputs)
        if ngram_decoder is None:
            return super()._forward(model_inputs, **kwargs)
        stride = model_inputs.pop("stride", None)
        is_last = model_inputs.pop("is_last")
        model_inputs.pop("num_frames", None)
        frames, lengths = self._frames(model_inputs, **kwargs)
        lengths = None if lengths is None else lengths.clamp(0, frames.shape[1])
        out: dict[str, Any] = {}
        if stride is None:
            out["hypotheses"] = self._decode(of_recordings(ngram_decoder, recordings), frames, lengths)
        else:  # chunks: `postprocess` decodes the frames of a whole recording
            ratio = 1 / self._samples_per_frame
            strides = rescale_stride([stride] if isinstance(stride, tuple) else stride, ratio)
            if lengths is not None:  # a chunk is padded beside longer ones, and because of rounding even within `total`
                ends = [min(total - right, length) for (total, _, right), length in zip(strides, lengths.tolist())]
                strides = [(end, left, 0) for (_, left, _), end in zip(strides, ends)]
            out["frames"] = frames
            out["stride"] = strides[0] if isinstance(stride, tuple) else strides
            if recordings is not None:
                out[RECORDING] = recordings[0] if isinstance(stride, tuple) else recordings
        return {"is_last": is_last, **out, **model_inputs}

    def postprocess(self, model_outputs: Sequence[dict[str, Any]], ngram_decoder: Any = None, **kwargs: Any) -> dict[str, Any]:
        if ngram_decoder is None:
            return super().postprocess(model_outputs, **kwargs)
        if "frames" in model_outputs[0]:
            pieces = []
            for output in model_outputs:
                total, left, right = output["stride"]
                pieces.append(output["frames"][:, left : total - right])
            decoder = of_recordings(ngram_decoder, numbers_in(model_outputs[0]))
            hypotheses: Any = self._decode(decoder, torch.cat(pieces, dim=1), None)
        else:
            hypotheses = model_outputs[0]["hypotheses"]
        if isinstance(hypotheses[0], list):  # the stock pipeline doesn't unpack a batch of one
            (hypotheses,) = hypotheses
        if isinstance(ngram_decoder, FramesThemselves):
            return {"frames": hypotheses[0]}
        result = result_of(ngram_decoder, hypotheses, kwargs.get("return_timestamps"))
        for output in model_outputs:  # the caller's entries besides the audio
            for name in output.keys() - {"is_last", "hypotheses", "frames", "stride", RECORDING}:
                result.setdefault(name, []).append(output[name])
        return result


def settings_of(options: type[Options]) -> list[str]:
    """Return the options of a decoder that a pipeline takes as settings. The pipeline sets the decoder's other options."""
    return [name for name in options.names() if name not in ("frame_seconds", "blank_id")]


class FramesThemselves:
    """Replace a decoder. The method `decode` returns the frames of each row instead of hypotheses."""

    def decode(self, frames: Tensor, lengths: Tensor | None) -> list[list[Tensor]]:
        ends = [frames.shape[1]] * len(frames) if lengths is None else lengths.tolist()
        return [[row[:end].clone()] for row, end in zip(frames, ends)]


def _without(settings: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, str | int | float) and type(a) is type(b) and a == b)


def of_recordings(decoder: Any, recordings: list[int] | None) -> Any:
    """Return the decoder for a batch of recordings; `recordings` is None if all have the same settings."""
    return decoder if recordings is None else decoder.select(recordings)
