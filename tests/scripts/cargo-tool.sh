#!/bin/sh
# Prints the path of a cargo tool of exactly this version, and builds it if missing. Usage: cargo-tool.sh NAME VERSION
#
# A debug build, because it is built once and runs for seconds. Not the installed tool, because another version may
# give other results.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD/target/tools/$1-$2
if [ ! -x "$root/bin/$1" ]; then
    echo "building $1 $2" >&2
    CARGO_TARGET_DIR=$PWD/target/tools/build cargo install --quiet --debug --locked --root "$root" "$1@$2" >&2
    rm -rf "$PWD/target/tools/build"
fi
echo "$root/bin/$1"
