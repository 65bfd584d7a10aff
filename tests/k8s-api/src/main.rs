//! `gpufleet-k8s-api`: the server for lab scripts and people, and its remote control.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gpufleet_k8s_api::control::Control;
use gpufleet_k8s_api::scenario::Scenario;
use gpufleet_k8s_api::server::{Options, Server};

#[derive(Parser)]
#[command(about = "A Kubernetes API server that is not there, for tests of drains")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Runs a server until its standard input ends or it is killed; says `ready` when it can be used.
    Serve {
        /// The cluster at the start, YAML.
        #[arg(long)]
        scenario: Option<PathBuf>,
        /// Where kubeconfig, ca.crt, server.json and control.sock go.
        #[arg(long)]
        dir: PathBuf,
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Runs although standard input has ended.
        #[arg(long)]
        detached: bool,
    },
    /// Sends commands (JSON) to a server, each an argument, and prints each answer.
    Ctl {
        /// The server's directory.
        #[arg(long)]
        dir: PathBuf,
        #[arg(required = true)]
        commands: Vec<String>,
    },
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Serve { scenario, dir, port, detached } => serve(scenario, dir, port, detached),
        Verb::Ctl { dir, commands } => control(dir, &commands),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let mut text = failure.to_string();
            let mut source = failure.source();
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            let _ = writeln!(std::io::stderr(), "error: {text}");
            ExitCode::FAILURE
        }
    }
}

fn serve(scenario: Option<PathBuf>, dir: PathBuf, port: u16, detached: bool) -> Result<(), Failure> {
    let scenario = match scenario {
        Some(path) => {
            let text =
                std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            Scenario::parse(&text)?
        }
        None => Scenario::default(),
    };
    let server = Server::start(Options { port, scenario })?;
    server.publish(&dir)?;
    writeln!(
        std::io::stdout(),
        "ready\nserver: {}\nkubeconfig: {}",
        server.url(),
        dir.join("kubeconfig").display()
    )?;
    if detached {
        loop {
            std::thread::park();
        }
    }
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}

fn control(dir: PathBuf, commands: &[String]) -> Result<(), Failure> {
    let mut control = Control::connect(&dir.join("control.sock"))?;
    for command in commands {
        let answer = control.call_text(command)?;
        writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&answer)?)?;
    }
    Ok(())
}
