# `make train` and `make test` need nothing beforehand: they first install whatever is missing (scripts/setup.sh).

TASK ?= distracted/walker-walk
PRESET ?= auto
ARGS ?=

BIN := .venv/bin
PARALLEL := -n 2 --dist loadfile # a file stays in one process, which compiles what its tests share

# The stamps carry the kind of machine in their names, so that a tree set up on a machine without a GPU is set up
# again, with CUDA, once it is used on one that has a GPU.
GPU := $(if $(findstring GPU ,$(shell nvidia-smi -L 2>/dev/null)),cuda)
READY := .venv/.ready$(GPU:%=-%)
READY_DEV := .venv/.ready-dev$(GPU:%=-%)
INPUTS := pyproject.toml uv.lock scripts/setup.sh

.DEFAULT_GOAL := help
.PHONY: help setup train test test-all lint format clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## install what is missing: uv, the locked packages in .venv, software GL

train: $(READY) ## set up, then train: make train [TASK=...] [PRESET=...] [ARGS="..."]
	$(BIN)/undistracted train $(TASK) --preset $(PRESET) $(ARGS)

test: lint ## set up, lint, and run the quick tests
	$(BIN)/pytest -m "not slow" $(PARALLEL)

test-all: lint ## set up, lint, and run every test, the slow ones too
	$(BIN)/pytest $(PARALLEL)

lint: $(READY_DEV) ## check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(READY_DEV) ## fix style and formatting in place
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove what set-up and tests made (never runs/)
	rm -rf .venv .venv-uv .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written only after the whole set-up succeeded, so a half-finished one is taken up again.
$(READY): $(INPUTS)
	@scripts/setup.sh $(GPU)
	@touch $@

$(READY_DEV): $(INPUTS)
	@scripts/setup.sh dev $(GPU)
	@touch $(READY) $@
