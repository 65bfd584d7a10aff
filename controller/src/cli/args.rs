//! The command line: every command and flag, whose doc comments are the help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::check::{CheckArgs, ImportArgs};
use super::doc::{KindName, ManArgs, SchemaArgs};
use super::vault_edit::{VaultCreateArgs, VaultEditArgs, VaultRekeyArgs};

/// Brings every GPU node of a fleet to its declared state, in safe waves over SSH, and proves it.
#[derive(Debug, Parser)]
#[command(name = "gpufleet", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 wrong input (nothing was touched), 2 nodes failed, 3 not compliant or \
                        unknown, 4 only unreachable nodes, 5 stopped by a safety gate, 130 interrupted."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct Output {
    /// Colours: `auto` is where a terminal shows them and NO_COLOR is not set.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
    /// Shows each change (`-v`), each task (`-vv`), what the program does (`-vvv`).
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
}

/// As in a play.
const MAX_SOAK_S: u64 = 30 * 24 * 60 * 60;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Brings the nodes to the state that playbooks declare.
    Run(RunArgs),
    /// Tells what a run would change on each node, and how much that would disturb.
    Plan(PlanArgs),
    /// Reports whether the nodes are as declared; exit code 3 when one is not, or cannot be read.
    Audit(AuditArgs),
    /// Shows hardware and driver facts.
    Facts(FactsArgs),
    /// Runs one program on nodes.
    Exec(ExecArgs),
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
    /// Shows the report of a run, or names its file.
    Report(ReportArgs),
    /// Finds everything that is wrong or doubtful in playbooks, without any node.
    Check(CheckArgs),
    /// Tells which tasks of Ansible playbooks run as they are, and what replaces the others.
    Import(ImportArgs),
    /// Explains a task kind, or lists them all.
    Doc(DocArgs),
    /// Prints a JSON schema for editors and other programs.
    Schema(SchemaArgs),
    /// Removes every trace of gpufleet from nodes.
    Clean(CleanArgs),
    /// Shows, encrypts and decrypts files and strings as `ansible-vault` does.
    #[command(subcommand)]
    Vault(VaultCommand),
    /// Prints completions for a shell.
    Completion {
        /// Shell to complete for.
        shell: clap_complete::Shell,
    },
    /// Prints a manual page, or writes all of them.
    Man(ManArgs),
}

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct InventorySource {
    /// Inventory: a file, a folder, or `host1,host2,`; may be given several times. Without it, `inventory` here or
    /// /etc/gpufleet/inventory.
    #[arg(
        short,
        long = "inventory",
        value_name = "SOURCE",
        env = "GPUFLEET_INVENTORY",
        value_delimiter = '\0'
    )]
    pub inventory: Vec<String>,
    /// Takes only hosts that this pattern selects too; `@FILE` reads hosts from a file, `@RUN:failed` takes those that
    /// a run left in trouble.
    #[arg(short, long, value_name = "PATTERN")]
    pub limit: Option<String>,
    /// A target set without any host is no error.
    #[arg(long)]
    pub allow_empty: bool,
    /// How long one call of an inventory script may take, such as `5m`.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    #[serde(default = "script_timeout_s")]
    pub script_timeout: u64,
    #[command(flatten)]
    #[serde(default)]
    pub vault: VaultSource,
}

/// Where the passwords of encrypted files and strings come from.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
pub struct VaultSource {
    /// File with the vault password, or a program that prints it; may be given several times.
    #[arg(
        long,
        value_name = "FILE",
        visible_alias = "vault-pass-file",
        help_heading = "Vault",
        env = "ANSIBLE_VAULT_PASSWORD_FILE",
        value_delimiter = '\0'
    )]
    pub vault_password_file: Vec<PathBuf>,
    /// Vault password with an id: `ID@FILE`, or `ID@prompt` to be asked; may be given several times.
    #[arg(long, value_name = "[ID@]SOURCE", help_heading = "Vault")]
    pub vault_id: Vec<String>,
    /// Asks for the vault password.
    #[arg(short = 'J', long, visible_alias = "ask-vault-password", help_heading = "Vault")]
    pub ask_vault_pass: bool,
}

