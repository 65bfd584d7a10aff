//! Files of variables that are read during a play.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::diagnostic::Diagnostic;
use crate::template::Value;
use crate::yaml;

/// Parses the variables of a file; templates in them are rendered where they are used.
///
/// An empty file has none. With `secret`, every value is marked so that no output shows it.
///
/// # Errors
/// If the text is no YAML or no mapping of names to values: file, place and reason in one line.
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
