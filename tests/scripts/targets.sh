#!/bin/sh
# Adds the static musl target of the node file with rustup, if it is missing.
set -eu
target=x86_64-unknown-linux-musl
sysroot=$(rustc --print sysroot)
[ -d "$sysroot/lib/rustlib/$target" ] && exit 0
if command -v rustup >/dev/null 2>&1; then
    echo "adding the Rust target $target" >&2
    exec rustup target add "$target"
fi
echo "error: the Rust target $target is missing and there is no rustup to add it" >&2
echo "help: install it with your toolchain's package manager" >&2
exit 1
