#!/bin/sh
# Prints the path of a cargo tool of exactly this version; builds it where it is missing. Usage: cargo-tool.sh NAME VERSION
#
# Why a debug build: it is built once and runs for seconds. Why not the installed one: another version may judge otherwise.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD/target/tools/$1-$2
if [ ! -x "$root/bin/$1" ]; then
    echo "building $1 $2" >&2
    CARGO_TARGET_DIR=$PWD/target/tools/build cargo install --quiet --debug --locked --root "$root" "$1@$2" >&2
    rm -rf "$PWD/target/tools/build"
fi
echo "$root/bin/$1"
