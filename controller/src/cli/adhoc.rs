//! `facts`, `exec` and `clean`: one operation on many nodes, without a playbook.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use gpufleet::{
    display::{self, ExecResult, FactsRow},
    engine::{ConnectFailure, Connector, Link, Purpose},
};
use gpufleet_protocol::{
    FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus, Request, RunEpoch,
    facts::Facts,
    message::Mode,
    op::{Exec, FactsRequest, Program},
};
use serde_json::{Map, Value, json};

use super::{
    args::{CleanArgs, Connection, ExecArgs, FactsArgs, Format, InventorySource},
    environment::Environment,
    error::CommandError,
    fleet::Fleet,
    output::Output,
    sources,
};

/// How long reading facts may take, in seconds.
const FACTS_S: u64 = 60;

struct Target<'a> {
    pattern: &'a str,
    inventory: &'a InventorySource,
    connection: &'a Connection,
    purpose: Purpose,
}

/// Does something on every selected host, `forks` at once; results in inventory order.
fn on_each<T, F, Fut>(
    target: &Target<'_>,
    environment: &Environment,
    act: F,
) -> Result<Vec<(String, T)>, CommandError>
where
    F: Fn(Result<Arc<dyn Link>, ConnectFailure>) -> Fut,
    Fut: Future<Output = T>,
{
    // Why: to Ansible the current folder is where a playbook would lie, with its variable files.
    let inventory = sources::inventory(target.inventory, Some(".".into()), environment)?;
    let limit = sources::limit(target.inventory, environment)?;
    let hosts: Vec<String> =
        inventory.select(target.pattern, limit.as_deref())?.iter().map(ToString::to_string).collect();
    let epoch = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let holder = RunEpoch { run: format!("adhoc-{epoch}"), epoch };
    let fleet = Fleet::new(&inventory, &hosts, &Map::new(), target.connection, holder, environment)?;
    let runtime = super::engine::runtime()?;
    let purpose = target.purpose;
    Ok(runtime.block_on(async {
        let (fleet, act) = (&fleet, &act);
        stream::iter(hosts)
            .map(|host| async move {
                let link = fleet.connect(&host, purpose).await;
                let open = link.as_ref().ok().map(Arc::clone);
                let result = act(link).await;
                if let Some(link) = open {
                    link.close().await;
                }
                (host, result)
            })
            .buffered(target.connection.forks.max(1))
            .collect()
            .await
    }))
}

fn request(op: NodeOp, timeout_s: u64) -> OpRequest {
    OpRequest {
        op,
        mode: Mode::Apply,
        permit: None,
        run_as: None,
        timeout_s,
        op_id: String::new(),
        secret: false,
        environment: Vec::new(),
    }
}

async fn call(
    link: Result<Arc<dyn Link>, ConnectFailure>,
    op: NodeOp,
    timeout_s: u64,
) -> Result<OpOutcome, (bool, String)> {
    let link = link.map_err(|error| (true, error.to_string()))?;
    let outcome = link.call(request(op, timeout_s), Vec::new(), Box::new(|_| {})).await;
    outcome.map_err(|error| (true, error.to_string()))
}

/// 0 all well, 2 a node failed, 4 only unreachable ones.
fn exit_code(failed: bool, unreachable: bool) -> u8 {
    match (failed, unreachable) {
        (true, _) => 2,
        (false, true) => 4,
        (false, false) => 0,
    }
}

