"""Finding experiments: every `Experiment` at module level of `prudent.bench.experiments` and of ``PRUDENT_BENCH``."""

import fnmatch
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

from prudent.bench import experiments
from prudent.bench._definition import BenchError, Experiment


def load_all() -> dict[str, Experiment]:
    """All known experiments by name, sorted."""
    modules = [info.name for info in pkgutil.walk_packages(experiments.__path__, experiments.__name__ + ".")]
    extra = [name.strip() for name in os.environ.get("PRUDENT_BENCH", "").split(",") if name.strip()]
    if extra and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # A module of the user's stands where the command is typed.
    found: dict[str, Experiment] = {}
    for module_name in [*modules, *extra]:
        for experiment in _experiments_of(module_name):
            if found.setdefault(experiment.name, experiment) is not experiment:
                raise BenchError(f"two experiments are called {experiment.name!r}; rename the one in {module_name}")
    return dict(sorted(found.items()))


def find(patterns: Sequence[str]) -> list[Experiment]:
    """Experiments that match names or shell patterns such as ``iv/*``; all of them for an empty sequence."""
    known = load_all()
    chosen: dict[str, Experiment] = {}
    for pattern in patterns or ["*"]:
        names = fnmatch.filter(known, pattern)
        if not names:
            hint = f", or write '{pattern}/*'" if any(name.startswith(f"{pattern}/") for name in known) else ""
            raise BenchError(f"no experiment is called {pattern!r}; take one of {', '.join(known)}{hint}")
        chosen |= {name: known[name] for name in names}
    return list(chosen.values())


def _experiments_of(module_name: str) -> list[Experiment]:
    try:
        module = importlib.import_module(module_name)
    except Exception as err:  # A module of the user's may fail in any way.
        where = "of this package" if module_name.startswith(experiments.__name__) else "named in PRUDENT_BENCH"
        raise BenchError(f"cannot import {module_name!r}, {where} ({type(err).__name__}: {err}); mend it") from err
    return [value for value in vars(module).values() if isinstance(value, Experiment)]
