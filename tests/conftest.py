"""Settings of every test: CPU only, no window, one compilation cache for all runs."""

import os
from pathlib import Path

import pytest

# Set before anything imports JAX or Matplotlib, and inherited by the commands that tests start.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MPLBACKEND"] = "Agg"
# Most of the tests' time is compilation. This saves a sixth of it, and the programs are as fast.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1")
os.environ.setdefault("PRUDENT_COMPILATION_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data and reference files; the test is skipped where there is none."""
    setting = os.environ.get("PRUDENT_DATA", "")
    if not setting:
        pytest.skip("PRUDENT_DATA is not set: it names the folder of real data that this test reads")
    folder = Path(setting)
    if not folder.is_dir():
        pytest.skip(f"PRUDENT_DATA={setting} is not a folder")
    return folder


@pytest.fixture(scope="session")
def quick_estimator():
    """A small DML-CMR for tests of what stands around it."""
    from prudent.cmr import DMLCMR
    from prudent.nn import MLPSpec, TrainConfig

    def make(**settings):
        brief = TrainConfig(weight_decay=0.01, batch_size=64, max_steps=150, evaluate_every=50)
        return DMLCMR(
            **{
                "n_folds": 2,
                "network": MLPSpec((16,)),
                "nuisance_network": MLPSpec((16,)),
                "n_components": 2,
                "n_repeats": 1,
                "n_functions": 2,
                "train": brief,
                "function_train": brief,
                **settings,
            }
        )

    return make
