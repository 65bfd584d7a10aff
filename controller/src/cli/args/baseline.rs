//! `gpufleet baseline`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::NodeAccess;

#[derive(Clone, Debug, Subcommand)]
pub enum BaselineCommand {
    /// Lists the built-in baselines.
    List,
    /// Prints the file of a built-in baseline.
    Show {
        /// Its name, such as `training`.
        name: String,
    },
    /// Reads good nodes, and writes a baseline that declares what they have in common; changes nothing on them.
    #[command(after_help = "Examples:\n  \
        gpufleet baseline from gpu001 -i inventory/ -o h200.yaml\n  \
        gpufleet baseline from h200 -i inventory/ --extends training -o h200.yaml\n  \
        gpufleet audit --baseline h200.yaml -i inventory/")]
    From(Box<BaselineFromArgs>),
}

#[derive(Clone, Debug, Args)]
pub struct BaselineFromArgs {
    /// Hosts, as in the `hosts` of a play; of several, what at least 80 of 100 have is declared.
    pub pattern: String,
    /// The built-in baseline that the new one extends, and by which the nodes must be good.
    #[arg(long, value_name = "NAME", default_value = "core")]
    pub extends: String,
    /// Its name in reports; that of the file, or of the hosts, unless given.
    #[arg(long)]
    pub name: Option<String>,
    /// Learns from nodes with findings too; each is shown.
    #[arg(long)]
    pub anyway: bool,
    /// Writes to this file, which must not exist; to standard output without it.
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub access: NodeAccess,
}
