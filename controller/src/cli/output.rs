//! The only place that prints.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use clap::error::ErrorKind;
use gpufleet::{
    diagnostic::{self, Diagnostics, Severity},
    display::{Role, Style, Verbosity},
    visible::{guarded, visible_lines},
};

use super::{
    args::{self, ColorChoice},
    environment::Environment,
    error::CommandError,
};

/// Standard output and standard error, and how text looks there.
#[derive(Clone, Debug)]
pub struct Output {
    /// For standard output.
    pub style: Style,
    /// For standard error.
    pub status_style: Style,
    /// How many `-v`.
    pub verbose: u32,
    /// Whether standard output is a terminal.
    pub on_terminal: bool,
}

/// Whether colours are wanted on a stream.
fn has_colors(chosen: ColorChoice, terminal: bool, environment: &Environment) -> bool {
    match chosen {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => terminal && !environment.no_color,
    }
}

impl Output {
    pub fn new(args: &args::Output, chosen: ColorChoice, environment: &Environment) -> Self {
        let color = |terminal| has_colors(chosen, terminal, environment);
        let verbosity = match (args.quiet, args.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, 1) => Verbosity::Changed,
            (false, _) => Verbosity::All,
        };
        let style = |terminal, width| Style { color: color(terminal), width, verbosity };
        Self {
            style: style(environment.stdout_is_terminal, environment.stdout_width),
            status_style: style(environment.stderr_is_terminal, environment.stderr_width),
            on_terminal: environment.stdout_is_terminal,
            verbose: u32::from(args.verbose),
        }
    }

    /// Writes data to standard output.
    ///
    /// # Errors
    /// [`CommandError::BrokenPipe`] when the reader left.
    pub fn data(&self, text: &str) -> Result<(), CommandError> {
        // Why not elsewhere: documents for programs go through here too, and are theirs to the last byte.
        let text = if self.on_terminal { guarded(text, self.style.color) } else { Cow::Borrowed(text) };
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.is_empty() && !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        Ok(out.flush()?)
    }

    /// Writes bytes to standard output as they are.
    ///
    /// # Errors
    /// [`CommandError::BrokenPipe`] when the reader left.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), CommandError> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    pub fn diagnostics(&self, diagnostics: &Diagnostics) {
        self.say(&diagnostic::render(diagnostics, self.status_style.color));
    }

    /// Writes to standard error: nothing but text and, where they are wanted, colours.
    fn say(&self, text: &str) {
        let _ = io::stderr().lock().write_all(guarded(text, self.status_style.color).as_bytes());
    }

    /// Tells what is being done, unless that is not wanted.
    pub fn status(&self, text: &str) {
        if self.status_style.verbosity > Verbosity::Quiet {
            self.say(&format!("{text}\n"));
        }
    }

    /// Tells of something that a person should know.
    pub fn warning(&self, text: &str) {
        let heading = self.status_style.paint(Role::Warning, "warning");
        self.say(&format!("{heading}: {}\n", apart(text)));
    }

    pub fn error(&self, error: &CommandError) {
        let heading = self.status_style.paint(Role::Bad, "error");
        let mut text = String::new();
        match error {
            CommandError::BrokenPipe => return,
            CommandError::Input(diagnostics) => {
                self.diagnostics(diagnostics);
                let count = diagnostics.iter().filter(|found| found.severity == Severity::Error).count();
                let noun = if count == 1 { "error" } else { "errors" };
                text.push_str(&format!("{count} {noun}, no node was contacted.\n"));
            }
            CommandError::User { message, hints } | CommandError::Stopped { message, hints } => {
                text.push_str(&format!("{heading}: {}\n", apart(message)));
                for hint in hints {
                    text.push_str(&format!("help: {}\n", apart(hint)));
                }
            }
            CommandError::Internal(message) => text.push_str(&format!("{heading}: {}\n", apart(message))),
        }
        self.say(&text);
    }
}

/// A message whose further lines cannot be taken for messages of their own.
fn apart(message: &str) -> String {
    visible_lines(message.trim_end()).replace('\n', "\n  ")
}

/// Shows what clap has to say: help goes to standard output with code 0, a wrong command line is code 1.
pub fn usage(error: &clap::Error) -> u8 {
    // Why no error: there is no one left to report it to.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
        _ => 1,
    }
}

/// Sends the program's own log to standard error from `-vvv` on, in colours where these are wanted there.
pub fn log(verbose: u8, chosen: Option<ColorChoice>, environment: &Environment) {
    let chosen = chosen.unwrap_or(ColorChoice::Auto);
    let colors = has_colors(chosen, environment.stderr_is_terminal, environment);
    let level = match verbose {
        0..=2 => return,
        3 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    // The client of webhooks writes whole URLs, which may be secrets.
    let filter = tracing_subscriber::EnvFilter::new(format!("{level},ureq=off,ureq_proto=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colors)
        .with_writer(move || Guarded { colors })
        .init();
}

/// Standard error for the log, of which each entry is one write.
struct Guarded {
    colors: bool,
}

impl Write for Guarded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        io::stderr().lock().write_all(guarded(&text, self.colors).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
