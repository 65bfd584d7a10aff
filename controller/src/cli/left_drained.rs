//! What runs of this machine took from schedulers and did not give back, as far as their journals say, and what leads on
//! from there.
//!
//! An old journal never fails a run: one that cannot be read is left out. What a journal says is no proof; whoever acts on
//! it asks the scheduler.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
};

use gpufleet::{
    display,
    drain::{LeftBehind, Marker, VainReboot},
    event::{DrainStep, REBOOT_IN_VAIN, RunStarted, What},
    journal::{RunDir, RunId, RunSummary, glance, newest_runs, skim},
    report::fold_names,
    visible::command_line,
};

/// Kinds of events that are looked at.
const KINDS: [&str; 4] = ["drain", "reboot_issued", "rebooted", "node_finished"];

/// A drain of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Drain {
    scheduler: String,
    node: String,
    marker: Marker,
}

/// The drains that a run began or took over.
#[derive(Default)]
struct Drains {
    begun: HashSet<(String, Marker)>,
    /// Those that have no end, by host.
    open: BTreeMap<String, Drain>,
    /// The last reboot of each host.
    reboots: HashMap<String, VainReboot>,
    /// Those that did not make current what they were for.
    in_vain: HashMap<String, VainReboot>,
}

/// `None` where the journal cannot be read.
fn drains(dir: &RunDir) -> Option<Drains> {
    let mut drains = Drains::default();
    for event in skim(dir, &KINDS, u64::MAX)? {
        match event.what {
            What::Drain { host, step: DrainStep::Begun { scheduler, node, run, nonce } } => {
                let marker = Marker { run, nonce };
                drains.begun.insert((host.clone(), marker.clone()));
                drains.open.insert(host, Drain { scheduler, node, marker });
            }
            What::Drain { host, step } if !step.holds() => _ = drains.open.remove(&host),
            What::RebootIssued { host, why, .. } => {
                let vain = VainReboot { why, boot_id: String::new(), at: event.at, run: String::new() };
                drains.reboots.insert(host, vain);
            }
            What::Rebooted { host, boot_id, .. } => {
                if let Some(reboot) = drains.reboots.get_mut(&host) {
                    reboot.boot_id = boot_id;
                }
            }
            What::NodeFinished { host, outcome } => {
                let is_vain = outcome.message.is_some_and(|why| why.contains(REBOOT_IN_VAIN));
                let reboot = drains.reboots.remove(&host).filter(|_| is_vain);
                drains.in_vain.extend(reboot.map(|reboot| (host, reboot)));
            }
            _ => {}
        }
    }
    Some(drains)
}

/// The nodes that each run left drained, newest run first. What a newer run took over is that run's.
fn left(runs: impl Iterator<Item = RunSummary>, state_dir: &Path) -> Vec<(RunSummary, Drains)> {
    let mut taken: HashSet<(String, Marker)> = HashSet::new();
    let mut all = Vec::new();
    for run in runs.filter(|run| run.started.verb.writes()) {
        let Some(mut drains) = drains(&RunDir::new(state_dir, &run.run)) else { continue };
        drains.open.retain(|host, drain| !taken.contains(&(host.clone(), drain.marker.clone())));
        taken.extend(std::mem::take(&mut drains.begun));
        all.push((run, drains));
    }
    all
}

/// What these runs left drained, a line each.
pub fn lines(runs: &[RunSummary], state_dir: &Path) -> Vec<(RunId, String)> {
    left(runs.iter().cloned(), state_dir)
        .into_iter()
        .filter(|(_, drains)| !drains.open.is_empty())
        .map(|(run, drains)| {
            let hosts: Vec<&str> = drains.open.keys().map(String::as_str).collect();
            let text = format!("drained {}; {}", fold_names(&hosts), next(&run, &hosts));
            (run.run, text)
        })
        .collect()
}

/// What earlier runs left of the hosts of this one: drained, or rebooted in vain.
pub fn of_hosts(mine: &RunStarted, state_dir: &Path) -> (Vec<LeftBehind>, HashMap<String, VainReboot>) {
    let hosts: HashSet<&String> = mine.hosts.iter().collect();
    // Why by these two first: a journal is large, and nearly all runs left nothing.
    let may_have_left = |run: &RunSummary| match &run.finished {
        Some(finished) => finished.out_of_service.iter().any(|host| hosts.contains(host)),
        None => run.started.hosts.iter().any(|host| hosts.contains(host)),
    };
    let runs = newest_runs(state_dir).into_iter().filter(|run| run.as_str() != mine.run_id);
    let runs = runs.filter_map(|run| glance(state_dir, run)).filter(may_have_left);
    let (mut all, mut in_vain) = (Vec::new(), HashMap::new());
    for (run, drains) in left(runs, state_dir) {
        for (host, vain) in drains.in_vain {
            in_vain.entry(host).or_insert(VainReboot { run: run.run.to_string(), ..vain });
        }
        let is_taken_over = is_over(&run) && is_same_work(mine, &run.started);
        for (host, drain) in drains.open.into_iter().filter(|(host, _)| hosts.contains(host)) {
            let Drain { scheduler, node, marker } = drain;
            let next = next(&run, &[&host]);
            all.push(LeftBehind {
                host,
                scheduler,
                node,
                marker,
                run: run.run.to_string(),
                is_taken_over,
                next,
            });
        }
    }
    (all, in_vain)
}

