# Everything a newcomer needs: `make demo` and `make test`. Both set up what is missing.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LISTED := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))
STAMP := $(VENV)/.ready
NATIVE_BUILD := build/native
NATIVE_SANITIZED := build/native-sanitized
NATIVE_THREADS := build/native-threads
NATIVE_FUZZ := build/native-fuzz
NATIVE_ALONE := build/native-alone
NATIVE_MACOS := build/native-macos
# Conversations of the fuzz targets a test run makes up, new ones each time.
MUTATIONS ?= 4000
REFUSALS ?= 1000000
# Rooms, --each and --seed of the faults that `make mutants` plants; all rooms by default.
MUTANTS ?=
MINUTES ?= 120
TRIALS ?= 100
WHAT ?= worker
PART ?= tests/unit
# What is killed on, or on the way to, other machines (root).
FAR := $(filter tunnel sshd machine,$(WHAT))
PYTEST_ARGS ?=
# Tests of engines and machines mostly wait: two at a time. Many of the others do, too: six at a time.
UNIT_PROCESSES ?= --numprocesses 6 --dist loadfile
WAITING_PROCESSES ?= --numprocesses 2 --dist loadfile
FUZZ_S ?= 600
# As often as that at most; without an end by default.
FUZZ_RUNS ?= -1
FUZZ_TARGETS := compression decoder json link relay weights
FUZZ_LONGEST := 4000
comma := ,
# The sanitizer's memory of freed blocks would outgrow the program a hundredfold. What libFuzzer
# reckons with for every input (entropy) costs more than a short input does.
FUZZ_OPTIONS := ASAN_OPTIONS=quarantine_size_mb=1:thread_local_quarantine_size_kb=64:malloc_context_size=1
FUZZ_FLAGS := -close_fd_mask=2 -entropic=0
HOST_TOOLS := sshd ssh-keygen ssh-agent ip nft ss nsenter unshare openssl fish zsh tcsh busybox systemctl tmux
HOST_PACKAGES := openssh-server openssh-client iproute2 nftables util-linux openssl fish zsh tcsh busybox \
  systemd tmux

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dllm-tui
# Where ccache is, what was compiled once is not compiled again, in another checkout neither.
COMPILED := $(if $(shell command -v ccache 2>/dev/null),CMAKE_CXX_COMPILER_LAUNCHER=ccache \
  CCACHE_DIR='$(CACHE)/compiled' CCACHE_DEPEND=1 CCACHE_MAXSIZE=1G CCACHE_BASEDIR='$(CURDIR)' CCACHE_NOHASHDIR=1 \
  CCACHE_SLOPPINESS=pch_defines$(comma)time_macros)
