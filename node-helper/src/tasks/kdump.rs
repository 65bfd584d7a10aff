//! `kdump`: a second kernel that is ready when the first one crashes.
//!
//! Memory for it is set aside by the boot only, so that its word on the command line awaits a reboot; the service that loads
//! the second kernel is enabled before, and started once there is memory.

use std::path::PathBuf;

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Layer, Property, Subject,
    change::Value as Typed,
    tasks::{Kdump, KernelCmdline},
};
use serde_json::{Map, Value, json};

use super::{kernel_cmdline, knobs, sysctl::owners, tool};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{reload, units},
    world::{BootView, Effect, UnitView},
};

const SIZE: &str = "/sys/kernel/kexec_crash_size";
const LOADED: &str = "/sys/kernel/kexec_crash_loaded";
/// The service of Debian and Ubuntu, and that of the others.
const UNITS: [&str; 2] = ["kdump-tools.service", "kdump.service"];

#[derive(Debug)]
pub struct State {
    /// Bytes that are set aside; none if it is known only after an assumed boot.
    size: Option<u64>,
    loaded: Option<bool>,
    unit: String,
    enabled: bool,
    systemctl: PathBuf,
    cmdline: Option<(KernelCmdline, kernel_cmdline::State)>,
}

pub enum Step {
    Cmdline(Plan<kernel_cmdline::Step>),
    Enable,
    /// Starts the service anew, which loads the second kernel.
    Load,
}

/// Returns the value of a shell variable in a file of /etc/default; the last one counts.
fn variable(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| Some(line.trim().strip_prefix(name)?.strip_prefix('=')?.to_owned());
    text.lines().filter_map(value).next_back().map(|value| value.trim_matches(['"', '\'']).to_owned())
}

