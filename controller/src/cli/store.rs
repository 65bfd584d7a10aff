//! The history of audits: recording one, and `history`.

use std::{fs, os::unix::fs::DirBuilderExt as _, time::Duration};

use gpufleet::{
    display,
    event::{EarlierAudit, RunStarted, What},
    journal::{JournalError, RunDir, RunId, newest_runs, read_events, skim},
    report::{EarlierShare, RunModel, observation, series_of},
};
use gpufleet_history::{Audit, NodeHistory, NodeRow, Place, Store, StoreError};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde::Serialize;
use serde_json::json;

use super::{
    args::{Format, HistoryArgs, HistoryCommand, StoreChoice},
    engine::block_on,
    environment::Environment,
    error::CommandError,
    output::Output,
    trust,
};

/// How long an audit waits for its history: what it found is on the screen only after that.
const PATIENCE: Duration = Duration::from_secs(60);
/// The file of the store that is used unless one is chosen, below the state directory.
const FILE: &str = "history.db";
/// Earlier audits whose share of compliant nodes a report draws: two months of nights.
const MOST_TREND: u32 = 60;

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        let hint = match &error {
            StoreError::Url { .. } => None,
            StoreError::Newer { .. } => Some("use that gpufleet, or another store with --store"),
            StoreError::Open { .. } | StoreError::Failed { .. } => {
                Some("look at the store, or choose another with --store; `gpufleet config` shows what is set")
            }
            StoreError::Damaged { .. } => {
                Some("move it away: `gpufleet history rebuild` makes it again from the journals")
            }
        };
        let error = Self::user(&error);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// Where the history is.
///
/// # Errors
/// What was given is no store, or others can write to the state directory.
pub fn place(choice: &StoreChoice, environment: &Environment) -> Result<Place, CommandError> {
    match &choice.store {
        Some(url) => Ok(Place::parse(url)?),
        None => {
            let folder = &environment.state_dir;
            trust::demand_state_dir(folder)?;
            // Before the first run of a machine there is none.
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| CommandError::user(format!("cannot make {}: {error}", folder.display())))?;
            Ok(Place::file(folder.join(FILE)))
        }
    }
}

/// Records what an audit found, and returns what an earlier one found of the same nodes. A failure is a warning: the audit has
/// its result whatever becomes of its history.
pub fn record(
    model: &RunModel,
    choice: &StoreChoice,
    environment: &Environment,
    output: &Output,
) -> Option<EarlierShare> {
    let audit = observation(model, &environment.hostname)?;
    let work = async {
        let store = Store::at(&place(choice, environment)?).await?;
        let nodes: Vec<String> = audit.nodes.iter().map(|node| node.node.clone()).collect();
        store.record(&audit).await?;
        let earlier = store.earlier(&audit.playbooks, &audit.baselines, &nodes, audit.started).await?;
        store.close().await;
        Ok::<_, CommandError>(earlier)
    };
    let earlier = block_on(async { tokio::time::timeout(PATIENCE, work).await });
    let cause = match earlier {
        Ok(Ok(Ok(earlier))) => {
            return earlier.map(|earlier| EarlierShare {
                on: earlier.started.to_zoned(TimeZone::system()).date(),
                nodes: earlier.nodes,
                compliant: earlier.compliant,
            });
        }
        Ok(Ok(Err(error))) | Err(error) => message(&error),
        Ok(Err(_)) => format!("the store did not answer within {} s", PATIENCE.as_secs()),
    };
    output.warning(&format!(
        "this audit is not in the history: {cause}; `gpufleet history rebuild` records it from its journal"
    ));
    None
}

/// What an audit takes from earlier ones.
#[derive(Debug, Default)]
pub struct Past {
    /// By host: values of `gpufleet_compliance::Memory`.
    pub memories: Vec<(String, serde_json::Value)>,
    pub trend: Vec<EarlierAudit>,
}

