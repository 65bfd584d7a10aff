//! The settings of drainers as data: their names, what they take, what holds unless they are written, and what they mean.
//!
//! Parser, schema and reference read the same [`Setting`]. Owns the forms that several drainers use; a form of one drainer
//! stands in that drainer's file.

use std::fmt;

use super::{HookSpans, Login};
use crate::diagnostic::{Diagnostic, Span};
use crate::playbook::parse::Parser;
use crate::template::{Value, is_template};
use crate::yaml::Node;

/// A setting of a drainer, for the schema and the reference.
#[derive(Clone, Debug)]
pub struct SettingInfo {
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    pub shape: Shape,
    /// What holds unless it is written, as it would be written.
    pub default: Option<String>,
    pub required: bool,
}

/// What may be written as a value.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A duration such as `90s`, `20m` or `2h`; a number alone counts seconds.
    Duration {
        /// In seconds.
        least: u64,
    },
    Flag,
    /// One line of text; a template is rendered for each host.
    Template,
    /// Text that is the same for all hosts.
    Text,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these words in upper or lower case, with or without the prefix.
    Spellings {
        prefix: &'static str,
        words: &'static [&'static str],
    },
    /// Names, or one alone.
    Names,
    /// A mapping with these keys.
    Mapping(Vec<SettingInfo>),
    AnyOf(Vec<Self>),
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duration { least: 0 } => f.write_str("duration"),
            Self::Duration { .. } => f.write_str("duration above 0"),
            Self::Flag => f.write_str("true or false"),
            Self::Template => f.write_str("text or template"),
            Self::Text => f.write_str("text"),
            Self::Words(words) | Self::Spellings { words, .. } => f.write_str(&words.join(", ")),
            Self::Names => f.write_str("list of names"),
            Self::Mapping(settings) => {
                let names: Vec<&str> = settings.iter().map(|setting| setting.name).collect();
                write!(f, "{{{}}}", names.join(", "))
            }
            Self::AnyOf(shapes) => {
                let shapes: Vec<String> = shapes.iter().map(ToString::to_string).collect();
                f.write_str(&shapes.join(", or "))
            }
        }
    }
}

/// How a setting is written and read.
pub(in crate::playbook) trait Form: fmt::Debug + Sync {
    type Value;

    fn shape(&self) -> Shape;

    /// As [`SettingInfo::default`].
    fn default(&self) -> Option<String>;

    /// The value where nothing is written.
    fn usual(&self) -> Self::Value;

    /// What stands there; `None` where it is wrong, which was reported.
    fn read(&self, parser: &mut Parser<'_>, key: &str, node: &Node) -> Option<Self::Value>;
}

/// One setting of a drainer.
#[derive(Debug)]
pub(in crate::playbook) struct Setting<F> {
    pub name: &'static str,
    about: &'static str,
    pub form: F,
    required: bool,
}

impl<F: Form> Setting<F> {
    pub const fn new(name: &'static str, form: F, about: &'static str) -> Self {
        Self { name, about, form, required: false }
    }

    pub const fn required(name: &'static str, form: F, about: &'static str) -> Self {
        Self { name, about, form, required: true }
    }

    /// What the mapping `node` says of it.
    pub fn read(&self, parser: &mut Parser<'_>, node: &Node) -> F::Value {
        let written = node.get(self.name).and_then(|value| self.form.read(parser, self.name, value));
        written.unwrap_or_else(|| self.form.usual())
    }
}

/// A setting of any form.
pub(in crate::playbook) trait Described: fmt::Debug + Sync {
    fn name(&self) -> &'static str;
    fn is_required(&self) -> bool;
    fn info(&self) -> SettingInfo;
}

impl<F: Form> Described for Setting<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_required(&self) -> bool {
        self.required
    }

    fn info(&self) -> SettingInfo {
        let (shape, default) = (self.form.shape(), self.form.default());
        SettingInfo { name: self.name, about: self.about, shape, default, required: self.required }
    }
}

/// What stands below a drainer's word.
pub(in crate::playbook) struct Block<'b, 'p> {
    pub parser: &'b mut Parser<'p>,
    /// The settings; `None` where there are none.
    pub node: Option<&'b Node>,
    /// Where the word stands.
    pub at: &'b Span,
    /// Whether the word stands without a mapping around it: `drain: slurm`.
    pub is_bare: bool,
}

