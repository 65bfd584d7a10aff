//! The only place that writes to standard output and standard error.

use std::io::Write as _;

/// Writes a line to standard output. A closed pipe is no error.
pub fn line(text: impl AsRef<str>) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_ref().as_bytes());
    let _ = stdout.write_all(b"\n");
    let _ = stdout.flush();
}

/// Writes a line to standard error.
pub fn error(text: impl AsRef<str>) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_ref().as_bytes());
    let _ = stderr.write_all(b"\n");
}
