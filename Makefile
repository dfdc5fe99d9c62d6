# Every target does its own set-up on a fresh Debian or Ubuntu; `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JAVASCRIPT := tests/websocket/javascript
GO := tests/clients/go
AMQP_CLIENTS := tests/clients/amqp
GO_EXAMPLES := examples/go
JAVA_EXAMPLES := tests/examples/java
JMS := tests/clients/jms
# Tests wait more than they compute, for leases above all.
TEST_PROCESSES ?= $(shell nproc | awk '{ print ($$1 > 2 ? 8 : 3 * $$1) }')
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --use-pep517
# What is installed is what the lock says, byte for byte; its setuptools builds what must be built.
LOCKED := $(PIP_INSTALL) --require-hashes --no-build-isolation --requirement
# With a line for whatever is large. Python compiles what the tests import, which is a small part.
LOCKED_FOR_TESTS := $(subst --quiet install,install --progress-bar off --no-compile,$(LOCKED))
LARGE := grep --line-buffered -oE 'Downloading .*[0-9]{2,}\.[0-9]+ MB\)|Building wheel for [a-z]+|Installing collected'
HERE := $(PIP_INSTALL) --no-deps --no-build-isolation --editable .

# Of pip it has nothing but what it does: pip does not show how far a build is.
COMPILE := $(BIN)/python tools/build_backend.py
TESTS_COMPILED := tests/core tests/stomp tests/amqp tests/journal tests/file_journal tests/simulation \
	$(addprefix tests/process/test_,failover.py large_messages.py orderly_stop.py)

PYSPARKS ?= 4.0 4.1 4.2 4.3
PACKAGES := import sysconfig; print(sysconfig.get_path('purelib'))
SPARK_CONNECT := 'grpcio>=1.76' 'grpcio-status>=1.76' 'googleapis-common-protos>=1.71' 'zstandard>=0.25'
# PySpark 4.0 and 4.1 leave sockets to the collector of garbage.
LEAKS := -W ignore::pytest.PytestUnraisableExceptionWarning
# What reads, writes and sends; tests/pipeline/conftest.py leaves out streams before 4.2.
ON_EACH_PYSPARK := $(addprefix tests/pipeline/test_,jobs.py export.py restore.py sink.py \
	readers.py other_sessions.py stream_options.py streams.py history_stream.py)

PYTEST := $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadgroup
SLOWEST := --durations 20

UV_COMPILE := --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate setup.cfg tools/build.in
# What `make help` shows first, in this order.
FIRST := run demo test test-all compiled wheel clean

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-test setup-test-all packages packages-all run demo test test-all test-extended test-clients test-amqp test-api test-mysql test-pyspark upgrade-test lint format docs fuzz model queue-model
.PHONY: simulate chaos benchmark wheel compiled test-compiled lock screenshots clean

help: ## Show the targets
	@targets=$$(sed -nE 's/^([a-z-]+):.*## /\1\t/p' $(MAKEFILE_LIST)); \
		for target in $(FIRST); do grep "^$$target	" <<<"$$targets"; done | expand -t 16; \
		echo; grep -vE "^($$(tr ' ' '|' <<<'$(FIRST)'))	" <<<"$$targets" | expand -t 16

setup: $(VENV)/.installed ## Make the virtual environment with Orthia in it

$(VENV)/bin/python:
	@PYTHON=$(PYTHON) tools/packages venv $(LATER)
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "Installing Orthia and the packages of requirements.lock into $(VENV)"
	@$(LOCKED) requirements.lock
	@$(HERE)
	@touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml requirements.lock requirements-test.lock | $(VENV)/bin/python
	@echo "Installing Orthia, Spark and what the tests need into $(VENV): half a gigabyte the first time"
	@$(LOCKED) requirements.lock
	@set -o pipefail; $(LOCKED_FOR_TESTS) requirements-test.lock | { $(LARGE) || true; }
	@$(HERE)
	@touch $@ $(VENV)/.installed

