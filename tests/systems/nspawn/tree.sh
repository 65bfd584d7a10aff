#!/bin/sh
# Builds the file tree that the machines of the tests boot from: a Debian with systemd and sshd, as small as it can be.
#   tree.sh FOLDER RELEASE PACKAGES    does nothing where FOLDER holds the tree of this very script and these words;
#                                      PACKAGES, with commas, come on top and may be none
# DEBIAN_MIRROR names another mirror.
set -eu
tree=$1
release=$2
packages=${3:+,$3}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
stamp="$tree.of-$( (cat "$0"; echo "$release$packages") | cksum | tr ' ' '-')"
[ -e "$stamp" ] && exit 0

mkdir -p "$(dirname "$tree")"
# Why a lock: two of these may start at once, and one tree is enough.
exec 9>"$tree.lock"
flock 9
[ -e "$stamp" ] && exit 0
# Why one file system: whatever a build that was killed left mounted there is not ours to empty.
rm -rf --one-file-system "$tree" "$tree".of-*

# Why no documentation, and no fsync: nobody reads it, and half of the time goes there.
mmdebstrap --quiet --mode=root --variant=essential \
    --include="systemd-sysv,dbus,libpam-systemd,openssh-server,apt,kmod$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt=force-unsafe-io \
    "$release" "$tree" "deb $mirror $release main" >&2

# Each machine gets an identity of its own.
rm -f "$tree"/etc/ssh/ssh_host_* "$tree/var/lib/dbus/machine-id" "$tree/etc/hostname"
: >"$tree/etc/machine-id"
# Why: what a test finds must not depend on the time of day, and a machine here has no console to log in on.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer console-getty.service; do
    ln -sf /dev/null "$tree/etc/systemd/system/$unit"
done
# systemd's own count of boots is kept on disk.
mkdir -p "$tree/var/log/journal"

# The machine's own record of when it served: from the moment in which sshd listens until the shutdown begins.
cat >"$tree/usr/local/sbin/note-service" <<'END'
#!/bin/sh
echo "$1 $(date +%s%3N) $(cat /proc/sys/kernel/random/boot_id)" >>/var/log/service
END
chmod 755 "$tree/usr/local/sbin/note-service"
cat >"$tree/etc/systemd/system/note-service.service" <<'END'
[Unit]
Description=Record of when this machine serves
After=ssh.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/note-service up
ExecStop=/usr/local/sbin/note-service down

[Install]
WantedBy=multi-user.target
END
mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
ln -sf ../note-service.service "$tree/etc/systemd/system/multi-user.target.wants/note-service.service"
touch "$stamp"
