//! INI inventories.
//!
//! Owns the syntax: sections, host lines, variable lines, lines of child groups. Must not know where the text comes
//! from. Invariant: a line that is not understood is an error with its place; the rest of the file is still read, so
//! that all mistakes are reported at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::address::parse_address;
use super::draft::{Draft, GroupId, UNGROUPED};
use super::literal::value_of;
use super::{range, words};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span, looks_secret};

/// Reads the file into `draft`.
pub(super) fn read(draft: &mut Draft, source: &Arc<SourceFile>) -> Result<(), Diagnostics> {
    let mut reader = Reader {
        draft,
        source,
        errors: Diagnostics::new(),
        pending: Vec::new(),
        section_vars: HashMap::new(),
        sections: HashSet::new(),
    };
    let mut section = Section { group: UNGROUPED, kind: Kind::Hosts };
    for (number, line) in (1u32..).zip(source.text().split('\n')) {
        let text = Text::new(number, line);
        if text.trimmed.is_empty() || text.trimmed.starts_with(['#', ';']) {
            continue;
        }
        if text.trimmed.starts_with('[') && !is_host_in_brackets(text.trimmed) {
            match reader.header(&text) {
                Some(next) => section = next,
                // Without a header, the lines below would only cause follow-up errors.
                None => section.kind = Kind::Unknown,
            }
            continue;
        }
        match section.kind {
            Kind::Hosts => reader.host_line(&text, section.group),
            Kind::Vars => reader.var_line(&text, section.group),
            Kind::Children => reader.child_line(&text, section.group),
            Kind::Unknown => {}
        }
    }
    reader.undeclared();
    reader.errors.into_result(())
}

/// Whether a line that begins like a section is a host, such as `[fe80::1]:22` or `[a:c].example.com`.
fn is_host_in_brackets(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    let address = first.contains("]:") && parse_address(first).is_some();
    // A line with `]` at its end or before a comment is a section such as `[gpu:vars]`, or meant to be one.
    address || (split_header(line).is_none() && !line.ends_with(']') && range::expand(first).is_ok())
}

#[derive(Clone, Copy)]
struct Section {
    group: GroupId,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hosts,
    Vars,
    Children,
    /// The header is invalid.
    Unknown,
}

/// One line without surrounding blanks.
struct Text<'a> {
    number: u32,
    trimmed: &'a str,
    /// Number of characters in front of `trimmed`.
    indent: usize,
}

impl<'a> Text<'a> {
    fn new(number: u32, line: &'a str) -> Self {
        let indent = line.chars().take_while(|c| c.is_whitespace()).count();
        Self { number, trimmed: line.trim(), indent }
    }
}

/// A group that is named but not declared yet.
struct Pending {
    name: String,
    kind: Kind,
    parents: Vec<GroupId>,
    place: Span,
}

struct Reader<'a> {
    draft: &'a mut Draft,
    source: &'a Arc<SourceFile>,
    errors: Diagnostics,
    pending: Vec<Pending>,
    /// The lines at which the current section sets variables of its group.
    section_vars: HashMap<String, u32>,
    sections: HashSet<String>,
}

