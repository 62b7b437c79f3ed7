# Every target does its own set-up, in .venv, from the package registries only.
SHELL := /bin/sh
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that start together would each compile every test.
COMPILED := $(VENV)/.compiled
# Most tests wait, for a session to expire above all: four at a time, each process with services of its own.
SHARE := -n 4 --dist loadfile --no-loadscope-reorder
# The long ones compute more: Spark, brokers by the three, handlers that are killed.
SHARE_LONG := -n 3 --dist loadfile --no-loadscope-reorder
# A simulated seed replays exactly only if sets are iterated in the same order.
REPLAY := PYTHONHASHSEED=0
# What rests on the brokers, for Kafka of other versions than the one that all tests run on.
KAFKA ?= 3.6.2 3.9.1 4.4.0
ON_KAFKA := $(addprefix tests/integration/test_,stray_endtxn.py sealed.py sealed_route.py unverified_route.py topic_route.py \
	table_route.py worker_faults.py capture_in_doubt.py decisions.py redrive.py indoubt.py inquiries.py migrate.py check.py)
SEEDS ?= 10000
FIRST ?= 0
# Hundreds of processes are started, and each would compile every module anew where the environment forbids to keep that.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-long test-nightly test-kafka simulate mutations lint types bench clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Compiled is what the relay itself loads; most of what pip installs is never used, and the rest is compiled at its first use.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 is missing: install it, or give PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: give PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --editable '.[local,serve,dev]'
	@$(BIN)/python -c "import importlib, pkgutil, relay; [importlib.import_module(one.name) for one in pkgutil.walk_packages(relay.__path__, 'relay.')]"
	@touch $(STAMP)

setup: $(STAMP) ## Install everything into .venv

demo: setup ## Capture, relay, kill workers, prove it: needs Java 17
	$(BIN)/relay demo

lint: setup ## Style
	$(BIN)/ruff check relay tests spark

types: setup ## Types
	$(BIN)/mypy

$(COMPILED): $(STAMP) $(shell find tests -name '*.py')
	@$(BIN)/pytest --collect-only --quiet > $@.said || { cat $@.said; exit 1; }
	@touch $@

test: setup ## Style, types and all tests that end within minutes
	@$(MAKE) --no-print-directory --jobs 3 lint types $(COMPILED)
	$(REPLAY) $(BIN)/pytest $(SHARE) -m "not slow"

test-long: setup ## The tests that take minutes each
	$(REPLAY) $(BIN)/pytest $(SHARE_LONG) --durations=25 -m "slow and not nightly"

test-nightly: setup ## The longest, which CI has no time for
	$(REPLAY) $(BIN)/pytest -m nightly

test-kafka: setup ## What rests on the brokers, on other versions of Kafka: KAFKA="3.6.2 4.4.0"
	@for version in $(KAFKA); do echo "Kafka $$version"; RELAY_KAFKA_VERSION=$$version $(REPLAY) $(BIN)/pytest $(SHARE) $(ON_KAFKA) || exit 1; done

simulate: setup ## Search for a seed that breaks a promise: SEEDS=n FIRST=k
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --first $(FIRST)

mutations: setup ## Take one guard away at a time: something must fail
	$(REPLAY) $(BIN)/pytest -n 2 tests/mutations/prove.py

bench: setup ## Measure against the plain client, side by side
	$(BIN)/relay bench

clean: ## Remove what was built
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
