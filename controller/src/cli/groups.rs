//! The lists of commands and of task kinds, by what a person wants.

use clap::{Command, CommandFactory, FromArgMatches};

use super::args::Cli;

/// What a person wants, and the commands that do it.
const COMMANDS: [(&str, &[&str]); 5] = [
    (
        "Look at nodes and runs, changing nothing",
        &["facts", "status", "topology", "inventory", "hosts", "runs", "locks", "history", "serve"],
    ),
    ("Change nodes", &["plan", "run", "exec", "pause", "resume", "abort", "adopt", "keep", "clean"]),
    ("Prove their state", &["audit", "baseline", "watch", "report"]),
    ("Write playbooks", &["check", "import", "doc", "mig", "schema", "vault"]),
    ("Set up gpufleet", &["config", "completion", "man"]),
];

/// Subjects, and the task kinds that are about them; one that is named nowhere is among the last.
const KINDS: [(&str, &[&str]); 9] = [
    (
        "GPUs and their driver",
        &[
            "gpu_driver",
            "gpu_persistence",
            "gpu_ecc",
            "gpu_mig",
            "gpu_power",
            "gpu_clocks",
            "gpu_compute_mode",
            "gpu_mps",
            "gpu_accounting",
            "gpu_confidential_compute",
            "gpu_keep",
            "gpu_reset",
            "gpu_drain_state",
            "fabric_manager",
            "nvidia_imex",
            "dcgm",
            "cuda_compat",
            "gpudirect",
        ],
    ),
    (
        "Kernel, memory and processors",
        &[
            "sysctl",
            "kernel_cmdline",
            "modprobe",
            "kernel_blacklist",
            "initramfs",
            "hugepages",
            "thp",
            "cpu_frequency",
            "cpu_idle",
            "cpu_isolation",
            "smt",
            "irq_affinity",
            "kdump",
        ],
    ),
    ("Disks and network", &["mount", "swap", "disk_queue", "network_interface", "rdma_link", "pci_settings"]),
    (
        "Services, users and limits",
        &["service", "unit_settings", "limits", "tuned", "time_sync", "cron", "hostname", "user", "group"],
    ),
    (
        "Packages",
        &[
            "package",
            "apt",
            "dnf",
            "apt_repository",
            "deb822_repository",
            "yum_repository",
            "apt_key",
            "rpm_key",
            "package_hold",
            "dpkg_selections",
        ],
    ),
    (
        "Containers and schedulers",
        &[
            "docker_daemon",
            "container_toolkit",
            "container_limits",
            "slurm_node",
            "kubelet",
            "kubernetes_node",
        ],
    ),
    (
        "Files",
        &[
            "file",
            "copy",
            "template",
            "lineinfile",
            "blockinfile",
            "replace",
            "get_url",
            "unarchive",
            "tempfile",
            "fetch",
        ],
    ),
    (
        "Look and wait",
        &[
            "setup",
            "stat",
            "find",
            "slurp",
            "package_facts",
            "service_facts",
            "health_info",
            "topology_info",
            "ping",
            "wait_for",
            "wait_for_connection",
            "pause",
            "async_status",
        ],
    ),
    ("Run commands, reboot", &["command", "shell", "script", "raw", "reboot"]),
];
/// The last group of kinds.
const FLOW: &str = "Lead the play";

/// The command line with its commands in groups.
pub fn command_line() -> Command {
    let program = Cli::command();
    let header = *clap::builder::Styles::styled().get_header();
    let listed: String = COMMANDS
        .iter()
        .map(|(wanted, names)| {
            let of_group = names.iter().filter_map(|name| program.find_subcommand(name).cloned());
            let mut group = Command::new("group")
                .disable_help_subcommand(true)
                .max_term_width(100)
                .help_template("{subcommands}")
                .subcommands(of_group.collect::<Vec<_>>());
            format!("{header}{wanted}:{header:#}\n{}\n", group.render_help().ansi())
        })
        .collect();
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    program.help_template(template)
}

/// Reads this process' command line.
pub fn parse() -> Result<Cli, clap::Error> {
    let mut program = command_line();
    let mut matches = program.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut program))
}

/// The kinds of each subject, in the order of the subjects.
pub fn kinds<'a>(all: &[&'a str]) -> Vec<(&'static str, Vec<&'a str>)> {
    let is_named = |name: &str| KINDS.iter().any(|(_, names)| names.contains(&name));
    let named = KINDS.iter().map(|(subject, names)| {
        (*subject, names.iter().filter_map(|name| all.iter().find(|known| *known == name).copied()).collect())
    });
    let rest = all.iter().copied().filter(|name| !is_named(name)).collect();
    named.chain([(FLOW, rest)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let program = Cli::command();
        let mut shown: Vec<&str> =
            program.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
        let mut grouped: Vec<&str> = COMMANDS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
    }

    #[test]
    fn each_kind_is_in_one_group_and_each_group_names_kinds() {
        let all: Vec<&str> = gpufleet_protocol::tasks::KINDS.iter().map(|kind| kind.name).collect();
        let groups = kinds(&all);
        let mut grouped: Vec<&str> = groups.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for (subject, names) in KINDS {
            let unknown: Vec<&&str> = names.iter().filter(|name| !all.contains(name)).collect();
            assert!(unknown.is_empty(), "{subject}: {unknown:?}");
        }
        let mut all = all;
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn help_shows_the_commands_by_what_a_person_wants() {
        let help = command_line().render_help().to_string();
        let headings: Vec<&str> =
            help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
        let wanted = COMMANDS.iter().map(|(wanted, _)| format!("{wanted}:"));
        assert_eq!(headings, wanted.chain(["Options:".to_owned()]).collect::<Vec<_>>());
        assert!(help.contains("\n  audit "), "{help}");
    }
}
