"""Without a GPU the Triton kernels run in Triton's interpreter. It has to be chosen before they are imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
