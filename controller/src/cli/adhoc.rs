//! `facts`, `exec` and `clean`: one operation on many nodes, without a playbook.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use gpufleet::{
    display::{self, FactsRow},
    engine::{ConnectFailure, Connector, Link, Purpose},
    hosts::Way,
    interpreter::CachedFiles,
    inventory::Inventory,
    session::Fleet,
    template::Outside,
    visible::command_line,
};
use gpufleet_protocol::{
    Disruption, FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus, Request, RunEpoch,
    disturbing::{self, Act},
    facts::Facts,
    message::Mode,
    op::{FactsRequest, Program},
};
use serde_json::{Map, Value, json};

use super::{
    args::{
        Bounds, CleanArgs, Connection, Documents, Escalation, ExecArgs, FactsArgs, Format, InventorySource,
        Keeping, Listing, NodeAccess, Overruling, PlaybookSource, RunArgs, TaskChoice,
    },
    engine,
    environment::Environment,
    error::CommandError,
    exec,
    fleet::{Login, fleet},
    loading::AD_HOC,
    machine::ThisMachine,
    output::Output,
    sinks::AdHocView,
    sources,
};

/// How long reading facts may take, in seconds.
const FACTS_S: u64 = 60;

pub(super) struct Target<'a> {
    pub pattern: &'a str,
    /// `-e`.
    pub extra_vars: &'a [String],
    pub inventory: &'a InventorySource,
    pub connection: &'a Connection,
    pub escalation: &'a Escalation,
    pub purpose: Purpose,
}

