//! The command line of `gpufleet-lab`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use nvml_sim::model::ModelKey;

use crate::fleet::{Fleet, LabError, Options, serve_real_host};
use crate::spec::SshServer;
use crate::{enter, out, power, restore, sys, view};

/// A fleet of GPU nodes that is not there: real SSH, real processes, simulated GPUs.
///
/// Every node is a set of Linux namespaces over this machine's own root, with an SSH server on 127.0.0.1, a driver library that
/// remembers what it is told, and a reboot that really ends everything. Needs root, or a kernel that lets users make namespaces.
#[derive(Parser)]
#[command(name = "gpufleet-lab", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start a fleet and keep it until Ctrl-C; prints `ready` and the inventory's path.
    Up(FleetArgs),
    /// Start a fleet, run a command with $GPUFLEET_INVENTORY and $GPUFLEET_LAB_DIR set, take the fleet down.
    Exec {
        #[command(flatten)]
        fleet: FleetArgs,
        /// The command; its exit status becomes ours.
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Bring all nodes of a running fleet back to how they were at its start; their logs start anew.
    Restore {
        /// The fleet's directory.
        #[arg(long, env = "GPUFLEET_LAB_DIR")]
        dir: PathBuf,
    },
    /// Print a digest of what is declared on each node: GPU settings, MIG layouts, files, services that run.
    ///
    /// Equal digests mean equal nodes, whatever happened on the way: boot ids, MIG identities, process ids and times are left out.
    Hash {
        /// The fleet's directory.
        #[arg(long, env = "GPUFLEET_LAB_DIR")]
        dir: PathBuf,
        /// Print what the digests are made of.
        #[arg(long)]
        text: bool,
    },
    /// Print as JSON, from the nodes' own logs, reboots, resets and how many nodes were out at once.
    Outages {
        /// The fleet's directory.
        #[arg(long, env = "GPUFLEET_LAB_DIR")]
        dir: PathBuf,
    },
    /// The power switch of a node, whatever state the node is in; made for `power_cycle` of a play.
    Power {
        /// The fleet's directory.
        #[arg(long, env = "GPUFLEET_LAB_DIR")]
        dir: PathBuf,
        /// The node's name.
        node: String,
        /// What to do.
        #[arg(value_enum)]
        action: Switch,
    },
    /// Run `gpusimctl` inside a node of a running fleet (`gpufleet-lab ctl --dir DIR gpu001 show`).
    Ctl {
        /// The fleet's directory.
        #[arg(long, env = "GPUFLEET_LAB_DIR")]
        dir: PathBuf,
        /// The node's name.
        node: String,
        /// What gpusimctl shall do; `help` lists it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Switch {
    /// Off and on again: the node boots anew.
    Cycle,
    /// Print whether the switch answers.
    Status,
}

#[derive(Args, Clone)]
struct FleetArgs {
    /// How many nodes.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    nodes: u16,
    /// GPU model: a100-80gb, h100-80gb or h200-141gb; several, comma separated, go round the nodes.
    #[arg(long, value_delimiter = ',', default_value = "h100-80gb")]
    gpu: Vec<ModelKey>,
    /// How many GPUs a node has.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=16))]
    gpus_per_node: u16,
    /// Where the fleet lives; when left out, a temporary directory (in /dev/shm or $TMPDIR) that is removed at the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Faults by rule, a YAML file (tests/lab/README.md describes it).
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Initial states by rule, a YAML file.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Let the nodes differ, so that a bring-up finds something to do.
    #[arg(long)]
    seed_drift: bool,
    /// Nodes are called PREFIX001, PREFIX002, …
    #[arg(long, default_value = "gpu", value_name = "PREFIX")]
    name_prefix: String,
    /// Which SSH server the nodes run.
    #[arg(long, value_enum, default_value_t = SshServer::Builtin)]
    sshd: SshServer,
    /// How long a rebooting node is away.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    boot_seconds: f64,
    /// The simulated NVML library; looked for beside this program when left out.
    #[arg(long, value_name = "FILE")]
    nvml_lib: Option<PathBuf>,
    /// Serve this machine itself, as you, instead of simulated nodes; the one host is called `real`.
    #[arg(long, conflicts_with_all = ["faults", "state", "seed_drift"])]
    real_host: bool,
}

const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Parses the command line and runs the command.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    let done = match cli.command {
        Action::Up(arguments) => up(&arguments),
        Action::Exec { fleet, command } => exec(&fleet, &command),
        Action::Restore { dir } => return told(restore::restore(&dir).map(|()| String::new())),
        Action::Hash { dir, text } => return told(hash(&dir, text)),
        Action::Outages { dir } => {
            let seen = restore::nodes(&dir).map(|nodes| view::outages(&nodes));
            return told(seen.map(|seen| serde_json::to_string_pretty(&seen).unwrap_or_default()));
        }
        Action::Power { dir, node, action: Switch::Cycle } => {
            return told(power::cycle(&dir, &node).map(|()| String::new()));
        }
        Action::Power { dir, node, action: Switch::Status } => {
            return told(power::node(&dir, &node).map(|_| "Chassis Power is on".to_owned()));
        }
        Action::Ctl { dir, node, arguments } => return enter::ctl(&dir, &node, &arguments),
    };
    done.unwrap_or_else(|error| {
        out::error(format!("error: {error}"));
        ExitCode::FAILURE
    })
}

