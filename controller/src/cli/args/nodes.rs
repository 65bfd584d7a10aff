//! `facts`, `exec` and `clean`: nodes without a playbook.

use clap::Args;

use super::{Connection, Escalation, Format, InventorySource, NodeAccess};

#[derive(Clone, Debug, Args)]
pub struct FactsArgs {
    /// Hosts, as in the `hosts` of a play.
    #[arg(default_value = "all")]
    pub pattern: String,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub format: Option<Format>,
    #[command(flatten)]
    pub access: NodeAccess,
}

#[derive(Clone, Debug, Args)]
#[command(
    group = clap::ArgGroup::new("deed").required(true).multiple(true).args(["argv", "module_name", "module_args", "list_hosts"]),
    after_help = "Examples:\n  \
        gpufleet exec gpu -- nvidia-smi -L\n  \
        gpufleet exec gpu -a 'uptime'\n  \
        gpufleet exec rack3 -b -m sysctl -a 'name=vm.swappiness value=10'\n  \
        gpufleet exec all -o -m stat -a 'path=/etc/motd'"
)]
pub struct ExecArgs {
    /// Hosts, as in the `hosts` of a play.
    pub pattern: String,
    /// Task kind to run, as in a playbook; `command` unless given. `gpufleet doc` lists them.
    #[arg(short = 'm', long, value_name = "KIND", conflicts_with_all = ["argv", "shell"])]
    pub module_name: Option<String>,
    /// What the kind gets: `key=value` words, a command line, or JSON.
    #[arg(short = 'a', long = "args", value_name = "ARGS", conflicts_with_all = ["argv", "shell"], allow_hyphen_values = true)]
    pub module_args: Option<String>,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(short, long = "extra-vars", value_name = "VARS", conflicts_with = "argv")]
    pub extra_vars: Vec<String>,
    /// Lets the task go on by itself on the node, so long at most; with -m and -a. Unless -P is 0 its end is waited for.
    #[arg(short = 'B', long, value_name = "SECONDS", conflicts_with = "argv")]
    pub background: Option<u64>,
    /// Seconds between two looks at the task; 0 does not wait for its end. 15 unless given.
    #[arg(short = 'P', long, value_name = "SECONDS", requires = "background")]
    pub poll: Option<u64>,
    /// Only tells what would change; with -m and -a.
    #[arg(short = 'C', long, conflicts_with = "argv")]
    pub check: bool,
    /// Shows the text changes of files; with -m and -a.
    #[arg(short = 'D', long, conflicts_with = "argv")]
    pub diff: bool,
    /// Does not ask before nodes are disturbed; needed where there is no terminal to ask on.
    #[arg(short, long, conflicts_with = "argv")]
    pub yes: bool,
    /// Lists the hosts, and does nothing else.
    #[arg(long)]
    pub list_hosts: bool,
    /// Gives the words to `sh -c` as one line.
    #[arg(short, long)]
    pub shell: bool,
    #[command(flatten)]
    pub inventory: InventorySource,
    #[command(flatten)]
    pub escalation: Escalation,
    /// One line for each node.
    #[arg(short, long, help_heading = "Output")]
    pub one_line: bool,
    /// What goes to standard output; `human` unless given.
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub format: Option<Format>,
    /// Program and arguments, without a shell; its output is shown once where it is the same.
    #[arg(last = true, value_name = "COMMAND")]
    pub argv: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, Args)]
pub struct CleanArgs {
    /// Hosts, as in the `hosts` of a play.
    pub pattern: String,
    #[command(flatten)]
    pub inventory: InventorySource,
    #[command(flatten)]
    pub escalation: Escalation,
    #[command(flatten)]
    pub connection: Connection,
}
