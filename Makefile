# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PYTHONS ?= python3.11 python3.12 python3.13
# Tests that together use every package that `setup` installs.
FAST := $(addprefix tests/,cli config corpus data/test_loader.py eval formats images launch nn recipes/clip/test_imagenet.py rendering tokenizers \
	training/test_metrics.py running/test_doctor.py end_to_end/test_plain_imports.py end_to_end/test_foreign_towers.py \
	end_to_end/test_five_commands.py)
# Suites that have something to do on a GPU.
PRETENDED := $(addprefix tests/,recipes training nn eval end_to_end)
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DELETE_ON_ERROR:
.PHONY: setup demo test test-slow test-fast test-lowest test-matrix test-gpu-benchmark test-codegen test-pretended-cuda test-cuda campaign-kill campaign-faults campaign-soak campaign-mutate compare-losses fuzz audit lint format bench gallery docs clean

setup: $(VENV)/.done

$(VENV)/.done: pyproject.toml setup.py $(CONSTRAINTS) $(wildcard $(foreach depth,* */* */*/*,src/pretrainkit/$(depth).[ch]))
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pretrainkit needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Give another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch torchvision
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	$(BIN)/python -m pretrainkit.exporting.torchvision_shim
	touch $@

demo: setup
	$(BIN)/pretrainkit demo

# Bytecode is written; otherwise each process that the tests start would compile the package again.
test test-slow test-fast test-pretended-cuda: export PYTHONDONTWRITEBYTECODE :=
# glibc keeps the memory that a process frees: without this, tests take 2 % longer to request it from the system again.
test test-slow test-fast test-pretended-cuda: export MALLOC_TRIM_THRESHOLD_ := 2000000000
test test-slow test-fast test-pretended-cuda: export MALLOC_MMAP_THRESHOLD_ := 1000000000

# Files run in the order of their names. The default order is by number of tests: files with few long tests would run last.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not slow'

# All other tests. CI runs both.
test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow

test-fast: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow' $(FAST)

# With the lowest versions that pyproject.toml allows, in .venv-lowest.
test-lowest: build/lowest.txt
	$(MAKE) VENV=.venv-lowest CONSTRAINTS=$< test-fast

build/lowest.txt: pyproject.toml tests/lowest_versions.py
	mkdir -p build
	$(PYTHON) tests/lowest_versions.py > $@

# With each of PYTHONS, in .venv-3.11 and so on. Fails if one of them is not installed.
test-matrix:
	@failed=; for python in $(PYTHONS); do \
		if version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		then $(MAKE) PYTHON=$$python VENV=.venv-$$version test-fast || failed="$$failed $$python (failed)"; \
		else failed="$$failed $$python (missing)"; fi; \
	done; \
	if [ -n "$$failed" ]; then echo "these do not work:$$failed" >&2; exit 1; fi; echo "all of these work: $(PYTHONS)"

# Run the GPU benchmark with tiny models on the CPU, to see that it works.
test-gpu-benchmark: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gpu.py --pretend --out "$$(mktemp -d)"

# Compile each block with Triton for a GPU, and check the code and, in an interpreter, its results. The CPU build of torch
# does not use Triton otherwise.
test-codegen: setup build/triton
	OMP_NUM_THREADS=1 PYTHONPATH=build/triton $(BIN)/python -m pytest tests/codegen

build/triton:
	$(BIN)/python -m pip install --quiet --no-deps --target $@ triton==3.7.1

# Suites on a device that pretends to be CUDA and computes on the CPU. The option -rs shows which tests are skipped, and why.
test-pretended-cuda: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m pytest -n 2 --dist loadfile -p support.pretended_cuda.plugin $(PRETENDED)

# The same suites on a GPU, in float32 without TF32. WITH: a Python that has torch for CUDA, pytest and this project's needs.
WITH ?= python3
test-cuda:
	OMP_NUM_THREADS=1 NVIDIA_TF32_OVERRIDE=0 PYTHONPATH=src:tests $(WITH) -m pytest -n 8 --dist loadfile -p support.on_cuda $(PRETENDED)

# Kill every stage at random moments and compare the results: docs/reliability.md. OPTIONS: see kill.py --help.
OPTIONS ?= --kills 100 --minutes 30 --seed 0
campaign-kill: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/campaigns/kill.py $(OPTIONS)

# Lets disks, clocks, ranks, checkpoints and data misbehave, and compares as above. Needs a C compiler.
campaign-faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/campaigns/kill.py --faults $(OPTIONS)

# Long runs on two ranks, with and without kills: equal losses, and flat memory. OPTIONS: see soak.py --help.
campaign-soak: OPTIONS = --minutes 30 --every 3
campaign-soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/campaigns/soak.py $(OPTIONS)

# Damaged and made-up input for every reader, or for one: docs/reliability.md.
TARGET ?= all
SECONDS ?= 60
SEED ?= 0
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py $(TARGET) --seconds $(SECONDS) --seed $(SEED)

# Known vulnerabilities of the installed packages; needs a connection to PyPI.
audit: setup
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --local --progress-spinner off

# Small runs of each recipe with the code of the revision REV and with this code: shows the first step that differs.
compare-losses: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/campaigns/compare_losses.py $(REV)

# Changes the code in one place at a time, and runs the tests that should notice: docs/reliability.md.
campaign-mutate: OPTIONS = --mutants 50 --minutes 60
campaign-mutate: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/campaigns/mutate.py $(OPTIONS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/check_words.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/run.py

# Run all demos with three seeds, and all tutorials, and write docs/gallery.md and docs/results.md: see docs/make_gallery.py.
gallery: setup
	$(BIN)/python docs/make_gallery.py

# The documentation site, in build/site: fails on a broken link and on a public name without documentation.
docs: setup $(BIN)/sphinx-build
	$(BIN)/python docs/make_pages.py build/pages
	$(BIN)/python -m sphinx -q -E -W --keep-going -c docs -d build/doctrees build/pages build/site
	@echo "the site is in build/site/index.html"

$(BIN)/sphinx-build:
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[docs]'

clean:
	rm -rf $(VENV) .venv-* build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