# Where there is no npm the tests with clients of JavaScript are skipped, and say so.
$(VENV)/.installed-javascript: $(JAVASCRIPT)/package-lock.json
$(VENV)/.installed-javascript: USED_FOR := STOMP over WebSocket is not tested with @stomp/stompjs
$(VENV)/.installed-rhea: $(AMQP_CLIENTS)/javascript/package-lock.json
$(VENV)/.installed-rhea: USED_FOR := AMQP is not tested with rhea
$(VENV)/.installed-javascript $(VENV)/.installed-rhea: | $(VENV)/.installed-test
	@if ! command -v npm >/dev/null; then \
		echo "There is no npm: $(USED_FOR)"; \
	elif cd $(<D) && npm ci --ignore-scripts --no-audit --no-fund --loglevel error \
			--fetch-retries 1 --fetch-retry-mintimeout 1000; then \
		touch '$(abspath $@)'; \
	else \
		echo "npm failed: $(USED_FOR)"; \
	fi

# Nor is anything tested with clients of Go where there is no Go, or they cannot be had.
$(GO)/build/client: $(addprefix $(GO)/,main.go go.mod go.sum)
$(AMQP_CLIENTS)/go/build/client: $(addprefix $(AMQP_CLIENTS)/go/,main.go go.mod go.sum)
$(AMQP_CLIENTS)/go/build/client: USED_FOR := AMQP is not tested with go-amqp
$(GO)/build/client $(AMQP_CLIENTS)/go/build/client: GO_BUILD := build/client .
$(GO_EXAMPLES)/build/producer: $(addprefix $(GO_EXAMPLES)/,producer/main.go consumer/main.go pair/pair.go go.mod go.sum)
$(GO_EXAMPLES)/build/producer: GO_BUILD := build/ ./...
$(GO)/build/client $(GO_EXAMPLES)/build/producer: USED_FOR := STOMP is not tested with go-stomp
$(GO)/build/client $(AMQP_CLIENTS)/go/build/client $(GO_EXAMPLES)/build/producer:
	@if ! command -v go >/dev/null; then \
		echo "There is no Go: $(USED_FOR)"; \
	elif ! (mkdir -p $(@D) && cd $(@D)/.. && \
			GOTOOLCHAIN=local timeout 300 go build -mod=readonly -o $(GO_BUILD)); then \
		echo "go build failed: $(USED_FOR)"; \
	fi

# apt works while pip does, once there is a virtual environment.
setup-test: LATER := later test
setup-test: $(VENV)/bin/python ## The same with what `make test` needs
	@$(MAKE) --no-print-directory --jobs 2 packages $(VENV)/.installed-test

# Nor is anything tested with Java where there is no Maven, or it cannot reach its repository.
$(JAVA_EXAMPLES)/build/copied: USED_FOR := the outbox is not tested with Spring
$(JMS)/joram/build/copied: USED_FOR := AMQP is not tested with a suite of JMS
$(JMS)/spring/build/copied: USED_FOR := AMQP is not tested with Spring
$(JMS)/driver/build/copied: USED_FOR := AMQP is not tested with the driver of protonj2
$(JMS)/qpid/build/copied: USED_FOR := the tests of qpid-jms are not run
$(addsuffix /build/copied,$(JAVA_EXAMPLES) $(addprefix $(JMS)/,joram spring driver qpid)): %/build/copied: %/pom.xml
	@if ! command -v mvn >/dev/null; then \
		echo "There is no Maven: $(USED_FOR)"; \
	elif ! (cd $* && timeout 600 mvn -q -B -Dstyle.color=never dependency:copy-dependencies \
			-DincludeScope=runtime -DoutputDirectory=build && touch build/copied); then \
		echo "mvn failed: $(USED_FOR)"; \
	fi

setup-test-all: LATER := later test-all
setup-test-all: $(VENV)/bin/python ## The same with what `make test-all` needs
	@$(MAKE) --no-print-directory --jobs 2 packages-all $(VENV)/.installed-test
	@$(MAKE) --no-print-directory $(VENV)/.installed-javascript $(GO)/build/client \
		$(GO_EXAMPLES)/build/producer $(JAVA_EXAMPLES)/build/copied $(JMS)/joram/build/copied \
		build/proton/.installed

