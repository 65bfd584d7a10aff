//! `topology`: where devices of nodes are.

use clap::{Args, ValueEnum};

use super::NodeAccess;

/// What goes to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TopologyShape {
    #[default]
    Text,
    Json,
    /// A picture; of nodes with one topology.
    Svg,
}

#[derive(Clone, Debug, Args)]
pub struct TopologyArgs {
    /// Hosts, as in the `hosts` of a play.
    #[arg(default_value = "all")]
    pub pattern: String,
    /// What goes to standard output.
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Output"
    )]
    pub shape: TopologyShape,
    #[command(flatten)]
    pub access: NodeAccess,
}
