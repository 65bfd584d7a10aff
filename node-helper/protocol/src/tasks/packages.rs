//! Parameters of the kinds that install packages.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, transfer::address, words::words,
};
use crate::{
    Disruption, Unit, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { #[derive(Default)] AptState {
    #[default] Present: "present" | "installed", Latest: "latest", Absent: "absent" | "removed", BuildDep: "build-dep", Fixed: "fixed",
} }

words! { #[derive(Default)] AptUpgrade { #[default] No: "no", Yes: "yes", Safe: "safe", Full: "full", Dist: "dist" } }

words! { #[derive(Default)] PackageState { #[default] Present: "present" | "installed", Latest: "latest", Absent: "absent" | "removed" } }

fn lock_timeout() -> u32 {
    60
}
fn retries() -> u32 {
    5
}
fn retry_delay() -> u32 {
    12
}
fn dpkg_options() -> String {
    "force-confdef,force-confold".to_owned()
}
fn yes() -> bool {
    true
}

/// Declares packages of a Debian or Ubuntu node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Apt {
    /// Packages, also as `name=version`, `name=1.2*` or `name>=version`, and with `*` for several.
    #[serde(default, alias = "pkg", alias = "package", deserialize_with = "lenient::comma_list")]
    pub name: Vec<String>,
    /// `present` (default), `latest`, `absent`, `build-dep` (what a source package needs), or `fixed` (broken
    /// dependencies are repaired).
    #[serde(default)]
    pub state: AptState,
    /// Whether the package lists are updated first.
    #[serde(
        default,
        alias = "update-cache",
        deserialize_with = "lenient::optional_flag",
        skip_serializing_if = "Option::is_none"
    )]
    pub update_cache: Option<bool>,
    /// Age in seconds that the package lists may have; older ones are updated.
    #[serde(default, deserialize_with = "lenient::u32")]
    pub cache_valid_time: u32,
    /// How often an update of the lists is tried.
    #[serde(default = "retries", deserialize_with = "lenient::u32")]
    pub update_cache_retries: u32,
    /// The longest wait between two tries, in seconds.
    #[serde(default = "retry_delay", deserialize_with = "lenient::u32")]
    pub update_cache_retry_max_delay: u32,
    /// Whether `absent` removes the configuration files too.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub purge: bool,
    /// Package file on the node, or the address of one, which is downloaded to be compared, in a plan too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deb: Option<String>,
    /// Release that packages come from where several have them.
    #[serde(default, alias = "default-release", skip_serializing_if = "Option::is_none")]
    pub default_release: Option<String>,
    /// Whether recommended packages come too; the node decides where it is left out.
    #[serde(
        default,
        alias = "install-recommends",
        deserialize_with = "lenient::optional_flag",
        skip_serializing_if = "Option::is_none"
    )]
    pub install_recommends: Option<bool>,
    /// Upgrades all packages: `yes` or `safe` without removing any, `dist` or `full` also removing some.
    #[serde(default)]
    pub upgrade: AptUpgrade,
    /// Options of dpkg, comma-separated, without their dashes.
    #[serde(default = "dpkg_options")]
    pub dpkg_options: String,
    /// Whether packages that nothing needs any more are removed.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub autoremove: bool,
    /// Whether package files that can no longer be downloaded are removed.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub autoclean: bool,
    /// Whether all downloaded package files are removed.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub clean: bool,
    /// Whether to fail instead of removing a package.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub fail_on_autoremove: bool,
    /// Whether packages that are not installed are left alone.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub only_upgrade: bool,
    /// Whether packages without a valid signature are installed.
    #[serde(default, alias = "allow-unauthenticated", deserialize_with = "lenient::flag")]
    pub allow_unauthenticated: bool,
    /// Whether an older version may replace a newer one.
    #[serde(
        default,
        alias = "allow-downgrade",
        alias = "allow_downgrades",
        alias = "allow-downgrades",
        deserialize_with = "lenient::flag"
    )]
    pub allow_downgrade: bool,
    /// Whether packages that are held may change.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub allow_change_held_packages: bool,
    /// How long another user of the package manager is waited for, in seconds.
    #[serde(default = "lock_timeout", deserialize_with = "lenient::u32")]
    pub lock_timeout: u32,
}