/// Returns what earlier audits leave to one that starts. Without a history that answers, that there may be some: what needs an
/// earlier reading is then not judged, what has to be seen in several audits stays provisional, and the audit says so.
pub fn earlier(
    started: &RunStarted,
    choice: &StoreChoice,
    environment: &Environment,
    output: &Output,
) -> Past {
    // The first audit of a machine makes it.
    if choice.store.is_none() && !environment.state_dir.join(FILE).exists() {
        return Past::default();
    }
    let (playbooks, baselines) = series_of(started);
    let work = async {
        let store = Store::at(&place(choice, environment)?).await?;
        let memories = match started.audit {
            Some(_) => store.memories(&started.hosts).await?.into_iter().collect(),
            None => Vec::new(),
        };
        let trend = store.trend(&playbooks, &baselines, MOST_TREND).await?;
        store.close().await;
        let trend = trend
            .into_iter()
            .map(|audit| EarlierAudit { at: audit.started, nodes: audit.nodes, compliant: audit.compliant })
            .collect();
        Ok::<_, CommandError>(Past { memories, trend })
    };
    let cause = match block_on(async { tokio::time::timeout(PATIENCE, work).await }) {
        Ok(Ok(Ok(past))) => return past,
        Ok(Ok(Err(error))) | Err(error) => message(&error),
        Ok(Err(_)) => format!("the store did not answer within {} s", PATIENCE.as_secs()),
    };
    output.warning(&format!(
        "rates and growth are not judged, and what has to be seen in several audits in a row is provisional, because the \
         history cannot be read: {cause}"
    ));
    let unread = started.hosts.iter().map(|host| (host.clone(), serde_json::Value::Null));
    Past { memories: unread.filter(|_| started.audit.is_some()).collect(), trend: Vec::new() }
}

fn message(error: &CommandError) -> String {
    match error {
        CommandError::User { message, .. } | CommandError::Stopped { message, .. } => message.clone(),
        CommandError::Internal(message) => message.clone(),
        CommandError::Input(_) | CommandError::BrokenPipe => "its settings are wrong".to_owned(),
    }
}

pub fn history(args: &HistoryArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let place = place(&args.store, environment)?;
    block_on(async {
        let store = Store::at(&place).await?;
        let done = match &args.command {
            Some(HistoryCommand::Forget { run }) => forget(&store, run, output).await,
            Some(HistoryCommand::Retire { nodes }) => retire(&store, nodes, output).await,
            Some(HistoryCommand::Rebuild) => rebuild(&store, environment, output).await,
            Some(HistoryCommand::Prune { keep }) => prune(&store, *keep, output).await,
            None => show(&store, args, output).await,
        };
        store.close().await;
        done
    })??;
    Ok(0)
}

async fn show(store: &Store, args: &HistoryArgs, output: &Output) -> Result<(), CommandError> {
    let zone = TimeZone::system();
    let (format, style) = (args.format.unwrap_or_default(), &output.style);
    let Some(about) = &args.about else {
        let (audits, mut nodes) = (store.audits(None).await?, store.nodes().await?);
        let open = store.open_findings().await?;
        NodeRow::put_open(&mut nodes, &open);
        let document = json!({ "audits": audits, "nodes": nodes, "open": open });
        return tell(format, &document, output, || {
            display::fleet_history(&audits, &nodes, &open, &zone, style)
        });
    };
    if let Some(node) = store.node(about).await?.map(NodeHistory::with_open) {
        return tell(format, &node, output, || display::node_history(&node, &zone, style));
    }
    if let Some(control) = store.control(about).await? {
        return tell(format, &control, output, || display::control_history(&control, &zone, style));
    }
    let error = CommandError::user(format!("no audit in {} has a node or a check `{about}`", store.place()));
    let nodes = store.nodes().await?;
    let nodes = nodes.iter().map(|node| node.node.as_str());
    let checks = gpufleet_compliance::Catalogue::get().checks().iter().map(|check| &*check.id);
    Err(match gpufleet::diagnostic::suggest(about, nodes.chain(checks)) {
        Some(close) => error.hint(format!("did you mean `{close}`?")),
        None => error.hint("`gpufleet history` shows what is there"),
    })
}

