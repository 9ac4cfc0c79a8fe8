"""Measure the server for Prometheus. Processes that share a folder (PROMETHEUS_MULTIPROC_DIR) report common sums."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain"


class Metrics:
    """Hold the metrics of one server.

    Attributes:
        clients: number of connected clients by `kind`, "live" or "recording".
        requests: number of answered requests by path and status.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        every: Any = {"registry": self.registry, "namespace": "hf_ngpulm"}
        self.clients = Gauge("clients", "Clients that have a place.", ["kind"], multiprocess_mode="livesum", **every)
        self.requests = Counter("requests", "Requests that were answered.", ["path", "status"], **every)
        self._audio = Counter("audio_seconds", "Seconds of audio that were decoded.", ["kind"], **every)
        self._lag = Histogram("lag_seconds", "Time from a live chunk's last sample to its result.", buckets=_SECONDS, **every)
        self._batch = Histogram(
            "batch_size", "Streams that a step decoded.", ["kind"], buckets=(1, 2, 4, 8, 16, 32, 64, 128), **every
        )
        self._step = Histogram("step_seconds", "Duration of a step.", ["kind"], buckets=_SECONDS, **every)
        self._recording = Histogram(
            "recording_seconds", "Time for a recording, from its request on.", buckets=(*_SECONDS, 100.0, 300.0), **every
        )

    def watch(self, kind: str, chunk_seconds: float | None = None) -> Callable[[int, float, list[float]], None]:
        """Return a function for the `watch` argument of `Engine`.

        Args:
            kind: "live" or "recording".
            chunk_seconds: seconds of audio that each live stream contributes to a step; None for recordings.
        """

        def step(size: int, seconds: float, lags: list[float]) -> None:
            self._batch.labels(kind).observe(size)
            self._step.labels(kind).observe(seconds)
            if chunk_seconds is not None:
                self._audio.labels(kind).inc(size * chunk_seconds)
                for lag in lags:
                    self._lag.observe(lag)

        return step

    def recording(self, audio_seconds: float, seconds: float) -> None:
        self._audio.labels("recording").inc(audio_seconds)
        self._recording.observe(seconds)

    def shown(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)
