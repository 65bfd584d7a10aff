//! How to reach a node, from its inventory variables.
//!
//! Pure: from variables it returns a [`Target`] or an error with the variable's name.

use std::{path::PathBuf, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use super::{
    arguments::{ArgumentError, SshOverrides, split},
    names::{HostName, NameError, UserName, check_label},
};

/// The SSH client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// The client in this process.
    #[default]
    Russh,
    /// An OpenSSH process for each node, for GSSAPI, FIDO keys and other features that only it has.
    OpenSsh,
}

/// Defaults from the command line or the play; variables of the node override them.
#[derive(Clone, Debug, Default)]
pub struct TargetDefaults {
    pub transport: Transport,
    pub user: Option<String>,
    pub port: Option<u16>,
    pub password: Option<SecretString>,
    pub private_key: Option<PathBuf>,
    /// Runs on the controller, as `ansible_connection: local`.
    pub local: bool,
    /// As `ansible_ssh_args`.
    pub arguments: Option<String>,
    /// As `ansible_ssh_common_args`.
    pub common_arguments: Option<String>,
    /// As `ansible_ssh_extra_args`.
    pub extra_arguments: Option<String>,
    pub connect_timeout: Option<Duration>,
    /// Accepts unknown host keys, as `StrictHostKeyChecking=accept-new`.
    pub accept_new_host_keys: bool,
    pub become_root: bool,
    pub become_user: Option<String>,
    pub become_password: Option<SecretString>,
}

/// A node that can be connected to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The name in the inventory.
    pub name: String,
    pub connection: Connection,
    /// The user that the helper runs as, if it is not the login user.
    pub privilege: Option<Become>,
}

#[derive(Clone, Debug)]
pub enum Connection {
    Ssh(Box<SshTarget>),
    /// The controller, without SSH.
    Local,
}

#[derive(Clone, Debug)]
pub struct SshTarget {
    pub transport: Transport,
    /// The name or address as passed to `ssh`: an alias of `ssh_config`, a DNS name or an address.
    pub host: HostName,
    pub password: Option<SecretString>,
    pub overrides: SshOverrides,
    /// The arguments as written, for the OpenSSH client.
    pub arguments: Vec<String>,
}

/// The user that the helper runs as.
#[derive(Clone, Debug)]
pub struct Become {
    pub user: String,
    /// `None`: sudo must not ask for one.
    pub password: Option<SecretString>,
}

impl Target {
    /// Whether one connection can serve both.
    pub fn is_same(&self, other: &Self) -> bool {
        let secret = |one: &Option<SecretString>, other: &Option<SecretString>| {
            one.as_ref().map(ExposeSecret::expose_secret) == other.as_ref().map(ExposeSecret::expose_secret)
        };
        let privilege = match (&self.privilege, &other.privilege) {
            (None, None) => true,
            (Some(Become { user, password }), Some(other)) => {
                *user == other.user && secret(password, &other.password)
            }
            _ => false,
        };
        let connection = match (&self.connection, &other.connection) {
            (Connection::Local, Connection::Local) => true,
            (Connection::Ssh(one), Connection::Ssh(other)) => {
                let SshTarget { transport, host, password, overrides, arguments } = &**one;
                (transport, host, overrides, arguments)
                    == (&other.transport, &other.host, &other.overrides, &other.arguments)
                    && secret(password, &other.password)
            }
            _ => false,
        };
        self.name == other.name && privilege && connection
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("{node}: `{variable}` must be {expected}, not {found}")]
    Type { node: String, variable: String, expected: &'static str, found: String },
    #[error("{node}: `{variable}`: {source}")]
    Argument { node: String, variable: String, source: Box<ArgumentError> },
    #[error("{node}: `{variable}`: {source}")]
    Name { node: String, variable: String, source: NameError },
    #[error("{0}; rename it in the inventory, and say where it is with `ansible_host`")]
    Label(NameError),
    #[error("{node}: `ansible_connection: {found}` is not supported; use ssh or local")]
    Connection { node: String, found: String },
    #[error("{node}: `{variable}` is not supported; {instead}")]
    Unsupported { node: String, variable: &'static str, instead: &'static str },
    #[error("{node}: `ansible_become_method: {found}` is not supported; only sudo is")]
    BecomeMethod { node: String, found: String },
    #[error("{node}: a password cannot be used with `--transport ssh`; use keys, or the built-in SSH client")]
    PasswordWithOpenSsh { node: String },
}

/// Ansible's variables for connections that are not supported.
///
/// They are errors, because without them the connection would fail or go somewhere else.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("ansible_private_key", "name a file with `ansible_ssh_private_key_file`"),
    ("ansible_ssh_private_key", "name a file with `ansible_ssh_private_key_file`"),
    ("ansible_private_key_passphrase", "load the key into an agent, or type the passphrase once when asked"),
    (
        "ansible_ssh_private_key_passphrase",
        "load the key into an agent, or type the passphrase once when asked",
    ),
    ("ansible_ssh_pkcs11_provider", "use `--transport ssh` with `PKCS11Provider` in ~/.ssh/config"),
    ("ansible_become_exe", "sudo is looked for on the node's path"),
    ("ansible_sudo_exe", "sudo is looked for on the node's path"),
];

