//! Task kinds: their names, classes, parameters and documentation, in one registry.
//!
//! A kind is one parameter type in one file here, one line in [`kinds!`] below, and one file on the side that runs
//! it. Parser, checks, reference, JSON schema and completion derive from the registry.

mod accounts;
mod checksum;
mod content;
mod control;
mod facts;
mod files;
mod gpu;
mod job;
mod machine;
mod packages;
mod process;
mod session;
mod system;
mod text;
mod transfer;
mod wait;
mod words;

pub use accounts::{AccountState, Group, Hidden, UpdatePassword, User};
pub use checksum::ChecksumAlgorithm;
pub use content::{Copy, NewlineSequence, Template};
pub use control::{
    Assert, Debug, Fail, HashBehaviour, IncludeRole, IncludeTasks, IncludeVars, Meta, MetaAction, SetFact,
    ValidateArgumentSpec,
};
pub use facts::{AGES, AgeStamp, Find, FindType, Ping, SIZES, Setup, bound};
pub use files::{File, FileMode, FileState, Stat};
pub use gpu::{
    ClockRange, ComputeModeName, EccMode, GpuClocks, GpuComputeMode, GpuEcc, GpuMig, GpuMps, GpuPersistence,
    GpuPower, GpuSelector, GpuSelectorItem, MigLayout, MigMode, MigPlacement, MigStrategy, MpsState,
    PersistenceMode,
};
pub use job::{AsyncStatus, JobMode};
pub use machine::{
    Cron, CronState, CronTime, Hostname, HostnameStrategy, Modprobe, ModulePersistence, ModuleState, Mount,
    MountState,
};
pub use packages::{Apt, AptState, AptUpgrade, Dnf, ModuleStream, Package, PackageManager, PackageState};
pub use process::{Command, Raw, Script, Shell};
pub use session::{Reboot, RebootWhen, WaitForConnection};
pub use system::{KernelCmdline, Service, ServiceScope, ServiceState, Sysctl, SysctlState};
pub use text::{BlockInFile, LineInFile, LineState, Replace};
pub use transfer::{Fetch, GetUrl, Slurp, TempFile, TempState, Unarchive, Wanted};
pub use wait::{Pause, WaitFor, WaitState};

use serde_json::{Map, Value};

use crate::Disruption;

/// What a kind is able to promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Declarative on the node: observe, plan, apply.
    Node,
    /// Runs something whose effect nobody can foresee.
    Command,
    /// The controller alone.
    Control,
    /// The connection or the life of the node.
    Session,
}

/// One task kind.
#[derive(Debug)]
pub struct KindInfo {
    pub name: &'static str,
    /// Other full names, such as Ansible's.
    pub aliases: &'static [&'static str],
    pub class: Class,
    /// The most that a task of this kind can ask for.
    pub disruption: Disruption,
    /// One sentence, third person.
    pub summary: &'static str,
    /// A task that parses.
    pub example: &'static str,
    /// Parameter that takes the text of `kind: text`.
    pub free_form: Option<&'static str>,
    /// Whether any key is a parameter, as for `set_fact`.
    pub open_keys: bool,
    /// Parameters of Ansible that change nothing here.
    pub ignored: &'static [&'static str],
    /// Parameters of Ansible that this kind refuses, each with what to do instead.
    pub refused: &'static [(&'static str, &'static str)],
    /// Reads rendered parameters.
    pub parse: fn(Value) -> Result<Params, ParamError>,
    /// JSON schema of the parameters, with their documentation.
    #[cfg(feature = "schema")]
    pub schema: fn() -> Value,
}

/// Parameters that do not fit their kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamError {
    /// The parameter meant, where one alone is at fault.
    pub parameter: Option<String>,
    pub message: String,
    /// What to do instead of a parameter that Ansible has and the kind refuses, whatever its value is.
    pub instead: Option<&'static str>,
}

impl ParamError {
    pub fn new(parameter: impl Into<String>, message: impl Into<String>) -> Self {
        Self { parameter: Some(parameter.into()), message: message.into(), instead: None }
    }
}

