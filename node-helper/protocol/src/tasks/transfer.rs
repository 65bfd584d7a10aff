//! Parameters of the kinds that bring files from the node, from the network and out of archives.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading,
    checksum::ChecksumAlgorithm,
    files::{FileMode, absolute, on_node, yes},
    words::words,
};
use crate::{
    Disruption, Unit, lenient,
    operation::{Claim, Effect, Needs, Newer, Operation, Part, Reach, paths, undeclared},
};

/// Brings a file of the node to the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fetch {
    /// Absolute path of a file on the node.
    pub src: String,
    /// Directory of the controller, relative to the playbook; the file lies there below the host's name and its own
    /// path. With `flat`, the file itself, or a directory that ends with `/`.
    pub dest: String,
    /// Whether `dest` is the file itself.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub flat: bool,
    /// Whether a file that is not there fails the task (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub fail_on_missing: bool,
    /// Accepted for Ansible's sake: what came is always checked.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub validate_checksum: bool,
    /// The largest file that is brought, in bytes or as `500MiB` or `10GiB` (default 1 GiB). A larger one fails the task.
    #[serde(default = "one_gibibyte", deserialize_with = "lenient::bytes")]
    pub max_size: u64,
}

const fn one_gibibyte() -> u64 {
    1 << 30
}

impl Kind for Fetch {
    const INFO: KindInfo = KindInfo {
        name: "fetch",
        aliases: &["ansible.builtin.fetch"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::NEEDS_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("max_size", Some(Unit::Bytes), 0)],
        since: &[("fail_on_missing", "1.1"), ("flat", "1.2"), ("validate_checksum", "1.4")],
        summary: "Brings a file of the node to the controller.",
        example: "fetch: {src: /etc/hostname, dest: collected/}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        absolute("src", &self.src)?;
        if self.dest.is_empty() || self.dest.contains('\0') {
            return Err(ParamError::new("dest", "a directory or file of the controller is needed"));
        }
        if !self.validate_checksum {
            return Err(ParamError::new("validate_checksum", "what came is always checked; leave it out"));
        }
        Ok(())
    }
}

/// Reads a file of the node into `register`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Slurp {
    /// Path of a file on the node.
    #[serde(alias = "path")]
    pub src: String,
}

impl Kind for Slurp {
    const INFO: KindInfo = KindInfo {
        name: "slurp",
        aliases: &["ansible.builtin.slurp"],
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
        since: &[],
        summary: "Reads a file of the node into `register`, as base64.",
        example: "slurp: {src: /etc/hostname}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        on_node("src", &self.src)
    }
}

impl Operation for Slurp {
    paths!(src);

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}

/// Reads `algorithm:checksum`.
fn named_checksum(text: &str) -> Result<(ChecksumAlgorithm, &str), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` lacks the algorithm, as in `sha256:` and the checksum"))?;
    let algorithm = serde_json::from_value(Value::from(name.trim().to_ascii_lowercase()))
        .map_err(|_| format!("`{name}` is none of {}", ChecksumAlgorithm::WORDS.join(", ")))?;
    Ok((algorithm, value.trim()))
}

/// What a download must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Lower-case hexadecimal.
    Digest(String),
    /// A file of checksums at this address, in which the name of the download is looked for.
    ListedAt(String),
}

/// Downloads a file onto the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetUrl {
    /// Address: `https://`, `http://` or `ftp://`.
    pub url: String,
    /// Path on the node; a directory gets a file with the name that the address ends with.
    pub dest: String,
    /// What the file must be: `sha256:` and its checksum, or and the address of a file of checksums. With it, a file that is
    /// there already is compared without a download.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Whether the file is downloaded again each time, and replaced when it differs.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub force: bool,
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
    /// Header lines of the request.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub headers: Map<String, Value>,
    /// How long the node may wait for an answer.
    #[serde(default = "ten", deserialize_with = "lenient::seconds")]
    pub timeout: u64,
    /// Whether the server's certificate is checked (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub validate_certs: bool,
    /// Whether proxies of the task's environment are used (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub use_proxy: bool,
    /// Name for the server.
    #[serde(
        default,
        alias = "username",
        deserialize_with = "lenient::optional_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub url_username: Option<String>,
    /// Password for the server.
    #[serde(
        default,
        alias = "password",
        deserialize_with = "lenient::optional_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub url_password: Option<String>,
    /// Whether name and password go along with the first request; they always do.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub force_basic_auth: bool,
    /// Who the request says that it comes from.
    #[serde(default = "agent")]
    pub http_agent: String,
    /// Directory for what is on its way; left out, the one of `dest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tmp_dest: Option<String>,
}

