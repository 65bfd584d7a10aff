#!/bin/sh
# Runs all tests and ends with the runner's summary.
set -eu
mkdir -p /run/sshd 2>/dev/null || true
cargo build --locked -p gpufleet -p gpufleet-lab -p nvml-sim
if cargo nextest --version >/dev/null 2>&1; then
    exec cargo nextest run --locked --workspace --no-fail-fast "$@"
fi
exec cargo test --locked --workspace --no-fail-fast "$@"
