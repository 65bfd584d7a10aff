//! Files of variables that are read while a play runs.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::diagnostic::Diagnostic;
use crate::template::Value;
use crate::yaml;

/// The variables of a file, as written: templates in them are rendered where they are used.
///
/// An empty file has none. With `secret` every value is marked as one that no output may show.
///
/// # Errors
/// No YAML, or no mapping of names to values: the file, the place and what is wrong, in one line.
pub fn read_late_vars(file: &str, bytes: &[u8], secret: bool) -> Result<Vec<(Arc<str>, Value)>, String> {
    let root = yaml::parse_bytes(file, bytes)
        .map_err(|errors| errors.iter().next().map(Diagnostic::one_line).unwrap_or_default())?;
    if root.is_null() {
        return Ok(Vec::new());
    }
    match root.to_json() {
        Json::Object(map) => Ok(map
            .iter()
            .map(|(name, value)| {
                let value = Value::trusted(value);
                (Arc::from(name.as_str()), if secret { value.sealed() } else { value })
            })
            .collect()),
        _ => Err(format!("{file} holds {}, not variables", root.kind())),
    }
}
