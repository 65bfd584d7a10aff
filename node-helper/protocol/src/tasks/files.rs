//! Parameters of the kinds that declare files.

use serde::{Deserialize, Serialize, de};

use super::{Checked, ParamError, words::words};
use crate::lenient;

/// Permission bits: octal text (`'0644'`), a YAML octal number, or symbolic (`u=rw,g=r,o=`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct FileMode(
    /// Octal digits or the symbolic form.
    pub String,
);

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Mode;
        impl de::Visitor<'_> for Mode {
            type Value = FileMode;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a file mode such as '0644' or u=rw,g=r")
            }
            fn visit_u64<E: de::Error>(self, bits: u64) -> Result<FileMode, E> {
                // Why: YAML has read `0644` as the number 420 already; 644 without the zero is a mistake.
                if bits > 0o7777 {
                    return Err(E::invalid_value(de::Unexpected::Unsigned(bits), &self));
                }
                Ok(FileMode(format!("{bits:04o}")))
            }
            fn visit_i64<E: de::Error>(self, bits: i64) -> Result<FileMode, E> {
                match u64::try_from(bits) {
                    Ok(bits) => self.visit_u64(bits),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(bits), &self)),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<FileMode, E> {
                let octal = (3..=5).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
                let symbolic = !text.is_empty()
                    && text.split(',').all(|part| {
                        part.trim_start_matches(['u', 'g', 'o', 'a']).starts_with(['=', '+', '-'])
                            && part.chars().all(|c| "ugoa=+-rwxXst".contains(c))
                    });
                if octal || symbolic {
                    return Ok(FileMode(text.to_owned()));
                }
                Err(E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Mode)
    }
}

words! { FileState {
    File: "file", Directory: "directory", Absent: "absent", Touch: "touch", Link: "link", Hard: "hard",
} }

/// Declares a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Absolute path.
    #[serde(alias = "dest", alias = "name")]
    pub path: String,
    /// `file`, `directory`, `absent`, `touch`, `link` or `hard`; left out, what is there keeps its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<FileState>,
    /// Target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// User that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permission bits, such as `'0644'`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// Also everything below a directory.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub recurse: bool,
    /// Makes a link even where something else is, or its target is not there.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub force: bool,
    /// Whether the target of a link is meant rather than the link.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub follow: bool,
}

fn yes() -> bool {
    true
}

fn absolute(parameter: &str, path: &str) -> Result<(), ParamError> {
    if path.starts_with('/') && !path.contains('\0') {
        return Ok(());
    }
    Err(ParamError::new(parameter, format!("`{path}` is not an absolute path")))
}

impl Checked for File {
    fn check(&self) -> Result<(), ParamError> {
        absolute("path", &self.path)?;
        match self.state {
            Some(FileState::Link | FileState::Hard) if self.src.is_none() => {
                Err(ParamError::new("src", "a link needs `src`, its target"))
            }
            state if self.recurse && state != Some(FileState::Directory) => {
                Err(ParamError::new("recurse", "`recurse` needs `state: directory`"))
            }
            _ => Ok(()),
        }
    }
}

/// Puts a file on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Copy {
    /// File of the controller, below `files/` or beside the playbook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// Text of the file, instead of `src`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Absolute path on the node; ends with `/` for a directory.
    pub dest: String,
    /// User that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permission bits, such as `'0644'`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// Keeps the old file beside the new one, with the time in its name.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub backup: bool,
    /// Whether an existing file of other content is replaced (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub force: bool,
    /// Whether `src` is a file of the node.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub remote_src: bool,
    /// Command that must accept the new file first; `%s` stands for its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate: Option<String>,
}

impl Checked for Copy {
    fn check(&self) -> Result<(), ParamError> {
        absolute("dest", &self.dest)?;
        if self.src.is_some() == self.content.is_some() {
            return Err(ParamError::new("src", "one of `src` and `content` is needed"));
        }
        validates(self.validate.as_deref())
    }
}

fn validates(command: Option<&str>) -> Result<(), ParamError> {
    match command {
        Some(command) if !command.contains("%s") => {
            Err(ParamError::new("validate", "the command needs `%s`, which stands for the new file"))
        }
        _ => Ok(()),
    }
}

/// Renders a template onto the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Template of the controller, below `templates/` or beside the playbook.
    pub src: String,
    /// Absolute path on the node; ends with `/` for a directory.
    pub dest: String,
    /// User that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permission bits, such as `'0644'`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// Keeps the old file beside the new one, with the time in its name.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub backup: bool,
    /// Whether an existing file of other content is replaced (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub force: bool,
    /// Command that must accept the new file first; `%s` stands for its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate: Option<String>,
}

impl Checked for Template {
    fn check(&self) -> Result<(), ParamError> {
        absolute("dest", &self.dest)?;
        validates(self.validate.as_deref())
    }
}

words! { LineState { Present: "present", Absent: "absent" } }

/// Declares one line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LineInFile {
    /// Absolute path.
    #[serde(alias = "dest", alias = "destfile", alias = "name")]
    pub path: String,
    /// The line; needed for `state: present`.
    #[serde(
        default,
        alias = "value",
        deserialize_with = "lenient::optional_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub line: Option<String>,
    /// Regular expression of the line to replace (the last one) or to remove (all).
    #[serde(default, alias = "regex", skip_serializing_if = "Option::is_none")]
    pub regexp: Option<String>,
    /// `present` (default) or `absent`.
    #[serde(default = "present")]
    pub state: LineState,
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

fn present() -> LineState {
    LineState::Present
}

impl Checked for LineInFile {
    fn check(&self) -> Result<(), ParamError> {
        absolute("path", &self.path)?;
        let needs = |parameter: &str, message: &str| Err(ParamError::new(parameter, message));
        match self.state {
            LineState::Present if self.line.is_none() => needs("line", "a line is needed"),
            LineState::Absent if self.line.is_none() && self.regexp.is_none() => {
                needs("line", "one of `line` and `regexp` is needed")
            }
            LineState::Present if self.backrefs && self.regexp.is_none() => {
                needs("regexp", "`backrefs` needs `regexp`")
            }
            _ if self.line.as_deref().is_some_and(|line| line.contains('\n')) => {
                needs("line", "one line has no line break")
            }
            _ if self.insertafter.is_some() && self.insertbefore.is_some() => {
                needs("insertbefore", "`insertafter` and `insertbefore` exclude each other")
            }
            _ => Ok(()),
        }
    }
}

/// Reads what a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stat {
    /// Absolute path.
    #[serde(alias = "dest", alias = "name")]
    pub path: String,
    /// Whether the target of a link is meant rather than the link.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub follow: bool,
    /// Whether the SHA-256 of a file is read too (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub get_checksum: bool,
}

impl Checked for Stat {
    fn check(&self) -> Result<(), ParamError> {
        absolute("path", &self.path)
    }
}