/// The command of this run that takes over what a lost run left; the lost run's id stands behind it.
pub fn adopt_command(mine: &RunStarted) -> String {
    match mine.command_line.split_first() {
        Some((program, [verb, rest @ ..])) if verb == "run" || verb == "adopt" => {
            let words = [program.as_str(), "adopt"].into_iter().chain(rest.iter().map(String::as_str));
            command_line(words.chain(["--run"]))
        }
        _ => "gpufleet adopt PLAYBOOK --run".to_owned(),
    }
}

fn is_over(run: &RunSummary) -> bool {
    !run.running && !run.is_unfinished()
}

/// What leads on with the nodes that a run left drained, ready to show.
fn next(run: &RunSummary, hosts: &[&str]) -> String {
    let id = &run.run;
    if run.running {
        return format!(
            "it is at work, and gives back what it can; `gpufleet pause {id}` stops it at a safe point"
        );
    }
    let again = display::limited(&run.started.command_line, &fold_names(hosts));
    if !is_over(run) {
        let then = again.map_or_else(String::new, |words| {
            format!("; after that, `{}` takes up what failed", command_line(words))
        });
        return format!(
            "`gpufleet resume {id}` goes on with it, `gpufleet abort {id}` ends it and gives back what it can{then}"
        );
    }
    match again {
        Some(words) => format!("it is over: `{}` takes up what it left", command_line(words)),
        None => format!("it is over: `gpufleet adopt PLAYBOOK --run {id}` takes over what it left"),
    }
}

/// Whether a node that is as declared after this run is so for what the earlier one wanted, too: the same playbooks, which may
/// have been edited since, and no choice of tasks that was not made then.
fn is_same_work(mine: &RunStarted, earlier: &RunStarted) -> bool {
    let same = |(one, other): (&String, &String)| {
        let digest = |started: &RunStarted, name: &str| started.inputs.get(name).cloned();
        one == other || digest(mine, one).is_some_and(|text| digest(earlier, other) == Some(text))
    };
    let words = |started: &RunStarted| display::limited(&started.command_line, "").unwrap_or_default();
    !mine.playbooks.is_empty()
        && mine.playbooks.len() == earlier.playbooks.len()
        && mine.playbooks.iter().zip(&earlier.playbooks).all(same)
        && (!mine.command_line.iter().any(|word| chooses_tasks(word)) || words(mine) == words(earlier))
}

fn chooses_tasks(word: &str) -> bool {
    let long = ["--tags", "--skip-tags", "--start-at-task", "--step"];
    long.iter().any(|flag| word.starts_with(flag))
        || word.starts_with('-') && !word.starts_with("--") && word.contains('t')
}

#[cfg(test)]
mod tests {
    use gpufleet::{
        event::{Event, NodeOutcome, NodeState, RecapCounts, RunFinished, Verb},
        journal::Journal,
    };

    use super::*;

    fn started(run: &RunId, words: &str) -> RunStarted {
        RunStarted {
            playbooks: vec![words.split(' ').nth(2).unwrap_or_default().to_owned()],
            hosts: vec!["gpu001".to_owned(), "gpu002".to_owned()],
            command_line: words.split(' ').map(str::to_owned).collect(),
            ..RunStarted::of(run.to_string(), Verb::Run)
        }
    }

    fn step(host: &str, step: DrainStep) -> What {
        What::Drain { host: host.to_owned(), step }
    }

    fn begun(host: &str, run: &str) -> What {
        let (scheduler, node) = ("command".to_owned(), host.to_owned());
        step(host, DrainStep::Begun { scheduler, node, run: run.to_owned(), nonce: "n".to_owned() })
    }

