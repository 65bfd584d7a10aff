//! The lab's kubelet on a node.

use crate::Fleet;

/// How a file of the kubelet begins.
pub const KUBELET_HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// Puts a kubelet as kubeadm installs it on a node and starts it.
///
/// # Panics
/// If it does not run.
pub fn install_kubelet(fleet: &Fleet, node: &str) {
    let script = format!(
        "mkdir -p /opt/kube /var/lib/kubelet /etc/kubernetes/kubelet.conf.d
ln -sf $(readlink -f $(command -v dcgmi)) /opt/kube/kubelet
printf '{}clusterDNS:\\n- 10.96.0.10\\n' > /var/lib/kubelet/config.yaml
echo 'KUBELET_KUBEADM_ARGS=\"--v=2\"' > /var/lib/kubelet/kubeadm-flags.env
printf '[Service]\\nExecStart=/opt/kube/kubelet --config=/var/lib/kubelet/config.yaml --config-dir=/etc/kubernetes/kubelet.conf.d --v=2\\n[Install]\\nWantedBy=multi-user.target\\n' > /etc/systemd/system/kubelet.service
systemctl enable --now kubelet",
        KUBELET_HEADER.replace('\n', "\\n")
    );
    let done = fleet.ssh(node, &script);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(fleet.read(node, "systemctl is-active kubelet"), "active");
}
