# Two commands: `make run` and `make test`. Both make their environment first (.venv, Python 3.11 or newer).
# SOURCE, MODEL and DETECTOR are read from the environment by the program; make never expands nor prints them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test
.DEFAULT_GOAL := run

run: $(VENV)/.installed
	@exec $(BIN)/watchword run

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "watchword needs Python 3.11 or newer; this is %d.%d. Set PYTHON=…" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "Installing watchword and its libraries into $(VENV) (about 6 GB, several minutes) …"
	$(BIN)/pip install --progress-bar on -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed pyproject.toml
	$(BIN)/pip install -e '.[test]'
	@touch $@
