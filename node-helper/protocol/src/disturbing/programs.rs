//! What single programs do with their arguments.
//!
//! Sources: the manuals of systemd 257 (systemctl, shutdown), sysvinit 3 (init, halt), kexec-tools 2.0, kmod 33, nvidia-smi of
//! driver 580, nvidia-mig-parted 0.12, Slurm 24.11 (scontrol), kubectl 1.33, ipmitool 1.8, and the kernel's
//! admin-guide/sysrq.

use super::{Act, shell::ANY, shell::Wrapper};
use crate::glob::Glob;

/// Units whose end ends work, or takes the node's GPUs, containers or network from it.
const NEEDED_BY_WORK: &[&str] = &[
    "kubelet",
    "slurmd",
    "slurmstepd",
    "containerd",
    "docker",
    "dockerd",
    "crio",
    "cri-o",
    "k3s",
    "k3s-agent",
    "rke2-agent",
    "nvidia-fabricmanager",
    "nvidia-imex",
    "nvidia-mps",
    "gpufleet-mps",
    "openibd",
    "munge",
    "networking",
    "network",
    "rdma-ndd",
    "pbs",
    "lsfd",
];

/// Units of them whose restart ends work too; that of the others leaves running work alone.
/// Sources: Kubernetes (pods outlive a kubelet), Slurm (`KillMode=process` of slurmd), containerd (shims outlive it).
const ENDS_WITH_A_RESTART: &[&str] = &[
    "docker",
    "dockerd",
    "nvidia-fabricmanager",
    "nvidia-imex",
    "nvidia-mps",
    "gpufleet-mps",
    "openibd",
    "networking",
    "network",
];

/// The name of a program without its folder.
pub(super) fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// How a program gives its words on, if it starts another one with them.
pub(super) fn wrapper(name: &str) -> Option<Wrapper> {
    let of = |valued, positional| Some(Wrapper { valued, positional, text: false });
    match name {
        "sudo" => {
            of(&["-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-U", "-D", "-R", "--user", "--group"], 0)
        }
        "doas" => of(&["-u", "-C"], 0),
        "env" => of(&["-u", "-C", "--unset", "--chdir"], 0),
        "setsid" | "pkexec" | "setpriv" | "prlimit" | "strace" => of(&["-e", "-o", "--user"], 0),
        "nohup" | "exec" | "command" | "builtin" | "time" | "stdbuf" | "unshare" => {
            of(&["-o", "-e", "-i", "-f", "-a"], 0)
        }
        "nice" => of(&["-n", "--adjustment"], 0),
        "ionice" => of(&["-c", "-n", "--class", "--classdata"], 0),
        "timeout" => of(&["-k", "-s", "--kill-after", "--signal"], 1),
        "taskset" | "chrt" | "chroot" => of(&[], 1),
        "nsenter" => of(&["-t", "--target", "-S", "-G"], 0),
        "numactl" | "systemd-inhibit" => of(&["-N", "-m", "-C", "-i", "-p"], 0),
        "systemd-run" => {
            of(&["-p", "-u", "-M", "-H", "-E", "--unit", "--property", "--on-active", "--description"], 0)
        }
        "xargs" => of(&["-I", "-n", "-P", "-L", "-d", "-a", "-s", "-E"], 0),
        "watch" => Some(Wrapper { valued: &["-n", "--interval"], positional: 0, text: true }),
        "flock" => of(&["-w", "-E", "-c", "--timeout"], 1),
        _ => None,
    }
}

/// What `echo` and `printf` say; `None` for other programs.
pub(super) fn echoed(words: &[String]) -> Option<String> {
    let (first, rest) = words.split_first()?;
    matches!(base(first), "echo" | "printf")
        .then(|| rest.iter().filter(|word| !matches!(word.as_str(), "-n" | "-e" | "-en" | "-ne")))
        .map(|words| words.map(String::as_str).collect::<Vec<_>>().join(" "))
}

