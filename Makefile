# Needs nothing but make, bash and Python >= 3.10: every target sets up .venv by itself (see .ci/setup).
BIN := .venv/bin
# Two test workers with one thread each. A file stays with one worker, which compiles kernels and loads models once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick test-all lint format docs bench gpu gpu-static clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | while IFS="$$(printf '\t')" read -r t d; do printf '  %-11s %s\n' "$$t" "$$d"; done

setup:  ## make or renew .venv
	@bash .ci/setup

demo: setup  ## a speech recogniser with and without a language model, on bundled clips
	@$(BIN)/hf-ngpulm demo

test: setup  ## linters, types and all tests but the slow ones
	@$(MAKE) --no-print-directory -j 2 lint quick

quick: setup
	$(PYTEST)

test-all: setup lint  ## the slow tests too, and new examples for the property tests
	$(PYTEST) -m "" --hypothesis-profile=new

lint: setup  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup  ## let ruff rewrite the sources
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup  ## the documentation as a site, in build/site; offline after the set-up
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup  ## time the language-model queries
	$(BIN)/python benchmarks/lm_queries.py

gpu:  ## GPU tests and timings, with the python3 that has torch with CUDA; no set-up
	python3 benchmarks/gpu.py

gpu-static: setup  ## registers, spills and shared memory of the GPU kernels; needs no GPU
	$(BIN)/python benchmarks/static_kernels.py
	$(if $(wildcard .venv/tritons/3.6.0),$(BIN)/python benchmarks/static_kernels.py --triton .venv/tritons/3.6.0)

clean:  ## remove .venv, caches and builds
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
