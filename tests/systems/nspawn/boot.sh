# One boot of a machine, from power on to power off, in mount and PID namespaces of its own.
#   boot.sh TREE FOLDER NAME UUID NETNS
# Ends as systemd-nspawn does: 133 asks for a reboot, 0 for power off.
set -eu
tree=$1 folder=$2 name=$3 uuid=$4 netns=$5
# Why mounted here: the host may have the old hierarchies, all of them, or none.
umount -R -l /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Why: without systemd on the host nobody else makes a group for it, and two machines in one group are one machine.
mkdir -p "/sys/fs/cgroup/$name"
echo $$ >"/sys/fs/cgroup/$name/cgroup.procs"
# Why: its locks and mounts would stay behind on the host when the power is cut.
mkdir -p /run/systemd/nspawn
mount -t tmpfs -o mode=755 tmpfs /run/systemd/nspawn
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$folder/disk,workdir=$folder/work" "$folder/root"
exec systemd-nspawn --quiet --boot --register=no --keep-unit --machine="$name" --uuid="$uuid" --directory="$folder/root" \
    --network-namespace-path="/run/netns/$netns" --console=pipe --link-journal=no
