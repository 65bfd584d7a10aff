//! Runs the distribution's own programs: with messages in English, the task's environment and user, and a deadline.

use std::{ffi::OsStr, path::PathBuf, time::Duration};

use gpufleet_protocol::FailureKind;

use crate::{
    declare::{Node, Trouble},
    process::{Finished, Run},
};

/// Time limit of a program that only reads.
const ANSWER: Duration = Duration::from_secs(180);

/// Returns the path of a program.
///
/// # Errors
/// If the node does not have it; `brings` says what would install it.
pub fn find(node: &Node<'_>, name: &str, brings: &str) -> Result<PathBuf, Trouble> {
    let missing = || Trouble::missing(format!("there is no program `{name}` on this node; {brings}"));
    node.roots.tool(name).ok_or_else(missing)
}

/// Creates a run of a program with the task's environment and user.
pub fn run(node: &Node<'_>, program: impl AsRef<OsStr>) -> Run {
    let mut run = Run::new(program).user(node.user.clone()).env("LC_ALL", "C").env("LANGUAGE", "C");
    for (name, value) in node.environment {
        run = run.env(name, value);
    }
    run
}

/// Runs a program that only reads.
///
/// # Errors
/// If it cannot be run, or does not end in time. The caller checks the exit status.
pub fn ask(node: &Node<'_>, run: &Run) -> Result<Finished, Trouble> {
    Ok(run.finish(&node.deadline.within(ANSWER))?)
}

/// Restarts a unit.
///
/// # Errors
/// If there is no systemd, or it fails.
pub fn restart(node: &Node<'_>, unit: &str) -> Result<(), Trouble> {
    let systemctl = find(node, "systemctl", "does systemd run this node?")?;
    let run = run(node, systemctl).args(["--no-ask-password", "restart", unit]);
    act(node, &run, &format!("systemctl restart {unit}")).map(drop)
}

/// Runs a program that changes something; `what` is for messages.
///
/// # Errors
/// If it cannot be run, does not end in time, or fails.
pub fn act(node: &Node<'_>, run: &Run, what: &str) -> Result<Finished, Trouble> {
    (node.progress)(what.to_owned());
    let done = run.finish(node.deadline)?;
    if done.exit.success() {
        return Ok(done);
    }
    Err(Trouble::failed(FailureKind::Exit, done.complaint(what)))
}