/// What writing to a path does. `text` is what is written, if that is known.
pub(super) fn written(path: &str, text: Option<&str>) -> Option<Act> {
    match path {
        "/proc/sysrq-trigger" => match text.and_then(|text| text.trim().chars().next()) {
            Some('b' | 'c') | Some(ANY) | None => Some(Act::Reboots),
            // Off, signals to all processes, and all file systems read-only.
            Some('o' | 'e' | 'i' | 'u') => Some(Act::GoesDown),
            Some(_) => None,
        },
        "/sys/power/state" => Some(Act::GoesDown),
        _ => {
            let is_device = path.starts_with("/sys/bus/pci/") || path.starts_with("/sys/class/pci_bus/");
            (is_device && matches!(base(path), "remove" | "reset" | "unbind")).then_some(Act::ResetsDevice)
        }
    }
}

/// What a program does with these arguments.
pub(super) fn act(program: &str, arguments: &[String], input: Option<&str>) -> Option<Act> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let has = |options: &[&str]| words.iter().any(|word| options.contains(word));
    if has(&["--help", "--version"]) {
        return None;
    }
    if let Some(name) = program.strip_prefix("/etc/init.d/") {
        return service(name, words.first().copied()?);
    }
    match base(program) {
        "reboot" if has(&["-w", "--wtmp-only"]) => None,
        "reboot" if has(&["-p", "--poweroff", "--halt"]) => Some(Act::GoesDown),
        "reboot" => Some(Act::Reboots),
        "poweroff" | "halt" if has(&["-w", "--wtmp-only"]) => None,
        "poweroff" | "halt" if has(&["--reboot"]) => Some(Act::Reboots),
        "poweroff" | "halt" | "pm-suspend" => Some(Act::GoesDown),
        "loginctl" => match words.iter().find(|word| !word.starts_with('-')).copied()? {
            "reboot" => Some(Act::Reboots),
            "poweroff" | "halt" | "suspend" | "hibernate" => Some(Act::GoesDown),
            _ => None,
        },
        "shutdown" => shutdown(&words),
        "init" | "telinit" => match words.first().copied()? {
            "6" => Some(Act::Reboots),
            "0" | "1" | "s" | "S" | "single" => Some(Act::GoesDown),
            _ => None,
        },
        "kexec" => (has(&["-e", "--exec"])).then_some(Act::Reboots),
        "systemctl" => systemctl(&words),
        "service" | "rc-service" | "invoke-rc.d" => {
            let plain: Vec<&str> = words.iter().copied().filter(|word| !word.starts_with('-')).collect();
            service(plain.first().copied()?, plain.get(1).copied()?)
        }
        "tee" => words.iter().find_map(|path| written(path, input)),
        "dd" => words.iter().find_map(|word| written(word.strip_prefix("of=")?, input)),
        "busctl" | "dbus-send" | "gdbus" => logind(&words.join(" ")),
        "rm" | "unlink" => words.iter().filter_map(|path| removed(path)).max(),
        "rmmod" => words.iter().filter_map(|word| unloads(word)).max(),
        "modprobe" => {
            let removes = words.iter().any(|word| {
                *word == "--remove" || word.starts_with('-') && !word.starts_with("--") && word.contains('r')
            });
            words.iter().filter(|_| removes).filter_map(|word| unloads(word)).max()
        }
        "nvidia-uninstall" => Some(Act::UnloadsDriver),
        name if name.starts_with("NVIDIA-Linux-") => {
            let only_looks = has(&[
                "-x",
                "--extract-only",
                "--check",
                "--info",
                "--list",
                "-h",
                "-A",
                "--advanced-options",
            ]);
            (!only_looks).then_some(Act::UnloadsDriver)
        }
        "nvidia-smi" => nvidia_smi(&words),
        "nvidia-mig-parted" => (words.first() == Some(&"apply")).then_some(Act::SwitchesMig),
        "fuser" => {
            let kills = has(&["-k", "--kill"])
                || words
                    .iter()
                    .any(|word| word.starts_with('-') && !word.starts_with("--") && word.contains('k'));
            (kills && words.iter().any(|word| word.starts_with("/dev/nvidia"))).then_some(Act::EndsClients)
        }
        "pkill" | "killall" => words
            .iter()
            .any(|word| {
                NEEDED_BY_WORK.contains(word)
                    || matches!(*word, "nvidia-cuda-mps-server" | "nv-fabricmanager")
            })
            .then_some(Act::StopsService),
        "scontrol" => scontrol(&words),
        "kubectl" | "oc" | "k3s" => kubectl(&words),
        "ipmitool" => power(&words),
        _ => None,
    }
}

