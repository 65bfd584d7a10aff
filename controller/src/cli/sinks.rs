//! Where the events of a run go, beside the journal.

use std::{
    collections::HashSet,
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gpufleet::{
    display::{AnsibleLines, JsonLines, Progress, Style, ad_hoc, ad_hoc_loss},
    engine::Sink,
    event::{Event, NodeState, Phase, TaskStatus, What},
    report::{RunModel, Timing},
    visible::guarded,
};
use indicatif::ProgressDrawTarget;

use super::environment::stderr_width;

/// The model of the run and the live display of it.
pub struct Screen {
    pub model: RunModel,
    /// How long tasks took, if that was asked for.
    pub timing: Option<Timing>,
    progress: Option<Progress>,
}

impl Screen {
    /// `shown` is whether people see progress at all.
    pub fn new(shown: bool, terminal: bool, style: Style) -> Self {
        let progress = shown.then(|| match terminal {
            true => Progress::live(ProgressDrawTarget::stderr(), style, stderr_width),
            false => Progress::plain(Box::new(io::stderr()), style),
        });
        Self { model: RunModel::new(), timing: None, progress }
    }

    fn take(&mut self, event: &Event) {
        self.model.apply(event);
        if let Some(timing) = &mut self.timing {
            timing.apply(event);
        }
    }

    /// Lets time pass on the display.
    pub fn tick(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.tick(&self.model, jiff::Timestamp::now());
        }
    }

    pub fn suspend<T>(&mut self, act: impl FnOnce() -> T) -> T {
        match &mut self.progress {
            Some(progress) => progress.suspend(act),
            None => act(),
        }
    }

    /// Ends the display.
    pub fn finish(&mut self) {
        if let Some(mut progress) = self.progress.take() {
            progress.finish();
        }
    }
}

/// The screen, once no question is open on it.
fn held(screen: &Mutex<Screen>) -> MutexGuard<'_, Screen> {
    use tokio::runtime::{Handle, RuntimeFlavor};
    let wait = || screen.lock().unwrap_or_else(PoisonError::into_inner);
    match Handle::try_current() {
        // Why in place: an interrupt is what ends a question, and needs the thread that this one would keep.
        Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => {
            tokio::task::block_in_place(wait)
        }
        _ => wait(),
    }
}

/// The screen as a sink.
pub struct ScreenSink(pub Arc<Mutex<Screen>>);

impl Sink for ScreenSink {
    fn event(&mut self, event: &Event) {
        let mut screen = held(&self.0);
        screen.take(event);
        let Screen { model, progress, .. } = &mut *screen;
        if let Some(progress) = progress {
            progress.event(model, event);
        }
    }

    fn past(&mut self, event: &Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(event);
    }

    fn finish(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).finish();
    }
}

/// `--format jsonl`.
pub struct LinesSink {
    lines: JsonLines<io::Stdout>,
    broken: bool,
}

impl LinesSink {
    pub fn new() -> Self {
        Self { lines: JsonLines::new(io::stdout()), broken: false }
    }
}

impl Sink for LinesSink {
    fn event(&mut self, event: &Event) {
        // Why: a reader that left is no reason to leave nodes half done.
        self.broken = self.broken || self.lines.event(event).is_err();
    }
}

/// Text on standard output as it comes. A reader that left is no reason to leave nodes half done.
struct Printer {
    broken: bool,
    color: bool,
}

impl Printer {
    const fn new(color: bool) -> Self {
        Self { broken: false, color }
    }

    fn print(&mut self, text: &str) {
        if text.is_empty() || self.broken {
            return;
        }
        let mut out = io::stdout().lock();
        self.broken = out.write_all(guarded(text, self.color).as_bytes()).and_then(|()| out.flush()).is_err();
    }
}

/// `--format ansible`.
pub struct AnsibleSink {
    lines: AnsibleLines,
    screen: Arc<Mutex<Screen>>,
    printer: Printer,
}

impl AnsibleSink {
    /// `screen` has taken each event before this sink does.
    pub fn new(lines: AnsibleLines, screen: Arc<Mutex<Screen>>, style: Style) -> Self {
        Self { lines, screen, printer: Printer::new(style.color) }
    }
}

impl Sink for AnsibleSink {
    fn event(&mut self, event: &Event) {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        self.printer.print(&self.lines.event(&screen.model, event));
    }
}

/// How the answers of `exec -m` are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdHocView {
    pub one_line: bool,
}

/// Each node's answer to the one task that there is.
pub struct AnswersSink {
    view: AdHocView,
    diff: bool,
    style: Style,
    /// Nodes of which people know that something is wrong.
    told: HashSet<String>,
    printer: Printer,
}

impl AnswersSink {
    pub fn new(view: AdHocView, diff: bool, style: Style) -> Self {
        Self { view, diff, style, told: HashSet::new(), printer: Printer::new(style.color) }
    }
}

impl Sink for AnswersSink {
    fn event(&mut self, event: &Event) {
        match &event.what {
            What::TaskFinished { host, report } => {
                let bad = matches!(
                    report.status,
                    TaskStatus::Failed | TaskStatus::Unreachable | TaskStatus::Held | TaskStatus::Unknown
                );
                if bad {
                    self.told.insert(host.clone());
                } else if report.phase != Phase::Declared {
                    return;
                }
                self.printer.print(&ad_hoc(host, report, self.view.one_line, self.diff, &self.style));
            }
            What::NodeFinished { host, outcome } => {
                let bad = matches!(
                    outcome.state,
                    NodeState::Failed | NodeState::Unreachable | NodeState::Held | NodeState::Unknown
                );
                if bad && self.told.insert(host.clone()) {
                    let message = outcome.message.as_deref().unwrap_or_default();
                    let one_line = self.view.one_line;
                    self.printer.print(&ad_hoc_loss(host, outcome.state, message, one_line, &self.style));
                }
            }
            _ => {}
        }
    }
}
