//! Task kinds: their names, classes, parameters and documentation, in one registry.
//!
//! A kind is one parameter type in one file here, one line in [`kinds!`] below, and one file on the side that runs
//! it. Parser, checks, reference, JSON schema and completion derive from the registry.

mod control;
mod files;
mod gpu;
mod process;
mod session;
mod system;
mod words;

pub use control::{
    Assert, Debug, Fail, IncludeRole, IncludeTasks, IncludeVars, Meta, MetaAction, SetFact,
    ValidateArgumentSpec,
};
pub use files::{Copy, File, FileMode, FileState, LineInFile, LineState, Stat, Template};
pub use gpu::{
    ClockRange, ComputeModeName, EccMode, GpuClocks, GpuComputeMode, GpuEcc, GpuMig, GpuMps, GpuPersistence,
    GpuPower, GpuSelector, GpuSelectorItem, MigLayout, MigMode, MigPlacement, MigStrategy, MpsState,
    PersistenceMode,
};
pub use process::{Command, Script, Shell};
pub use session::{Reboot, RebootWhen, WaitForConnection};
pub use system::{KernelCmdline, Service, ServiceState, Sysctl, SysctlState};

use serde_json::Value;

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
}

impl ParamError {
    pub fn new(parameter: impl Into<String>, message: impl Into<String>) -> Self {
        Self { parameter: Some(parameter.into()), message: message.into() }
    }
}

impl From<serde_json::Error> for ParamError {
    fn from(error: serde_json::Error) -> Self {
        Self { parameter: None, message: error.to_string() }
    }
}

/// What holds beyond the types of single parameters, such as "one of two".
pub trait Checked {
    /// # Errors
    /// The first rule that the parameters break.
    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
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
            parse: |value| {
                let parameters: $type = serde_json::from_value(value)?;
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
    Stat(Stat) {
        name: "stat", aliases: ["ansible.builtin.stat"], class: Node, disruption: Live, free_form: None, open_keys: false,
        summary: "Reads what a path is, for `register`.",
        example: "stat: {path: /etc/hosts}"
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
