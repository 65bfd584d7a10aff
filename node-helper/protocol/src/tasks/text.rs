//! Parameters of the kinds that declare a part of a text file.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Kind, KindInfo, ParamError, Reading,
    content::validates,
    files::{FileMode, on_node},
    words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Claim, Effect, Needs, Newer, Operation, Part, Reach, paths},
    pattern,
};

words! { LineState { Present: "present", Absent: "absent" } }

/// Declares one line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LineInFile {
    /// Path; `~`, `$NAME` and relative ones mean what they mean to the task's user.
    #[serde(alias = "dest", alias = "destfile", alias = "name")]
    pub path: String,
    /// The line; needed for `state: present`.
    #[serde(
        default,
        alias = "value",
        deserialize_with = "one_line",
        skip_serializing_if = "Option::is_none"
    )]
    pub line: Option<String>,
    /// Regular expression of the line to replace (the last one) or to remove (all).
    #[serde(default, alias = "regex", skip_serializing_if = "Option::is_none")]
    pub regexp: Option<String>,
    /// Text of the line to replace or to remove, anywhere in it; instead of `regexp`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub search_string: Option<String>,
    /// `present` (default) or `absent`.
    #[serde(default = "present")]
    pub state: LineState,
    /// Whether the first match counts rather than the last, for `insertafter` and `insertbefore`.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub firstmatch: bool,
    /// Where a new line goes: after the last match of this expression, or `EOF` (default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertafter: Option<String>,
    /// Where a new line goes: before the last match of this expression, or `BOF`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertbefore: Option<String>,
    /// Makes the file when it is missing.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub create: bool,
    /// Whether `line` may use groups of `regexp` (`\1`); without a match nothing changes.
    #[serde(default, alias = "backreferences", deserialize_with = "lenient::flag")]
    pub backrefs: bool,
    /// Command that must accept the new file first; `%s` stands for its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate: Option<String>,
    /// Keeps the old file beside the new one, with the time in its name.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub backup: bool,
    /// User that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permission bits, such as `'0644'`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
}

/// Reads a line, which in a YAML block includes its line break.
fn one_line<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let line: Option<String> = lenient::optional_text(deserializer)?;
    Ok(line.map(|line| match line.strip_suffix('\n') {
        Some(rest) => rest.strip_suffix('\r').unwrap_or(rest).to_owned(),
        None => line,
    }))
}

fn present() -> LineState {
    LineState::Present
}

impl Kind for LineInFile {
    const INFO: KindInfo = KindInfo {
        name: "lineinfile",
        aliases: &["ansible.builtin.lineinfile"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[
            ("backrefs", "1.1"),
            ("firstmatch", "2.5"),
            ("insertbefore", "1.1"),
            ("regexp", "1.7"),
            ("search_string", "2.11"),
        ],
        summary: "Declares one line of a text file.",
        example: "lineinfile: {path: /etc/hosts, line: '127.0.0.1 localhost'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        on_node("path", &self.path)?;
        let needs = |parameter: &str, message: &str| Err(ParamError::new(parameter, message));
        match self.state {
            LineState::Present if self.line.is_none() => needs("line", "a line is needed"),
            LineState::Absent
                if self.line.is_none() && self.regexp.is_none() && self.search_string.is_none() =>
            {
                needs("line", "one of `line`, `search_string` and `regexp` is needed")
            }
            _ if self.regexp.is_some() && self.search_string.is_some() => {
                needs("search_string", "`regexp` and `search_string` exclude each other")
            }
            _ if self.backrefs && self.search_string.is_some() => {
                needs("search_string", "`backrefs` needs `regexp`; a plain text has no groups")
            }
            LineState::Present if self.backrefs && self.regexp.is_none() => {
                needs("regexp", "`backrefs` needs `regexp`")
            }
            _ if self.line.as_deref().is_some_and(|line| line.contains('\n')) => {
                needs("line", "one line has no line break within it")
            }
            _ if self.insertafter.is_some() && self.insertbefore.is_some() => {
                needs("insertbefore", "`insertafter` and `insertbefore` exclude each other")
            }
            _ => {
                pattern::check([
                    ("regexp", self.regexp.as_deref()),
                    ("insertafter", beside(self.insertafter.as_deref())),
                    ("insertbefore", beside(self.insertbefore.as_deref())),
                ])?;
                validates(self.validate.as_deref())
            }
        }
    }
}

impl Operation for LineInFile {
    paths!(path);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::File(Claim { path: self.path.clone(), part: Part::Lines })
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::LineInFile(new) = newer.op else { return true };
        if self.path != new.path {
            return true;
        }
        // An expression that cannot be compiled here may match the line.
        let finds = |line: &str| {
            let by_pattern = |pattern: &String| {
                let expression = newer.expression(pattern);
                expression.is_none_or(|expression| expression.is_match(line.as_bytes()).unwrap_or(true))
            };
            new.regexp.as_ref().is_some_and(by_pattern)
                || new.search_string.as_ref().is_some_and(|text| line.contains(text.as_str()))
        };
        let same = self.regexp.is_some() && self.regexp == new.regexp || self.line == new.line;
        !same && !self.line.as_deref().is_some_and(finds)
    }
}

