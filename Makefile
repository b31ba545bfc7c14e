# Two commands are all a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TF     := .venv-tensorflow
DEVICES := $(patsubst %,validate/tests/test_%.py,backends calibrate_links replicas shaped)

.PHONY: run test lint types tests test-slow fuzz test-tensorflow test-devices test-tensorflow-slow bench clean

run: $(VENV)/.installed
	$(BIN)/simreduce run scenarios/dgx1v-resnet50.toml

test: lint types tests

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tested
	$(BIN)/mypy

tests: $(VENV)/.tested
	$(BIN)/pytest --numprocesses auto --dist loadgroup -m "not slow"

# What takes minutes: every subset of a DGX-1's GPUs, installs, compiling, whole models.
test-slow: $(VENV)/.tested
	$(BIN)/pytest --numprocesses auto --dist loadgroup -m slow

# Ten thousand damaged files of every kind that is read, and texts that name machines; `make tests` tries a few hundred.
fuzz: $(VENV)/.tested
	SIMREDUCE_FUZZ=10000 $(BIN)/pytest tests/topology/importers/test_fuzz.py tests/topology/test_fuzz.py

# Plans against the graphs of TensorFlow's own builders, and executed by TensorFlow. TensorFlow is large, so it has an
# environment of its own.
test-tensorflow: $(TF)/.tested
	$(TF)/bin/pytest -m "not slow" validate/tests --ignore validate/tests/test_emitter.py $(DEVICES:%=--ignore %)
	$(TF)/bin/pytest -m "not slow" validate/tests/test_emitter.py

# Clusters of processes, and links of known rate between network namespaces (root): they want a machine for themselves.
test-devices: $(TF)/.tested
	$(TF)/bin/pytest -m "not slow" $(DEVICES)

# Every algorithm with every packer on 2 to 8 devices, executed.
test-tensorflow-slow: $(TF)/.tested
	$(TF)/bin/pytest -m slow validate/tests

bench: $(VENV)/.benched
	$(BIN)/pytest benchmarks --benchmark-only

$(VENV)/bin/python $(TF)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "simreduce needs Python 3.11 or newer; run: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(@:/bin/python=)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.tested: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.benched: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@ $(VENV)/.installed

$(TF)/.tested: pyproject.toml | $(TF)/bin/python
	$(TF)/bin/pip install --quiet --disable-pip-version-check --editable '.[test-tensorflow]'
	touch $@

clean:
	rm -rf $(VENV) $(TF) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
