//! `status`: what GPUs do at this moment.

use clap::{Args, Subcommand};

use super::NodeAccess;

/// Time over which use is averaged unless somebody says otherwise, in seconds.
const WINDOW_S: u32 = 10;

/// `status`, by nodes unless it says of GPUs.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct StatusCall {
    #[command(subcommand)]
    what: Option<StatusCommand>,
    #[command(flatten)]
    args: StatusArgs,
}

impl StatusCall {
    /// What is asked for: a line for each node unless it is named.
    pub fn into_command(self) -> StatusCommand {
        self.what.unwrap_or_else(|| StatusCommand::Node(Box::new(self.args)))
    }

    pub fn args_mut(&mut self) -> &mut StatusArgs {
        match &mut self.what {
            Some(what) => what.args_mut(),
            None => &mut self.args,
        }
    }
}

/// What a line of the table is.
#[derive(Clone, Debug, Subcommand)]
pub enum StatusCommand {
    /// A line for each GPU.
    #[command(after_help = super::super::status::gpu_help())]
    Gpu(Box<StatusArgs>),
    /// A line for each node.
    #[command(after_help = super::super::status::node_help())]
    Node(Box<StatusArgs>),
}

#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Hosts, as in the `hosts` of a play.
    #[arg(default_value = "all")]
    pub pattern: String,
    /// Columns such as `node,gpu,use`, or `wide`, `json` or `csv`.
    #[arg(short = 'o', long = "output", value_name = "COLUMNS", help_heading = "Output")]
    pub shape: Option<String>,
    /// Column to sort by: numbers from the largest, states from the worst; the order of the inventory unless given.
    #[arg(long, value_name = "COLUMN", help_heading = "Output")]
    pub sort_by: Option<String>,
    /// Sorts the other way round.
    #[arg(long, requires = "sort_by", help_heading = "Output")]
    pub reverse: bool,
    /// Seconds over which use is averaged; as many of them as the driver keeps samples of, which is 14 on an H100.
    #[arg(long, value_name = "SECONDS", default_value_t = WINDOW_S, value_parser = clap::value_parser!(u32).range(1..=60), help_heading = "Output")]
    pub window: u32,
    /// Shows the table on the whole screen, and reads the nodes again after so many seconds; 5 unless given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5", value_parser = clap::value_parser!(u32).range(1..=3600), help_heading = "Output")]
    pub watch: Option<u32>,
    #[command(flatten)]
    pub access: NodeAccess,
}

impl StatusCommand {
    pub fn args_mut(&mut self) -> &mut StatusArgs {
        match self {
            Self::Gpu(args) | Self::Node(args) => args,
        }
    }
}