/// For runs recorded before it could be chosen, in seconds.
fn script_timeout_s() -> u64 {
    60
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum TransportChoice {
    /// gpufleet's own SSH.
    Russh,
    /// OpenSSH's client as a subprocess: GSSAPI, FIDO keys and whatever else it can do.
    Ssh,
}

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// User to log in as.
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,
    /// Private key to log in with.
    #[arg(long, value_name = "FILE", visible_alias = "key-file")]
    pub private_key: Option<PathBuf>,
    /// Asks for the login password.
    #[arg(short = 'k', long)]
    pub ask_pass: bool,
    /// Asks for the password that sudo wants.
    #[arg(short = 'K', long)]
    pub ask_become_pass: bool,
    /// How nodes are reached.
    #[arg(long, value_name = "HOW", default_value = "russh")]
    pub transport: TransportChoice,
    /// Accepts and records the key of a host that is not known yet; a changed key stays an error.
    #[arg(long)]
    pub accept_new: bool,
    /// File for `ssh -G` to read instead of ~/.ssh/config; `none` reads no file.
    #[arg(short = 'F', long, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
    /// Nodes worked on at the same time.
    #[arg(short = 'f', long, value_name = "N", default_value_t = 256)]
    pub forks: usize,
    /// How long connecting to a node may take, such as `10s`.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration)]
    pub connect_timeout: u64,
    /// How long one task may take unless it says otherwise.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    pub task_timeout: u64,
}

fn duration(text: &str) -> Result<u64, String> {
    gpufleet_protocol::lenient::parse_seconds(text)
        .filter(|seconds| *seconds > 0)
        .ok_or_else(|| "a duration such as 90s, 20m or 2h".to_owned())
}

fn window(text: &str) -> Result<gpufleet::rollout::Window, String> {
    gpufleet::rollout::Window::parse(text).map_err(|error| error.to_string())
}

/// A duration that may be none at all.
fn soak(text: &str) -> Result<u64, String> {
    gpufleet_protocol::lenient::parse_seconds(text)
        .filter(|seconds| *seconds <= MAX_SOAK_S)
        .ok_or_else(|| "a duration such as 90s, 20m or 2h, and at most 30d".to_owned())
}

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct PlaybookSource {
    /// Playbooks, run one after the other.
    #[arg(required = true, value_name = "PLAYBOOK")]
    pub playbooks: Vec<PathBuf>,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(short, long = "extra-vars", value_name = "VARS")]
    pub extra_vars: Vec<String>,
    /// Runs only tasks with one of these tags.
    #[arg(short, long, value_name = "TAGS", value_delimiter = ',')]
    pub tags: Vec<String>,
    /// Leaves out tasks with one of these tags.
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    pub skip_tags: Vec<String>,
    /// Acts as root where a play does not say.
    #[arg(short, long)]
    pub r#become: bool,
}

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct RunArgs {
    #[command(flatten)]
    pub source: PlaybookSource,
    /// Does not ask before nodes are disturbed; needed where there is no terminal to ask on.
    #[arg(short, long)]
    pub yes: bool,
    /// Only tells what would change, as `plan` does.
    #[arg(short = 'C', long)]
    pub check: bool,
    /// With --check: exit code 3 when something would change.
    #[arg(long, requires = "check")]
    pub fail_on_change: bool,
    /// Shows the text changes of files.
    #[arg(short = 'D', long)]
    pub diff: bool,
    #[command(flatten)]
    pub bounds: Bounds,
    /// How long a wave is watched before the next begins, such as `10m`; wins over the plays'.
    #[arg(long, value_name = "TIME", value_parser = soak)]
    pub soak: Option<u64>,
    /// Nodes that may fail before nothing new starts; wins over the plays'.
    #[arg(long, value_name = "N")]
    pub max_failures: Option<u32>,
    #[command(flatten)]
    pub overruling: Overruling,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    #[command(flatten)]
    pub connection: Connection,
}