CMAKE := env $(COMPILED) cmake
# Ninja counts the cores itself, and cannot take part in this make's turns.
CMAKE_BUILD := env -u MAKEFLAGS -u MFLAGS $(COMPILED) cmake --build
# In the folder in which the install compiles: the library is compiled once for both. A user's
# compiler may warn about more than ours: what it warns about is refused with sanitizers.
CONFIGURED = $(CMAKE) -S native -B $(NATIVE_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DDLLM_TESTS=ON -DDLLM_WERROR=OFF
RIVALS := socat haproxy
# What Python compiled once is kept, whatever the shell says; what mypy found out, for other checkouts.
unexport PYTHONDONTWRITEBYTECODE
# Letters and constants that every process of the tests would look up anew.
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis
# Every program of the environment, whoever calls it.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup engine engines engines-table libraries program demo ready test test-all test-check test-unit test-native test-relay test-engine test-hosts test-trials test-sanitized test-mutate test-alone test-gpu gpu-device check format native-test native-built native-macos native-alone native-plain native-sanitized \
        host-tools compiling rivals bench bench-gguf bench-tui bench-relay bench-compression bench-link bench-decode bench-draft bench-gateway bench-llama bench-predict bench-first-token bench-measure bench-quants bench-best bench-gpu bench-memory bench-plan \
        bench-tunnel bench-watching fuzz corpus mutate mutants soak trials stalled refusals snapshots \
        recording tour pictures train clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# What the program needs, and no more: `make demo` waits for it. While the helper program is compiled,
# pip fetches the libraries.
$(INSTALLED): pyproject.toml $(wildcard native/CMakeLists.txt native/src/* native/src/*/*)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: set PYTHON=/path/to/python3.11."; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
		{ echo "A C++ compiler is needed: install g++ or clang++ (Debian: apt-get install g++)."; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "The venv module is missing (Debian: apt-get install python3-venv)."; exit 1; }
	@$(BIN)/python -c '$(LISTED)["dependency-groups"]["compiling"], sep="\n")' >$(VENV)/compiling.txt
	@echo 'Getting Python packages into $(VENV), and compiling the relay: a minute or two…'
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' --requirement $(VENV)/compiling.txt
	@$(MAKE) --no-print-directory --jobs 2 libraries program
	@touch $@

# Python compiles what the program uses of them when it is used first.
libraries:
	@$(BIN)/python -c '$(LISTED)["project"]["dependencies"], sep="\n")' >$(VENV)/libraries.txt
	@$(BIN)/python -m pip install --quiet --no-compile --requirement $(VENV)/libraries.txt

program:
	@env -u MAKEFLAGS -u MFLAGS $(COMPILED) CMAKE_GENERATOR=Ninja $(BIN)/python -m pip install --quiet \
		--no-build-isolation --no-deps --editable . -C build-dir=$(NATIVE_BUILD) -C build.targets=dllm-relay

# Tests and checks need more.
$(STAMP): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

setup: $(STAMP) ## Virtual environment, helper program, an engine
	@$(BIN)/dllm-tui engine show >/dev/null 2>&1 || $(BIN)/dllm-tui engine get

engine: $(STAMP) ## The pinned source of llama.cpp, built
	@$(BIN)/dllm-tui engine build

engines: engine ## The engines of both pinned protocol versions
	@$(BIN)/dllm-tui engine build --version 8.0.0

engines-table: $(STAMP) ## Pin another release of llama.cpp for `engine get`: the newest, or TAG
	@$(BIN)/python -m tools.engines_table $(TAG)

demo: $(INSTALLED) ## Open the console on a live two-worker cluster
	@$(BIN)/dllm-tui demo

# mypy 2.4.1 may crash (exit 2) over what it kept of an older state.
check: $(STAMP) ## Formatting, lint, types, import contracts, prose, circles, names
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --cache-dir '$(CACHE)/mypy' || { test $$? = 2 && rm -rf '$(CACHE)/mypy' && \
		$(BIN)/mypy --cache-dir '$(CACHE)/mypy'; }
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_prose
	$(BIN)/python -m tools.check_circles
	$(BIN)/python -m tools.check_names

format: $(STAMP) ## Format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

native-test: native-plain native-sanitized ## The helper program's own tests, plain and with sanitizers

native-built: $(STAMP)
	$(CONFIGURED) -DDLLM_MUTATIONS=$(MUTATIONS)
	nice $(CMAKE_BUILD) $(NATIVE_BUILD)

native-plain: native-built
	ctest --test-dir $(NATIVE_BUILD) --parallel 2 --output-on-failure

native-macos: $(STAMP) ## Compile and link the helper program and its tests for a Mac
	$(BIN)/python -m pip install --quiet --group macos
	cmake -S native -B $(NATIVE_MACOS) -G Ninja -DCMAKE_TOOLCHAIN_FILE=macos.cmake -DDLLM_TLS=OFF -DDLLM_ZSTD=OFF
	cmake --build $(NATIVE_MACOS)

native-alone: $(STAMP) ## Compile each file of the helper program alone: it includes what it needs
	$(CMAKE) -S native -B $(NATIVE_ALONE) -G Ninja -DCMAKE_BUILD_TYPE=Debug -DDLLM_UNITY=OFF -DDLLM_TESTS=OFF
	nice $(CMAKE_BUILD) $(NATIVE_ALONE)

native-sanitized: $(STAMP)
	@$(CMAKE) -S native -B $(NATIVE_SANITIZED) -G Ninja -DCMAKE_BUILD_TYPE=Debug -DDLLM_SANITIZE=address,undefined \
		-DDLLM_MUTATIONS=$(MUTATIONS)
	@nice $(CMAKE_BUILD) $(NATIVE_SANITIZED)
	@ctest --test-dir $(NATIVE_SANITIZED) --parallel 2 --output-on-failure
	@$(CMAKE) -S native -B $(NATIVE_THREADS) -G Ninja -DCMAKE_BUILD_TYPE=Debug -DDLLM_SANITIZE=thread
	@nice $(CMAKE_BUILD) $(NATIVE_THREADS) --target with_threads
	@TSAN_OPTIONS=suppressions=$(CURDIR)/native/tests/thread_sanitizer.supp ctest --test-dir $(NATIVE_THREADS) --parallel 2 --output-on-failure -L '^threads$$'

mutate: native-built ## A million made-up conversations through the guard and the decoder, as CI does
	nice $(NATIVE_BUILD)/fuzz/mutate_decoder 500000 & decoder=$$!; \
		nice $(NATIVE_BUILD)/fuzz/mutate_relay 500000; relay=$$?; wait $$decoder && exit $$relay

mutants: setup ## Plant sampled faults in the Python code, and show those that no test notices
	$(BIN)/python -m pip install --quiet --group mutants
	nice $(BIN)/python -m tools.mutants $(MUTANTS)

refusals: engines ## REFUSALS requests of every refused class; each thousandth before a real worker
	$(CONFIGURED)
	$(CMAKE_BUILD) $(NATIVE_BUILD) --target refuse_requests
	$(BIN)/python -m tools.refusals $(NATIVE_BUILD)/tests/refuse_requests $(REFUSALS)
	DLLM_REFUSALS=$$(($(REFUSALS) / 1000)) $(BIN)/pytest tests/native/test_relay_refusals.py $(PYTEST_ARGS)

# $(call packages,PROGRAMS,PACKAGES): where root and apt can, install what is not there.
define packages
@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	for tool in $(1); do command -v $$tool >/dev/null || missing=1; done; \
	test -z "$$missing" || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(2); }; \
