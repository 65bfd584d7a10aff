//! The settings of one SSH connection: overrides, then `ssh_config`, then OpenSSH's defaults.
//!
//! Pure. Expands `~` and `%` tokens with the caller's environment.

use std::{path::PathBuf, time::Duration};

use super::{
    arguments::{AddressFamily, SshOverrides, port},
    environment::Environment,
    error::printable,
    host_key::HostKeyPolicy,
    names::{HostName, NameError, UserName},
};

/// Default interval of keepalives on an idle connection, in seconds.
const KEEPALIVE_S: u64 = 15;
const DEFAULT_KEYS: [&str; 3] = ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"];
const OPENSSH_DEFAULT_KEYS: [&str; 7] = [
    "~/.ssh/id_rsa",
    "~/.ssh/id_ecdsa",
    "~/.ssh/id_ecdsa_sk",
    "~/.ssh/id_ed25519",
    "~/.ssh/id_ed25519_sk",
    "~/.ssh/id_xmss",
    "~/.ssh/id_dsa",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    PublicKey,
    KeyboardInteractive,
    Password,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    None,
    /// The hops in order; the last one connects to the node.
    Jump(Vec<Hop>),
    Command(String),
}

/// One jump host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hop {
    pub(crate) user: Option<UserName>,
    pub(crate) host: HostName,
    pub(crate) port: Option<u16>,
}

impl std::fmt::Display for Hop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&self.host)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// A private key file to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityFile {
    pub(crate) path: PathBuf,
    /// Whether a setting names it, so that its absence is reported.
    pub(crate) explicit: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SshSettings {
    pub(crate) alias: HostName,
    pub(crate) host: HostName,
    pub(crate) port: u16,
    pub(crate) user: UserName,
    pub(crate) identity_files: Vec<IdentityFile>,
    pub(crate) certificate_files: Vec<PathBuf>,
    pub(crate) identities_only: bool,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) user_known_hosts: Vec<PathBuf>,
    pub(crate) global_known_hosts: Vec<PathBuf>,
    pub(crate) host_key_policy: HostKeyPolicy,
    pub(crate) host_key_alias: Option<String>,
    pub(crate) hash_known_hosts: bool,
    pub(crate) proxy: Proxy,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) keepalive_interval: Duration,
    pub(crate) keepalive_count: u32,
    pub(crate) methods: Vec<Method>,
    pub(crate) family: AddressFamily,
    /// Passed on to jump hosts.
    pub(crate) config_file: Option<String>,
}

