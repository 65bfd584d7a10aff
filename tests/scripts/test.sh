#!/bin/sh
# Runs all tests and ends with the runner's summary.
set -eu
mkdir -p /run/sshd 2>/dev/null || true
cargo build --locked -p gpufleet -p gpufleet-lab -p nvml-sim -p crashpoint

# Why /tmp in memory: ext4 takes no inode again that was freed in the last minutes, and looks at all of them for each new
# file. The tests make and remove hundreds of thousands. A namespace of its own leaves nothing behind; where the machine
# permits none, or has little memory, /tmp stays as it is.
in_memory() { unshare --mount sh -c 'mount -t tmpfs -o mode=1777 tests /tmp && exec "$@"' sh "$@"; }
free=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null || echo 0)
if [ -n "${TMPDIR:-}" ] || [ "$free" -le 8000000 ] || ! in_memory true 2>/dev/null; then
    in_memory() { "$@"; }
fi

if cargo nextest --version >/dev/null 2>&1; then
    # The ignored ones too: they are measurements with a limit, which are meaningful in a process of their own, as
    # each test has here.
    in_memory cargo nextest run --config-file tests/nextest.toml --locked --workspace --no-fail-fast --run-ignored all "$@"
else
    in_memory cargo test --locked -p gpufleet --test transport -- --ignored
    in_memory cargo test --locked --workspace --no-fail-fast "$@"
fi