impl Reader<'_> {
    fn place(&self, text: &Text<'_>, offset: usize, length: usize) -> Span {
        Span::new(self.source, text.number, 1, 0).part(text.indent + offset, length)
    }

    fn whole(&self, text: &Text<'_>) -> Span {
        self.place(text, 0, text.trimmed.chars().count())
    }

    fn header(&mut self, text: &Text<'_>) -> Option<Section> {
        let Some((name, kind)) = split_header(text.trimmed) else {
            self.errors.push(self.wrong_header(text));
            return None;
        };
        let kind = match kind {
            None | Some("hosts") => Kind::Hosts,
            Some("vars") => Kind::Vars,
            Some("children") => Kind::Children,
            Some(other) => {
                let place = self.place(text, name.chars().count() + 2, other.chars().count());
                self.errors.push(
                    Diagnostic::error(format!("unknown kind of section `{other}`"))
                        .at(&place)
                        .label("a section is `[group]`, `[group:vars]` or `[group:children]`")
                        .suggest(other, ["hosts", "vars", "children"]),
                );
                return None;
            }
        };
        self.sections.insert(name.to_owned());
        self.section_vars.clear();
        let known = self.draft.group(name).is_some();
        let waiting = self.pending.iter().position(|pending| pending.name == name);
        if !known && kind == Kind::Vars && waiting.is_none() {
            self.pending.push(Pending {
                name: name.to_owned(),
                kind: Kind::Vars,
                parents: Vec::new(),
                place: self.place(text, 1, name.chars().count()),
            });
        }
        let group = self.draft.add_group(name);
        if let (Some(waiting), true) = (waiting, kind != Kind::Vars) {
            let pending = self.pending.remove(waiting);
            for parent in pending.parents {
                self.adopt(parent, group, &pending.place);
            }
        }
        Some(Section { group, kind })
    }

    fn wrong_header(&self, text: &Text<'_>) -> Diagnostic {
        let error = Diagnostic::error("this is no section header").at(&self.whole(text));
        let inside = text.trimmed.trim_start_matches('[').split(']').next().unwrap_or_default();
        if inside.matches(':').count() > 1 && parse_address(inside).is_some() {
            return error
                .label("an IPv6 address in brackets needs a port behind it")
                .help(format!("write `{inside}` or `[{inside}]:22`"));
        }
        if inside.contains(char::is_whitespace) {
            return error
                .label("no blanks inside of the brackets")
                .help(format!("write `[{}]`", inside.split_whitespace().collect::<Vec<_>>().join("_")));
        }
        if !text.trimmed.contains(']') {
            return error.label("the closing `]` is missing");
        }
        error
            .label("a section is `[group]`, `[group:vars]` or `[group:children]`, then at most a `#` comment")
    }

    fn adopt(&mut self, parent: GroupId, child: GroupId, place: &Span) {
        if self.draft.add_child(parent, child).is_err() {
            self.errors.push(cycle(self.draft, parent, child, place));
        }
    }

    fn host_line(&mut self, text: &Text<'_>, group: GroupId) {
        let words = match words::split(text.trimmed) {
            Ok(words) => words,
            Err((error, at)) => {
                self.errors.push(Diagnostic::error(error.to_string()).at(&self.place(text, at, 1)));
                return;
            }
        };
        let Some((first, assignments)) = words.split_first() else { return };
        let place = self.place(text, first.start, first.length);
        let hosts = match hosts_of(&first.text, &place) {
            Ok(hosts) => hosts,
            Err(error) => {
                self.errors.push(*error);
                return;
            }
        };
        let mut vars: Vec<(&str, Value, Span)> = Vec::new();
        for word in assignments {
            let place = self.place(text, word.start, word.length);
            let Some((key, value)) = word.text.split_once('=') else {
                // After `password=` this may be the rest of a password that contains a blank.
                let secret = assignments
                    .iter()
                    .take_while(|other| other.start < word.start)
                    .any(|other| other.text.split_once('=').is_some_and(|(key, _)| looks_secret(key)));
                let shown = if secret { "this".to_owned() } else { format!("`{}`", word.text) };
                let mut error = Diagnostic::error(format!("{shown} is no `key=value`"))
                    .at(&place)
                    .label("behind a host name stand variables");
                if first.text.ends_with(':') || text.trimmed.starts_with("- ") {
                    error = error.help("this looks like YAML: name the file `.yaml`");
                } else if word.text.contains(':') {
                    error = error.help("an INI inventory assigns with `=`");
                } else if parse_address(&word.text).is_some() {
                    error = error.help("one host a line; quote a value that has blanks in it");
                }
                self.errors.push(error);
                continue;
            };
            if key.is_empty() {
                self.errors.push(Diagnostic::error("a variable needs a name in front of `=`").at(&place));
            } else if vars.iter().any(|(name, ..)| *name == key) {
                self.errors.push(twice(key, &place, text.number));
            } else {
                vars.push((key, value_of(value), place));
            }
        }
        for name in &hosts.names {
            let host = self.draft.add_host(name, group, hosts.port, &place);
            if let Some(host) = self.draft.hosts.get_mut(host) {
                for (key, value, place) in &vars {
                    host.vars.insert((*key).to_owned(), value.clone());
                    host.places.note(key, place);
                }
            }
        }
    }

    fn var_line(&mut self, text: &Text<'_>, group: GroupId) {
        let Some((key, value)) = text.trimmed.split_once('=') else {
            let mut error =
                Diagnostic::error("a line of a `:vars` section is `key=value`").at(&self.whole(text));
            if text.trimmed.contains(':') {
                error = error.help("an INI inventory assigns with `=`");
            }
            self.errors.push(error);
            return;
        };
        let (key, value) = (key.trim(), value.trim());
        let place = self.place(text, 0, key.chars().count());
        if key.is_empty() {
            self.errors.push(Diagnostic::error("a variable needs a name in front of `=`").at(&place));
            return;
        }
        if let Some(first) = self.section_vars.insert(key.to_owned(), text.number) {
            self.errors.push(twice(key, &place, first));
            return;
        }
        let offset = text.trimmed.find('=').unwrap_or_default();
        let offset = text.trimmed.get(..=offset).unwrap_or_default().chars().count();
        let value_place = self.place(text, offset, text.trimmed.chars().count() - offset);
        if let Err(error) = set_group_var(self.draft, group, key, value_of(value), &value_place) {
            self.errors.push(*error);
        }
    }

    fn child_line(&mut self, text: &Text<'_>, parent: GroupId) {
        let (name, rest) = match text.trimmed.find(|c: char| c.is_whitespace() || c == '#') {
            Some(at) => text.trimmed.split_at(at),
            None => (text.trimmed, ""),
        };
        let place = self.place(text, 0, name.chars().count());
        let rest = rest.trim_start();
        if name.is_empty() || name.contains([':', ']']) || !(rest.is_empty() || rest.starts_with('#')) {
            self.errors.push(
                Diagnostic::error("a line of a `:children` section is the name of one group")
                    .at(&self.whole(text)),
            );
            return;
        }
        match self.draft.group(name) {
            Some(child) => self.adopt(parent, child, &place),
            None => match self.pending.iter_mut().find(|pending| pending.name == name) {
                Some(pending) => pending.parents.push(parent),
                None => self.pending.push(Pending {
                    name: name.to_owned(),
                    kind: Kind::Children,
                    parents: vec![parent],
                    place,
                }),
            },
        }
    }

    /// Reports groups that are named but never declared.
    fn undeclared(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            let name = &pending.name;
            let known =
                self.draft.groups.iter().map(|group| group.name.as_str()).filter(|known| known != name);
            let error = if pending.kind == Kind::Vars {
                Diagnostic::error(format!("variables for the undefined group `{name}`"))
                    .label("no `[group]` or `[group:children]` section of this name")
            } else {
                Diagnostic::error(format!("undefined group `{name}`"))
                    .label("named as a child, but no section of this name exists")
            };
            let error = error.at(&pending.place);
            let error = match crate::diagnostic::did_you_mean(name, known) {
                Some(help) => error.help(help),
                None => error.help(format!("add a section `[{name}]`, or remove this line")),
            };
            self.errors.push(error);
        }
    }
}