impl Apt {
    /// Declares these packages in this state, with defaults for the rest.
    pub fn of(name: Vec<String>, state: AptState) -> Self {
        Self {
            name,
            state,
            update_cache: None,
            cache_valid_time: 0,
            update_cache_retries: retries(),
            update_cache_retry_max_delay: retry_delay(),
            purge: false,
            deb: None,
            default_release: None,
            install_recommends: None,
            upgrade: AptUpgrade::No,
            dpkg_options: dpkg_options(),
            autoremove: false,
            autoclean: false,
            clean: false,
            fail_on_autoremove: false,
            only_upgrade: false,
            allow_unauthenticated: false,
            allow_downgrade: false,
            allow_change_held_packages: false,
            lock_timeout: lock_timeout(),
        }
    }
}

/// Checks names of packages: each must be one word that cannot be read as an option.
fn check_names(names: &[String], open: &str) -> Result<(), ParamError> {
    for name in names {
        let legal = |c: char| c.is_ascii_alphanumeric() || "+-._:~*?[]=<>/^".contains(c) || open.contains(c);
        if name.is_empty() || name.starts_with('-') || !name.chars().all(legal) {
            return Err(ParamError::new("name", format!("`{name}` is not the name of a package")));
        }
    }
    Ok(())
}

impl Kind for Apt {
    const INFO: KindInfo = KindInfo {
        name: "apt",
        aliases: &["ansible.builtin.apt"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &["force_apt_get", "auto_install_module_deps"],
        refused: &[
            (
                "force",
                "say what is meant: `allow_downgrade`, `allow_unauthenticated` or `allow_change_held_packages`",
            ),
            ("policy_rc_d", "let a task write /usr/sbin/policy-rc.d before this one, and remove it after it"),
        ],
        secret: &[],
        numbers: &[
            Number::from("cache_valid_time", Some(Unit::Seconds), 0),
            Number::from("update_cache_retries", None, 0),
            Number::from("update_cache_retry_max_delay", Some(Unit::Seconds), 0),
            Number::from("lock_timeout", Some(Unit::Seconds), 0),
        ],
        since: &[
            ("allow_change_held_packages", "2.13"),
            ("allow_downgrade", "2.12"),
            ("allow_unauthenticated", "2.1"),
            ("autoclean", "2.4"),
            ("autoremove", "2.1"),
            ("clean", "2.13"),
            ("deb", "1.6"),
            ("fail_on_autoremove", "2.11"),
            ("lock_timeout", "2.12"),
            ("only_upgrade", "2.1"),
            ("update_cache_retries", "2.10"),
            ("update_cache_retry_max_delay", "2.10"),
            ("upgrade", "1.1"),
        ],
        summary: "Installs, updates or removes packages of Debian and Ubuntu.",
        example: "apt: {name: [chrony, numactl], update_cache: true, cache_valid_time: 3600}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        check_names(&self.name, "")?;
        if self.name.iter().any(|name| name.ends_with('-') || name.ends_with('+') && !name.ends_with("++")) {
            return Err(ParamError::new(
                "name",
                "a package name with `-` or `+` behind it would mean something else to apt; use `state`",
            ));
        }
        if self.name.iter().any(|name| name.matches('=').count() > 1) {
            return Err(ParamError::new("name", "a package has one version"));
        }
        let asks = [!self.name.is_empty(), self.deb.is_some(), self.upgrade != AptUpgrade::No];
        if asks.iter().filter(|asked| **asked).count() > 1 {
            return Err(ParamError::new("name", "only one of `name`, `deb` and `upgrade` can be given"));
        }
        let acts = [
            self.autoremove,
            self.autoclean,
            self.clean,
            self.update_cache == Some(true) || self.cache_valid_time > 0,
            self.state == AptState::Fixed,
        ];
        if !asks.contains(&true) && !acts.contains(&true) {
            return Err(ParamError::new(
                "name",
                "one of `name`, `deb`, `upgrade`, `update_cache` and `autoremove` is needed",
            ));
        }
        if let Some(deb) = &self.deb {
            match deb.contains("://") {
                true => address("deb", deb)?,
                false if deb.starts_with('/') => {}
                false => return Err(ParamError::new("deb", "an absolute path or an address is needed")),
            }
            if self.state != AptState::Present {
                return Err(ParamError::new("state", "`deb` goes with `state: present` only"));
            }
        }
        let word = |c: char| c.is_ascii_alphanumeric() || "-_,=.".contains(c);
        if !self.dpkg_options.chars().all(word) {
            return Err(ParamError::new("dpkg_options", "it wants words such as `force-confnew`"));
        }
        if self.default_release.as_ref().is_some_and(|name| name.starts_with('-') || name.is_empty()) {
            return Err(ParamError::new("default_release", "the name of a release is needed"));
        }
        Ok(())
    }
}

impl Operation for Apt {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Packages(&self.name)
    }

