"""WebM and MP4 files for tests, made by PyAV."""

from __future__ import annotations

import io

import numpy as np

KINDS = {"webm": ("webm", "libopus"), "m4a": ("ipod", "aac"), "mp4": ("mp4", "aac")}


def packed(samples, rate=48000, kind="webm", channels=1, streams=1):
    """Return samples, float32 `[N]`, as a file of a kind."""
    import av

    form, codec = KINDS[kind]
    file = io.BytesIO()
    layout = "stereo" if channels == 2 else "mono"
    with av.open(file, "w", format=form) as container:
        for stream in [container.add_stream(codec, rate=rate, layout=layout) for _ in range(streams)]:
            context = stream.codec_context
            resampler = av.AudioResampler(format=context.format, layout=layout, rate=rate, frame_size=context.frame_size or 960)
            frame = av.AudioFrame.from_ndarray((samples * 32767).astype("<i2")[None], format="s16", layout="mono")
            frame.sample_rate = rate
            for part in (*resampler.resample(frame), *resampler.resample(None), None):
                container.mux(stream.encode(part))
    return file.getvalue()


def silent_picture(frames=3):
    """Return a file with pictures and no audio."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        for _ in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), dtype=np.uint8))))
        container.mux(stream.encode(None))
    return file.getvalue()


def with_box(data, kind, change):
    """Return an MP4 file in which the content of the first box of a kind is what `change` makes of it, of the same length."""
    at = data.index(kind)
    begin, end = at + 4, at - 4 + int.from_bytes(data[at - 4 : at], "big")
    new = change(data[begin:end])
    assert len(new) == end - begin
    return data[:begin] + new + data[end:]
