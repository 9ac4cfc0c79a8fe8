"""What holds for all tests; helpers that several share are in `support`.

Without a GPU the Triton kernels are compiled as for one, and run by `support/ptx`; that has to be chosen before they are
imported.

Property tests try the same examples in every run, so that a change fails its own tests and nobody else's;
`make test-all` looks for new ones (`--hypothesis-profile=new`).
"""

import gc
import os

os.environ.pop("TRITON_INTERPRET", None)

from interpreted import IS_INTERPRETED

try:
    from hypothesis import settings
except ImportError:  # a machine that has no more than `make gpu` needs
    pass
else:
    settings.register_profile("same", derandomize=True)
    settings.register_profile("new", derandomize=False)
    settings.load_profile("same")

if IS_INTERPRETED:
    import ptx

    ptx.install()

# Random numbers aren't speech that a random language model knows: the guard would leave it out of most tests.
from hf_ngpulm.decoding import guard
from hf_ngpulm.pipelines import guarded

guard.LEAST = guard.LEAST_OF_WORDS = -1e9
guard.MOST = guard.MOST_OF_WORDS = guarded.MOST = 1e9


def pytest_collection_finish():
    """Spare the garbage collector what stays until the end, which is most that there is."""
    gc.collect()
    gc.freeze()
