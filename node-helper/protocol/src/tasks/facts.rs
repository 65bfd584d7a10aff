//! Parameters of the kinds that read facts of a node.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words};
use crate::{
    Disruption, Unit, lenient,
    operation::{Effect, Needs, Operation, paths, undeclared},
    pattern,
};

/// Reads the facts of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Names or globs of the facts that `register` gets, such as `ansible_distribution*`.
    #[serde(default, deserialize_with = "lenient::names", skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<String>,
    /// Accepted for Ansible's sake: all facts are read at once, in milliseconds.
    #[serde(default, deserialize_with = "lenient::names", skip_serializing_if = "Vec::is_empty")]
    pub gather_subset: Vec<String>,
    /// Accepted for Ansible's sake; the `timeout` of the task holds.
    #[serde(
        default,
        deserialize_with = "lenient::optional_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub gather_timeout: Option<u64>,
}
impl Kind for Setup {
    const INFO: KindInfo = KindInfo {
        name: "setup",
        aliases: &["ansible.builtin.setup", "gather_facts", "ansible.builtin.gather_facts"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("gather_timeout", Some(Unit::Seconds), 0)],
        since: &[("filter", "1.1"), ("gather_subset", "2.1"), ("gather_timeout", "2.2")],
        summary: "Reads the facts of the node.",
        example: "setup: {filter: ansible_distribution}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

/// Asks the helper on the node whether it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ping {
    /// What `register` gets back as `ping`.
    #[serde(default = "pong", deserialize_with = "lenient::text")]
    pub data: String,
}

fn pong() -> String {
    "pong".to_owned()
}
impl Kind for Ping {
    const INFO: KindInfo = KindInfo {
        name: "ping",
        aliases: &["ansible.builtin.ping"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Asks the helper on the node whether it is there.",
        example: "ping: {}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl Operation for Ping {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}

words! { FindType { File: "file", Directory: "directory", Link: "link", Any: "any" } }

/// Looks for files on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Find {
    /// Paths of directories to look in.
    #[serde(alias = "name", alias = "path", deserialize_with = "lenient::names")]
    pub paths: Vec<String>,
    /// Globs of names, of which one has to match, in a list or in one text with commas between them; `*` when left out.
    /// Regular expressions with `use_regex`.
    #[serde(
        default,
        alias = "pattern",
        deserialize_with = "lenient::split_text",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub patterns: Vec<String>,
    /// Globs of names that do not count, in a list or in one text with commas between them.
    #[serde(
        default,
        alias = "exclude",
        deserialize_with = "lenient::split_text",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub excludes: Vec<String>,
    /// Whether directories in directories are looked into.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub recurse: bool,
    /// How many directories deep, with `recurse`.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// `file` (default), `directory`, `link` or `any`.
    #[serde(default = "file")]
    pub file_type: FindType,
    /// Whether names that begin with a dot count.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub hidden: bool,
    /// Whether links to directories are looked into.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub follow: bool,
    /// Whether patterns are regular expressions.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub use_regex: bool,
    /// Only what is at least so old, such as `90`, `20m`, `2h`, `1d` or `1w`; with `-` before it, at most so old.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub age: Option<String>,
    /// Time that the age is of: `mtime` (default), `atime` or `ctime`.
    #[serde(default = "changed")]
    pub age_stamp: AgeStamp,
    /// Only what has at least so many bytes, such as `1m`; with `-` before it, at most.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Regular expression that a file has to hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
    /// Whether that expression is looked for in the file as a whole, and not at the beginning of each line.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub read_whole_file: bool,
    /// Whether the checksum of each file is given.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub get_checksum: bool,
}

words! { AgeStamp { Mtime: "mtime", Atime: "atime", Ctime: "ctime" } }

fn file() -> FindType {
    FindType::File
}
fn changed() -> AgeStamp {
    AgeStamp::Mtime
}

/// Parses a number with optional sign and unit; returns whether it is a lower bound, and the number.
pub fn bound(text: &str, units: &[(&str, i64)]) -> Option<(bool, i64)> {
    let text = text.trim();
    let (least, text) = text.strip_prefix('-').map_or((true, text), |rest| (false, rest));
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let factor =
        units.iter().find(|(name, _)| *name == unit.to_ascii_lowercase()).map(|(_, factor)| *factor)?;
    Some((least, number.parse::<i64>().ok()?.checked_mul(factor)?))
}

/// Units of an age, in seconds.
pub const AGES: &[(&str, i64)] = &[("", 1), ("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("w", 604_800)];
/// Units of a size, in bytes.
pub const SIZES: &[(&str, i64)] =
    &[("", 1), ("b", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)];

impl Kind for Find {
    const INFO: KindInfo = KindInfo {
        name: "find",
        aliases: &["ansible.builtin.find"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("depth", None, 0)],
        since: &[("depth", "2.6"), ("excludes", "2.5"), ("read_whole_file", "2.11")],
        summary: "Looks for files on the node, for `register`.",
        example: "find: {paths: /var/log, patterns: '*.log'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.paths.is_empty() {
            return Err(ParamError::new("paths", "at least one directory is needed"));
        }
        for path in &self.paths {
            super::files::on_node("paths", path)?;
        }
        for (name, text, units) in [("age", &self.age, AGES), ("size", &self.size, SIZES)] {
            if let Some(text) = text
                && bound(text, units).is_none()
            {
                return Err(ParamError::new(name, format!("`{text}` is no number with a unit")));
            }
        }
        if self.contains.is_some() && self.file_type != FindType::File {
            return Err(ParamError::new("contains", "only files hold something; it needs `file_type: file`"));
        }
        let expressions = [("patterns", &self.patterns), ("excludes", &self.excludes)].into_iter();
        let expressions = expressions
            .filter(|_| self.use_regex)
            .flat_map(|(name, texts)| texts.iter().map(move |text| (name, Some(text.as_str()))));
        pattern::check(expressions.chain([("contains", self.contains.as_deref())]))
    }
}

impl Operation for Find {
    paths!(paths);

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}
