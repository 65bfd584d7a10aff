//! Parameters of the kinds that say where packages come from.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading,
    files::{FileMode, absolute, yes},
    words::words,
};
use crate::{
    Disruption, NodeOp, Unit, lenient,
    operation::{Claim, Effect, Needs, Newer, Operation, Part, Reach, paths},
    repository::{
        deb822,
        sources::{self, Parts, Ppa, Source},
    },
};

words! { #[derive(Default)] RepositoryState { #[default] Present: "present", Absent: "absent" } }

/// The folder of apt's sources.
const SOURCES: &str = "/etc/apt/sources.list.d";

fn retries() -> u32 {
    5
}
fn retry_delay() -> u32 {
    12
}

/// Declares a source of apt in the one-line format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AptRepository {
    /// The line, such as `deb https://example.com/debian stable main`, or an archive of Launchpad, `ppa:owner/name`.
    pub repo: String,
    /// `present` (default) or `absent`.
    #[serde(default)]
    pub state: RepositoryState,
    /// Name of a new file below /etc/apt/sources.list.d, without `.list`, or an absolute path; left out, it is made from
    /// the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// Permission bits of the file, if the line is added to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// Whether the package lists are updated after a change (default). If they cannot be, the change is undone.
    #[serde(default = "yes", alias = "update-cache", deserialize_with = "lenient::flag")]
    pub update_cache: bool,
    /// How often an update of the lists is tried.
    #[serde(default = "retries", deserialize_with = "lenient::u32")]
    pub update_cache_retries: u32,
    /// The longest wait between two tries.
    #[serde(default = "retry_delay", deserialize_with = "lenient::u32")]
    pub update_cache_retry_max_delay: u32,
    /// Name of the release for `ppa:`; left out, the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codename: Option<String>,
    /// Whether the certificates of Launchpad are checked for `ppa:` (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub validate_certs: bool,
}

impl Kind for AptRepository {
    const INFO: KindInfo = KindInfo {
        name: "apt_repository",
        aliases: &["ansible.builtin.apt_repository"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &["install_python_apt"],
        refused: &[],
        secret: &["repo"],
        numbers: &[
            Number::from("update_cache_retries", None, 0),
            Number::from("update_cache_retry_max_delay", Some(Unit::Seconds), 0),
        ],
        since: &[
            ("codename", "2.3"),
            ("filename", "2.1"),
            ("mode", "1.6"),
            ("update_cache_retries", "2.10"),
            ("update_cache_retry_max_delay", "2.10"),
            ("validate_certs", "1.8"),
        ],
        summary: "Declares a source of apt in the one-line format.",
        example: "apt_repository: {repo: 'deb [signed-by=/etc/apt/keyrings/example.asc] https://example.com/debian stable main', filename: example}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.repo.starts_with("ppa:") {
            if Ppa::parse(&self.repo).is_none() {
                return Err(ParamError::new("repo", "an archive of Launchpad is written `ppa:owner/name`"));
            }
        } else {
            let source = Source::parse(&self.repo).filter(|source| source.enabled);
            let invalid = |why| ParamError::new("repo", format!("this is no source of apt: {why}"));
            let Some(source) = source.filter(|_| !self.repo.contains(['\n', '\r', '\0'])) else {
                return Err(invalid("one line is needed that begins with `deb` or `deb-src`"));
            };
            Parts::of(&source.text).map_err(invalid)?;
        }
        if let Some(name) = &self.filename {
            if name.contains('/') {
                absolute("filename", name)?;
            }
            if name.is_empty() || name.contains(|c: char| c.is_control()) {
                return Err(ParamError::new("filename", "the name of a file is needed"));
            }
        }
        if self.codename.as_ref().is_some_and(|name| !is_word(name)) {
            return Err(ParamError::new("codename", "the name of a release is needed, such as `jammy`"));
        }
        Ok(())
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._+".contains(c))
}

impl AptRepository {
    /// Returns the source as files have it; an archive of Launchpad needs the name of the release.
    pub fn source(&self, codename: &str) -> String {
        match Ppa::parse(&self.repo) {
            Some(ppa) => ppa.source(self.codename.as_deref().unwrap_or(codename)),
            None => Source::parse(&self.repo).map_or_else(|| self.repo.clone(), |source| source.text),
        }
    }

    /// Returns the path of the file for a new line.
    pub fn file(&self, codename: &str) -> String {
        let codename = self.codename.as_deref().unwrap_or(codename);
        let line = match Ppa::parse(&self.repo) {
            Some(_) => format!("{}_{codename}", self.repo),
            None => self.source(codename),
        };
        let name = sources::file_name(&line, self.filename.as_deref());
        if name.starts_with('/') { name } else { format!("{SOURCES}/{name}") }
    }
}

impl Operation for AptRepository {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places(["/etc/apt/sources.list", SOURCES])
    }