packages: ## Install what `make test` starts privately: PostgreSQL, MariaDB, Java
	@PYTHON=$(PYTHON) tools/packages test

packages-all: ## The same with a compiler, spin, Ruby's stomp, promtool and Chromium, which `make test-all` needs
	@PYTHON=$(PYTHON) tools/packages test-all

# The nodes of the pair are children, which find what is compiled in PYTHONPATH, too.
run: setup ## Start a live and a backup node on the embedded SQLite store; Ctrl-C stops both
	@compiled=$$([ '$(ORTHIA_COMPILED)' = no ] || $(BIN)/python -m tools.compiled use) && \
		PYTHONSAFEPATH=1 PYTHONPATH="$$compiled" $(BIN)/orthia pair

demo: setup ## Play a failover in about a minute: kill -9 under load, takeover, nothing lost
	$(BIN)/orthia demo

# The tests start some hundred nodes: each would compile every module anew where the environment
# forbids Python to keep what it compiled.
test test-all test-extended test-amqp test-clients test-compiled test-mysql test-pyspark upgrade-test: export PYTHONDONTWRITEBYTECODE =

test: setup-test ## Test every room on private PostgreSQL, MariaDB and SQLite stores, in minutes
	$(PYTEST) -m 'not extended' $(SLOWEST) $(PYTEST_ARGS)

test-all: setup-test-all ## Run every test; half an hour
	$(PYTEST) $(SLOWEST) $(PYTEST_ARGS)

test-extended: setup-test-all ## Run what test-all has beyond test
	$(PYTEST) -m extended $(SLOWEST) $(PYTEST_ARGS)

build/schemathesis/bin/schemathesis:
	@echo "Installing schemathesis into build/schemathesis"
	@$(PYTHON) -m venv build/schemathesis
	@build/schemathesis/bin/pip --disable-pip-version-check --quiet install schemathesis==4.32.5

# Beside .venv and behind all that is in it: it brings packages that are in there, too.
build/proton/.installed: | $(VENV)/bin/python
	@{ $(BIN)/python -m pip --disable-pip-version-check --quiet install --only-binary :all: \
			--target build/proton python-qpid-proton-wheel==0.39.0 && \
		echo '$(abspath build/proton)' > "$$($(BIN)/python -c "$(PACKAGES)")/proton.pth" && \
		touch $@; } || echo "pip failed: AMQP is not tested with proton"

# Built here it has TLS, if there are OpenSSL's headers.
build/proton-tls/.installed: | $(VENV)/bin/python
	@if $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-binary python-qpid-proton \
			--target build/proton-tls python-qpid-proton==0.40.0; then \
		touch $@; \
	else \
		echo "pip failed to build proton: AMQP with TLS is not tested with it"; \
	fi

.PHONY: interop
interop:
	@$(if $(QIT),$(AMQP_CLIENTS)/prepare_interop $(PYTHON) '$(QIT)',true)

test-amqp: build/proton-tls/.installed interop
test-amqp: $(VENV)/.installed-rhea $(AMQP_CLIENTS)/go/build/client $(patsubst %,$(JMS)/%/build/copied,joram spring driver)
test-amqp: setup-test build/proton/.installed ## Hold AMQP against proton, rhea, go-amqp, JMS, Spring Boot; with QPID_JMS and QIT, checkouts of their tests, against those
	@if [ '$(QPID_JMS)' ]; then \
		test -d '$(QPID_JMS)/qpid-jms-interop-tests' || { echo "QPID_JMS=$(QPID_JMS) is no checkout" \
			"of apache/qpid-jms"; exit 1; }; \
		$(MAKE) --no-print-directory $(JMS)/qpid/build/copied; \
	fi
	PYTHONPATH='$(abspath build/proton-tls)' AMQP_SUITES=all QPID_JMS='$(abspath $(QPID_JMS))' \
		$(if $(QIT),QIT='$(abspath $(QIT))') $(PYTEST) \
		tests/amqp tests/process/test_amqp.py tests/process/test_amqp_tls.py tests/clients/jms \
		tests/clients/test_amqp.py $(if $(QIT),tests/clients/test_interop.py) $(PYTEST_ARGS)

