"""What holds for all tests; helpers that several share are in `support`.

Without a GPU the Triton kernels run in Triton's interpreter, which has to be chosen before they are imported; none may read or
write anything but its tensors.

Property tests try the same examples in every run, so that a change fails its own tests and nobody else's;
`make test-all` looks for new ones (`--hypothesis-profile=new`).
"""

import os
from collections.abc import Iterator

import pytest
import torch

try:
    from hypothesis import settings
except ImportError:  # a machine that has no more than `make gpu` needs
    pass
else:
    settings.register_profile("same", derandomize=True)
    settings.register_profile("new", derandomize=False)
    settings.load_profile("same")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def kernels_keep_to_their_tensors() -> Iterator[None]:
    from interpreted import has_triton  # after the interpreter was chosen

    if os.environ.get("TRITON_INTERPRET") != "1" or not has_triton():
        yield
        return
    import bounds

    yield from bounds.watch()