    fn lasting(&mut self) -> bool {
        self.update_cache = false;
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::AptRepository(new) = newer.op else { return true };
        new.source("") != self.source("")
    }
}

words! { SourceType { Deb: "deb", DebSrc: "deb-src" } }

fn deb() -> Vec<SourceType> {
    vec![SourceType::Deb]
}

fn read_all() -> Option<FileMode> {
    Some(FileMode("0644".to_owned()))
}

/// Declares a source of apt in the format deb822, a file of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Deb822Repository {
    /// Name of the repository; the file below /etc/apt/sources.list.d and its key are called after it.
    pub name: String,
    /// `present` (default) or `absent`, with its key below /etc/apt/keyrings.
    #[serde(default)]
    pub state: RepositoryState,
    /// `deb` (default), `deb-src` or both.
    #[serde(default = "deb", deserialize_with = "lenient::one_or_many")]
    pub types: Vec<SourceType>,
    /// Addresses.
    #[serde(
        default,
        deserialize_with = "lenient::optional_comma_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub uris: Option<Vec<String>>,
    /// Releases, or paths that end with `/`.
    #[serde(
        default,
        deserialize_with = "lenient::optional_comma_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub suites: Option<Vec<String>>,
    /// Sections of a release.
    #[serde(
        default,
        deserialize_with = "lenient::optional_comma_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub components: Option<Vec<String>>,
    /// The key: an address that it is downloaded from, a path of the node, fingerprints, or an armored block.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<String>,
    /// Architectures.
    #[serde(
        default,
        deserialize_with = "lenient::optional_comma_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub architectures: Option<Vec<String>>,
    /// Languages of translated descriptions.
    #[serde(
        default,
        deserialize_with = "lenient::optional_comma_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub languages: Option<Vec<String>>,
    /// Files of the index that apt fetches.
    #[serde(
        default,
        deserialize_with = "lenient::optional_comma_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub targets: Option<Vec<String>>,
    /// Whether apt uses it.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether it is trusted without a valid signature.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub trusted: Option<bool>,
    /// Whether it may have no signature.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub allow_insecure: Option<bool>,
    /// Whether its key may use a weak digest.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub allow_weak: Option<bool>,
    /// Whether it may lose the signature that it had.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub allow_downgrade_to_insecure: Option<bool>,
    /// Whether indexes are fetched by their checksum.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub by_hash: Option<bool>,
    /// Whether the node's clock counts for the dates of its files.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub check_date: Option<bool>,
    /// Whether files past their date are refused.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub check_valid_until: Option<bool>,
    /// How far in the future its files may be dated.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub date_max_future: Option<u32>,
    /// Path of its file `InRelease`, from the usual place.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub inrelease_path: Option<String>,
    /// Whether indexes are updated by their differences.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub pdiffs: Option<bool>,
    /// Permission bits of the file.
    #[serde(default = "read_all", skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
}

