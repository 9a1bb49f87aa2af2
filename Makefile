# Everything goes into .venv; PYTHON chooses the interpreter it is made from (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
STUDY ?= studies/demo
.PHONY: help demo test lint clean
.DELETE_ON_ERROR:

help:            ## this list
	@grep -E '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

.venv/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mmts-ray needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/pyvenv.cfg pyproject.toml
	$(BIN)/python -m pip install -q -e '.[demo]'
	@touch $@

.venv/dev.stamp: .venv/pyvenv.cfg pyproject.toml
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

demo: .venv/demo.stamp  ## install, run the main job on the default data, end with scores and a report (at most 10 minutes)
	@if [ -e $(STUDY)/study.yaml ]; then $(BIN)/mmts-ray resume $(STUDY); \
	 else $(BIN)/mmts-ray search search_spaces/demo.yaml --out $(STUDY); fi
	@$(BIN)/mmts-ray confirm $(STUDY)
	@$(BIN)/mmts-ray report $(STUDY)

lint: .venv/dev.stamp  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## install what tests need, lint, run every test
	$(BIN)/python -m pytest -n 2 --dist loadgroup  # a test at a time to each of two processes: most wait for Ray

clean:           ## remove the virtual environment and caches (studies stay)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build *.egg-info