test-api: setup-test build/schemathesis/bin/schemathesis ## Hold the API against its OpenAPI document with EXAMPLES (20) of each operation
	$(BIN)/python -m tests.management.openapi_fuzz build/schemathesis/bin/schemathesis \
		--max-examples $(or $(EXAMPLES),20)

# PySpark is this environment's own; what else there is comes from .venv.
build/pyspark/%/.installed: $(VENV)/.installed-test
	@echo "Installing PySpark $* into build/pyspark/$*"
	@$(PYTHON) -m venv build/pyspark/$*
	@build/pyspark/$*/bin/pip --disable-pip-version-check --quiet install --no-compile --no-deps 'pyspark==$*.*'
	@build/pyspark/$*/bin/pip --disable-pip-version-check --quiet install $(SPARK_CONNECT)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c "$(PACKAGES)")')" \
		> "$$(build/pyspark/$*/bin/python -c "$(PACKAGES)")/orthia.pth"
	@touch $@

test-pyspark: $(PYSPARKS:%=build/pyspark/%/.installed) ## Run the pipeline on each of PYSPARKS (4.0 4.1 4.2 4.3), and over Spark Connect
	@for version in $(PYSPARKS); do \
		echo "PySpark $$version" && \
		build/pyspark/$$version/bin/python -m pytest --timeout 900 $(LEAKS) $(ON_EACH_PYSPARK) $(PYTEST_ARGS) \
			|| exit; \
	done

test-mysql: setup-test ## Run on MySQL what runs on MariaDB; MYSQLD=PATH names mysqld if PATH does not
	@mysqld='$(or $(MYSQLD),$(shell PATH=$$PATH:/usr/sbin command -v mysqld))'; \
	version=$$("$$mysqld" --version 2>&1) && ! grep -qi mariadb <<<"$$version" \
		|| { echo "make test-mysql needs MySQL's mysqld, found $${mysqld:-none} ($$version); say" \
			"make test-mysql MYSQLD=PATH"; exit 1; }; \
	MYSQLD=$$mysqld $(PYTEST) -k mysql \
		tests/database tests/migrations tests/nodemanager tests/journal tests/core tests/process \
		$(PYTEST_ARGS)

upgrade-test: setup-test-all ## Have nodes of an older version, AGAINST=CHECKOUT, and of this one serve together
	@test -d '$(AGAINST)/migrations/versions' || { echo "make upgrade-test needs a checkout of an older" \
		"version; say: git worktree add /tmp/older COMMIT; make upgrade-test AGAINST=/tmp/older"; exit 1; }
	AGAINST='$(abspath $(AGAINST))' $(PYTEST) \
		tests/upgrade $(PYTEST_ARGS)

lint: $(VENV)/.installed-test ## Ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .

test-clients: setup-test-all ## Run what users do with five clients of STOMP on every store, paged, over takeovers; half an hour
	CLIENTS=everywhere $(PYTEST) tests/clients $(PYTEST_ARGS)

fuzz: setup-test ## Throw EXAMPLES (20000) new inputs a test at every parser; an hour. make test has a few
	FUZZ_EXAMPLES=$(or $(EXAMPLES),20000) $(BIN)/python -m pytest --timeout 0 tests/hostile tests/amqp -k fuzz

queue-model: setup-test ## Hold a queue against its model EXAMPLES (200) times each kind, with all that clients say at once
	QUEUE_EXAMPLES=$(or $(EXAMPLES),200) $(BIN)/python -m pytest --timeout 0 tests/core/test_queue_model.py

model: setup-test-all ## Check the protocol's model exhaustively for two and three nodes; half an hour at most
	$(BIN)/python -m tests.model

