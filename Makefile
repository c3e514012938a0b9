# SPDX-License-Identifier: Apache-2.0
# `make check` runs the main job and `make test` the tests; both do all the set-up.
# Needs: git, make, g++, Python 3.11 or newer with venv and headers (python3-venv python3-dev).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help check test lint bench clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than Python 3.11; hint: make PYTHON=python3.11 ..." >&2; exit 6; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make virtual environments; hint: apt install python3-venv" >&2; exit 6; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

check: $(READY) ## Fetch, replay, build, verify and install, from nothing, in a scratch folder.
	$(BIN)/patchctl toolchain install
	$(BIN)/patchctl check --each-prefix

test: $(READY) ## Build the library and run the tests (those that need a GPU are in tests/gpu).
	$(BIN)/patchctl toolchain install
	$(BIN)/patchctl build
	$(BIN)/python -m pytest

lint: $(READY) ## Ruff and mypy.
	$(BIN)/ruff check tool tests
	$(BIN)/ruff format --check tool tests
	$(BIN)/mypy

bench: $(READY) ## Measure what docs/benchmarks.md shows.
	$(BIN)/python tests/bench/bench.py
	$(BIN)/python tests/bench/series.py

clean: ## Remove everything generated in the project.
	rm -rf build/out $(VENV)
