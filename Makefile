# make run     discover an objective online; ENV=atari/Pong names another environment, ARGS="--steps=1e5" adds flags
# make test    run the tests
# make test-lowest, make test-newest    run some of them with the lowest versions that pyproject.toml allows, with the newest that there are
# make check   formatter, linter, type checker and the prose of the documents
# make docs    build the site into site/, every warning an error; make docs-test runs the notebooks and the long blocks of its pages

PYTHON ?= python3
ENV ?= toy/catch
ARGS ?=
BIN := .venv/bin

# Tests that touch every package that is needed: suites, lives, a population, files, checkpoints, metrics, statistics, pictures.
TOUCHING := tests/strangers/test_versions.py tests/agents/environments tests/agents/test_rules.py tests/agents/test_validation.py \
	$(addprefix tests/test_library.py::,test_a_run_goes_on_as_if_it_had_never_ended \
	test_an_objective_is_discovered_in_an_environment_on_the_host) tests/frodo/runs/test_driver.py::test_a_population_goes_on \
	tests/frodo/rules/test_files.py tests/frodo/runs/test_checkpoints.py tests/frodo/runs/test_callbacks.py \
	tests/experiments/runs/test_setting_flags.py \
	tests/experiments/results/test_plots.py tests/experiments/results/test_statistics.py \
	tests/experiments/analyses/test_bsuite_scores.py

.PHONY: run test test-lowest test-newest check format docs docs-test

run: .venv/.installed
	$(BIN)/python -m experiments.online --env=$(ENV) $(ARGS)

test: .venv/.installed
	$(BIN)/python -m pytest -n 2 --dist=worksteal $(ARGS)

test-lowest: CONSTRAIN = --constraint .venv-lowest/lowest.txt
test-lowest test-newest: test-%:
	$(PYTHON) -m venv --clear .venv-$*
	$(PYTHON) tests/lowest_versions.py > .venv-$*/lowest.txt
	.venv-$*/bin/python -m pip install --quiet $(CONSTRAIN) --editable '.[dev]'
	.venv-$*/bin/python -m pip freeze
	.venv-$*/bin/python -m pytest -n 2 --dist=worksteal $(TOUCHING) $(ARGS)

check: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/docs/test_prose.py

format: .venv/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.installed
	@$(BIN)/python -c 'import material, mkdocs, mkdocs_jupyter, mkdocstrings' 2> /dev/null || { echo "error: the site needs more packages: $(BIN)/python -m pip install --constraint constraints.txt --editable '.[docs]'" >&2; exit 2; }
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-test: .venv/.installed
	$(BIN)/python -m pytest -m long tests/docs $(ARGS)

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or later is needed, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
