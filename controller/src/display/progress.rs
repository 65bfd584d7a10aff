//! Progress of a run: a live display on a terminal, lines elsewhere.
//!
//! A sink that cannot write gives up silently and never stops a run.

use std::io::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;

use super::{Announcer, Style, Verbosity, plain_status, progress_frame};
use crate::{event::Event, report::RunModel, visible::guarded};

/// Milliseconds between two updates of the live display.
const REDRAW_MS: i64 = 100;
/// Seconds between two status lines of plain output.
const STATUS_S: i64 = 10;

/// Shows the progress of a run.
pub struct Progress {
    style: Style,
    announcer: Announcer,
    output: Output,
    drawn: Option<Timestamp>,
    columns: Option<fn() -> usize>,
}

enum Output {
    Live(ProgressBar),
    Plain(Box<dyn Write + Send>),
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress").field("style", &self.style).finish_non_exhaustive()
    }
}

impl Progress {
    /// Creates a display that redraws itself on a terminal.
    ///
    /// `columns` returns the current width, as terminals are resized.
    pub fn live(target: ProgressDrawTarget, style: Style, columns: fn() -> usize) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(
            ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        let announcer = Announcer::new(style, false);
        Self { style, announcer, output: Output::Live(bar), drawn: None, columns: Some(columns) }
    }

    /// Creates lines for a log: failures, holds and reboots as they happen, and a status line every 10 s.
    pub fn plain(out: Box<dyn Write + Send>, style: Style) -> Self {
        let announcer = Announcer::new(style, true);
        Self { style, announcer, output: Output::Plain(out), drawn: None, columns: None }
    }

    /// Handles an event. The model must have the event already.
    pub fn event(&mut self, model: &RunModel, event: &Event) {
        for line in self.announcer.event(model, event) {
            self.say(&line);
        }
        self.draw(model, event.at);
    }

    /// Updates timed output; call it at least once a second.
    pub fn tick(&mut self, model: &RunModel, now: Timestamp) {
        for line in self.announcer.tick(now) {
            self.say(&line);
        }
        self.draw(model, now);
    }

    /// Prints what is pending and removes the live display.
    pub fn finish(&mut self) {
        for line in self.announcer.finish() {
            self.say(&line);
        }
        match &mut self.output {
            Output::Live(bar) => bar.finish_and_clear(),
            Output::Plain(out) => drop(out.flush()),
        }
    }

    /// Prints one line above the live display.
    pub fn say(&mut self, line: &str) {
        match &mut self.output {
            Output::Live(bar) => bar.println(guarded(line, self.style.color)),
            Output::Plain(out) => {
                let line = guarded(line, self.style.color);
                drop(writeln!(out, "{line}").and_then(|()| out.flush()));
            }
        }
    }

    /// Runs `act` while it may use the terminal, for example for a question.
    pub fn suspend<T>(&mut self, act: impl FnOnce() -> T) -> T {
        match &self.output {
            Output::Live(bar) => bar.suspend(act),
            Output::Plain(_) => act(),
        }
    }

    #[cfg(test)]
    fn frame(&self) -> String {
        match &self.output {
            Output::Live(bar) => bar.message(),
            Output::Plain(_) => String::new(),
        }
    }

    fn draw(&mut self, model: &RunModel, now: Timestamp) {
        if self.style.verbosity == Verbosity::Quiet {
            return;
        }
        let elapsed = self.drawn.map(|drawn| now.as_millisecond() - drawn.as_millisecond());
        let first = elapsed.is_none();
        let due = match &self.output {
            Output::Live(_) => elapsed.is_none_or(|ms| ms >= REDRAW_MS),
            Output::Plain(_) => elapsed.is_none_or(|ms| ms >= STATUS_S * 1000),
        };
        if !due {
            return;
        }
        self.drawn = Some(now);
        self.style.width = self.columns.map_or(self.style.width, |columns| columns());
        match &self.output {
            Output::Live(bar) => {
                let frame = progress_frame(model, now, &self.style).join("\n");
                bar.set_message(guarded(&frame, self.style.color).into_owned());
            }
            // The first event only starts the clock; there is nothing to report yet.
            Output::Plain(_) if first => {}
            Output::Plain(_) => {
                let line = plain_status(model, now, &self.style);
                self.say(&line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{
        event::{NodeState, Verb},
        report::sample::{self, Stream},
    };

    static COLUMNS: AtomicUsize = AtomicUsize::new(200);

    #[test]
    fn a_frame_is_as_wide_as_the_terminal_is_now() {
        let hosts = sample::names(3);
        let mut s = Stream::new();
        s.started(Verb::Run, &hosts);
        for host in &hosts {
            s.state(host, NodeState::Draining, Some(&"waits for a job ".repeat(20)));
        }
        let model = RunModel::of(&s.events);
        let style = Style::default();
        let mut sink =
            Progress::live(ProgressDrawTarget::hidden(), style, || COLUMNS.load(Ordering::Relaxed));
        let widest = |sink: &Progress| sink.frame().lines().map(|line| line.chars().count()).max();
        sink.tick(&model, s.now());
        assert!(widest(&sink) > Some(150), "{:?}", widest(&sink));
        COLUMNS.store(60, Ordering::Relaxed);
        s.wait_ms(REDRAW_MS);
        sink.tick(&model, s.now());
        assert!(widest(&sink) <= Some(60), "{:?}", widest(&sink));
    }
}
