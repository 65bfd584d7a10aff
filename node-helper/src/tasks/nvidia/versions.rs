//! Versions of the driver that is loaded and of the programs that must be of the same.

use std::time::Duration;

use crate::{
    declare::{Node, Trouble},
    os::files,
    signals,
    tasks::{driver, tool},
};

/// Time limit of a program that tells its version.
const ANSWER: Duration = Duration::from_secs(10);

/// Returns the version of the driver that is loaded, or that an earlier task loads; `None` without one.
///
/// # Errors
/// If it cannot be read.
pub fn of_driver(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    if let Some(version) = driver::foreseen(node) {
        return Ok(Some(version));
    }
    let bytes = files::read_bounded(&node.roots.path("/sys/module/nvidia/version"), 4096)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
}

/// Returns the version of a program; `None` if there is no such program.
///
/// # Errors
/// If it does not tell.
pub fn of_program(node: &Node<'_>, name: &str) -> Result<Option<String>, Trouble> {
    let Some(program) = node.roots.tool(name) else { return Ok(None) };
    let done = tool::run(node, program).arg("--version").limit(4096).finish(&node.deadline.within(ANSWER))?;
    signals::version_in(&done.stdout())
        .map(Some)
        .ok_or_else(|| Trouble::io(done.complaint(&format!("{name} --version"))))
}
