//! The helper that gpufleet runs on a node.
//!
//! `gpufleet-node serve` talks to one controller on standard input and output, and ends with it. Everything else of the
//! program is below [`serve`]; `main` only reads the few arguments and makes the environment safe.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod deadline;
mod declare;
mod facts;
mod gpu;
mod health;
mod os;
mod process;
mod serve;
mod state;
mod tasks;
mod world;

use std::{process::ExitCode, time::Duration};

use crate::{
    os::{environment, roots},
    state::local,
};

/// Reads the arguments behind the program's name.
fn options(mut arguments: impl Iterator<Item = String>) -> Result<serve::Options, String> {
    match arguments.next().as_deref() {
        Some("serve") => {}
        _ => return Err("usage: gpufleet-node serve; gpufleet starts it by itself".to_owned()),
    }
    let mut options = serve::Options::default();
    if let Some(root) = std::env::var_os(roots::VARIABLE).filter(|root| !root.is_empty()) {
        options.roots = roots::Roots::below(root);
    }
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--heartbeat-timeout-ms" => {
                let text = value()?;
                let milliseconds =
                    text.parse().map_err(|_| format!("`{text}` is not a number of milliseconds"))?;
                options.heartbeat_timeout = Duration::from_millis(milliseconds);
            }
            "--local" => options.local = Some(local::name(&value()?)?),
            "--folder" => {
                let folder = value()?;
                std::env::set_current_dir(&folder).map_err(|error| format!("{folder}: {error}"))?;
            }
            "--state-dir" => options.state_dir = Some(value()?.into()),
            other => return Err(format!("unknown argument `{other}`")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    environment::sanitise();
    match options(std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())) {
        Ok(options) => serve::serve(options),
        Err(message) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "gpufleet-node: {message}");
            ExitCode::FAILURE
        }
    }
}
