"""Define Seq2SeqNGramPipeline, which adds a language model for encoder-decoders to Transformers' pipeline."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from torch import Tensor
from transformers import AutomaticSpeechRecognitionPipeline, GenerationConfig

from ..common.checks import check, refuse_idle
from ..decoding import guard
from ..decoding.calibration import confidence_for
from ..decoding.families import is_seq2seq
from ..decoding.options import KINDS, AttentionOptions
from ..decoding.understanding import Weighing
from ..generation import NGramLogitsProcessor
from ..generation.forced import OwnScores
from ..generation.grammars import Beginning, GeneratedGrammar, of_rows
from ..generation.logits_processor import LM_WEIGHT
from ..generation.second_pass import OF_RESCORER, SecondPass
from ..generation.seq2seq import seq2seq_generate
from ..generation.seq2seq.strategy import unsupported
from ..generation.transcripts import ends_of, no_timestamps_of
from ..generation.word_confidence import measured
from ..grammar.grammar import Grammar
from ..rescoring import load_rescorer
from ..text.words import WordSplitter
from .base import OF_LOOKS, NGramPipeline, of_recordings
from .encoding import encoder_outputs_of, encoder_returns
from .guarded import limit, lms_of, unsuited, without_lms
from .looks import GeneratedLooks
from .parts import rejoined, rows_of
from .per_item import numbers_in
from .word_times import joined, timed_words

SHORT = 8.0  # seconds; longer recordings may hold several sentences


class Seq2SeqNGramPipeline(NGramPipeline):
    """Recognise speech with encoder-decoders (Whisper, Canary, Moonshine and others) and an n-gram language model.

    This class extends Transformers' pipeline, the *stock pipeline*. With `lm` or `phrases`, `generate` gets an
    `NGramLogitsProcessor`. The stock pipeline handles everything else: settings of `generate` such as `num_beams` (5, or the
    number in the model's generation config), long audio, and Whisper's `return_timestamps`. `num_beams="auto"` is 2.

    With a language model, `length_penalty` is 0 for the beams of recordings of up to 8 s, because scores that are divided by
    their lengths prefer transcripts that repeat likely words. Longer recordings may hold several sentences, and without the
    division the last sentences would be lost. A `length_penalty` in the call, or a value other than 1 in the model's generation
    config, has priority.

    `return_timestamps="word"` also works with encoder-decoders other than Whisper; the times come from cross-attention (see
    `hf_ngpulm.generation.alignment`). Each word of chunked long audio (`chunk_length_s`) then occurs once, from the chunk that
    contains its middle. Without times, the stock pipeline repeats the words in the overlaps of chunks.

    Besides the arguments of all families (see `NGramPipeline`), `pipeline(...)` and calls take:

    Args:
        ilm_weight, prompt_context, unscored, score_eos, engine: as for `hf_ngpulm.NGramLogitsProcessor`.
        lm_guard: "auto" (default) decodes a recording with an improbable transcript again without the LM. The new transcript is
            kept if the decoder alone finds it much more probable. A number is the least evidence of the LM, in nats per token
            (see `hf_ngpulm.decoding.guard`). "off" never decodes again. The guard applies only to recordings of one window, and
            not with a second look at phrases.

    With `confidence`, results have `words` with a `text` and a `confidence` each. The confidence is the decoder's own, without
    the language model ("max_prob": the probability of the word's least probable token). Recordings must then fit into one
    window, without chunks. With `return_timestamps="word"` (not for Whisper) chunks have a `confidence`, too.

    `rescorer` reranks the beams of `generate`; for Whisper, the beams of each window. With `rescorer_every="word"` the rescorer
    takes part in the search.
    """

    serves = staticmethod(is_seq2seq)
    settings = (
        *NGramPipeline.settings, "false_alarms_per_hour", "thresholds", "ilm_weight", "source_lm", "source_weight",
        "prompt_context", "unscored", "score_eos", "lm_guard", "engine", "confidence", *OF_RESCORER,
    )  # fmt: skip
    of_an_lm = NGramPipeline.of_an_lm | {"ilm_weight", "unscored", "score_eos", "lm_guard"}

    writes_aliases = False

    _of_rescorer: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = _settled(kwargs)
        self._search = _beams_in(kwargs)
        self._length_penalty = {**(kwargs.get("generate_kwargs") or {}), **kwargs}.get("length_penalty")
        super().__init__(model, *args, **kwargs)

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        kwargs = _settled(kwargs)
        given = {name: kwargs.pop(name) for name in OF_RESCORER if name in kwargs}
        confidence = {name: confidence_for(self.model, kwargs.pop(name)) for name in ("confidence",) if name in kwargs}
        for value in confidence.values():
            check("confidence", value, KINDS["confidence"])
        parameters = self._parameters(kwargs)
        parameters[1].update(confidence)
        if given:
            constructing = not hasattr(self, "_forward_params")
            kept = {} if constructing or given.get("rescorer", True) is None else self._of_rescorer
            settings = {**kept, **given}
            if settings.get("rescorer") is not None:
                settings["rescorer"] = load_rescorer(settings["rescorer"], self.device)
            second_pass = SecondPass.of(**settings)
            if constructing:
                self._of_rescorer = {**given, "rescorer": second_pass and second_pass.rescorer}
            parameters[1]["second_pass"] = second_pass
        return parameters

    def _parameters(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if self.type != "seq2seq" or "return_timestamps" not in kwargs:  # the stock pipeline has Whisper's timestamps
            return super()._sanitize_parameters(**kwargs)
        timestamps, name = kwargs.pop("return_timestamps"), type(self.model).__name__
        if timestamps and not self.model.config.is_encoder_decoder:
            raise ValueError(
                f"return_timestamps={timestamps!r}: {name} has no cross-attention to compute word times from; use a CTC model, "
                "a transducer, or an encoder-decoder such as Whisper or Canary"
            )
        if timestamps and timestamps != "word":
            raise ValueError(f"return_timestamps={timestamps!r}: {name} only supports 'word'")
        parameters = super()._sanitize_parameters(**kwargs)
        for part in parameters[1:]:
            part["word_times"] = bool(timestamps)
        return parameters

    def _search_given(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return _beams_in(kwargs)

    def _of_generation(self, tuned: dict[str, Any]) -> dict[str, Any]:
        return {"tuned_beams": tuned.pop("num_beams", None)}

    def _make_decoder(self, settings: dict[str, Any]) -> NGramLogitsProcessor:
        settings = {"lm_weight": LM_WEIGHT, "lm_guard": guard.AUTO, **settings}  # tuned settings are among them
        weight, lm_guard = settings.pop("lm_weight"), check("lm_guard", settings.pop("lm_guard"), KINDS["lm_guard"])
        made = NGramLogitsProcessor(weight=weight, **settings, model=self.model, tokenizer=self.tokenizer)
        made.lm_guard = lm_guard
        return made

    def _in_grammar(
        self, settings: dict[str, Any], given: dict[str, Any], grammar: Grammar, weighing: dict[str, Any]
    ) -> GeneratedGrammar:
        decoder = self._ngram_decoder(settings, given)
        return GeneratedGrammar(decoder, grammar, Weighing(**weighing), self.model, self.tokenizer)

    def _looking(self, decoder: NGramLogitsProcessor, phrases: Any, phrase_weight: Any, look: dict[str, Any]) -> GeneratedLooks:
        rate, explain, thresholds = (look[name] for name in OF_LOOKS)
        return GeneratedLooks(decoder, phrases, phrase_weight, rate, explain, self.model, self.tokenizer, thresholds)

    # The stock parameters are unchanged. `ngram_decoder` goes to `_forward`, which generates.

    def preprocess(self, inputs: Any, *args: Any, ngram_decoder: Any = None, **kwargs: Any) -> Iterator[dict[str, Any]]:
        for piece in self._pieces(inputs, *args, **kwargs):
            yield self._turned(piece)

    def _forward(
        self,
        model_inputs: dict[str, Any],
        ngram_decoder: Any = None,
        tuned_beams: int | None = None,
        word_times: bool = False,
        second_pass: SecondPass | None = None,
        confidence: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        if second_pass is not None:
            grammar = ngram_decoder if isinstance(ngram_decoder, GeneratedGrammar) else None
            refuse_idle({"grammar=": grammar}, "can't be combined with rescorer=; leave one of them out")
            kwargs |= second_pass.settings
        recordings = numbers_in(self._turned(model_inputs))
        if tuned_beams is not None:
            kwargs["num_beams"] = tuned_beams
        if second_pass is not None or (ngram_decoder is not None and self.may_step(kwargs)):
            kwargs = {"custom_generate": seq2seq_generate, "processor": self.tokenizer, "lm": False, **kwargs}
        if isinstance(ngram_decoder, GeneratedGrammar):
            refuse_idle({"confidence=": confidence}, "can't be combined with grammar=; leave one of them out")
            return self._understood(of_recordings(ngram_decoder, recordings), model_inputs, word_times, kwargs)
        if ngram_decoder is None:
            if confidence is None:
                return self._generated(model_inputs, word_times, kwargs)
            return self._measured(self._generated, confidence, model_inputs, word_times, kwargs)
        processor = of_recordings(ngram_decoder, recordings)
        count = len(model_inputs[self._given_as(model_inputs)])
        by_sums = [False] * count
        if self._leaves_ranking(kwargs):
            short = [seconds <= SHORT for seconds in self._seconds(model_inputs)]
            fused = processor.processor if isinstance(processor, GeneratedLooks) else processor
            by_sums = [one and lm is not None for one, lm in zip(short, lms_of(fused, count), strict=True)]
        parts = [rows for kind in (False, True) if (rows := [row for row in range(count) if by_sums[row] is kind])]
        outs = []
        for rows in parts:
            ranking = {"length_penalty": 0.0} if by_sums[rows[0]] else {}
            mine, inputs = (
                (processor, model_inputs) if len(parts) == 1 else (processor.select(rows), self._rows(model_inputs, rows))
            )
            run: Any = partial(self._looked if isinstance(mine, GeneratedLooks) else self._guarded, mine, ranking)
            run = run if confidence is None else partial(self._measured, run, confidence)
            outs.append(run(inputs, word_times, _of_rows(kwargs, rows)))
        return outs[0] if len(outs) == 1 else rejoined(outs, parts, self.tokenizer)

    def _measured(
        self, run: Callable[..., dict[str, Any]], confidence: Any, model_inputs: dict[str, Any], word_times: bool,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Return the outputs of `run` for a batch. The entry `measured` has the transcripts, whose words have confidences.

        `run`: function that takes the model's inputs, `word_times` and `kwargs`, the arguments of `generate`. `confidence`: a
        measure or a `Calibration`.
        """
        if not self.model.config.is_encoder_decoder:
            raise ValueError(f"confidence= needs an encoder-decoder; leave it out with {type(self.model).__name__}")
        given = self._given_as(model_inputs)
        is_whisper, count = self.type == "seq2seq_whisper", len(model_inputs[given])
        is_long = is_whisper and model_inputs[given].shape[-1] > cast(Any, self.feature_extractor).nb_max_frames
        if is_long or "stride" in model_inputs or (is_whisper and kwargs.get("return_timestamps")):
            raise ValueError(
                "confidence= needs recordings that fit into one window: cut longer ones, and leave out chunk_length_s and "
                "Whisper's return_timestamps"
            )
        # Timestamps are forbidden: after one, Whisper would decode another window.
        beginning, mask = Beginning(no_timestamps_of(self.model)), model_inputs.get("attention_mask")
        with encoder_outputs_of(self.model) as encoded:
            every = [beginning, *(kwargs.get("logits_processor") or ())]
            out = run(dict(model_inputs), word_times, {**kwargs, "logits_processor": every})
        if len(out["tokens"]) != count:
            raise ValueError("confidence= supports one transcript per recording; leave num_return_sequences out")
        prompts = beginning.prompts_of(count)
        outputs, splitter = of_rows(encoded[0], count), WordSplitter(self.tokenizer)
        transcripts = measured(self.model, outputs, mask, prompts, out["tokens"], splitter, confidence)
        forms = [best.forms for best in out["looked"]] if "looked" in out else [None] * count
        return {**out, "measured": [each.written(own) if own else each for each, own in zip(transcripts, forms)]}

    def _guarded(
        self, processor: NGramLogitsProcessor, ranking: dict[str, Any], model_inputs: dict[str, Any], word_times: bool,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Return a batch's outputs. If the LM doesn't suit a recording, decode it again without the LM (see `.guarded`).

        `ranking`: settings of `generate` for recordings with a language model.
        """

        def generate(inputs: dict[str, Any], *processors: Any, **ranking: Any) -> dict[str, Any]:
            every = [*(kwargs.get("logits_processor") or ()), *processors]
            return self._generated(inputs, word_times, {**kwargs, **ranking, "logits_processor": every})

        count, lm_guard = len(model_inputs[self._given_as(model_inputs)]), processor.lm_guard
        guarded = [row for row, lm in enumerate(lms_of(processor, count)) if lm is not None]
        if lm_guard == guard.OFF or not guarded or not self.model.config.is_encoder_decoder:
            return generate(model_inputs, processor, **ranking)
        beginning = Beginning(None)
        with encoder_outputs_of(self.model) as encoded:
            out = generate(dict(model_inputs), beginning, processor, **ranking)
        if len(encoded) != 1 or len(out["tokens"]) != count:  # several windows of audio, or several transcripts of each
            return out
        splitter, mask = WordSplitter(self.tokenizer), model_inputs.get("attention_mask")
        outputs, end = of_rows(encoded[0], count), min(ends_of(self.model))
        own = OwnScores(self.model, outputs, mask, beginning.prompts_of(count), end, splitter)
        if isinstance(lm_guard, str):
            first = dict(zip(guarded, own(out["tokens"][guarded], guarded)))
            rows = [row for row, (score, tokens) in first.items() if score < -limit(tokens)]  # the best score is 0
        else:
            rows = unsuited(processor, out["tokens"], lm_guard, splitter)
        if not rows:
            return out
        with encoder_returns(self.model, own.outputs_of(rows)):
            again = generate(self._rows(model_inputs, rows), without_lms(processor.select(rows)), **_of_rows(kwargs, rows))
        if isinstance(lm_guard, str):
            gains = [score - first[row][0] for row, (score, _) in zip(rows, own(again["tokens"], rows))]
            kept = [row if gain > limit(first[row][1]) else -1 for row, gain in zip(rows, gains)]
        else:
            kept = rows
        return rejoined([out, again], [range(count), kept], self.tokenizer)

    def settled_config(self, kwargs: dict[str, Any]) -> GenerationConfig:
        """Return a copy of the generation config that a call of `generate` has."""
        prepare = getattr(self, "_prepare_generate_kwargs", None)  # from Transformers 5.23 on
        settings = prepare(dict(kwargs)) if prepare else {"generation_config": cast(Any, self).generation_config, **kwargs}
        config = copy.copy(settings.get("generation_config") or self.model.generation_config)
        for name in vars(config).keys() & settings.keys():
            setattr(config, name, settings[name])
        return config

    def may_step(self, kwargs: dict[str, Any]) -> bool:
        """Return whether `seq2seq_generate` can do the search of `generate`. It copies much less memory for the beams."""
        if kwargs.get("custom_generate") is not None or kwargs.get("streamer") is not None:
            return False
        others = kwargs.get("assistant_model"), bool(kwargs.get("synced_gpus"))
        return unsupported(self.model, self.settled_config(kwargs), *others) is None

    def _leaves_ranking(self, kwargs: dict[str, Any]) -> bool:
        """Return whether the search has beams, and neither the call nor the model's config sets a `length_penalty`."""
        if self._length_penalty is not None or kwargs.get("length_penalty") is not None:
            return False
        config = self.settled_config(kwargs)
        return (config.num_beams or 1) > 1 and getattr(config, "length_penalty", None) in (None, 1.0)

    def _seconds(self, model_inputs: dict[str, Any]) -> list[float]:
        """Return the durations of a batch's recordings."""
        inputs, mask = model_inputs[self._given_as(model_inputs)], model_inputs.get("attention_mask")
        extractor, axis = cast(Any, self.feature_extractor), -1 if self.type == "seq2seq_whisper" else 1
        step = extractor.hop_length / extractor.sampling_rate if self.type == "seq2seq_whisper" else self._step_seconds
        steps = [inputs.shape[axis]] * len(inputs) if mask is None else mask.sum(1).tolist()
        return [step * each for each in steps]

    def _rows(self, model_inputs: dict[str, Any], rows: list[int]) -> dict[str, Any]:
        """Return the inputs of some recordings of a batch."""
        inputs = rows_of(model_inputs, rows)
        if len(rows) == 1 and self.type == "seq2seq_whisper" and inputs.get("attention_mask") is not None:
            # Whisper reads the mask of several recordings, but decodes all frames of a single one.
            length = max(int(inputs["attention_mask"].sum()), cast(Any, self.feature_extractor).nb_max_frames)
            inputs |= {name: inputs[name][..., :length] for name in ("input_features", "attention_mask")}
        return inputs

    def _generated(self, model_inputs: dict[str, Any], word_times: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the stock pipeline's outputs for a batch; with `word_times`, also words with times."""
        if not word_times:
            return AutomaticSpeechRecognitionPipeline._forward(self, model_inputs, **kwargs)
        mask, stride = (model_inputs.get(name) for name in ("attention_mask", "stride"))
        rows, length = model_inputs[self._given_as(model_inputs)].shape[:2]
        with encoder_outputs_of(self.model) as encoded:
            out = AutomaticSpeechRecognitionPipeline._forward(self, model_inputs, **kwargs)
        if len(out["tokens"]) != rows:
            raise ValueError("return_timestamps supports one transcript per recording; leave num_return_sequences out")
        splitter = WordSplitter(self.tokenizer)
        words = timed_words(self.model, splitter, encoded[-1], mask, length, out["tokens"], self._step_seconds)
        return {**out, "words": words, "stride": stride}

    def _understood(
        self, grammar: GeneratedGrammar, model_inputs: dict[str, Any], word_times: bool, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a batch's outputs, with the meanings of its recordings as `understandings`."""
        generate, encoded, last = self._generating("grammar=", model_inputs, word_times, kwargs)
        understandings, *_ = grammar.understood(generate, encoded, model_inputs.get("attention_mask"))
        return {**last, "understandings": understandings}

    def _looked(
        self, looks: GeneratedLooks, ranking: dict[str, Any], model_inputs: dict[str, Any], word_times: bool,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Return a batch's outputs, with the hypotheses of its recordings as `looked`. `ranking`: settings of `generate` for
        recordings with a language model.
        """
        kwargs = {**kwargs, **ranking}
        generate, encoded, last = self._generating("a second look at phrases", model_inputs, word_times, kwargs)
        tokens, hypotheses = looks.looked(generate, encoded, model_inputs.get("attention_mask"))
        return {**last, "tokens": tokens, "looked": hypotheses}

    def _generating(self, what: str, model_inputs: dict[str, Any], word_times: bool, kwargs: dict[str, Any]) -> Any:
        """Return three values. The first is a function from logits processors to the tokens of a batch. The second is a
        function that returns the encoder's outputs after the first function has run. The third is a dictionary with the last
        outputs of the first function. The encoder runs once for all calls.

        `what`: the feature's name in error messages.
        """
        if word_times or kwargs.get("return_timestamps") or "stride" in model_inputs:
            raise ValueError(f"{what} needs whole recordings without times: leave out return_timestamps and chunk_length_s")
        count, last, outputs = len(model_inputs[self._given_as(model_inputs)]), dict[str, Any](), list[Any]()

        def generate(processors: list[Any]) -> Any:
            every = [*(kwargs.get("logits_processor") or ()), *processors]
            with encoder_returns(self.model, outputs[0]) if outputs else encoder_outputs_of(self.model) as encoded:
                out = AutomaticSpeechRecognitionPipeline._forward(
                    self, dict(model_inputs), **{**kwargs, "logits_processor": every}
                )
            if encoded:
                outputs.append(of_rows(encoded[0], count))
            last.update(out)
            return out["tokens"]

        return generate, lambda: outputs[0], last

    def _given_as(self, inputs: Any) -> str:
        return next(name for name in ("input_features", "input_values") if name in inputs)

    @cached_property
    def _step_seconds(self) -> float:
        """Return the duration, in seconds, of a step of the encoder's input: a sample, or a step of the feature extractor."""
        extract = cast(Any, self.feature_extractor)
        rate, seconds = extract.sampling_rate, (4, 8)
        given = [extract(np.zeros(rate * each, np.float32), sampling_rate=rate, return_tensors="pt") for each in seconds]
        lengths = [inputs[self._given_as(inputs)].shape[1] for inputs in given]
        return (seconds[1] - seconds[0]) / (lengths[1] - lengths[0])

    def _turned(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        """Transpose Whisper's features. Batches are padded along the second axis, so the second axis must be time."""
        if self.type == "seq2seq_whisper":
            model_inputs["input_features"] = model_inputs["input_features"].transpose(1, 2).contiguous()
        return model_inputs

    def postprocess(
        self, model_outputs: Sequence[dict[str, Any]], ngram_decoder: Any = None, word_times: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Return a recording's result; see the class."""
        words = [_only(output.pop("measured")).words for output in model_outputs if "measured" in output]
        result = self._postprocessed(model_outputs, ngram_decoder, word_times, **kwargs)
        if words and word_times:
            for chunk, word in zip(result["chunks"], words[0], strict=True):
                chunk["confidence"] = word.confidence
        elif words:
            result["words"] = [{"text": word.text, "confidence": word.confidence} for word in words[0]]
        return result

    def _postprocessed(
        self, model_outputs: Sequence[dict[str, Any]], ngram_decoder: Any, word_times: bool, **kwargs: Any
    ) -> dict[str, Any]:
        if isinstance(ngram_decoder, GeneratedGrammar):
            (output,) = model_outputs
            understanding = _only(output.pop("understandings"))
            result = AutomaticSpeechRecognitionPipeline.postprocess(self, model_outputs, **kwargs)
            return {**result, **understanding.as_dict()}
        if isinstance(ngram_decoder, GeneratedLooks):
            (output,) = model_outputs
            best = _only(output.pop("looked"))
            result = AutomaticSpeechRecognitionPipeline.postprocess(self, model_outputs, **kwargs)
            if best.forms:
                result["text"] = best.forms.written(result["text"])
            return {**result, "phrases": [report.as_dict() for report in best.phrases]} if ngram_decoder.explain else result
        if not word_times:
            return AutomaticSpeechRecognitionPipeline.postprocess(self, model_outputs, **kwargs)
        pieces = []
        for output in model_outputs:
            words, stride = output.pop("words"), output.pop("stride")
            batch_of_one = bool(words) and isinstance(words[0], list)  # the stock pipeline doesn't unpack it
            pieces.append((words[0] if batch_of_one else words, stride[0] if isinstance(stride, list) else stride))
        result = AutomaticSpeechRecognitionPipeline.postprocess(self, model_outputs, **kwargs)
        timed = joined(pieces, cast(Any, self.feature_extractor).sampling_rate)
        if len(pieces) > 1:  # the stock pipeline would repeat the overlaps of chunks
            result["text"] = cast(Any, self.tokenizer).decode([token for word in timed for token in word.token_ids])
        result["chunks"] = [{"text": word.text, "timestamp": (word.start, word.end)} for word in timed]
        return result


def _only(value: Any) -> Any:
    """Return a recording's value. If the pipeline hasn't unpacked the batch, return the first element of the list `value`."""
    return value[0] if isinstance(value, list) else value


def _settled(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments in which a number replaces `num_beams="auto"`. Raises ValueError if `num_beams` is another text."""
    if isinstance(kwargs.get("generate_kwargs"), dict):
        kwargs = {**kwargs, "generate_kwargs": _settled(kwargs["generate_kwargs"])}
    kwargs = AttentionOptions.settled(kwargs)
    if isinstance(kwargs.get("num_beams"), str):
        check("num_beams", kwargs["num_beams"], KINDS["num_beams"])
    return kwargs


def _of_rows(kwargs: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    """Return settings for some recordings. The rescorer's settings may be tensors with a value per recording."""
    return {name: value[rows] if name in OF_RESCORER and isinstance(value, Tensor) else value for name, value in kwargs.items()}


def _beams_in(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a dictionary with the setting `num_beams` for `generate`. If the setting isn't given, the dictionary is empty."""
    config = kwargs.get("generation_config")
    within = (kwargs.get("generate_kwargs") or {}).get("num_beams")
    found = [kwargs.get("num_beams"), within, getattr(config, "num_beams", None)]
    return next(({"num_beams": beams} for beams in found if beams is not None), {})
