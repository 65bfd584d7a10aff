//! Filters and tests for file names and for files of the controller.

use super::{Filter, Test, list_of, text_of};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("basename", |call| {
        let text = call.text()?;
        Ok(text.rsplit('/').next().unwrap_or_default().into())
    }),
    ("dirname", |call| {
        let text = call.text()?;
        let head = text.rfind('/').map_or("", |slash| text.get(..=slash).unwrap_or_default());
        let bare = head.trim_end_matches('/');
        Ok(if bare.is_empty() { head.into() } else { bare.into() })
    }),
    ("splitext", |call| {
        let text = call.text()?;
        let base = text.rfind('/').map_or(0, |slash| slash + 1);
        let name = text.get(base..).unwrap_or_default();
        let hidden = name.len() - name.trim_start_matches('.').len();
        let dot = name.rfind('.').filter(|dot| *dot >= hidden && *dot > 0);
        let (stem, extension) = text.split_at(dot.map_or(text.len(), |dot| base + dot));
        Ok(Value::list(vec![stem.into(), extension.into()]))
    }),
    ("path_join", |call| match call.value() {
        Value::List(list) => {
            let parts: Vec<_> = list.items().iter().map(text_of).collect::<Result<_, _>>()?;
            Ok(joined(&parts).into())
        }
        Value::Str(text) => Ok(text.as_ref().into()),
        other => Err(format!("a list of names is needed, this is {}", other.kind())),
    }),
    ("normpath", |call| Ok(normal_path(&call.text()?).into())),
    ("relpath", |call| {
        let (path, start) =
            (normal_path(&call.text()?), call.get(0, "start").map_or(Ok(".".to_owned()), text_of)?);
        let start = normal_path(&start);
        if path.starts_with('/') != start.starts_with('/') {
            return Err("both paths have to be absolute, or both relative".to_owned());
        }
        let parts = |path: &str| -> Vec<String> {
            path.split('/').filter(|part| !part.is_empty() && *part != ".").map(ToOwned::to_owned).collect()
        };
        let (path, start) = (parts(&path), parts(&start));
        let common = path.iter().zip(&start).take_while(|(a, b)| a == b).count();
        let up = std::iter::repeat_n("..".to_owned(), start.len() - common);
        let found: Vec<_> = up.chain(path.into_iter().skip(common)).collect();
        Ok(if found.is_empty() { ".".into() } else { found.join("/").into() })
    }),
    ("commonpath", |call| {
        let paths: Vec<_> = list_of(call.value())?.iter().map(text_of).collect::<Result<Vec<String>, _>>()?;
        let absolute = paths.first().ok_or("the list is empty")?.starts_with('/');
        if paths.iter().any(|path| path.starts_with('/') != absolute) {
            return Err("the paths have to be all absolute, or all relative".to_owned());
        }
        let parts = |path: &String| -> Vec<String> {
            path.split('/').filter(|part| !part.is_empty() && *part != ".").map(ToOwned::to_owned).collect()
        };
        let mut common = paths.first().map(parts).unwrap_or_default();
        for path in &paths {
            let same = common.iter().zip(parts(path)).take_while(|(a, b)| **a == *b).count();
            common.truncate(same);
        }
        Ok(format!("{}{}", if absolute { "/" } else { "" }, common.join("/")).into())
    }),
    ("win_basename", |call| Ok(windows(&call.text()?).2.into())),
    ("win_dirname", |call| {
        let text = call.text()?;
        let (drive, head, _) = windows(&text);
        let bare = head.trim_end_matches(['\\', '/']);
        Ok(format!("{drive}{}", if bare.is_empty() { head } else { bare }).into())
    }),
    ("win_splitdrive", |call| {
        let text = call.text()?;
        let (drive, ..) = windows(&text);
        Ok(Value::list(vec![drive.into(), text.get(drive.len()..).unwrap_or_default().into()]))
    }),
];

pub(super) const TESTS: &[(&str, Test)] = &[
    ("abs", |call| Ok(call.text()?.starts_with('/'))),
    ("is_abs", |call| Ok(call.text()?.starts_with('/'))),
];

fn joined(parts: &[String]) -> String {
    let mut path = String::new();
    for (index, part) in parts.iter().enumerate() {
        if part.starts_with('/') {
            path.clone_from(part);
        } else {
            if index > 0 && !path.is_empty() && !path.ends_with('/') {
                path.push('/');
            }
            path.push_str(part);
        }
    }
    path
}

/// Normalises a path as Python's `os.path.normpath` does.
pub fn normal_path(path: &str) -> String {
    let root = match path {
        _ if path.starts_with("//") && !path.starts_with("///") => "//",
        _ if path.starts_with('/') => "/",
        _ => "",
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match (part, parts.last()) {
            ("..", None) if !root.is_empty() => {}
            ("..", Some(last)) if *last != ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    let text = format!("{root}{}", parts.join("/"));
    if text.is_empty() { ".".to_owned() } else { text }
}

/// Splits a Windows path into drive, directory with its last separator, and name.
fn windows(path: &str) -> (&str, &str, &str) {
    let drive = match path.as_bytes() {
        [letter, b':', ..] if letter.is_ascii_alphabetic() => 2,
        _ => 0,
    };
    let (drive, rest) = path.split_at(drive);
    let (head, tail) = rest.split_at(rest.rfind(['\\', '/']).map_or(0, |at| at + 1));
    (drive, head, tail)
}
