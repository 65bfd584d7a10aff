#!/bin/sh
# `make bench`: gpufleet, Ansible and pyinfra against real OpenSSH daemons on loopback. See docs/benchmarks.md.
# Arguments go to bench.py (`tests/bench/run.sh --help`).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
work=$target/bench
mkdir -p "$work"

fail() {
    echo "error: $1" >&2
    echo "help: $2" >&2
    exit 1
}
for tool in python3:python3 ssh-keygen:openssh-client ssh:openssh-client; do
    command -v "${tool%%:*}" >/dev/null 2>&1 || fail "there is no ${tool%%:*}" "install ${tool##*:}"
done
[ -x /usr/sbin/sshd ] || fail "there is no /usr/sbin/sshd" "install openssh-server"
[ -x "$target/release/gpufleet" ] ||
    fail "there is no $target/release/gpufleet" "type make bench, or cargo build --release -p gpufleet"

# Not fatal: without access to PyPI, gpufleet's own figures are still useful.
venv=$work/venv
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
    echo "installing Ansible and pyinfra under $venv" >&2
    rm -rf "$venv"
    if { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$here/requirements.txt"; } >"$work/venv.log" 2>&1; then
        cp "$here/requirements.txt" "$venv/installed.txt"
    else
        echo "warning: Ansible and pyinfra are not measured, they could not be installed: see $work/venv.log" >&2
        rm -rf "$venv"
    fi
fi
exec python3 -B "$here/bench.py" --gpufleet "$target/release/gpufleet" --work "$work" --venv "$venv" \
    --playbook "$root/playbooks/bringup.yaml" "$@"
