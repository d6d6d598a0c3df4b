# Everything a newcomer needs: `make demo` and `make test`. Both set up what is missing.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
NATIVE_BUILD := build/native
NATIVE_SANITIZED := build/native-sanitized
PYTEST_ARGS ?=
# Real processes on shared machines: one that fails is run once more, and listed.
RERUNS ?= --reruns 1 --reruns-delay 2
FUZZ_S ?= 600
# The sanitizer's memory of freed blocks would outgrow the program a hundredfold.
FUZZ_OPTIONS := ASAN_OPTIONS=quarantine_size_mb=8:malloc_context_size=3
HOST_TOOLS := sshd ssh-keygen ssh-agent ip ss nsenter unshare openssl fish tcsh busybox
HOST_PACKAGES := openssh-server openssh-client iproute2 util-linux openssl fish tcsh busybox

.DEFAULT_GOAL := help
.PHONY: help setup engine engines demo test check format native-test \
        host-tools bench bench-gguf bench-tui bench-relay bench-llama bench-tunnel fuzz snapshots \
        train clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml $(wildcard native/CMakeLists.txt native/src/* native/src/*/*)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: set PYTHON=/path/to/python3.11."; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
		{ echo "A C++ compiler is needed: install g++ or clang++ (Debian: apt-get install g++)."; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "The venv module is missing (Debian: apt-get install python3-venv)."; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev --editable .
	@touch $@

setup: $(STAMP) engine ## Virtual environment, helper program, engine

engine: $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dllm-tui engine build

engines: engine ## The engines of both pinned protocol versions
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dllm-tui engine build --version 8.0.0

demo: setup ## Open the console on a live two-worker cluster
	@$(BIN)/dllm-tui demo

check: $(STAMP) ## Formatting, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

native-test: $(STAMP) ## The helper program's own tests, plain and with sanitizers
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B $(NATIVE_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(NATIVE_BUILD)
	PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir $(NATIVE_BUILD) --output-on-failure
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B $(NATIVE_SANITIZED) -G Ninja -DCMAKE_BUILD_TYPE=Debug -DDLLM_SANITIZE=address,undefined
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(NATIVE_SANITIZED)
	PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir $(NATIVE_SANITIZED) --output-on-failure

# The tests of other machines need sshd and network namespaces, so root and Linux.
host-tools:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		for tool in $(HOST_TOOLS); do command -v $$tool >/dev/null || missing=1; done; \
		test -z "$$missing" || (apt-get update -qq && apt-get install -y -qq $(HOST_PACKAGES)); \
	fi

test: check native-test engines host-tools ## Every check there is
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest $(RERUNS) $(PYTEST_ARGS)

bench: bench-gguf bench-tui bench-relay bench-llama bench-tunnel ## All benchmarks

bench-relay: $(STAMP) ## The relay against a bare copy relay, socat and haproxy
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B $(NATIVE_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(NATIVE_BUILD) --target bench_programs
	$(BIN)/python -m tests.bench.bench_relay $(NATIVE_BUILD)

bench-llama: engine ## llama-bench through relays against direct, in pairs
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.bench.bench_llama $(BIN)/dllm-relay

bench-tunnel: setup host-tools ## A worker through an SSH tunnel against plain (root)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.bench.bench_tunnel

fuzz: $(STAMP) ## libFuzzer on the decoder and on the whole relay (needs clang++)
	CXX=clang++ PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B build/native-fuzz -G Ninja -DDLLM_SANITIZE=address,undefined -DDLLM_FUZZ=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native-fuzz
	$(FUZZ_OPTIONS) build/native-fuzz/fuzz/fuzz_decoder -close_fd_mask=2 -max_len=1500 -entropic=0 -max_total_time=$(FUZZ_S)
	$(FUZZ_OPTIONS) build/native-fuzz/fuzz/fuzz_relay -close_fd_mask=2 -max_len=1500 -entropic=0 -max_total_time=$(FUZZ_S)

bench-gguf: $(STAMP) ## Opening a large GGUF: ours against gguf.GGUFReader
	$(BIN)/python -m tests.bench.bench_gguf

bench-tui: setup ## Time to first paint, idle and live CPU of the console
	$(BIN)/python -m tests.bench.bench_tui

snapshots: $(STAMP) ## Accept the present looks as the right ones
	$(BIN)/pytest tests/tui --snapshot-update

train: $(STAMP) ## Train the demo model anew (hours; needs torch)
	$(BIN)/python -m pip install --quiet --group training
	$(BIN)/python -m training.train

clean: ## Remove what was built here (not the engines in the user cache)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
