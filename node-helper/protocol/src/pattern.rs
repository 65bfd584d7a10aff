//! Regular expressions in tasks: the part of Python's `re` that has the same meaning in Rust.
//!
//! Both sides compile them here, so that an invalid expression is a mistake in the playbook and not on a node.

use regex::bytes::{Regex, RegexBuilder};

use crate::tasks::ParamError;

/// Compiles an expression.
///
/// # Errors
/// If it cannot be compiled: its name and the reason.
pub fn compile(name: &str, pattern: &str) -> Result<Regex, String> {
    builder(name, pattern, |builder| builder)
}

/// Compiles an expression with further options.
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
    // Bytes without Unicode tables: Ansible matches bytes too, and the tables would be larger than everything else.
    let mut options = RegexBuilder::new(pattern);
    with(options.unicode(false)).build().map_err(|error| {
        let reason = error.to_string();
        let last = reason.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or(&reason);
        format!("is not a regular expression that gpufleet reads: {last}")
    })
}

/// Checks those of these parameters that are given.
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