/// When nodes may be taken out, and how many.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Bounds {
    /// Nodes that may be out of service at once, whoever took them out; wins over the plays'.
    #[arg(long, value_name = "N|%", value_parser = amount)]
    pub max_unavailable: Option<gpufleet::rollout::Amount>,
    /// When nodes may be disturbed, such as "Sat 02:00-06:00 Europe/Berlin"; wins over the plays'.
    #[arg(long, value_name = "TEXT", value_parser = window)]
    pub window: Option<gpufleet::rollout::Window>,
}

/// What a person says over a safety check.
#[derive(Clone, Copy, Debug, Args, Serialize, Deserialize)]
pub struct Overruling {
    /// Disturb nodes although they are busy or nobody knows whether they are; what it goes over is shown and recorded.
    #[arg(long)]
    pub force: bool,
    /// Take a scheduler's lock over from another run; only when its gpufleet is known to be gone.
    #[arg(long)]
    pub steal: bool,
}

fn amount(text: &str) -> Result<gpufleet::rollout::Amount, String> {
    gpufleet::rollout::Amount::parse(text)
        .ok_or_else(|| "a number of nodes or a share such as 10%".to_owned())
}

#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub source: PlaybookSource,
    /// Shows every change, with the text changes of files.
    #[arg(short = 'D', long)]
    pub diff: bool,
    /// Shows one node in full.
    #[arg(long, value_name = "HOST")]
    pub node: Option<String>,
    #[command(flatten)]
    pub bounds: Bounds,
    /// Exit code 3 when something would change.
    #[arg(long)]
    pub fail_on_change: bool,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, Args)]
pub struct AuditArgs {
    #[command(flatten)]
    pub source: PlaybookSource,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, Args)]
pub struct FactsArgs {
    /// Hosts, as in the `hosts` of a play.
    #[arg(default_value = "all")]
    pub pattern: String,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Acts as root.
    #[arg(short, long)]
    pub r#become: bool,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, Args)]
pub struct ExecArgs {
    /// Hosts, as in the `hosts` of a play.
    pub pattern: String,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Acts as root.
    #[arg(short, long)]
    pub r#become: bool,
    /// Gives the words to `sh -c` as one line.
    #[arg(short, long)]
    pub shell: bool,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    /// Program and arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub argv: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
}

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
}

