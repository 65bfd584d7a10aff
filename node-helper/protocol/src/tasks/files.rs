//! Parameters of the kinds that declare files.

use serde::{Deserialize, Serialize, de};

use super::{
    Alone, Class, Given, Kind, KindInfo, ParamError, Reading, checksum::ChecksumAlgorithm, words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Claim, Effect, Needs, Newer, Operation, Part, Reach, paths, undeclared},
};

/// Permission bits: octal text (`'0644'`), a YAML octal number, or symbolic (`u=rw,g=r,o=`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct FileMode(
    /// Octal digits or the symbolic form.
    pub String,
);

impl FileMode {
    /// Whether it is the source's mode, which only `copy` and `template` accept.
    pub fn is_preserve(&self) -> bool {
        self.0 == "preserve"
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Mode;
        impl de::Visitor<'_> for Mode {
            type Value = FileMode;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a file mode such as '0644' or u=rw,g=r")
            }
            fn visit_u64<E: de::Error>(self, bits: u64) -> Result<FileMode, E> {
                // YAML has already read `0644` as the number 420; 644 without the zero is a mistake.
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
                // As Python, which Ansible uses, parses it.
                let text = text
                    .strip_prefix("0o")
                    .or_else(|| text.strip_prefix("0O"))
                    .filter(|rest| rest.len() >= 3)
                    .unwrap_or(text);
                let octal = (3..=5).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
                let symbolic = !text.is_empty()
                    && text.split(',').all(|part| {
                        part.trim_start_matches(['u', 'g', 'o', 'a']).starts_with(['=', '+', '-'])
                            && part.chars().all(|c| "ugoa=+-rwxXst".contains(c))
                    });
                if octal || symbolic || text == "preserve" {
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
    /// Path; `~`, `$NAME` and relative ones mean what they mean to the task's user.
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
    /// Time of the last change: `preserve`, `now`, or as `YYYYMMDDhhmm.ss` in the node's time zone. Left out, `touch`
    /// takes `now` and everything else `preserve`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub modification_time: Option<String>,
    /// Time of the last reading, given as `modification_time`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub access_time: Option<String>,
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn absolute(parameter: &str, path: &str) -> Result<(), ParamError> {
    if path.starts_with('/') && !path.contains('\0') {
        return Ok(());
    }
    Err(ParamError::new(parameter, format!("`{path}` is not an absolute path")))
}

/// Checks a path of a task, which may be relative or contain `~` and `$NAME`; the node resolves it.
pub(super) fn on_node(parameter: &str, path: &str) -> Result<(), ParamError> {
    match path {
        "" => Err(ParamError::new(parameter, "a path is needed")),
        path if path.contains('\0') => Err(ParamError::new(parameter, format!("`{path}` is no path"))),
        _ => Ok(()),
    }
}

impl Kind for File {
    const INFO: KindInfo = KindInfo {
        name: "file",
        aliases: &["ansible.builtin.file"],
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
        since: &[("access_time", "2.7"), ("follow", "1.8"), ("modification_time", "2.7"), ("recurse", "1.1")],
        summary: "Declares a file, directory, link or its absence, with owner and mode.",
        example: "file: {path: /etc/gpu, state: directory, mode: '0755'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        on_node("path", &self.path)?;
        match self.state {
            Some(FileState::Link | FileState::Hard) if self.src.is_none() => {
                Err(ParamError::new("src", "a link needs `src`, its target"))
            }
            state if self.recurse && state != Some(FileState::Directory) => {
                Err(ParamError::new("recurse", "`recurse` needs `state: directory`"))
            }
            Some(FileState::Absent) if self.modification_time.is_some() || self.access_time.is_some() => {
                Err(ParamError::new("state", "what is absent has no times"))
            }
            _ => {
                time("modification_time", self.modification_time.as_deref())?;
                time("access_time", self.access_time.as_deref())
            }
        }
    }
}

impl Operation for File {
    paths!(path);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        let part = if self.state == Some(FileState::Absent) { Part::Absence } else { Part::Attributes };
        Reach::File(Claim { path: self.path.clone(), part })
    }

    fn lasting(&mut self) -> bool {
        if self.state == Some(FileState::Touch) {
            self.state = None;
        }
        // Reading the file later changes its times, which no task forbids.
        (self.modification_time, self.access_time) = (None, None);
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        match newer.op {
            NodeOp::File(new) if self.path == new.path => {
                self.owner = self.owner.take().filter(|_| new.owner.is_none());
                self.group = self.group.take().filter(|_| new.group.is_none());
                self.mode = self.mode.take().filter(|_| new.mode.is_none());
                new.state.is_none()
            }
            NodeOp::PutFile(new) => self.path != new.dest || self.state == Some(FileState::Directory),
            _ => true,
        }
    }
}

/// Checks that a time is one of the words, or `YYYYMMDDhhmm.ss`.
fn time(parameter: &str, text: Option<&str>) -> Result<(), ParamError> {
    let stamp = |text: &str| {
        text.len() == 15
            && text.bytes().enumerate().all(|(at, b)| if at == 12 { b == b'.' } else { b.is_ascii_digit() })
    };
    match text {
        None | Some("preserve" | "now") => Ok(()),
        Some(text) if stamp(text) => Ok(()),
        Some(text) => Err(ParamError::new(
            parameter,
            format!("`{text}` is neither `preserve` nor `now` nor a time such as 202612312359.59"),
        )),
    }
}

/// Reads what a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stat {
    /// Path; `~`, `$NAME` and relative ones mean what they mean to the task's user.
    #[serde(alias = "dest", alias = "name")]
    pub path: String,
    /// Whether the target of a link is meant rather than the link.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub follow: bool,
    /// Whether the checksum of a file is read too (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub get_checksum: bool,
    /// `sha1` (default), `md5`, `sha224`, `sha256`, `sha384` or `sha512`.
    #[serde(default, alias = "checksum", alias = "checksum_algo")]
    pub checksum_algorithm: ChecksumAlgorithm,
    /// Accepted for Ansible's sake; the type of the content is never read.
    #[serde(
        default,
        alias = "mime",
        alias = "mime_type",
        alias = "mime-type",
        deserialize_with = "lenient::flag",
        skip_serializing
    )]
    pub get_mime: bool,
    /// Accepted for Ansible's sake; attributes of the file system are never read.
    #[serde(
        default,
        alias = "attr",
        alias = "attributes",
        deserialize_with = "lenient::flag",
        skip_serializing
    )]
    pub get_attributes: bool,
    /// Accepted for Ansible's sake; SELinux contexts are never read.
    #[serde(default, deserialize_with = "lenient::flag", skip_serializing)]
    pub get_selinux_context: bool,
}

impl Kind for Stat {
    const INFO: KindInfo = KindInfo {
        name: "stat",
        aliases: &["ansible.builtin.stat"],
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
        numbers: &[],
        since: &[
            ("checksum_algorithm", "2.0"),
            ("get_attributes", "2.3"),
            ("get_checksum", "1.8"),
            ("get_mime", "2.1"),
        ],
        summary: "Reads what a path is, for `register`.",
        example: "stat: {path: /etc/hosts}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        on_node("path", &self.path)
    }
}

impl Operation for Stat {
    paths!(path);

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}