/// The key of a source in the format deb822.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignedBy<'a> {
    /// Downloaded, and put below /etc/apt/keyrings.
    Address(&'a str),
    /// Written into the file as it is.
    Given(&'a str),
}

impl Deb822Repository {
    /// Returns the name of its files, as Ansible derives it.
    pub fn slug(&self) -> String {
        let mut slug = String::new();
        let mut gap = false;
        for c in self.name.to_lowercase().chars() {
            if c == '_' || c.is_whitespace() {
                gap = true;
                continue;
            }
            if std::mem::take(&mut gap) {
                slug.push('-');
            }
            if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' {
                slug.push(c);
            }
        }
        if gap {
            slug.push('-');
        }
        slug
    }

    /// Returns the path of its file.
    pub fn file(&self) -> String {
        format!("{SOURCES}/{}.sources", self.slug())
    }

    /// Returns the path of its key, for the ending `asc` or `gpg`.
    pub fn key_file(&self, ending: &str) -> String {
        format!("/etc/apt/keyrings/{}.{ending}", self.slug())
    }

    pub fn key(&self) -> Option<SignedBy<'_>> {
        let given = self.signed_by.as_deref()?;
        let address =
            ["https://", "http://", "ftp://", "file://"].iter().any(|scheme| given.starts_with(scheme));
        Some(if address { SignedBy::Address(given) } else { SignedBy::Given(given) })
    }

    /// Returns the file's text; `key` takes the place of a key that is downloaded.
    pub fn text(&self, key: Option<&str>) -> String {
        let flag = |value: Option<bool>| value.map(|yes| if yes { "yes" } else { "no" }.to_owned());
        let list = |value: &Option<Vec<String>>| value.as_ref().map(|words| words.join(" "));
        let types: Vec<&str> = self.types.iter().map(|kind| kind.as_str()).collect();
        // In this order, and with these names, as Ansible writes them.
        let fields = [
            ("Allow-Downgrade-To-Insecure", flag(self.allow_downgrade_to_insecure)),
            ("Allow-Insecure", flag(self.allow_insecure)),
            ("Allow-Weak", flag(self.allow_weak)),
            ("Architectures", list(&self.architectures)),
            ("By-Hash", flag(self.by_hash)),
            ("Check-Date", flag(self.check_date)),
            ("Check-Valid-Until", flag(self.check_valid_until)),
            ("Components", list(&self.components)),
            ("Date-Max-Future", self.date_max_future.map(|seconds| seconds.to_string())),
            ("Enabled", flag(self.enabled)),
            ("Inrelease-Path", self.inrelease_path.clone()),
            ("Languages", list(&self.languages)),
            ("X-Repolib-Name", Some(self.name.clone())),
            ("Pdiffs", flag(self.pdiffs)),
            ("Signed-By", key.map(str::to_owned).or_else(|| self.signed_by.clone())),
            ("Suites", list(&self.suites)),
            ("Targets", list(&self.targets)),
            ("Trusted", flag(self.trusted)),
            ("Types", Some(types.join(" "))),
            ("URIs", list(&self.uris)),
        ];
        fields.iter().filter_map(|(name, value)| Some(deb822::field(name, value.as_deref()?))).collect()
    }
}

impl Kind for Deb822Repository {
    const INFO: KindInfo = KindInfo {
        name: "deb822_repository",
        aliases: &["ansible.builtin.deb822_repository"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &["install_python_debian"],
        refused: &[],
        secret: &["uris", "signed_by"],
        numbers: &[Number::from("date_max_future", Some(Unit::Seconds), 0)],
        since: &[],
        summary: "Declares a source of apt in the format deb822, with its key.",
        example: "deb822_repository: {name: example, uris: 'https://example.com/debian', suites: stable, components: main, signed_by: 'https://example.com/key.asc'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.slug().chars().all(|c| c == '-') {
            return Err(ParamError::new("name", "no file can be called after this name"));
        }
        let one_line = [Some(&self.name), self.inrelease_path.as_ref()];
        let lists =
            [&self.uris, &self.suites, &self.components, &self.architectures, &self.languages, &self.targets];
        let words = lists.into_iter().flatten().flatten();
        if one_line.into_iter().flatten().chain(words).any(|text| text.contains(['\n', '\r', '\0'])) {
            return Err(ParamError::new("name", "a value of this kind is one line"));
        }
        if self.state == RepositoryState::Absent {
            return Ok(());
        }
        let empty = |list: &Option<Vec<String>>| list.as_ref().is_none_or(Vec::is_empty);
        for (name, list) in [("uris", &self.uris), ("suites", &self.suites)] {
            if empty(list) {
                return Err(ParamError::new(name, "apt reads no source without it"));
            }
        }
        let suites = self.suites.iter().flatten();
        let paths = suites.clone().filter(|suite| suite.ends_with('/')).count();
        if paths > 0 && !empty(&self.components) {
            return Err(ParamError::new("components", "a suite that ends with `/` goes without components"));
        }
        if paths < suites.count() && empty(&self.components) {
            return Err(ParamError::new(
                "components",
                "a suite that does not end with `/` wants at least one",
            ));
        }
        Ok(())
    }
}

impl Operation for Deb822Repository {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Places { paths: vec![self.file(), self.key_file("asc"), self.key_file("gpg")], driver: false }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::Deb822Repository(new) = newer.op else { return true };
        new.slug() != self.slug()
    }
}