fn shutdown(words: &[&str]) -> Option<Act> {
    let short = |letter: char| {
        words.iter().any(|word| word.starts_with('-') && !word.starts_with("--") && word.contains(letter))
    };
    // `-c` cancels one, `-k` only warns.
    if short('c') || short('k') || words.contains(&"--show") {
        return None;
    }
    Some(if short('r') || words.contains(&"--reboot") { Act::Reboots } else { Act::GoesDown })
}

fn systemctl(words: &[&str]) -> Option<Act> {
    const VALUED: [&str; 12] = [
        "-p",
        "-t",
        "-s",
        "-o",
        "-n",
        "--signal",
        "--property",
        "--type",
        "--kill-whom",
        "--kill-who",
        "--state",
        "--root",
    ];
    let mut plain = Vec::new();
    let mut words_left = words.iter().copied();
    while let Some(word) = words_left.next() {
        // Another machine, or a time that is called off.
        if matches!(word, "-H" | "-M" | "--when=cancel" | "--user")
            || word.starts_with("--host")
            || word.starts_with("--machine")
        {
            return None;
        }
        match word.starts_with('-') {
            true if VALUED.contains(&word) => _ = words_left.next(),
            true => {}
            false => plain.push(word),
        }
    }
    let (verb, units) = plain.split_first()?;
    let now = words.contains(&"--now");
    match *verb {
        "reboot" | "soft-reboot" | "kexec" => Some(Act::Reboots),
        "poweroff"
        | "halt"
        | "rescue"
        | "emergency"
        | "suspend"
        | "hibernate"
        | "hybrid-sleep"
        | "sleep"
        | "suspend-then-hibernate" => Some(Act::GoesDown),
        "disable" | "mask" if !now => None,
        action => units.iter().filter_map(|unit| service(unit, action)).max(),
    }
}

/// What an action does to a unit.
pub(super) fn service(unit: &str, action: &str) -> Option<Act> {
    let starts = matches!(action, "start" | "restart" | "isolate" | "reload-or-restart");
    match unit {
        "reboot.target"
        | "systemd-reboot"
        | "systemd-reboot.service"
        | "kexec.target"
        | "systemd-kexec.service"
        | "soft-reboot.target"
        | "ctrl-alt-del.target"
        | "runlevel6.target" => return starts.then_some(Act::Reboots),
        "poweroff.target"
        | "systemd-poweroff"
        | "systemd-poweroff.service"
        | "halt.target"
        | "systemd-halt.service"
        | "shutdown.target"
        | "rescue.target"
        | "emergency.target"
        | "runlevel0.target"
        | "runlevel1.target" => {
            return starts.then_some(Act::GoesDown);
        }
        _ => {}
    }
    let name = unit.trim_end_matches(".service").trim_end_matches(".socket");
    let known = match action {
        "stop" | "kill" | "disable" | "mask" => NEEDED_BY_WORK,
        "restart" | "try-restart" | "force-reload" | "reload-or-restart" | "condrestart" => {
            ENDS_WITH_A_RESTART
        }
        _ => return None,
    };
    let pattern = Glob::new(name);
    known.iter().any(|known| pattern.matches(known)).then_some(Act::StopsService)
}