/// Prints the result or the error.
fn told<E: std::fmt::Display>(outcome: Result<String, E>) -> ExitCode {
    match outcome {
        Ok(text) => {
            if !text.is_empty() {
                out::line(text.trim_end());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            out::error(format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn hash(dir: &std::path::Path, text: bool) -> Result<String, String> {
    let mut shown = String::new();
    for node in restore::nodes(dir).map_err(|error| error.to_string())? {
        let name = restore::name(&node);
        let description = view::describe(&node).map_err(|error| format!("{name}: {error}"))?;
        if text {
            description.lines().for_each(|line| shown += &format!("{name} {line}\n"));
        } else {
            shown += &format!("{name} {}\n", view::digest(&description));
        }
    }
    Ok(shown)
}

/// What is running: a fleet, or this machine itself. The temporary directory is removed after the fleet ends.
struct Running {
    fleet: Option<Fleet>,
    inventory: PathBuf,
    dir: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.fleet.take());
    }
}

fn start(arguments: &FleetArgs) -> Result<Running, LabError> {
    // First of all, because threads that are started later inherit the mask.
    sys::block(&SIGNALS);
    let (dir, temporary) = match &arguments.dir {
        Some(dir) => (dir.clone(), None),
        None => {
            let parent = scratch();
            let made = tempfile::Builder::new()
                .prefix("gpufleet-lab-")
                .tempdir_in(&parent)
                .map_err(|source| LabError::Io { action: "make a directory in", path: parent, source })?;
            (made.path().to_owned(), Some(made))
        }
    };
    if arguments.real_host {
        let inventory = serve_real_host(&dir)?;
        return Ok(Running { fleet: None, inventory, dir, _temporary: temporary });
    }
    let fleet = Fleet::start(&Options {
        nodes: arguments.nodes.into(),
        gpus: arguments.gpu.clone(),
        gpus_per_node: arguments.gpus_per_node.into(),
        dir,
        name_prefix: arguments.name_prefix.clone(),
        ssh_server: arguments.sshd,
        boot_seconds: arguments.boot_seconds,
        seed_drift: arguments.seed_drift,
        faults: arguments.faults.clone(),
        states: arguments.state.clone(),
        nvml_library: arguments.nvml_lib.clone(),
    })?;
    let (inventory, dir) = (fleet.inventory(), fleet.dir().to_owned());
    Ok(Running { fleet: Some(fleet), inventory, dir, _temporary: temporary })
}

/// Returns the default directory of a fleet, in memory if possible, as a fleet is thousands of small files.
fn scratch() -> PathBuf {
    use rustix::fs::StatVfsMountFlags;
    let memory = std::path::Path::new("/dev/shm");
    let fits = rustix::fs::statvfs(memory).is_ok_and(|fs| {
        let unfit = StatVfsMountFlags::NOEXEC | StatVfsMountFlags::NOSUID | StatVfsMountFlags::RDONLY;
        fs.f_bavail * fs.f_frsize > 2 << 30 && !fs.f_flag.intersects(unfit)
    });
    let as_root = rustix::process::geteuid().is_root();
    if fits && as_root && std::env::var_os("TMPDIR").is_none() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}

fn up(arguments: &FleetArgs) -> Result<ExitCode, LabError> {
    let running = start(arguments)?;
    out::line("ready");
    out::line(format!("inventory: {}", running.inventory.display()));
    sys::wait_signal(&SIGNALS);
    Ok(ExitCode::SUCCESS)
}

fn exec(arguments: &FleetArgs, command: &[String]) -> Result<ExitCode, LabError> {
    use std::os::unix::process::ExitStatusExt as _;
    let running = start(arguments)?;
    let Some((program, rest)) = command.split_first() else { return Ok(ExitCode::FAILURE) };
    let mut command = Command::new(program);
    command.args(rest).env("GPUFLEET_INVENTORY", &running.inventory).env("GPUFLEET_LAB_DIR", &running.dir);
    let mut child = sys::unblocked(&mut command).spawn().map_err(|source| LabError::Io {
        action: "run",
        path: program.into(),
        source,
    })?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                return Ok(ExitCode::from(code as u8));
            }
            Ok(None) => {}
            Err(source) => return Err(LabError::Io { action: "wait for", path: program.into(), source }),
        }
        // Ctrl-C reaches the command by itself; a signal to this process alone is passed on.
        if let Some(signal @ (libc::SIGTERM | libc::SIGHUP)) =
            sys::wait_signal_for(&SIGNALS, Duration::from_millis(20))
            && let (Some(pid), Some(signal)) = (
                rustix::process::Pid::from_raw(child.id() as i32),
                rustix::process::Signal::from_named_raw(signal),
            )
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}