impl SshSettings {
    /// Merges all settings for `alias`.
    ///
    /// # Errors
    /// If a value cannot be expanded or parsed, in words.
    pub(crate) fn merge(
        alias: &HostName,
        overrides: &SshOverrides,
        configured: &SshOverrides,
        environment: &Environment,
    ) -> Result<Self, String> {
        let pick = |f: fn(&SshOverrides) -> Option<&String>| f(overrides).or_else(|| f(configured)).cloned();
        let host = pick(|o| o.host_name.as_ref()).unwrap_or_else(|| alias.to_string()).replace("%h", alias);
        // Checked again: a configuration may hold any text, and an old OpenSSH may have resolved it.
        let host = HostName::check(host).map_err(|error| error.to_string())?;
        let port = overrides.port.or(configured.port).unwrap_or(22);
        let user = match overrides.user.as_ref().or(configured.user.as_ref()) {
            Some(user) => user.clone(),
            None => UserName::check(environment.user.as_str())
                .map_err(|error| format!("the user who runs this, {error}; name another with `--user`"))?,
        };
        let tokens = Tokens { alias, host: &host, port, user: &user, environment };

        let mut identity_files = Vec::new();
        let configured_keys =
            if is_default_list(&configured.identity_files) { &[][..] } else { &configured.identity_files };
        for text in overrides.identity_files.iter().chain(configured_keys).filter(|text| *text != "none") {
            if let Some(path) = tokens.path(text)? {
                identity_files.push(IdentityFile { path, explicit: true });
            }
        }
        let none_asked = overrides.identity_files.iter().chain(configured_keys).any(|text| text == "none");
        if identity_files.is_empty() && !none_asked {
            for text in DEFAULT_KEYS {
                identity_files.extend(tokens.path(text)?.map(|path| IdentityFile { path, explicit: false }));
            }
        }
        let mut certificate_files = Vec::new();
        for text in overrides.certificate_files.iter().chain(&configured.certificate_files) {
            certificate_files.extend(tokens.path(text)?);
        }
        let files = |texts: Option<&Vec<String>>, defaults: [&str; 2]| -> Result<Vec<PathBuf>, String> {
            let defaults = defaults.map(str::to_owned).to_vec();
            let texts = texts.cloned().unwrap_or(defaults);
            let mut paths = Vec::new();
            for text in texts.iter().filter(|text| *text != "none") {
                paths.extend(tokens.path(text)?);
            }
            Ok(paths)
        };
        let user_known_hosts = files(
            overrides.user_known_hosts.as_ref().or(configured.user_known_hosts.as_ref()),
            ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"],
        )?;
        let global_known_hosts = files(
            overrides.global_known_hosts.as_ref().or(configured.global_known_hosts.as_ref()),
            ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"],
        )?;
        let agent = match pick(|o| o.identity_agent.as_ref()).as_deref() {
            None | Some("SSH_AUTH_SOCK" | "$SSH_AUTH_SOCK") => environment.ssh_auth_sock.clone(),
            Some("none") => None,
            Some(text) => tokens.path(text)?,
        };
        let keepalive_interval = overrides
            .keepalive_interval
            .or(configured.keepalive_interval.filter(|interval| !interval.is_zero()))
            .unwrap_or(Duration::from_secs(KEEPALIVE_S));
        Ok(Self {
            alias: alias.clone(),
            identity_files,
            certificate_files,
            identities_only: overrides.identities_only.or(configured.identities_only).unwrap_or(false),
            agent,
            user_known_hosts,
            global_known_hosts,
            host_key_policy: overrides.host_key_policy.or(configured.host_key_policy).unwrap_or_default(),
            host_key_alias: pick(|o| o.host_key_alias.as_ref()),
            hash_known_hosts: overrides.hash_known_hosts.or(configured.hash_known_hosts).unwrap_or(false),
            proxy: proxy(overrides, configured, &tokens)?,
            connect_timeout: overrides.connect_timeout.or(configured.connect_timeout),
            keepalive_interval,
            keepalive_count: overrides.keepalive_count.or(configured.keepalive_count).unwrap_or(3),
            methods: methods(overrides, configured),
            family: overrides.address_family.or(configured.address_family).unwrap_or(AddressFamily::Any),
            config_file: overrides.config_file.clone(),
            host,
            port,
            user,
        })
    }

    /// Returns `user@host:port`, for messages and as the key of shared connections.
    pub(crate) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

fn is_default_list(files: &[String]) -> bool {
    files.len() >= 3 && files.iter().all(|file| OPENSSH_DEFAULT_KEYS.contains(&file.as_str()))
}

fn methods(overrides: &SshOverrides, configured: &SshOverrides) -> Vec<Method> {
    let enabled = |given: Option<bool>, configured: Option<bool>| given.or(configured).unwrap_or(true);
    let default = || vec!["publickey".to_owned(), "keyboard-interactive".to_owned(), "password".to_owned()];
    let order = overrides
        .preferred_authentications
        .clone()
        .or_else(|| configured.preferred_authentications.clone())
        .unwrap_or_else(default);
    let method = |name: &String| match name.as_str() {
        "publickey" if enabled(overrides.public_key, configured.public_key) => Some(Method::PublicKey),
        "keyboard-interactive"
            if enabled(overrides.keyboard_interactive, configured.keyboard_interactive) =>
        {
            Some(Method::KeyboardInteractive)
        }
        "password" if enabled(overrides.password, configured.password) => Some(Method::Password),
        _ => None,
    };
    order.iter().filter_map(method).collect()
}

fn proxy(overrides: &SshOverrides, configured: &SshOverrides, tokens: &Tokens<'_>) -> Result<Proxy, String> {
    for source in [overrides, configured] {
        // Either `none` ends the search: `ProxyJump=none` on the command line disables the configured one.
        match (source.proxy_jump.as_deref(), source.proxy_command.as_deref()) {
            (Some("none"), _) | (None, Some("none")) => return Ok(Proxy::None),
            (Some(jump), _) => return parse_jump(jump).map(Proxy::Jump),
            (None, Some(command)) => return tokens.expand(command).map(Proxy::Command),
            (None, None) => {}
        }
    }
    Ok(Proxy::None)
}

/// Parses `[user@]host[:port]`, `ssh://…` and lists of them.
pub(super) fn parse_jump(text: &str) -> Result<Vec<Hop>, String> {
    let hop = |text: &str| {
        let bad =
            || format!("`{}` is no jump host; write [user@]host[:port]", printable(text.as_bytes(), 120));
        let text = text.trim();
        let plain = text.strip_prefix("ssh://").unwrap_or(text).trim_end_matches('/');
        let (user, rest) = match plain.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, plain),
        };
        let (host, port_text) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, tail)) => (host, tail.strip_prefix(':')),
            None if rest.matches(':').count() == 1 => {
                rest.split_once(':').map_or((rest, None), |(h, p)| (h, Some(p)))
            }
            None => (rest, None),
        };
        let port = match port_text {
            Some(text) => Some(port(text).ok_or_else(bad)?),
            None => None,
        };
        if host.is_empty() || user == Some("") {
            return Err(bad());
        }
        let wrong = |error: NameError| {
            format!("`{}` is no jump host, because {error}", printable(text.as_bytes(), 120))
        };
        let user = user.map(UserName::check).transpose().map_err(wrong)?;
        Ok(Hop { user, host: HostName::check(host).map_err(wrong)?, port })
    };
    text.split(',').map(hop).collect()
}