impl Block<'_, '_> {
    pub fn read<F: Form>(&mut self, setting: &Setting<F>) -> F::Value {
        match self.node {
            Some(node) => setting.read(self.parser, node),
            None => setting.form.usual(),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.node.is_some_and(|node| node.get(name).is_some())
    }

    /// Where the values of these settings stand.
    pub fn spans(&self, names: &[&'static str]) -> HookSpans {
        let place = |name: &&'static str| Some((*name, self.node?.get(name)?.span.clone()));
        HookSpans(names.iter().filter_map(place).collect())
    }

    pub fn error(&mut self, error: Diagnostic) {
        self.parser.error(error);
    }
}

/// A duration in seconds.
#[derive(Debug)]
pub(in crate::playbook) struct Seconds {
    pub least: u64,
    pub usual: u64,
}

impl Form for Seconds {
    type Value = u64;

    fn shape(&self) -> Shape {
        Shape::Duration { least: self.least }
    }

    fn default(&self) -> Option<String> {
        Some(duration_text(self.usual))
    }

    fn usual(&self) -> u64 {
        self.usual
    }

    fn read(&self, parser: &mut Parser<'_>, key: &str, node: &Node) -> Option<u64> {
        parser.wait(key, node, self.least)
    }
}

/// A duration in seconds that may be left open.
#[derive(Debug)]
pub(in crate::playbook) struct MaybeSeconds {
    pub least: u64,
}

impl Form for MaybeSeconds {
    type Value = Option<u64>;

    fn shape(&self) -> Shape {
        Shape::Duration { least: self.least }
    }

    fn default(&self) -> Option<String> {
        None
    }

    fn usual(&self) -> Option<u64> {
        None
    }

    fn read(&self, parser: &mut Parser<'_>, key: &str, node: &Node) -> Option<Option<u64>> {
        parser.wait(key, node, self.least).map(Some)
    }
}

/// Yes or no.
#[derive(Debug)]
pub(in crate::playbook) struct FlagForm {
    pub usual: bool,
}

impl Form for FlagForm {
    type Value = bool;

    fn shape(&self) -> Shape {
        Shape::Flag
    }

    fn default(&self) -> Option<String> {
        Some(self.usual.to_string())
    }

    fn usual(&self) -> bool {
        self.usual
    }

    fn read(&self, parser: &mut Parser<'_>, key: &str, node: &Node) -> Option<bool> {
        Some(parser.fixed_flag(key, node))
    }
}

/// The node's name at its scheduler.
#[derive(Debug)]
pub(in crate::playbook) struct NodeName;

impl NodeName {
    const USUAL: &'static str = "{{ inventory_hostname }}";
}

impl Form for NodeName {
    type Value = Value;

    fn shape(&self) -> Shape {
        Shape::Template
    }

    fn default(&self) -> Option<String> {
        Some(Self::USUAL.to_owned())
    }

    fn usual(&self) -> Value {
        Value::text(Self::USUAL)
    }

    fn read(&self, parser: &mut Parser<'_>, key: &str, node: &Node) -> Option<Value> {
        parser.hook(key, node)
    }
}

/// A line for `sh -c`.
#[derive(Debug)]
pub(in crate::playbook) struct Hook;

impl Form for Hook {
    type Value = Option<Value>;

    fn shape(&self) -> Shape {
        Shape::Template
    }

    fn default(&self) -> Option<String> {
        None
    }

    fn usual(&self) -> Option<Value> {
        None
    }

    fn read(&self, parser: &mut Parser<'_>, key: &str, node: &Node) -> Option<Option<Value>> {
        parser.hook(key, node).map(Some)
    }
}

/// A text that is the same for all hosts.
#[derive(Debug)]
pub(in crate::playbook) struct FixedText {
    /// What it is, for messages.
    pub what: &'static str,
}

impl Form for FixedText {
    type Value = Option<String>;

    fn shape(&self) -> Shape {
        Shape::Text
    }

    fn default(&self) -> Option<String> {
        None
    }

    fn usual(&self) -> Option<String> {
        None
    }

    fn read(&self, parser: &mut Parser<'_>, key: &str, node: &Node) -> Option<Option<String>> {
        parser.fixed_text(key, node, self.what).map(Some)
    }
}

/// The host of the inventory that runs the scheduler's programs.
#[derive(Debug)]
pub(in crate::playbook) struct LoginHost;

impl Form for LoginHost {
    type Value = Option<Login>;

    fn shape(&self) -> Shape {
        Shape::Text
    }

    fn default(&self) -> Option<String> {
        None
    }

    fn usual(&self) -> Option<Login> {
        None
    }

    fn read(&self, parser: &mut Parser<'_>, _key: &str, node: &Node) -> Option<Option<Login>> {
        match node.as_str() {
            Some(host) if is_template(host) => parser.error(
                Diagnostic::error("`login` cannot be a template")
                    .at(&node.span)
                    .help("write the name of one host of the inventory"),
            ),
            Some(host) if !host.trim().is_empty() => {
                return Some(Some(Login { host: host.trim().to_owned(), span: node.span.clone() }));
            }
            _ => parser.error(node.wrong_type("`login`", "the name of a host of the inventory")),
        }
        None
    }
}

/// In the largest unit that divides it.
fn duration_text(seconds: u64) -> String {
    match seconds {
        hours if hours > 0 && hours % 3600 == 0 => format!("{}h", hours / 3600),
        minutes if minutes > 0 && minutes % 60 == 0 => format!("{}m", minutes / 60),
        seconds => format!("{seconds}s"),
    }
}
