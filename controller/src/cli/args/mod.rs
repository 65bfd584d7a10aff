//! The command line: every command and flag, whose doc comments are the help. A file for each group of commands.

mod baseline;
mod connection;
mod inventory;
mod keep;
mod mig;
mod nodes;
mod records;
mod run;
mod serve;
mod sources;
mod status;
mod topology;
mod vault;
mod watch;

use super::check::{CheckArgs, ImportArgs};
use super::complete::CompleteArgs;
use super::doc::{ManArgs, SchemaArgs};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

pub use self::{
    baseline::{BaselineCommand, BaselineFromArgs},
    connection::{Connection, ConnectionKind, Escalation, NodeAccess, TransportChoice},
    inventory::{HostsArgs, InventoryArgs},
    keep::{KeepCommand, KeepStatusArgs},
    mig::{FitDrain, MigCheckArgs, MigCommand, MigFitArgs, MigPlanArgs},
    nodes::{CleanArgs, ExecArgs, FactsArgs},
    records::{
        AbortArgs, DiffFormat, DocArgs, HistoryArgs, HistoryCommand, PauseArgs, ReportArgs, ReportCommand,
        ReportDiffArgs, ReportFormat, ReportVerifyArgs, ResumeArgs, RunKind, RunsArgs, StoreChoice, Trusted,
    },
    run::{
        AdoptArgs, AuditArgs, Bounds, Checks, Documents, Listing, LocksArgs, Overruling, PlanArgs, RunArgs,
    },
    serve::ServeArgs,
    sources::{AskedPlaybooks, InventorySource, Keeping, PlaybookSource, TaskChoice, VaultSource},
    status::{StatusArgs, StatusCall, StatusCommand},
    topology::{TopologyArgs, TopologyShape},
    vault::{
        AgeRecipients, EncryptWith, VaultCommand, VaultDecryptArgs, VaultEncryptArgs, VaultEncryptStringArgs,
        VaultKeygenArgs, VaultViewArgs,
    },
    watch::WatchArgs,
};

/// Brings every GPU node of a fleet to its declared state, in safe waves over SSH, and proves it.
#[derive(Debug, Parser)]
#[command(name = "gpufleet", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 wrong input (nothing was touched), 2 nodes failed, 3 not compliant or \
                        unknown, 4 only unreachable nodes, 5 stopped by a safety gate, 6 a report of a run \
                        that is not over, 130 interrupted."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Colours; `auto`, which is the default, is where a terminal shows them and NO_COLOR is not set.
    #[arg(long, global = true, value_name = "WHEN")]
    pub color: Option<ColorChoice>,
    /// Reads settings from this file in place of those that are looked for.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Shows each change (`-v`), each task (`-vv`), what the program does (`-vvv`); with `--format ansible` results as
    /// JSON (`-v`) and places (`-vv`).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Shows only errors and what was asked for.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    Auto,
    Always,
    Never,
}

