//! Command-line arguments of OpenSSH, as in `ansible_ssh_common_args`, converted to settings.
//!
//! Pure. An argument that would change something and is not understood is refused by name, never skipped.

use std::time::Duration;

use super::{
    host_key::HostKeyPolicy,
    names::{HostName, NameError, UserName},
    settings::parse_jump,
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    #[error("the quotes of `{text}` do not match")]
    Quotes { text: String },
    #[error("`{argument}` is not supported by the built-in SSH client; remove it or use `--transport ssh`")]
    Unsupported { argument: String },
    #[error("`{argument}` needs a value")]
    NoValue { argument: String },
    #[error("`{value}` is no value for {name}: {expected}")]
    Value { name: String, value: String, expected: &'static str },
    #[error("{name}: {source}")]
    Name { name: String, source: NameError },
    #[error("{name}: {reason}")]
    Jump { name: String, reason: String },
}

/// Settings from inventory or command line, which override `ssh_config`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SshOverrides {
    pub host_name: Option<String>,
    pub port: Option<u16>,
    pub user: Option<UserName>,
    pub identity_files: Vec<String>,
    pub certificate_files: Vec<String>,
    pub identities_only: Option<bool>,
    pub identity_agent: Option<String>,
    pub user_known_hosts: Option<Vec<String>>,
    pub global_known_hosts: Option<Vec<String>>,
    pub host_key_policy: Option<HostKeyPolicy>,
    pub host_key_alias: Option<String>,
    pub hash_known_hosts: Option<bool>,
    pub proxy_jump: Option<String>,
    pub proxy_command: Option<String>,
    pub connect_timeout: Option<Duration>,
    pub keepalive_interval: Option<Duration>,
    pub keepalive_count: Option<u32>,
    pub preferred_authentications: Option<Vec<String>>,
    pub public_key: Option<bool>,
    pub password: Option<bool>,
    pub keyboard_interactive: Option<bool>,
    pub config_file: Option<String>,
    pub address_family: Option<AddressFamily>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressFamily {
    Any,
    V4,
    V6,
}

/// Splits a shell-like string, as Ansible does.
///
/// # Errors
/// Unbalanced quotes.
pub(crate) fn split(text: &str) -> Result<Vec<String>, ArgumentError> {
    shell_words::split(text).map_err(|_| ArgumentError::Quotes { text: text.to_owned() })
}

impl SshOverrides {
    /// Parses arguments; the first value of an option wins, as in OpenSSH.
    ///
    /// # Errors
    /// The first argument that is not understood, by name.
    pub fn parse(arguments: &[String]) -> Result<Self, ArgumentError> {
        let mut overrides = Self::default();
        overrides.extend(arguments)?;
        Ok(overrides)
    }

    /// Returns the error for the first invalid name among arguments, whatever else is wrong with them.
    pub(crate) fn misnamed(arguments: &[String]) -> Option<ArgumentError> {
        (0..arguments.len()).find_map(|at| {
            let words = arguments.get(at..arguments.len().min(at + 2)).unwrap_or_default();
            let error = Self::parse(words).err()?;
            matches!(error, ArgumentError::Name { .. } | ArgumentError::Jump { .. }).then_some(error)
        })
    }

    pub(crate) fn extend(&mut self, arguments: &[String]) -> Result<(), ArgumentError> {
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut letters = match argument.strip_prefix('-') {
                Some(letters) if !letters.is_empty() && letters != "-" => letters.chars(),
                _ => return Err(ArgumentError::Unsupported { argument: argument.clone() }),
            };
            while let Some(letter) = letters.next() {
                if !"oJiplF".contains(letter) {
                    self.flag(letter)?;
                    continue;
                }
                let glued = letters.as_str();
                let value = if glued.is_empty() {
                    rest.next()
                        .cloned()
                        .ok_or_else(|| ArgumentError::NoValue { argument: format!("-{letter}") })?
                } else {
                    glued.to_owned()
                };
                self.valued(letter, &value)?;
                break;
            }
        }
        Ok(())
    }

    fn flag(&mut self, letter: char) -> Result<(), ArgumentError> {
        match letter {
            '4' => drop(self.address_family.get_or_insert(AddressFamily::V4)),
            '6' => drop(self.address_family.get_or_insert(AddressFamily::V6)),
            // Ignored: these change neither where nor how this client connects.
            'C' | 'q' | 'v' | 'T' | 'x' | 'a' | 'k' | 'n' => {}
            other => return Err(ArgumentError::Unsupported { argument: format!("-{other}") }),
        }
        Ok(())
    }

    fn valued(&mut self, letter: char, value: &str) -> Result<(), ArgumentError> {
        match letter {
            'J' => self.option("ProxyJump", value),
            'i' => self.option("IdentityFile", value),
            'p' => self.option("Port", value),
            'l' => self.option("User", value),
            'F' => {
                self.config_file.get_or_insert_with(|| value.to_owned());
                Ok(())
            }
            _ => {
                let (name, value) = value
                    .split_once(|c: char| c == '=' || c.is_whitespace())
                    .ok_or_else(|| ArgumentError::NoValue { argument: value.to_owned() })?;
                self.option(name.trim(), value.trim().trim_start_matches('=').trim())
            }
        }
    }

    /// Applies one `ssh_config` option, unless it is set already.
    pub(crate) fn option(&mut self, name: &str, value: &str) -> Result<(), ArgumentError> {
        let bad =
            |expected| ArgumentError::Value { name: name.to_owned(), value: value.to_owned(), expected };
        if value.is_empty() {
            return Err(ArgumentError::NoValue { argument: name.to_owned() });
        }
        let no_name = |source| ArgumentError::Name { name: name.to_owned(), source };
        match name.to_ascii_lowercase().as_str() {
            "hostname" => {
                // The host that `%h` stands for is checked separately.
                HostName::check(value.replace("%%", "").replace("%h", "h")).map_err(no_name)?;
                set(&mut self.host_name, value.to_owned());
            }
            "port" => set(&mut self.port, port(value).ok_or_else(|| bad("a port from 1 to 65535"))?),
            "user" => set(&mut self.user, UserName::check(value).map_err(no_name)?),
            "identityfile" => self.identity_files.push(value.to_owned()),
            "certificatefile" => self.certificate_files.push(value.to_owned()),
            "identitiesonly" => {
                set(&mut self.identities_only, boolean(value).ok_or_else(|| bad("yes or no"))?)
            }
            "identityagent" => set(&mut self.identity_agent, value.to_owned()),
            "userknownhostsfile" => set(&mut self.user_known_hosts, split(value)?),
            "globalknownhostsfile" => set(&mut self.global_known_hosts, split(value)?),
            "stricthostkeychecking" => set(
                &mut self.host_key_policy,
                HostKeyPolicy::from_option(value).ok_or_else(|| bad("yes, ask, accept-new or no"))?,
            ),
            "hostkeyalias" => {
                // Without brackets: the key of another port is known as `[name]:port`.
                HostName::check(value.replace(['[', ']'], "")).map_err(no_name)?;
                set(&mut self.host_key_alias, value.to_owned());
            }
            "hashknownhosts" => {
                set(&mut self.hash_known_hosts, boolean(value).ok_or_else(|| bad("yes or no"))?)
            }
            "proxyjump" => {
                if value != "none" {
                    let jump = |reason| ArgumentError::Jump { name: name.to_owned(), reason };
                    parse_jump(value).map_err(jump)?;
                }
                set(&mut self.proxy_jump, value.to_owned());
            }
            "proxycommand" => set(&mut self.proxy_command, value.to_owned()),
            "connecttimeout" => {
                if value != "none" {
                    set(&mut self.connect_timeout, seconds(value).ok_or_else(|| bad("a time in seconds"))?);
                }
            }
            "serveraliveinterval" => {
                set(&mut self.keepalive_interval, seconds(value).ok_or_else(|| bad("a time in seconds"))?);
            }
            "serveralivecountmax" => {
                set(&mut self.keepalive_count, value.parse().map_err(|_| bad("a count"))?);
            }
            "preferredauthentications" => {
                set(&mut self.preferred_authentications, value.split(',').map(str::to_owned).collect());
            }
            "pubkeyauthentication" => set(&mut self.public_key, boolean(value).unwrap_or(true)),
            "passwordauthentication" => {
                set(&mut self.password, boolean(value).ok_or_else(|| bad("yes or no"))?)
            }
            "kbdinteractiveauthentication" | "challengeresponseauthentication" => {
                set(&mut self.keyboard_interactive, boolean(value).ok_or_else(|| bad("yes or no"))?);
            }
            "addressfamily" => set(
                &mut self.address_family,
                match value.to_ascii_lowercase().as_str() {
                    "any" => AddressFamily::Any,
                    "inet" => AddressFamily::V4,
                    "inet6" => AddressFamily::V6,
                    _ => return Err(bad("any, inet or inet6")),
                },
            ),
            // Ignored: there is one connection per node anyway, ssh logs nothing, and prompts have rules of their
            // own.
            "controlmaster"
            | "controlpath"
            | "controlpersist"
            | "compression"
            | "loglevel"
            | "batchmode"
            | "tcpkeepalive"
            | "numberofpasswordprompts"
            | "connectionattempts"
            | "requesttty"
            | "updatehostkeys"
            | "checkhostip"
            | "visualhostkey"
            | "clearallforwardings"
            | "exitonforwardfailure"
            | "escapechar"
            | "ipqos" => {}
            "forwardagent"
            | "forwardx11"
            | "forwardx11trusted"
            | "gssapiauthentication"
            | "gssapidelegatecredentials"
            | "hostbasedauthentication"
            | "permitlocalcommand"
            | "tunnel"
            | "verifyhostkeydns"
                if boolean(value) == Some(false) => {}
            _ => return Err(ArgumentError::Unsupported { argument: format!("{name}={value}") }),
        }
        Ok(())
    }
}

