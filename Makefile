# Everything a developer or a newcomer types. Needs Python >= 3.11, git and make; the rest goes into .venv.

PYTHON ?= $(firstword $(foreach name,python3.13 python3.12 python3.11 python3,$(shell command -v $(name) >/dev/null 2>&1 && $(name) -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1 && echo $(name))))
VENV := .venv
PY := $(VENV)/bin/python
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?=
ARGS ?=
JOBS ?= 2
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
KERNEL_STAMP := $(VENV)/.kernels
KERNEL_SOURCES := $(wildcard engine/kernels/cpu/*.cpp engine/kernels/cpu/*.h engine/kernels/cpu/build.py)

.DEFAULT_GOAL := help
.PHONY: help install dev serve pull format lint typecheck budgets test test-e2e test-clients test-gpu bench loc docs lock clean

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(PY):
	@test -n "$(PYTHON)" || { echo "make: Python 3.11, 3.12 or 3.13 with its venv module is needed (PYTHON=... names one)" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)

$(RUN_STAMP): $(PY) pyproject.toml requirements.lock scripts/install.py
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@$(PY) scripts/install.py
	@touch $@

$(DEV_STAMP): $(PY) pyproject.toml requirements.lock scripts/install.py
	@echo "Installing into $(VENV) with the developer's tools (a few minutes the first time)"
	@$(PY) scripts/install.py --extras dev,hub
	@touch $@ $(RUN_STAMP)

$(KERNEL_STAMP): $(RUN_STAMP) $(KERNEL_SOURCES)
	@$(PY) -m engine.kernels.cpu.build || echo "The torch path serves instead of the native kernels."
	@touch $@

install: $(KERNEL_STAMP) ## Create .venv with pinned versions and build the CPU kernels

dev: $(DEV_STAMP) $(KERNEL_STAMP) ## The same with the developer's tools

serve: install ## Serve the default model on 127.0.0.1:8000 (MODEL=, PORT=, HOST=, ARGS=)
	@$(PY) -m server serve --host $(HOST) --port $(PORT) $(if $(MODEL),--model $(MODEL)) $(ARGS)

pull: install ## Download the default model into the cache (MODEL=)
	@$(PY) -m server pull $(MODEL)

format: dev ## Format and fix what can be fixed
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

lint: dev ## Lint and check the format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

typecheck: dev ## mypy --strict
	@$(PY) -m mypy

budgets: dev ## Layers and budgets only
	@$(PY) -m pytest tests/test_architecture.py tests/test_budgets.py

test: lint typecheck ## Lint, types, budgets and all tests (JOBS at a time, 0: one after the other)
	@$(PY) -m pytest -n $(JOBS) --dist worksteal

test-e2e: dev ## Only the tests that start real server processes
	@$(PY) -m pytest -m e2e

test-clients: dev ## Only the tests that run real clients (installed once, into the cache)
	@$(PY) -m pytest -m "clients and not real_model"

test-gpu: dev ## Only the tests that need a CUDA device
	@$(PY) -m pytest -m gpu; status=$$?; [ $$status -eq 5 ] && echo "no GPU test was collected" || exit $$status

bench: install ## Compare serving with every installed peer (MODEL=, REPS=, ARGS=; docs/benchmarks.md)
	@$(PY) -m benchmarks.compare $(if $(MODEL),--model $(MODEL)) $(if $(REPS),--reps $(REPS)) $(ARGS)

loc: $(PY) ## Lines of code per package
	@$(PY) scripts/loc.py

docs: dev ## Check that the examples in README and docs run
	@$(PY) -m pytest tests/test_docs.py

lock: ## Resolve all versions anew into requirements.lock
	@rm -rf .lock-venv && $(PYTHON) -m venv .lock-venv
	@.lock-venv/bin/python -m pip install --quiet '.[dev,hub,zig]' torch==2.13.0 triton==3.7.1
	@{ sed -n '/^#/p' requirements.lock; .lock-venv/bin/python -m pip freeze --exclude callgate | sed 's/+[a-z0-9.]*$$//' | sort -f; } > requirements.new
	@mv requirements.new requirements.lock && rm -rf .lock-venv

clean: ## Remove .venv and everything built
	@rm -rf $(VENV) .lock-venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