/// Defines the parameters of `yum_repository` that are options of the file: text, flags and lists.
macro_rules! yum {
    (
        text { $($(#[$text_doc:meta])* $text:ident,)* }
        flags { $($(#[$flag_doc:meta])* $flag:ident,)* }
        lists { $($(#[$list_doc:meta])* $list:ident by $separator:literal,)* }
    ) => {
        /// Declares a repository of dnf.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        pub struct YumRepository {
            /// Id of the repository: its section in the file.
            pub name: String,
            /// `present` (default) or `absent`.
            #[serde(default)]
            pub state: RepositoryState,
            /// Name of the file below `reposdir`, without `.repo`; left out, the id.
            #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
            pub file: Option<String>,
            /// Folder of the files.
            #[serde(default = "repos_dir")]
            pub reposdir: String,
            /// User that owns the file.
            #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
            pub owner: Option<String>,
            /// Group that owns the file.
            #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
            pub group: Option<String>,
            /// Permission bits of the file.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub mode: Option<FileMode>,
            /// What people call it; the option `name`.
            #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
            pub description: Option<String>,
            /// Whether packages are fetched in parallel; dnf no longer knows it.
            #[serde(default, rename = "async", deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
            pub parallel: Option<bool>,
            /// Packages that are left out.
            #[serde(default, alias = "excludepkgs", deserialize_with = "lenient::optional_comma_list", skip_serializing_if = "Option::is_none")]
            pub exclude: Option<Vec<String>>,
            /// Certificates that servers are checked with.
            #[serde(default, alias = "ca_cert", deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
            pub sslcacert: Option<String>,
            /// Certificate of the node.
            #[serde(default, alias = "client_cert", deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
            pub sslclientcert: Option<String>,
            /// Key of the node's certificate.
            #[serde(default, alias = "client_key", deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
            pub sslclientkey: Option<String>,
            /// Whether certificates of servers are checked.
            #[serde(default, alias = "validate_certs", deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
            pub sslverify: Option<bool>,
            $($(#[$text_doc])* #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")] pub $text: Option<String>,)*
            $($(#[$flag_doc])* #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")] pub $flag: Option<bool>,)*
            $($(#[$list_doc])* #[serde(default, deserialize_with = "lenient::optional_comma_list", skip_serializing_if = "Option::is_none")] pub $list: Option<Vec<String>>,)*
        }

        impl YumRepository {
            /// Returns the options of its section, sorted by the names of the parameters, as Ansible writes them.
            pub fn options(&self) -> Vec<(String, String)> {
                let flag = |value: Option<bool>| value.map(|yes| u8::from(yes).to_string());
                let list = |value: &Option<Vec<String>>, by: &str| value.as_ref().map(|words| words.join(by));
                let all = [
                    ("name", self.description.clone()),
                    ("async", flag(self.parallel)),
                    ("exclude", list(&self.exclude, " ")),
                    ("sslcacert", self.sslcacert.clone()),
                    ("sslclientcert", self.sslclientcert.clone()),
                    ("sslclientkey", self.sslclientkey.clone()),
                    ("sslverify", flag(self.sslverify)),
                    $((stringify!($text), self.$text.clone()),)*
                    $((stringify!($flag), flag(self.$flag)),)*
                    $((stringify!($list), list(&self.$list, $separator)),)*
                ];
                let mut options: Vec<(String, String)> =
                    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
                options.sort();
                options
            }
        }
    };
}

yum! {
    text {
        /// Bandwidth that `throttle` is a part of, in bytes a second.
        bandwidth,
        /// Its cost in comparison with others; 1000 is usual.
        cost,
        /// Where a delta of the lists is no longer worth it, in percent.
        deltarpm_metadata_percentage,
        /// Where a delta of a package is no longer worth it, in percent.
        deltarpm_percentage,
        /// How addresses take turns: `roundrobin` or `priority`.
        failovermethod,
        /// Address of the key that signs `gpgkey`.
        gpgcakey,
        /// What proxies may keep: `all`, `packages` or `none`.
        http_caching,
        /// Another file that is read at this place.
        include,
        /// Protocol of addresses: `4`, `6`, `IPv4`, `IPv6` or `whatever`.
        ip_resolve,
        /// Whether packages are kept after they are installed: `0` or `1`.
        keepcache,
        /// Age of the lists at which they are fetched again, in seconds or as `6h`.
        metadata_expire,
        /// Commands that take older lists.
        metadata_expire_filter,
        /// Address of a metalink.
        metalink,
        /// Address of a list of mirrors.
        mirrorlist,
        /// Age of the list of mirrors at which it is fetched again, in seconds.
        mirrorlist_expire,
        /// Password for the server.
        password,
        /// Place in the order of repositories, from 1 to 99; lower wins.
        priority,
        /// Address of a proxy, or `_none_`.
        proxy,
        /// Password for the proxy.
        proxy_password,
        /// Name for the proxy.
        proxy_username,
        /// How often a file is tried; 0 is for ever.
        retries,
        /// Limit of the bandwidth, in bytes a second or in percent.
        throttle,
        /// How long a server may take to answer, in seconds.
        timeout,
        /// Variables that are shown with the id.
        ui_repoid_vars,
        /// Name for the server.
        username,
    }
    flags {
        /// Whether the node counts among those that use it.
        countme,
        /// Whether dnf uses it.
        enabled,
        /// Whether groups of packages are used.
        enablegroups,
        /// Whether the signatures of packages are checked.
        gpgcheck,
        /// Whether connections stay open.
        keepalive,
        /// Whether its packages are offered whatever module streams are enabled.
        module_hotfixes,
        /// Whether other repositories may not replace its packages.
        protect,
        /// Whether the signature of its lists is checked.
        repo_gpgcheck,
        /// Whether it lies in S3.
        s3_enabled,
        /// Whether dnf goes on without it when it cannot be reached.
        skip_if_unavailable,
        /// Whether the permissions of certificates are checked.
        ssl_check_cert_permissions,
    }
    lists {
        /// Addresses of the repository.
        baseurl by "\n",
        /// Addresses of its keys.
        gpgkey by "\n",
        /// The only packages that are taken from it.
        includepkgs by " ",
    }
}

fn repos_dir() -> String {
    "/etc/yum.repos.d".to_owned()
}

impl YumRepository {
    /// Returns the path of its file.
    pub fn path(&self) -> String {
        let file = self.file.as_deref().unwrap_or(&self.name);
        format!("{}/{file}.repo", self.reposdir.trim_end_matches('/'))
    }

    /// Options whose values are never shown.
    pub const SECRET: [&str; 2] = ["password", "proxy_password"];
}

impl Kind for YumRepository {
    const INFO: KindInfo = KindInfo {
        name: "yum_repository",
        aliases: &["ansible.builtin.yum_repository"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &["password", "proxy_password", "baseurl", "proxy"],
        numbers: &[],
        since: &[("countme", "2.18"), ("module_hotfixes", "2.11")],
        summary: "Declares a repository of dnf.",
        example: "yum_repository: {name: example, description: Example, baseurl: 'https://example.com/el9', gpgcheck: true, gpgkey: 'https://example.com/key.asc'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.name.is_empty() || self.name.contains(['[', ']', '/', '\n', '\r', '\0']) {
            return Err(ParamError::new("name", "this cannot be the id of a repository"));
        }
        absolute("reposdir", &self.reposdir)?;
        if self.file.as_ref().is_some_and(|name| name.is_empty() || name.contains(['/', '\0'])) {
            return Err(ParamError::new("file", "the name of a file is needed, without `.repo`"));
        }
        let words: [(&str, &Option<String>, &[&str]); 5] = [
            ("failovermethod", &self.failovermethod, &["roundrobin", "priority"]),
            ("http_caching", &self.http_caching, &["all", "packages", "none"]),
            ("ip_resolve", &self.ip_resolve, &["4", "6", "IPv4", "IPv6", "whatever"]),
            ("keepcache", &self.keepcache, &["0", "1"]),
            (
                "metadata_expire_filter",
                &self.metadata_expire_filter,
                &["never", "read-only:past", "read-only:present", "read-only:future"],
            ),
        ];
        for (name, value, known) in words {
            if value.as_ref().is_some_and(|value| !known.contains(&value.as_str())) {
                return Err(ParamError::new(name, format!("it is one of {}", known.join(", "))));
            }
        }
        let lists = ["baseurl", "gpgkey"];
        let whole = crate::repository::repo_file::written(&self.name, &self.options());
        let read = crate::repository::repo_file::sections(&whole)
            .ok()
            .and_then(|mut all| all.pop())
            .map(|one| one.options);
        for (name, value) in self.options() {
            let broken = if lists.contains(&name.as_str()) { "\r\0" } else { "\n\r\0" };
            if value.contains(|c| broken.contains(c)) {
                return Err(ParamError::new(name, "a value of this kind is one line"));
            }
            // Otherwise each run would write it again.
            if read.as_ref().is_none_or(|read| !read.contains(&(name.clone(), value.clone()))) {
                let why = "dnf would read another value than this: it has blanks around it, or a line that is empty or a comment";
                return Err(ParamError::new(name, why));
            }
        }
        if self.state == RepositoryState::Present {
            if self.baseurl.is_none() && self.mirrorlist.is_none() && self.metalink.is_none() {
                let message = "one of `baseurl`, `mirrorlist` and `metalink` is needed";
                return Err(ParamError::new("baseurl", message));
            }
            if self.description.is_none() {
                return Err(ParamError::new("description", "`state: present` wants it"));
            }
        }
        Ok(())
    }
}

impl Operation for YumRepository {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::File(Claim { path: self.path(), part: Part::Lines })
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::YumRepository(new) = newer.op else { return true };
        (new.path(), &new.name) != (self.path(), &self.name)
    }
}

#[cfg(test)]
#[path = "repositories_tests.rs"]
mod tests;
