# One entry to everything: people, pre-commit and CI call the same targets. `make` alone lists them.
#   PYTHON=python3.12   the interpreter of the environment (3.11 or later); by default the first fit one on PATH
#   ARGS="-k words"     more arguments for pytest (test, cover) or the resolver (lock ARGS=--upgrade)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
STAMP := .venv/.installed
PYTHON ?=
ARGS ?=

UV ?= uv
COMPILE = $(UV) pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate $(ARGS)

.PHONY: help venv debian testbed test cover check fix demo bench bench-cluster bench-agent lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

venv: $(STAMP) ## Make .venv: what the lock names, checked by hash, then the project itself, editable

$(STAMP): requirements-dev.lock pyproject.toml scripts/bootstrap.sh
	PYTHON="$(PYTHON)" bash scripts/bootstrap.sh .venv
	touch $@

debian: ## Install Prometheus with promtool for the tests that run it (Debian, as root; says so where it can't)
	@bash scripts/install_debian.sh

testbed: venv ## Build the Kubernetes control plane that tests run on (needs Go; minutes, once; outside the checkout)
	$(BIN)/python -m tests.testbed build

test: venv debian ## Run the tests; ARGS="-k words" narrows them
	$(BIN)/python -m pytest $(ARGS)

cover: venv debian ## Run the tests and list the branches that none of them takes
	$(BIN)/python -m pytest --cov --cov-report=term-missing $(ARGS)

check: venv ## Lint, format, types, direction of imports: changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fix: venv ## Apply what the linter and the formatter can do by themselves
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: venv ## Show the whole path on a simulated fleet with planted faults; needs no GPU and no cluster
	$(BIN)/python -m fixtures.demo

bench-cluster: venv debian ## Measure cordons and drains on 1,000 simulated nodes with a real control plane (some 15 minutes, 8 GB)
	$(BIN)/python -m tests.bench_cluster $(ARGS)

bench-agent: venv debian ## Measure from a kernel log's line to the taint with 200 agents, and under floods of lines (some 15 minutes, 10 GB)
	$(BIN)/python -m tests.bench_agent $(ARGS)

bench: venv ## Measure each part against its reference, one JSON object each (some 5 minutes; 2 GB of temporary files)
	@for part in "ingest --gpus 512 --metrics 60" "ingest --gpus 2048 --metrics 60" "ingest --gpus 16384 --metrics 60" \
	  "tick --gpus 504 --metrics 751" "tick --gpus 2048 --metrics 300" "tick --gpus 16384 --metrics 300" \
	  "score --gpus 16384 --metrics 60" "xid --lines 800000"; do \
	  $(BIN)/gpuwarden bench $$part -o json; \
	done

lock: ## Resolve the dependencies into requirements.lock and requirements-dev.lock (needs uv; ARGS=--upgrade)
	$(COMPILE) --output-file requirements.lock
	$(COMPILE) --group dev --constraint requirements.lock --output-file requirements-dev.lock

clean: ## Remove what the other targets made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.* build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
