# Two commands are all a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TF     := .venv-tensorflow
DEVICES := $(patsubst %,validate/tests/test_%.py,backends calibrate_links replicas shaped)
TF_GPU := .venv-tensorflow-gpu
TORCH  := .venv-pytorch
BROWSER := .venv-browser
NCCL   := .venv-nccl
UV     := .venv-uv

# One release of every package for each Python; `make lock` chooses them. With `make CONSTRAINTS=`
# pip chooses.
CONSTRAINTS := constraints.txt
PIP_INSTALL  = install --quiet --disable-pip-version-check $(CONSTRAINTS:%=--constraint %)

# Pythons from 3.11 on that start, newest last. A name alone proves nothing: pyenv has names for
# Pythons that it keeps switched off.
PYTHONS = $(shell for minor in 11 12 13 14 15 16 17 18 19; do \
  if python3.$$minor -c "import ensurepip, venv" 2>/dev/null; then echo python3.$$minor; fi; done)

.PHONY: run docs test lint types machine-code tests test-quick test-pythons test-newest pythons \
  lock test-slow thorough fuzz test-tensorflow test-pytorch test-browser test-browser-whole test-devices \
  ask-nccl ask-programs test-tensorflow-slow validate-gpu test-validate-gpu bench bench-table container \
  container-works clean

run: $(VENV)/.installed
	$(BIN)/simreduce run scenarios/dgx1v-resnet50.toml

# What numba compiles is compiled once, before any worker of pytest starts.
PYTEST  = $(BIN)/pytest --numprocesses auto --dist loadfile

test: $(VENV)/.tested
	@begin=$$(date +%s); \
	$(MAKE) --no-print-directory --jobs 3 --output-sync=target lint types machine-code && \
	$(MAKE) --no-print-directory tests && echo "make test: $$(($$(date +%s) - begin)) s"

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tested
	$(BIN)/mypy

machine-code: $(VENV)/.tested
	@$(BIN)/python -m tests.machine_code

tests: machine-code
	$(PYTEST) -m "not slow and not thorough"

# What a Python or a package breaks first, in two minutes on two cores.
LONG  := $(addprefix tests/test_,api.py documents.py layers.py schemas.py)
QUICK := $(filter-out $(LONG),$(wildcard tests/test_*.py)) $(addprefix tests/, \
  app/cli/test_commands.py app/cli/test_described.py files/formats plan planners/synthesis \
  study/sweep training/executions)

test-quick: machine-code
	$(PYTEST) -m "not slow and not thorough" $(QUICK)

# The main job and the suite on every Python here, each in an environment of its own.
test-pythons:
	test -n "$(PYTHONS)"
	$(MAKE) --keep-going $(PYTHONS:%=test-%)

test-python3.%:
	$(MAKE) VENV=.venv-python3.$* PYTHON=python3.$* run tests

# The same with the newest release of every package, on the newest Python here.
test-newest:
	rm -rf .venv-newest
	$(MAKE) VENV=.venv-newest CONSTRAINTS= PYTHON=$(or $(lastword $(PYTHONS)),$(PYTHON)) run tests

pythons:
	@echo $(PYTHONS)

# Writes constraints.txt: the newest releases that go together.
lock: $(UV)/bin/python
	$(UV)/bin/pip install --quiet --disable-pip-version-check --upgrade uv
	$(UV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
	  --no-emit-index-url --no-annotate --custom-compile-command "make lock" \
	  --output-file constraints.txt pyproject.toml

# What a change breaks and `make test` has no time for: outputs on the pages of docs, long lists.
test-slow: machine-code
	$(PYTEST) -rs -m "slow and not thorough"

# Every test with all its cases and examples, random ones of properties too: whole models, installs,
# every subset of a DGX-1, completion in shells. Takes an hour or more; run it before a capability is
# called done. As root it installs Debian's zsh and fish where they are missing; else their tests say
# that they are left out.
thorough: machine-code
	(command -v zsh && command -v fish) >/dev/null || test "$$(id -u)" != 0 || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends zsh fish) || \
	  echo "zsh or fish is missing here, and cannot be installed"
	SIMREDUCE_THOROUGH=1 $(PYTEST) -rs

# Ten thousand damaged files of every format, and texts that name machines; `make tests` tries a
# hundred.
fuzz: $(VENV)/.tested
	SIMREDUCE_FUZZ=10000 $(BIN)/pytest tests/topology/importers/test_fuzz.py \
	  tests/topology/test_fuzz.py
	$(BIN)/pytest tests/app/cli/test_hostile.py

# Plans against the graphs of TensorFlow's own builders, and executed by TensorFlow. TensorFlow is
# large, so it has an environment of its own.
test-tensorflow: $(TF)/.tested
	$(TF)/bin/pytest -m "not slow" validate/tests --ignore validate/tests/test_emitter.py \
	  $(DEVICES:%=--ignore %)
	$(TF)/bin/pytest -m "not slow" validate/tests/test_emitter.py

