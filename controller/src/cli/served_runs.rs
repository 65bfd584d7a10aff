//! Runs as `serve` shows them, from the journals of this machine.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use gpufleet::{
    display::{Style, Verbosity, plain_status},
    event::{HEALTH, Level, NodeState, What},
    journal::{JournalError, RunDir, RunId, RunSummary, Tail, glance, newest_runs, process_of, read_events},
    report::{NodeModel, RunModel, html},
};
use gpufleet_serve::{Follow, LiveNode, LiveRun, Mood, RunLine, RunStanding, Runs, RunsError};

use super::loading::AD_HOC;

/// Messages about the whole run that its page shows.
const NOTICES: usize = 20;
/// Reports that are kept, so that looking again costs nothing.
const REPORTS: usize = 3;

/// The runs below a state directory.
pub struct ServedRuns {
    state_dir: PathBuf,
    reports: Mutex<Vec<(Version, Arc<str>)>>,
}

/// What a report was made from: the journal of a run at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    run: RunId,
    length: u64,
    changed: Option<SystemTime>,
    at_work: bool,
}

impl ServedRuns {
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), reports: Mutex::default() }
    }

    /// Reads an id from an address. What is no id cannot become a path.
    fn run(&self, id: &str) -> Result<(RunId, RunDir), RunsError> {
        let run = RunId::parse(id).ok_or(RunsError::NoSuchRun)?;
        let dir = RunDir::new(&self.state_dir, &run);
        Ok((run, dir))
    }
}

fn failure(error: JournalError) -> RunsError {
    match error {
        JournalError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            RunsError::NoSuchRun
        }
        error => RunsError::Unreadable(Box::new(error)),
    }
}

fn line(run: &RunSummary) -> RunLine {
    let standing = match (&run.finished, run.running) {
        (Some(_), _) => RunStanding::Finished,
        (None, true) => RunStanding::Running,
        (None, false) => RunStanding::CutOff,
    };
    let playbooks = run.started.playbooks.iter().filter(|name| ![AD_HOC, HEALTH].contains(&name.as_str()));
    RunLine {
        id: run.run.to_string(),
        verb: run.started.verb.info().word.to_owned(),
        playbooks: playbooks.cloned().collect(),
        started: run.started_at,
        standing,
        exit_code: run.finished.as_ref().map(|finished| finished.exit_code),
        nodes: run.started.hosts.len(),
        summary: run.finished.as_ref().map(|finished| finished.summary.clone()).unwrap_or_default(),
    }
}

impl Runs for ServedRuns {
    fn list(&self, before: Option<&str>, most: usize) -> Vec<RunLine> {
        let before = before.and_then(RunId::parse);
        newest_runs(&self.state_dir)
            .into_iter()
            .filter(|run| before.as_ref().is_none_or(|before| run < before))
            .filter_map(|run| glance(&self.state_dir, run))
            .take(most)
            .map(|run| line(&run))
            .collect()
    }

    fn line(&self, id: &str) -> Result<RunLine, RunsError> {
        let (run, dir) = self.run(id)?;
        if let Some(summary) = glance(&self.state_dir, run) {
            return Ok(line(&summary));
        }
        // Only to say why not.
        read_events(&dir.journal()).map_err(failure)?;
        Err(RunsError::NoSuchRun)
    }

    fn report(&self, id: &str) -> Result<String, RunsError> {
        let (run, dir) = self.run(id)?;
        let data = std::fs::metadata(dir.journal())
            .map_err(|cause| failure(JournalError::Io { path: dir.journal(), cause }))?;
        // Why before it is read: a run that ends meanwhile has its last event then.
        let at_work = process_of(&dir).is_some();
        let version = Version { run, length: data.len(), changed: data.modified().ok(), at_work };
        // Why held while it is made: a report of a large fleet needs memory, and another request may want the same one.
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, page)) = reports.iter().find(|(known, _)| *known == version) {
            return Ok(page.to_string());
        }
        let events = read_events(&dir.journal()).map_err(failure)?;
        let mut model = RunModel::of(&events);
        model.at_work = at_work;
        let page = html(&model).map_err(|error| RunsError::Unreadable(Box::new(error)))?;
        reports.retain(|(known, _)| known.run != version.run);
        reports.insert(0, (version, Arc::from(page.as_str())));
        reports.truncate(REPORTS);
        Ok(page)
    }

    fn follow(&self, id: &str) -> Result<Box<dyn Follow>, RunsError> {
        let (_, dir) = self.run(id)?;
        Ok(Box::new(Followed {
            tail: Tail::new(&dir.journal()),
            dir,
            model: RunModel::new(),
            over: false,
            told: false,
        }))
    }
}

