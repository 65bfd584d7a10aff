//! Parameters of the kinds that put the controller's files on a node.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Alone, Class, Given, Kind, KindInfo, ParamError, Reading,
    files::{FileMode, on_node, yes},
    words::words,
};
use crate::{Disruption, lenient};

/// Puts a file on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Copy {
    /// File or directory of the controller, below `files/` or beside the playbook. Of a directory that ends with `/` only what is in it is
    /// put into `dest`, else the directory itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// Text of the file, instead of `src`; a mapping or list is written as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
    /// Path on the node; ends with `/` for a directory.
    pub dest: String,
    /// User that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permission bits, such as `'0644'`, or `preserve` for those of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// Keeps the old file beside the new one, with the time in its name.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub backup: bool,
    /// Whether an existing file of other content is replaced (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub force: bool,
    /// Whether `src` is a file or directory of the node.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub remote_src: bool,
    /// Permission bits of directories that are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory_mode: Option<FileMode>,
    /// SHA-1 that the content must have.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Whether a link at `dest` is kept and its target written.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub follow: bool,
    /// Whether links in a directory of the controller are followed (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub local_follow: bool,
    /// Whether encrypted files are put decrypted (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub decrypt: bool,
    /// Command that must accept the new file first; `%s` stands for its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate: Option<String>,
}

impl Kind for Copy {
    const INFO: KindInfo = KindInfo {
        name: "copy",
        aliases: &["ansible.builtin.copy"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::NEEDS_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[
            ("backup", "0.7"),
            ("checksum", "2.5"),
            ("content", "1.1"),
            ("decrypt", "2.4"),
            ("directory_mode", "1.5"),
            ("follow", "1.8"),
            ("force", "1.1"),
            ("local_follow", "2.4"),
            ("remote_src", "2.0"),
        ],
        summary: "Puts a file of the controller, or given content, on the node.",
        example: "copy: {content: 'hello', dest: /etc/motd, mode: '0644'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        on_node("dest", &self.dest)?;
        if self.src.is_some() == self.content.is_some() {
            return Err(ParamError::new("src", "one of `src` and `content` is needed"));
        }
        if !self.decrypt {
            return Err(ParamError::new(
                "decrypt",
                "encrypted files are always put decrypted; encrypt them on the node if need be",
            ));
        }
        if self.content.is_some() && self.dest.ends_with('/') {
            return Err(ParamError::new("dest", "`content` needs the path of a file, not of a directory"));
        }
        preserves(self.mode.as_ref(), self.src.is_some())?;
        preserves(self.directory_mode.as_ref(), false)?;
        validates(self.validate.as_deref())
    }
}

/// Checks that `mode: preserve` has a source file whose mode can be used.
fn preserves(mode: Option<&FileMode>, has_source: bool) -> Result<(), ParamError> {
    match mode {
        Some(mode) if mode.is_preserve() && !has_source => {
            Err(ParamError::new("mode", "`preserve` needs a file as `src`, whose mode it takes"))
        }
        _ => Ok(()),
    }
}

pub(super) fn validates(command: Option<&str>) -> Result<(), ParamError> {
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
    /// Path on the node; ends with `/` for a directory.
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
    /// Whether a link at `dest` is kept and its target written.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub follow: bool,
    /// Whether the line break after a statement goes (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub trim_blocks: bool,
    /// Whether blanks before a statement go.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub lstrip_blocks: bool,
    /// Line ends of the file: `\n` (default), `\r\n` or `\r`.
    #[serde(default = "unix")]
    pub newline_sequence: NewlineSequence,
    /// Begins a statement, `{%` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_start_string: Option<String>,
    /// Ends a statement, `%}` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_end_string: Option<String>,
    /// Begins an expression, `{{` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable_start_string: Option<String>,
    /// Ends an expression, `}}` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable_end_string: Option<String>,
    /// Begins a comment, `{#` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment_start_string: Option<String>,
    /// Ends a comment, `#}` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment_end_string: Option<String>,
    /// Accepted for Ansible's sake: `utf-8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_encoding: Option<String>,
}

fn unix() -> NewlineSequence {
    NewlineSequence::Unix
}

impl Kind for Template {
    const INFO: KindInfo = KindInfo {
        name: "template",
        aliases: &["ansible.builtin.template"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::NEEDS_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[
            ("block_end_string", "2.4"),
            ("block_start_string", "2.4"),
            ("comment_end_string", "2.12"),
            ("comment_start_string", "2.12"),
            ("follow", "2.4"),
            ("lstrip_blocks", "2.6"),
            ("newline_sequence", "2.4"),
            ("output_encoding", "2.7"),
            ("trim_blocks", "2.4"),
            ("variable_end_string", "2.4"),
            ("variable_start_string", "2.4"),
        ],
        summary: "Renders a template of the controller onto the node.",
        example: "template: {src: motd.j2, dest: /etc/motd}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        on_node("dest", &self.dest)?;
        let marks = [
            &self.block_start_string,
            &self.block_end_string,
            &self.variable_start_string,
            &self.variable_end_string,
            &self.comment_start_string,
            &self.comment_end_string,
        ];
        if marks.iter().any(|mark| mark.as_deref() == Some("")) {
            return Err(ParamError::new("variable_start_string", "a mark of a template is never empty"));
        }
        if self
            .output_encoding
            .as_deref()
            .is_some_and(|name| !matches!(name.to_ascii_lowercase().as_str(), "utf-8" | "utf8"))
        {
            return Err(ParamError::new("output_encoding", "templates are written as UTF-8 only"));
        }
        validates(self.validate.as_deref())
    }
}

words! { NewlineSequence {
    Unix: "\n" | "\\n", Windows: "\r\n" | "\\r\\n", Old: "\r" | "\\r",
} }
