//! Tests and filters that read the controller's disk.

use std::sync::Arc;

use gpufleet_protocol::glob::Glob;
use minijinja::{Environment, Error};

use super::{Engine, Outside, top_scope, unknown};
use crate::template::frame::{collect, expose};
use crate::template::outside::PathKind;
use crate::template::value::Value;
use crate::template::{TemplateError, filters};

pub(in crate::template) const FILTERS: &[&str] = &["fileglob"];
pub(in crate::template) const TESTS: &[&str] = &["directory", "exists", "file", "is_dir", "is_file"];

pub(super) fn register(environment: &mut Environment<'static>) {
    for &name in TESTS {
        for known in filters::names(name) {
            environment.add_test(known, move |value: &Engine| there(name, value));
        }
    }
    for known in filters::names("fileglob") {
        environment.add_filter(known, fileglob);
    }
}

fn refusal(name: &str, message: &str) -> Error {
    TemplateError::new(format!("`{name}`: {message}")).into_engine()
}

/// A path, and the [`Outside`] to ask about it.
type Asked = (String, Arc<dyn Outside>);

/// Returns the path that is asked about; `None` if it is not known yet.
fn asked(name: &str, value: &Engine) -> Result<Option<Asked>, Error> {
    let path = match collect(value).map_err(TemplateError::into_engine)? {
        Value::Str(path) => path.to_string(),
        Value::Unknown => return Ok(None),
        other => return Err(refusal(name, &format!("a path is text, this is {}", other.kind()))),
    };
    match top_scope().and_then(|scope| scope.outside().cloned()) {
        Some(outside) => Ok(Some((path, outside))),
        None => {
            let message = format!("`{name}`: only tasks can look at files of the controller");
            Err(TemplateError::refusal(message).into_engine())
        }
    }
}

fn there(name: &str, value: &Engine) -> Result<bool, Error> {
    let Some((path, outside)) = asked(name, value)? else { return Ok(false) };
    Ok(match (name, outside.kind(&path)) {
        ("exists", kind) => kind.is_some(),
        ("file" | "is_file", kind) => kind == Some(PathKind::File),
        (_, kind) => kind == Some(PathKind::Folder),
    })
}

fn fileglob(value: &Engine) -> Result<Engine, Error> {
    let Some((path, outside)) = asked("fileglob", value)? else { return Ok(unknown()) };
    let (folder, pattern) = path.rsplit_once('/').unwrap_or(("", &path));
    if folder.contains(['*', '?', '[']) {
        return Err(refusal("fileglob", "only the last part of the path can be a pattern"));
    }
    let glob = Glob::new(pattern);
    let listed = if path.starts_with('/') && folder.is_empty() { "/" } else { folder };
    let mut files = outside.files_of(listed).map_err(|message| refusal("fileglob", &message))?;
    files.retain(|file| glob.matches(file) && (!file.starts_with('.') || pattern.starts_with('.')));
    files.sort_unstable();
    let whole = |file: &String| match path.rsplit_once('/') {
        Some((folder, _)) => Value::from(format!("{folder}/{file}")),
        None => Value::str(file),
    };
    Ok(expose(&Value::list(files.iter().map(whole).collect()), ""))
}
