//! Regular expressions of tasks: expressions of Python's `re`, as far as Rust's do the same.
//!
//! Both sides read them here, so that one that no node could compile is a mistake of the playbook.

use regex::bytes::{Regex, RegexBuilder};

use crate::tasks::ParamError;

/// Compiles an expression.
///
/// # Errors
/// It cannot be compiled: its name and the reason.
pub fn compile(name: &str, pattern: &str) -> Result<Regex, String> {
    builder(name, pattern, |builder| builder)
}

/// The same with more options.
///
/// # Errors
/// As [`compile`].
pub fn builder(
    name: &str,
    pattern: &str,
    with: impl FnOnce(&mut RegexBuilder) -> &mut RegexBuilder,
) -> Result<Regex, String> {
    read(pattern, with).map_err(|why| format!("`{name}: {pattern}` {why}"))
}

fn read(pattern: &str, with: impl FnOnce(&mut RegexBuilder) -> &mut RegexBuilder) -> Result<Regex, String> {
    // Why bytes without Unicode tables: Ansible matches bytes too, and the tables would weigh more than the rest.
    let mut options = RegexBuilder::new(pattern);
    with(options.unicode(false)).build().map_err(|error| {
        let reason = error.to_string();
        let last = reason.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or(&reason);
        format!("is not a regular expression that gpufleet reads: {last}")
    })
}

/// Checks those of these parameters that are there.
pub(crate) fn check<'a>(
    parameters: impl IntoIterator<Item = (&'static str, Option<&'a str>)>,
) -> Result<(), ParamError> {
    for (name, pattern) in parameters {
        if let Some(pattern) = pattern {
            read(pattern, |options| options)
                .map_err(|why| ParamError::new(name, format!("`{pattern}` {why}")))?;
        }
    }
    Ok(())
}
