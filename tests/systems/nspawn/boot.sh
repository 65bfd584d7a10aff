# One boot of a machine, from power on to power off, in mount and PID namespaces of its own.
#   boot.sh TREE FOLDER NAME UUID NETNS
# Exits as systemd-nspawn does: 133 requests a reboot, 0 means power off.
set -eu
tree=$1 folder=$2 name=$3 uuid=$4 netns=$5
# Mounted here, because the host may have the old hierarchies, all of them, or none.
umount -R -l /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Without systemd on the host, nothing else creates a group for it, and two machines in one group are one machine.
mkdir -p "/sys/fs/cgroup/$name"
echo $$ >"/sys/fs/cgroup/$name/cgroup.procs"
# Otherwise its locks and mounts would stay on the host when the power is cut.
mkdir -p /run/systemd/nspawn
mount -t tmpfs -o mode=755 tmpfs /run/systemd/nspawn
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$folder/disk,workdir=$folder/work" "$folder/root"
exec systemd-nspawn --quiet --boot --register=no --keep-unit --machine="$name" --uuid="$uuid" --directory="$folder/root" \
    --network-namespace-path="/run/netns/$netns" --console=pipe --link-journal=no
