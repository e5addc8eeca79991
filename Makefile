# Run "make help" for the list of targets.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules

BUF_VERSION                := v1.75.0
PROTOC_GEN_GO_VERSION      := v1.36.12
PROTOC_GEN_GO_GRPC_VERSION := v1.6.2
GOLANGCI_LINT_VERSION      := v2.15.0
BENCHSTAT_VERSION          := v0.0.0-20250813145418-2f7363a06fe1

IMAGE    ?= writ:dev
# Packages with goroutines of their own, for the race detector.
RACE     ?= ./actors/... ./persistence/... ./sharding/...
FUZZ     ?= 50000
COUNT    ?= 10
BENCH    ?= .
# By how much allocations may grow before bench-compare fails, in percent.
GROWTH   ?= 5

# Unit, transcript and in-process cluster tests: everything but the chaos tests.
packages = $$(go list ./... | grep -v '/test/chaos')
compose  = $$(docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) -p writ

.PHONY: all
all: build lint test ## Build, lint and test

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

## Tools, pinned, in ./bin. A tool is installed if it is missing or of another version.

# $(call install,path of the command,version of its module)
define install
	@go version -m bin/$(notdir $(patsubst %/,%,$(1))) 2>/dev/null | awk '$$1 == "mod" { print $$3 }' | grep -qxF '$(2)' || \
	  for try in 1 2 3; do echo 'install $(1)@$(2)'; GOBIN='$(CURDIR)/bin' go install $(1)@$(2) && break; [ $$try != 3 ]; done
endef

.PHONY: tools
tools: tools-generate tools-lint ## Install the pinned tools into ./bin

.PHONY: tools-generate
tools-generate:
	$(call install,github.com/bufbuild/buf/cmd/buf,$(BUF_VERSION))
	$(call install,google.golang.org/protobuf/cmd/protoc-gen-go,$(PROTOC_GEN_GO_VERSION))
	$(call install,google.golang.org/grpc/cmd/protoc-gen-go-grpc,$(PROTOC_GEN_GO_GRPC_VERSION))

.PHONY: tools-lint
tools-lint:
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$(GOLANGCI_LINT_VERSION))

## Code.

.PHONY: generate
generate: tools-generate ## Generate Go code from proto/
	bin/buf lint
	bin/buf generate

.PHONY: check-generate
check-generate: tools-generate ## Fail if the generated code in git is not what proto/ says
	bin/buf lint
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	bin/buf generate -o "$$fresh"; \
	diff -r -x '*.proto' -x google "$$fresh/proto" proto || { echo 'generated code is stale: run "make generate" and commit'; exit 1; }; \
	untracked=$$(git ls-files --others --exclude-standard -- proto 2>/dev/null || true); \
	[ -z "$$untracked" ] || { echo "not in git: $$untracked"; exit 1; }

.PHONY: fmt
fmt: tools-lint ## Format the Go code
	bin/golangci-lint fmt

.PHONY: lint
lint: tools-lint ## Lint, and check the law of the layers
	bin/golangci-lint config verify
	bin/golangci-lint run --allow-parallel-runners

.PHONY: build
build: ## Build everything; the node goes to dist/node, a static binary
	go build ./...
	@mkdir -p dist
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o dist/node ./cmd/node

## Tests. The -timeout of a package is for what hangs, some times what it takes: each test
## bounds itself.

.PHONY: test
test: ## Unit, transcript and in-process cluster tests
	go test -shuffle=on -count=1 -timeout=30m $(packages)
	go test -tags next -shuffle=on -count=1 -run 'Format|Newer|Note' ./persistence/...

.PHONY: race
race: ## The concurrent packages under the race detector
	go test -race -shuffle=on -count=1 -timeout=20m $(RACE)

.PHONY: cover
cover: ## Test coverage by function, in coverage.out
	go test -count=1 -coverprofile=coverage.out $(packages)
	go tool cover -func=coverage.out

# Fuzzing is bounded by a number of inputs, not by time: Go 1.26 may report the end
# of the fuzzing time itself as a failure (go.dev/issue/75804).

# Fuzz tests that open files for each input. Go ends one that takes ten seconds for an
# input, so the files are in memory where that is possible, but not Go's own.
FUZZ_HEAVY := FuzzApplyAgainstModel