/// A run and its state so far.
struct Followed {
    dir: RunDir,
    tail: Tail,
    model: RunModel,
    over: bool,
    told: bool,
}

impl Follow for Followed {
    fn poll(&mut self) -> Result<Option<LiveRun>, RunsError> {
        // Why before it is read: a run that ends meanwhile has its last event then.
        let at_work = process_of(&self.dir).is_some();
        let mut news = false;
        loop {
            let events = self.tail.read().map_err(failure)?;
            if events.is_empty() {
                break;
            }
            news = true;
            for event in events {
                // What tasks returned can be large, and no page shows it.
                self.over = matches!(event.what, What::RunFinished(_));
                self.model.apply(&event);
            }
        }
        self.model.at_work = at_work;
        let cut_off = !self.over && !at_work;
        if !news && self.told && !cut_off {
            return Ok(None);
        }
        self.told = true;
        Ok(Some(live(&self.model)))
    }
}

const PLAIN: Style = Style { color: false, width: Style::UNCUT, verbosity: Verbosity::Normal };

fn live(model: &RunModel) -> LiveRun {
    let standing = match model.standing() {
        gpufleet::report::Standing::Finished => RunStanding::Finished,
        gpufleet::report::Standing::Running => RunStanding::Running,
        gpufleet::report::Standing::CutOff => RunStanding::CutOff,
    };
    let now = model.latest.unwrap_or_default();
    let playbooks = model.run.iter().flat_map(|run| &run.playbooks);
    let notices =
        model.notices.iter().filter(|notice| notice.level != Level::Info).map(|notice| &notice.text);
    let mut notices: Vec<String> = notices.rev().take(NOTICES).cloned().collect();
    notices.reverse();
    LiveRun {
        run: RunLine {
            id: model.run_id().to_owned(),
            verb: model.verb().info().word.to_owned(),
            playbooks: playbooks.filter(|name| ![AD_HOC, HEALTH].contains(&name.as_str())).cloned().collect(),
            started: model.started.unwrap_or_default(),
            standing,
            exit_code: model.finish.as_ref().map(|finish| finish.exit_code),
            nodes: model.nodes().len(),
            summary: model.finish.as_ref().map(|finish| finish.summary.clone()).unwrap_or_default(),
        },
        status: plain_status(model, now, &PLAIN),
        notices,
        nodes: model.nodes().iter().map(|node| live_node(model, node)).collect(),
    }
}

fn live_node(model: &RunModel, node: &NodeModel) -> LiveNode {
    let running = || node.running.as_ref().map(|running| running.task.as_str());
    let doing = if node.state.is_final() { node.message() } else { running().or(node.detail.as_deref()) };
    let judged = node.state.is_final() && model.verb().info().judges;
    LiveNode {
        name: node.name.clone(),
        state: node.state.to_string(),
        mood: mood(node.state),
        doing: doing.unwrap_or_default().chars().take(400).collect(),
        since: node.since,
        verdict: judged.then(|| node.verdict(model.verb())),
    }
}

const fn mood(state: NodeState) -> Mood {
    use NodeState as S;
    match state {
        S::Pending | S::Waiting | S::Skipped => Mood::Waiting,
        S::Done | S::Compliant => Mood::Good,
        S::Drift | S::Unknown | S::Held => Mood::Doubtful,
        S::Failed | S::Unreachable => Mood::Bad,
        _ => Mood::Working,
    }
}
