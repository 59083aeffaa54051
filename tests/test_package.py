"""The package as a whole: quick to import, honest about its names."""

import subprocess
import sys

import pytest

import prudent


def test_importing_names_does_not_load_jax():
    code = (
        "import sys, prudent; from prudent import IVRegression, datasets; from prudent.cmr import DMLCMR; "
        "import prudent.cli; print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_import_alone_loads_nothing_heavy():
    code = "import sys, prudent; print(sorted({'numpy', 'pandas', 'sklearn', 'jax', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_loaded():
    for name in prudent.__all__:
        assert getattr(prudent, name) is not None
    assert set(prudent.__all__) <= set(dir(prudent))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = prudent.nothing
