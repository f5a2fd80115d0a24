# Front door: everything a newcomer needs. `make help` lists the targets.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
BUILD = cmake --preset $(1) >/dev/null && cmake --build --preset $(1) -j $(JOBS)

.PHONY: release
release:
	@$(call BUILD,release)
