#!/bin/sh
# Runs the kinds that change a machine with its real tools (useradd, mount, apt-get, crontab, ...) as root. Their root
# directory is an overlay of this machine's, which is removed afterwards. The machine itself is not changed.
set -eu
cd "$(dirname "$0")/../.."
binary=$(cargo test --locked -p gpufleet-node --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*gpufleet[_-]node-[^"]*\)".*/\1/p' | tail -1)
[ -n "$binary" ] || { echo "the tests of gpufleet-node do not build" >&2; exit 1; }
exec unshare --mount --uts --fork sh -euc '
    # Not below /dev, which the root sees: it would find its files to be in memory, where no boot configuration lasts.
    work=$(mktemp -d /run/gpufleet-real.XXXXXX)
    # Never a removal of files: /dev below it is that of this machine. The files end with their file system.
    trap "umount -R -l $work; rmdir $work" EXIT
    mount --make-rprivate /
    mount -t tmpfs tmpfs "$work"
    mkdir "$work/upper" "$work/work" "$work/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
    mount -t proc proc "$work/root/proc"
    mount --rbind /dev "$work/root/dev"
    mount -t tmpfs tmpfs "$work/root/tmp"
    cp "$1" "$work/root/tmp/tests"
    chroot "$work/root" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
        cron grub-common grub2-common grub-pc-bin memtest86+ dnf rpm createrepo-c dpkg-dev gpg >"$work/apt.log" 2>&1 || { tail -20 "$work/apt.log" >&2; exit 1; }
    # A plugin that this machine may have copies packages into a repository of its own, which wants signatures.
    rm -f "$work/root/etc/dnf/plugins/local.conf"
    # grub-probe finds no disk below an overlay, so it gets one. All else of GRUB is as Debian ships it.
    cat >"$work/root/usr/sbin/grub-probe" <<"PROBE"
#!/bin/sh
for argument in "$@"; do case $argument in --target=*) target=${argument#--target=} ;; esac; done
case "$*" in *"-t fs"*) target=fs ;; esac
case $target in
    device) echo /dev/vda1 ;;
    fs_uuid) echo 5d2f1a52-4f3e-4d5c-9d0e-8a0f3b1c2d3e ;;
    fs) echo ext2 ;;
    partmap) echo gpt ;;
    abstraction) ;;
    *) exit 1 ;;
esac
PROBE
    touch "$work/root/gpufleet-throwaway-root"
    chroot "$work/root" /tmp/tests tasks::real --ignored --test-threads=1
' real-tools "$binary"
