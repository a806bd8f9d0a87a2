# Every target sets up what it needs: a virtual environment in .venv, filled from pyproject.toml.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOURCES := ebla tests benchmarks

.PHONY: help quick test check format demo bench soak clean

help:                         ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/    make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

$(VENV)/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing ebla and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "installing the peers to measure against ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	@touch $@

demo: $(VENV)/.dev            ## a short story: ingest, read, correct, crash, recover
	@$(BIN)/python -m ebla.demo

# Tests start Python some hundred times: what was compiled is kept, also where that is not usual.
quick test: export PYTHONDONTWRITEBYTECODE :=
quick: check                  ## check, and the tests that need neither Spark nor ZooKeeper nor long: a minute
	$(BIN)/python -m pytest -m quick --numprocesses 2 --dist loadscope

test: check                   ## everything that must be true, in minutes
	$(BIN)/python -m pytest -m "not soak" --numprocesses 2 --dist loadscope

check: $(VENV)/.dev           ## format, lint, types, imports between floors and rooms
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev          ## format the code, and mend what the linter can
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: $(VENV)/.bench         ## speeds, as ratios against peers in the same run
	$(BIN)/python -m benchmarks

soak: $(VENV)/.dev            ## long crash and model runs
	$(BIN)/python -m pytest -m soak

clean:                        ## removes .venv and what tools left
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
