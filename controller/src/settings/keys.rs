//! The list of settings: each entry gives the key of `gpufleet.toml`, the variable, and Ansible's names.

use super::Setting;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// One file.
    Path,
    /// Files or folders.
    Paths,
    Flag,
    Count,
    /// `90s`, `20m`, or seconds.
    Duration,
    /// `sqlite:PATH`, or a URL that may have a password.
    Store,
    Choice(&'static [&'static str]),
}

impl Kind {
    pub(super) const fn is_path(self) -> bool {
        matches!(self, Self::Path | Self::Paths)
    }

    pub(super) fn wanted(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Path => "the name of a file".to_owned(),
            Self::Paths => "a name, or a list of names".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Count => "a number above 0".to_owned(),
            Self::Duration => "a duration such as \"90s\" or \"20m\"".to_owned(),
            Self::Store => "sqlite:PATH or postgres://…".to_owned(),
            Self::Choice(words) => words.join(" or "),
        }
    }
}

/// One setting.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// One line.
    pub about: &'static str,
    /// The default, in words.
    pub default: &'static str,
    /// Ansible's environment variables for it.
    pub ansible_variables: &'static [&'static str],
    /// Sections and keys of `ansible.cfg` for it.
    pub ansible_keys: &'static [(&'static str, &'static str)],
}

const fn key(name: &'static str, kind: Kind, about: &'static str, default: &'static str) -> Key {
    Key { name, kind, about, default, ansible_variables: &[], ansible_keys: &[] }
}

