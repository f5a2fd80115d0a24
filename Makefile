# Front door: `make help` lists the targets.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
PRESET ?= release
# Build everything, or the targets given, in the folder of a preset.
BUILD = cmake --preset $(1) >/dev/null && cmake --build --preset $(1) -j $(JOBS) $(if $(2),--target $(2))

.PHONY: help demo install test check release bench soak cuda gputest gpubench fmt lint clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: ## build, and let the shipped model answer
	@tools/setup.sh
	@$(call BUILD,release,deepinfer)
	@tools/demo.sh

release: ## optimised build: build/release/deepinfer, tests and benches
	@tools/setup.sh
	@$(call BUILD,release)

# PREFIX and DESTDIR as usual: make install PREFIX=/usr DESTDIR=stage
PREFIX ?= /usr/local

install: ## the program, libdeepinfer with header and pkg-config file, into PREFIX (/usr/local); PRESET=cuda: with the back end for GPUs
	@tools/setup.sh $(if $(filter cuda,$(PRESET)),--cuda)
	@$(call BUILD,$(PRESET),deepinfer deepinfer_static $(if $(filter cuda,$(PRESET)),deepinfer_cuda))
	@DESTDIR="$(DESTDIR)" cmake --install build/$(PRESET) --prefix "$(PREFIX)"

test: ## one build and all tests
	@tools/setup.sh --test
	@$(call BUILD,$(PRESET))
	@ctest --test-dir build/$(PRESET) -j $(JOBS) -LE soak --output-on-failure --no-tests=error

check: ## everything that CI runs: tests, second compiler, sanitizers, lint, fuzzers, CUDA
	@tools/setup.sh --dev
	@tools/check.sh

bench: ## measure; CSV files in bench/out, and a table
	@tools/setup.sh --test
	@$(call BUILD,release)
	@bench/run.sh

# Rounds of the one-answer test in a soak; build/soak/one_answer keeps how many are done.
N ?= 1000

soak: ## long runs: N rounds of the one-answer test (1000; goes on where it was), tests labelled soak, then every fuzzer for SOAK_S seconds (600)
	@tools/setup.sh --dev
	@$(call BUILD,release)
	@mkdir -p build/soak
	@build/release/tests/one_answer --model tests/data/models/mini-f --model tests/data/models/mini-b \
	  --model models/tiny --rounds $(N) --state build/soak/one_answer --demand
	@ctest --test-dir build/release -L soak --output-on-failure
	@tools/fuzz.sh $${SOAK_S:-600}

cuda: ## the program with its back end for Hopper GPUs: build/cuda/deepinfer
	@tools/setup.sh
	@tools/cuda.sh deepinfer

gputest: ## on a machine with a Hopper GPU: op tests, golden vectors, batch invariance, memory checks
	@tools/gpu.sh test

gpubench: ## on such a machine: ceilings and operations, CSV in bench/out
	@tools/gpu.sh bench

fmt: ## format the C sources
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format-14 -i

lint: ## formatting, house rules, clang-tidy
	@tools/setup.sh --dev
	@cmake --preset release >/dev/null
	@tools/lint.sh

clean: ## remove what was built; keep downloads (build/venv, build/third_party, build/cuda-toolkit)
	@shopt -s extglob nullglob; rm -rf build/!(venv|third_party|cuda-toolkit) bench/out
