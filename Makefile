# Everything a person or CI does here. Each target makes .venv when it is missing and brings it up to date when
# pyproject.toml has changed. The demo needs a part of what the tests need, and these a part of what `make test-all` needs,
# so each has a stamp. The demo's part is enough for the programs of README.md, one of which needs optax.
PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
STAMP := .venv/.stamp
LINT := .venv/.lint
NIGHTLY := .venv/.nightly
# Bytecode is made of what is imported, when it is: a minute less and 200 MB less.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile
# The newest pip chooses versions in less time than that of Python 3.11. PYTHON may have no pip, or one before 22.3.
PIP_ITSELF := { $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check --quiet install --no-compile pip \
  2>/dev/null || $(BIN)/python -m ensurepip >/dev/null; }
# Runs a command; a dot every second says that it still does. Ends with the command's exit code.
define with_dots
start=$$(date +%s); ($(1)) & pid=$$!; while kill -0 $$pid 2>/dev/null; do printf .; sleep 1; done; \
  wait $$pid && echo " $$(($$(date +%s) - start)) s"
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-versions lint format docs docs-check bench bench-check dist clean

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 15

demo: $(DEMO)    ## train a small network on eight virtual devices (or all GPUs); ARGS="--data mnist ..." passes options
	$(BIN)/replicax demo $(ARGS)

test: $(STAMP)   ## run the tests; ARGS="-k name" selects
	$(BIN)/pytest -n 3 --dist worksteal -m "not nightly" $(ARGS)

test-all: $(NIGHTLY)   ## the same with XLA's optimizations, and the tests of the night: all combinations, machines, public programs
	XLA_FLAGS= $(BIN)/pytest -n 2 --dist worksteal --durations=30 $(ARGS)

test-versions: $(NIGHTLY) ## the suites that depend on JAX and Keras, on the oldest and newest; ARGS="-s nightly"
	$(BIN)/nox $(ARGS)

lint: $(LINT)    ## style, types, floors, words, and the documentation's links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell .
	$(BIN)/python -m tests.prose
	$(MAKE) --no-print-directory docs

format: $(STAMP) ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(LINT)    ## build the documentation into site/; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-check: $(NIGHTLY) docs ## look at the site in a browser: links, console, width, pictures in site-check/; types, notebooks
	$(BIN)/python -m tests.browser $(ARGS)
	$(BIN)/python -m tests.docs_types
	$(BIN)/python -m tests.examples_of_names
	$(BIN)/python -m tests.notebooks

bench: $(STAMP)  ## measure steps of every kind beside those of JAX, Keras, torch and TensorFlow; ARGS="--only fit"
	$(BIN)/python benchmarks/against_peers.py $(ARGS)

bench-check: $(STAMP) ## a short form of it, against the stored ratios; fails where one got worse; ARGS="--install DIR"
	$(BIN)/python benchmarks/check.py $(ARGS)

dist: $(NIGHTLY) ## build the wheel and the source distribution into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*
	@ls -l dist

clean:           ## remove what the other targets made
	rm -rf .venv dist site site-check runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .nox

$(DEMO): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "replicax needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "== Installing replicax and its dependencies in .venv (700 MB)"
	@$(call with_dots,$(PYTHON) -m venv --without-pip .venv && $(PIP_ITSELF) && $(PIP) -e . optax)
	@touch $@

$(STAMP): $(DEMO)
	@echo "== Installing what the tests need in .venv (480 MB more)"
	@$(call with_dots,$(PIP) -e '.[dev]')
	@touch $@

$(LINT): $(STAMP)
	@echo "== Installing what style, layers and the documentation need in .venv (130 MB more)"
	@$(call with_dots,$(PIP) -e '.[lint]')
	@touch $@

$(NIGHTLY): $(STAMP)
	@echo "== Installing what is needed by night and for a release in .venv (750 MB more)"
	@$(call with_dots,$(PIP) -e '.[nightly]' && $(PIP) --no-deps keras-hub)
	@touch $@