# Models, buckets, exports and schedules of pipelines against PyTorch itself, on the CPU; it has an
# environment of its own, too. MLCommons' reader of Chakra traces is there without its dependencies,
# which it does not need to read.
test-pytorch: $(TORCH)/.tested
	$(TORCH)/bin/pytest validate/pytorch

# NCCL's own library, asked without a GPU what it would do on the machines that ship; it has an
# environment of its own, with NCCL's wheels of several versions. Writes what it said where tests
# compare it with what we say, and shows what differs. Takes 45 minutes and 2 GB of memory a node,
# needs a C compiler, and runs beside no real driver. ASK=dgx-h100x2 asks of that machine only,
# VERSIONS=2.32.3 of these versions. PLUGIN=SOURCES asks what NCCL's example tuner plugin obeys, built
# from a checkout of NCCL 2.30.3 or later.
ASK      ?=
VERSIONS ?= $(if $(PLUGIN),$(PLUGGED))
PLUGIN   ?=
PLUGGED  := 2.28.9,2.30.7
NCCL_SAID = tests/planners/nccl/answers

ask-nccl: $(NCCL)/.installed
	$(NCCL)/bin/python -m simreduce_validate.nccl_library --tools $(NCCL)/library \
	  --answers $(NCCL_SAID)$(if $(PLUGIN),/tuner --plugin $(PLUGIN)) \
	  $(if $(VERSIONS),--nccl $(VERSIONS)) $(ASK)

# Programs that read what `simreduce export` writes, each in an environment of its own under
# .venv-programs: their parsers, or runs on the CPU. Writes what they understood where tests compare
# it with what was meant, and prints what differs. Takes half an hour and 20 GB, and root where
# packages of Debian are missing. PROGRAMS=jax,slurm asks these only; NEWEST=1 asks the newest releases,
# and writes to build/programs. Rows of the table in docs/how-to/export.md are printed at the end.
PROGRAMS ?=
NEWEST   ?=
COMMA    := ,

ask-programs: $(VENV)/.installed
	$(BIN)/python -m simreduce_validate.programs --environments .venv-programs \
	  $(if $(NEWEST),--newest --answers build/programs) $(subst $(COMMA), ,$(PROGRAMS))

# Reports in headless Chromium, in an environment of its own: all that a page can do, on some kinds of
# pages; test-browser-whole tries them all, and how soon a page is drawn and answers. As root it
# installs Debian's chromium where there is none.
test-browser: $(BROWSER)/.tested
	$(BROWSER)/bin/pytest -rP -m "not slow" browser

test-browser-whole: $(BROWSER)/.tested
	$(BROWSER)/bin/pytest -rP browser

# Clusters of processes, and links of known rate between network namespaces (needs root). Run them
# on an idle machine.
test-devices: $(TF)/.tested
	$(TF)/bin/pytest -m "not slow" $(DEVICES)

# Every algorithm with every packer on 2 to 8 devices, executed.
test-tensorflow-slow: $(TF)/.tested
	$(TF)/bin/pytest -m slow validate/tests

# On a machine with NVIDIA GPUs: learn its constants, then time every algorithm as copies and sums,
# and NCCL by both of TensorFlow's ops (`nccl` is NcclAllReduce), beside the predictions. Writes
# gpu-DATE.* to validate/results, and overwrites nothing. SPLIT=4 cuts a machine's one GPU in four,
# which NCCL does not take. SIZES, ITERS, ROUTE, TOPOLOGY and LEARN (more options of `calibrate`) may
# be given. As many algorithms of a size are ready at once as half of a GPU's memory has room for.
# PRETEND=1 runs the same commands on CPU devices, without NCCL.
SPLIT    ?= 1
SIZES    ?= -b 64K -e 16M -f 16
ITERS    ?= 20
ROUTE    ?= session
RESULTS  ?= validate/results
TOPOLOGY ?= $(if $(PRETEND),switch:$(if $(filter-out 1,$(SPLIT)),$(SPLIT),4),auto)
GPU_TF    = $(if $(PRETEND),$(TF)/.tested,$(TF_GPU)/.installed)
GPU_RUN   = $(dir $(GPU_TF))bin/simreduce
GPU_FLAGS = --backend gpu --route $(ROUTE) --split $(SPLIT) $(if $(PRETEND),--pretend)
GPU_NCCL  = $(if $(PRETEND)$(filter-out 1,$(SPLIT)),,--builtin CollectiveReduceV2:nccl)
LEARN    ?=
GPU_NAME := $(RESULTS)/$(if $(PRETEND),pretended,gpu)-$(shell date -u +%Y%m%d-%H%M%S)