const HOST: [&str; 2] = ["ansible_ssh_host", "ansible_host"];
const USER: [&str; 2] = ["ansible_ssh_user", "ansible_user"];

/// Returns an address without the brackets that separate it from a port.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

impl TargetError {
    /// Returns the invalid variable, if there is one.
    pub fn variable(&self) -> Option<&str> {
        match self {
            Self::Type { variable, .. } | Self::Argument { variable, .. } | Self::Name { variable, .. } => {
                Some(variable)
            }
            Self::Unsupported { variable, .. } => Some(variable),
            Self::Connection { .. } => Some("ansible_connection"),
            Self::BecomeMethod { .. } => Some("ansible_become_method"),
            Self::Label(_) | Self::PasswordWithOpenSsh { .. } => None,
        }
    }
}

impl Target {
    /// Reads the connection variables of a node; values must be rendered.
    ///
    /// # Errors
    /// A variable of the wrong type or with an unsupported value, by name.
    pub fn from_variables(
        name: &str,
        variables: &Map<String, Value>,
        defaults: &TargetDefaults,
    ) -> Result<Self, TargetError> {
        check_label(name).map_err(TargetError::Label)?;
        let read = Reader { node: name, variables };
        // All of them, even those that the connection does not use: hooks and templates use them too.
        for variable in HOST {
            if let Some(text) = read.text(&[variable])? {
                read.name(variable, HostName::check(bare(&text)))?;
            }
        }
        for variable in USER {
            if let Some(text) = read.text(&[variable])? {
                read.name(variable, UserName::check(text))?;
            }
        }
        for (variable, instead) in UNSUPPORTED {
            if read.find(&[variable]).is_some() {
                return Err(TargetError::Unsupported { node: name.to_owned(), variable, instead });
            }
        }
        let privilege = read.privilege(defaults)?;
        let connection = match read.text(&["ansible_connection"])?.as_deref() {
            None if defaults.local => Connection::Local,
            None | Some("ssh" | "smart" | "paramiko" | "paramiko_ssh" | "ansible.builtin.ssh") => {
                Connection::Ssh(Box::new(read.ssh(defaults)?))
            }
            Some("local" | "ansible.builtin.local") => Connection::Local,
            Some(found) => {
                return Err(TargetError::Connection { node: name.to_owned(), found: found.to_owned() });
            }
        };
        Ok(Self { name: name.to_owned(), connection, privilege })
    }

    /// Creates a target on the controller.
    pub fn local(name: impl Into<String>) -> Self {
        Self { name: name.into(), connection: Connection::Local, privilege: None }
    }
}

struct Reader<'a> {
    node: &'a str,
    variables: &'a Map<String, Value>,
}

impl<'a> Reader<'a> {
    /// Returns the first of several names of one setting; as in Ansible, the more specific one wins and comes first.
    fn find(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        names
            .iter()
            .filter_map(|name| self.variables.get(*name).map(|value| (*name, value)))
            .find(|(_, value)| !value.is_null())
    }

    fn wrong(&self, variable: &str, expected: &'static str, found: &Value) -> TargetError {
        // Without the value, which may be a password.
        let found = match found {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "this text",
            Value::Array(_) => "a list",
            Value::Object(_) => "a mapping",
        };
        TargetError::Type {
            node: self.node.to_owned(),
            variable: variable.to_owned(),
            expected,
            found: found.to_owned(),
        }
    }

    fn text(&self, names: &[&'static str]) -> Result<Option<String>, TargetError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        match value {
            Value::String(text) if text.is_empty() => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            Value::Number(number) => Ok(Some(number.to_string())),
            other => Err(self.wrong(name, "text", other)),
        }
    }

    fn name<T>(&self, variable: &str, checked: Result<T, NameError>) -> Result<T, TargetError> {
        let node = self.node.to_owned();
        checked.map_err(|source| TargetError::Name { node, variable: variable.to_owned(), source })
    }

