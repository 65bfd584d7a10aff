//! Parses values of keys: typed, templated, conditions.

use std::ops::Range;
use std::sync::Arc;

use gpufleet_protocol::lenient::parse_seconds;
use secrecy::ExposeSecret as _;

use super::{Inherited, Parser};
use crate::diagnostic::{Diagnostic, Span};
use crate::playbook::names::{Definition, Reference};
use crate::playbook::program::{Amount, Condition, Flag, Wave};
use crate::template::{
    Dict, References, Scope, TemplateError, Truth, Value, inspect_expression, inspect_template, is_template,
    position_of, render,
};
use crate::yaml::{Node, Value as Yaml};

/// Returns the place of a byte range of a string's text; the whole string if it is written differently in the file.
pub(super) fn part(node: &Node, range: Range<usize>) -> Span {
    let Yaml::Str(text) = &node.value else { return node.span.clone() };
    let wanted = text.text.get(range.clone()).unwrap_or_default();
    let offset = text.text.get(..range.start).unwrap_or_default().chars().count() + usize::from(!text.plain);
    let length = wanted.chars().count();
    let span = node.span.part(offset, length);
    let line = span.source.line(span.line).unwrap_or_default();
    let found: String = line.chars().skip(span.column.saturating_sub(1) as usize).take(length).collect();
    if found == wanted && length > 0 { span } else { node.span.clone() }
}

