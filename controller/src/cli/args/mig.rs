//! Arguments of `mig`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Format, NodeAccess};

#[derive(Clone, Debug, Subcommand)]
pub enum MigCommand {
    /// Lists the GPU families with MIG, or draws the profiles and places of one.
    #[command(after_help = "Examples:\n  \
        gpufleet mig show\n  \
        gpufleet mig show h100-80gb\n  \
        gpufleet mig show 0x2335")]
    Show {
        /// A family, a product or a PCI device id.
        #[arg(value_name = "GPU")]
        gpu: Option<String>,
        /// What goes to standard output.
        #[arg(long, value_name = "FORMAT", default_value = "human")]
        format: Format,
    },
    /// Finds everything that is wrong in a file of mig-parted, and tells which GPUs each configuration fits.
    #[command(after_help = "Examples:\n  \
        gpufleet mig check mig.yaml\n  \
        gpufleet mig check configmap.yaml --gpu h100-80gb --gpu h200-141gb")]
    Check(MigCheckArgs),
    /// Draws what a configuration gives each GPU of a node, without a node.
    #[command(after_help = "Examples:\n  \
        gpufleet mig plan mig.yaml --config all-balanced --gpu h100-80gb")]
    Plan(MigPlanArgs),
    /// Finds which GPUs of a fleet get which layout, so that a demand is met with the least disturbance, and writes the
    /// playbook that does it; reads every node once, and changes nothing.
    #[command(after_help = "Examples:\n  \
        gpufleet mig fit demand.yaml -i inventory/ -o fit.yaml && gpufleet run fit.yaml -i inventory/\n  \
        gpufleet mig fit --want 1g.10gb=40 --want 3g.40gb=6 -i inventory/ -l inference --become\n  \
        gpufleet mig fit --want 3g.40gb=2 --by rack -i inventory/\n  \
        gpufleet status gpu -i inventory/ -o json > fleet.json && gpufleet mig fit demand.yaml --fleet fleet.json\n\n\
        A demand is a file such as `{1g.10gb: 40, 3g.40gb: 6}`: at least so many, those that exist counted. `whole` is a GPU\n\
        with MIG off; `groups: {NAME: {…}}` and `by: {VARIABLE: {…}}` count in a group, and for each value of a variable.\n\n\
        Exit codes: 0 the demand is met or can be, 1 wrong input, 3 it cannot be met, 4 no node was reached.")]
    Fit(Box<MigFitArgs>),
}

/// How the playbook has nodes drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FitDrain {
    /// Not at all: a node that is busy by then is held.
    #[default]
    None,
    Slurm,
    Kubernetes,
}

#[derive(Clone, Debug, Args)]
pub struct MigFitArgs {
    /// A file with what is wanted.
    #[arg(value_name = "DEMAND", required_unless_present = "want")]
    pub demand: Option<PathBuf>,
    /// At least so many instances of a profile, or of `whole`; may be repeated, beside a file too.
    #[arg(long, value_name = "PROFILE=N")]
    pub want: Vec<String>,
    /// What is wanted is wanted for each value of this variable of hosts, such as the rack.
    #[arg(long, value_name = "VARIABLE")]
    pub by: Option<String>,
    /// Hosts, as in the `hosts` of a play.
    #[arg(long, value_name = "PATTERN", default_value = "all")]
    pub hosts: String,
    /// Takes the fleet from a document of `status gpu -o json` and contacts no node; `-` reads it from standard input.
    #[arg(long, value_name = "FILE")]
    pub fleet: Option<PathBuf>,
    /// Writes the playbook to this file.
    #[arg(short, long, value_name = "FILE", help_heading = "The playbook")]
    pub output: Option<PathBuf>,
    /// Writes it also where the demand cannot be met in full.
    #[arg(long, requires = "output", help_heading = "The playbook")]
    pub partial: bool,
    /// How it has nodes drained.
    #[arg(long, value_name = "HOW", default_value = "none", help_heading = "The playbook")]
    pub drain: FitDrain,
    /// How many nodes it has out of service at once: a number, or a share such as `10%`.
    #[arg(long, value_name = "NODES", default_value = "1", value_parser = nodes, help_heading = "The playbook")]
    pub max_unavailable: String,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    #[command(flatten)]
    pub access: NodeAccess,
}

/// A number of nodes above 0, or a share of them in percent.
fn nodes(text: &str) -> Result<String, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let most = if number == text { u32::MAX } else { 100 };
    match number.parse::<u32>() {
        Ok(number) if (1..=most).contains(&number) => Ok(text.to_owned()),
        _ => Err("a number of nodes such as 2, or a share such as 10%".to_owned()),
    }
}

#[derive(Clone, Debug, Args)]
pub struct MigCheckArgs {
    /// A file of mig-parted, or a ConfigMap that holds one.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Demands that what is for this family fits it, and names configurations without a spec for it; may be repeated.
    #[arg(long = "gpu", value_name = "GPU")]
    pub gpus: Vec<String>,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

#[derive(Clone, Debug, Args)]
pub struct MigPlanArgs {
    /// A file of mig-parted, or a ConfigMap that holds one.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The configuration; not needed if the file has only one.
    // Why a path: it takes the place of the option for every command, which names a file of settings.
    #[arg(long, value_name = "NAME")]
    pub config: Option<PathBuf>,
    /// The GPUs of the node: a family, a product or a PCI device id.
    #[arg(long, value_name = "GPU")]
    pub gpu: String,
    /// How many GPUs the node has.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub gpus: u32,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}