/// All settings, in the order in which `gpufleet config` shows them.
pub const KEYS: &[Key] = &[
    Key {
        ansible_variables: &["ANSIBLE_INVENTORY"],
        ansible_keys: &[("defaults", "inventory")],
        ..key("inventory", Kind::Paths, "inventory sources (-i)", "inventory or /etc/gpufleet/inventory")
    },
    key("script_timeout", Kind::Duration, "how long an inventory script may take (--script-timeout)", "60s"),
    Key {
        ansible_variables: &["ANSIBLE_ROLES_PATH"],
        ansible_keys: &[("defaults", "roles_path")],
        ..key("roles_path", Kind::Paths, "folders in which roles are looked for", "roles beside the playbook")
    },
    Key {
        ansible_variables: &["ANSIBLE_REMOTE_USER"],
        ansible_keys: &[("defaults", "remote_user")],
        ..key("user", Kind::Text, "user to log in as (-u)", "that of ssh")
    },
    Key {
        ansible_variables: &["ANSIBLE_PRIVATE_KEY_FILE"],
        ansible_keys: &[("defaults", "private_key_file")],
        ..key("private_key", Kind::Path, "private key to log in with (--private-key)", "those of ssh")
    },
    Key {
        ansible_variables: &["ANSIBLE_ASK_PASS"],
        ansible_keys: &[("defaults", "ask_pass")],
        ..key("ask_pass", Kind::Flag, "ask for the login password (-k)", "false")
    },
    Key {
        ansible_variables: &["ANSIBLE_CONNECTION_PASSWORD_FILE"],
        ansible_keys: &[("defaults", "connection_password_file")],
        ..key(
            "connection_password_file",
            Kind::Path,
            "file with the login password (--connection-password-file)",
            "none",
        )
    },
    Key {
        ansible_variables: &["ANSIBLE_HOST_KEY_CHECKING"],
        ansible_keys: &[("defaults", "host_key_checking"), ("ssh_connection", "host_key_checking")],
        ..key(
            "host_key_checking",
            Kind::Flag,
            "false accepts and records unknown host keys (--accept-new); a changed key stays an error",
            "true",
        )
    },
    key("transport", Kind::Choice(&["russh", "ssh"]), "SSH client (--transport)", "russh"),
    key("ssh_config", Kind::Path, "file for `ssh -G` to read (-F)", "~/.ssh/config"),
    Key {
        ansible_variables: &["ANSIBLE_SSH_ARGS"],
        ansible_keys: &[("ssh_connection", "ssh_args")],
        ..key("ssh_args", Kind::Text, "arguments of ssh, before all others", "none")
    },
    Key {
        ansible_variables: &["ANSIBLE_SSH_COMMON_ARGS"],
        ansible_keys: &[("ssh_connection", "ssh_common_args")],
        ..key("ssh_common_args", Kind::Text, "arguments of ssh (--ssh-common-args)", "none")
    },
    Key {
        ansible_variables: &["ANSIBLE_SSH_EXTRA_ARGS"],
        ansible_keys: &[("ssh_connection", "ssh_extra_args")],
        ..key("ssh_extra_args", Kind::Text, "more arguments of ssh (--ssh-extra-args)", "none")
    },
    Key {
        ansible_variables: &["ANSIBLE_FORKS"],
        ansible_keys: &[("defaults", "forks")],
        ..key("forks", Kind::Count, "nodes worked on at the same time (-f)", "256")
    },
    Key {
        ansible_variables: &["ANSIBLE_TIMEOUT", "ANSIBLE_SSH_TIMEOUT"],
        ansible_keys: &[("defaults", "timeout"), ("ssh_connection", "timeout")],
        ..key("connect_timeout", Kind::Duration, "how long connecting may take (-T)", "15s")
    },
    Key {
        ansible_variables: &["ANSIBLE_TASK_TIMEOUT"],
        ansible_keys: &[("defaults", "task_timeout")],
        ..key("task_timeout", Kind::Duration, "how long one task may take (--task-timeout)", "1800s")
    },
    Key {
        ansible_variables: &["ANSIBLE_BECOME"],
        ansible_keys: &[("privilege_escalation", "become")],
        ..key("become", Kind::Flag, "become another user where a play does not say (-b)", "false")
    },
    Key {
        ansible_variables: &["ANSIBLE_BECOME_USER"],
        ansible_keys: &[("privilege_escalation", "become_user")],
        ..key("become_user", Kind::Text, "user to become (--become-user)", "root")
    },
    Key {
        ansible_variables: &["ANSIBLE_BECOME_METHOD"],
        ansible_keys: &[("privilege_escalation", "become_method")],
        ..key(
            "become_method",
            Kind::Choice(&["sudo"]),
            "how to become another user (--become-method)",
            "sudo",
        )
    },
    Key {
        ansible_variables: &["ANSIBLE_BECOME_ASK_PASS"],
        ansible_keys: &[("privilege_escalation", "become_ask_pass")],
        ..key("become_ask_pass", Kind::Flag, "ask for the password that sudo wants (-K)", "false")
    },
    Key {
        ansible_variables: &["ANSIBLE_BECOME_PASSWORD_FILE"],
        ansible_keys: &[("defaults", "become_password_file")],
        ..key(
            "become_password_file",
            Kind::Path,
            "file with the password that sudo wants (--become-password-file)",
            "none",
        )
    },
    Key {
        ansible_variables: &["ANSIBLE_VAULT_PASSWORD_FILE"],
        ansible_keys: &[("defaults", "vault_password_file")],
        ..key(
            "vault_password_file",
            Kind::Paths,
            "files with vault passwords (--vault-password-file)",
            "none",
        )
    },
    Key {
        ansible_variables: &["ANSIBLE_VAULT_IDENTITY_LIST"],
        ansible_keys: &[("defaults", "vault_identity_list")],
        ..key("vault_id", Kind::Paths, "vault passwords with ids, each `ID@FILE` (--vault-id)", "none")
    },
    key("vault_identity", Kind::Paths, "files with secret keys of age (--vault-identity)", "none"),
    key(
        "vault_recipients",
        Kind::Paths,
        "files with recipients of age, for whom `vault` encrypts (-R); none encrypts with a password",
        "none",
    ),
    Key {
        ansible_variables: &["ANSIBLE_ASK_VAULT_PASS"],
        ansible_keys: &[("defaults", "ask_vault_pass")],
        ..key("ask_vault_pass", Kind::Flag, "ask for the vault password (-J)", "false")
    },
    Key {
        ansible_variables: &["ANSIBLE_FORCE_HANDLERS"],
        ansible_keys: &[("defaults", "force_handlers")],
        ..key(
            "force_handlers",
            Kind::Flag,
            "run notified handlers although a task failed (--force-handlers)",
            "false",
        )
    },
    Key {
        ansible_variables: &["ANSIBLE_DIFF_ALWAYS"],
        ansible_keys: &[("diff", "always")],
        ..key("diff", Kind::Flag, "show changes (-D)", "false")
    },
    key(
        "store",
        Kind::Store,
        "where the history of audits is: sqlite:PATH or postgres://… (--store)",
        "history.db below the state directory",
    ),
    key(
        "keep_runs",
        Kind::Count,
        "how many runs this machine keeps the records of; never fewer than 50, and all with nodes out",
        "2000",
    ),
    key("keep_runs_for", Kind::Duration, "how long this machine keeps the records of runs", "400d"),
    key(
        "format",
        Kind::Choice(&["human", "json", "jsonl", "ansible"]),
        "what goes to standard output (--format)",
        "human",
    ),
    Key {
        ansible_variables: &["ANSIBLE_NOCOLOR", "ANSIBLE_FORCE_COLOR"],
        ansible_keys: &[("defaults", "nocolor"), ("defaults", "force_color")],
        ..key("color", Kind::Choice(&["auto", "always", "never"]), "colours (--color)", "auto")
    },
];