#[derive(Clone, Debug, Args)]
pub struct RunsArgs {
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

#[derive(Clone, Debug, Args)]
pub struct ResumeArgs {
    /// Run: its id, or either end of it; without it the newest that is unfinished.
    pub run: Option<String>,
    /// Does not ask before nodes are disturbed; needed where there is no terminal to ask on.
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    pub overruling: Overruling,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

#[derive(Clone, Debug, Args)]
pub struct AbortArgs {
    /// Run: its id, or either end of it.
    pub run: String,
    /// What goes to standard output.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

#[derive(Clone, Debug, Args)]
pub struct LocksArgs {
    #[command(flatten)]
    pub source: AskedPlaybooks,
    #[command(flatten)]
    pub connection: Connection,
}

/// Playbooks whose schedulers are asked; none is nobody.
#[derive(Clone, Debug, Args)]
pub struct AskedPlaybooks {
    /// Playbooks whose schedulers are asked too.
    #[arg(value_name = "PLAYBOOK")]
    pub playbooks: Vec<PathBuf>,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Variables that win over all others: `name=value`, JSON, or `@FILE` (YAML or JSON).
    #[arg(short, long = "extra-vars", value_name = "VARS")]
    pub extra_vars: Vec<String>,
}

impl From<AskedPlaybooks> for PlaybookSource {
    fn from(asked: AskedPlaybooks) -> Self {
        let AskedPlaybooks { playbooks, inventory, extra_vars } = asked;
        Self { playbooks, inventory, extra_vars, tags: Vec::new(), skip_tags: Vec::new(), r#become: false }
    }
}

#[derive(Clone, Debug, Args)]
pub struct AdoptArgs {
    /// Only what this run left; without it what any lost run left.
    #[arg(long = "run", value_name = "RUN")]
    pub run: Option<String>,
    #[command(flatten)]
    pub run_args: RunArgs,
}

#[derive(Clone, Debug, Args)]
pub struct PauseArgs {
    /// Run: its id, either end of it, or `latest`.
    #[arg(default_value = "latest")]
    pub run: String,
}

#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Run: its id, either end of it, or `latest`.
    #[arg(default_value = "latest")]
    pub run: String,
    /// What is printed: the screen, the JSON document, or the path of the HTML page.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: ReportFormat,
    /// Writes the HTML page or the JSON document (by the name's ending) to this file.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    Human,
    Json,
    Jsonl,
    Html,
    Path,
}

#[derive(Clone, Debug, Args)]
pub struct DocArgs {
    /// Kind, such as `gpu_mig`.
    #[arg(value_parser = KindName, hide_possible_values = true)]
    pub kind: Option<String>,
    /// Prints the reference of all kinds as Markdown.
    #[arg(long, conflicts_with = "kind")]
    pub all: bool,
    /// Prints the JSON schema of the kind's parameters.
    #[arg(long, requires = "kind")]
    pub schema: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub enum VaultCommand {
    /// Prints what encrypted files hold.
    View(VaultViewArgs),
    /// Encrypts files in place, or standard input.
    Encrypt(VaultEncryptArgs),
    /// Decrypts files in place, or standard input.
    Decrypt(VaultDecryptArgs),
    /// Encrypts strings to put into YAML.
    #[command(visible_alias = "encrypt_string")]
    EncryptString(VaultEncryptStringArgs),
    /// Opens an editor for a new file, and encrypts what was written.
    Create(VaultCreateArgs),
    /// Opens encrypted files in an editor, and encrypts them again with the password they had.
    Edit(VaultEditArgs),
    /// Encrypts files anew with another password.
    Rekey(VaultRekeyArgs),
}

#[derive(Clone, Debug, Args)]
pub struct VaultViewArgs {
    /// Encrypted files; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub vault: VaultSource,
}

#[derive(Clone, Debug, Args)]
pub struct VaultEncryptArgs {
    /// Files; without one, or as `-`, standard input is encrypted to standard output.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Writes to this file in place of the one that is read; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub with: EncryptWith,
}

/// Which password encrypts.
#[derive(Clone, Debug, Args)]
pub struct EncryptWith {
    /// Id of the password to encrypt with, where several are given.
    #[arg(long, value_name = "ID")]
    pub encrypt_vault_id: Option<String>,
    #[command(flatten)]
    pub vault: VaultSource,
}

#[derive(Clone, Debug, Args)]
pub struct VaultDecryptArgs {
    /// Files; without one, or as `-`, standard input is decrypted to standard output.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Writes to this file in place of the one that is read; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub vault: VaultSource,
}

#[derive(Clone, Debug, Args)]
pub struct VaultEncryptStringArgs {
    /// Strings; without one, or as `-`, standard input.
    #[arg(value_name = "STRING")]
    pub strings: Vec<String>,
    /// Name of the variable of the string at the same place; may be given several times.
    #[arg(short, long, value_name = "NAME")]
    pub name: Vec<String>,
    /// Name of the variable that standard input becomes.
    #[arg(long, value_name = "NAME", conflicts_with = "strings")]
    pub stdin_name: Option<String>,
    /// Writes to this file in place of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub with: EncryptWith,
}

#[derive(Clone, Debug, Args)]
pub struct CleanArgs {
    /// Hosts, as in the `hosts` of a play.
    pub pattern: String,
    #[command(flatten)]
    pub inventory: InventorySource,
    /// Acts as root, which is needed where runs did.
    #[arg(short, long)]
    pub r#become: bool,
    #[command(flatten)]
    pub connection: Connection,
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
