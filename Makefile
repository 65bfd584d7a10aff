# `make demo` and `make test` work on a fresh clone with nothing but a Rust toolchain: they add what is missing.

CARGO ?= cargo
PROFILE ?= debug
BIN = target/$(PROFILE)
# Why a variable: `make demo DEMO_NODES=200` is a rehearsal of a larger fleet.
DEMO_NODES ?= 8
DEMO_GPU ?= h100-80gb,a100-80gb
DEMO_DIR = target/demo
RELEASE_FLAG = $(if $(filter release,$(PROFILE)),--release)

# How many random schedules `make chaos` plays: of the rollout core alone, and of the whole engine (0.1 s each).
CHAOS_SCHEDULES ?= 100000
CHAOS_ENGINE_SCHEDULES ?= 2000
# How many random nodes are planned, run and run again; `make test` takes 500.
CHAOS_PLAN_STATES ?= 20000

# How long `make fuzz` looks at each target; FUZZ_TARGET=ini takes one of them.
FUZZ_SECONDS ?= 300
FUZZ_TARGET ?=

.PHONY: fuzz demo test test-systems test-tools chaos schedules mutants compat test-full build setup lint deny bench release clean fmt reference

## demo: brings up a simulated fleet of 8 nodes and shows the report
demo: targets
	$(CARGO) build --locked $(RELEASE_FLAG) -p gpufleet -p gpufleet-lab -p nvml-sim
	@tests/scripts/demo.sh "$(BIN)" "$(DEMO_DIR)" "$(DEMO_NODES)" "$(DEMO_GPU)"

## test: installs what the tests need and runs them all
test: setup
	@tests/scripts/test.sh

## test-systems: installs real schedulers, boots real machines, and runs the tests against them
test-systems: targets
	@tests/scripts/systems.sh

## test-tools: runs the kinds that change a machine with its real useradd, mount, apt-get, … in a root that is thrown away; wants root
test-tools: targets
	@tests/scripts/real-tools.sh

## chaos: random schedules of simulated fleets, then kills of the controller at every record of its journal and at random instants; CHAOS_EVERY=20 takes a sample
# Why optimised: what `make test` kills is not, and each of them meets races that the other one is too slow or too fast for.
chaos: setup schedules
	$(CARGO) build --locked --release -p gpufleet -p gpufleet-lab -p nvml-sim -p crashpoint -p gpufleet-tests
	target/release/gpufleet-chaos

## schedules: 100,000 random schedules of the rollout core, some of the whole engine, and 20,000 random nodes whose plan must be their run; a failure names its schedule or seed
schedules: targets
	PLAN_STATES=$(CHAOS_PLAN_STATES) $(CARGO) test --locked -p gpufleet --test plan_is_run
	GPUFLEET_SCHEDULES=$(CHAOS_SCHEDULES) $(CARGO) test --locked -p gpufleet --lib -- --nocapture rollout::tests::fleet
	GPUFLEET_SCHEDULES=$(CHAOS_ENGINE_SCHEDULES) $(CARGO) test --locked -p gpufleet --lib -- --nocapture killed_again_and_again
	@echo "$(CHAOS_ENGINE_SCHEDULES) random rows of kills in a simulated engine: each run ended as if nobody had killed it"

## mutants: changes the pure cores one place at a time; the tests have to notice (an hour; MUTANTS_SHARD=0/8 takes an eighth)
mutants: targets
	@tests/scripts/mutants.sh

## fuzz: libFuzzer on everything that reads foreign text, FUZZ_SECONDS each; needs a C++ compiler, and no nightly toolchain
fuzz: targets
	@tests/scripts/fuzz.sh "$(FUZZ_SECONDS)" "$(FUZZ_TARGET)"

## compat: has the real ansible-core write what the cases of tests/compat expect; COMPAT=name takes some of them
compat:
	@tests/scripts/compat.sh

## build: the controller with its node file inside
build: targets
	$(CARGO) build --locked $(RELEASE_FLAG) -p gpufleet

## lint: formatting and clippy, warnings denied
lint: targets
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked -p gpufleet-systems-tests --test '*' -- -D warnings

## deny: licences, sources and bans of all crates (deny.toml), and the third-party notices; ADVISORIES=1 asks RustSec too
deny: targets
	@tests/scripts/deny.sh

## bench: gpufleet, Ansible and pyinfra against 100 OpenSSH daemons on loopback, and the time limits of MIG layouts
bench: setup
	$(CARGO) test --locked --release -p gpufleet-mig -- --nocapture layouts 5000_gpus
	$(CARGO) build --locked --release -p gpufleet
	$(CARGO) test --locked --release -p gpufleet --lib -- --ignored --nocapture in_numbers
	$(CARGO) test --locked --release -p gpufleet --test transport -- --ignored --nocapture memory
	tests/bench/run.sh

## release: what is handed out: binaries, bills of materials, notices, checksums; RELEASE_KEY=FILE signs them
release: targets
	tests/scripts/release.sh

## reference: writes the generated pages of docs/reference and the generated part of docs/ansible/cases.md
reference:
	UPDATE=1 $(CARGO) test --locked -p gpufleet -p gpufleet-language reference
	UPDATE=1 $(CARGO) test --locked -p gpufleet-tests --test compat reference

.PHONY: targets
targets:
	@tests/scripts/targets.sh

setup: targets
	@tests/scripts/setup.sh

fmt:
	$(CARGO) fmt --all

clean:
	$(CARGO) clean
