//! Where a play's cluster is and who we are there.
//!
//! Owns the order in which kubeconfigs are looked for: the one that the play names, `$KUBECONFIG`, `~/.kube/config`, and the
//! service account of a pod. Must not know how a kubeconfig is read. Invariant: nothing is contacted, and no program is run.

#[cfg(feature = "kubernetes")]
use std::path::PathBuf;
use std::sync::Arc;

use gpufleet::{
    diagnostic::Diagnostic,
    drain::Api,
    playbook::{KubernetesDrain, Play},
};

use super::environment::Environment;

/// The way to the API server of a play.
///
/// # Errors
/// No kubeconfig, or one that is not there or that nobody can log in by.
#[cfg(feature = "kubernetes")]
pub fn api(
    play: &Play,
    kubernetes: &KubernetesDrain,
    environment: &Environment,
) -> Result<Arc<dyn Api>, Diagnostic> {
    use gpufleet::drain::{ApiClient, Credentials};

    let context = kubernetes.context.clone();
    let variable =
        |name: &str| environment.settings.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let credentials = match &kubernetes.kubeconfig {
        Some(written) => {
            let path = expanded(written, environment);
            if let Err(error) = std::fs::File::open(&path) {
                return Err(Diagnostic::error(format!("the kubeconfig cannot be read: {error}"))
                    .at(kubernetes.spans.of("kubeconfig").unwrap_or(&play.span))
                    .label(format!("as {}", path.display()))
                    .help("give a path on this machine; relative ones begin at the current folder"));
            }
            Credentials::Files { paths: vec![path], context }
        }
        None => {
            let usual = environment.home.as_ref().map(|home| home.join(".kube/config"));
            let listed = variable("KUBECONFIG").filter(|text| !text.is_empty());
            let paths: Vec<PathBuf> = match listed {
                Some(listed) => std::env::split_paths(listed).collect(),
                None => usual.into_iter().collect(),
            };
            let there: Vec<PathBuf> = paths.into_iter().filter(|path| path.is_file()).collect();
            if !there.is_empty() {
                Credentials::Files { paths: there, context }
            } else if variable("KUBERNETES_SERVICE_HOST").is_some() && context.is_none() {
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
pub fn api(
    play: &Play,
    _kubernetes: &KubernetesDrain,
    _environment: &Environment,
) -> Result<Arc<dyn Api>, Diagnostic> {
    Err(Diagnostic::error("this gpufleet cannot drain by Kubernetes").at(&play.span))
}

#[cfg(feature = "kubernetes")]
fn expanded(written: &str, environment: &Environment) -> PathBuf {
    match (written.strip_prefix("~/"), &environment.home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(written),
    }
}
