//! `gpufleet-lab`: a simulated fleet for tests, demonstrations and rehearsals.
//!
//! One binary has every role: the command line, the nodes' first processes, their SSH server, and the programs that a
//! node has under the real names (nvidia-smi, systemctl, reboot …). Its name and first argument select the role.

mod cli;
mod enter;
mod fleet;
mod keys;
mod node;
mod out;
mod power;
mod programs;
mod restore;
mod rules;
mod spec;
mod sys;
mod view;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let called = arguments.next().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let rest: Vec<String> = arguments.collect();
    if let Some(code) = programs::run(&name, &rest) {
        return code;
    }
    part(&rest).unwrap_or_else(cli::run)
}

/// Runs the roles that the lab itself starts.
fn part(arguments: &[String]) -> Option<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let code = match words.as_slice() {
        ["__node", dir] => report(node::first::launch(Path::new(dir)).map_err(Into::into)),
        ["__init", dir] => report(node::first::init(Path::new(dir))),
        ["__sshd"] => report(node::ssh::serve_from_stdin().map(|()| 0)),
        ["__terminal", ..] => {
            let error = node::ssh::become_on_terminal(arguments.get(1..).unwrap_or_default());
            out::error(error.to_string());
            127
        }
        ["__daemon", name] => programs::daemons::daemon(name),
        ["__mps-control"] => programs::mps::serve(),
        ["__client", minor] => programs::daemons::client(minor),
        _ => return None,
    };
    Some(ExitCode::from(code))
}

fn report(outcome: Result<i32, Box<dyn std::error::Error>>) -> u8 {
    match outcome {
        Ok(code) => code as u8,
        Err(error) => {
            out::error(error.to_string());
            1
        }
    }
}