fi
endef

# Without OpenSSL's headers the relay builds, but meets no other one off this machine; without zstd's
# it does not compress; without ccache and mold it takes longer.
compiling:
	@{ test -e /usr/include/openssl/ssl.h && test -e /usr/include/zstd.h && command -v ccache && command -v mold; } >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq libssl-dev libzstd-dev ccache mold; } || true

# The tests of other machines need sshd and network namespaces, so root and Linux.
host-tools:
	$(call packages,$(HOST_TOOLS),$(HOST_PACKAGES))

rivals:
	-$(call packages,$(RIVALS),$(RIVALS))

# Where its engine was built before, the device it runs on is set up too; one apt at a time.
gpu-device: $(STAMP) | host-tools
	@! $(BIN)/python -m tests.gpu.engine >/dev/null 2>&1 || \
		tests/gpu/set_up.sh $(CACHE)/gpu-tests build/gpu-tests

# `test` and `test-all` get engines and machines ready once: their parts need not.
READY ?=
TESTS := READY=1 $(BIN)/python -m tools.run_tests

# Compiled once, in a new checkout, the tests need not be by each of ten processes at once.
ready: compiling
	@$(MAKE) --no-print-directory $(STAMP)
	@test -e tests/__pycache__ || nice $(BIN)/pytest --collect-only --quiet tests >/dev/null & \
		$(MAKE) --no-print-directory --keep-going engines gpu-device host-tools || \
		echo "Not all of that is there, so that some tests will fail; the others are run."; wait

test: ready ## Everything but trials, sanitizers and mutations
	@$(TESTS) engine hosts relay unit native check

test-all: ready ## The rest: trials, sanitizers, mutations, each C++ file alone
	@$(TESTS) trials sanitized mutate alone

test-check: check

test-unit: $(STAMP) $(if $(READY),,host-tools)
	@nice $(BIN)/pytest $(UNIT_PROCESSES) -m "not trial" tests/tui tests/unit tests/test_docs.py $(PYTEST_ARGS)

test-native: native-plain

# Installed, and the relay from outside, before engines too.
test-relay: $(STAMP) $(if $(READY),,engines)
	@env $(COMPILED) $(BIN)/pytest $(WAITING_PROCESSES) -m "not trial" tests/test_packaging.py tests/native $(PYTEST_ARGS)

test-engine: $(STAMP) $(if $(READY),,engines gpu-device)
	@$(BIN)/pytest $(WAITING_PROCESSES) -m "not trial" tests/engine tests/gpu $(PYTEST_ARGS)

test-hosts: $(STAMP) $(if $(READY),,engines host-tools)
	@$(BIN)/pytest $(WAITING_PROCESSES) -m "not trial" tests/hosts $(PYTEST_ARGS)

test-trials: $(STAMP) $(if $(READY),,engines gpu-device host-tools)
	@$(BIN)/pytest $(WAITING_PROCESSES) -m trial tools/trials tests $(PYTEST_ARGS)