validate-gpu: $(GPU_TF)
	$(if $(PRETEND),,nvidia-smi topo -m)
	$(GPU_RUN) calibrate $(TOPOLOGY) $(GPU_FLAGS) $(LEARN) --out $(GPU_NAME).toml
	$(GPU_RUN) validate $(TOPOLOGY) $(GPU_FLAGS) --algo all $(GPU_NCCL) $(SIZES) -n $(ITERS) \
	  --calibration $(GPU_NAME).toml --out $(GPU_NAME).jsonl --svg $(GPU_NAME).svg

# The same commands in two minutes, on two CPU devices with few samples, enough for a rough fit first,
# and the command that reads these samples again. SPLIT=2 makes the number of devices: parts of a
# GPU are logical GPUs, which CPU devices do not have, so what it opens stays untested here.
PRETENDED = build/pretended

test-validate-gpu: $(TF)/.tested
	rm -rf $(PRETENDED)
	mkdir -p $(PRETENDED)
	$(MAKE) --no-print-directory validate-gpu PRETEND=1 RESULTS=$(PRETENDED) SPLIT=2 \
	  LEARN="-n 7 --no-held-out" SIZES="-b 16K -e 16K" ITERS=3 > $(PRETENDED)/said 2>&1; \
	  status=$$?; cat $(PRETENDED)/said; exit $$status
	grep "first, rough constants are in $(PRETENDED)" $(PRETENDED)/said
	fit=$$(echo $(PRETENDED)/*.fit.jsonl); $(TF)/bin/simreduce calibrate --from-samples \
	  $$fit $${fit%.fit.jsonl}.jsonl --out $(PRETENDED)/again.toml

# The documentation as a site in build/docs; a warning is an error.
docs: $(VENV)/.documented
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -b html docs build/docs

bench: $(VENV)/.benched
	$(BIN)/pytest benchmarks --benchmark-only

# Whole commands: seconds, CPU seconds and peak memory.
bench-table: $(VENV)/.installed
	$(BIN)/python benchmarks/table.py

$(VENV)/bin/python $(TF)/bin/python $(TF_GPU)/bin/python $(TORCH)/bin/python \
  $(NCCL)/bin/python $(BROWSER)/bin/python $(UV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "simreduce needs Python 3.11 or newer; run: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(@:/bin/python=)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/pip $(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.tested: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/pip $(PIP_INSTALL) --editable '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.documented: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/pip $(PIP_INSTALL) --editable '.[docs]'
	touch $@ $(VENV)/.installed

$(VENV)/.benched: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/pip $(PIP_INSTALL) --editable '.[bench]'
	touch $@ $(VENV)/.installed

$(TF)/.tested: pyproject.toml $(CONSTRAINTS) | $(TF)/bin/python
	$(TF)/bin/pip $(PIP_INSTALL) --editable '.[test-tensorflow]'
	touch $@

$(TORCH)/.tested: pyproject.toml $(CONSTRAINTS) | $(TORCH)/bin/python
	$(TORCH)/bin/pip $(PIP_INSTALL) --editable '.[test-pytorch]'
	$(TORCH)/bin/pip $(PIP_INSTALL) --no-deps mlc-chakra==1.0.0
	touch $@

$(NCCL)/.installed: pyproject.toml $(CONSTRAINTS) | $(NCCL)/bin/python
	$(NCCL)/bin/pip $(PIP_INSTALL) --editable .
	touch $@

$(BROWSER)/.tested: pyproject.toml $(CONSTRAINTS) | $(BROWSER)/bin/python
	command -v chromium || test "$$(id -u)" != 0 || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)
	$(BROWSER)/bin/pip $(PIP_INSTALL) --editable '.[test-browser]'
	touch $@

$(TF_GPU)/.installed: pyproject.toml $(CONSTRAINTS) | $(TF_GPU)/bin/python
	$(TF_GPU)/bin/pip $(PIP_INSTALL) --editable '.[plot,tensorflow-gpu]'
	touch $@

# An image with simreduce installed, and the main job in it. Needs podman or docker, and an image
# BASE with Python 3.11 or newer and its venv.
ENGINE      ?= $(shell command -v podman || command -v docker)
BASE        ?= docker.io/library/python:3.12-slim
BUILD_FLAGS ?=
RUN_FLAGS   ?=
RUN_IMAGE    = $(ENGINE) run --rm --network none $(RUN_FLAGS)

container:
	$(ENGINE) build $(BUILD_FLAGS) --build-arg BASE=$(BASE) --tag simreduce --file Containerfile .
	$(RUN_IMAGE) simreduce

# Whether `make container` can work: an engine without its daemon, or without a way to the base
# image, runs nothing.
container-works:
	test -n "$(ENGINE)" && timeout 300 $(RUN_IMAGE) $(BASE) python3 --version

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