    /// The journal of a run that did this, and ended so; `None` where it was cut off.
    fn write(state_dir: &Path, words: &str, steps: Vec<What>, out: Option<(&[&str], bool)>) -> RunId {
        let run = RunId::generate();
        let journal = Journal::create(&RunDir::new(state_dir, &run)).unwrap();
        let end = out.map(|(out, resumable)| {
            What::RunFinished(RunFinished {
                exit_code: 2,
                summary: String::new(),
                out_of_service: out.iter().map(|host| (*host).to_owned()).collect(),
                stopped: None,
                resumable,
            })
        });
        let all = [What::RunStarted(started(&run, words))].into_iter().chain(steps).chain(end);
        for (seq, what) in (0..).zip(all) {
            journal.append(&Event { seq, at: jiff::Timestamp::UNIX_EPOCH, what }.into()).unwrap();
        }
        journal.close().unwrap();
        run
    }

    #[test]
    fn a_run_recognises_what_finished_runs_of_the_same_work_left() {
        let state = tempfile::tempdir().unwrap();
        let night = "gpufleet run night.yaml -i fleet.yaml --yes";
        let back = |host| step(host, DrainStep::GivenBack);
        let steps = vec![begun("gpu001", "R"), back("gpu001"), begun("gpu002", "R")];
        let first = write(state.path(), night, steps, Some((&["gpu002"], false)));
        let mine = |words| of_hosts(&started(&RunId::generate(), words), state.path()).0;
        let [left] = mine(night).try_into().unwrap();
        assert_eq!(
            (left.host.as_str(), left.run.as_str(), left.is_taken_over),
            ("gpu002", first.as_str(), true)
        );
        assert_eq!(
            left.next,
            "it is over: `gpufleet run night.yaml -i fleet.yaml --yes --limit gpu002` takes up what it left"
        );
        assert!(mine("gpufleet run night.yaml --limit gpu002")[0].is_taken_over);
        // Why not: what it declares says nothing of what failed in the other.
        assert!(!mine("gpufleet run driver.yaml -i fleet.yaml")[0].is_taken_over);
        assert!(!mine("gpufleet run night.yaml --tags motd")[0].is_taken_over);

        // A newer run took the node over and gave it back: nothing is left.
        write(state.path(), night, vec![begun("gpu002", "R"), back("gpu002")], Some((&[], false)));
        let runs = gpufleet::journal::list_runs(state.path()).readable;
        assert_eq!(lines(&runs, state.path()), []);
    }

    #[test]
    fn a_reboot_in_vain_is_known_by_its_boot_and_its_reasons() {
        let state = tempfile::tempdir().unwrap();
        let night = "gpufleet run night.yaml";
        let ended = |host: &str, message: &str| {
            let (host, boot_id) = (host.to_owned(), format!("boot of {host}"));
            let outcome = NodeOutcome {
                state: NodeState::Failed,
                message: Some(message.to_owned()),
                counts: RecapCounts::default(),
                seconds: 1,
                rebooted: true,
                out_of_service: true,
            };
            let why = vec!["GPU 0 ECC is pending".to_owned()];
            [
                What::RebootIssued { host: host.clone(), boot_id: "before".to_owned(), why, deadline: None },
                What::Rebooted { host: host.clone(), boot_id, seconds: 90 },
                What::NodeFinished { host, outcome },
            ]
        };
        let vain = format!("{REBOOT_IN_VAIN}, so it stays out of service");
        let steps = [ended("gpu001", &vain), ended("gpu002", "no GPU")].concat();
        let run = write(state.path(), night, steps, Some((&["gpu001", "gpu002"], false)));
        let (left, in_vain) = of_hosts(&started(&RunId::generate(), night), state.path());
        assert_eq!((left, in_vain.len()), (Vec::new(), 1));
        let vain = &in_vain["gpu001"];
        assert_eq!((vain.boot_id.as_str(), vain.run.as_str()), ("boot of gpu001", run.as_str()));
        assert_eq!(vain.why, ["GPU 0 ECC is pending"]);
    }

    #[test]
    fn what_can_be_resumed_is_not_taken_over() {
        let state = tempfile::tempdir().unwrap();
        let night = "gpufleet run night.yaml";
        for (out, resumable) in [(Some(["gpu001"]), true), (None, false)] {
            let out = out.as_ref().map(|out| (out.as_slice(), resumable));
            let run = write(state.path(), night, vec![begun("gpu001", "R")], out);
            let left = of_hosts(&started(&RunId::generate(), night), state.path()).0.swap_remove(0);
            assert!(!left.is_taken_over, "{left:?}");
            assert!(left.next.contains(&format!("`gpufleet resume {run}`")), "{left:?}");
            std::fs::remove_dir_all(state.path().join("runs").join(run.as_str())).unwrap();
        }
    }
}
