# Two commands: `make run` and `make test`. Both make their environment first (.venv, Python 3.11 or newer).
# SOURCE, MODEL and DETECTOR are read from the environment by the program (`SOURCE=… make run`); make never expands nor
# prints them, so what a password holds stays as it is and stays unseen.
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

# A stamp is written only after pip has succeeded, so an interrupted installation is taken up again by the next `make`;
# a changed pyproject.toml or a renewed system Python makes the stamps stale.
$(VENV)/.installed: pyproject.toml $(BIN)/python
	@echo "Installing watchword and its libraries into $(VENV) (several GB, several minutes the first time) …"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --editable .
	@touch $@

# What the tests install contains what a run needs, hence both stamps.
$(VENV)/.installed-test: pyproject.toml $(BIN)/python
	@echo "Installing watchword, its libraries and the test tools into $(VENV) …"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --editable '.[test]'
	@touch $(VENV)/.installed $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "watchword needs Python 3.11 or newer, and this is %d.%d: name another one with PYTHON=…" % v[:2])'
	@echo "Making the environment $(VENV) with $$($(PYTHON) --version) …"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip  # a recent one resumes broken downloads
