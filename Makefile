# Every target is one sentence here and in `make help`. CONTRIBUTING.md says when to use which.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test check fuzz fix bench bench-codec bench-wan

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 14

setup: ## Install what is missing: a C compiler, OpenBLAS, Rust
	@./scripts/setup.sh

build: setup ## Build every program (optimised, the same build the tests use)
	@./scripts/cargo.sh build --workspace --bins

demo: build ## Train handwritten digits: 1 coordinator, 2 servers, 4 workers, on this machine
	@./scripts/cargo.sh run -q -p slackline -- run configs/jobs/digits.toml

test: setup ## Run all tests, after building everything they start
	@./scripts/test.sh

check: setup ## Format, lints, docs, purity of the core, licences: everything short of tests
	@./scripts/check.sh

fuzz: setup ## Feed every decoder made-up bytes, FUZZ_SECONDS (60) each; a failing input is kept
	@./scripts/fuzz.sh

fix: setup ## Format the code in place
	@./scripts/cargo.sh fmt --all

bench: setup ## Measure every number in docs/BENCHMARKS.md (optimised build, an hour, a quiet machine)
	@./scripts/bench.sh

bench-codec: setup ## Measure every codec and optimizer against memcpy and triad, one core, 2 minutes
	@./scripts/cargo.sh bench -p slackline-common --bench kernels

bench-wan: setup ## Measure training over slow links beside PyTorch DDP (root, PYTHON with torch, an hour)
	@./scripts/bench-wan.sh
