"""What holds for all tests; helpers that several share are in `support`.

Without a GPU the Triton kernels run in Triton's interpreter, which has to be chosen before they are imported.

Property tests try the same examples in every run, so that a change fails its own tests and nobody else's;
`make test-all` looks for new ones (`--hypothesis-profile=new`).
"""

import os

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
