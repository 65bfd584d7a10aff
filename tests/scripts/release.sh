#!/bin/sh
# Builds the released program: one controller with node files for x86_64 and aarch64, whose NVML workers only need
# glibc 2.17.
#
# zig, from PyPI, links against old C libraries. The supervisors are pure Rust, which rust-lld links alone.
set -eu
cd "$(dirname "$0")/../.."
venv=target/release-tools
if [ ! -x "$venv/bin/cargo-zigbuild" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check ziglang==0.17.1 cargo-zigbuild==0.24.0
fi
PATH=$PWD/$venv/bin:$PATH
export PATH
nodes=target/node
mkdir -p target/dist

# node_file ARCH: supervisor, worker, length and magic, as docs/architecture.md describes.
node_file() {
    for target in "$1-unknown-linux-musl" "$1-unknown-linux-gnu"; do
        [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"
    done
    cargo zigbuild --locked -p gpufleet-nvml --profile worker --target "$1-unknown-linux-gnu.2.17" --target-dir "$nodes"
    RUSTFLAGS="-C linker=rust-lld -C link-self-contained=yes" \
        cargo build --locked -p gpufleet-node --profile node --target "$1-unknown-linux-musl" --target-dir "$nodes/release"
    python3 - "$nodes/release/$1-unknown-linux-musl/node/gpufleet-node" \
        "$nodes/$1-unknown-linux-gnu/worker/gpufleet-nvml" "target/dist/node-$1" <<'PYTHON'
import sys

supervisor, worker = (open(path, "rb").read() for path in sys.argv[1:3])
open(sys.argv[3], "wb").write(supervisor + worker + len(worker).to_bytes(8, "little") + b"GPUFNVML")
PYTHON
    needs=$(objdump -T "$nodes/$1-unknown-linux-gnu/worker/gpufleet-nvml" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -1)
    echo "the NVML worker for $1 asks for ${needs:-an unknown glibc} at most"
}

node_file x86_64
node_file aarch64
GPUFLEET_NODE_BIN=$PWD/target/dist/node-x86_64 GPUFLEET_NODE_BIN_AARCH64=$PWD/target/dist/node-aarch64 \
    cargo build --locked --release -p gpufleet
cp target/release/gpufleet target/dist/gpufleet-x86_64-linux
strip target/dist/gpufleet-x86_64-linux

# The contents: a bill of materials (CycloneDX) for each of the three programs, and the licences.
cyclonedx=$(tests/scripts/cargo-tool.sh cargo-cyclonedx 0.5.9)
for part in controller:gpufleet node-helper:gpufleet-node node-helper/nvml-worker:gpufleet-nvml; do
    "$cyclonedx" cyclonedx --quiet --format json --all-features --no-build-deps --manifest-path "${part%%:*}/Cargo.toml" \
        --target x86_64-unknown-linux-gnu --override-filename sbom
    # Without the paths of this machine, which are private, so that a release has the same bill everywhere.
    sed "s|file://$PWD|file://|g" "${part%%:*}/sbom.json" >"target/dist/${part##*:}.cdx.json"
    find controller node-helper tests -name sbom.json -not -path '*/target/*' -delete
done
python3 tests/scripts/notices.py target/dist/THIRD-PARTY-NOTICES.txt

cd target/dist
rm -f SHA256SUMS.sig
sha256sum gpufleet-x86_64-linux ./*.cdx.json THIRD-PARTY-NOTICES.txt >SHA256SUMS
cat SHA256SUMS
if [ -n "${RELEASE_KEY:-}" ]; then
    ssh-keygen -q -Y sign -n gpufleet-release -f "$RELEASE_KEY" SHA256SUMS
    echo "signed: ssh-keygen -Y verify -f ALLOWED_SIGNERS -I SIGNER -n gpufleet-release -s SHA256SUMS.sig <SHA256SUMS"
else
    echo "not signed: name an SSH key with RELEASE_KEY=FILE to have SHA256SUMS.sig" >&2
fi
