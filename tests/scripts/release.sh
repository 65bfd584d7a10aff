#!/bin/sh
# Builds what is handed out: the controller with a node file whose NVML worker asks for glibc 2.17 only.
#
# zig stands in for an old C library; it comes from PyPI, so that no other machine is needed.
set -eu
cd "$(dirname "$0")/../.."
venv=target/release-tools
if [ ! -x "$venv/bin/cargo-zigbuild" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check ziglang==0.15.2 cargo-zigbuild==0.20.1 ||
        "$venv/bin/pip" install -q --disable-pip-version-check ziglang cargo-zigbuild
fi
PATH=$PWD/$venv/bin:$PATH
export PATH
cargo zigbuild --locked -p gpufleet-nvml --profile worker --target x86_64-unknown-linux-gnu.2.17 --target-dir target/node
worker=target/node/x86_64-unknown-linux-gnu/worker/gpufleet-nvml
needs=$(objdump -T "$worker" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -1)
echo "the NVML worker asks for $needs at most"
GPUFLEET_NVML_WORKER=$PWD/$worker cargo build --locked --release -p gpufleet
mkdir -p target/dist
cp target/release/gpufleet target/dist/gpufleet-x86_64-linux
strip target/dist/gpufleet-x86_64-linux
(cd target/dist && sha256sum gpufleet-* >SHA256SUMS && cat SHA256SUMS)
