//! `inventory` and `hosts`.

use std::path::PathBuf;

use clap::Args;

use super::InventorySource;

#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["list", "graph", "host"]))]
pub struct InventoryArgs {
    /// With --graph: the group to begin at.
    #[arg(value_name = "GROUP", requires = "graph")]
    pub group: Option<String>,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Prints all groups and variables as JSON, as `ansible-inventory --list` does.
    #[arg(long)]
    pub list: bool,
    /// Draws the tree of groups, from the group given.
    #[arg(long, num_args = 0..=1, default_missing_value = "all", value_name = "GROUP")]
    pub graph: Option<String>,
    /// Prints the variables of one host as JSON.
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// With --graph: variables too.
    #[arg(long, requires = "graph")]
    pub vars: bool,
    /// With --list and --host: YAML in place of JSON.
    #[arg(short = 'y', long, conflicts_with = "graph")]
    pub yaml: bool,
    /// Keeps variables where they are defined: those of a group with the group, not with each of its hosts.
    #[arg(long)]
    pub export: bool,
    /// With --list: writes to this file in place of standard output.
    #[arg(long = "output", value_name = "FILE", requires = "list")]
    pub output_file: Option<PathBuf>,
    /// Folder whose `group_vars` and `host_vars` win over those beside the inventory, as a playbook's; without it the
    /// current one.
    #[arg(long, value_name = "FOLDER")]
    pub playbook_dir: Option<PathBuf>,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(short, long = "extra-vars", value_name = "VARS")]
    pub extra_vars: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub struct HostsArgs {
    /// Hosts, as in the `hosts` of a play.
    #[arg(default_value = "all")]
    pub pattern: String,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(short, long = "extra-vars", value_name = "VARS")]
    pub extra_vars: Vec<String>,
}
