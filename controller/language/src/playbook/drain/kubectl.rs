//! `drain: kubectl`.

use super::kubernetes::{self, KubernetesDrain};
use super::setting::{Block, LoginHost, Setting};
use super::{DrainBlock, DrainerInfo, Login};

/// Drains a Kubernetes cluster through `kubectl`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubectlDrain {
    pub cluster: KubernetesDrain,
    /// Where `kubectl` runs; none is the machine of gpufleet.
    pub login: Option<Login>,
}

const LOGIN: Setting<LoginHost> = Setting::new(
    "login",
    LoginHost,
    "The host of the inventory where `kubectl` runs; this machine unless it is written.",
);

impl DrainBlock for KubectlDrain {
    const INFO: DrainerInfo = DrainerInfo {
        word: "kubectl",
        scheduler: Some("Kubernetes"),
        summary: "Does what `kubernetes` does through `kubectl`, here or on a login host.",
        example: "drain: {kubectl: {login: login1, kubeconfig: /etc/kubernetes/admin.conf, context: gpu, \
                  node: \"{{ inventory_hostname }}.example.org\", timeout: 1h, ready_timeout: 15m, \
                  delete_emptydir_data: true, force: true, grace_period: 2m, notice: 10m, \
                  skip_namespaces: [monitoring], lock: ops/gpufleet, pause_operands: false, \
                  mig_manager: takeover}}",
        mistaken: &[],
        program: Some("kubectl"),
        has_labels: true,
        reboots: false,
        settings: &[&[&LOGIN], kubernetes::SETTINGS],
    };

    fn read(block: &mut Block<'_, '_>) -> Option<Self> {
        Some(Self { login: block.read(&LOGIN), cluster: KubernetesDrain::of(block) })
    }

    fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    fn worst_case_s(&self) -> u64 {
        self.cluster.worst_case_s()
    }

    fn fingerprint(&self) -> Vec<String> {
        self.cluster.fingerprint()
    }
}