fn logind(text: &str) -> Option<Act> {
    if !text.contains("login1") {
        return None;
    }
    match () {
        () if text.contains("Reboot") => Some(Act::Reboots),
        () if ["PowerOff", "Halt", "Suspend", "Hibernate"].iter().any(|word| text.contains(word)) => {
            Some(Act::GoesDown)
        }
        () => None,
    }
}

/// What unloading a module of the kernel does.
pub(super) fn unloads(module: &str) -> Option<Act> {
    let name = module.replace('-', "_");
    match name.as_str() {
        "nouveau" | "nova_core" | "nvidia" => Some(Act::UnloadsDriver),
        _ if name.starts_with("nvidia_") => Some(Act::UnloadsDriver),
        // Takes the cards of the cluster's network from whoever uses them.
        "mlx5_core" | "mlx5_ib" | "ib_core" | "ib_uverbs" => Some(Act::ResetsDevice),
        _ => None,
    }
}

/// What removing a path does.
pub(super) fn removed(path: &str) -> Option<Act> {
    let is_device = path.starts_with("/dev/nvidia") || path.starts_with("/dev/infiniband");
    is_device.then_some(Act::TakesFromWork)
}

fn nvidia_smi(words: &[&str]) -> Option<Act> {
    let is = |word: &&str, options: &[&str]| {
        let option = word.split_once('=').map_or(*word, |(option, _)| option);
        options.contains(&option)
    };
    let any = |options: &[&str]| words.iter().any(|word| is(word, options));
    match words.first().copied()? {
        "mig" => any(&[
            "-cgi",
            "--create-gpu-instance",
            "-dgi",
            "--destroy-gpu-instance",
            "-cci",
            "--create-compute-instance",
            "-dci",
            "--destroy-compute-instance",
        ])
        .then_some(Act::ChangesInstances),
        "drain" => (any(&["-m", "--modify", "-r", "--remove"])).then_some(Act::ResetsDevice),
        // Another subcommand, with options of its own.
        first if !first.starts_with('-') => None,
        _ if any(&["-r", "--gpu-reset"]) => Some(Act::ResetsGpus),
        _ if any(&["-mig", "--multi-instance-gpu"]) => Some(Act::SwitchesMig),
        _ => None,
    }
}

fn scontrol(words: &[&str]) -> Option<Act> {
    let lower: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
    let verb = lower.iter().find(|word| !word.starts_with('-'))?;
    if verb == "reboot" {
        return Some(Act::Reboots);
    }
    let names_nodes = lower.iter().any(|word| word.starts_with("node"));
    // A verb and a key may be shortened.
    if !"update".starts_with(verb.as_str()) || verb.len() < 2 || !names_nodes {
        return None;
    }
    let state = lower.iter().find_map(|word| word.strip_prefix("state="))?;
    // `drain` ends nothing: it only keeps new work away, and playbooks say it of their own node before they wait.
    let out = ["down", "fail", "power_down", "reboot", "future", "cloud", "noresp"];
    out.iter().any(|word| state.starts_with(word)).then_some(Act::Withdraws)
}

fn kubectl(words: &[&str]) -> Option<Act> {
    let plain: Vec<&str> = words.iter().copied().filter(|word| !word.starts_with('-')).collect();
    let at = plain.iter().position(|word| matches!(*word, "drain" | "delete" | "taint"))?;
    let object = plain.get(at + 1).copied().unwrap_or_default();
    let is_node = matches!(object.split('/').next(), Some("node" | "nodes" | "no"));
    match *plain.get(at)? {
        "drain" => Some(Act::Withdraws),
        "delete" if is_node => Some(Act::Withdraws),
        "taint" if is_node => plain.iter().any(|word| word.ends_with(":NoExecute")).then_some(Act::Withdraws),
        _ => None,
    }
}

fn power(words: &[&str]) -> Option<Act> {
    let at = words.iter().position(|word| *word == "power")?;
    match *words.get(at + 1)? {
        "cycle" | "reset" => Some(Act::Reboots),
        "off" | "soft" | "diag" => Some(Act::GoesDown),
        _ => None,
    }
}
