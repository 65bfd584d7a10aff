//! `keep`: what nodes assert at each boot.

use clap::{Args, Subcommand};

use super::{Connection, Escalation, Format, InventorySource, NodeAccess};

#[derive(Clone, Debug, Subcommand)]
pub enum KeepCommand {
    /// Shows what each node keeps, and what its latest boot came to.
    #[command(
        after_help = "Exit codes: 0 all as declared or nothing kept, 2 a node needs a look, 4 only unreachable nodes."
    )]
    Status(Box<KeepStatusArgs>),
    /// Removes what nodes keep, and the unit that asserts it; their GPUs stay as they are.
    Remove(Box<KeepRemoveArgs>),
}

#[derive(Clone, Debug, Args)]
pub struct KeepStatusArgs {
    /// Hosts, as in the `hosts` of a play.
    #[arg(default_value = "all")]
    pub pattern: String,
    /// What goes to standard output; `human` unless given.
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub format: Option<Format>,
    #[command(flatten)]
    pub access: NodeAccess,
}

#[derive(Clone, Debug, Args)]
pub struct KeepRemoveArgs {
    /// Hosts, as in the `hosts` of a play.
    pub pattern: String,
    /// Only tells what would be removed.
    #[arg(short = 'C', long)]
    pub check: bool,
    #[command(flatten)]
    pub inventory: InventorySource,
    #[command(flatten)]
    pub escalation: Escalation,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(short, long = "extra-vars", value_name = "VARS")]
    pub extra_vars: Vec<String>,
    /// What goes to standard output; `human` unless given.
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub format: Option<Format>,
    #[command(flatten)]
    pub connection: Connection,
}