.PHONY: fuzz
fuzz: ## Every fuzz test with FUZZ=50000 inputs, heavy ones with a 500th of that
	@{ grep -rl --include='*_test.go' '^func Fuzz' . || true; } | xargs -r -n1 dirname | sort -u | while read -r dir; do \
	  { grep -ho '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go; } | cut -d' ' -f2 | while read -r name; do \
	    inputs=$(FUZZ); files=$${TMPDIR:-/tmp}; go=$$files; \
	    case "$$name" in $(FUZZ_HEAVY)) inputs=$$((inputs / 500)); [ ! -w /dev/shm ] || files=/dev/shm ;; esac; \
	    echo "fuzz $$dir $$name, $$inputs inputs"; \
	    TMPDIR=$$files GOTMPDIR=$$go go test -run='^$$' -fuzz="^$$name\$$" -fuzztime=$${inputs}x "$$dir" </dev/null; \
	  done; \
	done

# Cases against processes that take longer, some minutes together.
CHAOS_SLOW := Upgrade|Clock|Release|FrozenDisk|FullDisk|FailedFlush|Timers|ConsumerOutage|Damage|WipedDisk|Scale|Refill|AddressesChange|SeedDown|FreshNodes|MoveShard|DeadNode|OpenStreams|Network|Order|Idle

# Tests that have a long form, which WRIT_LONG=1 runs.
LONG := HotEntity|PoisonCostsOthersNothing|TimersAcrossLeaders|BrokenStoresShow|BrokenPreconditionsShow|PrometheusFiresAnAlert

.PHONY: chaos
chaos: build ## Chaos smoke: processes, faults and an audit, three minutes
	WRIT_NODE='$(CURDIR)/dist/node' go test -v -count=1 -timeout=20m -skip '$(CHAOS_SLOW)' ./test/chaos/... | grep -a --line-buffered -vE '^=== '

.PHONY: chaos-slow
chaos-slow: build ## The other cases against processes: networks, disks, clocks, upgrades, moves, timers, a missing consumer
	WRIT_NODE='$(CURDIR)/dist/node' go test -v -count=1 -timeout=25m -run '$(CHAOS_SLOW)' ./test/chaos/... | grep -a --line-buffered -vE '^=== '

.PHONY: chaos-long
chaos-long: build ## All chaos tests with their full numbers, about eighty minutes
	WRIT_NODE='$(CURDIR)/dist/node' CHAOS_LONG=1 go test -v -count=1 -timeout=6h ./test/chaos

# What measures has the machine to itself: one package after the other.
.PHONY: long
long: ## Poison rows, hot entities, timers and alerts with their full numbers, a quarter of an hour on a quiet machine
	WRIT_LONG=1 go test -p 1 -v -count=1 -timeout=3h -run '$(LONG)' ./actors ./cmd/node/node ./test/sim | grep -a --line-buffered -vE '^=== '

.PHONY: sim
sim: ## Simulated clusters under virtual time, SEEDS=300, or SEED= for one of them
	SIM_SEEDS=$(or $(SEEDS),300) SIM_SEED=$(SEED) go test -count=1 -timeout=30m ./test/sim

.PHONY: faults
faults: ## Kill processes at every named boundary, lose messages and verdicts there
	go test -tags faults -count=1 -timeout=30m -v ./test/faults | grep -a --line-buffered -vE '^=== '
	go test -tags faults -count=1 -timeout=10m -v -run '^TestFault' ./cmd/node/node | grep -a --line-buffered -vE '^=== '

.PHONY: mutants
mutants: ## Switch off one safeguard at a time: a test must notice
	go test -tags mutants -count=1 -timeout=30m -v ./test/mutants | grep -a --line-buffered -vE '^=== '

.PHONY: model
model: ## Check the model of the protocol, docs/model, where spin is installed
	@if command -v spin >/dev/null; then docs/model/check; else echo 'SKIP model: spin is not installed'; fi

.PHONY: bench
bench: ## Go benchmarks, COUNT=10 BENCH=.
	@{ grep -rl --include='*_test.go' '^func Benchmark' . || true; } | xargs -r -n1 dirname | sort -u | \
	  xargs -r go test -run='^$$' -bench='$(BENCH)' -benchmem -count=$(COUNT)

.PHONY: bench-compare
bench-compare: ## Go benchmarks against REF=, fails if allocations grow by more than GROWTH=5 percent
	@[ -n '$(REF)' ] || { echo 'say what to compare with: make bench-compare REF=main'; exit 2; }
	$(call install,golang.org/x/perf/cmd/benchstat,$(BENCHSTAT_VERSION))
	@scripts/bench-compare '$(REF)' '$(BENCH)' '$(COUNT)' '$(GROWTH)'

.PHONY: ci
ci: tools check-generate lint build test race fuzz model mutants faults sim chaos chaos-slow compose-smoke ## Everything that must pass; what .ci/run calls

## Running it.

.PHONY: demo
demo: build ## Three nodes on loopback and a sample workload; Ctrl-C ends it
	@examples/demo dist/node

.PHONY: image
image: build ## Container image from scratch, nothing pulled
	@mkdir -p dist/data
	docker build -t '$(IMAGE)' -f Dockerfile dist

.PHONY: up
up: image ## Three nodes with docker-compose, and wait until they are ready
	WRIT_IMAGE='$(IMAGE)' $(compose) up -d --remove-orphans
	@for http in 7401 7411 7421; do dist/node health --http 127.0.0.1:$$http --wait 60s; done
	@echo 'clients: --addr 127.0.0.1:7400,127.0.0.1:7410,127.0.0.1:7420'

.PHONY: down
down: ## Stop the nodes of "make up"; their volumes stay
	WRIT_IMAGE='$(IMAGE)' $(compose) down

.PHONY: compose-smoke
compose-smoke: build ## make up, a small workload, audit, and everything removed again
	@if ! docker info >/dev/null 2>&1; then echo 'SKIP compose-smoke: no Docker engine answers ("docker info" fails)'; \
	elif ! docker compose version >/dev/null 2>&1 && ! docker-compose version >/dev/null 2>&1; then \
	  echo 'SKIP compose-smoke: neither "docker compose" nor docker-compose is here'; \
	else scripts/compose-smoke; fi

.PHONY: clean
clean: ## Remove build results; tools and data stay
	rm -rf dist coverage.out
