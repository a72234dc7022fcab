# Each target does all its own set-up, into .venv/ and .cache/. Needs Python >= 3.10 and a C++20 compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODELS := .cache/models
SOURCE := .cache/source/SmolLM2-135M-Instruct.Q4_1.gguf
NATIVE := CMakeLists.txt pyproject.toml $(wildcard native/*)
# What decides the bytes of a converted model.
CONVERSION := $(wildcard src/exactlm/convert/*.py src/exactlm/format/*.py src/exactlm/models/*.py src/exactlm/numerics/*.py src/exactlm/text/*.py)
# The linear algebra library of NumPy is not on the exact path; one thread keeps tests from crowding the machine.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help demo test check check-all models vectors clean

help:
	@echo "make demo       fetch a real model, convert it, answer, and show that nothing changes a bit (under 3 minutes)"
	@echo "make test       the test suite (under 10 minutes)"
	@echo "make check      formatting, linting, types, imports, native tests on this machine"
	@echo "make check-all  everything: also sanitizers, other architectures under qemu, whole models and receipts there, the long sweeps"
	@echo "make models     only fetch and convert the real model"
	@echo "make vectors    rewrite spec/vectors from the NumPy reference"

$(VENV)/made: $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/linters: $(VENV)/made
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

$(SOURCE): | $(VENV)/made
	$(BIN)/python tools/fetch_model.py $@

$(MODELS)/smollm2-135m-%/manifest.json: $(SOURCE) $(CONVERSION)
	$(BIN)/exactlm convert $(SOURCE) -o $(MODELS)/smollm2-135m-$* --precision $* --overwrite
	touch $@

models: $(VENV)/made $(MODELS)/smollm2-135m-fp16/manifest.json $(MODELS)/smollm2-135m-int8/manifest.json

demo: models
	$(BIN)/python tools/demo.py $(MODELS)/smollm2-135m-fp16 $(MODELS)/smollm2-135m-int8

test: models
	$(BIN)/python -m pytest -m "not slow"

check: $(VENV)/linters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror native/*.h native/*.cpp tests/native/*.cpp
	bash tools/native_check.sh host symbols

check-all: check models
	bash tools/native_check.sh sanitize aarch64 haswell riscv64 s390x
	bash tools/emulated_model.sh haswell aarch64
	$(BIN)/python -m pytest

vectors: $(VENV)/made
	$(BIN)/python tools/make_vectors.py

clean:
	rm -rf build $(VENV) .cache