struct Tokens<'a> {
    alias: &'a HostName,
    host: &'a HostName,
    port: u16,
    user: &'a UserName,
    environment: &'a Environment,
}

impl Tokens<'_> {
    /// Expands `%` tokens.
    fn expand(&self, text: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match rest.next() {
                Some('%') => out.push('%'),
                Some('h') => out.push_str(self.host),
                Some('n' | 'k') => out.push_str(self.alias),
                Some('p') => out.push_str(&self.port.to_string()),
                Some('r') => out.push_str(self.user),
                Some('u') => out.push_str(&self.environment.user),
                Some('i') => out.push_str(&self.environment.uid.to_string()),
                Some('l') => out.push_str(&self.environment.hostname),
                Some('L') => {
                    out.push_str(self.environment.hostname.split('.').next().unwrap_or_default());
                }
                Some('d') => out.push_str(&self.home(text)?.to_string_lossy()),
                Some(other) => return Err(format!("`%{other}` in `{text}` is not supported")),
                None => return Err(format!("`{text}` ends in a `%`")),
            }
        }
        Ok(out)
    }

    fn home(&self, text: &str) -> Result<&PathBuf, String> {
        self.environment
            .home
            .as_ref()
            .ok_or_else(|| format!("`{text}` needs a home directory, and there is none"))
    }

    /// Expands `~` and `%`; `None` for a default path without a home directory.
    fn path(&self, text: &str) -> Result<Option<PathBuf>, String> {
        if text.contains("${") || text.starts_with('$') {
            return Err(format!("environment variables in `{text}` are not supported"));
        }
        let expanded = self.expand(text)?;
        match expanded.strip_prefix("~/") {
            Some(rest) => Ok(self.environment.home.as_ref().map(|home| home.join(rest))),
            None if expanded.starts_with('~') => {
                Err(format!("`{text}`: other users' homes are not supported"))
            }
            None => Ok(Some(PathBuf::from(expanded))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::transport::NoPrompt;

    fn environment() -> Environment {
        Environment {
            home: Some("/home/ops".into()),
            user: "ops".to_owned(),
            uid: 1000,
            hostname: "admin.example".to_owned(),
            ssh_auth_sock: Some("/run/agent".into()),
            ssh_config: None,
            ssh_program: "ssh".into(),
            prompt: Arc::new(NoPrompt),
        }
    }

    fn merge(overrides: &SshOverrides, configured: &SshOverrides) -> Result<SshSettings, String> {
        SshSettings::merge(&HostName::check("gpu001").unwrap(), overrides, configured, &environment())
    }

    #[test]
    fn defaults_are_those_of_openssh() {
        let got = merge(&SshOverrides::default(), &SshOverrides::default()).unwrap();
        assert_eq!((got.host.as_str(), got.port, got.user.as_str()), ("gpu001", 22, "ops"));
        assert_eq!(got.identity_files.len(), 3);
        assert!(got.identity_files.iter().all(|file| !file.explicit));
        assert_eq!(
            got.user_known_hosts,
            [PathBuf::from("/home/ops/.ssh/known_hosts"), "/home/ops/.ssh/known_hosts2".into()]
        );
        assert_eq!(got.methods, [Method::PublicKey, Method::KeyboardInteractive, Method::Password]);
        assert_eq!(got.agent, Some("/run/agent".into()));
        assert_eq!(got.host_key_policy, HostKeyPolicy::Strict);
    }

    #[test]
    fn overrides_win_and_tokens_expand() {
        let overrides = SshOverrides {
            port: Some(2222),
            identity_files: vec!["~/keys/%r-%n".to_owned()],
            proxy_command: Some("nc %h %p %%".to_owned()),
            ..SshOverrides::default()
        };
        let configured = SshOverrides {
            host_name: Some("10.0.0.1".to_owned()),
            port: Some(1),
            user: Some(UserName::check("root").unwrap()),
            identity_files: OPENSSH_DEFAULT_KEYS.map(str::to_owned).to_vec(),
            proxy_jump: Some("bastion".to_owned()),
            ..SshOverrides::default()
        };
        let got = merge(&overrides, &configured).unwrap();
        assert_eq!((got.host.as_str(), got.port, got.user.as_str()), ("10.0.0.1", 2222, "root"));
        assert_eq!(
            got.identity_files,
            [IdentityFile { path: "/home/ops/keys/root-gpu001".into(), explicit: true }]
        );
        assert_eq!(got.proxy, Proxy::Command("nc 10.0.0.1 2222 %".to_owned()));
    }

    #[test]
    fn nothing_but_names_reaches_a_command() {
        let command = |change: &dyn Fn(&mut SshOverrides)| {
            let mut configured =
                SshOverrides { proxy_command: Some("nc %h %p %r".to_owned()), ..SshOverrides::default() };
            change(&mut configured);
            merge(&SshOverrides::default(), &configured).map(|got| got.proxy)
        };
        assert_eq!(command(&|_| {}), Ok(Proxy::Command("nc gpu001 22 ops".to_owned())));
        let error = command(&|configured| configured.host_name = Some("$(x).%h".to_owned())).unwrap_err();
        assert_eq!(error, "`$(x).gpu001` is no host name or address: `$` cannot stand in one");
        let surroundings = Environment { user: "a b".to_owned(), ..environment() };
        let alias = HostName::check("gpu001").unwrap();
        let none = SshOverrides::default();
        let error = SshSettings::merge(&alias, &none, &none, &surroundings).unwrap_err();
        assert_eq!(
            error,
            "the user who runs this, `a b` is no user: a blank cannot stand in one; name another with `--user`"
        );
    }

    #[test]
    fn none_switches_a_configured_jump_off() {
        let overrides = SshOverrides { proxy_jump: Some("none".to_owned()), ..SshOverrides::default() };
        let configured = SshOverrides { proxy_jump: Some("bastion".to_owned()), ..SshOverrides::default() };
        assert_eq!(merge(&overrides, &configured).unwrap().proxy, Proxy::None);
    }

    #[test]
    fn jump_hosts_are_read() {
        let hops = parse_jump("ops@a:22,ssh://b:2200/,[fe80::1]:23,fe80::2").unwrap();
        let shown: Vec<_> = hops.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["ops@a:22", "b:2200", "fe80::1:23", "fe80::2"]);
        for bad in ["", "a,,b", "@a", "a:0", "-oProxyCommand=x", "$(x)", "a;b", "`x`@a", "[a b]:22"] {
            assert!(parse_jump(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_expanded_is_an_error() {
        for text in ["%C", "~other/x", "${HOME}/x", "50%"] {
            let overrides = SshOverrides { identity_files: vec![text.to_owned()], ..SshOverrides::default() };
            assert!(merge(&overrides, &SshOverrides::default()).is_err(), "{text}");
        }
    }
}
