"""Makes the helpers beside this file importable from every folder of tests.

Without a GPU the Triton kernels run in Triton's interpreter, which has to be chosen before they are imported.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
