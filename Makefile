# Every target does its own set-up on a fresh Debian or Ubuntu; `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT_INSTALL := export DEBIAN_FRONTEND=noninteractive; $(SUDO) apt-get update -qq && \
	$(SUDO) -E apt-get install -y -qq --no-install-recommends

.DEFAULT_GOAL := help
.PHONY: help setup setup-test servers java run demo test lint format docs fuzz model simulate chaos
.PHONY: benchmark clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.installed ## Make the virtual environment with Orthia in it

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Orthia needs Python 3.11 or newer; found $$($(PYTHON) --version 2>&1)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(APT_INSTALL) python3-venv; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test,pipeline]'
	@touch $@ $(VENV)/.installed

setup-test: $(VENV)/.installed-test servers java ## The same with all that the tests need

java: ## Install Java 17, on which Spark runs the pipeline, unless there is a Java as new
	@java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | grep -qE '^(1[7-9]|[2-9][0-9])$$' \
		|| { $(APT_INSTALL) openjdk-17-jre-headless; }

servers: ## Install PostgreSQL, MariaDB (the tests start private servers) and the model checker spin
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { $(APT_INSTALL) postgresql; }
	@command -v cc >/dev/null || { $(APT_INSTALL) gcc libc6-dev; }
	@PATH=$$PATH:/usr/sbin; command -v mariadbd >/dev/null || { $(APT_INSTALL) mariadb-server; }
	@command -v spin >/dev/null || { $(APT_INSTALL) spin; }

run: setup ## Start a live and a backup node on the embedded SQLite store; Ctrl-C stops both
	$(BIN)/orthia pair

demo: setup ## Play a failover in about a minute: kill -9 under load, takeover, nothing lost
	$(BIN)/orthia demo

test: setup-test ## Run every test, on private PostgreSQL, MariaDB and SQLite stores
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup $(PYTEST_ARGS)

lint: setup-test ## Ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .

fuzz: setup-test ## Throw EXAMPLES (20000) new inputs a test at every parser; an hour. make test has a few
	FUZZ_EXAMPLES=$(or $(EXAMPLES),20000) $(BIN)/python -m pytest --timeout 0 tests/hostile -k fuzz

model: setup-test ## Check the protocol's model exhaustively for two and three nodes; half an hour at most
	$(BIN)/python -m tests.model

simulate: setup-test ## Run thousands of simulated pairs through every fault; SEED=N to look at one
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED) --runs 1,--runs 3000)

chaos: setup-test ## Strike live and backups with FAULTS=60 faults on each DBMS and check every message
	$(BIN)/python -m tests.chaos --faults $(or $(FAULTS),60) $(if $(SEED),--seed $(SEED))

benchmark: setup-test ## Measure throughput, takeovers and a backlog of a million messages; 20 minutes
	$(BIN)/python -m benchmarks.throughput
	$(BIN)/python -m benchmarks.takeover
	$(BIN)/python -m benchmarks.backlog

docs: setup-test ## Write the documents that are generated
	$(BIN)/python -m config.reference > docs/configuration.md
	$(BIN)/python -m nodemanager.reference > docs/failover-log.md

format: setup-test ## Let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
