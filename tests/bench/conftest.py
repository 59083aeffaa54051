import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(autouse=True)
def tiny_experiments(monkeypatch):
    """The tiny experiments are registered, here and in child processes."""
    monkeypatch.setenv("PRUDENT_BENCH", "tiny_bench")
    path = [str(HERE), *(entry for entry in sys.path if entry), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
