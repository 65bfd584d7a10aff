//! The only place that prints.

use std::io::{self, Write};

use clap::error::ErrorKind;
use gpufleet::{
    diagnostic::{self, Diagnostics},
    display::{Role, Style, Verbosity},
};

use super::{
    args::{self, ColorChoice},
    environment::Environment,
    error::CommandError,
};

/// Standard output and standard error, and how text looks there.
#[derive(Debug)]
pub struct Output {
    /// For standard output.
    pub style: Style,
    /// For standard error.
    pub status_style: Style,
    /// How many `-v`.
    pub verbose: u32,
}

impl Output {
    pub fn new(args: &args::Output, chosen: ColorChoice, environment: &Environment) -> Self {
        let color = |terminal: bool| match chosen {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !environment.no_color,
        };
        let verbosity = match (args.quiet, args.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, 1) => Verbosity::Changed,
            (false, _) => Verbosity::All,
        };
        let style = |terminal| Style { color: color(terminal), width: environment.width, verbosity };
        Self {
            style: style(environment.stdout_is_terminal),
            status_style: style(environment.stderr_is_terminal),
            verbose: u32::from(args.verbose),
        }
    }

    /// Writes data to standard output.
    ///
    /// # Errors
    /// [`CommandError::BrokenPipe`] when the reader left.
    pub fn data(&self, text: &str) -> Result<(), CommandError> {
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
        let text = diagnostic::render(diagnostics, self.status_style.color);
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// Tells what is being done, unless that is not wanted.
    pub fn status(&self, text: &str) {
        if self.status_style.verbosity > Verbosity::Quiet {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    /// Tells of something that a person should know.
    pub fn warning(&self, text: &str) {
        let heading = self.status_style.paint(Role::Warning, "warning");
        let _ = writeln!(io::stderr().lock(), "{heading}: {text}");
    }

    pub fn error(&self, error: &CommandError) {
        let heading = self.status_style.paint(Role::Bad, "error");
        let mut text = String::new();
        match error {
            CommandError::BrokenPipe => return,
            CommandError::Input(diagnostics) => {
                self.diagnostics(diagnostics);
                let count = diagnostics.iter().count();
                let noun = if count == 1 { "error" } else { "errors" };
                text.push_str(&format!("{count} {noun}, no node was contacted.\n"));
            }
            CommandError::User { message, hints } | CommandError::Stopped { message, hints } => {
                text.push_str(&format!("{heading}: {message}\n"));
                for hint in hints {
                    text.push_str(&format!("help: {hint}\n"));
                }
            }
            CommandError::Internal(message) => text.push_str(&format!("{heading}: {message}\n")),
        }
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Shows what clap has to say: help goes to standard output with code 0, a wrong command line is code 1.
pub fn usage(error: &clap::Error) -> u8 {
    // Why no error: nobody is left to be told.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
        _ => 1,
    }
}

/// Sends the program's own log to standard error from `-vvv` on.
pub fn log(verbose: u8) {
    let level = match verbose {
        0..=2 => return,
        3 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).init();
}