/// Sets a value unless it is set already.
fn set<T>(slot: &mut Option<T>, value: T) {
    slot.get_or_insert(value);
}

pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" => Some(true),
        "no" | "false" => Some(false),
        _ => None,
    }
}

pub(crate) fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port != 0)
}

/// Parses a time of `ssh_config`: `30`, `1m30s`, `2h`.
pub(crate) fn seconds(text: &str) -> Option<Duration> {
    let mut total = 0u64;
    let mut number = None::<u64>;
    if text.is_empty() {
        return None;
    }
    for c in text.chars() {
        if let Some(digit) = c.to_digit(10) {
            number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(u64::from(digit))?);
            continue;
        }
        let unit = match c.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return None,
        };
        total = total.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    total.checked_add(number.unwrap_or(0)).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<SshOverrides, ArgumentError> {
        SshOverrides::parse(&split(text)?)
    }

    #[test]
    fn the_usual_arguments_are_understood() {
        let got = parse(
            "-C -o ControlMaster=auto -oControlPersist=60s -J ops@bastion:2222 -o 'UserKnownHostsFile=/a /b' \
             -o StrictHostKeyChecking=accept-new -i ~/.ssh/fleet -p 2200 -l root -o ConnectTimeout=1m5s \
             -o ServerAliveInterval=5 -o IdentitiesOnly=yes -F none",
        )
        .unwrap();
        assert_eq!(got.proxy_jump.as_deref(), Some("ops@bastion:2222"));
        assert_eq!(got.user_known_hosts, Some(vec!["/a".to_owned(), "/b".to_owned()]));
        assert_eq!(got.host_key_policy, Some(HostKeyPolicy::AcceptNew));
        assert_eq!(got.identity_files, ["~/.ssh/fleet"]);
        assert_eq!((got.port, got.user.as_deref()), (Some(2200), Some("root")));
        assert_eq!(got.connect_timeout, Some(Duration::from_secs(65)));
        assert_eq!(got.keepalive_interval, Some(Duration::from_secs(5)));
        assert_eq!(got.identities_only, Some(true));
        assert_eq!(got.config_file.as_deref(), Some("none"));
    }

    #[test]
    fn spellings_of_one_option_mean_the_same() {
        for text in [
            "-o ProxyCommand='nc %h %p'",
            "-oProxyCommand='nc %h %p'",
            "-o 'ProxyCommand nc %h %p'",
            "-o 'proxycommand = nc %h %p'",
        ] {
            assert_eq!(parse(text).unwrap().proxy_command.as_deref(), Some("nc %h %p"), "{text}");
        }
    }

    #[test]
    fn what_people_add_out_of_habit_is_no_error() {
        let got = parse(
            "-q -o BatchMode=yes -o LogLevel=ERROR -o ForwardAgent=no -o ForwardX11Trusted=no -o Tunnel=no \
             -o GSSAPIDelegateCredentials=no -o VerifyHostKeyDNS=no -o ExitOnForwardFailure=yes -o IPQoS=throughput \
             -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no",
        )
        .unwrap();
        assert_eq!(got.user_known_hosts, Some(vec!["/dev/null".to_owned()]));
        for text in ["-o ForwardAgent=yes", "-o VerifyHostKeyDNS=yes", "-o Tunnel=yes", "-tt", "-L 1:a:2"] {
            assert!(matches!(parse(text), Err(ArgumentError::Unsupported { .. })), "{text}");
        }
    }

    #[test]
    fn the_first_value_wins() {
        assert_eq!(parse("-p 1 -o Port=2").unwrap().port, Some(1));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, message) in [
            (
                "-o PKCS11Provider=/x",
                "`PKCS11Provider=/x` is not supported by the built-in SSH client; remove it or use `--transport ssh`",
            ),
            ("-A", "`-A` is not supported by the built-in SSH client; remove it or use `--transport ssh`"),
            (
                "-o GSSAPIAuthentication=yes",
                "`GSSAPIAuthentication=yes` is not supported by the built-in SSH client; remove it or use `--transport ssh`",
            ),
            (
                "host",
                "`host` is not supported by the built-in SSH client; remove it or use `--transport ssh`",
            ),
            ("-p", "`-p` needs a value"),
            ("-o Port", "`Port` needs a value"),
            ("-p 0", "`0` is no value for Port: a port from 1 to 65535"),
            ("-o ConnectTimeout=soon", "`soon` is no value for ConnectTimeout: a time in seconds"),
            ("-o 'x", "the quotes of `-o 'x` do not match"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_arguments_panic(words in proptest::collection::vec("[-a-zA-Z0-9= %']{0,12}", 0..6)) {
            let _ = SshOverrides::parse(&words);
        }

        #[test]
        fn times_add_up(h in 0u64..99, m in 0u64..99, s in 0u64..99) {
            prop_assert_eq!(seconds(&format!("{h}h{m}m{s}")), Some(Duration::from_secs(h * 3600 + m * 60 + s)));
        }
    }
}
