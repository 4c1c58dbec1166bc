# make setup    everything for work on oddlot: .venv with the extras dev and ray
# make train    only what training needs, then `oddlot train digits` (ARGS="--workers 4" is passed on)
# make check    format, lint, types, and the tests of the core and of strategies: within a minute, before each commit
# make test     everything that must hold before a commit lands, the cheapest check first; stops at the first that fails
# make test-long   slow scenes, and a thousand simulated worlds of each strategy
# make test-ray   scenes on Ray clusters of several nodes
# make results     the pages in docs/results and the table in README.md, from docs/results/*.json
# make docs     the site, in build/docs, with warnings as errors and without a network
#
# PYTHON=python3.12     another Python than python3
# TORCH_INDEX=ADDRESS   another package index, for torch alone (a CPU-only or a CUDA build)

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=
BIN := .venv/bin
PYTEST := $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.DELETE_ON_ERROR:
.PHONY: setup train lint check docs results test test-long test-ray
ifneq ($(TORCH_INDEX),)
ifneq ($(TORCH_INDEX),$(shell cat .venv/.torch 2>/dev/null))
.PHONY: .venv/.torch
endif
endif

setup: .venv/.setup

train: .venv/.runtime
	$(BIN)/oddlot train digits $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/codespell

check: lint
	$(PYTEST) tests/core tests/strategies tests/test_stories.py tests/test_imports.py tests/test_errors.py

docs: .venv/.dev
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs build/docs

results: .venv/.dev
	$(BIN)/python -m benchmarks.results

test: lint docs
	$(PYTEST) --durations=30

test-long: .venv/.dev
	$(PYTEST) -m long --timeout=1800

test-ray: .venv/.dev
	$(BIN)/pytest -m ray

# A stamp says what .venv holds: a second call installs nothing until a requirement changes.

.venv/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("oddlot needs Python 3.11 or newer, but $(PYTHON) is %d.%d: name a newer one, as in make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) -m venv cannot work here, because the module ensurepip is missing: install it (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.torch: constraints.txt | .venv/.created
	$(if $(TORCH_INDEX),$(PIP) --no-deps --force-reinstall --index-url $(TORCH_INDEX) torch)
	@echo "$(TORCH_INDEX)" > $@

.venv/.runtime: pyproject.toml constraints.txt | .venv/.torch
	$(PIP) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/.torch
	$(PIP) -e '.[dev]'
	@touch .venv/.runtime $@

.venv/.setup: pyproject.toml constraints.txt | .venv/.torch
	$(PIP) -e '.[dev,ray]'
	@touch .venv/.runtime .venv/.dev $@