fn ten() -> u64 {
    10
}
fn agent() -> String {
    "gpufleet".to_owned()
}

impl GetUrl {
    /// The name of the file that the address ends with.
    pub fn name(&self) -> &str {
        let path = self.url.split(['?', '#']).next().unwrap_or_default();
        let path = path.split_once("://").map_or(path, |(_, rest)| rest);
        path.split_once('/')
            .and_then(|(_, path)| path.rsplit('/').next())
            .filter(|name| !name.is_empty())
            .unwrap_or("index.html")
    }

    /// What the file must be.
    ///
    /// # Errors
    /// Text that is no checksum, told for people.
    pub fn wanted(&self) -> Result<Option<(ChecksumAlgorithm, Wanted)>, String> {
        let Some(text) = &self.checksum else { return Ok(None) };
        let (algorithm, value) = named_checksum(text)?;
        if value.contains("://") {
            return Ok(Some((algorithm, Wanted::ListedAt(value.to_owned()))));
        }
        let digest = value.to_ascii_lowercase();
        if digest.len() != algorithm.digits() || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("a {algorithm} checksum has {} hexadecimal digits", algorithm.digits()));
        }
        Ok(Some((algorithm, Wanted::Digest(digest))))
    }
}

/// Checks that the helper knows how to download from there.
pub(super) fn address(parameter: &str, url: &str) -> Result<(), ParamError> {
    let known = ["https://", "http://", "ftp://", "file://"].iter().any(|scheme| url.starts_with(scheme));
    if known && !url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Ok(());
    }
    Err(ParamError::new(parameter, "an address begins with https://, http:// or ftp:// and has no blanks"))
}

impl Kind for GetUrl {
    const INFO: KindInfo = KindInfo {
        name: "get_url",
        aliases: &["ansible.builtin.get_url"],
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
        secret: &["url_password", "password", "headers"],
        numbers: &[Number::from("timeout", Some(Unit::Seconds), 0)],
        since: &[
            ("backup", "2.1"),
            ("checksum", "2.0"),
            ("force", "0.7"),
            ("force_basic_auth", "2.0"),
            ("headers", "2.0"),
            ("timeout", "1.8"),
            ("tmp_dest", "2.1"),
            ("url_password", "1.6"),
            ("url_username", "1.6"),
        ],
        summary: "Downloads a file onto the node, with the node's own curl or wget.",
        example: "get_url: {url: 'https://example.com/tool', dest: /usr/local/bin/tool, mode: '0755'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        address("url", &self.url)?;
        on_node("dest", &self.dest)?;
        if let Some(folder) = &self.tmp_dest {
            absolute("tmp_dest", folder)?;
        }
        let broken = |text: &str| text.contains(['\n', '\r']);
        if self.headers.iter().any(|(name, value)| broken(name) || value.as_str().is_some_and(broken)) {
            return Err(ParamError::new("headers", "a header is one line"));
        }
        if self.url_username.is_none() && self.url_password.is_some() {
            return Err(ParamError::new("url_username", "a password needs a name"));
        }
        self.wanted().map(|_| ()).map_err(|why| ParamError::new("checksum", why))
    }
}

impl Operation for GetUrl {
    paths!(dest);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::File(Claim { path: self.dest.clone(), part: Part::Content })
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, _: &Newer<'_>) -> bool {
        true
    }
}

