//! The parameters of a task, as a mapping or as text.

use std::sync::Arc;

use gpufleet_protocol::tasks::{
    Assert, Command, Debug, IncludeRole, IncludeTasks, KindInfo, Raw, Reboot, Script, Shell,
};

use super::task::Inherited;
use super::values::part;
use super::{Parser, words};
use crate::diagnostic::{Diagnostic, Span};
use crate::playbook::params::{ParamProblem, check_one, check_part, whole};
use crate::playbook::program::{Parameter, Parameters};
use crate::template::Value;
use crate::yaml::{Node, Value as Yaml};

/// How a parameter is read.
enum Meaning {
    /// A value, which may be a template.
    Plain,
    /// Expressions that are evaluated, not rendered.
    Conditions,
    /// One such expression.
    Expression,
    /// Keys of tasks, which are read with the task.
    Keys,
}

impl Meaning {
    fn of(kind: &KindInfo, parameter: &str) -> Self {
        match parameter {
            "that" if kind.is::<Assert>() => Self::Conditions,
            "var" if kind.is::<Debug>() => Self::Expression,
            "apply" if kind.is::<IncludeTasks>() || kind.is::<IncludeRole>() => Self::Keys,
            _ => Self::Plain,
        }
    }
}

/// The parameters of a task as they are written.
#[derive(Clone, Copy)]
struct Written<'a> {
    kind_span: &'a Span,
    entries: &'a [Parameter],
    /// The mappings that they stand in, if they do.
    nodes: [Option<&'a Node>; 2],
    secret: bool,
}

impl<'a> Written<'a> {
    /// Returns the place of what is wrong.
    fn place(self, problem: &ParamProblem) -> &'a Span {
        let Some(name) = &problem.parameter else { return self.kind_span };
        let Some(entry) = self.entries.iter().find(|entry| *entry.name == **name) else {
            return self.kind_span;
        };
        if problem.name_is_wrong {
            return &entry.key_span;
        }
        let value =
            self.nodes.into_iter().flatten().find_map(|node| node.entry(name)).map(|(_, value)| value);
        let Some(inside) = &problem.inside else { return &entry.span };
        let mut found: Option<(&Node, &Node)> = None;
        for key in &inside.keys {
            let Some(next) = found.map(|(_, value)| value).or(value).and_then(|node| node.entry(key)) else {
                return &entry.span;
            };
            found = Some(next);
        }
        match found {
            Some((key, _)) if inside.key_is_wrong => &key.span,
            Some((_, value)) => &value.span,
            None => &entry.span,
        }
    }
}

