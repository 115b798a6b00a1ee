# Two commands do everything: `make serve` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3.11
PORT ?= 8000
CONFIG ?= serve_config.yaml
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin

# pip's own settings (a wheel folder, a mirror) hold for uv too.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv
COMPILE := $(BIN)/uv pip compile --quiet --no-header --no-emit-find-links --no-emit-index-url \
	--python-version 3.11 --custom-compile-command "make lock"

.PHONY: serve test test-fast test-nightly faults soak lint format bench deploy stop check schema fields lock setup clean

serve: $(VENV)/.ready  ## set up, start everything on PORT, stay in the foreground
	@exec $(BIN)/python -m deployments serve --config $(CONFIG) --port $(PORT)

test: $(VENV)/.ready  ## set up and run the whole suite
	@$(BIN)/python -m pytest

test-fast: $(VENV)/.ready  ## without the real application: seconds
	@$(BIN)/python -m pytest tests/unit tests/router

test-nightly: $(VENV)/.ready  ## hostile input only, 20,000 cases that are new in every run
	@SWITCHYARD_NIGHTLY=1 $(BIN)/python -m pytest --timeout 3600 tests/router/hostile

faults: $(VENV)/.ready  ## parts of the application die, hang and change under traffic
	@$(BIN)/python -m pytest tests/faults

soak: $(VENV)/.ready  ## MINUTES of mixed traffic: nothing may fail, and nothing grow
	@MINUTES=$(or $(MINUTES),30) $(BIN)/python -m pytest tests/faults/soak.py

lint: $(VENV)/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.ready
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.ready  ## the router against the bare engine and Ray Serve LLM's own ingress
	@$(BIN)/python -m benchmarks.serving
	@$(BIN)/python -m benchmarks.friendli

deploy: $(VENV)/.ready  ## deliver a changed CONFIG to what runs: traffic moves without a restart
	@$(BIN)/python -m deployments deploy --config $(CONFIG)

stop:  ## stop what an earlier `make serve` left running
	@$(BIN)/python -m deployments stop

check: $(VENV)/.ready  ## validate CONFIG without starting anything
	@$(BIN)/python -m app.config check $(CONFIG)

schema: $(VENV)/.ready  ## the configuration's JSON Schema, for editors
	@$(BIN)/python -m app.config schema > serve_config.schema.json

fields: $(VENV)/.ready  ## the tables of fields in docs/dialects, from the code
	@$(BIN)/python -m app.dialects.field_table docs/dialects

setup: $(VENV)/.ready

$(VENV)/.ready: requirements/cpu.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@echo "Installing $$(grep -c == $<) locked packages into $(VENV)"
	@$(UV) pip sync --quiet --compile-bytecode $<
	@touch $@

lock:  ## renew both locks from their inputs
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(COMPILE) --override requirements/cpu-overrides.txt requirements/cpu.in -o requirements/cpu.lock
	env -u UV_FIND_LINKS $(COMPILE) --python-platform x86_64-manylinux_2_28 requirements/gpu.in -o requirements/gpu.lock

clean:
	@rm -rf $(VENV) .models .run .pytest_cache .mypy_cache .ruff_cache .hypothesis
