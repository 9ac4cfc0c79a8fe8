"""Define `StreamingDecoder`, which decodes many streams online in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.batches import Outputs, tensor_of
from ..common.checks import WEIGHT, check, refuse_idle, whole
from ..common.shown import shown
from ..config.tuned import tell_once
from ..engines.devices import numbered
from ..errors import InvalidLogitsError, StreamError
from ..fusion.fusion import Fusion
from ..fusion.rows import Lease, RowModels
from ..grammar.compiled import CompiledGrammar
from ..grammar.grammar import Grammar
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..phrases import Booster
from ..phrases.contexts import is_any, is_per_row
from . import guard
from .ctc import CTCDecoder
from .grammar_streams import GrammarStreams
from .graph import GraphDecoder
from .hypotheses import Hypothesis
from .look_streams import LookContext, LookStreams, look_context
from .partials import Partial
from .sessions.session import Follower, Slots
from .stream_settings import DECODERS_LM, DECODERS_PHRASES, endpoint_of, lm_and_weight
from .thresholds import Thresholds
from .transducer import TransducerDecoder
from .understanding import Weighing

MOST_STREAMS = 1 << 16


class StreamingDecoder:
    """Decode many streams online. Each step takes chunks of frames and returns the transcript so far of each stream.

        stream = StreamingDecoder(decoder, max_streams=64)
        sid = stream.open()
        partials = stream.step({sid: chunk})  # any of the open streams, decoded as one batch; repeat
        hypotheses = stream.close(sid)

    `close` returns the same hypotheses as the decoder with `lm_guard="off"` for all frames of the stream at once. Chunk sizes
    and other streams don't change the result. The cost of a step doesn't grow with the age of a stream.

    `lm_guard` can't decode a stream's utterance again, because its frames aren't kept. Instead it judges each utterance that
    `reset` ends. If the language model didn't fit the latest utterances, the next one is decoded without the model (see
    `hf_ngpulm.decoding.guard`).

    Partials of ALSD lag behind the audio. All hypotheses have taken the same number of steps (tokens plus frames), so
    hypotheses with fewer tokens are at later frames. All hypotheses wait until the audio for the hypothesis at the latest frame
    has arrived. The lag, in frames, is the difference in tokens between the longest and the shortest hypothesis. In a TDT, the
    lag may be this difference times the longest duration. `close` and `reset` decode the remaining audio.

    A stream can take a second look at its phrases at the end of each utterance: `open(phrases=..., false_alarms_per_hour=...)`.
    `close` and `reset` then return the hypotheses of a `PhraseDecoder`. The frames of the utterance are kept until then.
    Partials have no phrases.

    A stream can follow a grammar: `open(grammar=...)`. The stream then returns the results of `GrammarDecoder`, and its
    partials are `hf_ngpulm.decoding.grammar_streams.PartialUnderstanding`s.

    Args:
        decoder: a `CTCDecoder` or `GraphDecoder`, whose chunks are logits `[T, C]`; or a `TransducerDecoder`, whose chunks are
            encoder frames `[T, D]` as its model's `encode` returns them. The search may be greedy or have a beam.
        max_streams: maximum number of open streams. The memory of all streams is allocated at once.
        endpoint_frames: `Partial.endpoint` is set when at least this number of frames has passed since the end of the last
            token. Before the first token, the endpoint is never set. None sets no endpoints. The caller reacts to the endpoint,
            for example with `reset` for a new utterance.
        endpoint_seconds: the same duration in seconds; the decoder must know `frame_seconds`.
        device: device of the chunks and of the search; a `GraphDecoder` always searches on the CPU. The default is the device
            of the transducer or language model, or the CPU if there is neither.
        dtype: type of a transducer's frames; the default is the model's type.

    Raises:
        TypeError: `decoder` is a decoder of another type.
        ValueError: an argument is out of range.
    """

    @torch.inference_mode()
    def __init__(
        self,
        decoder: CTCDecoder | GraphDecoder | TransducerDecoder,
        max_streams: int = 64,
        endpoint_frames: int | None = None,
        endpoint_seconds: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(decoder, CTCDecoder | GraphDecoder | TransducerDecoder):
            raise TypeError(
                f"decoder should be a CTCDecoder, a GraphDecoder or a TransducerDecoder, got {type(decoder).__name__}"
            )
        if isinstance(decoder, TransducerDecoder) and decoder.options.pause_seconds is not None:
            raise ValueError(
                "pause_seconds is for whole recordings; in streams pass endpoint_seconds, and call `reset` at an endpoint"
            )
        self.decoder = decoder
        self.max_streams = check("max_streams", max_streams, whole(1, MOST_STREAMS))
        self.endpoint_frames = endpoint_of(endpoint_frames, endpoint_seconds, decoder.frame_seconds)
        self._fusion: Fusion = decoder.fusion
        listed = isinstance(decoder.phrases, list) if isinstance(decoder, GraphDecoder) else is_per_row(self._fusion.phrases)
        if listed or isinstance(self._fusion.phrase_weight, Tensor):
            raise ValueError(
                "phrases or phrase_weight are listed per row of a batch, but streams have no rows; pass one value for all"
            )
        weights = list(decoder.model.parameters()) if isinstance(decoder, TransducerDecoder) else []
        devices = [*(weight.device for weight in weights), *(lm.device for lm in self._fusion.models)]
        self.device = numbered(device if device is not None else devices[0] if devices else "cpu")
        if not isinstance(decoder, TransducerDecoder) and dtype is not None:
            raise ValueError(f"dtype={dtype} is for a transducer's frames; logits may be of any floating type, leave it out")
        if dtype is None:
            dtype = next((weight.dtype for weight in weights if weight.dtype.is_floating_point), torch.float32)
        self._searched_on = torch.device("cpu") if isinstance(decoder, GraphDecoder) else self.device
        self._dtype = None if not isinstance(decoder, TransducerDecoder) else dtype
        row = self._fusion.row(None, 0.0, self._searched_on)
        repeated = {name: getattr(row, name).repeat(self.max_streams, 1) for name in ("states", "weights", "present")}
        silent = torch.zeros(self.max_streams, dtype=torch.bool, device=self._searched_on) if decoder.is_guarded else None
        grammars = None if row.grammars is None else row.grammars * self.max_streams
        models = row._replace(**repeated, silent=silent, grammars=grammars)
        name = "ilm_weight" if isinstance(decoder, TransducerDecoder) else "beta"
        if isinstance(getattr(decoder.options, name), Tensor):
            raise ValueError(
                f"{name} is a tensor with one number per row of a batch, but streams have no rows; pass one number"
            )
        self._slots: Slots = decoder.slots(models, dtype) if isinstance(decoder, TransducerDecoder) else decoder.slots(models)
        self._follower = Follower(self._slots)
        self._slot_of: dict[int, int] = {}  # by number of an open stream
        # By stream: the values that its compiled phrases depend on: the LM, its weight, and the phrases' own weight or None.
        self._fused_with: dict[int, tuple[Any, float, float | None]] = {}
        # By stream: how well its language model has predicted its utterances; and the streams that do without it now.
        self._memories: dict[int, guard.Memory] = {}
        self._without_lm: set[int] = set()
        self._leases: dict[int, Lease | None] = {}  # of grammars, by stream
        self._with_grammars: GrammarStreams | None = None
        self._with_looks: LookStreams | None = None
        self._free = list(range(self.max_streams - 1, -1, -1))
        self._opened = 0

    def __repr__(self) -> str:
        limits = {"max_streams": self.max_streams, "endpoint_frames": self.endpoint_frames, "open": len(self)}
        return shown(self, repr(self.decoder), **limits, device=str(self.device))

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._slot_of)

    @torch.inference_mode()
    def open(
        self,
        lm: NGramLM | LogLinear | None = DECODERS_LM,
        lm_weight: float | None = None,
        phrases: Any = DECODERS_PHRASES,
        phrase_weight: float | None = None,
        grammar: Grammar | None = None,
        grammar_mode: str | None = None,
        sensitivity: float | None = None,
        explain: bool = False,
        false_alarms_per_hour: float | None = None,
        thresholds: Thresholds | None = None,
    ) -> int:
        """Open a stream.

        Args:
            lm: a language model of the decoder, or None. It is required if the decoder has a list of models.
            lm_weight: the LM's weight; default: the decoder's weight.
            phrases: phrases to favour: a `PhraseBooster`, or its arguments; None for no phrases. The default is the decoder's
                phrases.
            phrase_weight: factor of the phrases' bonuses, also for phrases that the stream switches to later. The default is
                the decoder's factor. In a graph it is the discount of phrases without their own discount.
            grammar, grammar_mode, sensitivity, explain: a grammar, and the settings of `GrammarDecoder`. A stream with a
                grammar doesn't use the decoder's rescorer.
            false_alarms_per_hour, thresholds, explain: settings of a second look at the phrases (a list of texts), as for
                `PhraseDecoder`.

        Returns:
            The stream's number, which is never used again.

        Raises:
            ValueError: `max_streams` streams are open, or the decoder doesn't have this LM.
            GrammarError: the recogniser can write no sentence of the grammar.
        """
        if grammar is not None:
            idle = {"false_alarms_per_hour": false_alarms_per_hour, "thresholds": thresholds}
            refuse_idle(idle, "is about a second look at phrases, which looks at no grammar; leave it out")
            settings = {"lm": lm, "lm_weight": lm_weight, "phrases": phrases, "phrase_weight": phrase_weight}
            return self._open_in_grammar(grammar, (grammar_mode or "reject", sensitivity, explain), settings)
        refuse_idle({"grammar_mode": grammar_mode, "sensitivity": sensitivity}, "is about a grammar; pass grammar=, too")
        if phrase_weight is not None:
            phrase_weight = check("phrase_weight", phrase_weight, WEIGHT)
        if false_alarms_per_hour is not None:
            look = {"false_alarms_per_hour": false_alarms_per_hour, "thresholds": thresholds, "explain": explain}
            return self._open_with_look(lm_and_weight(self._fusion, lm, lm_weight), phrases, phrase_weight, look)
        refuse_idle({"thresholds": thresholds}, "is about a second look; pass false_alarms_per_hour=, too")
        refuse_idle(
            {"explain": explain or None}, "is about a grammar or a second look; pass grammar= or false_alarms_per_hour="
        )
        if self.decoder.unguided is not None and phrases is not DECODERS_PHRASES and is_any(phrases):
            tell_once(
                "greedy streams with phrases",
                "this stream's phrases are searched greedily, as the decoder was made without a language model and phrases; "
                'they gain more in a beam: make the decoder with num_beams="auto"',
            )
        own, weight = lm_and_weight(self._fusion, lm, lm_weight)
        models = self._fusion.row(own, weight, self._searched_on)
        fused_with = (own, float(np.float32(weight)), phrase_weight)
        followed = None
        if phrases is not DECODERS_PHRASES or phrase_weight is not None or isinstance(self.decoder, GraphDecoder):
            followed = self.decoder.followed(
                self.decoder.given_phrases if phrases is DECODERS_PHRASES else phrases, *fused_with
            )
        sid = self._numbered(fused_with)
        slot = self._slot_of[sid]
        if followed is not None and followed[0] is not None:
            self._follower.widen()
        self._slots.place(slot, self._in_pool(models))
        self._slots.begin(slot)
        if own is not None and weight > 0 and self.decoder.is_guarded:
            self._memories[sid] = guard.Memory(own, self.decoder.lm_guard)
        if followed is not None:
            self._follower.follow(np.array([slot]), [followed])
            self._slots.begin(slot)
        return sid

    def _numbered(self, fused_with: tuple[Any, float, float | None]) -> int:
        """Return the number of a new stream, which has a slot from now on. Raises ValueError if no slot is free.

        `fused_with`: the stream's language model, its weight, and the weight of phrases.
        """
        if not self._free:
            raise ValueError(
                f"{len(self)} streams are open (max_streams={self.max_streams}); close one, or make a StreamingDecoder with "
                "a higher max_streams"
            )
        sid = self._opened
        self._opened += 1
        self._slot_of[sid], self._fused_with[sid] = self._free.pop(), fused_with
        return sid

    @property
    def _like_this(self) -> Callable[[Any], StreamingDecoder]:
        """Return a function that makes a `StreamingDecoder` for another decoder, with the settings of this object.

        The function holds no reference to this object, so this object is freed without the garbage collector.
        """
        return partial(
            StreamingDecoder, max_streams=self.max_streams, endpoint_frames=self.endpoint_frames, device=self.device,
            dtype=self._dtype,
        )  # fmt: skip

    @contextmanager
    def _apart_from(self, fused_with: tuple[Any, float, float | None]) -> Iterator[int]:
        """Yield the number of a new stream. The block must open the stream in `GrammarStreams` or `LookStreams`, which then
        decode the stream instead of this object. An error in the block closes the stream. `fused_with`: as for `_numbered`.
        """
        sid = self._numbered(fused_with)
        try:
            yield sid
        except Exception:
            self._forget(sid)
            raise

    def _open_in_grammar(self, grammar: Grammar, rules: tuple[Any, Any, Any], settings: Mapping[str, Any]) -> int:
        """Open a stream with a grammar. `rules`: the mode, sensitivity and `explain`. `settings`: other arguments of `open`."""
        if self._with_grammars is None:
            self._with_grammars = GrammarStreams(self.decoder, self._like_this)
        with self._apart_from((None, 0.0, None)) as sid:
            self._with_grammars.open(sid, grammar, Weighing(rules[0], rules[1], explain=rules[2]), settings)
        return sid

    def _open_with_look(self, lms: tuple[Any, float], phrases: Any, phrase_weight: float | None, look: dict[str, Any]) -> int:
        """Open a stream with a second look at its phrases. `lms`: the stream's language model and LM weight. `look`: the
        settings of the second look.
        """
        phrases, settings = self._looked_at(phrases, phrase_weight, look)
        if self._with_looks is None:
            self._with_looks = LookStreams(self.decoder, self._like_this)
        with self._apart_from((*lms, phrase_weight)) as sid:
            self._with_looks.open(sid, lms, phrases, settings)
        return sid

    def _looked_at(self, phrases: Any, phrase_weight: float | None, look: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Check the arguments of a second look. Return the phrases, and `look` with the phrase weight added.

        `phrases`: as for `open`. `look`: settings of the second look, keyword arguments of `PhraseDecoder`.
        """
        if phrases is DECODERS_PHRASES:
            phrases = self.decoder.given_phrases
        if not is_any(phrases):
            raise ValueError("false_alarms_per_hour given without phrases; pass the stream's phrases, too")
        if isinstance(self.decoder, GraphDecoder):
            raise ValueError("a second look at phrases takes a CTCDecoder or a TransducerDecoder, not a GraphDecoder")
        weight = self._fusion.phrase_weight if phrase_weight is None else phrase_weight
        return phrases, {"phrase_weight": weight, **look}

    def _apart(self, sid: int) -> GrammarStreams | LookStreams | None:
        """Return the object that decodes a stream with a grammar or a second look; None for any other stream."""
        return next((each for each in (self._with_grammars, self._with_looks) if each is not None and sid in each), None)

    def _in_grammar(self, sid: int) -> GrammarStreams | None:
        """Return the object that decodes a stream with a grammar; None for a stream without a grammar."""
        grammars = self._with_grammars
        return grammars if grammars is not None and sid in grammars else None

    def set_grammar(self, sid: int, grammar: Grammar) -> None:
        """Switch a stream with a grammar to another grammar, from the next utterance on.

        `reset` begins the next utterance. If the present utterance has no frames yet, it follows the new grammar at once.

        Raises:
            StreamError: the stream isn't open, or was opened without a grammar.
        """
        grammars = self._in_grammar(sid)
        if grammars is None:
            raise StreamError({sid: "it was opened without a grammar" if sid in self._slot_of else "it isn't open"})
        grammars.set_grammar(sid, grammar)

    def has_heard(self, sid: int) -> bool:
        """Return whether a token has been heard in the utterance of a stream with a grammar."""
        grammars = self._in_grammar(sid)
        return grammars is not None and grammars.has_heard(sid)

    @torch.inference_mode()
    def place_grammar(self, sid: int, grammar: CompiledGrammar) -> None:
        """Let a stream follow another grammar, and begin a new utterance. The decoder must already search in a grammar."""
        slot, (lm, lm_weight, _) = self._slot_of[sid], self._fused_with[sid]
        row = self._fusion.with_grammar(grammar).row(lm, lm_weight, self._searched_on)
        if row.tensors is not self._slots.models.tensors:
            self._slots.use(row.tensors)
        mine, column = self._slots.models.of(slice(slot, slot + 1)), row.num_lms
        for name in ("states", "weights", "present"):
            getattr(mine, name)[0, column] = getattr(row, name)[0, column]
        self._slots.place(slot, mine._replace(grammars=[grammar]))
        self._slots.begin(slot)
        self._leases[sid] = row.lease

    def so_far(self, sid: int) -> list[Hypothesis]:
        """Return the hypotheses of a stream as if its utterance had ended after the last frame that was searched."""
        slot, options = self._slot_of[sid], self.decoder.options
        ranked = self._slots.ranked(slice(slot, slot + 1), options.score_eos, options.num_searched)
        return self._slots.written(np.array([slot]), ranked)[0]

    @torch.inference_mode()
    def context(
        self,
        phrases: Any,
        lm: NGramLM | LogLinear | None = DECODERS_LM,
        lm_weight: float | None = None,
        phrase_weight: float | None = None,
        false_alarms_per_hour: float | None = None,
        thresholds: Thresholds | None = None,
        explain: bool = False,
    ) -> Booster | LookContext | None:
        """Compile phrases ahead of time. With the compiled phrases, `open` and `set_context` return at once.

        Thousands of phrases take seconds. Any thread may call this method, also while another thread decodes.

        Args:
            phrases, lm, lm_weight, phrase_weight, false_alarms_per_hour, thresholds, explain: as for `open`. In a graph, or
                with a second look at the phrases, pass the stream's arguments. Otherwise pass only `phrases`.

        Returns:
            The context; None for no phrases. Its `left_out` maps phrases that the tokenizer can't spell to the characters that
            the tokenizer doesn't know.

        Raises:
            ValueError: see `PhraseBooster`.
        """
        if false_alarms_per_hour is not None:
            look = {"false_alarms_per_hour": false_alarms_per_hour, "thresholds": thresholds, "explain": explain}
            lms = lm_and_weight(self._fusion, lm, lm_weight)
            return look_context(self.decoder, lms, *self._looked_at(phrases, phrase_weight, look))
        own, weight = lm_and_weight(self._fusion, lm, lm_weight) if isinstance(self.decoder, GraphDecoder) else (None, 0.0)
        made, _ = self.decoder.followed(phrases, own, float(np.float32(weight)), phrase_weight)
        self._fusion.contexts.prepare(made)
        return made

    def set_context(self, sid: int, phrases: Any) -> None:
        """Switch a stream to other phrases, also in mid-utterance; see `set_contexts`."""
        self.set_contexts({sid: phrases})

    @torch.inference_mode()
    def set_contexts(self, contexts: Mapping[int, Any]) -> None:
        """Switch streams to other phrases, also in mid-utterance.

        Unfinished matches of the old phrases end and repay their bonus. New phrases can match from the next token on (in
        vocabularies with a word delimiter, after the next delimiter). Other streams are unaffected. Contexts that were compiled
        before are reused.

        Args:
            contexts: the new phrases by stream number: a `PhraseBooster`, or its arguments; None for no phrases.

        Raises:
            StreamError: some of the streams aren't open. All streams then keep their phrases.
            ValueError: as for `PhraseBooster`. All streams then keep their phrases.
        """
        unknown = {sid: "it isn't open" for sid in contexts if sid not in self._slot_of}
        if unknown:
            raise StreamError(unknown)
        own = [sid for sid in contexts if self._apart(sid) is None]
        followed = [self.decoder.followed(contexts[sid], *self._fused_with[sid]) for sid in own]
        for apart in (self._with_looks, self._with_grammars):
            if apart is not None:
                apart.set_contexts({sid: of for sid, of in contexts.items() if sid in apart})
        if followed:
            self._follower.follow(np.array([self._slot_of[sid] for sid in own]), followed)

    @torch.inference_mode()
    def step(self, chunks: Mapping[int, Outputs]) -> dict[int, Partial]:
        """Decode the next chunk of some streams, as one batch.

        Args:
            chunks: the chunk of each stream, by stream number: logits `[T, C]` or encoder frames `[T, D]`, T >= 0. Tensors must
                be on the decoder's device; arrays and lists are moved there.

        Returns:
            The transcript so far of each stream in `chunks`, by stream number.

        Raises:
            StreamError: a stream isn't open, or its chunk has a wrong shape, type or device, or contains NaN or infinity. Such
                streams are unchanged; all other streams have been decoded. The error's `problems` describe the failed streams,
                and its `partials` are the results of the others. If the model turns finite frames into NaN, the stream can only
                be closed or reset.
        """
        problems: dict[int, str] = {}
        good: dict[int, Tensor] = {}
        for sid, frames in chunks.items():
            try:
                chunk = tensor_of(frames, "a chunk", self.device)
            except InvalidLogitsError as error:
                problems[sid] = str(error)
                continue
            problem = self._problem(sid, chunk)
            if problem is None:
                good[sid] = chunk
            else:
                problems[sid] = problem
        partials: dict[int, Partial] = {}
        for apart in (self._with_grammars, self._with_looks):
            if apart is not None and any(sid in apart for sid in good):
                found, refused = apart.step({sid: good.pop(sid) for sid in list(good) if sid in apart})
                partials, problems = partials | found, problems | refused
        if good:
            slots = np.array([self._slot_of[sid] for sid in good])
            bad_frames = self._slots.step(slots, list(good.values()))
            for sid, frame in zip(good, bad_frames.tolist()):
                if frame >= 0:
                    what = "the chunk, or the model's output for it, contains NaN or infinity"
                    problems[sid] = f"{what} at frame {frame} of the utterance"
            sound = np.flatnonzero(bad_frames < 0)
            if self._memories and isinstance(self.decoder, CTCDecoder):
                for sid in good.keys() & self._memories.keys() - problems.keys():
                    self._memories[sid].hear(good[sid])
            if len(sound):
                sids = list(good)
                partials |= self._partials([sids[place] for place in sound.tolist()], slots[sound])
        if problems:
            raise StreamError(problems, partials)
        return partials

    def _problem(self, sid: int, chunk: Tensor) -> str | None:
        """Return the reason why a chunk can't be decoded; None if it can."""
        slot = self._slot_of.get(sid)
        if slot is None:
            was_open = isinstance(sid, int) and 0 <= sid < self._opened
            return "a chunk after close" if was_open else "no such stream; open() gives their numbers"
        if self._slots.is_broken(slot):
            return "the model's outputs for it contained NaN or infinity; close or reset it"
        if chunk.device != self.device:
            return f"the chunk is on {chunk.device}, streams are decoded on {self.device} (StreamingDecoder(device=...))"
        problem = self._slots.refusal(chunk)
        return None if problem is None else f"the chunk {problem}"

    def _partials(self, sids: list[int], slots: np.ndarray) -> dict[int, Partial]:
        searches, history = self._slots, self._slots.history
        searches.put_aside(slots)
        transcripts = [searches.transcripts[slot] for slot in slots.tolist()]
        totals = np.array([len(transcript.ids) for transcript in transcripts])
        places, scores = searches.best(slots)
        sizes, tails = history.tails_of(slots, places)
        frames = searches.frames[slots]
        stable = totals + history.common[slots] - searches.still_open(slots)
        endpoint = np.zeros(len(slots), dtype=np.bool_)
        if self.endpoint_frames is not None:
            ends = np.array([transcript.ends[-1] if transcript.ends else 0 for transcript in transcripts])
            has_tail = sizes > 0
            ends[has_tail] = tails.ends[has_tail, sizes[has_tail] - 1]
            endpoint = (totals + sizes > 0) & (frames - ends >= self.endpoint_frames)
        columns = (column.tolist() for column in (scores, frames, stable, endpoint))
        counts = (totals.tolist(), [tails] * len(sids), enumerate(sizes.tolist()))
        return {sid: Partial(*row) for sid, *row in zip(sids, *columns, transcripts, *counts)}

    @torch.inference_mode()
    def close(self, sid: int) -> list[Any]:
        """End a stream.

        Returns:
            Up to `num_return_sequences` hypotheses, the best one first. The decoder returns the same hypotheses for all frames
            at once. For a stream with a grammar, a list with its `Understanding`. If the model's outputs contained NaN or
            infinity, an empty list.

        Raises:
            StreamError: the stream isn't open.
            ValueError: a rescorer can't read the transcript. The stream is closed nevertheless.
        """
        apart = self._apart(sid)
        try:
            return self._end(sid) if apart is None else apart.end(sid, closes=True)
        finally:
            if sid in self._slot_of:
                self._forget(sid)

    def _forget(self, sid: int) -> None:
        """Free the slot of a stream."""
        self._follower.release(self._slot_of[sid])
        self._free.append(self._slot_of.pop(sid))
        del self._fused_with[sid]
        for kept in (self._memories, self._leases):
            kept.pop(sid, None)
        self._without_lm.discard(sid)

    @torch.inference_mode()
    def reset(self, sid: int) -> list[Any]:
        """End a stream's utterance as `close` does, and begin a new utterance with the same language model and phrases.

        Frames and times start at 0 again, also if a rescorer can't read the transcript (ValueError).
        """
        apart = self._apart(sid)
        if apart is not None:
            return apart.end(sid, closes=False)
        hypotheses: list[Hypothesis] = []
        try:
            hypotheses = self._end(sid)
        finally:
            memory = self._memories.get(sid)
            if memory is not None:
                if hypotheses:
                    self._decide(sid, memory, hypotheses[0])
                memory.likeliest = 0.0
            if sid in self._slot_of:
                self._slots.begin(self._slot_of[sid])
        return hypotheses

    def _end(self, sid: int) -> list[Hypothesis]:
        slot = self._slot_of.get(sid)
        if slot is None:
            raise StreamError({sid: "it isn't open"})
        if self._slots.is_broken(slot):
            return []
        hypotheses = self._slots.finish(slot)
        return [replace(each, lm_left_out=True) for each in hypotheses] if sid in self._without_lm else hypotheses

    def _in_pool(self, models: RowModels) -> RowModels:
        """Return a row's models in the form that the slots need. If the slots have a column for phrases, the result also has
        this column, and automata in the pool. If the slots have no such column, return `models` unchanged.
        """
        if self._slots.has_phrases and self._fusion.phrases is None:
            models = self._fusion.in_pool(models, self._searched_on)[0].widened()
        return models

    def _decide(self, sid: int, memory: guard.Memory, best: Hypothesis) -> None:
        """Decide whether the stream's next utterance is decoded without its language model."""
        memory.add(best.token_ids, len(best.text.split()), best.acoustic_score)
        if memory.leaves_out != (sid in self._without_lm):
            self._without_lm ^= {sid}
            lm, weight, _ = self._fused_with[sid]
            lm, weight = (None, 0.0) if memory.leaves_out else (lm, weight)
            row = self._fusion.row(lm, weight, self._searched_on)
            self._slots.place_lms(self._slot_of[sid], self._in_pool(row), memory.leaves_out)
