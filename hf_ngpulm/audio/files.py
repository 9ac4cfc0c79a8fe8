"""Re-export `hf_ngpulm.sound.files` under the module name that earlier documentation used."""

from ..sound.files import Resampler, decode_audio, file_pieces, read_audio, resample

__all__ = ["Resampler", "decode_audio", "file_pieces", "read_audio", "resample"]
