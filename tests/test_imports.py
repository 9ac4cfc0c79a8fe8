"""What importing the package loads, and when its pipelines and models are known to Transformers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hf_ngpulm

PIPELINES = (
    "from transformers.pipelines import PIPELINE_REGISTRY as registry\n"
    "task = registry.supported_tasks['automatic-speech-recognition']\n"
    "assert task['impl'].__module__ == 'hf_ngpulm.pipelines.base', task['impl']\n"
)
MODELS = (
    "from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoTokenizer\n"
    "from transformers.models.auto.configuration_auto import CONFIG_MAPPING\n"
    "assert 'hat_transducer' in CONFIG_MAPPING\n"
    "from hf_ngpulm.models import HatConfig\n"
    "assert AutoModel._model_mapping[HatConfig].__name__ == 'HatForASR'\n"
)


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("import hf_ngpulm", marks=pytest.mark.slow),
        pytest.param("from transformers import AutoModel; import hf_ngpulm", marks=pytest.mark.slow),
        # Both import the auto classes halfway through their own import.
        "import hf_ngpulm; from transformers import WhisperForConditionalGeneration",
        pytest.param("import hf_ngpulm; from transformers import ParakeetForCTC", marks=pytest.mark.slow),
        pytest.param("from hf_ngpulm import CTCNGramPipeline", marks=pytest.mark.slow),
        pytest.param("from hf_ngpulm import StreamingRecognizer", marks=pytest.mark.slow),
        pytest.param("from hf_ngpulm.models import HatConfig", marks=pytest.mark.slow),
        pytest.param("from hf_ngpulm.models import HatForASR", marks=pytest.mark.slow),
        pytest.param("import hf_ngpulm.pipelines.base", marks=pytest.mark.slow),
    ],
)
def test_pipelines_and_models_are_registered_whoever_is_loaded_first(first):
    run(f"{first}\n{PIPELINES}{MODELS}")


def test_nothing_heavy_is_loaded_before_it_is_needed():
    heavy = ("numba", "triton", "pyarrow", "datasets", "ray", "transformers.pipelines", "transformers.modeling_utils")
    loaded = f"[name for name in {heavy!r} if name in sys.modules]"
    run(f"import sys, hf_ngpulm; assert not {loaded} and 'torch' not in sys.modules, {loaded}")
    run(f"import sys, hf_ngpulm; hf_ngpulm.NGramLM; assert not {loaded}, {loaded}")


@pytest.mark.slow
def test_nothing_needs_numba_and_transformers_may_be_loaded_first():
    """What CPUs run is in the native core; modules may miss other packages (extras), but not this one. Loading every module
    takes long, so that one process does both."""
    run(
        "import importlib, pkgutil, sys\n"
        "sys.modules['numba'] = None\n"
        f"from transformers import pipeline; import hf_ngpulm\n{PIPELINES}{MODELS}"
        "names = [found.name for found in pkgutil.walk_packages(hf_ngpulm.__path__, 'hf_ngpulm.')]\n"
        "assert len(names) > 100\n"
        "for name in names:\n"
        "    if name.endswith('__main__'):\n"
        "        continue\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError as error:\n"
        "        assert 'numba' not in str(error), name\n"
    )


def test_every_name_can_be_had():
    for name in hf_ngpulm.__all__:
        assert getattr(hf_ngpulm, name).__name__ == name
    assert dir(hf_ngpulm) == sorted(hf_ngpulm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        _ = hf_ngpulm.NoSuchName
