//! Arguments of `mig`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Format;

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