    fn lasting(&mut self) -> bool {
        (self.update_cache, self.cache_valid_time) = (None, 0);
        (self.clean, self.autoclean, self.autoremove) = (false, false, false);
        self.upgrade = AptUpgrade::No;
        self.name.retain(|name| name != "*");
        // Not an address: it may give something else by then, and would be downloaded once more.
        self.deb = self.deb.take().filter(|deb| !deb.contains("://"));
        // Not `latest`, because repositories may offer something newer at any time.
        if self.state == AptState::Latest {
            self.state = AptState::Present;
        }
        !self.name.is_empty() || self.deb.is_some()
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        leave_out(&mut self.name, newer);
        !self.name.is_empty() || self.deb.is_some()
    }
}

/// Declares packages of a node of the Red Hat family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Dnf {
    /// Packages, also as `name-version`, `name >= version`, a path of the node, a URL, or a module's stream, `@nodejs:18` or
    /// `@nodejs:18/common`.
    #[serde(default, alias = "pkg", deserialize_with = "lenient::comma_list")]
    pub name: Vec<String>,
    /// `present` (default), `latest` or `absent`.
    #[serde(default)]
    pub state: PackageState,
    /// Repositories to use though they are disabled.
    #[serde(default, deserialize_with = "lenient::comma_list", skip_serializing_if = "Vec::is_empty")]
    pub enablerepo: Vec<String>,
    /// Repositories not to use.
    #[serde(default, deserialize_with = "lenient::comma_list", skip_serializing_if = "Vec::is_empty")]
    pub disablerepo: Vec<String>,
    /// Packages to leave alone.
    #[serde(default, deserialize_with = "lenient::comma_list", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// What to leave out of the configuration's own excludes: `all`, `main` or a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_excludes: Option<String>,
    /// Whether expired lists of packages are fetched first.
    #[serde(default, alias = "expire-cache", deserialize_with = "lenient::flag")]
    pub update_cache: bool,
    /// Whether packages that are not installed are left alone.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub update_only: bool,
    /// Whether `latest` takes security fixes only.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub security: bool,
    /// Whether `latest` takes bug fixes only.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub bugfix: bool,
    /// Whether packages that nothing needs any more are removed.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub autoremove: bool,
    /// Whether packages without a valid signature are installed.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub disable_gpg_check: bool,
    /// Whether certificates of repositories are checked.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub sslverify: bool,
    /// Whether packages that cannot be had are left out rather than failing.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub skip_broken: bool,
    /// Whether another candidate may be taken where the best one cannot be installed.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub nobest: Option<bool>,
    /// Whether packages may be removed for the ones that come.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub allowerasing: bool,
    /// Whether an older version may replace a newer one.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub allow_downgrade: bool,
    /// Whether weak dependencies come too.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub install_weak_deps: bool,
    /// Whether packages are only downloaded.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub cacheonly: bool,
    /// Release that packages come from.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub releasever: Option<String>,
    /// Configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf_file: Option<String>,
}