test-sanitized: native-sanitized

test-mutate: mutate

test-alone: native-alone

test-gpu: $(STAMP) ## The tests on a real GPU device; builds its engine once
	@tests/gpu/set_up.sh $(CACHE)/gpu-tests build/gpu-tests
	$(BIN)/pytest -m gpu $(PYTEST_ARGS)

bench: bench-gguf bench-tui bench-relay bench-compression bench-link bench-decode bench-draft bench-gateway bench-llama bench-tunnel bench-watching ## All benchmarks

bench-relay: $(STAMP) rivals ## The relay against a bare copy relay, socat and haproxy
	$(CONFIGURED)
	$(CMAKE_BUILD) $(NATIVE_BUILD) --target bench_programs
	$(BIN)/python -m tools.bench.bench_relay $(NATIVE_BUILD)

bench-compression: $(STAMP) ## The compression between two relays: bytes and time of a pass
	$(CONFIGURED)
	$(CMAKE_BUILD) $(NATIVE_BUILD) --target bench_compression
	$(NATIVE_BUILD)/bench/bench_compression $(NATIVE_BUILD)/tests/recordings-depth

bench-link: engines host-tools ## Loads, long prompts, starts and trips over a network, stock and by pairs (root)
	$(CONFIGURED)
	$(CMAKE_BUILD) $(NATIVE_BUILD) --target bench_programs
	$(BIN)/python -m tools.bench.bench_link $(NATIVE_BUILD)

bench-decode: engine ## Tokens per second through relays and bare copy relays against direct
	$(CONFIGURED)
	$(CMAKE_BUILD) $(NATIVE_BUILD) --target bench_programs
	$(BIN)/python -m tools.bench.bench_decode $(NATIVE_BUILD)

bench-draft: engines ## Tokens per second by speculation method, 10 ms away; TABLE=1 for more links and clients, QUICK=1 for a part
	$(BIN)/python -m tools.bench.bench_draft $(if $(TABLE),--table) $(if $(QUICK),--quick)

bench-predict: engine ## Predicted beside measured speed of MODEL over splits and networks; QUICK=1 for a part
	$(BIN)/python -m tools.bench.bench_predict $(or $(MODEL),backends/demo/dllm-demo.gguf) $(if $(QUICK),--quick) $(if $(THREADS),--threads $(THREADS))

bench-first-token: engine ## Predicted beside measured first token of MODEL by the length of its prompt
	$(BIN)/python -m tools.bench.bench_first_token $(or $(MODEL),backends/demo/dllm-demo.gguf)

bench-measure: engine ## How well `peers measure` tells the speed of MODEL before it ran
	$(BIN)/python -m tools.bench.bench_measure $(or $(MODEL),backends/demo/dllm-demo.gguf)

bench-quants: engine ## The time of a weight by its type, on a worker of one thread
	$(BIN)/python -m tools.bench.bench_quants

bench-best: engine ## Predicted best split of MODEL beside all splits of two workers, measured; STEP=3 for every third
	$(BIN)/python -m tools.bench.bench_best $(or $(MODEL),backends/demo/dllm-demo.gguf) $(if $(STEP),--step $(STEP))

bench-gpu: $(STAMP) ## Predicted beside measured speed and memory of splits with a GPU; see tests/gpu/engine.py
	$(BIN)/python -m tools.bench.bench_gpu

bench-memory: engines ## Memory at drag speed beside the engine's answer: fourteen architectures, and MODELS
	$(BIN)/python -m tools.bench.bench_memory $(MODELS) $(if $(WORST),--worst $(WORST))

bench-plan: engine ## The time of a best split of ten devices and 200 layers, and of plan for 16 machines of MODEL
	$(BIN)/python -m tools.bench.bench_plan $(or $(MODEL),backends/demo/dllm-demo.gguf)

soak: engine ## MINUTES of faults, one every 20 s, before four clients (two hours)
	$(BIN)/python -m tools.trials.soak --minutes $(MINUTES)

trials: engines $(if $(FAR),host-tools) ## TRIALS kills of a WHAT (worker) in a streamed answer; of workers also with stock alone
	$(BIN)/python -m tools.trials.kills$(if $(FAR),_on_machines) --trials $(TRIALS) --kill $(WHAT)