/// Unpacks an archive on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Unarchive {
    /// Archive of the controller, below `files/` or beside the playbook; with `remote_src`, a path or an address
    /// (`https://…`) as the node sees it.
    pub src: String,
    /// Path of a directory that exists.
    pub dest: String,
    /// Whether `src` is on the node already.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub remote_src: bool,
    /// Not unpacked when this path or glob exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates: Option<String>,
    /// Members that are left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Only these members are unpacked.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// More options for `tar` or `unzip`.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub extra_opts: Vec<String>,
    /// Whether files that are newer than those of the archive stay.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub keep_newer: bool,
    /// Whether the names of the archive are given in `files`.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub list_files: bool,
    /// User that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that owns it.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permission bits, such as `'0644'`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// Whether the server's certificate is checked (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub validate_certs: bool,
    /// Whether an encrypted archive is put decrypted (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub decrypt: bool,
}

impl Kind for Unarchive {
    const INFO: KindInfo = KindInfo {
        name: "unarchive",
        aliases: &["ansible.builtin.unarchive"],
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
            ("creates", "1.6"),
            ("decrypt", "2.4"),
            ("exclude", "2.1"),
            ("extra_opts", "2.1"),
            ("include", "2.11"),
            ("keep_newer", "2.1"),
            ("list_files", "2.0"),
            ("remote_src", "2.2"),
            ("validate_certs", "2.2"),
        ],
        summary: "Unpacks an archive on the node, with the node's own tar or unzip.",
        example: "unarchive: {src: tool.tar.gz, dest: /opt}",
        reading: Reading::of::<Self>(),
    };

    /// `copy: false` is Ansible's older word for `remote_src: true`.
    fn rewrite(given: &mut Given) {
        if given.contains_key("remote_src") {
            return;
        }
        let copy = match given.get("copy") {
            Some(Value::Bool(copy)) => Some(*copy),
            Some(Value::String(word)) => match word.to_ascii_lowercase().as_str() {
                "yes" | "true" | "on" | "1" => Some(true),
                "no" | "false" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        };
        if let Some(copy) = copy {
            given.remove("copy");
            given.insert("remote_src".to_owned(), Value::Bool(!copy));
        }
    }

    fn check(&self) -> Result<(), ParamError> {
        on_node("dest", &self.dest)?;
        let refuse = |parameter: &str, why: &str| Err(ParamError::new(parameter, why));
        if self.src.contains("://") {
            if !self.remote_src {
                return refuse("src", "an address needs `remote_src: true`: the node downloads it");
            }
            address("src", &self.src)?;
        } else if self.remote_src {
            on_node("src", &self.src)?;
        }
        if !self.exclude.is_empty() && !self.include.is_empty() {
            return refuse("include", "`exclude` and `include` exclude each other");
        }
        if self.exclude.iter().chain(&self.include).any(|name| name.is_empty() || name.starts_with('-')) {
            return refuse("exclude", "a member's name is not empty and does not begin with `-`");
        }
        if self.mode.as_ref().is_some_and(FileMode::is_preserve) {
            return refuse("mode", "the modes of the archive are kept unless others are given; leave it out");
        }
        if !self.decrypt {
            return refuse("decrypt", "encrypted archives are always put decrypted; leave it out");
        }
        Ok(())
    }
}

words! { TempState { File: "file", Directory: "directory" } }

/// Makes a file or directory with a unique name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TempFile {
    /// `file` (default) or `directory`.
    #[serde(default = "file")]
    pub state: TempState,
    /// Directory to make it in, `/tmp` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What the name begins with.
    #[serde(default = "prefix")]
    pub prefix: String,
    /// What the name ends with.
    #[serde(default, deserialize_with = "lenient::text_or_nothing")]
    pub suffix: String,
}

fn file() -> TempState {
    TempState::File
}
fn prefix() -> String {
    "ansible.".to_owned()
}

impl Kind for TempFile {
    const INFO: KindInfo = KindInfo {
        name: "tempfile",
        aliases: &["ansible.builtin.tempfile"],
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
        since: &[],
        summary: "Makes a file or directory with a unique name.",
        example: "tempfile: {state: directory}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if let Some(path) = &self.path {
            on_node("path", path)?;
        }
        if [&self.prefix, &self.suffix].iter().any(|part| part.contains('/')) {
            return Err(ParamError::new("prefix", "a part of a name has no `/`"));
        }
        Ok(())
    }
}

impl Operation for TempFile {
    paths!(path);

    fn effect(&self) -> Effect {
        Effect::Acts
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}
