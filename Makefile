# make run     discover an objective online; ENV=atari/Pong names another environment, ARGS="--steps=1e5" adds flags
# make test    run the tests
# make check   formatter, linter and type checker

PYTHON ?= python3
ENV ?= toy/catch
ARGS ?=
BIN := .venv/bin

.PHONY: run test check format

run: .venv/.installed
	$(BIN)/python -m experiments.online --env=$(ENV) $(ARGS)

test: .venv/.installed
	$(BIN)/python -m pytest -n 2 --dist=worksteal $(ARGS)

check: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/.installed: setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or later is needed, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
