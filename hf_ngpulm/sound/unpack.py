"""Decode a WebM or MP4 file from standard input. Write the sampling rate as a line, then the float32 samples.

This is a script. Hostile files have exploited FFmpeg (in PyAV) before, so FFmpeg runs in this separate process. The process has
limits on memory and time, can't write files, and uses only these containers and audio codecs. The script doesn't import this
package.
"""

from __future__ import annotations

import contextlib
import os
import sys

MEMORY_BYTES, CPU_SECONDS = 1 << 30, 300
CODECS = (
    "opus", "vorbis", "aac", "mp3float", "mp3", "flac", "alac", "amrnb", "amrwb", "pcm_s16le", "pcm_s16be", "pcm_f32le",
)  # fmt: skip


def limit() -> None:
    """Limit the memory and the CPU time of this process. On Windows, do nothing."""
    with contextlib.suppress(ImportError):
        import resource

        limits = {resource.RLIMIT_AS: MEMORY_BYTES, resource.RLIMIT_CPU: CPU_SECONDS, resource.RLIMIT_FSIZE: 0}
        for kind, most in {**limits, resource.RLIMIT_CORE: 0}.items():
            with contextlib.suppress(ValueError, OSError):  # macOS lacks some of these limits
                resource.setrlimit(kind, (most, most))


def unpack(form: str) -> None:
    """Decode the file, average its channels, and write samples as soon as they are decoded. The header's length is ignored.

    Args:
        form: FFmpeg's name for the container format, the only format that is tried. Some formats make FFmpeg open files and
            URLs.
    """
    import av

    os.lseek(0, 0, os.SEEK_SET)
    options = {"codec_whitelist": ",".join(CODECS), "protocol_whitelist": "none", "max_streams": "32"}
    with open(0, "rb") as file, open(1, "wb", closefd=False) as out, av.open(file, format=form, options=options) as container:
        if not container.streams.audio:
            raise ValueError("has no audio")
        stream = container.streams.audio[0]
        if stream.codec_context.name not in CODECS:
            raise ValueError(f"has audio in an unsupported codec ({stream.codec_context.name})")
        resampler = None
        for frame in container.decode(stream):
            if resampler is None:  # all frames are resampled to the rate of the first frame
                rate = frame.sample_rate
                out.write(f"{rate}\n".encode())
                resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
            for mixed in resampler.resample(frame):
                out.write(memoryview(mixed.planes[0])[: 4 * mixed.samples])
        if resampler is not None:
            for mixed in resampler.resample(None):
                out.write(memoryview(mixed.planes[0])[: 4 * mixed.samples])


if __name__ == "__main__":
    # The parent reads standard error only at the end. If libraries wrote to it, the full pipe would block this process.
    errors, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    limit()
    try:
        unpack(sys.argv[1])
    except BrokenPipeError:  # the parent has stopped reading
        os._exit(0)
    except MemoryError:
        os.write(errors, b"takes too much memory")
        os._exit(1)
    except Exception as error:
        os.write(errors, str(getattr(error, "strerror", None) or error)[:200].encode(errors="replace"))
        os._exit(1)
