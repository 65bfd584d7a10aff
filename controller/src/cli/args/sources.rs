//! Where inventory, playbooks, variables and vault passwords come from.
//!
//! A value that nobody gave is `None` or empty here; [`settings`](super::super::settings) fills it in, so that the
//! command line wins over everything else.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Escalation, duration};

/// How long one call of an inventory script may take unless somebody says otherwise, in seconds.
const SCRIPT_TIMEOUT_S: u64 = 60;

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Which nodes")]
pub struct InventorySource {
    /// Inventory: a file, a folder, or `host1,host2,`; may be given several times. Without it, `inventory` here or
    /// /etc/gpufleet/inventory.
    #[arg(short, long = "inventory", value_name = "SOURCE", visible_alias = "inventory-file")]
    pub inventory: Vec<String>,
    /// Takes only hosts that this pattern selects too; `@FILE` reads hosts from a file, `@RUN:failed` takes those that
    /// a run left in trouble.
    #[arg(short, long, value_name = "PATTERN", visible_alias = "subset")]
    pub limit: Option<String>,
    /// A target set without any host is no error.
    #[arg(long)]
    pub allow_empty: bool,
    /// How long one call of an inventory script may take, such as `5m`; 1 minute unless given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(default)]
    pub script_timeout: Option<u64>,
    #[command(flatten)]
    #[serde(default)]
    pub vault: VaultSource,
}

impl InventorySource {
    /// In seconds.
    pub fn script_timeout_s(&self) -> u64 {
        self.script_timeout.unwrap_or(SCRIPT_TIMEOUT_S)
    }
}

/// Where the passwords and keys of encrypted files and strings come from.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Vault")]
pub struct VaultSource {
    /// File with the vault password, or a program that prints it; may be given several times.
    #[arg(long, value_name = "FILE", visible_alias = "vault-pass-file")]
    pub vault_password_file: Vec<PathBuf>,
    /// Vault password with an id: `ID@FILE`, or `ID@prompt` to be asked; may be given several times.
    #[arg(long, value_name = "[ID@]SOURCE")]
    pub vault_id: Vec<String>,
    /// Asks for the vault password.
    #[arg(short = 'J', long, visible_alias = "ask-vault-password")]
    pub ask_vault_pass: bool,
    /// File with secret keys of age, or a program that prints them; may be given several times.
    #[arg(long, value_name = "FILE")]
    #[serde(default)]
    pub vault_identity: Vec<PathBuf>,
}

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct PlaybookSource {
    /// Playbooks, run one after the other.
    #[arg(required = true, value_name = "PLAYBOOK")]
    pub playbooks: Vec<PathBuf>,
    #[command(flatten)]
    pub choice: TaskChoice,
    #[command(flatten)]
    pub inventory: InventorySource,
    #[command(flatten)]
    pub escalation: Escalation,
    /// A playbook that lies in no file: what `exec -m` makes of its words.
    #[arg(skip)]
    #[serde(default)]
    pub text: Option<String>,
    /// Folders in which roles are looked for, from the settings.
    #[arg(skip)]
    #[serde(default)]
    pub roles_path: Vec<String>,
    #[command(flatten)]
    #[serde(default)]
    pub keep: Keeping,
}

/// What outlives a boot.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "What a boot takes away")]
pub struct Keeping {
    /// Lets nodes assert at each boot what plays declare of their GPUs, as `keep: true` in a play does.
    #[arg(long)]
    pub keep: bool,
    /// SSH key (Ed25519) that signs what nodes keep; one of gpufleet's own, made when it is needed, unless given.
    #[arg(long, value_name = "FILE")]
    pub keep_key: Option<PathBuf>,
}

/// Which tasks of the playbooks run, and with which variables.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Which tasks, with which variables")]
pub struct TaskChoice {
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON); may be given several times.
    #[arg(short, long = "extra-vars", value_name = "VARS")]
    pub extra_vars: Vec<String>,
    /// Runs only tasks with one of these tags.
    #[arg(short, long, value_name = "TAGS", value_delimiter = ',')]
    pub tags: Vec<String>,
    /// Leaves out tasks with one of these tags.
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    pub skip_tags: Vec<String>,
    /// Begins at the task of this name, or the first that this glob matches; everything before it is left out.
    #[arg(long, value_name = "NAME")]
    #[serde(default)]
    pub start_at_task: Option<String>,
    /// Notified handlers run although a task failed on their host.
    #[arg(long)]
    #[serde(default)]
    pub force_handlers: bool,
}

/// Playbooks whose schedulers are asked.
#[derive(Clone, Debug, Args)]
pub struct AskedPlaybooks {
    /// Playbooks whose schedulers are asked too.
    #[arg(value_name = "PLAYBOOK")]
    pub playbooks: Vec<PathBuf>,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(
        short,
        long = "extra-vars",
        value_name = "VARS",
        help_heading = "Which tasks, with which variables"
    )]
    pub extra_vars: Vec<String>,
    #[command(flatten)]
    pub escalation: Escalation,
    /// Folders in which roles are looked for, from the settings.
    #[arg(skip)]
    pub roles_path: Vec<String>,
}

impl From<AskedPlaybooks> for PlaybookSource {
    fn from(asked: AskedPlaybooks) -> Self {
        let AskedPlaybooks { playbooks, inventory, extra_vars, escalation, roles_path } = asked;
        let choice = TaskChoice { extra_vars, ..TaskChoice::default() };
        let keep = Keeping::default();
        Self { playbooks, choice, inventory, escalation, text: None, roles_path, keep }
    }
}