impl Parser<'_> {
    /// Parses any value, checks its templates and records the variables that they use.
    pub(super) fn value(&mut self, node: &Node) -> Value {
        match &node.value {
            Yaml::Str(text) if is_template(&text.text) => {
                match inspect_template(&text.text) {
                    Ok(found) => self.note(node, &text.text, found),
                    Err(error) => self.template_error(node, &error),
                }
                Value::text(&text.text)
            }
            Yaml::Seq(items) => Value::list(items.iter().map(|item| self.value(item)).collect()),
            Yaml::Map(_) => Value::Map(Arc::new(self.dict(node))),
            Yaml::Tagged { tag, node: inner } => {
                if tag.starts_with("!vault") {
                    let opened = self.keyring.open_node(inner);
                    return match self.errors.absorb(opened) {
                        Some(text) => Value::text(text.expose_secret()).sealed(),
                        None => Value::Null,
                    };
                }
                Value::literal(&inner.to_json())
            }
            _ => Value::literal(&node.to_json()),
        }
    }

    pub(super) fn dict(&mut self, node: &Node) -> Dict {
        let mut dict = Dict::default();
        for (key, value) in node.as_map().unwrap_or_default() {
            dict.insert(key.key_text(), self.value(value));
        }
        dict
    }

    fn note(&mut self, node: &Node, text: &str, found: References) {
        for name in found.names {
            let at = position_of(text, &name).unwrap_or(0);
            let guarded = found.guarded.contains(&name);
            let span = part(node, at..at + name.len());
            self.references.push(Reference {
                name,
                span,
                guarded,
                doubtful: false,
                local: false,
                within: None,
            });
        }
    }

    fn template_error(&mut self, node: &Node, error: &TemplateError) {
        let span = match error.range() {
            Some(range) => part(node, range),
            None => node.span.clone(),
        };
        let mut diagnostic = Diagnostic::error(error.message()).at(&span);
        if let Some(name) = error.suggestion() {
            diagnostic = diagnostic.help(format!("did you mean `{name}`?"));
        } else if let Some(help) = node.as_str().and_then(|text| template_help(text, error)) {
            diagnostic = diagnostic.help(help);
        }
        self.error(diagnostic);
    }

    /// Parses `vars`: names and values.
    pub(super) fn vars(&mut self, node: &Node) -> Arc<Dict> {
        for (key, _) in node.as_map().unwrap_or_default() {
            let name = key.key_text();
            if !is_variable_name(&name) {
                self.error(
                    Diagnostic::error(format!("`{name}` is not the name of a variable"))
                        .at(&key.span)
                        .help(name_help(&name)),
                );
            }
        }
        self.vars_of_file(node)
    }

    /// Parses variables of a file, which may have any name, as in Ansible: `vars['a-b']` reads them.
    pub(super) fn vars_of_file(&mut self, node: &Node) -> Arc<Dict> {
        if node.is_null() {
            return Arc::default();
        }
        let Some(entries) = node.as_map() else {
            let error = node.wrong_type("`vars`", "a mapping of names to values");
            self.error(match node.as_seq() {
                Some(_) => error.help("leave out the `- ` in front of the names"),
                None => error,
            });
            return Arc::default();
        };
        let mut dict = Dict::default();
        for (key, value) in entries {
            let name = key.key_text();
            let value = self.definition(&name, &key.span, value);
            dict.insert(name, value);
        }
        Arc::new(dict)
    }

    /// Parses the value of a variable. The variables in it count where it is used.
    pub(super) fn definition(&mut self, name: &str, span: &Span, value: &Node) -> Value {
        let before = self.references.len();
        let value = self.value(value);
        let definition = Arc::new(Definition { name: name.to_owned(), span: span.clone() });
        let asked = self.references.get_mut(before..).unwrap_or_default();
        if asked.is_empty() {
            self.settled_names.insert(name.to_owned());
        }
        for reference in asked {
            reference.within = Some(Arc::clone(&definition));
        }
        value
    }

    /// Parses one expression.
    pub(super) fn expression(&mut self, node: &Node, text: &str) {
        match inspect_expression(text) {
            Ok(found) => self.note(node, text, found),
            Err(error) => self.template_error(node, &error),
        }
    }

    /// Parses `when` and similar keys: text, a boolean, or a list of them.
    pub(super) fn conditions(&mut self, key: &str, node: &Node) -> Vec<Condition> {
        let items = node.as_seq().unwrap_or(std::slice::from_ref(node));
        let mut conditions = Vec::new();
        for item in items {
            let text: Arc<str> = match &item.value {
                Yaml::Bool(value) => Arc::from(if *value { "true" } else { "false" }),
                Yaml::Str(text) if text.text.trim().is_empty() => {
                    self.error(Diagnostic::error(format!("`{key}` is empty")).at(&item.span));
                    continue;
                }
                Yaml::Str(text) => {
                    self.expression(item, &text.text);
                    Arc::from(text.text.trim())
                }
                _ => {
                    self.error(
                        item.wrong_type(&format!("`{key}`"), "an expression, a boolean or a list of them"),
                    );
                    continue;
                }
            };
            conditions.push(Condition { text, span: item.span.clone() });
        }
        conditions
    }

    /// Reports a value that is neither yes nor no.
    fn no_flag(&mut self, key: &str, node: &Node) {
        let error = node.wrong_type(&format!("`{key}`"), "true or false");
        self.error(match node.as_str() {
            Some(user) if key == "become" => {
                error.help(format!("write `become: true` and `become_user: {user}`"))
            }
            _ => error,
        });
    }

    /// Parses yes, no, or a template.
    pub(super) fn flag(&mut self, key: &str, node: &Node) -> Flag {
        match &node.value {
            Yaml::Bool(value) => Flag::Fixed(*value),
            Yaml::Str(text) if is_template(&text.text) => {
                self.value(node);
                Flag::Template(Arc::from(text.text.as_str()))
            }
            Yaml::Str(text) => match text.text.to_ascii_lowercase().as_str() {
                "yes" | "true" | "on" => Flag::Fixed(true),
                "no" | "false" | "off" => Flag::Fixed(false),
                _ => {
                    self.no_flag(key, node);
                    Flag::Fixed(false)
                }
            },
            _ => {
                self.no_flag(key, node);
                Flag::Fixed(false)
            }
        }
    }

    /// Parses yes or no; a template may use only what is known before any host.
    pub(in crate::playbook) fn fixed_flag(&mut self, key: &str, node: &Node) -> bool {
        let layers = self.layers_of(&Inherited::default());
        self.fixed_flag_in(key, node, &layers)
    }

    /// Parses like [`Self::fixed_flag`], with further variables.
    pub(super) fn fixed_flag_in(&mut self, key: &str, node: &Node, layers: &[Arc<Dict>]) -> bool {
        let settled = self.settled_node_in(key, node, layers);
        match settled.as_ref().map(|node| self.flag(key, node)) {
            Some(Flag::Fixed(value)) => value,
            Some(Flag::Template(_)) | None => false,
        }
    }

    /// Parses `no_log`: a fixed value, or a template that a host's variables decide.
    pub(super) fn no_log(&mut self, node: &Node) -> (bool, Option<Flag>) {
        match self.flag("no_log", node) {
            Flag::Fixed(value) => (value, None),
            template @ Flag::Template(_) => (false, Some(template)),
        }
    }

    /// Parses a value that must be known before any host; `None` if it depends on a host's variables.
    pub(super) fn settled_node(&mut self, key: &str, node: &Node) -> Option<Node> {
        let layers = self.layers_of(&Inherited::default());
        self.settled_node_in(key, node, &layers)
    }

    fn settled_node_in(&mut self, key: &str, node: &Node, layers: &[Arc<Dict>]) -> Option<Node> {
        let Some(text) = node.as_str().filter(|text| is_template(text)) else { return Some(node.clone()) };
        self.value(node);
        let why = match render(text, &Scope::new(layers.to_vec())) {
            Ok(value) if !value.has_unknown() => {
                return Some(Node::of_json(&value.to_json(), &node.span));
            }
            Ok(_) => "it hangs on what only the run will tell".to_owned(),
            Err(error) => error.to_string(),
        };
        self.error(
            Diagnostic::error(format!("`{key}` is needed before any host is known: {why}"))
                .at(&node.span)
                .help("it can use variables of the play, of its `vars_files` and of `-e`"),
        );
        None
    }

    pub(super) fn text(&mut self, key: &str, node: &Node) -> Option<String> {
        match &node.value {
            Yaml::Seq(_) | Yaml::Map(_) | Yaml::Null | Yaml::Tagged { .. } => {
                self.error(node.wrong_type(&format!("`{key}`"), "text"));
                None
            }
            Yaml::Str(text) => Some(text.text.clone()),
            _ => node.scalar_text(),
        }
    }

    /// Parses text or a list of texts; a text may hold several, separated by commas.
    pub(super) fn words(&mut self, key: &str, node: &Node) -> Vec<String> {
        let items = node.as_seq().unwrap_or(std::slice::from_ref(node));
        let mut words = Vec::new();
        for item in items {
            if let Some(text) = self.text(key, item) {
                words.extend(text.split(',').map(str::trim).filter(|w| !w.is_empty()).map(ToOwned::to_owned));
            }
        }
        words
    }

    /// Parses the name of a variable.
    pub(super) fn name(&mut self, key: &str, node: &Node) -> Option<Arc<str>> {
        let text = self.text(key, node)?;
        if is_variable_name(&text) {
            return Some(Arc::from(text));
        }
        self.error(
            Diagnostic::error(format!("`{key}` wants the name of a variable, got \"{text}\""))
                .at(&node.span)
                .help(name_help(&text)),
        );
        None
    }

    /// Parses a flag that may depend on a host's variables. Returns its value without them, or the template.
    pub(super) fn late_flag(&mut self, key: &str, node: &Node, layers: &[Arc<Dict>]) -> (bool, Option<Flag>) {
        let flag = self.flag(key, node);
        match flag.holds(&Scope::new(layers.to_vec())) {
            Ok(Truth::True) => (true, None),
            Ok(Truth::False) => (false, None),
            Ok(Truth::Unknown) | Err(_) => (false, Some(flag)),
        }
    }

    /// Parses a duration that may depend on a host's variables. Returns its value without them, or the template.
    pub(super) fn late_seconds(
        &mut self,
        key: &str,
        node: &Node,
        layers: &[Arc<Dict>],
    ) -> (Option<u64>, Option<Value>) {
        let Some(text) = node.as_str().filter(|text| is_template(text)) else {
            return (self.seconds(key, node), None);
        };
        let value = self.value(node);
        match render(text, &Scope::new(layers.to_vec())) {
            Ok(found) if !found.has_unknown() => {
                (self.seconds(key, &Node::of_json(&found.to_json(), &node.span)), None)
            }
            _ => (None, Some(value)),
        }
    }

    pub(super) fn seconds(&mut self, key: &str, node: &Node) -> Option<u64> {
        let seconds = node.scalar_text().as_deref().and_then(parse_seconds);
        if seconds.is_none() {
            self.error(node.wrong_type(&format!("`{key}`"), "a duration such as 90, 90s, 20m or 2h"));
        }
        seconds
    }

    pub(super) fn count(&mut self, key: &str, node: &Node) -> Option<u32> {
        let count = node.as_i64().and_then(|count| u32::try_from(count).ok());
        if count.is_none() {
            let got = node.scalar_text().map_or_else(|| node.kind().to_owned(), |text| format!("\"{text}\""));
            self.error(
                Diagnostic::error(format!("`{key}` wants a whole number from 0, got {got}")).at(&node.span),
            );
        }
        count
    }

    /// Parses a number or a percentage; a bare number is a count.
    pub(super) fn amount(&mut self, key: &str, node: &Node) -> Option<Amount> {
        let problem = |wanted: &str| {
            let got = node.scalar_text().map_or_else(|| node.kind().to_owned(), |text| format!("\"{text}\""));
            Diagnostic::error(format!("`{key}` wants {wanted}, got {got}")).at(&node.span)
        };
        if let Some(count) = node.as_i64() {
            match u32::try_from(count) {
                Ok(count) if count > 0 => return Some(Amount::Count(count)),
                _ => self.error(problem("a number from 1")),
            }
            return None;
        }
        let text = node.as_str().map(str::trim).unwrap_or_default();
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        match percent {
            Some(percent) if percent > 0.0 && percent <= 100.0 => return Some(Amount::Percent(percent)),
            Some(_) => self.error(problem("a percentage above 0 and up to 100%")),
            None => match text.parse::<u32>() {
                Ok(count) if count > 0 => return Some(Amount::Count(count)),
                _ => self.error(problem("a number or a percentage such as 10%")),
            },
        }
        None
    }

    /// Parses `waves` or `serial`.
    pub(super) fn waves(&mut self, key: &str, node: &Node) -> Vec<Wave> {
        let items = node.as_seq().unwrap_or(std::slice::from_ref(node));
        let mut waves = Vec::new();
        for item in items {
            let templated = item.as_str().is_some_and(is_template);
            let Some(item) = &self.settled_node(key, item) else { continue };
            if templated && item.as_seq().is_some() {
                waves.extend(self.waves(key, item));
                continue;
            }
            if item.as_str().is_some_and(|text| text.trim() == "canary") {
                waves.push(Wave::Canary);
                continue;
            }
            // As in Ansible, a variable with 0 or nothing makes all hosts one batch.
            let all =
                item.is_null() || item.scalar_text().is_some_and(|text| matches!(text.trim(), "0" | ""));
            if templated && all {
                waves.push(Wave::Percent(100.0));
                continue;
            }
            match self.amount(key, item) {
                Some(Amount::Count(count)) => waves.push(Wave::Count(count)),
                Some(Amount::Percent(percent)) => waves.push(Wave::Percent(percent)),
                None => {}
            }
        }
        waves
    }
}

