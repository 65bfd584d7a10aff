//! How nodes are reached, and as whom.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{InventorySource, duration};

/// Nodes worked on at the same time unless somebody says otherwise.
const FORKS: usize = 256;
/// How long connecting may take, in seconds.
const CONNECT_S: u64 = 15;
/// How long one task may take, in seconds.
const TASK_S: u64 = 30 * 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum TransportChoice {
    /// gpufleet's own SSH.
    Russh,
    /// OpenSSH's client as a subprocess: GSSAPI, FIDO keys and whatever else it can do.
    Ssh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum ConnectionKind {
    /// Over SSH.
    #[value(aliases = ["smart", "paramiko", "ansible.builtin.ssh"])]
    Ssh,
    /// On this machine itself.
    #[value(alias = "ansible.builtin.local")]
    Local,
}

#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// User to log in as, where the inventory does not say.
    #[arg(short = 'u', long, value_name = "USER", visible_alias = "remote-user")]
    pub user: Option<String>,
    /// Private key to log in with.
    #[arg(long, value_name = "FILE", visible_alias = "key-file")]
    pub private_key: Option<PathBuf>,
    /// Asks for the login password.
    #[arg(short = 'k', long)]
    pub ask_pass: bool,
    /// File with the login password, or a program that prints it.
    #[arg(long, value_name = "FILE", visible_alias = "conn-pass-file", conflicts_with = "ask_pass")]
    #[serde(default)]
    pub connection_password_file: Option<PathBuf>,
    /// `ssh` or `local`, where the inventory does not say.
    #[arg(short = 'c', long = "connection", value_name = "TYPE", hide_possible_values = true)]
    #[serde(default)]
    pub kind: Option<ConnectionKind>,
    /// SSH client: the built-in one unless given.
    #[arg(long, value_name = "HOW")]
    pub transport: Option<TransportChoice>,
    /// Accepts and records the key of a host that is not known yet; a changed key stays an error.
    #[arg(long)]
    pub accept_new: bool,
    /// File for `ssh -G` to read instead of ~/.ssh/config; `none` reads no file.
    #[arg(short = 'F', long, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
    /// Arguments of every ssh connection, such as `-J bastion`, where the inventory has no `ansible_ssh_common_args`.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    #[serde(default)]
    pub ssh_common_args: Option<String>,
    /// More arguments of ssh, where the inventory has no `ansible_ssh_extra_args`.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    #[serde(default)]
    pub ssh_extra_args: Option<String>,
    /// `ssh_args` of the settings.
    #[arg(skip)]
    #[serde(default)]
    pub ssh_args: Option<String>,
    /// Nodes worked on at the same time; 256 unless given.
    #[arg(short = 'f', long, value_name = "N", value_parser = forks)]
    pub forks: Option<usize>,
    /// How long connecting to a node may take, such as `10s`; 15 seconds unless given.
    #[arg(short = 'T', long, value_name = "TIME", value_parser = duration, visible_alias = "timeout")]
    pub connect_timeout: Option<u64>,
    /// How long one task may take unless it says otherwise, such as `2h`; 30 minutes unless given, 10 for `exec … -- COMMAND`.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub task_timeout: Option<u64>,
}

fn forks(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|forks| *forks > 0).ok_or_else(|| "a number of nodes above 0".to_owned())
}

impl Connection {
    pub fn forks(&self) -> usize {
        self.forks.unwrap_or(FORKS).max(1)
    }

    /// In seconds.
    pub fn connect_timeout_s(&self) -> u64 {
        self.connect_timeout.unwrap_or(CONNECT_S)
    }

    /// In seconds.
    pub fn task_timeout_s(&self) -> u64 {
        self.task_timeout.unwrap_or(TASK_S)
    }
}

/// Acting as another user on the nodes.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Becoming another user")]
pub struct Escalation {
    /// Acts as root, or as --become-user, where a play does not say.
    #[arg(short, long)]
    pub r#become: bool,
    /// User to become, where a play does not say; root unless given.
    #[arg(long, value_name = "USER")]
    #[serde(default)]
    pub become_user: Option<String>,
    /// How: `sudo` is the only way there is.
    #[arg(long, value_name = "METHOD", value_parser = become_method)]
    #[serde(default)]
    pub become_method: Option<String>,
    /// Asks for the password that sudo wants.
    #[arg(short = 'K', long)]
    #[serde(default)]
    pub ask_become_pass: bool,
    /// File with the password that sudo wants, or a program that prints it.
    #[arg(long, value_name = "FILE", visible_alias = "become-pass-file", conflicts_with = "ask_become_pass")]
    #[serde(default)]
    pub become_password_file: Option<PathBuf>,
}

/// Methods other than sudo are told at once, with what to do.
fn become_method(text: &str) -> Result<String, String> {
    match text {
        "sudo" | "ansible.builtin.sudo" => Ok("sudo".to_owned()),
        other => Err(format!("`{other}` is not supported: sudo is the only way to become another user")),
    }
}

/// Which inventory, and how its nodes are reached, for commands that only read them.
#[derive(Clone, Debug, Args)]
pub struct NodeAccess {
    #[command(flatten)]
    pub inventory: InventorySource,
    #[command(flatten)]
    pub escalation: Escalation,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(short, long = "extra-vars", value_name = "VARS")]
    pub extra_vars: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
}