stalled: engines ## PART of the tests (tests/unit) on a machine that stands still now and then (root)
	$(BIN)/python -m tools.trials.stalled -- $(BIN)/pytest $(WAITING_PROCESSES) $(PART) $(PYTEST_ARGS)

bench-gateway: engines ## First token and tokens per second through a gateway and a bare copy relay against direct
	$(CONFIGURED)
	$(CMAKE_BUILD) $(NATIVE_BUILD) --target bench_programs
	$(BIN)/python -m tools.bench.bench_gateway $(NATIVE_BUILD)

bench-llama: engine ## llama-bench through relays, and pairs of them, against direct
	$(BIN)/python -m tools.bench.bench_llama $(BIN)/dllm-relay
	$(BIN)/python -m tools.bench.bench_llama $(BIN)/dllm-relay --way pair --turns 5

bench-tunnel: setup host-tools ## A worker of MODEL by SSH, TLS, and lent by TCP and QUIC, against plain (root)
	$(if $(MODEL),DLLM_BENCH_MODEL='$(MODEL)') $(BIN)/python -m tools.bench.bench_tunnel

bench-watching: setup host-tools ## Tokens with and without the watching of peers (root)
	$(BIN)/python -m tools.bench.bench_watching

fuzz: $(STAMP) ## libFuzzer on the decoders, the JSON parser, GGUF headers and the guard (needs clang++)
	CXX=clang++ $(CMAKE) -S native -B $(NATIVE_FUZZ) -G Ninja -DDLLM_SANITIZE=address,undefined -DDLLM_FUZZ=ON
	$(CMAKE_BUILD) $(NATIVE_FUZZ) --target $(addprefix fuzz_,$(FUZZ_TARGETS))
	mkdir -p $(addprefix $(NATIVE_FUZZ)/corpus/,$(FUZZ_TARGETS)) && tar -xJf native/fuzz/corpus.tar.xz -C $(NATIVE_FUZZ)/corpus
	for target in $(FUZZ_TARGETS); do \
		$(FUZZ_OPTIONS) $(NATIVE_FUZZ)/fuzz/fuzz_$$target $(FUZZ_FLAGS) -max_len=$(FUZZ_LONGEST) \
			-max_total_time=$(FUZZ_S) -runs=$(FUZZ_RUNS) $(NATIVE_FUZZ)/corpus/$$target || exit 1; \
	done

corpus: ## Keep what `make fuzz` found that reaches new places
	for target in $(FUZZ_TARGETS); do \
		mkdir -p $(NATIVE_FUZZ)/kept/$$target && $(FUZZ_OPTIONS) $(NATIVE_FUZZ)/fuzz/fuzz_$$target \
			$(FUZZ_FLAGS) -max_len=$(FUZZ_LONGEST) -merge=1 \
			$(NATIVE_FUZZ)/kept/$$target $(NATIVE_FUZZ)/corpus/$$target || exit 1; \
	done
	tar -cJf native/fuzz/corpus.tar.xz --sort=name --mtime=@0 --owner=0 --group=0 -C $(NATIVE_FUZZ)/kept $(FUZZ_TARGETS)

bench-gguf: $(STAMP) ## Opening a large GGUF: ours against gguf.GGUFReader
	$(BIN)/python -m tools.bench.bench_gguf

bench-tui: setup ## Time to first paint, idle and live CPU of the console, and to seek in a replay
	$(BIN)/python -m tools.bench.bench_frames
	$(BIN)/python -m tools.bench.bench_tui
	$(BIN)/python -m tools.bench.bench_chat
	$(BIN)/python -m tools.bench.bench_replay

snapshots: $(STAMP) ## Accept the present looks as the right ones
	$(BIN)/pytest tests/tui --snapshot-update

tour: engine ## Record the session that the pictures of the documents are made of
	$(BIN)/python -m tools.tour record

pictures: $(STAMP) ## Pictures of the screens for the documents, from the recorded tour
	$(BIN)/python -m tools.tour

recording: $(STAMP) ## A conversation to replay, of WORKER=…/rpc-server CLIENT=…/llama-bench SOURCE="package version"
	$(BIN)/python -m tools.recordings.record "$(WORKER)" "$(CLIENT)" --source "$(SOURCE)" $(RECORD_ARGS)

train: $(STAMP) ## Train the demo model anew (hours; needs torch)
	$(BIN)/python -m pip install --quiet --group training
	$(BIN)/python -m tools.training.train

clean: ## Remove what was built here (not the engines in the user cache)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
