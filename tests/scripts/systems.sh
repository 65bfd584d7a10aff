#!/bin/sh
# Installs real schedulers from the distribution and runs the tests against them; ends with the runner's summary.
set -eu
missing=
for tool in slurmctld:slurmctld slurmd:slurmd scontrol:slurm-client munged:munge; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${tool%%:*}" >/dev/null 2>&1 || missing="$missing ${tool##*:}"
done
if [ "$(id -u)" -ne 0 ]; then
    echo "error: the tests against real schedulers start daemons and must run as root" >&2
    exit 1
fi
if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "error: the tests against real schedulers need:$missing" >&2
        echo "help: install them with your package manager, then type make test-systems again" >&2
        exit 1
    fi
    echo "installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    # Why no service start: the tests run their own daemons on loopback; the machine's own stays as it is.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    # Why first without: the lists are there on most machines, and fetching them takes longer than the rest.
    # shellcheck disable=SC2086
    apt-get install -q -y --no-install-recommends $missing >&2 || {
        apt-get update -q >&2
        apt-get install -q -y --no-install-recommends $missing >&2
    }
fi
export PATH="$PATH:/usr/sbin:/sbin"
# Why first: the rollouts run these programs beside their test.
cargo build --locked -p gpufleet -p gpufleet-lab -p nvml-sim
# Why four at once: each test waits for Slurm most of its time.
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked -p gpufleet-systems-tests --test '*' --no-fail-fast --test-threads 4 "$@"
else
    cargo test --locked -p gpufleet-systems-tests --test '*' --no-fail-fast -- --test-threads 4 "$@"
fi
