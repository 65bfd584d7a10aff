//! Files that hold a secret, and programs that print one.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use zeroize::Zeroizing;

use super::{
    error::CommandError,
    trust::{Care, Trust},
};

/// What a file holds, or prints where it is a program.
///
/// # Errors
/// A file that cannot be read or that someone else could have written, and a program that fails; `what` says what is wanted of it.
pub fn content(path: &Path, what: &str, arguments: &[&str]) -> Result<Zeroizing<Vec<u8>>, CommandError> {
    let shown = path.display();
    let unreadable =
        |error: std::io::Error| CommandError::user(format!("cannot read {what} in {shown}: {error}"));
    let data = fs::metadata(path).map_err(unreadable)?;
    if data.is_dir() {
        return Err(CommandError::user(format!("cannot read {what}: {shown} is a folder")));
    }
    Trust::of_this_process().demand(path, what, Care::Private)?;
    if data.permissions().mode() & 0o111 == 0 {
        return fs::read(path).map(Zeroizing::new).map_err(unreadable);
    }
    // Why absolute: a name without a folder would be looked for in PATH.
    let program = std::path::absolute(path).map_err(unreadable)?;
    let mut command = Command::new(program);
    let output =
        command.args(arguments).stderr(std::process::Stdio::inherit()).output().map_err(|error| {
            let error = CommandError::user(format!("cannot run {shown} for {what}: {error}"));
            error.hint("a file that holds a secret itself must not be executable")
        })?;
    match output.status.success() {
        true => Ok(Zeroizing::new(output.stdout)),
        false => {
            Err(CommandError::user(format!("{shown}, the program for {what}, failed ({})", output.status)))
        }
    }
}

/// A password in a file, or printed by a program.
///
/// # Errors
/// Those of [`content`], and nothing where a password should be.
pub fn password(path: &Path, what: &str, arguments: &[&str]) -> Result<Vec<u8>, CommandError> {
    let bytes = content(path, what, arguments)?;
    trimmed(&bytes).ok_or_else(|| CommandError::user(format!("{what} of {} is empty", path.display())))
}

/// Blanks and line breaks around a password do not count, as in Ansible.
pub fn trimmed(bytes: &[u8]) -> Option<Vec<u8>> {
    let password = bytes.trim_ascii();
    (!password.is_empty()).then(|| password.to_vec())
}