fn tell(
    format: Format,
    document: &impl Serialize,
    output: &Output,
    screen: impl FnOnce() -> String,
) -> Result<(), CommandError> {
    output.data(&match format {
        Format::Human | Format::Ansible => screen(),
        Format::Json => gpufleet::visible::json_document(document).map_err(CommandError::internal)?,
        Format::Jsonl => gpufleet::visible::json_line(document).map_err(CommandError::internal)?,
    })
}

async fn prune(store: &Store, keep_s: u64, output: &Output) -> Result<(), CommandError> {
    let keep = i64::try_from(keep_s).ok().map(SignedDuration::from_secs);
    let before = keep.and_then(|keep| Timestamp::now().checked_sub(keep).ok());
    let before = before.ok_or_else(|| CommandError::user("--keep reaches further back than time does"))?;
    let removed = store.prune(before).await?;
    let day = before.to_zoned(TimeZone::system()).date();
    let audits = display::count(usize::try_from(removed).unwrap_or(usize::MAX), "audit");
    output.status(&format!("removed {audits} from before {day}"));
    Ok(())
}

async fn forget(store: &Store, run: &str, output: &Output) -> Result<(), CommandError> {
    if !store.forget(run).await? {
        let error = CommandError::user(format!("no audit in {} is of the run `{run}`", store.place()));
        return Err(error.hint("`gpufleet history --format json` names the runs of all audits"));
    }
    output.status(&format!("removed the audit {run}; `gpufleet history rebuild` would record it again"));
    Ok(())
}

async fn retire(store: &Store, nodes: &[String], output: &Output) -> Result<(), CommandError> {
    let known: Vec<String> = store.nodes().await?.into_iter().map(|node| node.node).collect();
    if let Some(unknown) = nodes.iter().find(|node| !known.contains(node)) {
        let error = CommandError::user(format!("no audit in {} has a node `{unknown}`", store.place()));
        return Err(match gpufleet::diagnostic::suggest(unknown, known.iter().map(String::as_str)) {
            Some(close) => error.hint(format!("nothing was removed; did you mean `{close}`?")),
            None => error.hint("nothing was removed; `gpufleet history --format json` names all nodes"),
        });
    }
    for node in nodes {
        store.retire(node).await?;
    }
    output.status(&format!(
        "removed {}; an audit that has one of them again makes it a new node, and so does `gpufleet history rebuild`",
        display::count(nodes.len(), "node")
    ));
    Ok(())
}

async fn rebuild(store: &Store, environment: &Environment, output: &Output) -> Result<(), CommandError> {
    let mut unreadable: Vec<(RunId, JournalError)> = Vec::new();
    let runs = newest_runs(&environment.state_dir);
    // The oldest first, and one at a time: journals are large.
    let audits = runs.iter().rev().filter_map(|run| match audit_of(run, environment) {
        Ok(audit) => audit,
        Err(error) => {
            unreadable.push((run.clone(), error));
            None
        }
    });
    let count = store.replace(audits).await?;
    for (run, error) in &unreadable {
        output.warning(&format!("run {run} is left out: {error}"));
    }
    let audits = display::count(usize::try_from(count).unwrap_or(usize::MAX), "audit");
    output.status(&format!("recorded {audits} of this machine in {}", store.place()));
    Ok(())
}

/// What an audit of this machine found; `None` of a run that is none.
fn audit_of(run: &RunId, environment: &Environment) -> Result<Option<Audit>, JournalError> {
    let dir = RunDir::new(&environment.state_dir, run);
    if !dir.journal().exists() {
        return Ok(None);
    }
    // Why first: most runs are no audits, and all of their events are much to read.
    let beginning = skim(&dir, &["run_started"], u64::MAX).unwrap_or_default();
    let judges = |what: &What| matches!(what, What::RunStarted(started) if started.verb.info().judges);
    if !beginning.is_empty() && !beginning.iter().any(|event| judges(&event.what)) {
        return Ok(None);
    }
    let events = read_events(&dir.journal())?;
    Ok(observation(&RunModel::of(&events), &environment.hostname))
}