pub fn facts(args: FactsArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let target = Target {
        pattern: &args.pattern,
        inventory: &args.inventory,
        connection: &args.connection,
        purpose: Purpose { writes: false, r#become: args.r#become, ..Purpose::default() },
    };
    let read = on_each(&target, environment, |link| async move {
        let outcome =
            call(link, NodeOp::Facts(FactsRequest { gpus: true }), FACTS_S).await.map_err(|(_, why)| why)?;
        match (outcome.facts, outcome.status) {
            (Some(facts), _) => Ok(*facts),
            (None, OpStatus::Failed { message, .. }) => Err(message),
            (None, _) => Err("the node gave no facts".to_owned()),
        }
    })?;
    let unreachable = read.iter().any(|(_, facts): &(String, Result<Facts, String>)| facts.is_err());
    // Why a failure: the GPUs are there, and nobody knows how they are.
    let unknown = |facts: &Facts| {
        use gpufleet_protocol::facts::GpuSystemState::{Crashed, Failed, Hung, NoWorker, VersionMismatch};
        matches!(
            facts.gpu.state,
            Hung { .. } | Crashed { .. } | Failed { .. } | NoWorker { .. } | VersionMismatch { .. }
        )
    };
    let failed = read.iter().any(|(_, facts)| facts.as_ref().is_ok_and(unknown));
    let document = |host: &str, facts: &Result<Facts, String>| match facts {
        Ok(facts) => json!({ "host": host, "facts": facts }),
        Err(error) => json!({ "host": host, "error": error }),
    };
    let text = match args.format {
        Format::Human => {
            let rows: Vec<FactsRow<'_>> = read
                .iter()
                .map(|(host, facts)| FactsRow { host, facts: facts.as_ref().map_err(String::as_str) })
                .collect();
            display::facts_table(&rows, rows.len() > 40, &output.style)
        }
        Format::Json => {
            let all: Map<String, Value> = read
                .iter()
                .map(|(host, facts)| {
                    let value = match facts {
                        Ok(facts) => serde_json::to_value(facts).unwrap_or_default(),
                        Err(error) => json!({ "error": error }),
                    };
                    (host.clone(), value)
                })
                .collect();
            serde_json::to_string_pretty(&all).map_err(CommandError::internal)?
        }
        Format::Jsonl => read.iter().map(|(host, facts)| format!("{}\n", document(host, facts))).collect(),
    };
    output.data(&text)?;
    Ok(exit_code(failed, unreachable))
}

pub fn exec(args: ExecArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let target = Target {
        pattern: &args.pattern,
        inventory: &args.inventory,
        connection: &args.connection,
        // Why as a writer: nobody can tell what a program changes, and two controllers never work on one node.
        purpose: Purpose { writes: true, r#become: args.r#become, ..Purpose::default() },
    };
    let run = match args.shell {
        true => Program::Shell { line: args.argv.join(" "), executable: "/bin/sh".to_owned() },
        false => Program::Argv(args.argv.clone()),
    };
    let (run, timeout) = (&run, args.connection.task_timeout);
    let results = on_each(&target, environment, |link| async move {
        call(link, NodeOp::Exec(Exec { run: run.clone(), ..Exec::default() }), timeout).await
    })?;
    let (mut failed, mut unreachable) = (false, false);
    let results: Vec<ExecResult> = results
        .into_iter()
        .map(|(host, outcome)| match outcome {
            Ok(outcome) => {
                let text = |name: &str| {
                    outcome.data.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
                };
                let rc = outcome.data.get("rc").and_then(Value::as_i64).and_then(|rc| i32::try_from(rc).ok());
                let error = match &outcome.status {
                    OpStatus::Failed { kind, message } if rc.is_none() || *kind != FailureKind::Exit => {
                        Some(message.clone())
                    }
                    _ => None,
                };
                failed |= matches!(outcome.status, OpStatus::Failed { .. });
                ExecResult { host, rc, stdout: text("stdout"), stderr: text("stderr"), error }
            }
            Err((_, why)) => {
                unreachable = true;
                ExecResult { host, rc: None, stdout: String::new(), stderr: String::new(), error: Some(why) }
            }
        })
        .collect();
    let document = |result: &ExecResult| json!({"host": result.host, "rc": result.rc, "stdout": result.stdout, "stderr": result.stderr, "error": result.error});
    let text = match args.format {
        Format::Human => display::exec_grouped(&results, &output.style),
        Format::Json => {
            let all: Vec<Value> = results.iter().map(document).collect();
            serde_json::to_string_pretty(&all).map_err(CommandError::internal)?
        }
        Format::Jsonl => results.iter().map(|result| format!("{}\n", document(result))).collect(),
    };
    output.data(&text)?;
    Ok(exit_code(failed, unreachable))
}

pub fn clean(args: CleanArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let target = Target {
        pattern: &args.pattern,
        inventory: &args.inventory,
        connection: &args.connection,
        purpose: Purpose { writes: true, r#become: args.r#become, ..Purpose::default() },
    };
    let results = on_each(&target, environment, |link| async move {
        let link = link.map_err(|error| error.to_string())?;
        let answer = tokio::time::timeout(Duration::from_secs(FACTS_S), link.request(Request::Clean)).await;
        match answer {
            Ok(Ok(gpufleet_protocol::Reply::Error { message })) => Err(message),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("did not answer in time".to_owned()),
        }
    })?;
    let mut failed = false;
    let mut text = String::new();
    for (host, result) in &results {
        match result {
            Ok(()) => text.push_str(&format!("{host}: clean\n")),
            Err(why) => {
                failed = true;
                text.push_str(&format!("{host}: {why}\n"));
            }
        }
    }
    output.data(&text)?;
    Ok(exit_code(failed, false))
}