/// Returns a valid name that an invalid one probably means.
fn name_help(name: &str) -> String {
    let rule = "names have letters, digits and `_`, and begin with no digit";
    let mended: String =
        name.trim().chars().map(|c| if matches!(c, '-' | ' ' | '.') { '_' } else { c }).collect();
    match is_variable_name(&mended) {
        true => format!("{rule}: `{mended}`"),
        false => rule.to_owned(),
    }
}

/// Returns the probable cause of a syntax error in a template.
fn template_help(text: &str, error: &TemplateError) -> Option<&'static str> {
    let message = error.message();
    if !message.starts_with("syntax error") {
        return None;
    }
    let at = error.range().map_or(0, |range| range.start);
    let before = text.get(..at).unwrap_or_default();
    let rest = text.get(at..).unwrap_or_default();
    let inside = before.rfind("{{").map_or(text, |open| text.get(open..).unwrap_or_default());
    if rest.starts_with("= ") || (rest.starts_with('=') && !rest.starts_with("==")) {
        return Some("compare with `==`");
    }
    if rest.starts_with("for ") && inside.contains('[') {
        return Some("there are no list comprehensions: use the filters `map`, `select` and `selectattr`");
    }
    if message.contains("unexpected end of string") {
        return Some("a quote is opened and never closed");
    }
    if message.contains("expected end of variable block") {
        return Some("an expression ends with `}}`");
    }
    if message.contains("expected `)`") || message.contains("expected `]`") {
        return Some("a bracket is opened and never closed");
    }
    if is_template(text) && text.matches("{%").count() > 0 && message.contains("expected end of block") {
        return Some("each `{% if %}` ends with `{% endif %}`, each `{% for %}` with `{% endfor %}`");
    }
    None
}