simulate: setup-test ## Run thousands of new simulated pairs through every fault; SEED=N to look at one
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED) --runs 1,--runs 3000)

chaos: setup-test-all ## Strike pairs in each of WORLDS with FAULTS=60 faults (PAIRS=1 at once), check every message
	$(BIN)/python -m tests.chaos --at-once --faults $(or $(FAULTS),60) $(if $(SEED),--seed $(SEED)) \
		$(if $(WORLDS),--world $(WORLDS)) $(if $(PAIRS),--pairs $(PAIRS)) \
		$(if $(MINUTES),--minutes $(MINUTES))

benchmark: setup-test ## Measure throughput, takeovers and a backlog of a million messages; 20 minutes
	$(BIN)/python -m benchmarks.throughput
	$(BIN)/python -m benchmarks.takeover
	$(BIN)/python -m benchmarks.backlog

wheel: setup ## Make dist/orthia-VERSION-py3-none-any.whl, to install elsewhere: docs/installation.md
	@ORTHIA_COMPILED=no $(COMPILE) dist >/dev/null
	@ls dist/*-none-any.whl

$(VENV)/.installed-compiler: requirements-compile.lock | $(VENV)/.installed
	@PYTHON=$(PYTHON) tools/packages compiler
	@echo "Installing mypyc and the packages of requirements-compile.lock into $(VENV)"
	@$(LOCKED) requirements-compile.lock
	@touch $@

compiled: $(VENV)/.installed-compiler ## Compile the hot modules for make run, and make a wheel of them for this Python
	@wheel=$$(ORTHIA_COMPILED=$(or $(ORTHIA_COMPILED),2) $(COMPILE) dist | tail -n 1) && \
		$(BIN)/python -m tools.compiled keep "dist/$$wheel" && ls "dist/$$wheel"

# In a copy of the tests beside what the wheel has: where there is a checkout, that is imported. The C
# compiler does not optimize it, which takes minutes and tests nothing more.
test-compiled: setup-test-all ## Run the tests of what is compiled, and some of its nodes, on what was compiled
	@rm -rf build
	@ORTHIA_COMPILED=0 $(COMPILE) build/wheel >/dev/null
	@$(BIN)/python -m zipfile -e build/wheel/*.whl build/compiled
	@cp -R pyproject.toml tests benchmarks tools docs build/compiled
	@cd build/compiled && export PYTHONPATH="$$PWD" && \
		../../$(BIN)/python -m tools.compiled check && \
		../../$(PYTEST) $(TESTS_COMPILED) \
			$(PYTEST_ARGS)

docs: setup ## Write the documents that are generated
	$(BIN)/python -m tools.documents.configuration > docs/configuration.md
	$(BIN)/python -m tools.documents.failover_log > docs/failover-log.md
	$(BIN)/python -m tools.documents.stomp_headers > docs/stomp-headers.md
	$(BIN)/python -m tools.documents.node_states > docs/node-states.md
	$(BIN)/python -m tools.documents.management_api > docs/management-api.md

screenshots: setup-test ## Take the pictures of docs/console.md, of a real pair in Chromium
	$(BIN)/python -m tools.documents.screenshots docs/pictures

lock: ## Write requirements*.lock anew, of the newest versions that setup.cfg allows; needs uv
	ORTHIA_COMPILED=no uv pip compile $(UV_COMPILE) --output-file requirements.lock
	ORTHIA_COMPILED=no uv pip compile $(UV_COMPILE) --extra compile --constraints requirements.lock \
		--output-file requirements-compile.lock
	ORTHIA_COMPILED=no uv pip compile $(UV_COMPILE) --extra compile --extra test --extra pipeline \
		--constraints requirements-compile.lock --output-file requirements-test.lock

format: $(VENV)/.installed-test ## Let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(JAVASCRIPT)/node_modules $(GO)/build $(GO_EXAMPLES)/build $(JAVA_EXAMPLES)/build $(JMS)/*/build $(AMQP_CLIENTS)/javascript/node_modules $(AMQP_CLIENTS)/go/build build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