fn twice(key: &str, place: &Span, first: u32) -> Diagnostic {
    Diagnostic::error(format!("the variable `{key}` is set twice"))
        .at(place)
        .label(format!("first on line {first}"))
        .help("remove one of the two: only one of them could count")
}

/// Splits `[name]` and `[name:kind]`, which a comment may follow.
fn split_header(line: &str) -> Option<(&str, Option<&str>)> {
    let (inside, behind) = line.strip_prefix('[')?.split_once(']')?;
    let behind = behind.trim_start();
    if !(behind.is_empty() || behind.starts_with('#')) {
        return None;
    }
    let (name, kind) = match inside.split_once(':') {
        Some((name, kind)) => (name, Some(kind)),
        None => (inside, None),
    };
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let good_kind = kind.is_none_or(|kind| !kind.is_empty() && kind.chars().all(word));
    (!name.is_empty() && !name.contains(char::is_whitespace) && good_kind).then_some((name, kind))
}

/// The host names that one host pattern of an inventory expands to.
pub(super) struct Hosts {
    pub names: Vec<String>,
    pub port: Option<u32>,
}

/// Reads the host part of a host line, or a key under `hosts:`.
pub(super) fn hosts_of(text: &str, place: &Span) -> Result<Hosts, Box<Diagnostic>> {
    let (pattern, port) = match parse_address(text) {
        Some(address) => (address.host, address.port),
        None => (text, None),
    };
    if let Some(port) = port
        && port > 65535
    {
        return Err(Box::new(Diagnostic::error(format!("{port} is no port")).at(place).label("1 to 65535")));
    }
    if pattern.trim().is_empty() {
        return Err(Box::new(Diagnostic::error("a host needs a name").at(place)));
    }
    if pattern.trim() == "---" {
        return Err(Box::new(
            Diagnostic::error("`---` is no host")
                .at(place)
                .label("it begins a YAML document")
                .help("name the file `.yaml`"),
        ));
    }
    if port.is_none() && text.trim_end().ends_with(':') {
        return Err(Box::new(
            Diagnostic::error(format!("`{text}` ends with `:`, which stands in front of a port"))
                .at(place)
                .help("remove the `:`, or name the file `.yaml` if this is YAML"),
        ));
    }
    match range::expand(pattern) {
        Ok(names) => Ok(Hosts { names, port }),
        Err((error, offset, length)) => {
            // The brackets around an address are not part of the pattern.
            let shift = text.find(pattern).map_or(0, |at| text[..at].chars().count());
            let exact = place.length as usize == text.chars().count();
            let place = if exact { place.part(offset + shift, length) } else { place.clone() };
            let mut diagnostic = Diagnostic::error(error.to_string()).at(&place);
            if error == range::RangeError::Shape {
                diagnostic = diagnostic.help("for example `gpu[001:128]` or `rack[a:f]`");
            }
            Err(Box::new(diagnostic))
        }
    }
}

