#!/bin/sh
# Runs all tests and ends with the runner's summary.
set -eu
mkdir -p /run/sshd 2>/dev/null || true
cargo build --locked -p gpufleet -p gpufleet-lab -p nvml-sim -p crashpoint
if cargo nextest --version >/dev/null 2>&1; then
    # The ignored ones too: they are measurements with a limit, which are meaningful in a process of their own, as
    # each test has here.
    exec cargo nextest run --config-file tests/nextest.toml --locked --workspace --no-fail-fast --run-ignored all "$@"
fi
cargo test --locked -p gpufleet --test transport -- --ignored
exec cargo test --locked --workspace --no-fail-fast "$@"
