//! Reads the file of a baseline, with the places of its mistakes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_language::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};
use gpufleet_language::yaml::{self, Node};
use gpufleet_protocol::glob::Glob;
use gpufleet_protocol::tasks::{Form, OwnReading};
use serde_json::Value;

use super::{GroupHint, built_in, unknown};
use crate::catalogue::Catalogue;
use crate::declared;
use crate::places;
use crate::policy::{GroupPolicy, OwnCheck, Params, fail, investigate};
use crate::verdict::{Action, Severity, Verdict};
use crate::vocabulary::Kind;

/// One file, read.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub name: Option<String>,
    pub extends: Vec<String>,
    pub checks: BTreeSet<String>,
    pub without: BTreeSet<String>,
    pub require: BTreeSet<String>,
    pub params: Params,
    pub declared: BTreeMap<String, Value>,
    pub min_coverage: Option<f64>,
    pub warn_is_red: Option<bool>,
    pub groups: Vec<GroupPolicy>,
    pub own_checks: Vec<OwnCheck>,
    /// Checks that are named one by one, with their places.
    pub named: Vec<(String, Span)>,
    pub warnings: Diagnostics,
}

const KEYS: [&str; 11] = [
    "name",
    "extends",
    "checks",
    "without",
    "params",
    "declared",
    "require",
    "min_coverage",
    "warn_is_red",
    "groups",
    "own_checks",
];
const GROUP_KEYS: [&str; 4] = ["params", "declared", "checks", "without"];
const OWN_KEYS: [&str; 9] =
    ["id", "title", "severity", "read", "when", "verdict", "action", "why", "remediation"];
const READ_KEYS: [&str; 4] = ["file", "command", "as", "timeout_s"];

/// Reads a file.
///
/// # Errors
/// All its mistakes.
pub(super) fn layer(
    source: &Arc<SourceFile>,
    hint: &dyn Fn(&str) -> GroupHint,
) -> Result<Layer, Diagnostics> {
    let root = yaml::parse_source(source)?;
    root.expect_map("a baseline")?;
    let mut reader = Reader {
        errors: root.refuse_unknown_keys("a baseline", &KEYS),
        own: BTreeSet::new(),
        layer: Layer::default(),
    };
    reader.own_checks(root.get("own_checks"));
    reader.header(&root);
    let (checks, without) = (root.get("checks"), root.get("without"));
    reader.layer.checks = reader.ids(checks, "`checks`", true);
    reader.layer.without = reader.ids(without, "`without`", false);
    reader.layer.require = reader.ids(root.get("require"), "`require`", true);
    reader.layer.params = reader.params(root.get("params"));
    reader.layer.declared = reader.declared(root.get("declared"));
    reader.groups(root.get("groups"), hint);
    let Reader { errors, layer, .. } = reader;
    errors.into_result(layer)
}

struct Reader {
    errors: Diagnostics,
    /// The checks of this file, by id.
    own: BTreeSet<String>,
    layer: Layer,
}

impl Reader {
    fn header(&mut self, root: &Node) {
        if let Some(node) = root.get("name") {
            self.layer.name = self.errors.absorb(node.expect_str("`name`")).map(str::to_owned);
        }
        if let Some(node) = root.get("extends") {
            let names: Vec<&Node> = match node.as_seq() {
                Some(items) => items.iter().collect(),
                None => vec![node],
            };
            for node in names {
                let Some(name) = self.errors.absorb(node.expect_str("`extends`")) else { continue };
                if built_in().any(|(known, _)| known == name) {
                    self.layer.extends.push(name.to_owned());
                } else {
                    self.errors.push(unknown(name).at(&node.span));
                }
            }
        }
        if let Some(node) = root.get("min_coverage") {
            match node.as_f64().filter(|share| (0.0..=1.0).contains(share)) {
                Some(share) => self.layer.min_coverage = Some(share),
                None => self
                    .errors
                    .push(Diagnostic::error("`min_coverage` wants a number from 0 to 1").at(&node.span)),
            }
        }
        if let Some(node) = root.get("warn_is_red") {
            self.layer.warn_is_red = self.errors.absorb(node.expect_bool("`warn_is_red`"));
        }
    }

    fn is_check(&self, id: &str) -> bool {
        self.own.contains(id) || Catalogue::get().check(id).is_some()
    }

    /// All ids that can be named here.
    fn known(&self) -> impl Iterator<Item = &str> {
        Catalogue::get().ids().iter().chain(&self.own).map(String::as_str)
    }

    fn unknown_check(&self, id: &str, node: &Node) -> Diagnostic {
        Diagnostic::error(format!("there is no check `{id}`")).at(&node.span).suggest(id, self.known())
    }

