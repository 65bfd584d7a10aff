//! Settings: the values for a command where its command line has none.
//!
//! Owns the list of settings, how `gpufleet.toml`, `ansible.cfg` and the environment set them, and their precedence:
//! environment over `gpufleet.toml` over `ansible.cfg`. Must not know commands, and reads neither files nor the
//! environment itself: callers pass their text. Invariants: a file that is not understood is an error with its place;
//! every setting has its origin.

mod ansible_cfg;
mod keys;
mod toml_file;

use std::{collections::BTreeMap, fmt, path::Path};

pub use self::keys::{KEYS, Key, Kind};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    Text(String),
    List(Vec<String>),
    Flag(bool),
    Count(usize),
    /// A duration in seconds.
    Seconds(u64),
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::List(items) => f.write_str(&items.join(", ")),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Seconds(seconds) => write!(f, "{seconds}s"),
        }
    }
}

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An environment variable.
    Environment(String),
    /// A line of `gpufleet.toml`.
    File { path: String, line: u32 },
    /// A line of `ansible.cfg`.
    AnsibleCfg { path: String, line: u32 },
}

impl Origin {
    /// Whether it was written for Ansible.
    pub fn is_ansible(&self) -> bool {
        match self {
            Self::Environment(name) => name.starts_with("ANSIBLE_"),
            Self::AnsibleCfg { .. } => true,
            Self::File { .. } => false,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => f.write_str(name),
            Self::File { path, line } | Self::AnsibleCfg { path, line } => write!(f, "{path}:{line}"),
        }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub value: Setting,
    pub origin: Origin,
}

/// A text file of settings.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The path as shown to people.
    pub path: &'a str,
    pub text: &'a str,
}

/// All sources of settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// The environment variables.
    pub environment: &'a [(String, String)],
    pub toml: Option<File<'a>>,
    pub ansible_cfg: Option<File<'a>>,
    pub home: Option<&'a Path>,
}

/// The settings of one call, by the names of [`KEYS`].
#[derive(Clone, Debug, Default)]
pub struct Settings {
    given: BTreeMap<&'static str, Given>,
    /// Settings of `ansible.cfg` without a meaning here: `[section] key`.
    pub ignored: Vec<String>,
    /// Folders in which roles are looked for, in order.
    pub roles_path: Vec<String>,
}

impl Settings {
    /// Reads and ranks all sources.
    ///
    /// # Errors
    /// Every unknown key of `gpufleet.toml` and every value of the wrong type, with its place.
    pub fn read(sources: &Sources<'_>) -> Result<Self, Diagnostics> {
        let mut errors = Diagnostics::new();
        let mut settings = Self::default();
        if let Some(file) = sources.ansible_cfg {
            let source = SourceFile::new(file.path, file.text);
            let read = ansible_cfg::read(&source, sources, &mut errors);
            settings.given.extend(read.given);
            settings.ignored = read.ignored;
        }
        if let Some(file) = sources.toml {
            let source = SourceFile::new(file.path, file.text);
            settings.given.extend(toml_file::read(&source, sources, &mut errors));
        }
        for (name, text) in sources.environment {
            if (name.as_str(), text.as_str()) == ("ANSIBLE_HASH_BEHAVIOUR", "merge") {
                errors.push(ansible_cfg::merged("ANSIBLE_HASH_BEHAVIOUR=merge", "unset the variable"));
                continue;
            }
            let key = KEYS.iter().find_map(|key| {
                let own = key.variable() == *name;
                (own || key.ansible_variables.contains(&name.as_str())).then_some((key, own))
            });
            let Some((key, own)) = key.filter(|_| !text.is_empty()) else { continue };
            // gpufleet's own variable takes precedence over Ansible's.
            if !own
                && sources
                    .environment
                    .iter()
                    .any(|(other, text)| *other == key.variable() && !text.is_empty())
            {
                continue;
            }
            let value = if own { key.read_text(text) } else { key.read_ansible(name, text) };
            match value {
                Ok(value) => {
                    let value = located(key, value, Path::new(""), sources.home, sources.environment);
                    let origin = Origin::Environment(name.clone());
                    settings.given.insert(key.name, Given { value, origin });
                }
                Err(wanted) => errors.push(
                    Diagnostic::error(format!(
                        "the environment variable `{name}` wants {wanted}, got \"{text}\""
                    ))
                    .help(format!("it stands for the setting `{}`: {}", key.name, key.about)),
                ),
            }
        }
        let place = |error: &Diagnostic| {
            error.span.as_ref().map(|span| (span.file().to_owned(), span.line, span.column))
        };
        errors.0.sort_by_key(place);
        settings.roles_path = settings.list("roles_path").unwrap_or_default().to_vec();
        errors.into_result(settings)
    }

