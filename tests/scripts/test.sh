#!/bin/sh
# Runs all tests and ends with the runner's summary.
set -eu
mkdir -p /run/sshd 2>/dev/null || true
cargo build --locked -p gpufleet -p gpufleet-lab -p nvml-sim -p crashpoint

# Why in memory: ext4 takes no inode again that was freed in the last minutes, and looks at all of them for each new file.
# The tests make and remove hundreds of thousands. A folder of its own in a mount namespace of its own hides nothing of the
# machine, so that the checkout may be anywhere, below /tmp too. Where the machine permits no namespace, or has little
# memory, the folder stays on disk.
memory=
free=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null || echo 0)
if [ -z "${TMPDIR:-}" ] && [ "$free" -gt 8000000 ] && unshare --mount true 2>/dev/null; then
    # Why short: the path of a Unix socket has at most 107 bytes.
    memory=$(mktemp -d /tmp/gf.XXXXXX)
    trap 'rmdir "$memory"' EXIT
fi
in_memory() {
    [ -n "$memory" ] || { "$@"; return; }
    TMPDIR=$memory unshare --mount sh -c 'mount -t tmpfs -o mode=1777 tests "$TMPDIR" && exec "$@"' sh "$@"
}

if cargo nextest --version >/dev/null 2>&1; then
    # The ignored ones too: they are measurements with a limit, which are meaningful in a process of their own, as
    # each test has here.
    in_memory cargo nextest run --config-file tests/nextest.toml --locked --workspace --no-fail-fast --run-ignored all "$@"
else
    in_memory cargo test --locked -p gpufleet --test transport -- --ignored
    in_memory cargo test --locked --workspace --no-fail-fast "$@"
fi
