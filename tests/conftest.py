"""Settings of every test: CPU only, no window, one compilation cache for all runs."""

import os
from pathlib import Path

import pytest

# Set before anything imports JAX or Matplotlib, and inherited by the commands that tests start.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MPLBACKEND"] = "Agg"
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