impl<'a> Target<'a> {
    /// Hosts that are only read.
    pub fn read_only(pattern: &'a str, access: &'a NodeAccess) -> Self {
        let NodeAccess { inventory, escalation, extra_vars, connection } = access;
        let purpose = Purpose { writes: false, r#become: escalation.r#become, ..Purpose::default() };
        Self { pattern, extra_vars, inventory, connection, escalation, purpose }
    }
}

/// The selected hosts and the way to them; nothing was contacted.
pub(super) struct Reach {
    pub fleet: Fleet,
    /// In inventory order.
    pub hosts: Vec<String>,
    pub inventory: Arc<Inventory>,
}

/// Does something on every selected host, `forks` at once; results in inventory order.
pub fn on_each<T, F, Fut>(
    target: &Target<'_>,
    environment: &Environment,
    output: &Output,
    act: F,
) -> Result<Vec<(String, T)>, CommandError>
where
    F: Fn(Result<Arc<dyn Link>, ConnectFailure>) -> Fut,
    Fut: Future<Output = T>,
{
    let Reach { fleet, hosts, .. } = reach(target, environment, output)?;
    let purpose = target.purpose;
    engine::block_on(async {
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
            .buffered(target.connection.forks())
            .collect()
            .await
    })
}

/// Finds the hosts that a command is about, and how they are reached.
pub(super) fn reach(
    target: &Target<'_>,
    environment: &Environment,
    output: &Output,
) -> Result<Reach, CommandError> {
    // Why: to Ansible the current folder is where a playbook would lie, with its variable files.
    let (inventory, extra_vars) = sources::inventory(
        target.inventory,
        target.pattern,
        Some(".".into()),
        target.extra_vars,
        environment,
        output,
    )?;
    let limit = sources::limit(target.inventory, environment)?;
    output.diagnostics(&inventory.positions(&[(target.pattern, None)], limit.as_deref()));
    let hosts: Vec<String> =
        inventory.select(target.pattern, limit.as_deref())?.iter().map(ToString::to_string).collect();
    let epoch = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let holder = RunEpoch { run: format!("adhoc-{epoch}"), epoch };
    let inventory = Arc::new(inventory);
    let machine = Arc::new(ThisMachine { inventory: Arc::clone(&inventory) });
    let outside: Arc<dyn Outside> = Arc::new(CachedFiles::new(sources::Disk).on(machine));
    let login = Login { connection: target.connection, escalation: target.escalation, outside: &outside };
    let way = Way::plain(&inventory, &hosts);
    let fleet = fleet(&[way], &hosts, &extra_vars, login, holder, environment)?;
    Ok(Reach { fleet, hosts, inventory })
}

pub(super) fn request(op: NodeOp, timeout_s: u64) -> OpRequest {
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

/// What all nodes of one command said so far, in bytes, and the most that is kept of it.
static SAID: AtomicU64 = AtomicU64::new(0);
const MOST_SAID: u64 = 256 << 20;

pub async fn call(
    link: Result<Arc<dyn Link>, ConnectFailure>,
    request: OpRequest,
) -> Result<OpOutcome, (bool, String)> {
    let link = link.map_err(|error| (true, error.to_string()))?;
    let outcome = link.call(request, Vec::new(), Box::new(|_| {})).await;
    let mut outcome = outcome.map_err(|error| (true, error.to_string()))?;
    outcome.weight.room = None;
    if SAID.fetch_add(outcome.weight.bytes, Ordering::Relaxed) > MOST_SAID {
        let why = "there is no room for what it says: the nodes together say more than 256 MiB; ask fewer at once (`--limit`), \
                   or have them say less";
        outcome = OpOutcome::failed(FailureKind::Io, why);
    }
    Ok(outcome)
}

/// 0 all well, 2 a node failed, 4 only unreachable ones.
pub(super) fn exit_code(failed: bool, unreachable: bool) -> u8 {
    match (failed, unreachable) {
        (true, _) => 2,
        (false, true) => 4,
        (false, false) => 0,
    }
}

pub fn facts(args: FactsArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let target = Target::read_only(&args.pattern, &args.access);
    let read = on_each(&target, environment, output, |link| async move {
        let request = request(NodeOp::Facts(FactsRequest { gpus: true, ..FactsRequest::default() }), FACTS_S);
        let outcome = call(link, request).await.map_err(|(_, why)| why)?;
        match (outcome.facts, outcome.status) {
            (Some(facts), _) => Ok(*facts),
            (None, OpStatus::Failed { message, .. }) => Err(message),
            (None, _) => Err("the node gave no facts".to_owned()),
        }
    })?;
    let unreachable = read.iter().any(|(_, facts): &(String, Result<Facts, String>)| facts.is_err());
    // Why a failure: the GPUs exist, and their state is unknown.
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
    let text = match args.format.unwrap_or_default() {
        Format::Human | Format::Ansible => {
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
            gpufleet::visible::json_document(&all).map_err(CommandError::internal)?
        }
        Format::Jsonl => read
            .iter()
            .map(|(host, facts)| {
                gpufleet::visible::json_line(&document(host, facts)).map_err(CommandError::internal)
            })
            .collect::<Result<_, _>>()?,
    };
    output.data(&text)?;
    Ok(exit_code(failed, unreachable))
}

pub fn exec(args: ExecArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    if args.list_hosts {
        let (inventory, _) = sources::inventory(
            &args.inventory,
            &args.pattern,
            Some(".".into()),
            &args.extra_vars,
            environment,
            output,
        )?;
        let limit = sources::limit(&args.inventory, environment)?;
        let hosts = inventory.select(&args.pattern, limit.as_deref())?;
        let lines: String = hosts.iter().map(|host| format!("    {host}\n")).collect();
        output.data(&format!("  hosts ({}):\n{lines}", hosts.len()))?;
        return Ok(0);
    }
    if args.argv.is_empty() {
        return exec_task(args, environment, output);
    }
    let target = Target {
        pattern: &args.pattern,
        extra_vars: &args.extra_vars,
        inventory: &args.inventory,
        connection: &args.connection,
        escalation: &args.escalation,
        // Why as a writer: a program may change anything, and two controllers never work on one node.
        purpose: Purpose { writes: true, r#become: args.escalation.r#become, ..Purpose::default() },
    };
    let run = match args.shell {
        true => Program::Shell { line: args.argv.join(" "), executable: "/bin/sh".to_owned() },
        false => Program::Argv(args.argv.clone()),
    };
    // Why before any node is asked: all of them would be disturbed at once.
    if let Some(found) = disturbing::of_program(&run, None) {
        let instead = match found.act.instead() {
            Some(_) if found.act == Act::Reboots => {
                command_line(["gpufleet", "exec", &args.pattern, "-b", "-m", "reboot", "-a", "when=always"])
            }
            Some(instead) => {
                return Err(CommandError::user(format!(
                    "{found}, and is not run on many nodes at once: {instead}"
                )));
            }
            None => {
                let line = args.argv.join(" ");
                command_line(["gpufleet", "exec", &args.pattern, "-b", "-m", "shell", "-a", &line])
            }
        };
        return Err(CommandError::user(format!(
            "{found}, and `exec … -- COMMAND` runs it on all nodes at once, whatever works there; as a task it asks first, takes \
             one node at a time and leaves busy ones alone: `{instead}`"
        )));
    }
    exec::on_all(run, &target, &args, environment, output)
}

/// `exec -m KIND -a ARGS`: a run of one task, with a journal, permits and resume like any run.
fn exec_task(args: ExecArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let kind = args.module_name.as_deref().unwrap_or("command");
    // Why: nothing that one node does decides whether another one is asked; only what disturbs is bounded.
    let calm = gpufleet_protocol::tasks::find(kind).is_some_and(|kind| kind.disruption == Disruption::Live)
        && args.module_args.as_deref().and_then(|line| disturbing::of_template(line, true)).is_none();
    // Why not 0: as in Ansible, that is nothing.
    let job = args.background.filter(|seconds| *seconds > 0).map(|seconds| (seconds, args.poll));
    let run = RunArgs {
        source: PlaybookSource {
            playbooks: vec![AD_HOC.into()],
            choice: TaskChoice { extra_vars: args.extra_vars, ..TaskChoice::default() },
            inventory: args.inventory,
            escalation: args.escalation,
            text: Some(playbook(&args.pattern, kind, args.module_args.as_deref(), job)?),
            roles_path: Vec::new(),
            keep: Keeping::default(),
        },
        check: args.check,
        fail_on_change: false,
        diff: args.diff,
        step: false,
        yes: args.yes,
        listing: Listing::default(),
        bounds: Bounds::default(),
        soak: None,
        max_failures: calm.then_some(u32::MAX),
        overruling: Overruling::default(),
        documents: Documents { format: args.format, ..Documents::default() },
        connection: args.connection,
    };
    let view = AdHocView { one_line: args.one_line };
    let mut request = engine::request_of(&run);
    request.ad_hoc = Some(view);
    engine::carry_out(&request, None, environment, output)
}

/// The playbook that an ad hoc task is.
///
/// `job` is how long it may go on by itself and how often it is looked at, in seconds.
fn playbook(
    pattern: &str,
    kind: &str,
    args: Option<&str>,
    job: Option<(u64, Option<u64>)>,
) -> Result<String, CommandError> {
    let args = args.unwrap_or_default().trim();
    let params = match args.starts_with('{') {
        true => serde_json::from_str(args)
            .map_err(|error| CommandError::user(format!("the arguments of `-a` are no JSON: {error}")))?,
        false if args.is_empty() => Value::Null,
        false => Value::from(args),
    };
    let plain = !kind.is_empty() && kind.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let kind = if plain { kind.to_owned() } else { Value::from(kind).to_string() };
    let pattern = Value::from(pattern);
    let mut text = format!("- hosts: {pattern}\n  gather_facts: false\n  tasks:\n    - {kind}: {params}\n");
    if let Some((seconds, poll)) = job {
        text.push_str(&format!("      async: {seconds}\n"));
        text.extend(poll.map(|poll| format!("      poll: {poll}\n")));
    }
    Ok(text)
}

pub fn clean(args: CleanArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let target = Target {
        pattern: &args.pattern,
        extra_vars: &[],
        inventory: &args.inventory,
        connection: &args.connection,
        escalation: &args.escalation,
        purpose: Purpose { writes: true, r#become: args.escalation.r#become, ..Purpose::default() },
    };
    let results = on_each(&target, environment, output, |link| async move {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ad_hoc_task_is_a_playbook() {
        insta::assert_snapshot!(playbook("gpu:!n1", "stat", Some("path=/etc/motd"), None).unwrap(), @r#"
        - hosts: "gpu:!n1"
          gather_facts: false
          tasks:
            - stat: "path=/etc/motd"
        "#);
        insta::assert_snapshot!(playbook("all", "a: b", Some("{\"x\": [1]}"), None).unwrap(), @r#"
        - hosts: "all"
          gather_facts: false
          tasks:
            - "a: b": {"x":[1]}
        "#);
        insta::assert_snapshot!(playbook("all", "command", Some("true"), Some((30, Some(0)))).unwrap(), @r#"
        - hosts: "all"
          gather_facts: false
          tasks:
            - command: "true"
              async: 30
              poll: 0
        "#);
        assert!(playbook("all", "stat", Some("{path}"), None).is_err());
    }
}