/// A stream of a module of dnf, and one of its profiles: `@nodejs:18/common`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleStream<'a> {
    pub name: &'a str,
    pub stream: &'a str,
    pub profile: Option<&'a str>,
}

impl<'a> ModuleStream<'a> {
    /// Parses a module's stream; `None` for the name of a package or a group.
    pub fn of(spec: &'a str) -> Option<Self> {
        let (name, rest) = spec.strip_prefix('@')?.split_once(':')?;
        let (stream, profile) = match rest.split_once('/') {
            Some((stream, profile)) => (stream, Some(profile)),
            None => (rest, None),
        };
        // Not at the beginning, because a name is a part of a path and a word of a command line.
        let is_word = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c))
        };
        let is_one = [name, stream].into_iter().chain(profile).all(is_word);
        is_one.then_some(Self { name, stream, profile })
    }
}

impl Dnf {
    /// Declares these packages in this state, with defaults for the rest.
    pub fn of(name: Vec<String>, state: PackageState) -> Self {
        Self {
            name,
            state,
            enablerepo: Vec::new(),
            disablerepo: Vec::new(),
            exclude: Vec::new(),
            disable_excludes: None,
            update_cache: false,
            update_only: false,
            security: false,
            bugfix: false,
            autoremove: false,
            disable_gpg_check: false,
            sslverify: true,
            skip_broken: false,
            nobest: None,
            allowerasing: true,
            allow_downgrade: false,
            install_weak_deps: true,
            cacheonly: false,
            releasever: None,
            conf_file: None,
        }
    }
}

impl Kind for Dnf {
    const INFO: KindInfo = KindInfo {
        name: "dnf",
        aliases: &["ansible.builtin.dnf", "yum", "ansible.builtin.yum", "dnf5", "ansible.builtin.dnf5"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &["use_backend", "install_repoquery", "lock_timeout"],
        refused: &[
            ("list", "`command: rpm -qa` lists packages"),
            ("installroot", "packages are declared for the node itself"),
            ("download_only", "`command: dnf download` downloads packages"),
            ("download_dir", "`command: dnf download` downloads packages"),
            ("enable_plugin", "set plug-ins in /etc/dnf/plugins"),
            ("disable_plugin", "set plug-ins in /etc/dnf/plugins"),
            ("validate_certs", "`sslverify` is about repositories; `get_url` fetches single files"),
        ],
        secret: &[],
        numbers: &[],
        since: &[
            ("allow_downgrade", "2.7"),
            ("allowerasing", "2.10"),
            ("autoremove", "2.4"),
            ("bugfix", "2.7"),
            ("cacheonly", "2.12"),
            ("disable_excludes", "2.7"),
            ("exclude", "2.7"),
            ("install_weak_deps", "2.8"),
            ("nobest", "2.11"),
            ("releasever", "2.6"),
            ("security", "2.7"),
            ("skip_broken", "2.7"),
            ("sslverify", "2.13"),
            ("update_cache", "2.7"),
            ("update_only", "2.7"),
        ],
        summary: "Installs, updates or removes packages of the Red Hat family.",
        example: "dnf: {name: [chrony, numactl]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        check_names(&self.name, " (),%@")?;
        let is_group = |name: &&String| name.starts_with('@') && ModuleStream::of(name).is_none();
        if let Some(group) = self.name.iter().find(is_group) {
            return Err(ParamError::new("name", format!("`{group}` is a group; name its packages instead")));
        }
        let all = self.name.iter().any(|name| name == "*");
        if all && (self.name.len() > 1 || self.state != PackageState::Latest) {
            return Err(ParamError::new("name", "`*` stands alone and goes with `state: latest`"));
        }
        if self.name.is_empty() && !self.autoremove && !self.update_cache {
            return Err(ParamError::new("name", "one of `name`, `autoremove` and `update_cache` is needed"));
        }
        if self.name.is_empty() && self.state == PackageState::Absent {
            return Err(ParamError::new("name", "`state: absent` wants names"));
        }
        Ok(())
    }
}

impl Operation for Dnf {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Packages(&self.name)
    }

