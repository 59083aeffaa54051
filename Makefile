# Every target sets up what it needs: `make demo` works on a fresh clone with only Python >= 3.11.
VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.prudent-installed
# Extras that some platforms have no wheel for; one that cannot be installed is skipped with a note.
EXTRAS ?= mujoco minari storm ray spot

.PHONY: help install demo test test-slow check bench-speed docs clean
.DEFAULT_GOAL := help

help:
	@echo "make install      virtual environment in $(VENV) with everything this machine supports"
	@echo "make demo         the methods end to end, with pictures, into ./prudent-demo/"
	@echo "make test         the fast tests"
	@echo "make test-slow    the training runs"
	@echo "make check        format, lint, types, documentation (what CI runs before the tests)"
	@echo "make bench-speed  time the library on this machine"
	@echo "make docs         the documentation site, into ./site/"
	@echo "make clean        remove what the other targets made, except $(VENV)"

install: $(STAMP)

demo: $(STAMP)
	$(VENV)/bin/prudent demo

test: $(STAMP)
	$(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: $(STAMP)
	$(PY) -m pytest -q -m slow

check: $(STAMP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright -p pyproject.toml --pythonpath $(PY)
	$(PY) -m mkdocs build --strict --quiet

bench-speed: $(STAMP)
	$(PY) benchmarks/speed.py
	$(PY) benchmarks/ltl_speed.py
	$(PY) benchmarks/scaling.py

docs: $(STAMP)
	$(PY) -m mkdocs build --strict --quiet

clean:
	rm -rf build dist site prudent-demo bench-out .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One pip call in the ordinary case; if an extra cannot be installed here, the extras are tried one at a time.
# Only wheels for the compiled ones: a build of Storm from source takes hours and a toolchain.
PIP     := $(PY) -m pip install -qq
WHEELS  := --only-binary stormpy,ray,mujoco,spottl,h5py
empty   :=
space   := $(empty) $(empty)
comma   := ,

$(STAMP): pyproject.toml
	@if [ ! -x $(PY) ]; then \
	    for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	        $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	    done; \
	    [ -n "$$python" ] || { echo "Prudent needs Python 3.11 or newer; found: $$(python3 --version 2>&1). Set PYTHON=/path/to/python."; exit 1; }; \
	    echo "creating $(VENV) with $$($$python --version)"; \
	    $$python -m venv $(VENV); \
	fi
	@echo "installing Prudent and its tools into $(VENV) (a few minutes the first time)"
	@log=$(VENV)/extras.log; \
	if $(PIP) $(WHEELS) -e ".[dev,docs,$(subst $(space),$(comma),$(strip $(EXTRAS)))]" 2>$$log; then :; else \
	    $(PIP) -e ".[dev,docs]" && \
	    for extra in $(EXTRAS); do \
	        $(PIP) $(WHEELS) -e ".[$$extra]" 2>>$$log || echo "note: the extra '$$extra' cannot be installed on this machine and is skipped (reason: $$log)"; \
	    done; \
	fi
	@touch $@