impl From<serde_json::Error> for ParamError {
    fn from(error: serde_json::Error) -> Self {
        Self { parameter: None, message: error.to_string(), instead: None }
    }
}

/// What holds beyond the types of single parameters, such as "one of two".
pub trait Checked {
    /// Parameters of Ansible that change nothing here.
    const IGNORED: &'static [&'static str] = &[];
    /// Parameters of Ansible that this kind refuses, each with what to do instead.
    const REFUSED: &'static [(&'static str, &'static str)] = &[];

    /// Puts what Ansible writes in another way into the way of here.
    fn rewrite(parameters: &mut Map<String, Value>) {
        let _ = parameters;
    }

    /// # Errors
    /// The first rule that the parameters break.
    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

/// The parameters without those that change nothing.
fn known<T: Checked>(kind: &str, mut value: Value) -> Result<Value, ParamError> {
    let Some(map) = value.as_object_mut() else { return Ok(value) };
    if let Some((name, instead)) = T::REFUSED.iter().find(|(name, _)| map.contains_key(*name)) {
        let message = format!("`{kind}` does not support `{name}`");
        return Err(ParamError { parameter: Some((*name).to_owned()), message, instead: Some(instead) });
    }
    map.retain(|name, _| !T::IGNORED.contains(&name.as_str()));
    T::rewrite(map);
    Ok(value)
}

macro_rules! kinds {
    ($($variant:ident($type:ty) {
        name: $name:literal, aliases: [$($alias:literal),*], class: $class:ident, disruption: $disruption:ident,
        free_form: $free_form:expr, open_keys: $open:literal, summary: $summary:literal, example: $example:literal
    })*) => {
        /// Parameters of any kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Params { $($variant($type)),* }

        /// Every kind, in the order of the reference.
        pub static KINDS: &[KindInfo] = &[$(KindInfo {
            name: $name,
            aliases: &[$($alias),*],
            class: Class::$class,
            disruption: Disruption::$disruption,
            summary: $summary,
            example: $example,
            free_form: $free_form,
            open_keys: $open,
            ignored: <$type as Checked>::IGNORED,
            refused: <$type as Checked>::REFUSED,
            parse: |value| {
                let parameters: $type = serde_json::from_value(known::<$type>($name, value)?)?;
                parameters.check()?;
                Ok(Params::$variant(parameters))
            },
            #[cfg(feature = "schema")]
            schema: || schemars::schema_for!($type).to_value(),
        }),*];
    };
}