/// What goes to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Format {
    #[default]
    Human,
    /// One document at the end.
    Json,
    /// Each event as it happens, a line each.
    Jsonl,
    /// Task by task, in the lines of ansible-playbook.
    Ansible,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Brings the nodes to the state that playbooks declare.
    #[command(after_help = "Examples:\n  \
        gpufleet run site.yaml -i inventory/ --check --diff\n  \
        gpufleet run site.yaml -i inventory/ -l rack3 -t gpu -e limit=600\n  \
        gpufleet run site.yaml -l @latest:failed --start-at-task 'tune*'\n  \
        gpufleet run site.yaml --yes --format ansible --junit results.xml\n\n\
        What is not said here comes from `gpufleet.toml`, `ansible.cfg` or the environment: `gpufleet config` shows it.\n\
        Exit codes: 0 done, 1 wrong input, 2 nodes failed, 3 changes pending (--fail-on-change), 4 only unreachable nodes,\n\
        5 stopped by a safety gate, 130 interrupted.")]
    Run(Box<RunArgs>),
    /// Tells what a run would change on each node, and how much that would disturb.
    Plan(Box<PlanArgs>),
    /// Reports whether the nodes are healthy and as declared, and changes nothing; exit code 3 when one is not, or cannot
    /// be read.
    #[command(after_help = "Examples:\n  \
        gpufleet audit --health -i inventory/\n  \
        gpufleet audit site.yaml -i inventory/ --baseline training --waivers waivers.yaml")]
    Audit(Box<AuditArgs>),
    /// Lists and shows baselines, or makes one from nodes that are known to be good.
    #[command(subcommand)]
    Baseline(BaselineCommand),
    /// Audits on a schedule, serves metrics and tells of changes; it never changes a node.
    #[command(after_help = "Examples:\n  \
        gpufleet watch --health -i inventory/ --every 6h --listen 127.0.0.1:9464\n  \
        gpufleet watch watch.yaml --check")]
    Watch(Box<WatchArgs>),
    /// Shows hardware and driver facts.
    Facts(FactsArgs),
    /// Shows what GPUs do at this moment, who holds them, and which are free; changes nothing. A line for each node, with
    /// `gpu` one for each GPU.
    Status(Box<StatusCall>),
    /// Draws where GPUs, network cards, drives, CPUs and memory are, which belong together, and what is wrong.
    #[command(after_help = "Examples:\n  \
        gpufleet topology -i inventory/\n  \
        gpufleet topology gpu017 -i inventory/ -o svg > gpu017.svg\n\n\
        Exit codes: 0 all were read, 2 something of a node could not be read, 4 only unreachable nodes.")]
    Topology(TopologyArgs),
    /// Runs one program, or one task of any kind, on nodes.
    Exec(Box<ExecArgs>),
    /// Shows the inventory as it was understood.
    Inventory(InventoryArgs),
    /// Lists the hosts that a pattern selects, one a line.
    Hosts(HostsArgs),
    /// Lists the runs that this machine has recorded.
    Runs(RunsArgs),
    /// Goes on with a run that was cut off, stopped or held: nothing is done twice.
    Resume(ResumeArgs),
    /// Asks a run to stop at a safe point; `gpufleet resume` goes on with it.
    Pause(PauseArgs),
    /// Ends a run for good: leads what is under way to a safe point, gives back what it drained, begins nothing.
    Abort(AbortArgs),
    /// Shows who holds nodes: runs of this machine, and with playbooks also what their schedulers say.
    Locks(LocksArgs),
    /// Takes over, in a new run, what a run whose journal is lost left drained: brings it to its state and gives it back.
    Adopt(Box<AdoptArgs>),
    /// Shows the report of a run, writes and signs it, compares two, or checks a signature.
    #[command(after_help = "Examples:\n  \
        gpufleet report latest --format sarif\n  \
        gpufleet report 01JD8Q4T9X -o audit.html --sign ~/.ssh/id_ed25519")]
    Report(ReportArgs),
    /// Serves read-only web pages of the fleet: what audits found, since when, and runs as they happen.
    #[command(after_help = "Examples:\n  \
        gpufleet serve\n  \
        gpufleet serve --listen 0.0.0.0:7080 --token-file token --tls-cert fleet.pem --tls-key fleet.key")]
    Serve(ServeArgs),
    /// Shows what audits found over time: the fleet's trend, what is open since when, one node, one check.
    #[command(after_help = "Examples:\n  \
        gpufleet history\n  \
        gpufleet history gpu017\n  \
        gpufleet history mem.remap_failed --format json\n  \
        gpufleet history retire gpu017\n  \
        gpufleet history prune --keep 400d")]
    History(HistoryArgs),
    /// Finds everything that is wrong or doubtful in playbooks, without any node.
    Check(CheckArgs),
    /// Tells which tasks of Ansible playbooks run as they are, and what replaces the others.
    Import(ImportArgs),
    /// Draws, checks and plans MIG layouts: profiles, files of mig-parted, and what a fleet needs to meet a demand.
    #[command(subcommand)]
    Mig(MigCommand),
    /// Explains a task kind, a check, a key, a word or a number that gpufleet shows; without one, lists what there is.
    #[command(after_help = "Examples:\n  \
        gpufleet doc gpu_mig\n  \
        gpufleet doc night\n  \
        gpufleet doc max_unavailable\n  \
        gpufleet doc xid 79")]
    Doc(DocArgs),
    /// Prints a JSON schema for editors and other programs.
    Schema(SchemaArgs),
    /// Shows each setting, its value and where it comes from.
    Config(ConfigArgs),
    /// Shows and removes what nodes assert at each boot (`run --keep`).
    #[command(subcommand)]
    Keep(KeepCommand),
    /// Removes every trace of gpufleet from nodes.
    Clean(CleanArgs),
    /// Shows, encrypts and decrypts files and strings as `ansible-vault` does, or with age.
    #[command(subcommand)]
    Vault(VaultCommand),
    /// Prints completions for a shell.
    Completion {
        /// Shell to complete for.
        shell: clap_complete::Shell,
    },
    /// Names hosts, groups or runs for the word that is being typed; the scripts of `completion` call it.
    #[command(hide = true)]
    Complete(CompleteArgs),
    /// Prints a manual page, or writes all of them.
    Man(ManArgs),
}

#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// Shows only settings that somebody set.
    #[arg(long)]
    pub only_changed: bool,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

/// A duration above nothing, in seconds.
pub fn duration(text: &str) -> Result<u64, String> {
    gpufleet_protocol::lenient::parse_seconds(text)
        .filter(|seconds| *seconds > 0)
        .ok_or_else(|| "a duration such as 90s, 20m or 2h".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
