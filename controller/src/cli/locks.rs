//! `locks` and `adopt`: who holds what, and taking over what a run whose journal is lost left drained.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpufleet::{
    drain::{Marker, Target},
    event::{DrainStep, What},
    journal::{RunDir, RunSummary, list_runs, process_of, read_events},
    report::fold_names,
};

use super::{
    args::{AdoptArgs, LocksArgs, RunArgs},
    engine,
    environment::Environment,
    error::CommandError,
    output::Output,
};

pub fn locks(args: &LocksArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let mut text = String::new();
    for run in list_runs(&environment.state_dir) {
        let dir = RunDir::new(&environment.state_dir, &run.run);
        if let Some(pid) = process_of(&dir).filter(|_| run.started.verb.writes()) {
            let (hosts, pid) = (fold_names(run.started.hosts.iter()), pid.as_raw_nonzero());
            text.push_str(&format!("run {}  process {pid} of this machine works on {hosts}\n", run.run));
        }
        let out = drained(&dir, &run)?;
        if !out.is_empty() {
            let next = if run.running {
                "it gives them back"
            } else {
                "`gpufleet resume` or `abort` gives them back"
            };
            text.push_str(&format!("run {}  drained {}; {next}\n", run.run, fold_names(out.iter())));
        }
    }
    if !args.source.playbooks.is_empty() {
        let source = args.source.clone().into();
        let plays = engine::plays(&source, &args.connection, environment, output)?;
        let found = engine::runtime()?.block_on(ask(&plays))?;
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

/// Hosts that a run took from their scheduler and did not give back, as far as its journal says.
fn drained(dir: &RunDir, run: &RunSummary) -> Result<BTreeSet<String>, CommandError> {
    let mut out = BTreeSet::new();
    if !run.started.verb.writes() {
        return Ok(out);
    }
    for event in read_events(&dir.journal())? {
        match event.what {
            What::Drain { host, step: DrainStep::Begun { .. } } => _ = out.insert(host),
            What::Drain { host, step } if !step.holds() => _ = out.remove(&host),
            _ => {}
        }
    }
    Ok(out)
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
        for outage in drainer.survey(&targets).await.map_err(CommandError::user)? {
            if let (Some(marker), Some(host)) = (outage.marker, host.get(outage.node.as_str())) {
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
    let mut found = engine::runtime()?.block_on(ask(&plays))?;
    if let Some(wanted) = &run {
        found.marked.retain(|_, marker| marker.run == *wanted);
    }
    let known: BTreeSet<String> = list_runs(&environment.state_dir)
        .into_iter()
        .filter(|run| run.running || run.is_unfinished())
        .map(|run| run.run.to_string())
        .collect();
    if let Some((_, marker)) = found.marked.iter().find(|(_, marker)| known.contains(&marker.run)) {
        return Err(CommandError::stopped(format!("run {} is not lost: its journal is here", marker.run))
            .hint(format!(
                "`gpufleet resume {}` goes on with it, `gpufleet abort {0}` ends it",
                marker.run
            )));
    }
    if found.marked.is_empty() {
        output.status("no node is marked by a lost run");
        return Ok(0);
    }
    for (lost, hosts) in by_run(&found.marked) {
        output.status(&format!("adopts {} from run {lost}", fold_names(hosts.iter())));
    }
    begin(run_args, found, &plays, environment, output)
}

fn begin(
    mut args: RunArgs,
    found: Found,
    plays: &[engine::DrainingPlay],
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    let lost: BTreeSet<&str> = found.marked.values().map(|marker| marker.run.as_str()).collect();
    let held = found.holders.values().flatten().find(|run| !lost.contains(run.as_str()));
    if let Some(other) = held
        && !args.steal
    {
        return Err(CommandError::stopped(format!("run {other} holds the scheduler's lock"))
            .hint("wait for it, or take it over with --steal when you know that its gpufleet is gone"));
    }
    // Why not by --steal: a lock that comes up from here on is somebody else's.
    engine::runtime()?.block_on(async {
        for (scheduler, _) in plays {
            for run in found.holders.values().flatten().filter(|run| lost.contains(run.as_str())) {
                scheduler.drainer.unlock(run).await.map_err(CommandError::user)?;
            }
        }
        Ok::<_, CommandError>(())
    })?;
    args.check = false;
    engine::adopt(&args, found.marked.into_iter().collect(), environment, output)
}
