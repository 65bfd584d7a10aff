//! The helper that gpufleet runs on a node.
//!
//! `gpufleet-node serve` talks to one controller on standard input and output, and ends with it. It starts
//! `gpufleet-node job`, which performs one operation. `main` only reads the arguments and sanitises the environment;
//! everything else is below [`serve`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod deadline;
mod declare;
mod facts;
mod gpu;
mod health;
mod keep;
mod os;
mod process;
mod serve;
mod signals;
mod state;
mod tasks;
mod world;

use std::{process::ExitCode, time::Duration};

use crate::{
    os::{dumps, environment, roots},
    state::local,
};

/// The parsed command line.
enum Told {
    Serve(serve::Options),
    Job(serve::job::Options),
    /// Asserts the kept state of the GPUs.
    Keep,
    /// Whether units may start that wait for it.
    Gate,
}

/// Parses the arguments after the program's name.
fn told(mut arguments: impl Iterator<Item = String>) -> Result<Told, String> {
    match arguments.next().as_deref() {
        Some("serve") => options(arguments).map(Told::Serve),
        Some("job") => job(arguments).map(Told::Job),
        Some("keep") => Ok(Told::Keep),
        Some("gate") => Ok(Told::Gate),
        _ => Err("usage: gpufleet-node serve; gpufleet starts it by itself".to_owned()),
    }
}

fn node_roots() -> roots::Roots {
    match std::env::var_os(roots::VARIABLE).filter(|root| !root.is_empty()) {
        Some(root) => roots::Roots::below(root),
        None => roots::Roots::real(),
    }
}

fn job(mut arguments: impl Iterator<Item = String>) -> Result<serve::job::Options, String> {
    let (mut jid, mut state_dir) = (None, None);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--job" => jid = Some(value),
            "--state-dir" => state_dir = Some(value.into()),
            other => return Err(format!("unknown argument `{other}`")),
        }
    }
    let missing = || "usage: gpufleet-node job --job ID --state-dir PATH".to_owned();
    Ok(serve::job::Options {
        roots: node_roots(),
        jid: jid.ok_or_else(missing)?,
        state_dir: state_dir.ok_or_else(missing)?,
    })
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<serve::Options, String> {
    let mut options = serve::Options { roots: node_roots(), ..serve::Options::default() };
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
            "--verified" => options.verified = Some(value()?),
            other => return Err(format!("unknown argument `{other}`")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    environment::sanitise();
    dumps::forbid();
    match told(std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())) {
        Ok(Told::Serve(options)) => serve::serve(options),
        Ok(Told::Job(options)) => serve::job::carry_out(&options),
        Ok(Told::Keep) => keep::assert(&node_roots()),
        Ok(Told::Gate) => keep::gate(&node_roots()),
        Err(message) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "gpufleet-node: {message}");
            ExitCode::FAILURE
        }
    }
}