/// Sets a variable of a group. `ansible_group_priority` sets a property of the group instead.
pub(super) fn set_group_var(
    draft: &mut Draft,
    group: GroupId,
    key: &str,
    value: Value,
    place: &Span,
) -> Result<(), Box<Diagnostic>> {
    let Some(group) = draft.groups.get_mut(group) else { return Ok(()) };
    if key == "ansible_group_priority" {
        let priority = match &value {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "Python's int() cuts as well, and takes no infinity"
            )]
            Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|value| value as i64)),
            Value::String(text) => text.trim().parse().ok(),
            Value::Bool(value) => Some(i64::from(*value)),
            _ => None,
        };
        let Some(priority) = priority else {
            return Err(Box::new(
                Diagnostic::error("`ansible_group_priority` wants a whole number")
                    .at(place)
                    .note(format!("got {value}")),
            ));
        };
        group.priority = priority;
    } else {
        group.vars.insert(key.to_owned(), value);
        group.places.note(key, place);
    }
    Ok(())
}

/// Returns the error for a group that would be below itself.
pub(super) fn cycle(draft: &Draft, parent: GroupId, child: GroupId, place: &Span) -> Diagnostic {
    let name = |id: GroupId| draft.groups.get(id).map_or("", |group| group.name.as_str());
    let (parent_name, child_name) = (name(parent), name(child));
    let message = if parent == child {
        format!("the group `{child_name}` cannot be its own child")
    } else if child_name == "all" {
        "`all` is above every group and cannot be a child".to_owned()
    } else {
        format!("the group `{child_name}` cannot be a child of `{parent_name}`: that is a loop")
    };
    let mut error = Diagnostic::error(message).at(place);
    if parent != child && child_name != "all" {
        let mut way = vec![parent];
        while let Some(&last) = way.last()
            && last != child
        {
            let parents = draft.groups.get(last).map(|group| group.parents.as_slice()).unwrap_or_default();
            match parents.iter().find(|id| **id == child || draft.ancestors(**id).contains(&child)) {
                Some(&next) => way.push(next),
                None => break,
            }
        }
        way.reverse();
        let way: Vec<&str> = way.into_iter().map(name).collect();
        error = error.label(format!("already: {}", way.join(" > "))).help("remove one of these relations");
    }
    error
}
