//! Faults of what runs containers.

use super::Fault;

/// A kubelet with one GPU registered and the driver `cgroupfs` over a containerd with systemd's.
const KUBELET: &str = r#"mkdir -p /var/lib/kubelet/device-plugins
echo 'cgroupDriver: cgroupfs' > /var/lib/kubelet/config.yaml
echo '{"Data":{"RegisteredDevices":{"nvidia.com/gpu":["GPU-a"]}},"Checksum":1}' \
  > /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint
cat > /usr/bin/containerd <<'END'
#!/bin/sh
[ "$1" = --version ] && echo 'containerd c v1.7.24 x' && exit
echo '[grpc]'; echo 'address = "/run/containerd/containerd.sock"'
echo '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]'
echo 'SystemdCgroup = true'
END
cat > /usr/bin/kubelet <<'END'
#!/bin/sh
[ "$1" = --version ] && echo 'Kubernetes v1.30.4' && exit
while :; do sleep 60; done
END
chmod 755 /usr/bin/containerd /usr/bin/kubelet
printf '[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n' > /etc/systemd/system/kubelet.service
systemctl start kubelet; timeout 10 sh -c 'until grep -qx kubelet /proc/[0-9]*/comm; do sleep 0.05; done'"#;

pub const FAULTS: &[Fault] = &[
    (
        "os.limits",
        "drift",
        "apply",
        "comm=$(grep -lx slurmd /proc/[0-9]*/comm | head -n 1)
        put ${comm%comm}limits 'Max locked memory  65536  65536  bytes'",
    ),
    ("ctr.runtime", "fail", "apply", "systemctl stop containerd"),
    ("ctr.cgroup_driver", "fail", "apply", KUBELET),
    ("ctr.kubelet_gpus", "fail", "investigate", KUBELET),
    ("ctr.image_driver", "warn", "none", "mkdir -p /var/lib/docker/image/vfs"),
    (
        "ctr.image_space",
        "fail",
        "investigate",
        "mkdir -p /var/lib/docker; mount -t tmpfs -o size=1m lab /var/lib/docker
        mkdir -p /var/lib/docker/image/overlay2; head -c 1000000 /dev/zero > /var/lib/docker/full",
    ),
    (
        "ctr.image_roots",
        "drift",
        "apply",
        r#"mkdir -p /tmp/docker/image/overlay2 /etc/docker; echo '{"data-root": "/tmp/docker"}' > /etc/docker/daemon.json"#,
    ),
];
