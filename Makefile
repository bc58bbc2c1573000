# postroom. `make help` lists what there is. Everything is installed into .venv; nothing else is needed beforehand
# but python3 (3.11 or newer) with venv. Real servers are installed and started by the tests themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export PYTHONPATH :=
export POSTROOM_TEST_PYTHON := $(BIN)/python
# One more than cores: many tests wait for something most of the time.
WORKERS ?= 3
# Its driver is built with the headers that come with the servers.
NO_SERVERS := --ignore tests/contract/test_transactions_mysql.py

.PHONY: help demo example test retest nightly test-fast test-pythons check format mutants bench sim torture spec servers clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "postroom needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing postroom into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sqlite]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing postroom and its test tools into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## the main job on SQLite: orders, a relay killed half-way, a receiver, a checker
	@$(BIN)/postroom demo

test: $(VENV)/.dev servers check  ## lint, types, layers, and all tests, on real servers
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not nightly"

retest: check  ## the tests that failed last, three at most: each must pass three times, alone
	@$(BIN)/python -m tests.retest

nightly: $(VENV)/.dev servers  ## what is long: a million rows, rarer faults, every mutant, an hour of simulation, all cells of the torture
	@$(BIN)/python -m tests.servers install --nightly
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m nightly
	@$(BIN)/python -m tests.mutants
	@$(BIN)/python -m tests.sim.run $(or $(SEED),1) $(or $(SECONDS),3600)
	@$(BIN)/python -m tests.torture matrix --events $(or $(EVENTS),5000) --faults $(or $(FAULTS),20) --seed $(or $(SEED),1)

test-fast: $(VENV)/.dev  ## the tests that need no server, in a minute or two
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not server and not slow and not nightly" $(NO_SERVERS)

test-pythons: $(VENV)/.dev  ## the tests without servers, on every Python from 3.11 on that is found
	@for v in 3.11 3.12 3.13 3.14; do \
	  if python$$v -c '' 2>/dev/null; then \
	    echo "== Python $$v"; python$$v -m venv .venv-$$v && \
	    .venv-$$v/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]' && \
	    .venv-$$v/bin/python -m pytest -q -n $(WORKERS) -m "not server and not slow and not nightly" $(NO_SERVERS) || exit 1; \
	  else echo "== Python $$v: not found"; fi; done

example: $(VENV)/.dev servers  ## run an example on servers started for it: NAME=payments (see examples/README.md)
	@$(BIN)/python -m tests.servers example $(or $(NAME),payments)

servers: $(VENV)/.dev  ## install the real servers that the tests start (PostgreSQL, MariaDB, MongoDB, Kafka, RabbitMQ)
	@$(BIN)/python -m tests.servers install
	@$(BIN)/python -c 'import MySQLdb' 2>/dev/null || { echo "building mysqlclient …"; $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt mysqlclient; }

check: $(VENV)/.dev  ## lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev  ## put the code into the house's shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

mutants: $(VENV)/.dev servers  ## plant one bug at a time and show which test catches it
	@$(BIN)/python -m tests.mutants

sim: $(VENV)/.dev  ## the simulation: SEED=1 SECONDS=60
	@$(BIN)/python -m tests.sim.run $(or $(SEED),1) $(or $(SECONDS),60)

torture: $(VENV)/.dev servers  ## real processes, real servers, real faults: STORE=postgres BROKER=kafka EVENTS=5000 FAULTS=20 SEED=1
	@$(BIN)/python -m tests.torture cell $(or $(STORE),postgres) $(or $(BROKER),kafka) --events $(or $(EVENTS),5000) --faults $(or $(FAULTS),20) --seed $(or $(SEED),1)

spec: $(VENV)/.dev servers  ## the protocol's model, checked exhaustively by spin, and with each mechanism switched off
	@$(BIN)/python -m spec

bench: $(VENV)/.dev servers  ## all benchmarks, beside bare drivers and peers; resumable: SUITES="relay peers" QUICK=1
	@$(BIN)/python -m bench $(SUITES) $(if $(QUICK),--quick) --json bench/results/results.jsonl --resume --plots bench/results

clean:  ## remove what was built here
	@rm -rf $(VENV) .venv-3.* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