/// Returns the expression that places lines, unless it is one of the file's ends.
fn beside(place: Option<&str>) -> Option<&str> {
    place.filter(|place| !matches!(*place, "BOF" | "EOF"))
}

/// Declares a block of lines between two marks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BlockInFile {
    /// Path; `~`, `$NAME` and relative ones mean what they mean to the task's user.
    #[serde(alias = "dest", alias = "destfile", alias = "name")]
    pub path: String,
    /// The lines; none removes the block, as `state: absent` does.
    #[serde(default, alias = "content", deserialize_with = "lenient::text_or_nothing")]
    pub block: String,
    /// `present` (default) or `absent`.
    #[serde(default = "present")]
    pub state: LineState,
    /// Line around the block; `{mark}` stands for the words of `marker_begin` and `marker_end`.
    #[serde(default = "marker")]
    pub marker: String,
    /// Word of the mark before the block.
    #[serde(default = "begin")]
    pub marker_begin: String,
    /// Word of the mark after the block.
    #[serde(default = "end")]
    pub marker_end: String,
    /// Where a new block goes: after the last match of this expression, or `EOF` (default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertafter: Option<String>,
    /// Where a new block goes: before the last match of this expression, or `BOF`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertbefore: Option<String>,
    /// Makes the file when it is missing.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub create: bool,
    /// Whether an empty line stands before the block.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub prepend_newline: bool,
    /// Whether an empty line stands after the block.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub append_newline: bool,
    /// Keeps the old file beside the new one, with the time in its name.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub backup: bool,
    /// Command that must accept the new file first; `%s` stands for its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate: Option<String>,
    /// User that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permission bits, such as `'0644'`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
}

fn marker() -> String {
    "# {mark} ANSIBLE MANAGED BLOCK".to_owned()
}
fn begin() -> String {
    "BEGIN".to_owned()
}
fn end() -> String {
    "END".to_owned()
}

impl Kind for BlockInFile {
    const INFO: KindInfo = KindInfo {
        name: "blockinfile",
        aliases: &["ansible.builtin.blockinfile"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[
            ("append_newline", "2.16"),
            ("marker_begin", "2.5"),
            ("marker_end", "2.5"),
            ("prepend_newline", "2.16"),
        ],
        summary: "Declares a block of lines between two marks of a text file.",
        example: "blockinfile: {path: /etc/hosts, block: '10.0.0.1 storage'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        on_node("path", &self.path)?;
        if self.insertafter.is_some() && self.insertbefore.is_some() {
            return Err(ParamError::new(
                "insertbefore",
                "`insertafter` and `insertbefore` exclude each other",
            ));
        }
        let marks = [&self.marker_begin, &self.marker_end].map(|word| self.marker.replace("{mark}", word));
        if marks.iter().any(|mark| mark.contains('\n') || mark.is_empty()) {
            return Err(ParamError::new("marker", "a mark is one line"));
        }
        if marks.first() == marks.last() {
            return Err(ParamError::new(
                "marker",
                "both marks would be the same line; `{mark}` in `marker` tells them apart",
            ));
        }
        pattern::check([
            ("insertafter", beside(self.insertafter.as_deref())),
            ("insertbefore", beside(self.insertbefore.as_deref())),
        ])?;
        validates(self.validate.as_deref())
    }
}

impl Operation for BlockInFile {
    paths!(path);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::File(Claim { path: self.path.clone(), part: Part::Lines })
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::BlockInFile(new) = newer.op else { return true };
        self.path != new.path || self.marker != new.marker
    }
}

/// Replaces every match of an expression in a text file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// Path; `~`, `$NAME` and relative ones mean what they mean to the task's user.
    #[serde(alias = "dest", alias = "destfile", alias = "name")]
    pub path: String,
    /// Regular expression; `^` and `$` stand for the ends of every line.
    pub regexp: String,
    /// What stands in place of each match, with `\1` and `\g<name>` for groups; nothing removes it.
    #[serde(default, deserialize_with = "lenient::text_or_nothing")]
    pub replace: String,
    /// Only what comes after the first match of this expression is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Only what comes before the first match of this expression is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Accepted for Ansible's sake: `utf-8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// Keeps the old file beside the new one, with the time in its name.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub backup: bool,
    /// Command that must accept the new file first; `%s` stands for its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate: Option<String>,
    /// User that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permission bits, such as `'0644'`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
}

impl Kind for Replace {
    const INFO: KindInfo = KindInfo {
        name: "replace",
        aliases: &["ansible.builtin.replace"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[("after", "2.4"), ("before", "2.4"), ("encoding", "2.4")],
        summary: "Replaces every match of an expression in a text file.",
        example: "replace: {path: /etc/hosts, regexp: 'old', replace: 'new'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        on_node("path", &self.path)?;
        if self.encoding.as_deref().is_some_and(|name| !name.eq_ignore_ascii_case("utf-8")) {
            return Err(ParamError::new("encoding", "only UTF-8 text is read"));
        }
        pattern::check([
            ("regexp", Some(self.regexp.as_str())),
            ("after", self.after.as_deref()),
            ("before", self.before.as_deref()),
        ])?;
        validates(self.validate.as_deref())
    }
}

impl Operation for Replace {
    paths!(path);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::File(Claim { path: self.path.clone(), part: Part::Matches })
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, _: &Newer<'_>) -> bool {
        true
    }
}
