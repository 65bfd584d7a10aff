//! Runs as `serve` shows them, from the journals of this machine.

use std::{
    fs::{File, Metadata},
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use gpufleet::{
    display::{Style, Verbosity, plain_status},
    event::{Level, NodeState, RunStarted, What},
    journal::{JournalError, RunDir, RunId, RunSummary, Tail, glance, newest_runs, process_of, read_events},
    report::{NodeModel, RunModel, html, series_of},
};
use gpufleet_serve::{Follow, LiveNode, LiveRun, Mood, RunLine, RunStanding, Runs, RunsError};

use super::{loading::AD_HOC, memory};

/// Messages about the whole run that its page shows.
const NOTICES: usize = 20;
/// The largest page of a run that is served, in bytes: an audit of 10,000 nodes has a fifth of it.
const LARGEST: u64 = 256 << 20;

/// The runs below a state directory.
pub struct ServedRuns {
    state_dir: PathBuf,
    /// The last report of a run that has no page of its own, so that looking again costs nothing.
    made: Mutex<Option<(Version, Arc<str>)>>,
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
        Self { state_dir: state_dir.to_owned(), made: Mutex::default() }
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

/// Returns the page that a run wrote at its end, if that is of its whole journal.
fn written(dir: &RunDir, journal: &Metadata) -> Option<String> {
    let mut file = File::open(dir.report_html()).ok()?;
    let page = file.metadata().ok()?;
    let whole = page.modified().ok()? >= journal.modified().ok()? && page.len() <= LARGEST;
    let mut text = String::new();
    (whole && file.read_to_string(&mut text).is_ok()).then_some(text)
}

/// Reads a journal part by part: all of its events at once are many times as large as what a page needs of them.
fn model_of(dir: &RunDir) -> Result<RunModel, JournalError> {
    let (mut tail, mut model) = (Tail::new(&dir.journal()), RunModel::new());
    loop {
        let events = tail.read()?;
        if events.is_empty() {
            return Ok(model);
        }
        events.iter().for_each(|event| model.apply(event));
    }
}

/// The playbooks and baselines of a run.
fn named(run: &RunStarted) -> (Vec<String>, Vec<String>) {
    let (mut playbooks, baselines) = series_of(run);
    playbooks.retain(|name| name != AD_HOC);
    (playbooks, baselines)
}

fn line(run: &RunSummary) -> RunLine {
    let standing = match (&run.finished, run.running) {
        (Some(_), _) => RunStanding::Finished,
        (None, true) => RunStanding::Running,
        (None, false) => RunStanding::CutOff,
    };
    let (playbooks, baselines) = named(&run.started);
    RunLine {
        id: run.run.to_string(),
        verb: run.started.verb.info().word.to_owned(),
        playbooks,
        baselines,
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
        if !at_work && let Some(page) = written(&dir, &data) {
            return Ok(page);
        }
        let version = Version { run, length: data.len(), changed: data.modified().ok(), at_work };
        // Why held while it is made: a report of a large fleet needs memory, and another request may want the same one.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, page)) = made.as_ref().filter(|(known, _)| *known == version) {
            return Ok(page.to_string());
        }
        *made = None;
        let mut model = model_of(&dir).map_err(failure)?;
        model.at_work = at_work;
        let page = html(&model).map_err(|error| RunsError::Unreadable(Box::new(error)))?;
        drop(model);
        memory::trim();
        *made = Some((version, Arc::from(page.as_str())));
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
    let (playbooks, baselines) = model.run.as_ref().map(named).unwrap_or_default();
    let notices =
        model.notices.iter().filter(|notice| notice.level != Level::Info).map(|notice| &notice.text);
    let mut notices: Vec<String> = notices.rev().take(NOTICES).cloned().collect();
    notices.reverse();
    LiveRun {
        run: RunLine {
            id: model.run_id().to_owned(),
            verb: model.verb().info().word.to_owned(),
            playbooks,
            baselines,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpufleet::{
        event::{Event, Verb},
        journal::Journal,
    };
    use jiff::Timestamp;

    use super::*;

    fn begin(state: &Path) -> (RunId, RunDir) {
        let run = RunId::generate();
        let dir = RunDir::new(state, &run);
        let journal = Journal::create(&dir).unwrap();
        let started = RunStarted {
            gpufleet: "0.1.0".to_owned(),
            playbooks: vec!["site.yaml".to_owned(), AD_HOC.to_owned()],
            hosts: vec!["gpu001".to_owned()],
            ..RunStarted::of(run.to_string(), Verb::Run)
        };
        assert_eq!(named(&started), (vec!["site.yaml".to_owned()], Vec::new()));
        let event = Event { seq: 0, at: Timestamp::now(), what: What::RunStarted(started) };
        journal.append(&event.into()).unwrap();
        journal.close().unwrap();
        (run, dir)
    }

    #[test]
    fn the_page_that_a_run_wrote_is_served_while_it_is_of_the_whole_journal() {
        let state = tempfile::tempdir().unwrap();
        let runs = ServedRuns::new(state.path());
        let (run, dir) = begin(state.path());
        let made = runs.report(run.as_str()).unwrap();
        assert!(made.contains("gpu001") && made.contains("Content-Security-Policy"), "{made}");
        std::fs::write(dir.report_html(), "written").unwrap();
        assert_eq!(runs.report(run.as_str()).unwrap(), "written");
        // It goes on: the page is of what was before.
        let journal = File::options().append(true).open(dir.journal()).unwrap();
        journal.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
        assert_eq!(runs.report(run.as_str()).unwrap(), made);
        let none = RunId::generate();
        assert!(matches!(runs.report(none.as_str()), Err(RunsError::NoSuchRun)));
    }
}