    fn secret(&self, names: &[&'static str]) -> Result<Option<SecretString>, TargetError> {
        Ok(self.text(names)?.map(SecretString::from))
    }

    fn boolean(&self, names: &[&'static str]) -> Result<Option<bool>, TargetError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        match value {
            Value::Bool(value) => Ok(Some(*value)),
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "yes" | "true" | "on" | "1" | "y" | "t" => Ok(Some(true)),
                "no" | "false" | "off" | "0" | "n" | "f" => Ok(Some(false)),
                _ => Err(self.wrong(name, "true or false", value)),
            },
            Value::Number(number) if number.as_u64() == Some(1) => Ok(Some(true)),
            Value::Number(number) if number.as_u64() == Some(0) => Ok(Some(false)),
            other => Err(self.wrong(name, "true or false", other)),
        }
    }

    fn port(&self, names: &[&'static str]) -> Result<Option<u16>, TargetError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        let port = match value {
            Value::Number(number) => number.as_u64().and_then(|number| u16::try_from(number).ok()),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        match port {
            Some(port) if port != 0 => Ok(Some(port)),
            _ => Err(self.wrong(name, "a port from 1 to 65535", value)),
        }
    }

    fn seconds(&self, names: &[&'static str]) -> Result<Option<Duration>, TargetError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        let seconds = match value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        match seconds {
            Some(seconds) if seconds > 0 => Ok(Some(Duration::from_secs(seconds))),
            _ => Err(self.wrong(name, "a number of seconds above 0", value)),
        }
    }

    fn privilege(&self, defaults: &TargetDefaults) -> Result<Option<Become>, TargetError> {
        if !self.boolean(&["ansible_become"])?.unwrap_or(defaults.become_root) {
            return Ok(None);
        }
        if let Some(method) = self.text(&["ansible_become_method"])?
            && !matches!(method.as_str(), "sudo" | "ansible.builtin.sudo")
        {
            return Err(TargetError::BecomeMethod { node: self.node.to_owned(), found: method });
        }
        let user = self
            .text(&["ansible_sudo_user", "ansible_become_user"])?
            .or_else(|| defaults.become_user.clone());
        let password = self
            .secret(&["ansible_sudo_pass", "ansible_become_pass", "ansible_become_password"])?
            .or_else(|| defaults.become_password.clone());
        Ok(Some(Become { user: user.unwrap_or_else(|| "root".to_owned()), password }))
    }

    fn ssh(&self, defaults: &TargetDefaults) -> Result<SshTarget, TargetError> {
        let host = match self.text(&HOST)? {
            Some(host) => self.name("ansible_host", HostName::check(bare(&host)))?,
            None => HostName::check(bare(self.node)).map_err(TargetError::Label)?,
        };
        let user = match (self.text(&USER)?, &defaults.user) {
            (Some(user), _) => Some(self.name("ansible_user", UserName::check(user))?),
            (None, Some(user)) => Some(self.name("remote_user", UserName::check(user.as_str()))?),
            (None, None) => None,
        };
        let mut arguments = Vec::new();
        let mut overrides = SshOverrides {
            port: self.port(&["ansible_ssh_port", "ansible_port"])?.or(defaults.port),
            user,
            connect_timeout: self
                .seconds(&["ansible_ssh_timeout", "ansible_timeout"])?
                .or(defaults.connect_timeout),
            ..SshOverrides::default()
        };
        let key = self.text(&["ansible_ssh_private_key_file", "ansible_private_key_file"])?;
        let default_key = defaults.private_key.as_ref().map(|path| path.to_string_lossy().into_owned());
        let key = key.or(default_key);
        // In a line of OpenSSH's configuration, a quote or a line break would end the value.
        if let Some(key) = key.as_ref().filter(|key| key.contains(|c: char| c == '"' || c.is_control())) {
            let found = Value::String(key.clone());
            return Err(self.wrong(
                "ansible_ssh_private_key_file",
                "a path without quotes and line breaks",
                &found,
            ));
        }
        overrides.identity_files.extend(key);
        let common = self.text(&["ansible_ssh_common_args"])?.or_else(|| defaults.common_arguments.clone());
        let checking = ["ansible_ssh_host_key_checking", "ansible_host_key_checking"];
        if self.boolean(&checking)? == Some(false) {
            overrides.host_key_policy = super::host_key::HostKeyPolicy::from_option("no");
        }
        let sources = [
            ("ansible_ssh_args", self.text(&["ansible_ssh_args"])?.or_else(|| defaults.arguments.clone())),
            ("ansible_ssh_common_args", common),
            (
                "ansible_ssh_extra_args",
                self.text(&["ansible_ssh_extra_args"])?.or_else(|| defaults.extra_arguments.clone()),
            ),
        ];
        for (variable, text) in sources {
            let Some(text) = text else { continue };
            let fail = |source| TargetError::Argument {
                node: self.node.to_owned(),
                variable: variable.to_owned(),
                source: Box::new(source),
            };
            let words = split(&text).map_err(fail)?;
            if let Some(error) = SshOverrides::misnamed(&words) {
                return Err(fail(error));
            }
            match overrides.extend(&words) {
                Err(error) if defaults.transport == Transport::Russh => return Err(fail(error)),
                _ => arguments.extend(words),
            }
        }
        if defaults.accept_new_host_keys {
            overrides.host_key_policy.get_or_insert(super::host_key::HostKeyPolicy::AcceptNew);
        }
        let password = self
            .secret(&["ansible_ssh_password", "ansible_ssh_pass", "ansible_password"])?
            .or_else(|| defaults.password.clone());
        if password.is_some() && defaults.transport == Transport::OpenSsh {
            return Err(TargetError::PasswordWithOpenSsh { node: self.node.to_owned() });
        }
        Ok(SshTarget { transport: defaults.transport, host, password, overrides, arguments })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target(variables: Value) -> Result<Target, TargetError> {
        let Value::Object(variables) = variables else { panic!("a mapping") };
        Target::from_variables("gpu001", &variables, &TargetDefaults::default())
    }

    fn ssh(variables: Value) -> SshTarget {
        match target(variables).unwrap().connection {
            Connection::Ssh(ssh) => *ssh,
            Connection::Local => panic!("ssh expected"),
        }
    }

    #[test]
    fn nothing_means_the_name_over_ssh() {
        let got = ssh(json!({}));
        assert_eq!(got.host.as_str(), "gpu001");
        assert_eq!(got.overrides, SshOverrides::default());
    }

    #[test]
    fn connections_are_the_same_where_all_that_is_said_is() {
        let same = |one: Value, other: Value| target(one).unwrap().is_same(&target(other).unwrap());
        let full = json!({"ansible_user": "ops", "ansible_password": "p", "ansible_become": true});
        assert!(same(full.clone(), full.clone()));
        assert!(same(json!({"ansible_user": "ops"}), json!({"ansible_ssh_user": "ops"})));
        for (name, value) in [
            ("ansible_user", json!("root")),
            ("ansible_password", json!("q")),
            ("ansible_port", json!(22)),
            ("ansible_become_user", json!("deploy")),
            ("ansible_become_password", json!("q")),
            ("ansible_connection", json!("local")),
            ("ansible_ssh_common_args", json!("-J bastion")),
        ] {
            let mut other = full.clone();
            other[name] = value;
            assert!(!same(full.clone(), other), "{name}");
        }
    }

    #[test]
    fn variables_are_read_as_ansible_does() {
        let got = ssh(json!({
            "ansible_host": "[fe80::1]", "ansible_port": "2222", "ansible_user": "ops", "ansible_ssh_pass": "x",
            "ansible_ssh_private_key_file": "~/.ssh/fleet", "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_common_args": "-J bastion", "ansible_ssh_extra_args": "-o ServerAliveInterval=9",
        }));
        assert_eq!(got.host.as_str(), "fe80::1");
        assert_eq!((got.overrides.port, got.overrides.user.as_deref()), (Some(2222), Some("ops")));
        assert_eq!(got.overrides.proxy_jump.as_deref(), Some("bastion"));
        assert_eq!(got.overrides.identity_files, ["~/.ssh/fleet"]);
        assert!(got.password.is_some());
        assert!(!format!("{got:?}").contains("\"x\""));
    }

    #[test]
    fn of_two_names_of_one_setting_the_more_specific_wins() {
        let got = ssh(json!({
            "ansible_host": "a", "ansible_ssh_host": "b", "ansible_port": 1, "ansible_ssh_port": 2,
            "ansible_user": "c", "ansible_ssh_user": null, "ansible_ssh_host_key_checking": "no",
        }));
        assert_eq!(
            (got.host.as_str(), got.overrides.port, got.overrides.user.as_deref()),
            ("b", Some(2), Some("c"))
        );
        assert_eq!(got.overrides.host_key_policy, super::super::host_key::HostKeyPolicy::from_option("no"));
    }

    #[test]
    fn become_means_root_through_sudo() {
        let got = target(json!({"ansible_become": "yes", "ansible_become_pass": "hunter2"})).unwrap();
        let privilege = got.privilege.as_ref().unwrap();
        assert_eq!(privilege.user, "root");
        assert!(privilege.password.is_some());
        assert!(!format!("{got:?}").contains("hunter2"));
    }

    #[test]
    fn errors_name_node_and_variable() {
        for (variables, message) in [
            (
                json!({"ansible_port": 70000}),
                "gpu001: `ansible_port` must be a port from 1 to 65535, not a number",
            ),
            (
                json!({"ansible_port": "ssh"}),
                "gpu001: `ansible_port` must be a port from 1 to 65535, not this text",
            ),
            (
                json!({"ansible_become": "maybe"}),
                "gpu001: `ansible_become` must be true or false, not this text",
            ),
            (
                json!({"ansible_host": "-oProxyCommand=x"}),
                "gpu001: `ansible_host`: `-oProxyCommand=x` is no host name or address: `-` cannot be its first character",
            ),
            (
                json!({"ansible_ssh_private_key": "-----BEGIN"}),
                "gpu001: `ansible_ssh_private_key` is not supported; name a file with `ansible_ssh_private_key_file`",
            ),
            (json!({"ansible_user": ["a"]}), "gpu001: `ansible_user` must be text, not a list"),
            (
                json!({"ansible_connection": "winrm"}),
                "gpu001: `ansible_connection: winrm` is not supported; use ssh or local",
            ),
            (
                json!({"ansible_become": true, "ansible_become_method": "doas"}),
                "gpu001: `ansible_become_method: doas` is not supported; only sudo is",
            ),
            (
                json!({"ansible_ssh_common_args": "-o Foo=1"}),
                "gpu001: `ansible_ssh_common_args`: `Foo=1` is not supported by the built-in SSH client; remove it or use `--transport ssh`",
            ),
        ] {
            assert_eq!(target(variables).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn no_name_reaches_a_shell_unchecked() {
        for (variables, message) in [
            (
                json!({"ansible_host": "$(touch${IFS}/x)"}),
                "gpu001: `ansible_host`: `$(touch${IFS}/x)` is no host name or address: `$` cannot stand in one",
            ),
            (
                json!({"ansible_host": "gpu1", "ansible_ssh_host": "a;b", "ansible_connection": "local"}),
                "gpu001: `ansible_ssh_host`: `a;b` is no host name or address: `;` cannot stand in one",
            ),
            (
                json!({"ansible_user": "`id`"}),
                "gpu001: `ansible_user`: ``id`` is no user: a backtick cannot stand in one",
            ),
            (
                json!({"ansible_ssh_common_args": "-o HostName='a|b'"}),
                "gpu001: `ansible_ssh_common_args`: HostName: `a|b` is no host name or address: `|` cannot stand in one",
            ),
            (
                json!({"ansible_ssh_common_args": "-l '$(x)'"}),
                "gpu001: `ansible_ssh_common_args`: User: `$(x)` is no user: `(` cannot stand in one",
            ),
            (
                json!({"ansible_ssh_common_args": "-J 'a$(x)'"}),
                "gpu001: `ansible_ssh_common_args`: ProxyJump: `a$(x)` is no jump host, because `a$(x)` is no host name \
                 or address: `$` cannot stand in one",
            ),
        ] {
            let error = target(variables).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(error.variable().is_some());
        }
        let name = |name: &str| {
            Target::from_variables(name, &Map::new(), &TargetDefaults::default()).unwrap_err().to_string()
        };
        assert_eq!(
            name("$(x)"),
            "`$(x)` is no name of a host: `$` cannot stand in one; rename it in the inventory, and say where it is with \
             `ansible_host`"
        );
        let defaults = TargetDefaults { user: Some("-x".to_owned()), ..TargetDefaults::default() };
        assert_eq!(
            Target::from_variables("n", &Map::new(), &defaults).unwrap_err().to_string(),
            "n: `remote_user`: `-x` is no user: `-` cannot be its first character"
        );
    }

    #[test]
    fn the_openssh_transport_takes_any_argument() {
        let Value::Object(variables) = json!({"ansible_ssh_common_args": "-o Foo=1 -K"}) else { panic!() };
        let defaults = TargetDefaults { transport: Transport::OpenSsh, ..TargetDefaults::default() };
        let target = Target::from_variables("a", &variables, &defaults).unwrap();
        let Connection::Ssh(ssh) = target.connection else { panic!() };
        assert_eq!(ssh.arguments, ["-o", "Foo=1", "-K"]);
        let Value::Object(variables) = json!({"ansible_ssh_common_args": "-K -o HostName='$(x)'"}) else {
            panic!()
        };
        let error = Target::from_variables("a", &variables, &defaults).unwrap_err();
        assert!(
            matches!(&error, TargetError::Argument { source, .. } if matches!(**source, ArgumentError::Name { .. })),
            "{error}"
        );
    }
}
