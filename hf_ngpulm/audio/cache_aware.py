"""Run Nemotron's encoder chunk by chunk with the caches of its layers (cache-aware streaming)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.checks import check, whole
from ..decoding.families import CACHE
from .encoder import StreamEncoder


class CacheAwareEncoder(StreamEncoder):
    """Encode every frame once. Up to rounding, each frame is the same as in offline encoding with the same look-ahead.

    The encoder's attention and convolutions see the past through each stream's caches. They also see later frames, up to the
    end of the chunk. A chunk has `num_lookahead_tokens + 1` frames. Streaming in Transformers takes one recording, or several
    recordings that begin together and have whole chunks. Here, a batch may combine streams that began at different times.

    With a subsampling of 8, frame t depends on mel frames up to `8 t`, so the first chunk lacks 7 mel frames. These frames, and
    the outputs of convolutions at these positions, are set to zero. In offline encoding, the model pads with the same zeros.

    Args:
        model: a `NemotronAsrStreamingForRNNT`, or `Nemotron3_5AsrForRNNT`.
        extractor: the model's feature extractor.
        max_streams: the number of streams for which caches are allocated.
        num_lookahead_tokens: number of later frames that the first frame of a chunk depends on. The latency is one frame
            longer.
        prompt_id: the number of the language, for models that take a language (`Nemotron3_5Asr`).

    Raises:
        ValueError: the encoder has another architecture, `extractor` can't mark the last chunk of a stream, or
            `num_lookahead_tokens` is out of range.
    """

    def __init__(
        self, model: Any, extractor: Any, max_streams: int, num_lookahead_tokens: int, prompt_id: int | None = None
    ) -> None:
        super().__init__()
        self.model, self.extractor, self.prompt_id = model, extractor, prompt_id
        config = model.config.encoder_config
        if (config.subsampling_conv_kernel_size, config.subsampling_conv_stride) != (3, 2):
            raise ValueError(
                f"the encoder's subsampling has kernels of {config.subsampling_conv_kernel_size} and strides of "
                f"{config.subsampling_conv_stride}; streaming supports 3 and 2"
            )
        if "is_last_audio_chunk" not in inspect.signature(type(extractor).__call__).parameters:
            raise ValueError(f"{type(extractor).__name__} can't mark the last chunk of a stream; upgrade transformers")
        self.sampling_rate, self.hop, self.reach = extractor.sampling_rate, extractor.hop_length, extractor.n_fft // 2
        self.factor: int = config.subsampling_factor
        self.chunk = check("num_lookahead_tokens", num_lookahead_tokens, whole(0, 1 << 12)) + 1
        # Attention looks back over whole chunks.
        self.memory = (config.sliding_window - 1) // self.chunk * self.chunk
        self.chunk_seconds = self.chunk * self.factor * self.hop / self.sampling_rate
        self.latency_seconds = self.chunk_seconds + self.reach / self.sampling_rate
        self._free = list(range(max_streams))
        self._max_streams = max_streams
        self._slots: dict[int, int] = {}
        self._caches: dict[str, Tensor] = {}  # `[S, ...]` each, by the layer's name; S is `max_streams`

    @torch.inference_mode()
    def open(self, sid: int) -> None:
        super().open(sid)
        self._slots[sid] = self._free.pop()
        for cache in self._caches.values():
            cache[self._slots[sid]] = 0

    def close(self, sid: int) -> None:
        super().close(sid)
        self._free.append(self._slots.pop(sid))

    def ready(self, sid: int) -> bool:
        audio, chunks = self.audio[sid], self.done[sid]
        if audio.ended:
            return self._lengths(audio.received // self.hop)[-1] > chunks * self.chunk
        return audio.received >= self._chunk_end(chunks)

    def waiting(self, sid: int) -> int:
        return max(0, self.audio[sid].received - self._first_mel(self.done[sid]) * self.hop)

    def _first_mel(self, chunk: int) -> int:
        """Return the number of a chunk's first mel frame. For the first chunk, this number is negative."""
        return chunk * self.chunk * self.factor - (self.factor - 1)

    def _chunk_end(self, chunk: int) -> int:
        """Return the position, in samples, at which the audio for a chunk ends."""
        return (self._first_mel(chunk + 1) - 1) * self.hop + self.reach

    def _lengths(self, mels: int) -> list[int]:
        """Return the number of frames before each convolution of the subsampling, and after the last convolution. `mels`: the
        recording's number of mel frames.
        """
        lengths, rate = [mels], self.factor
        while rate > 1:
            lengths.append(lengths[-1] // 2 + 1 if mels else 0)
            rate //= 2
        return lengths

    @torch.inference_mode()
    def encode(self, sids: Sequence[int]) -> list[Tensor]:
        features, places = self._features(sids)
        device, encoder = self.model.device, self.model.encoder
        slots = torch.tensor([self._slots[sid] for sid in sids], device=device)
        caches = _Caches(self._caches, self._max_streams, slots, places, self.memory)
        hidden = encoder.subsampling(features.to(device, self.model.dtype), None, padding_cache=caches) * encoder.input_scale
        rows, size, _ = hidden.shape
        own = places[-1][:, 1].tolist()
        heard = torch.zeros((rows, 1, size, self.memory + size), dtype=torch.bool)
        for row, (sid, count) in enumerate(zip(sids, own)):
            heard[row, :, :, max(0, self.memory - self.done[sid] * self.chunk) : self.memory + count] = True
        heard = heard.to(device)
        positions = encoder.encode_positions(hidden, cached_frames=self.memory)
        for layer in encoder.layers:
            hidden = layer(hidden, attention_mask=heard, position_embeddings=positions, padding_cache=caches, **{CACHE: caches})
        frames = self._projected(hidden)
        caches.keep()
        for sid in sids:
            self.done[sid] += 1
            self.audio[sid].forget(self._first_mel(self.done[sid]) * self.hop - self.reach)
        return [of_row[:count] for of_row, count in zip(frames, own)]

    def _features(self, sids: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Compute the mel frames of the streams' next chunks. Also find the frames inside the recordings, for each level of the
        subsampling.

        Returns:
            The mel frames, `[N, F, M]`, and a list with an array, int64 `[N, 2]`, for each level of the subsampling. A row of
            an array has the first frame inside the recording, and the frame after the last frame inside the recording.
        """
        pieces, bounds = [], []
        for sid in sids:
            audio, chunk = self.audio[sid], self.done[sid]
            first, end = self._first_mel(chunk), self._chunk_end(chunk)
            pieces.append(audio.slice(first * self.hop - self.reach, end))
            # Before the audio ends, a chunk is full at every level.
            lengths = self._lengths(audio.received // self.hop if audio.ended else 1 << 40)
            of_stream, rate = [], self.factor
            for length in lengths:
                begin = chunk * self.chunk * rate - (rate - 1)
                of_stream.append((max(0, -begin), max(0, min(length - begin, self.chunk * rate))))
                rate //= 2
            bounds.append(of_stream)
        places = list(torch.tensor(bounds).transpose(0, 1))
        longest = (self.chunk * self.factor - 1) * self.hop + 2 * self.reach
        features = self.extractor(
            pieces, sampling_rate=self.sampling_rate, padding="max_length", max_length=longest, return_tensors="pt",
            center=False, is_last_audio_chunk=True,
        )["input_features"][:, : self.chunk * self.factor]  # fmt: skip
        return features * _inside(places[0], features.shape[1])[..., None], places

    def _projected(self, hidden: Tensor) -> Tensor:
        """Project the encoder's output for the joint network. Return the frames `[N, T, D]`."""
        model = self.model
        if hasattr(model, "prompt_projector"):
            prompt = model.config.default_prompt_id if self.prompt_id is None else self.prompt_id
            one_hot = torch.zeros((*hidden.shape[:2], model.config.num_prompts), dtype=hidden.dtype, device=hidden.device)
            one_hot[..., prompt] = 1
            hidden = model.prompt_projector(torch.cat([hidden, one_hot], dim=-1))
        return model.encoder_projector(hidden)


class _Caches:
    """Hold a batch's caches. This class replaces two classes of Transformers: the cache for keys and values, and the cache for
    the padding of convolutions.

    Args:
        kept: the caches of all streams, by the layer's name; the first batch allocates these caches.
        max_streams: the number of streams for which caches are allocated.
        slots: for each stream of the batch, the stream's row in the caches, int64 `[N]`.
        places: the frames inside the recordings, for each level of the subsampling; see `CacheAwareEncoder._features`.
        memory: the number of frames whose keys and values are kept.
    """

    def __init__(self, kept: dict[str, Tensor], max_streams: int, slots: Tensor, places: list[Tensor], memory: int) -> None:
        self.kept, self.max_streams, self.slots = kept, max_streams, slots
        self.places, self.memory = places, memory
        self.new: dict[str, Tensor] = {}

    def update(self, first: Tensor, second: Any, third: Any, kwargs: Any = None) -> Any:
        """Prepend the cached keys and values to new keys and values, or the cached padding to the input of a convolution.

        Transformers calls this method with keys, values and a layer's number (and perhaps `kwargs`, which aren't needed here),
        or with the input, name and module of a convolution.
        """
        if isinstance(second, Tensor):
            return tuple(
                self._extended(f"{name}.{third}", states, self.memory) for name, states in (("keys", first), ("values", second))
            )
        kind, level = second.split(".")
        if kind == "subsampling":
            inside = _inside(self.places[int(level)], first.shape[2]).to(first.device)
            first = first * inside[:, None, :, None]
        return self._extended(second, first, third.left_pad)

    def _extended(self, name: str, states: Tensor, count: int) -> Tensor:
        """Return a layer's cached states, followed by the new states along dimension 2. Store the last `count` states for
        the method `keep`. `name`: the layer's name in `kept`.
        """
        if name not in self.kept:
            shape = list(states.shape)
            shape[0], shape[2] = self.max_streams, count
            self.kept[name] = states.new_zeros(shape)
        states = torch.cat([self.kept[name][self.slots], states], dim=2)
        self.new[name] = states[:, :, states.shape[2] - count :]
        return states

    def keep(self) -> None:
        """Store the caches for the next chunks of these streams."""
        for name, states in self.new.items():
            self.kept[name][self.slots] = states


def _inside(places: Tensor, size: int) -> Tensor:
    """Return a mask of frames, bool `[N, size]`. Row i is True from frame `places[i, 0]` to frame `places[i, 1]`, exclusive."""
    numbers = torch.arange(size)
    return (numbers >= places[:, :1]) & (numbers < places[:, 1:])
