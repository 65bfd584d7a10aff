//! A drainer for Kubernetes from its declaration, and where a play's cluster is and by which credentials.
//!
//! Owns the order in which kubeconfigs are looked for: the one that the play names, `$KUBECONFIG`, `~/.kube/config`, and the
//! service account of a pod. Must not know how a kubeconfig is read. Invariant: nothing is contacted, and no program is run.

#[cfg(feature = "kubernetes")]
use std::path::PathBuf;
use std::{collections::HashMap, sync::Arc, time::Duration};

use gpufleet_protocol::tasks::GpuMig;

use super::{
    Declared, Prepared, Surroundings, surveyed,
    templates::{Naming, Rendering},
};
use crate::{
    diagnostic::{Diagnostic, Diagnostics},
    drain::{
        Api, KubernetesDrainer, KubernetesOptions, Lock, MigManager, NoticePlan, PodPolicy, Scheduler,
        is_kubernetes_node_name,
    },
    playbook::{KubernetesDrain, OnMigManager, Play},
};

impl Declared for KubernetesDrain {
    fn prepare<'a>(&'a self, rendering: &mut Rendering<'a>, said: &mut Diagnostics) -> Option<Prepared<'a>> {
        let nodes = names(self, rendering, said);
        match api(rendering.play, self, rendering.surroundings) {
            Ok(api) => {
                let (play, forced) = (rendering.play, rendering.surroundings.forced);
                Some(Box::new(move |_| Ok(made(self, play, nodes, api, forced))))
            }
            Err(error) => {
                said.push(error);
                None
            }
        }
    }
}

/// Names at Kubernetes that differ from the hosts'.
pub(super) fn names(
    kubernetes: &KubernetesDrain,
    rendering: &mut Rendering<'_>,
    said: &mut Diagnostics,
) -> HashMap<String, String> {
    let naming = Naming {
        scheduler: "Kubernetes",
        is_name: is_kubernetes_node_name,
        help: "`kubectl get nodes` shows them",
    };
    rendering.names(&kubernetes.node, &kubernetes.spans, &naming, said)
}

/// The scheduler of a cluster that is reached by `api`.
pub(super) fn made(
    kubernetes: &KubernetesDrain,
    play: &Play,
    nodes: HashMap<String, String>,
    api: Arc<dyn Api>,
    forced: bool,
) -> Scheduler {
    let evictions = &kubernetes.evictions;
    let mut options = KubernetesOptions {
        pods: PodPolicy {
            delete_emptydir_data: evictions.delete_emptydir_data,
            force: evictions.force,
            skip_namespaces: evictions.skip_namespaces.iter().cloned().collect(),
        },
        grace_period: evictions.grace_period_s.map(Duration::from_secs),
        notice: evictions.notice_s.map(Duration::from_secs),
        ready_timeout: Duration::from_secs(kubernetes.ready_timeout_s),
        pauses_operands: kubernetes.pause_operands,
        mig_manager: match &kubernetes.mig_manager {
            OnMigManager::Refuse => MigManager::Refuse,
            OnMigManager::Takeover => MigManager::Takeover,
            OnMigManager::Label(config) => MigManager::Label(config.clone()),
        },
        lays_out_mig: play.tasks().iter().any(|task| task.kind.is::<GpuMig>()),
        forced,
        ..KubernetesOptions::default()
    };
    if let Some((namespace, name)) = kubernetes.lock.clone() {
        options.lock = Lock { namespace, name };
    }
    let notice = options.notice.map(|deadline| NoticePlan { deadline, before_cordon: false });
    let drainer = KubernetesDrainer::new(api, options);
    let mut scheduler = surveyed(Arc::new(drainer), kubernetes.timeout_s, nodes);
    scheduler.notice = notice;
    scheduler
}

/// The way to the API server of a play.
///
/// # Errors
/// No kubeconfig, or one that does not exist or that cannot be used to log in.
#[cfg(feature = "kubernetes")]
fn api(
    play: &Play,
    kubernetes: &KubernetesDrain,
    surroundings: &Surroundings<'_>,
) -> Result<Arc<dyn Api>, Diagnostic> {
    use crate::drain::{ApiClient, Credentials};

    let context = kubernetes.context.clone();
    let credentials = match &kubernetes.kubeconfig {
        Some(written) => {
            let path = expanded(written, surroundings);
            if let Err(error) = std::fs::File::open(&path) {
                return Err(Diagnostic::error(format!("the kubeconfig cannot be read: {error}"))
                    .at(kubernetes.spans.of("kubeconfig").unwrap_or(&play.span))
                    .label(format!("as {}", path.display()))
                    .help("give a path on this machine; relative ones begin at the current folder"));
            }
            Credentials::Files { paths: vec![path], context }
        }
        None => {
            let usual = surroundings.home.map(|home| home.join(".kube/config"));
            let listed = surroundings.variable("KUBECONFIG").filter(|text| !text.is_empty());
            let paths: Vec<PathBuf> = match listed {
                Some(listed) => std::env::split_paths(listed).collect(),
                None => usual.into_iter().collect(),
            };
            let there: Vec<PathBuf> = paths.into_iter().filter(|path| path.is_file()).collect();
            if !there.is_empty() {
                Credentials::Files { paths: there, context }
            } else if surroundings.variable("KUBERNETES_SERVICE_HOST").is_some() && context.is_none() {
                Credentials::InCluster
            } else {
                return Err(Diagnostic::error("there is no kubeconfig to drain with")
                    .at(kubernetes.spans.of("kubeconfig").unwrap_or(&play.span))
                    .label(
                        "neither $KUBECONFIG nor ~/.kube/config is a file, and this is no pod of a cluster",
                    )
                    .help("name one: `drain: {kubernetes: {kubeconfig: ~/.kube/prod}}`"));
            }
        }
    };
    if let Some(why) = credentials.refused() {
        let paths: Vec<String> = match &credentials {
            Credentials::Files { paths, .. } => paths.iter().map(|path| path.display().to_string()).collect(),
            Credentials::InCluster => Vec::new(),
        };
        return Err(Diagnostic::error("the kubeconfig cannot be used")
            .at(kubernetes.spans.of("kubeconfig").unwrap_or(&play.span))
            .label(format!("as {}", paths.join(":")))
            .help(why));
    }
    Ok(Arc::new(ApiClient::new(credentials)))
}

/// The parser refused such a play already.
#[cfg(not(feature = "kubernetes"))]
fn api(
    play: &Play,
    _kubernetes: &KubernetesDrain,
    _surroundings: &Surroundings<'_>,
) -> Result<Arc<dyn Api>, Diagnostic> {
    Err(Diagnostic::error("this gpufleet cannot drain by Kubernetes").at(&play.span))
}

#[cfg(feature = "kubernetes")]
fn expanded(written: &str, surroundings: &Surroundings<'_>) -> PathBuf {
    match (written.strip_prefix("~/"), surroundings.home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(written),
    }
}