pub(super) fn is_variable_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a use of a variable is in the part of the first condition that is always evaluated.
fn is_asked_first(first: &Condition, reference: &Reference) -> bool {
    let (at, place) = (&reference.span, &first.span);
    if reference.within.is_some() || at.file() != place.file() || at.line < place.line {
        return false;
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = first.text.split(|c| !is_word(c));
    // The second operand of `and` is evaluated only if the first holds.
    let mut always = words.take_while(|word| !["and", "or", "if"].contains(word));
    (at.line, at.column) >= (place.line, place.column) && always.any(|word| word == reference.name)
}

/// Drops uses of what the task itself defines, and marks those that an earlier condition tests.
pub(super) fn settle(references: Vec<Reference>, own: &Inherited, local: &[&str]) -> Vec<Reference> {
    let tested: Vec<String> = references
        .iter()
        .filter(|reference| reference.guarded)
        .map(|reference| reference.name.clone())
        .chain(own.guarded.iter().cloned())
        .collect();
    references
        .into_iter()
        .map(|mut reference| {
            reference.guarded |= tested.contains(&reference.name);
            let looped = local.contains(&reference.name.as_str())
                || own.locals.iter().any(|name| **name == *reference.name);
            reference.doubtful |= own.when.first().is_some_and(|first| !is_asked_first(first, &reference));
            reference.local |= looped || own.vars.iter().any(|vars| vars.contains(&reference.name));
            (reference, looped)
        })
        // Uses in a variable's value are kept: without them that value would not count, and the variable look undefined.
        .filter(|(reference, looped)| !looped || reference.within.is_some())
        .map(|(reference, _)| reference)
        .collect()
}