    fn lasting(&mut self) -> bool {
        (self.update_cache, self.autoremove) = (false, false);
        self.name.retain(|name| name != "*");
        // Not `latest`, because repositories may offer something newer at any time.
        if self.state == PackageState::Latest {
            self.state = PackageState::Present;
        }
        !self.name.is_empty()
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        leave_out(&mut self.name, newer);
        !self.name.is_empty()
    }
}

words! { #[derive(Default)] PackageManager { #[default] Auto: "auto", Apt: "apt", Dnf: "dnf" | "dnf4" | "dnf5" | "yum" } }

/// Declares packages with the node's own package manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Packages, as the node's package manager calls them.
    #[serde(alias = "pkg", deserialize_with = "lenient::comma_list")]
    pub name: Vec<String>,
    /// `present` (default), `latest` or `absent`.
    #[serde(default)]
    pub state: PackageState,
    /// The package manager: `apt`, `dnf`, or `auto` (default): the one that the node has.
    #[serde(default, rename = "use")]
    pub manager: PackageManager,
    /// Whether the package lists are updated first.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub update_cache: bool,
    /// Age in seconds that the package lists may have; a parameter of `apt` alone.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub cache_valid_time: Option<u32>,
    /// Whether an older version may replace a newer one.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub allow_downgrade: bool,
    /// Repositories to use though they are disabled; a parameter of `dnf` alone.
    #[serde(default, deserialize_with = "lenient::comma_list", skip_serializing_if = "Vec::is_empty")]
    pub enablerepo: Vec<String>,
    /// Repositories not to use; a parameter of `dnf` alone.
    #[serde(default, deserialize_with = "lenient::comma_list", skip_serializing_if = "Vec::is_empty")]
    pub disablerepo: Vec<String>,
}

impl Package {
    /// Declares that these packages are installed, with defaults for the rest.
    pub fn of(name: Vec<String>) -> Self {
        Self {
            name,
            state: PackageState::Present,
            manager: PackageManager::Auto,
            update_cache: false,
            cache_valid_time: None,
            allow_downgrade: false,
            enablerepo: Vec::new(),
            disablerepo: Vec::new(),
        }
    }
}

impl Kind for Package {
    const INFO: KindInfo = KindInfo {
        name: "package",
        aliases: &["ansible.builtin.package"],
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
        secret: &[],
        numbers: &[Number::from("cache_valid_time", Some(Unit::Seconds), 0)],
        since: &[],
        summary: "Installs, updates or removes packages with the package manager that the node has.",
        example: "package: {name: [chrony, numactl]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        check_names(&self.name, " (),%")?;
        if self.name.is_empty() {
            return Err(ParamError::new("name", "the name of a package is needed"));
        }
        Ok(())
    }
}

impl Operation for Package {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Packages(&self.name)
    }

    fn lasting(&mut self) -> bool {
        self.update_cache = false;
        // Not `latest`, because repositories may offer something newer at any time.
        if self.state == PackageState::Latest {
            self.state = PackageState::Present;
        }
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        leave_out(&mut self.name, newer);
        !self.name.is_empty()
    }
}

/// Returns the name of a package without version and architecture.
fn base(name: &str) -> &str {
    name.split(['=', '>', '<', ' ', ':']).next().unwrap_or(name)
}

/// Removes packages that a newer task names.
fn leave_out(names: &mut Vec<String>, newer: &Newer<'_>) {
    if let Reach::Packages(later) = newer.op.operation().reach() {
        names.retain(|name| !later.iter().any(|new| base(new) == base(name)));
    }
}