/// Parses a boolean as Ansible does.
fn flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" | "on" | "1" | "true" | "t" => Some(true),
        "n" | "no" | "off" | "0" | "false" | "f" => Some(false),
        _ => None,
    }
}

impl Key {
    /// Returns a value as it may be shown: without the password of a store.
    pub fn shown(&self, value: &Setting) -> String {
        let text = value.to_string();
        if self.kind == Kind::Store { gpufleet_history::redacted(&text) } else { text }
    }

    /// Returns the environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("GPUFLEET_{}", self.name.to_ascii_uppercase())
    }

    /// Parses a value.
    ///
    /// # Errors
    /// What is expected instead.
    pub(super) fn read_text(&self, text: &str) -> Result<Setting, String> {
        let text = text.trim();
        let value = match self.kind {
            Kind::Text | Kind::Path | Kind::Store => Some(Setting::Text(text.to_owned())),
            // Not split: a list of hosts ends with a comma.
            Kind::Paths if text.ends_with(',') => Some(Setting::List(vec![text.to_owned()])),
            Kind::Paths => Some(Setting::List(self.split(text))),
            Kind::Flag => flag(text).map(Setting::Flag),
            Kind::Count => text.parse().ok().filter(|count| *count > 0).map(Setting::Count),
            Kind::Duration => {
                let seconds = gpufleet_protocol::lenient::parse_seconds(text);
                seconds.filter(|seconds| *seconds > 0).map(Setting::Seconds)
            }
            Kind::Choice(words) => {
                let word = words.iter().find(|word| word.eq_ignore_ascii_case(text));
                word.map(|word| Setting::Text((*word).to_owned()))
            }
        };
        value.ok_or_else(|| self.kind.wanted())
    }

    /// Parses a value of Ansible's setting `name`; only the words for colours differ.
    ///
    /// # Errors
    /// What is expected instead.
    pub(super) fn read_ansible(&self, name: &str, text: &str) -> Result<Setting, String> {
        let name = name.to_ascii_lowercase();
        if self.name == "color" {
            let on = flag(text).ok_or_else(|| Kind::Flag.wanted())?;
            let word = match (name.ends_with("force_color"), on) {
                (true, true) => "always",
                (false, true) => "never",
                (_, false) => "auto",
            };
            return Ok(Setting::Text(word.to_owned()));
        }
        // Ansible's 0 means no timeout, which no task has here.
        if self.name == "task_timeout" && text.trim() == "0" {
            return Err("a time limit; every task has one here".to_owned());
        }
        self.read_text(text)
    }

    fn split(&self, text: &str) -> Vec<String> {
        let separator = if self.name == "roles_path" { ':' } else { ',' };
        text.split(separator).map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }
}