    /// Returns the value of a setting, if a source sets it.
    pub fn get(&self, name: &str) -> Option<&Given> {
        self.given.get(name)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.value {
            Setting::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn list(&self, name: &str) -> Option<&[String]> {
        match &self.get(name)?.value {
            Setting::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)?.value {
            Setting::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    pub fn count(&self, name: &str) -> Option<usize> {
        match self.get(name)?.value {
            Setting::Count(count) => Some(count),
            _ => None,
        }
    }

    pub fn seconds(&self, name: &str) -> Option<u64> {
        match self.get(name)?.value {
            Setting::Seconds(seconds) => Some(seconds),
            _ => None,
        }
    }
}

/// Resolves paths relative to the file that names them; `~` and variables are replaced as in Ansible.
fn located(
    key: &Key,
    value: Setting,
    folder: &Path,
    home: Option<&Path>,
    environment: &[(String, String)],
) -> Setting {
    let locate = |text: String| {
        if let (Kind::Store, Some(path)) = (key.kind, text.strip_prefix("sqlite:")) {
            let path = path.strip_prefix("//").unwrap_or(path);
            return format!("sqlite:{}", folder.join(expanded(path, home, environment)).display());
        }
        // `host1,host2,` is a list of hosts, and `ID@prompt` a question.
        if !key.kind.is_path() || text.ends_with(',') {
            return text;
        }
        let (id, path) = match text.split_once('@') {
            Some((_, "prompt" | "prompt_ask_vault_pass")) => return text,
            Some((id, path)) if key.name == "vault_id" => (Some(id.to_owned()), path.to_owned()),
            _ => (None, text),
        };
        // For `-F`, `none` means no file.
        if path == "none" {
            return path;
        }
        let path = expanded(&path.replace("{{CWD}}", "."), home, environment);
        let joined = if folder.as_os_str().is_empty() { path.into() } else { folder.join(path) };
        let shown = joined.strip_prefix("./").unwrap_or(&joined).display().to_string();
        let shown = if shown.is_empty() { ".".to_owned() } else { shown };
        match id {
            Some(id) => format!("{id}@{shown}"),
            None => shown,
        }
    };
    match value {
        Setting::Text(text) => Setting::Text(locate(text)),
        Setting::List(items) => Setting::List(items.into_iter().map(locate).collect()),
        other => other,
    }
}

/// Replaces `~`, `$NAME` and `${NAME}`; unset variables stay.
pub fn expanded(text: &str, home: Option<&Path>, environment: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut rest = match (text.strip_prefix('~'), home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            out.push_str(&home.display().to_string());
            rest
        }
        _ => text,
    };
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let (name, tail) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(braced) => braced,
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                after.split_at(end)
            }
        };
        match environment.iter().find(|(known, _)| known == name) {
            Some((_, value)) => out.push_str(value),
            None => {
                let taken = after.len() - tail.len();
                out.push('$');
                out.push_str(after.get(..taken).unwrap_or_default());
            }
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// Returns the place of a byte range in a text.
fn span(source: &std::sync::Arc<SourceFile>, range: std::ops::Range<usize>) -> Span {
    let before = source.text().get(..range.start).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let text = source.text().get(range).unwrap_or_default();
    let length = text.lines().next().unwrap_or_default().chars().count().max(1);
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    Span::new(source, number(line), number(column), number(length))
}

#[cfg(test)]
mod tests;