impl Parser<'_> {
    pub(super) fn parameters(
        &mut self,
        kind: &'static KindInfo,
        kind_span: &Span,
        node: &Node,
        args: Option<&Node>,
        own: &Inherited,
    ) -> Parameters {
        let mut entries: Vec<Parameter> = Vec::new();
        let before = self.errors.0.len();
        if let Some(args) = args {
            match args.as_map() {
                Some(_) => self.parameter_map(kind, args, &mut entries),
                None if args.is_null() => {}
                None => self.error(args.wrong_type("`args`", "a mapping")),
            }
        }
        let mut written = Vec::new();
        match &node.value {
            Yaml::Map(_) => self.parameter_map(kind, node, &mut written),
            Yaml::Null => {}
            Yaml::Str(text) => self.parameter_text(kind, node, &text.text, &mut written),
            Yaml::Bool(_) | Yaml::Int(_) | Yaml::Float(_) if kind.free_form.is_some() => {
                let text = node.scalar_text().unwrap_or_default();
                self.parameter_text(kind, node, &text, &mut written);
            }
            _ => self.error(
                node.wrong_type(&format!("`{}`", kind.name), "a mapping of parameters")
                    .help(format!("for example `{}`", kind.example)),
            ),
        }
        entries.retain(|entry| !written.iter().any(|written| written.name == entry.name));
        entries.append(&mut written);
        if self.errors.0.len() > before {
            return Parameters { entries, fixed: None };
        }
        for (name, value) in
            own.defaults.iter().rev().filter(|(of, _)| of.name == kind.name).flat_map(|(_, d)| d.iter())
        {
            if !entries.iter().any(|entry| entry.name == *name) {
                entries.push(Parameter {
                    name: Arc::clone(name),
                    value: value.clone(),
                    key_span: kind_span.clone(),
                    span: kind_span.clone(),
                });
            }
        }
        let says_how_long = |entry: &Parameter| matches!(&*entry.name, "timeout" | "reboot_timeout");
        if let Some(seconds) = own.reboot_timeout_s.filter(|_| kind.is::<Reboot>())
            && !entries.iter().any(says_how_long)
        {
            entries.push(Parameter {
                name: Arc::from("timeout"),
                value: Value::literal(&seconds.into()),
                key_span: kind_span.clone(),
                span: kind_span.clone(),
            });
        }
        let nodes = [Some(node), args];
        let fixed =
            self.check_parameters(kind, Written { kind_span, entries: &entries, nodes, secret: own.no_log });
        Parameters { entries, fixed }
    }

    fn parameter_map(&mut self, kind: &KindInfo, node: &Node, entries: &mut Vec<Parameter>) {
        for (key, value) in node.as_map().unwrap_or_default() {
            let name = key.key_text();
            let parsed = match Meaning::of(kind, &name) {
                Meaning::Keys => continue,
                Meaning::Conditions => self.assertions(value),
                Meaning::Expression => {
                    if let Some(text) = value.as_str() {
                        self.expression(value, text);
                    }
                    Value::literal(&value.to_json())
                }
                Meaning::Plain => self.value(value),
            };
            entries.push(Parameter {
                name: Arc::from(name),
                value: parsed,
                key_span: key.span.clone(),
                span: value.span.clone(),
            });
        }
    }

    /// Parses `that` of `assert`, whose expressions are evaluated and not rendered.
    fn assertions(&mut self, node: &Node) -> Value {
        let conditions = self.conditions("that", node);
        Value::list(conditions.into_iter().map(|condition| Value::Str(condition.text)).collect())
    }

    /// Parses `kind: text`: `key=value` words, free text, or both.
    fn parameter_text(&mut self, kind: &KindInfo, node: &Node, text: &str, entries: &mut Vec<Parameter>) {
        let runs = kind.is::<Command>() || kind.is::<Shell>() || kind.is::<Script>();
        let known = |key: &str| {
            if runs {
                return matches!(
                    key,
                    "creates" | "removes" | "chdir" | "executable" | "stdin" | "argv" | "cmd"
                );
            }
            kind.open_keys || kind.has(key)
        };
        // Shell text may have comments and here-documents with single quotes.
        if !(kind.is::<Shell>() || kind.is::<Raw>())
            && let Some(at) = words::open_quote(text)
        {
            let error = Diagnostic::error("a quote is opened and never closed")
                .at(&part(node, at..at + 1))
                .help(format!("close it, or write the parameters as a mapping: `{}`", kind.example));
            return self.error(error);
        }
        let mut free = String::new();
        let mut copied = 0;
        let all = words::split(text);
        let pairs: Vec<_> = all
            .iter()
            .filter_map(|(at, word)| Some((*at, *word, words::pair(word)?)))
            .filter(|(_, _, (key, _))| known(key))
            .collect();
        for (at, word, (key, value)) in &pairs {
            free.push_str(text.get(copied..*at).unwrap_or_default());
            copied = at + word.len();
            let span = part(node, at + key.len() + 1..at + word.len());
            let inner =
                Node { value: Yaml::Str(crate::yaml::Str { text: value.clone(), plain: true }), span };
            let value = match Meaning::of(kind, key) {
                Meaning::Conditions => self.assertions(&inner),
                Meaning::Expression => {
                    self.expression(&inner, value);
                    Value::str(value)
                }
                Meaning::Keys | Meaning::Plain => self.value(&inner),
            };
            entries.push(Parameter {
                name: Arc::from(*key),
                value,
                key_span: part(node, *at..at + key.len()),
                span: inner.span.clone(),
            });
        }
        free.push_str(text.get(copied..).unwrap_or_default());
        let free = free.trim();
        if free.is_empty() {
            return;
        }
        match kind.free_form {
            Some(name) if !runs && entries.iter().any(|entry| *entry.name == *name) => {
                self.error(
                    Diagnostic::error(format!("`{}` has `{name}` twice", kind.name))
                        .at(&node.span)
                        .label(format!("as `{name}=…`, and as the text `{free}`"))
                        .help(format!(
                            "put quotes around the value: `{name}='…'`, or write a mapping: `{}`",
                            kind.example
                        )),
                );
            }
            Some(name) => {
                let inner = Node {
                    value: Yaml::Str(crate::yaml::Str { text: free.to_owned(), plain: plain(node) }),
                    span: node.span.clone(),
                };
                let value = self.value(&inner);
                entries.push(Parameter {
                    name: Arc::from(name),
                    value,
                    key_span: node.span.clone(),
                    span: node.span.clone(),
                });
            }
            None => {
                let example = format!("for example `{}`", kind.example);
                let mut error =
                    Diagnostic::error(format!("`{}` wants a mapping of parameters, got text", kind.name))
                        .at(&node.span);
                let mut near = None;
                if let Some((at, word)) =
                    all.iter().find(|(_, word)| words::pair(word).is_some_and(|(key, _)| !known(key)))
                    && let Some((key, _)) = words::pair(word)
                {
                    error = Diagnostic::error(format!("`{}` has no parameter `{key}`", kind.name))
                        .at(&part(node, *at..at + key.len()));
                    near = check_one(kind, key, &serde_json::Value::Null).and_then(|problem| problem.help);
                }
                self.error(error.help(near.unwrap_or(example)));
            }
        }
    }

    /// Checks literal parameters against the kind; those with templates are checked during the run.
    fn check_parameters(
        &mut self,
        kind: &'static KindInfo,
        written: Written<'_>,
    ) -> Option<Arc<gpufleet_protocol::tasks::Params>> {
        let mut values = serde_json::Map::new();
        let mut complete = true;
        let mut wrong = false;
        for entry in written.entries {
            if crate::template::is_template(&entry.name) {
                complete = false;
                continue;
            }
            let json = if entry.value.is_settled() {
                entry.value.to_json()
            } else {
                complete = false;
                // The name can be checked even if the value is not known yet.
                if let Some(problem) = check_one(kind, &entry.name, &serde_json::Value::Null)
                    && problem.name_is_wrong
                {
                    wrong = true;
                    self.parameter_problem(&problem, written);
                } else if let Some(problem) = check_part(kind, &entry.name, &entry.value) {
                    wrong = true;
                    self.parameter_problem(&problem, written);
                }
                continue;
            };
            if let Some(problem) = check_one(kind, &entry.name, &json) {
                wrong = true;
                self.parameter_problem(&problem, written);
            }
            values.insert(entry.name.to_string(), json);
        }
        if wrong || !complete {
            if !wrong {
                self.missing_parameters(kind, written, values);
            }
            return None;
        }
        match kind.parse(serde_json::Value::Object(values)) {
            Ok(params) => Some(Arc::new(params)),
            Err(error) => {
                self.parameter_problem(&whole(kind, error), written);
                None
            }
        }
    }

    /// Reports required parameters that are not written, whatever the values of the others are.
    fn missing_parameters(
        &mut self,
        kind: &'static KindInfo,
        written: Written<'_>,
        values: serde_json::Map<String, serde_json::Value>,
    ) {
        if let Err(error) = kind.parse(serde_json::Value::Object(values)) {
            let problem = whole(kind, error);
            // An alias may stand for the missing parameter; the run decides.
            let aliased = written.entries.iter().any(|entry| !entry.value.is_settled());
            let given = |name: &str| written.entries.iter().any(|entry| *entry.name == *name);
            if problem.missing.is_some_and(|name| !given(name)) && !aliased {
                self.parameter_problem(&problem, Written { secret: false, ..written });
            }
        }
    }

    fn parameter_problem(&mut self, problem: &ParamProblem, written: Written<'_>) {
        let secret = written.secret;
        let message = problem.told(secret && !problem.name_is_wrong);
        let mut error = Diagnostic::error(message).at(written.place(problem));
        if let Some(help) = &problem.help {
            error = error.help(help);
        }
        if secret {
            error = error.without_excerpt();
        }
        self.error(error);
    }
}

fn plain(node: &Node) -> bool {
    matches!(&node.value, Yaml::Str(text) if text.plain)
}