kinds! {
    GpuPersistence(GpuPersistence) {
        name: "gpu_persistence", aliases: [], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Keeps the driver loaded while no client runs, through the daemon or the legacy flag.",
        example: "gpu_persistence: {mode: daemon}"
    }
    GpuEcc(GpuEcc) {
        name: "gpu_ecc", aliases: [], class: Node, disruption: Reboot, free_form: None, open_keys: false,
        summary: "Sets the ECC mode, which becomes current with the next reset or reboot.",
        example: "gpu_ecc: {mode: enabled}"
    }
    GpuMig(GpuMig) {
        name: "gpu_mig", aliases: [], class: Node, disruption: Reboot, free_form: None, open_keys: false,
        summary: "Declares MIG mode and the layout of GPU and compute instances.",
        example: "gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}"
    }
    GpuPower(GpuPower) {
        name: "gpu_power", aliases: [], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Sets the power limit of GPUs.",
        example: "gpu_power: {limit_watts: 600}"
    }
    GpuClocks(GpuClocks) {
        name: "gpu_clocks", aliases: [], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Locks graphics or memory clocks, or gives them back to the driver.",
        example: "gpu_clocks: {graphics_mhz: [1200, 1980]}"
    }
    GpuComputeMode(GpuComputeMode) {
        name: "gpu_compute_mode", aliases: [], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Sets who may use a GPU: anybody, one process, nobody.",
        example: "gpu_compute_mode: {mode: default}"
    }
    GpuMps(GpuMps) {
        name: "gpu_mps", aliases: [], class: Node, disruption: Clients, free_form: None, open_keys: false,
        summary: "Runs the CUDA MPS control daemon as a systemd unit, with its limits, or stops it cleanly.",
        example: "gpu_mps: {state: started, default_active_thread_percentage: 50}"
    }
    Sysctl(Sysctl) {
        name: "sysctl", aliases: ["ansible.posix.sysctl"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Sets a kernel parameter, now and for every boot.",
        example: "sysctl: {name: vm.swappiness, value: 10}"
    }
    KernelCmdline(KernelCmdline) {
        name: "kernel_cmdline", aliases: [], class: Node, disruption: Reboot, free_form: None, open_keys: false,
        summary: "Adds words to the kernel command line of every boot entry, or removes them.",
        example: "kernel_cmdline: {add: [iommu=pt]}"
    }
    Service(Service) {
        name: "service", aliases: ["ansible.builtin.service", "systemd", "ansible.builtin.systemd", "systemd_service", "ansible.builtin.systemd_service"],
        class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Starts, stops, restarts, enables or masks a systemd unit.",
        example: "service: {name: chrony, state: started, enabled: true}"
    }
    Package(Package) {
        name: "package", aliases: ["ansible.builtin.package"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Installs, updates or removes packages with the package manager that the node has.",
        example: "package: {name: [chrony, numactl]}"
    }
    Apt(Apt) {
        name: "apt", aliases: ["ansible.builtin.apt"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Installs, updates or removes packages of Debian and Ubuntu.",
        example: "apt: {name: [chrony, numactl], update_cache: true, cache_valid_time: 3600}"
    }
    Dnf(Dnf) {
        name: "dnf", aliases: ["ansible.builtin.dnf", "yum", "ansible.builtin.yum", "dnf5", "ansible.builtin.dnf5"],
        class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Installs, updates or removes packages of the Red Hat family.",
        example: "dnf: {name: [chrony, numactl]}"
    }
    User(User) {
        name: "user", aliases: ["ansible.builtin.user"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Declares a user: number, groups, home, shell, password.",
        example: "user: {name: slurm, uid: 981, system: true, shell: /usr/sbin/nologin}"
    }
    Group(Group) {
        name: "group", aliases: ["ansible.builtin.group"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Declares a group of users.",
        example: "group: {name: slurm, gid: 981, system: true}"
    }
    Cron(Cron) {
        name: "cron", aliases: ["ansible.builtin.cron"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Declares a cron job or a variable of a crontab.",
        example: "cron: {name: scrub, special_time: daily, job: /usr/local/bin/scrub}"
    }
    Hostname(Hostname) {
        name: "hostname", aliases: ["ansible.builtin.hostname"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Names the node, now and for every boot.",
        example: "hostname: {name: gpu001}"
    }
    Modprobe(Modprobe) {
        name: "modprobe", aliases: ["community.general.modprobe"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Loads or unloads a module of the kernel, now and for every boot.",
        example: "modprobe: {name: nvidia_peermem, persistent: present}"
    }
    Mount(Mount) {
        name: "mount", aliases: ["ansible.posix.mount"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Declares a mount, now and in /etc/fstab.",
        example: "mount: {path: /scratch, src: /dev/nvme0n1, fstype: xfs, state: mounted}"
    }
    File(File) {
        name: "file", aliases: ["ansible.builtin.file"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Declares a file, directory, link or its absence, with owner and mode.",
        example: "file: {path: /etc/gpu, state: directory, mode: '0755'}"
    }
    Copy(Copy) {
        name: "copy", aliases: ["ansible.builtin.copy"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Puts a file of the controller, or given content, on the node.",
        example: "copy: {content: 'hello', dest: /etc/motd, mode: '0644'}"
    }
    Template(Template) {
        name: "template", aliases: ["ansible.builtin.template"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Renders a template of the controller onto the node.",
        example: "template: {src: motd.j2, dest: /etc/motd}"
    }
    LineInFile(LineInFile) {
        name: "lineinfile", aliases: ["ansible.builtin.lineinfile"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Declares one line of a text file.",
        example: "lineinfile: {path: /etc/hosts, line: '127.0.0.1 localhost'}"
    }
    BlockInFile(BlockInFile) {
        name: "blockinfile", aliases: ["ansible.builtin.blockinfile"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Declares a block of lines between two marks of a text file.",
        example: "blockinfile: {path: /etc/hosts, block: '10.0.0.1 storage'}"
    }
    Replace(Replace) {
        name: "replace", aliases: ["ansible.builtin.replace"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Replaces every match of an expression in a text file.",
        example: "replace: {path: /etc/hosts, regexp: 'old', replace: 'new'}"
    }
    GetUrl(GetUrl) {
        name: "get_url", aliases: ["ansible.builtin.get_url"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Downloads a file onto the node, with the node's own curl or wget.",
        example: "get_url: {url: 'https://example.com/tool', dest: /usr/local/bin/tool, mode: '0755'}"
    }
    Unarchive(Unarchive) {
        name: "unarchive", aliases: ["ansible.builtin.unarchive"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Unpacks an archive on the node, with the node's own tar or unzip.",
        example: "unarchive: {src: tool.tar.gz, dest: /opt}"
    }
    TempFile(TempFile) {
        name: "tempfile", aliases: ["ansible.builtin.tempfile"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Makes a file or directory with a name that nobody has.",
        example: "tempfile: {state: directory}"
    }
    Stat(Stat) {
        name: "stat", aliases: ["ansible.builtin.stat"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Reads what a path is, for `register`.",
        example: "stat: {path: /etc/hosts}"
    }
    Find(Find) {
        name: "find", aliases: ["ansible.builtin.find"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Looks for files on the node, for `register`.",
        example: "find: {paths: /var/log, patterns: '*.log'}"
    }
    Slurp(Slurp) {
        name: "slurp", aliases: ["ansible.builtin.slurp"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Reads a file of the node into `register`, as base64.",
        example: "slurp: {src: /etc/hostname}"
    }
    Fetch(Fetch) {
        name: "fetch", aliases: ["ansible.builtin.fetch"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Brings a file of the node to the controller.",
        example: "fetch: {src: /etc/hostname, dest: collected/}"
    }
    WaitFor(WaitFor) {
        name: "wait_for", aliases: ["ansible.builtin.wait_for"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Waits on the node for a port or a path.",
        example: "wait_for: {port: 22, timeout: 60}"
    }
    Setup(Setup) {
        name: "setup", aliases: ["ansible.builtin.setup", "gather_facts", "ansible.builtin.gather_facts"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Reads the facts of the node.",
        example: "setup: {filter: ansible_distribution}"
    }
    Ping(Ping) {
        name: "ping", aliases: ["ansible.builtin.ping"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Asks the helper on the node whether it is there.",
        example: "ping: {}"
    }
    Command(Command) {
        name: "command", aliases: ["ansible.builtin.command"], class: Command, disruption: Live, free_form: Some("cmd"), open_keys: false,
        summary: "Runs a program without a shell.",
        example: "command: uname -r"
    }
    Shell(Shell) {
        name: "shell", aliases: ["ansible.builtin.shell"], class: Command, disruption: Live, free_form: Some("cmd"), open_keys: false,
        summary: "Runs a line in a shell.",
        example: "shell: dmesg | tail -1"
    }
    Script(Script) {
        name: "script", aliases: ["ansible.builtin.script"], class: Command, disruption: Live, free_form: Some("cmd"), open_keys: false,
        summary: "Pushes a script of the controller and runs it on the node.",
        example: "script: check.sh --fast"
    }
    Raw(Raw) {
        name: "raw", aliases: ["ansible.builtin.raw"], class: Command, disruption: Live, free_form: Some("cmd"), open_keys: false,
        summary: "Runs a line in a shell and gives its output as it comes.",
        example: "raw: uptime"
    }
    AsyncStatus(AsyncStatus) {
        name: "async_status", aliases: ["ansible.builtin.async_status"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Asks how a task with `async` and `poll: 0` is, or forgets what it has said.",
        example: "async_status: {jid: j482910375561.20417}"
    }
    Reboot(Reboot) {
        name: "reboot", aliases: ["ansible.builtin.reboot"], class: Session, disruption: Reboot, free_form: None, open_keys: false,
        summary: "Reboots the node, proven by a new boot id, when something written waits for it.",
        example: "reboot: {when: required, timeout: 20m}"
    }
    WaitForConnection(WaitForConnection) {
        name: "wait_for_connection", aliases: ["ansible.builtin.wait_for_connection"], class: Session, disruption: Live, free_form: None, open_keys: false,
        summary: "Waits until the node answers over SSH.",
        example: "wait_for_connection: {timeout: 300}"
    }
    Pause(Pause) {
        name: "pause", aliases: ["ansible.builtin.pause"], class: Session, disruption: Live, free_form: None, open_keys: false,
        summary: "Pauses the play for a time or until a person says so, once for all hosts.",
        example: "pause: {seconds: 30}"
    }
    Debug(Debug) {
        name: "debug", aliases: ["ansible.builtin.debug"], class: Control, disruption: Live, free_form: Some("msg"), open_keys: false,
        summary: "Prints a message or a variable.",
        example: "debug: {msg: 'hello'}"
    }
    Assert(Assert) {
        name: "assert", aliases: ["ansible.builtin.assert"], class: Control, disruption: Live, free_form: None, open_keys: false,
        summary: "Fails unless every condition holds.",
        example: "assert: {that: ['1 + 1 == 2']}"
    }
    Fail(Fail) {
        name: "fail", aliases: ["ansible.builtin.fail"], class: Control, disruption: Live, free_form: Some("msg"), open_keys: false,
        summary: "Fails with a message.",
        example: "fail: {msg: 'not on this node'}"
    }
    SetFact(SetFact) {
        name: "set_fact", aliases: ["ansible.builtin.set_fact"], class: Control, disruption: Live, free_form: None, open_keys: true,
        summary: "Sets variables of the host for the rest of the run.",
        example: "set_fact: {rack_ready: true}"
    }
    Meta(Meta) {
        name: "meta", aliases: ["ansible.builtin.meta"], class: Control, disruption: Live, free_form: Some("action"), open_keys: false,
        summary: "Steers the play: runs handlers now, ends the play, ends it for this host, clears errors.",
        example: "meta: flush_handlers"
    }
    IncludeTasks(IncludeTasks) {
        name: "include_tasks", aliases: ["ansible.builtin.include_tasks"], class: Control, disruption: Live, free_form: Some("file"), open_keys: false,
        summary: "Includes a file of tasks when its turn comes.",
        example: "include_tasks: driver.yml"
    }
    IncludeRole(IncludeRole) {
        name: "include_role", aliases: ["ansible.builtin.include_role"], class: Control, disruption: Live, free_form: None, open_keys: false,
        summary: "Includes a role when its turn comes.",
        example: "include_role: {name: gpu_driver}"
    }
    IncludeVars(IncludeVars) {
        name: "include_vars", aliases: ["ansible.builtin.include_vars"], class: Control, disruption: Live, free_form: Some("file"), open_keys: false,
        summary: "Reads variables from files of the controller when its turn comes.",
        example: "include_vars: driver.yml"
    }
    ValidateArgumentSpec(ValidateArgumentSpec) {
        name: "validate_argument_spec", aliases: ["ansible.builtin.validate_argument_spec"], class: Control, disruption: Live, free_form: None, open_keys: false,
        summary: "Checks variables against the arguments of a role.",
        example: "validate_argument_spec: {argument_spec: {version: {type: str, required: true}}}"
    }
}

/// The kind of this name or alias.
pub fn find(name: &str) -> Option<&'static KindInfo> {
    let name = name.strip_prefix("ansible.legacy.").unwrap_or(name);
    KINDS.iter().find(|kind| kind.name == name || kind.aliases.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> =
            KINDS.iter().flat_map(|kind| kind.aliases.iter().chain([&kind.name])).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn unknown_parameters_are_refused() {
        for kind in KINDS.iter().filter(|kind| !kind.open_keys) {
            let refused = (kind.parse)(serde_json::json!({ "no_such_parameter": 1 }));
            assert!(refused.is_err(), "{} takes anything", kind.name);
        }
    }
}
