"""The reader of audio files under the name that the documentation has had for it; it stands in `hf_ngpulm.sound.files`."""

from ..sound.files import Resampler, decode_audio, file_pieces, read_audio, resample

__all__ = ["Resampler", "decode_audio", "file_pieces", "read_audio", "resample"]
