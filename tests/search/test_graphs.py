"""Recording CUDA graphs, with stand-ins for CUDA: whose stream is current, who records at a time, in which precision."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
import torch

from hf_ngpulm.search.networks import graphs

CUDA = torch.device("cuda", 0)


class Stream:
    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        event.append(self)

    def record_event(self):
        return []


class FakeCUDA:
    """What the recording asks of torch.cuda; `fails`: ending a capture raises, as CUDA does where work can't be recorded."""

    def __init__(self, fails=False):
        self.fails, self.here, self.recording, self.most = fails, threading.local(), 0, 0
        self.CUDAGraph = lambda: self
        self.Stream = Stream
        self.seen = []

    def current_stream(self, device=None):
        if not hasattr(self.here, "stream"):
            self.here.stream = Stream()
        return self.here.stream

    def set_stream(self, stream):
        self.here.stream = stream

    @contextmanager
    def stream(self, stream):
        before = self.current_stream()
        self.set_stream(stream)
        yield
        self.set_stream(before)

    @contextmanager
    def graph(self, graph, stream, capture_error_mode):
        before = self.current_stream()
        self.set_stream(stream)
        self.recording += 1
        self.most = max(self.most, self.recording)
        yield
        time.sleep(0.01)
        self.recording -= 1
        if self.fails:  # before the stream is set again, as in torch.cuda.graph
            raise RuntimeError("this cannot be recorded")
        self.set_stream(before)

    def replay(self):
        self.seen.append("replay")

    def current_device(self):
        return 0


@pytest.fixture
def cuda(monkeypatch):
    def made(**settings):
        fake = FakeCUDA(**settings)
        for name in ("current_stream", "set_stream", "stream", "graph", "CUDAGraph", "Stream", "current_device"):
            monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
        return fake

    return made


@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_stream_is_current_afterwards(cuda, fails):
    fake = cuda(fails=fails)
    before, work = fake.current_stream(), graphs.Repeated(lambda: None)
    work.record(CUDA)
    assert fake.current_stream() is before and work.is_recorded == (not fails)


def test_one_records_at_a_time(cuda):
    fake = cuda()
    threads = [threading.Thread(target=graphs.Repeated(lambda: None).record, args=(CUDA,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.most == 1


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
def test_autocast_keeps_no_weights_while_it_is_recorded(cuda):
    cuda()
    cached = []
    graphs.Repeated(lambda: cached.append(torch.is_autocast_cache_enabled())).record(CUDA)
    assert cached == [False, False] and torch.is_autocast_cache_enabled()


def test_buffers_wait_for_whoever_still_reads_them(cuda):
    """On another stream than that of the one who has them next."""

    class Weight:
        device, dtype, shape = CUDA, torch.float32, (1,)

        def data_ptr(self):
            return 0

    fake, kept, made = cuda(), {}, []

    def lent():
        with graphs.recalled(kept, ("search",), [Weight()], lambda: made.append(object()) or made[-1]) as found:
            return found

    first = lent()
    ((_, event),) = kept.values()
    fake.set_stream(reader := Stream())
    assert lent() is first and made == [first] and event == [reader]
