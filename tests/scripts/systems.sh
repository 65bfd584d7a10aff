#!/bin/sh
# Installs real schedulers, a browser for the page of reports, foreign readers of its other formats, PostgreSQL for the
# history of audits, the package manager of Red Hat's family, and the parts of real machines from the distribution, and runs
# the tests against them, and those with real tools in a root that is thrown away; ends with the runner's summary.
set -eu
export PATH="$PATH:/usr/sbin:/sbin"
missing=
for tool in slurmctld:slurmctld slurmd:slurmd scontrol:slurm-client munged:munge \
    systemd-nspawn:systemd-container mmdebstrap:mmdebstrap ip:iproute2 ssh:openssh-client ssh-keygen:openssh-client \
    unshare:util-linux setpriv:util-linux chromium:chromium npm:npm prometheus:prometheus \
    dpkg-scanpackages:dpkg-dev gpg:gpg python3:python3-minimal dnf:dnf rpmbuild:rpm createrepo_c:createrepo-c; do
    command -v "${tool%%:*}" >/dev/null 2>&1 || missing="$missing ${tool##*:}"
done
# It has no program: a file tells.
[ -e /usr/lib/python3/dist-packages/dnf-plugins/versionlock.py ] || missing="$missing dnf-plugins-core"
# A Python of Debian cannot make an environment without this package.
python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
# Why a look at files: Debian keeps the server's programs out of the path.
[ -n "$(find /usr/lib/postgresql -name initdb 2>/dev/null)" ] || missing="$missing postgresql"
if [ "$(id -u)" -ne 0 ]; then
    echo "error: the tests against real schedulers and machines start daemons and must run as root" >&2
    exit 1
fi
if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "error: the tests against real schedulers and machines need:$missing" >&2
        echo "help: install them with your package manager, then type make test-systems again" >&2
        exit 1
    fi
    echo "installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    # No service is started: the tests run their own daemons on loopback, and the machine's own are left alone.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    # First without an update: most machines have the lists, and fetching them takes longer than the rest.
    # Why --reinstall: where somebody removed a program of an installed package, apt-get has nothing to do otherwise.
    # shellcheck disable=SC2086
    apt-get install -q -y --reinstall --no-install-recommends $missing >&2 || {
        apt-get update -q >&2
        apt-get install -q -y --reinstall --no-install-recommends $missing >&2
    }
fi

# What tells whether everybody can use the page of a report. By its digest, because the tests run it.
axe=axe-core-4.10.3
mkdir -p target/systems
if [ ! -e "target/systems/$axe/package/axe.min.js" ]; then
    (
        cd target/systems
        npm pack --silent "axe-core@${axe#axe-core-}" >&2
        echo "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292  $axe.tgz" | sha256sum -c --quiet - >&2
        mkdir -p "$axe"
        tar -xzf "$axe.tgz" -C "$axe"
    ) || {
        echo "error: axe-core cannot be fetched with npm; the lines above are npm's" >&2
        exit 1
    }
fi
export GPUFLEET_AXE="$PWD/target/systems/$axe/package/axe.min.js"

# At the same time as the compiler: building the trees mostly waits for the network and the disk.
tree=$PWD/target/systems/tree
log=$PWD/target/systems/tree.log
echo "preparing the machines' file trees $tree and $tree-trixie" >&2
{
    tests/systems/nspawn/tree.sh "$tree" bookworm '' &&
        tests/systems/nspawn/tree.sh "$tree-trixie" trixie tuned,irqbalance
} >"$log" 2>&1 &
building=$!
# First, because the rollouts run these programs beside their test.
cargo build --locked -p gpufleet -p gpufleet-lab -p nvml-sim
cargo test --locked -p gpufleet-systems-tests --test '*' --no-run
wait "$building" || {
    cat "$log" >&2
    echo "error: the file trees of the machines cannot be built; the lines above are mmdebstrap's" >&2
    echo "help: it needs a Debian mirror; DEBIAN_MIRROR=http://… names another than deb.debian.org" >&2
    exit 1
}
export GPUFLEET_MACHINE_TREE="$tree"
# The schema of OASIS is part of the crate that reads SARIF in the other tests.
readers=$PWD/target/systems/readers
[ -x "$readers/bin/python" ] || python3 -m venv "$readers"
"$readers/bin/python" -m pip install --quiet --disable-pip-version-check -r tests/systems/formats/requirements.txt
GPUFLEET_FORMATS_PYTHON=$readers/bin/python
GPUFLEET_SARIF_SCHEMA=$(cargo metadata --locked --format-version 1 | "$GPUFLEET_FORMATS_PYTHON" -c '
import json, pathlib, sys
packages = json.load(sys.stdin)["packages"]
found = next(package for package in packages if package["name"] == "serde-sarif")
print(pathlib.Path(found["manifest_path"]).parent / "src/schema.json")
')
export GPUFLEET_FORMATS_PYTHON GPUFLEET_SARIF_SCHEMA
# Before the others, so that their summary is the last.
tests/scripts/real-tools.sh
# Four at once, because each test mostly waits for Slurm or for a machine.
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --config-file tests/nextest.toml --locked -p gpufleet-systems-tests --test '*' --no-fail-fast --test-threads 4 "$@"
else
    cargo test --locked -p gpufleet-systems-tests --test '*' --no-fail-fast -- --test-threads 4 "$@"
fi