    /// Reads a list of ids and globs; `asks` tells whether their checks are asked for.
    fn ids(&mut self, node: Option<&Node>, what: &str, asks: bool) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let Some(items) = node.and_then(|node| self.errors.absorb(node.expect_seq(what))) else {
            return found;
        };
        for item in items {
            let Some(text) = self.errors.absorb(item.expect_str("the id of a check")) else { continue };
            if Glob::is_glob(text) {
                let glob = Glob::new(text);
                let matching: Vec<String> =
                    self.known().filter(|id| glob.matches(id)).map(str::to_owned).collect();
                if matching.is_empty() {
                    self.errors.push(
                        Diagnostic::error(format!("no check matches `{text}`")).at(&item.span).help(format!(
                            "groups of checks are {}",
                            Catalogue::groups().map(|(group, _)| group).collect::<Vec<_>>().join(", ")
                        )),
                    );
                }
                found.extend(matching);
            } else if self.is_check(text) {
                if asks {
                    self.layer.named.push((text.to_owned(), item.span.clone()));
                }
                found.insert(text.to_owned());
            } else {
                let error = self.unknown_check(text, item);
                self.errors.push(error);
            }
        }
        found
    }

    fn params(&mut self, node: Option<&Node>) -> Params {
        let mut params = Params::new();
        let Some(entries) = node.and_then(|node| self.errors.absorb(node.expect_map("`params`"))) else {
            return params;
        };
        for (key, values) in entries {
            let id = key.key_text();
            let Some(check) = Catalogue::get().check(&id) else {
                let error = match self.own.contains(&id) {
                    true => {
                        Diagnostic::error(format!("the own check `{id}` has no parameters")).at(&key.span)
                    }
                    false => self.unknown_check(&id, key),
                };
                self.errors.push(error);
                continue;
            };
            let what = format!("the parameters of `{id}`");
            let Some(values) = self.errors.absorb(values.expect_map(&what)) else { continue };
            for (name_node, value) in values {
                let name = name_node.key_text();
                let Some(default) = check.params.get(&name) else {
                    let error = Diagnostic::error(format!("the check `{id}` has no parameter `{name}`"))
                        .at(&name_node.span)
                        .suggest(&name, check.params.keys().map(String::as_str));
                    let known: Vec<&str> = check.params.keys().map(String::as_str).collect();
                    self.errors.push(match known.as_slice() {
                        [] => error.help("it has no parameters at all"),
                        known => error.help(format!("its parameters are {}", known.join(", "))),
                    });
                    continue;
                };
                let json = value.to_json();
                let is_verdict = default.as_str().is_some_and(|word| Verdict::of_word(word).is_some());
                if !Kind::of(default).takes(&json) {
                    let wanted = Kind::of(default).article();
                    self.errors.push(value.wrong_type(&format!("`{name}` of `{id}`"), wanted));
                } else if is_verdict && json.as_str().and_then(Verdict::of_word).is_none() {
                    let words: Vec<&str> = Verdict::ALL.iter().map(|verdict| verdict.word()).collect();
                    let text = json.as_str().unwrap_or_default();
                    self.errors.push(
                        Diagnostic::error(format!("`{text}` is not a verdict"))
                            .at(&value.span)
                            .help(format!("verdicts are {}", words.join(", ")))
                            .suggest(text, words),
                    );
                } else {
                    params.entry(id.clone()).or_default().insert(name, json);
                }
            }
        }
        params
    }

    fn declared(&mut self, node: Option<&Node>) -> BTreeMap<String, Value> {
        let mut values = BTreeMap::new();
        let Some(entries) = node.and_then(|node| self.errors.absorb(node.expect_map("`declared`"))) else {
            return values;
        };
        for (key, value) in entries {
            let name = key.key_text();
            let Some(known) = declared::lookup(&name) else {
                self.errors.push(
                    Diagnostic::error(format!("nothing can be declared as `{name}`"))
                        .at(&key.span)
                        .suggest(&name, declared::names()),
                );
                continue;
            };
            let json = value.to_json();
            // A single value is a list of one.
            let json = match (known.kind, json) {
                (Kind::List, one @ (Value::String(_) | Value::Number(_))) => Value::Array(vec![one]),
                // Versions look like numbers: `driver_version: 580`.
                (Kind::Text, Value::Number(number)) => Value::String(number.to_string()),
                (_, other) => other,
            };
            if json.is_null() || known.kind.takes(&json) {
                values.insert(name, json);
            } else {
                let wanted = known.kind.article();
                let error = value.wrong_type(&format!("`declared.{name}`"), wanted).note(known.meaning);
                self.errors.push(error);
            }
        }
        values
    }

    fn groups(&mut self, node: Option<&Node>, hint: &dyn Fn(&str) -> GroupHint) {
        let Some(entries) = node.and_then(|node| self.errors.absorb(node.expect_map("`groups`"))) else {
            return;
        };
        for (key, value) in entries {
            let group = key.key_text();
            if let GroupHint::Unknown(meant) = hint(&group) {
                let warning = Diagnostic::warning(format!("the inventory has no group or host `{group}`"))
                    .at(&key.span);
                self.layer.warnings.push(match meant {
                    Some(meant) => warning.help(format!("did you mean `{meant}`?")),
                    None => warning,
                });
            }
            if self.errors.absorb(value.expect_map("a group")).is_none() {
                continue;
            }
            self.errors.append(value.refuse_unknown_keys("a group of a baseline", &GROUP_KEYS));
            let entry = GroupPolicy {
                group,
                checks: self.ids(value.get("checks"), "`checks`", true),
                without: self.ids(value.get("without"), "`without`", false),
                params: self.params(value.get("params")),
                declared: self.declared(value.get("declared")),
            };
            self.layer.groups.push(entry);
        }
    }

    fn own_checks(&mut self, node: Option<&Node>) {
        let Some(items) = node.and_then(|node| self.errors.absorb(node.expect_seq("`own_checks`"))) else {
            return;
        };
        for item in items {
            if self.errors.absorb(item.expect_map("an own check")).is_none() {
                continue;
            }
            self.errors.append(item.refuse_unknown_keys("an own check", &OWN_KEYS));
            if let Some(own) = self.own_check(item) {
                self.own.insert(own.id.clone());
                self.layer.own_checks.push(own);
            }
        }
    }

    fn own_check(&mut self, item: &Node) -> Option<OwnCheck> {
        let id = places::text(item, "id", "an own check", &mut self.errors);
        let title = places::text(item, "title", "an own check", &mut self.errors);
        let when = places::text(item, "when", "an own check", &mut self.errors);
        let severity = places::word(item, "severity", Severity::ALL, Severity::word, &mut self.errors);
        let verdict = places::word(item, "verdict", Verdict::ALL, Verdict::word, &mut self.errors);
        let action = places::word(item, "action", Action::ALL, Action::word, &mut self.errors);
        let (id, title, when) = (id?, title?, when?);
        if item.get("severity").is_none() {
            self.errors.push(Diagnostic::error("an own check needs `severity`").at(&item.span));
        }
        let id_node = item.get("id")?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.');
        if !id.chars().all(plain) || !id.contains('.') || id.starts_with('.') || id.ends_with('.') {
            self.errors.push(
                Diagnostic::error(format!("`{id}` cannot be the id of a check"))
                    .at(&id_node.span)
                    .help("an id is a group and a name in small letters: `site.numactl`"),
            );
            return None;
        }
        if self.is_check(&id) {
            self.errors.push(Diagnostic::error(format!("there is a check `{id}` already")).at(&id_node.span));
            return None;
        }
        let optional = |key: &str, errors: &mut Diagnostics| match item.get(key) {
            Some(node) => errors.absorb(node.expect_str(&format!("`{key}`"))).unwrap_or_default().to_owned(),
            None => String::new(),
        };
        let read = match item.get("read") {
            Some(node) => Some(self.own_reading(&id, node)?),
            None => None,
        };
        let own = OwnCheck {
            read,
            id,
            title,
            severity: severity?,
            when,
            verdict: verdict.unwrap_or_else(fail),
            action: action.unwrap_or_else(investigate),
            why: optional("why", &mut self.errors),
            remediation: optional("remediation", &mut self.errors),
        };
        if let Err(error) = own.compile() {
            let node = item.get("when")?;
            self.errors.push(places::in_rule(node, &error));
            return None;
        }
        Some(own)
    }

    /// Reads what an own check reads of the node.
    fn own_reading(&mut self, id: &str, node: &Node) -> Option<OwnReading> {
        self.errors.absorb(node.expect_map("`read`"))?;
        self.errors.append(node.refuse_unknown_keys("`read`", &READ_KEYS));
        let mut read = OwnReading { id: id.to_owned(), ..OwnReading::default() };
        if let Some(file) = node.get("file") {
            read.file = Some(self.errors.absorb(file.expect_str("`file`"))?.to_owned());
        }
        if let Some(command) = node.get("command") {
            for word in self.errors.absorb(command.expect_seq("`command`"))? {
                read.command.push(self.errors.absorb(word.expect_str("a word of `command`"))?.to_owned());
            }
        }
        if let Some(form) = places::word(node, "as", &Form::ALL, Form::word, &mut self.errors) {
            read.form = form;
        }
        if let Some(limit) = node.get("timeout_s") {
            let seconds = self.errors.absorb(limit.expect_i64("`timeout_s`"))?;
            // One that does not fit becomes 0, which is out of bounds too.
            read.timeout_s = u32::try_from(seconds).unwrap_or_default();
        }
        match read.check() {
            Ok(()) => Some(read),
            Err(why) => {
                self.errors.push(Diagnostic::error(why).at(&node.span));
                None
            }
        }
    }
}