impl NodeKind for Kdump {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if owners::in_container(node) {
            return Err(Trouble::NotApplicable(
                "this is a container, and the kernel is the host's".to_owned(),
            ));
        }
        let (Some(size), Some(loaded)) = (knobs::value(node, SIZE)?, knobs::assumed(node, LOADED)?) else {
            return Err(Trouble::NotApplicable(
                "the running kernel cannot start a second one after a crash (CONFIG_CRASH_DUMP)".to_owned(),
            ));
        };
        let size =
            size.parse::<u64>().map_err(|_| Trouble::io(format!("{SIZE} holds no number of bytes")))?;
        let systemctl = tool::find(node, "systemctl", "does systemd run this node?")?;
        let found = units::show(&systemctl, &UNITS, node.deadline)?;
        let there = UNITS.iter().find(|name| found.get(**name).is_some_and(|status| status.exists));
        let Some(unit) = there.map(|name| (*name).to_owned()) else {
            return Err(Trouble::missing(
                "there is neither kdump-tools.service nor kdump.service: `package` installs kdump-tools (Debian, Ubuntu), \
                 kdump-utils or kexec-tools (Red Hat) or kdump (SUSE)",
            ));
        };
        let status = found.get(&unit).cloned().unwrap_or_default();
        let view = node.world.unit(&unit);
        let enabled = view.map_or(status.enabled, |view| view.file_state == "enabled");
        let defaults = node.world.read(&node.roots.etc("default/kdump-tools"))?.unwrap_or_default();
        let used = variable(&String::from_utf8_lossy(&defaults), "USE_KDUMP");
        if unit == "kdump-tools.service" && used.is_some_and(|used| used == "0") {
            return Err(Trouble::invalid(
                "/etc/default/kdump-tools says USE_KDUMP=0, so that the service loads nothing: `lineinfile` with USE_KDUMP=1 \
                 changes it",
            ));
        }
        let cmdline = match &self.crashkernel {
            None => None,
            Some(value) => {
                let task = KernelCmdline { add: vec![format!("crashkernel={value}")], remove: Vec::new() };
                let state = task.observe(node)?;
                Some((task, state))
            }
        };
        let rebooted = node.world.rebooted();
        Ok(State {
            size: (!rebooted).then_some(size),
            loaded: (!rebooted).then_some(loaded == "1"),
            unit,
            enabled,
            systemctl,
            cmdline,
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let mut awaits = false;
        if let Some((task, known)) = &state.cmdline {
            let mut words = task.plan(known)?;
            plan.changes.append(&mut words.changes);
            plan.awaiting.append(&mut words.awaiting);
            plan.warnings.append(&mut words.warnings);
            plan.needs = plan.needs.max(words.needs);
            awaits = !plan.changes.is_empty() || !plan.awaiting.is_empty();
            if !words.steps.is_empty() {
                plan.steps.push(Step::Cmdline(words));
            }
        }
        if !state.enabled {
            let subject = Subject::unit(&state.unit);
            let change = Change::new(subject, Property::STATE, "disabled", "enabled", Disruption::Live);
            plan.push(Step::Enable, change.at(Layer::Boot));
        }
        let Some(size) = state.size else {
            // After an assumed boot the service loads it, unless there is too little memory.
            if !state.enabled || state.cmdline.is_none() {
                let subject = Subject::kernel_setting("kexec_crash_loaded");
                let open = Change::new(
                    subject,
                    Property::VALUE,
                    Typed::Unknown,
                    Typed::parsed("1"),
                    Disruption::Live,
                );
                plan.changes.push(
                    open.with_note("whether the boot sets memory aside is known only in the run").possible(),
                );
            }
            return Ok(plan);
        };
        if size == 0 {
            // What waits for a boot may set it aside.
            if awaits {
                return Ok(plan);
            }
            let word = self.crashkernel.as_ref().map_or_else(
                || "no crashkernel= sets memory aside for a second kernel; `crashkernel: 512M` here does, with a reboot".to_owned(),
                |value| {
                    format!(
                        "crashkernel={value} is on the command line, and the kernel set nothing aside: no free memory in one \
                         piece, or a word that it does not understand (journalctl -k --grep crashkernel)"
                    )
                },
            );
            return Err(Trouble::failed(FailureKind::Unconverged, word));
        }
        if let Some(wanted) = self.bytes().filter(|wanted| size < *wanted && !awaits) {
            plan.warnings.push(format!(
                "{size} bytes are set aside, and {wanted} are declared: somebody gave memory back ({SIZE}), and only a boot \
                 sets it aside again"
            ));
        }
        if state.loaded == Some(false) {
            let subject = Subject::kernel_setting("kexec_crash_loaded");
            let change = Change::new(
                subject,
                Property::VALUE,
                Typed::parsed("0"),
                Typed::parsed("1"),
                Disruption::Live,
            );
            plan.push(Step::Load, change);
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for step in &plan.steps {
            match (step, &state.cmdline) {
                (Step::Cmdline(plan), Some((task, known))) => effects.extend(task.after(known, plan)),
                (Step::Cmdline(_), None) => {}
                (Step::Enable, _) => {
                    let view = UnitView {
                        active: None,
                        file_state: "enabled".to_owned(),
                        boot: BootView::default(),
                    };
                    effects.push(Effect::Unit { name: state.unit.clone(), view });
                    effects.push(Effect::UnitFilesRead("enable"));
                }
                (Step::Load, _) => {
                    effects.push(Effect::Parameter { name: LOADED.to_owned(), value: "1".to_owned() });
                }
            }
        }
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match (step, &state.cmdline) {
                (Step::Cmdline(plan), Some((task, known))) => {
                    task.apply(node, known, plan)?;
                }
                (Step::Cmdline(_), None) => {}
                (Step::Enable, _) => {
                    reload::before("enable", node.roots)?;
                    let arguments = ["--no-ask-password", "enable", &state.unit];
                    let run = tool::run(node, &state.systemctl).args(arguments);
                    tool::act(node, &run, &format!("systemctl enable {}", state.unit))?;
                }
                (Step::Load, _) => tool::restart(node, &state.unit)?,
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let data = [("crash_size", json!(state.size)), ("crash_loaded", json!(state.loaded))];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    fn bench(size: &str, loaded: &str, cmdline: &str) -> Bench {
        let bench = Bench::new();
        bench.write("sys/kernel/kexec_crash_size", &format!("{size}\n"));
        bench.write("sys/kernel/kexec_crash_loaded", &format!("{loaded}\n"));
        bench.write("etc/default/grub", &format!("GRUB_CMDLINE_LINUX_DEFAULT=\"{cmdline}\"\n"));
        bench.write("proc/cmdline", &format!("{cmdline}\n"));
        bench.write("state", "disabled");
        bench.script(
            "usr/bin/systemctl",
            "#!/bin/sh\nhere=$(dirname \"$0\")/../..\n\
             case $1 in show) printf 'Id=kdump-tools.service\\nLoadState=loaded\\nActiveState=inactive\\nUnitFileState=%s\\n\\n\
             Id=kdump.service\\nLoadState=not-found\\n' \"$(cat $here/state)\"; exit;; esac\n\
             case $2 in enable) echo enabled >$here/state;; restart) echo 1 >$here/sys/kernel/kexec_crash_loaded;; esac\n",
        );
        bench
    }

    fn run(bench: &Bench, task: Value, mode: Mode) -> OpOutcome {
        let task: Kdump = serde_json::from_value(task).unwrap();
        bench.run(&task, mode)
    }

    #[test]
    fn memory_waits_for_a_boot_and_the_kernel_is_loaded_after_it() {
        let bench = bench("0", "0", "quiet");
        let task = || json!({"crashkernel": "512M"});
        let predicted = run(&bench, task(), Mode::Predict);
        assert_eq!(predicted.status, OpStatus::Changed, "{predicted:?}");
        assert_eq!(predicted.awaiting.len(), 1, "{predicted:?}");
        assert_eq!(
            shown(&predicted).last().unwrap(),
            "kdump-tools.service at boot: disabled -> enabled (live)"
        );
        bench.activate(Disruption::Reboot);
        assert_eq!(run(&bench, task(), Mode::Predict).status, OpStatus::Ok, "after the boot");
        bench.forget();
        let done = run(&bench, task(), Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert!(bench.read("etc/default/grub").contains("crashkernel=512M"));
        let again = run(&bench, task(), Mode::Apply);
        assert_eq!((&again.status, again.awaiting.len()), (&OpStatus::Ok, 1), "{again:?}");
        // The boot set nothing aside.
        bench.write("proc/cmdline", "quiet crashkernel=512M\n");
        let none = run(&bench, task(), Mode::Predict);
        assert!(failure(&none).contains("the kernel set nothing aside"), "{none:?}");
        bench.write("sys/kernel/kexec_crash_size", "536870912\n");
        let done = run(&bench, task(), Mode::Apply);
        assert_eq!(shown(&done), ["kexec_crash_loaded: 0 -> 1 (live)"]);
        assert_eq!(run(&bench, task(), Mode::Apply).status, OpStatus::Ok);
        bench.write("sys/kernel/kexec_crash_size", "1048576\n");
        assert_eq!(run(&bench, task(), Mode::Apply).warnings.len(), 1);
    }

    #[test]
    fn what_cannot_be_ready_is_told() {
        let none = run(&bench("0", "0", "quiet"), json!({}), Mode::Apply);
        assert!(failure(&none).starts_with("no crashkernel="), "{none:?}");
        let off = bench("536870912", "0", "quiet");
        off.write("etc/default/kdump-tools", "USE_KDUMP=1\nUSE_KDUMP=0\n");
        assert!(failure(&run(&off, json!({}), Mode::Apply)).contains("USE_KDUMP=0"));
        let old = bench("0", "0", "quiet");
        std::fs::remove_file(old.path("sys/kernel/kexec_crash_size")).unwrap();
        let old = run(&old, json!({}), Mode::Apply);
        assert!(matches!(old.status, OpStatus::NotApplicable { .. }), "{old:?}");
        let bare = bench("0", "0", "quiet");
        bare.script("usr/bin/systemctl", "#!/bin/sh\necho Id=kdump.service\n");
        assert!(failure(&run(&bare, json!({}), Mode::Apply)).contains("kdump-tools (Debian, Ubuntu)"));
    }
}
