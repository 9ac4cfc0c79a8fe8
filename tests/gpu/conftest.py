"""These tests need a CUDA device; where there is none they aren't collected."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
