#!/bin/sh
# Runs the kinds that change a machine with its real tools (useradd, mount, apt-get, crontab, ...), as root, in a root
# directory of its own that is an overlay of this machine's and is thrown away. Nothing of the machine changes.
set -eu
cd "$(dirname "$0")/../.."
binary=$(cargo test --locked -p gpufleet-node --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*gpufleet[_-]node-[^"]*\)".*/\1/p' | tail -1)
[ -n "$binary" ] || { echo "the tests of gpufleet-node do not build" >&2; exit 1; }
exec unshare --mount --uts --fork sh -euc '
    work=$(mktemp -d /dev/shm/gpufleet-real.XXXXXX)
    trap "rm -rf $work" EXIT
    mount --make-rprivate /
    mount -t tmpfs tmpfs "$work"
    mkdir "$work/upper" "$work/work" "$work/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
    mount -t proc proc "$work/root/proc"
    mount --rbind /dev "$work/root/dev"
    mount -t tmpfs tmpfs "$work/root/tmp"
    cp "$1" "$work/root/tmp/tests"
    touch "$work/root/gpufleet-throwaway-root"
    chroot "$work/root" /tmp/tests tasks::real --test-threads=1
    umount -R "$work"
' real-tools "$binary"
