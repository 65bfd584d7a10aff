//! `locks` and `adopt`: who holds what, and taking over what a run whose journal is lost left drained.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpufleet::{
    drain::{Marker, Target},
    engine::Recorder,
    event::{RunFinished, What},
    journal::{Journal, RunDir, RunSummary, list_runs, process_of, read_for_resume},
    report::fold_names,
};

use super::{
    args::{AdoptArgs, LocksArgs},
    engine,
    environment::Environment,
    error::CommandError,
    left_drained,
    output::Output,
    resume::{forget, name_unreadable},
};

pub fn locks(args: &LocksArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let mut text = String::new();
    let runs = list_runs(&environment.state_dir);
    name_unreadable(&runs, output);
    let left = left_drained::lines(&runs.readable, &environment.state_dir);
    for run in runs.readable {
        let dir = RunDir::new(&environment.state_dir, &run.run);
        if let Some(pid) = process_of(&dir).filter(|_| run.started.verb.writes()) {
            let (hosts, pid) = (fold_names(run.started.hosts.iter()), pid.as_raw_nonzero());
            text.push_str(&format!("run {}  process {pid} of this machine works on {hosts}\n", run.run));
        }
        if let Some((_, says)) = left.iter().find(|(left, _)| *left == run.run) {
            text.push_str(&format!("run {}  {says}\n", run.run));
        }
    }
    if !args.source.playbooks.is_empty() {
        let source = args.source.clone().into();
        let plays = engine::plays(&source, &args.connection, environment, output)?;
        let found = engine::block_on(ask(&plays))??;
        for (name, runs) in &found.holders {
            for run in runs {
                text.push_str(&format!("run {run}  holds the lock at {name}\n"));
            }
        }
        for (marker, hosts) in by_run(&found.marked) {
            text.push_str(&format!(
                "run {marker}  is marked at the scheduler on {}\n",
                fold_names(hosts.iter())
            ));
        }
    }
    if text.is_empty() {
        output.status("nobody holds anything");
    }
    output.data(&text)?;
    Ok(0)
}

/// What schedulers say about runs of gpufleet.
#[derive(Default)]
struct Found {
    /// Runs that hold the lock of each scheduler, by its name.
    holders: BTreeMap<String, BTreeSet<String>>,
    marked: BTreeMap<String, Marker>,
}

async fn ask(plays: &[engine::DrainingPlay]) -> Result<Found, CommandError> {
    let mut found = Found::default();
    for (scheduler, hosts) in plays {
        let drainer = &scheduler.drainer;
        let holders = drainer.holders().await.map_err(CommandError::user)?;
        found.holders.entry(drainer.name().to_owned()).or_default().extend(holders);
        let targets: Vec<Target> = hosts.iter().map(|host| scheduler.target(host)).collect();
        let host: HashMap<&str, &str> =
            targets.iter().map(|target| (target.node.as_str(), target.host.as_str())).collect();
        for (node, marker) in drainer.marked(&targets).await.map_err(CommandError::user)? {
            if let Some(host) = host.get(node.as_str()) {
                found.marked.insert((*host).to_owned(), marker);
            }
        }
    }
    Ok(found)
}

fn by_run(marked: &BTreeMap<String, Marker>) -> BTreeMap<&str, Vec<&String>> {
    let mut runs: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for (host, marker) in marked {
        runs.entry(&marker.run).or_default().push(host);
    }
    runs
}

/// A new run that takes over what lost runs left drained: their nodes are brought to the declared state, proven well and
/// given back as if this run had drained them.
pub fn adopt(args: AdoptArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let AdoptArgs { run, run_args } = args;
    let plays = engine::plays(&run_args.source, &run_args.connection, environment, output)?;
    if plays.is_empty() {
        return Err(CommandError::user("no play of these playbooks drains its nodes")
            .hint("markers are left only by plays with `drain:`"));
    }
    let mut found = engine::block_on(ask(&plays))??;
    if let Some(wanted) = &run {
        found.marked.retain(|_, marker| marker.run == *wanted);
    }
    let marks = |run: &RunSummary| found.marked.values().any(|marker| marker.run == run.run.as_str());
    let mut given_up = Vec::new();
    for known in list_runs(&environment.state_dir).readable.into_iter().filter(marks) {
        let named = run.as_deref() == Some(known.run.as_str());
        if known.running || (known.is_unfinished() && !named) {
            return Err(CommandError::stopped(format!("run {} is not lost: its journal is here", known.run)).hint(
                format!(
                    "`gpufleet resume {0}` goes on with it, `gpufleet abort {0}` ends it; where neither can, name it \
                     with --run {0}",
                    known.run
                ),
            ));
        }
        given_up.extend(known.is_unfinished().then_some(known.run));
    }
    if found.marked.is_empty() {
        output.status("no node is marked by a lost run");
        return Ok(0);
    }
    for (lost, hosts) in by_run(&found.marked) {
        output.status(&format!("adopts {} from run {lost}", fold_names(hosts.iter())));
    }
    let mut args = run_args;
    if let Some(holder) = found.holders.values().flatten().next()
        && !args.overruling.steal
    {
        return Err(CommandError::stopped(format!("run {holder} still holds the scheduler's lock"))
            .hint("take it over with --steal when you know that its gpufleet is gone, wherever it ran"));
    }
    for run in given_up {
        give_up(&RunDir::new(&environment.state_dir, &run))?;
    }
    args.check = false;
    engine::adopt(&args, found.marked.into_iter().collect(), environment, output)
}

/// Ends a run in its journal: another one has its nodes.
fn give_up(dir: &RunDir) -> Result<(), CommandError> {
    let records = read_for_resume(dir)?;
    let journal = Journal::reopen(dir).map_err(CommandError::user)?;
    let mut recorder = Recorder::after(records, journal, Vec::new(), jiff::Timestamp::now);
    let finished = RunFinished {
        exit_code: 130,
        summary: "another run took its nodes over".to_owned(),
        out_of_service: Vec::new(),
        stopped: Some("adopted".to_owned()),
        resumable: false,
    };
    recorder.emit(What::RunFinished(finished)).map_err(CommandError::user)?;
    recorder.finish().map_err(CommandError::user)?;
    forget(dir);
    Ok(())
}
