"""These tests need a CUDA device, or HF_NGPULM_GPU_STAND_IN=1 (see `on_gpu`); where there is neither they aren't collected."""

import torch
from on_gpu import STANDS_IN

collect_ignore_glob = [] if STANDS_IN or torch.cuda.is_available() else ["test_*.py"]
