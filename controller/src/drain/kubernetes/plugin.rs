//! Credentials that a program of the kubeconfig prints: exec plugins.
//!
//! Owns the call and what of its answer counts. Invariants: the program has its time and no longer, with all that it
//! started; nothing that it prints is shown, because that may be secret.
//!
//! Why not kube's own: it waits without a bound, twice for each client, and a program that hangs keeps this process from
//! ending.

use std::time::Duration;

use jiff::Timestamp;
use kube::config::ExecConfig;
use serde::Deserialize;
use serde_json::json;

use super::super::{Call, LocalRunner, RunError, Runner as _};
use super::api::Unanswered;

/// What counts of an `ExecCredential`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Given {
    pub(super) token: Option<String>,
    /// As PEM, with its key.
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key_data: Option<String>,
    pub(super) expiration_timestamp: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Answer {
    status: Option<Given>,
}

/// Asks the plugin, which has no terminal.
pub(super) async fn ask(exec: &ExecConfig, limit: Duration) -> Result<Given, Unanswered> {
    let Some(program) = &exec.command else {
        return Err(Unanswered("the kubeconfig's exec plugin has no command".to_owned()));
    };
    let arguments = exec.args.iter().flatten();
    let mut call = Call::new(std::iter::once(program).chain(arguments), limit);
    let variables = exec.env.iter().flatten();
    call.env
        .extend(variables.filter_map(|pair| Some((pair.get("name")?.clone(), pair.get("value")?.clone()))));
    let mut spec = json!({"interactive": false});
    if let (true, Some(cluster), Some(spec)) =
        (exec.provide_cluster_info, &exec.cluster, spec.as_object_mut())
    {
        spec.insert("cluster".to_owned(), json!(cluster));
    }
    let info = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    call.env.push(("KUBERNETES_EXEC_INFO".to_owned(), info.to_string()));
    let output = LocalRunner.run(call).await.map_err(|error| {
        Unanswered(match error {
            RunError::NotStarted(why) => {
                let hint = exec.install_hint.as_deref().map(|hint| format!("; {hint}")).unwrap_or_default();
                format!("the kubeconfig's exec plugin `{program}` cannot be started: {why}{hint}")
            }
            RunError::TimedOut { after } => silent(after),
            error => format!("the kubeconfig's exec plugin `{program}` {error}"),
        })
    })?;
    if output.status != Some(0) {
        let how =
            output.status.map_or_else(|| "a signal".to_owned(), |status| format!("exit status {status}"));
        return Err(Unanswered(format!(
            "the kubeconfig's exec plugin `{program}` failed ({how}); run it by hand to see why"
        )));
    }
    let given = serde_json::from_slice(&output.stdout).ok().and_then(|answer: Answer| answer.status);
    given.filter(|given| given.token.is_some() || given.client_certificate_data.is_some()).ok_or_else(|| {
        Unanswered(format!(
            "the kubeconfig's exec plugin `{program}` printed no credentials that can be read"
        ))
    })
}

/// What is said of credentials that do not come.
pub(super) fn silent(after: Duration) -> String {
    format!(
        "the kubeconfig gave no credentials within {} s; its exec plugin may wait for a person: run it by hand to see",
        after.as_secs()
    )
}
