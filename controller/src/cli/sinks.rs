//! Where the events of a run go, beside the journal.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use gpufleet::{
    display::{JsonLines, Progress, Style},
    engine::Sink,
    event::Event,
    report::RunModel,
};
use indicatif::ProgressDrawTarget;

/// The model of the run and the live display of it.
pub struct Screen {
    pub model: RunModel,
    progress: Option<Progress>,
}

impl Screen {
    /// `shown` is whether people see progress at all.
    pub fn new(shown: bool, terminal: bool, style: Style) -> Self {
        let progress = shown.then(|| match terminal {
            true => Progress::live(ProgressDrawTarget::stderr(), style),
            false => Progress::plain(Box::new(io::stderr()), style),
        });
        Self { model: RunModel::new(), progress }
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

/// The screen as a sink.
pub struct ScreenSink(pub Arc<Mutex<Screen>>);

impl Sink for ScreenSink {
    fn event(&mut self, event: &Event) {
        let mut screen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        screen.model.apply(event);
        let Screen { model, progress } = &mut *screen;
        if let Some(progress) = progress {
            progress.event(model, event);
        }
    }

    fn past(&mut self, event: &Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).model.apply(event);
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
