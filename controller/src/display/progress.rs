//! Progress while a run goes on: a live display on a terminal, lines elsewhere.
//!
//! A sink that cannot write gives up silently: it never stops a run.

use std::io::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;

use super::{Announcer, Style, Verbosity, plain_status, progress_frame};
use crate::{event::Event, report::RunModel};

/// Milliseconds between two drawings of the live display.
const REDRAW_MS: i64 = 100;
/// Seconds between two status lines of plain output.
const STATUS_S: i64 = 10;

/// Shows a run as it goes on.
pub struct Progress {
    style: Style,
    announcer: Announcer,
    output: Output,
    drawn: Option<Timestamp>,
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
    /// A display that redraws itself on a terminal.
    pub fn live(target: ProgressDrawTarget, style: Style) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(
            ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        Self { style, announcer: Announcer::new(style, false), output: Output::Live(bar), drawn: None }
    }

    /// Lines for a log: failures, holds and reboots as they happen, a status line every 10 s.
    pub fn plain(out: Box<dyn Write + Send>, style: Style) -> Self {
        Self { style, announcer: Announcer::new(style, true), output: Output::Plain(out), drawn: None }
    }

    /// Takes an event that the model has taken already.
    pub fn event(&mut self, model: &RunModel, event: &Event) {
        for line in self.announcer.event(model, event) {
            self.say(&line);
        }
        self.draw(model, event.at);
    }

    /// Lets time pass: call it once a second or more often.
    pub fn tick(&mut self, model: &RunModel, now: Timestamp) {
        for line in self.announcer.tick(now) {
            self.say(&line);
        }
        self.draw(model, now);
    }

    /// Says what still waits and takes the live display away.
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
            Output::Live(bar) => bar.println(line),
            Output::Plain(out) => drop(writeln!(out, "{line}").and_then(|()| out.flush())),
        }
    }

    /// Runs something else that uses the terminal, such as a question.
    pub fn suspend<T>(&mut self, act: impl FnOnce() -> T) -> T {
        match &self.output {
            Output::Live(bar) => bar.suspend(act),
            Output::Plain(_) => act(),
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
        match &self.output {
            Output::Live(bar) => bar.set_message(progress_frame(model, now, &self.style).join("\n")),
            // Why: at the first event there is nothing to tell yet; it starts the clock.
            Output::Plain(_) if first => {}
            Output::Plain(_) => {
                let line = plain_status(model, now, &self.style);
                self.say(&line);
            }
        }
    }
}
