//! Reads `ansible.cfg` as Python's configparser does: settings that apply here are used, the others are listed.

use std::{path::Path, sync::Arc};

use super::{Given, KEYS, Kind, Origin, Sources, located};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};

#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) given: Vec<(&'static str, Given)>,
    pub(super) ignored: Vec<String>,
}

/// One assignment, with continuation lines joined.
struct Assignment {
    section: String,
    key: String,
    value: String,
    line: u32,
}

pub(super) fn read(source: &Arc<SourceFile>, sources: &Sources<'_>, errors: &mut Diagnostics) -> Read {
    let folder = Path::new(source.name()).parent().unwrap_or(Path::new(""));
    let mut read = Read::default();
    for Assignment { section, key: name, value: text, line } in assignments(source, errors) {
        if (section.as_str(), name.as_str(), text.as_str()) == ("defaults", "hash_behaviour", "merge") {
            errors.push(merged("hash_behaviour = merge", "take the line out").at(&place(source, line)));
            continue;
        }
        let known = KEYS.iter().find(|key| key.ansible_keys.contains(&(section.as_str(), name.as_str())));
        // Ansible takes an empty value for the default.
        let Some(key) = known.filter(|_| !text.is_empty()) else {
            read.ignored.push(format!("[{section}] {name}"));
            continue;
        };
        match key.read_ansible(&name, &text) {
            Ok(value) => {
                let value = located(key, value, folder, sources.home, sources.environment);
                let origin = Origin::AnsibleCfg { path: source.name().to_owned(), line };
                read.given.push((key.name, Given { value, origin }));
            }
            // Valid for Ansible, but without a meaning here.
            Err(_) if matches!(key.kind, Kind::Choice(_)) || key.name == "task_timeout" => {
                read.ignored.push(format!("[{section}] {name} = {text}"));
            }
            Err(wanted) => errors.push(
                Diagnostic::error(format!("`{name}` of [{section}] wants {wanted}, got \"{text}\""))
                    .at(&place(source, line)),
            ),
        }
    }
    read
}

/// Returns the error for a setting that merges mappings.
///
/// It must not be ignored: every mapping that is set twice would silently have other values.
pub(super) fn merged(written: &str, instead: &str) -> Diagnostic {
    Diagnostic::error(format!("`{written}` is not done: the later mapping takes the place of the earlier"))
        .help(format!("merge where it is meant, with `{{{{ one | combine(other) }}}}`, and {instead}"))
}

fn place(source: &Arc<SourceFile>, line: u32) -> Span {
    let length = source.line(line).map_or(1, |text| text.chars().count());
    Span::new(source, line, 1, u32::try_from(length).unwrap_or(1).max(1))
}

fn assignments(source: &Arc<SourceFile>, errors: &mut Diagnostics) -> Vec<Assignment> {
    let mut all: Vec<Assignment> = Vec::new();
    let mut section: Option<String> = None;
    // Whether an indented line continues the last value.
    let mut open = false;
    for (number, raw) in (1..).zip(source.text().lines()) {
        let trimmed = raw.trim();
        if trimmed.is_empty() {
            continue;
        }
        if trimmed.starts_with(['#', ';']) {
            continue;
        }
        let text = without_comment(raw);
        if open && raw.starts_with([' ', '\t']) {
            if let Some(last) = all.last_mut() {
                last.value.push('\n');
                last.value.push_str(text.trim());
            }
            continue;
        }
        let text = text.trim();
        if let Some(name) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            section = Some(name.0.to_owned());
            open = false;
            continue;
        }
        let (key, value) = match text.find(['=', ':']) {
            Some(at) => (text.get(..at).unwrap_or_default(), Some(text.get(at + 1..).unwrap_or_default())),
            None => (text, None),
        };
        let (Some(section), Some(value)) = (&section, value) else {
            let why = match &section {
                Some(_) => "this line is no `name = value`",
                None => "this line stands before any [section]",
            };
            errors.push(
                Diagnostic::error(why)
                    .at(&place(source, number))
                    .help("Ansible does not read such a file either"),
            );
            continue;
        };
        open = true;
        let key = key.trim().to_ascii_lowercase();
        if all.iter().any(|known| known.section == *section && known.key == key) {
            errors.push(
                Diagnostic::error(format!("`{key}` stands twice in [{section}]")).at(&place(source, number)),
            );
            continue;
        }
        all.push(Assignment { section: section.clone(), key, value: value.trim().to_owned(), line: number });
    }
    all
}

/// Removes a comment, which begins with `;` after a blank.
fn without_comment(line: &str) -> &str {
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        if letter == ';' && before.is_whitespace() {
            return line.get(..at).unwrap_or(line);
        }
        before = letter;
    }
    line
}
