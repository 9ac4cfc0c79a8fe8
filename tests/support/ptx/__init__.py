"""Runs Triton's kernels as they are compiled, without a GPU: PTX, on the memory of CPU tensors.

    import ptx
    ptx.install()   # before kernels are decorated

Triton compiles a kernel for a GPU (`driver.py`); its PTX is read (`program.py`) and run by an interpreter of warps in C++
(`machine.cpp`, `operations.cpp`). Each launch runs once with each of several orders in which warps take turns, and must leave
the same memory. What it mustn't do raises `PTXError`, with the lines of the kernel:

- races: two threads touch a place and one of them writes, without a barrier in between: `bar.sync`, and `bar.warp.sync` within
  a warp. Global memory is ordered only by those that a kernel asks for with `tl.debug_barrier()`: Triton puts in others for its
  own use of shared memory, such as in a sum, but nothing says that these will stay. Shuffles order nothing. (Threads that
  store to shared memory what is there already don't race: Triton's do.)
- loads and stores outside of the tensors that the launch was given, each by itself, also where one is part of a larger one
- loads of what nobody has written: shared memory, and what `torch.empty` makes (of 4 bytes or more)
- threads that wait for each other forever, meet at different barriers, or don't end

What it can't show: CONTRIBUTING.md, "Kernels without a GPU".
"""

from .driver import Settings, install, running, settings
from .program import PTXError
from .timing import timed

__all__ = ["PTXError", "Settings", "install", "running", "settings", "timed"]
