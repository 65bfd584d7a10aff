//! `service`: a systemd unit runs, starts at boot, or is masked.
//!
//! One `systemctl show` reads everything that is compared; every call of `systemctl` ends at the operation's deadline.

use std::{collections::HashMap, path::PathBuf};

use gpufleet_protocol::{
    Certainty, Change, Disruption, FailureKind, Layer, NodeOp, Property, Subject,
    change::Value as Typed,
    disturbing::{Disturbance, class_of, kinds},
    tasks::{Service, ServiceState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::reload,
    process::Run,
    tasks::{
        systemd::{ask, foreseen, not_found, parse, systemctl, unit},
        unit_files::{self, DropIns},
    },
    world::{BootView, Effect, UnitView},
};

const PROPERTIES: &str = "Id,Names,LoadState,ActiveState,SubState,UnitFileState,Type,RemainAfterExit,Result,CanReload,\
                          NeedDaemonReload,FragmentPath,DropInPaths,MainPID,LoadError,TriggeredBy,WantedBy,RequiredBy,BoundBy,\
                          UpheldBy,ConditionResult,ConditionTimestampMonotonic";

#[derive(Debug)]
pub struct State {
    systemctl: PathBuf,
    /// The unit's properties from systemd; empty if the task names no unit.
    properties: HashMap<String, String>,
    view: UnitView,
    /// Whether systemd has loaded older unit files than those on disk.
    stale: bool,
    /// The state of its file without a mask.
    unmasked: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    DaemonReload,
    DaemonReexec,
    Do(&'static str),
}

impl State {
    fn property(&self, name: &str) -> &str {
        self.properties.get(name).map_or("", String::as_str)
    }

    /// Whether the unit runs once and is inactive afterwards.
    fn runs_once(&self) -> bool {
        self.view.boot.once
    }
}

/// Returns what decides, beside the state of its file, whether a unit runs after a boot.
fn boot_view(get: impl Fn(&str) -> String) -> BootView {
    let tried = !matches!(get("ConditionTimestampMonotonic").as_str(), "" | "0");
    let idle = get("ActiveState") == "inactive";
    BootView {
        once: get("Type") == "oneshot" && get("RemainAfterExit") != "yes",
        pulled: ["TriggeredBy", "WantedBy", "RequiredBy", "BoundBy", "UpheldBy"]
            .iter()
            .any(|name| !get(name).is_empty()),
        fails: get("ActiveState") == "failed" || idle && tried && get("ConditionResult") == "no",
    }
}

/// Whether systemd has loaded older files than those on disk, for any loaded unit or any unit with drop-ins.
fn any_stale(node: &Node<'_>, systemctl: &PathBuf) -> Result<bool, Trouble> {
    let drop_ins = DropIns::read(node, None);
    let wanted = format!("--property={}", unit_files::PROPERTIES);
    let mut arguments = vec!["show", &wanted, "--", "*"];
    arguments.extend(drop_ins.units());
    let done = ask(node, systemctl, &arguments)?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("systemctl show")));
    }
    let text = done.stdout();
    let mut units = text.split("\n\n").map(parse);
    Ok(units.any(|unit| drop_ins.are_newer(node, &unit_files::names_of(&unit), &unit)))
}

/// Returns the verb of `systemctl`.
const fn verb(step: &Step) -> &'static str {
    match step {
        Step::DaemonReexec => "daemon-reexec",
        Step::DaemonReload => "daemon-reload",
        Step::Do(verb) => verb,
    }
}

impl NodeKind for Service {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let systemctl = systemctl(node)?;
        if self.name.is_empty() {
            let stale = any_stale(node, &systemctl)?;
            let view = UnitView { active: Some(false), ..UnitView::default() };
            return Ok(State { systemctl, properties: HashMap::new(), view, stale, unmasked: "disabled" });
        }
        let unit = unit(&self.name);
        let wanted = format!("--property={PROPERTIES}");
        let done = ask(node, &systemctl, &["show", &wanted, "--", &unit])?;
        if !done.exit.success() {
            return Err(Trouble::io(done.complaint("systemctl show")));
        }
        let properties = parse(&done.stdout());
        let get = |name: &str| properties.get(name).map_or("", String::as_str);
        let active = match get("ActiveState") {
            "active" | "reloading" | "refreshing" => true,
            "activating" => get("SubState") != "auto-restart",
            _ => false,
        };
        let mut view = UnitView {
            active: Some(active),
            file_state: get("UnitFileState").to_owned(),
            boot: boot_view(|name| get(name).to_owned()),
        };
        match get("LoadState") {
            "not-found" if foreseen(node, &unit) => view.file_state = "disabled".to_owned(),
            "not-found" => return Err(not_found(node, &systemctl, &unit)),
            "bad-setting" | "error" => {
                let why = if get("LoadError").is_empty() { get("LoadState") } else { get("LoadError") };
                return Err(Trouble::invalid(format!("systemd cannot load {unit}: {why}")));
            }
            "" => return Err(Trouble::io(format!("systemctl tells nothing of {unit}"))),
            "masked" => view.file_state = "masked".to_owned(),
            _ => {}
        }
        if let Some(assumed) = node.world.unit(&unit) {
            view = assumed;
        } else if node.world.rebooted() {
            view = view.booted();
        }
        // Only then, because a task that starts and reloads nothing needs no list of files.
        let stale = (self.daemon_reload || starts(self, &view, true)) && {
            let mut names = unit_files::names_of(&properties);
            names.insert(unit.clone());
            DropIns::read(node, Some(&names)).are_newer(node, &names, &properties)
        };
        // By the links: a mask hides them from systemd, and they count again without it.
        let linked = |kind: &str| {
            node.world.any_match(&node.roots.etc(&format!("systemd/system/*.{kind}")).join(&unit))
        };
        let masked = view.file_state.starts_with("masked");
        let unmasked = if masked && (linked("wants") || linked("requires")) { "enabled" } else { "disabled" };
        Ok(State { systemctl, properties, view, stale, unmasked })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        plan_as(self, state, true)
    }

    fn left(&self, state: &State, _: &Plan<Step>) -> Result<Plan<Step>, Trouble> {
        if self.no_block {
            // Nothing waited for the unit, so it is not known yet whether it runs.
            let settled = Service { state: None, ..self.clone() };
            return plan_as(&settled, state, false);
        }
        plan_as(self, state, false)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let mut view = state.view.clone();
        for step in &plan.steps {
            match step {
                Step::Do("start" | "restart") => view.active = Some(!state.runs_once()),
                Step::Do("stop") => view.active = Some(false),
                Step::Do("enable") => view.file_state = "enabled".to_owned(),
                Step::Do("disable") => view.file_state = "disabled".to_owned(),
                Step::Do("unmask") => view.file_state = state.unmasked.to_owned(),
                Step::Do("mask") => view.file_state = "masked".to_owned(),
                _ => {}
            }
        }
        if state.view.active.is_none() {
            view.active = match self.state {
                None => None,
                Some(ServiceState::Stopped) => Some(false),
                Some(_) => Some(!state.runs_once()),
            };
        }
        let read =
            plan.steps.iter().map(verb).find(|verb| reload::reads_units(verb)).map(Effect::UnitFilesRead);
        if view == state.view || self.name.is_empty() {
            return read.into_iter().collect();
        }
        read.into_iter().chain([Effect::Unit { name: unit(&self.name), view }]).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let unit = unit(&self.name);
        for step in &plan.steps {
            let base =
                Run::new(&state.systemctl).args(["--no-ask-password", "--no-pager"]).user(node.user.clone());
            let (run, what) = match step {
                Step::DaemonReexec => (base.arg("daemon-reexec"), "systemctl daemon-reexec".to_owned()),
                Step::DaemonReload => (base.arg("daemon-reload"), "systemctl daemon-reload".to_owned()),
                Step::Do(verb) => {
                    let starts = matches!(*verb, "start" | "stop" | "restart" | "reload");
                    let mut base = base;
                    if self.no_block && starts {
                        base = base.arg("--no-block");
                    }
                    if self.force && !starts {
                        base = base.arg("--force");
                    }
                    (base.args([verb, "--", unit.as_str()]), format!("systemctl {verb} {unit}"))
                }
            };
            reload::before(verb(step), node.roots)?;
            (node.progress)(what.clone());
            let done = run.finish(node.deadline)?;
            if !done.exit.success() {
                let mut message = done.complaint(&what);
                if matches!(step, Step::Do("start" | "restart" | "reload")) {
                    message.push_str(&format!("; `journalctl -u {unit}` on the node tells why"));
                }
                return Err(Trouble::failed(FailureKind::Exit, message));
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("name".to_owned(), json!(self.name));
        if !self.name.is_empty() {
            data.insert("status".to_owned(), json!(state.properties));
            data.insert("state".to_owned(), json!(state.view.active.map(running)));
            data.insert("enabled".to_owned(), json!(starts_at_boot(&state.view.file_state)));
        }
        data
    }
}

const fn running(active: bool) -> &'static str {
    if active { "started" } else { "stopped" }
}

/// Whether a unit file state means that the unit starts by itself, or that this cannot be changed.
fn starts_at_boot(file_state: &str) -> bool {
    matches!(file_state, "enabled" | "alias" | "static" | "indirect" | "generated" | "transient")
}

/// Whether the task makes the unit read its settings.
fn starts(task: &Service, view: &UnitView, acts: bool) -> bool {
    match task.state {
        Some(ServiceState::Restarted | ServiceState::Reloaded) => acts,
        Some(ServiceState::Started) => view.active != Some(true),
        Some(ServiceState::Stopped) | None => false,
    }
}

/// Without `acts`, actions that are done every time, such as a restart, are left out.
fn plan_as(task: &Service, state: &State, acts: bool) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan::default();
    let systemd = |from: &str, to: &str| {
        Change::new(Subject::ServiceManager, Property::STATE, from, to, Disruption::Live)
    };
    if task.daemon_reexec && acts {
        plan.push(Step::DaemonReexec, systemd("running", "started anew"));
    }
    // Even if not requested: a start with older settings than those on disk is not the declared unit.
    let starts_now = starts(task, &state.view, acts);
    if (task.daemon_reload || (starts_now && !task.daemon_reexec)) && state.stale {
        plan.push(Step::DaemonReload, systemd("with older unit files", "unit files read again"));
    }
    if task.name.is_empty() {
        return Ok(plan);
    }
    let unit = unit(&task.name);
    let found = kinds::of_op(&NodeOp::Service(task.clone()));
    if let Some(refusal) = found.as_ref().and_then(Disturbance::refusal) {
        return Err(Trouble::failed(FailureKind::Refused, refusal));
    }
    // The restart of a unit that does not run ends nothing.
    let class = class_of(found.filter(|_| state.view.active != Some(false)));
    let change = |from: &str, to: &str| Change::new(Subject::unit(&unit), Property::STATE, from, to, class);
    let at_boot = |from: &str, to: &str| at_boot(&unit, from, to);
    let mut file_state = state.view.file_state.as_str();
    match (task.masked, file_state) {
        (Some(true), now) if now != "masked" => {
            plan.push(Step::Do("mask"), at_boot(now, "masked"));
            file_state = "masked";
        }
        (Some(false), "masked" | "masked-runtime") => {
            plan.push(Step::Do("unmask"), at_boot(file_state, "unmasked"));
            file_state = state.unmasked;
        }
        _ => {}
    }
    let starts =
        matches!(task.state, Some(ServiceState::Started | ServiceState::Restarted | ServiceState::Reloaded));
    if file_state == "masked" && (task.enabled == Some(true) || (starts && state.view.active != Some(true))) {
        return Err(Trouble::invalid(format!("{unit} is masked; `masked: false` would unmask it first")));
    }
    if file_state == "unknown" && (task.enabled.is_some() || task.masked.is_some()) {
        return Err(Trouble::Possible);
    }
    match task.enabled {
        Some(true) if !starts_at_boot(file_state) => {
            plan.push(Step::Do("enable"), at_boot(file_state, "enabled"));
        }
        Some(false)
            if matches!(
                file_state,
                "enabled" | "enabled-runtime" | "alias" | "linked" | "linked-runtime"
            ) =>
        {
            plan.push(Step::Do("disable"), at_boot(file_state, "disabled"));
        }
        Some(false) if matches!(file_state, "static" | "indirect" | "generated") => {
            plan.warnings.push(format!(
                "{unit} is {file_state}: it cannot be disabled, because other units start it; `masked: true` would keep it down"
            ));
        }
        _ => {}
    }
    let settled_once = !acts && state.runs_once() && state.property("Result") == "success";
    let Some(active) = state.view.active else {
        plan.changes.extend(after_boot(task, &unit, &state.view, class));
        return Ok(plan);
    };
    let now = running(active);
    match task.state {
        Some(ServiceState::Started) if !active && !settled_once => {
            plan.push(Step::Do("start"), change(now, "started"));
        }
        Some(ServiceState::Stopped) if active => {
            plan.push(Step::Do("stop"), change(now, "stopped"));
        }
        Some(ServiceState::Restarted) if acts => {
            plan.push(Step::Do("restart"), change(now, "restarted"));
        }
        Some(ServiceState::Reloaded) if acts && !active => {
            plan.push(Step::Do("start"), change(now, "started"));
        }
        Some(ServiceState::Reloaded) if acts => {
            if state.property("CanReload") == "no" {
                return Err(Trouble::invalid(format!(
                    "{unit} cannot be reloaded; `state: restarted` would restart it"
                )));
            }
            plan.push(Step::Do("reload"), change(now, "reloaded"));
        }
        Some(ServiceState::Restarted | ServiceState::Reloaded) if !active && !settled_once => {
            plan.push(Step::Do("start"), change(now, "started"));
        }
        _ => {}
    }
    plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
    Ok(plan)
}

/// Whether a unit starts at boot, from the state of its file, which is empty where there is none.
fn at_boot(unit: &str, file_state: &str, to: &str) -> Change {
    let from = (!file_state.is_empty()).then_some(file_state);
    Change::new(Subject::unit(unit), Property::STATE, from, to, Disruption::Live).at(Layer::Boot)
}

/// Returns the prediction for a unit that a boot may or may not have started.
fn after_boot(task: &Service, unit: &str, view: &UnitView, class: Disruption) -> Option<Change> {
    let (to, certainty) = match task.state? {
        ServiceState::Started => ("started", Certainty::Possible),
        ServiceState::Stopped => ("stopped", Certainty::Possible),
        ServiceState::Restarted => ("restarted", Certainty::Sure),
        ServiceState::Reloaded => ("reloaded", Certainty::Possible),
    };
    let why = match view.file_state.as_str() {
        "enabled" => "it is enabled, and did not run the last time that it was tried".to_owned(),
        "disabled" | "linked" => format!("it is {}, and another unit may start it", view.file_state),
        other => {
            let now = at_boot(unit, other, "enabled").from_text();
            format!("it is {}", now.unwrap_or_else(|| "unknown".to_owned()))
        }
    };
    let change = Change::new(Subject::unit(unit), Property::STATE, Typed::Unknown, to, class)
        .with_note(format!("whether it runs after the boot is known only in the run: {why}"));
    Some(Change { certainty, ..change })
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::{
        tasks::testing::{Bench, told},
        world::Entry,
    };

    /// A fake systemctl that keeps the state of one unit in files and logs its arguments.
    const FAKE: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
while case "$1" in --no-*) true;; *) false;; esac; do shift; done
case "$1" in
show)
  for last; do :; done
  if [ "$4" = '*' ]; then last=chrony.service; fi
  if [ "$last" != chrony.service ]; then echo LoadState=not-found; echo ActiveState=inactive; exit 0; fi
  echo Id=chrony.service; echo LoadState=loaded; echo "ActiveState=$(cat $d/active)"; echo "UnitFileState=$(cat $d/enabled)"
  echo "Type=$(cat $d/type)"; echo RemainAfterExit=no; echo Result=success; echo "CanReload=no"; echo "NeedDaemonReload=$(cat $d/stale)"
  echo "DropInPaths=$(cat $d/read)"
  cat $d/more 2>/dev/null; exit 0;;
list-unit-files) echo "chrony.service enabled enabled"; exit 0;;
esac
echo "$1 $3" >> $d/log
case "$1" in
start|restart) if [ -e $d/broken ]; then echo 'Job for chrony.service failed.' >&2; exit 1; fi
  [ "$(cat $d/type)" = oneshot ] || echo active > $d/active;;
stop) echo inactive > $d/active;;
enable) echo enabled > $d/enabled;;
disable|unmask) echo disabled > $d/enabled;;
mask) echo masked > $d/enabled;;
daemon-reload) echo no > $d/stale; echo $d/etc/systemd/system/*.d/*.conf > $d/read;;
esac
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/systemctl", FAKE);
        for (name, value) in [
            ("active", "inactive"),
            ("enabled", "disabled"),
            ("type", "notify"),
            ("stale", "no"),
            ("read", ""),
        ] {
            bench.write(name, value);
        }
        bench.write("log", "");
        bench
    }

    fn service(value: Value) -> Service {
        serde_json::from_value(value).unwrap()
    }

    fn message(outcome: &OpOutcome) -> &str {
        match &outcome.status {
            OpStatus::Failed { message, .. } => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_unit_is_enabled_and_started_once() {
        let bench = bench();
        let task = service(json!({"name": "chrony", "state": "started", "enabled": true}));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.snapshot(), before);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        let shown: Vec<_> = done.changes.iter().map(told).collect();
        assert_eq!(
            shown,
            [
                ("chrony.service at boot", Some("disabled"), "enabled"),
                ("chrony.service", Some("stopped"), "started")
            ]
        );
        assert_eq!(bench.read("log"), "enable chrony.service\nstart chrony.service\n");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.read("log").lines().count(), 2);
    }

    #[test]
    fn restarts_happen_each_time_and_reloads_need_a_unit_that_can() {
        let bench = bench();
        let task = service(json!({"name": "chrony.service", "state": "restarted"}));
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        let reload = service(json!({"name": "chrony", "state": "reloaded"}));
        assert!(message(&bench.run(&reload, Mode::Apply)).contains("cannot be reloaded"));
    }

    #[test]
    fn masking_and_unmasking() {
        let bench = bench();
        assert_eq!(
            bench.run(&service(json!({"name": "chrony", "masked": true})), Mode::Apply).status,
            OpStatus::Changed
        );
        let start = bench.run(&service(json!({"name": "chrony", "state": "started"})), Mode::Apply);
        assert_eq!(message(&start), "chrony.service is masked; `masked: false` would unmask it first");
        let all = service(json!({"name": "chrony", "masked": false, "enabled": true, "state": "started"}));
        assert_eq!(bench.run(&all, Mode::Apply).changes.len(), 3);
        assert_eq!(bench.run(&all, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn daemon_reload_happens_when_something_is_stale() {
        let bench = bench();
        let task = service(json!({"daemon_reload": true}));
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        bench.write("stale", "yes");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_reload_that_takes_gpus_from_a_container_is_not_run() {
        let bench = bench();
        std::fs::create_dir_all(bench.path("dev/char")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let number = rustix::fs::makedev(195, 0);
        let char = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, bench.path("dev/nvidia0"), char, mode, number)
            .expect("only root (CAP_MKNOD) can make a device file: run the tests as root");
        let rules = "[Scope]\nDevicePolicy=strict\nDeviceAllow=/dev/char/1:3 rwm\n";
        bench.write("run/systemd/transient/docker-ab.scope", rules);
        bench.write("proc/77/cgroup", "0::/system.slice/docker-ab.scope\n");
        let home =
            std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(bench.path("dev/nvidia0")).unwrap());
        let home = format!("{}:{}", rustix::fs::major(home), rustix::fs::minor(home));
        let mounts = format!("2 1 {home} /nvidia0 /dev/nvidia0 ro - devtmpfs udev rw\n");
        bench.write("proc/77/mountinfo", &mounts);
        bench.write("stale", "yes");
        let task = service(json!({"daemon_reload": true}));
        let refused = bench.run(&task, Mode::Apply);
        assert!(message(&refused).starts_with("`systemctl daemon-reload` was not run"), "{refused:?}");
        assert_eq!(bench.read("log"), "");
        std::fs::remove_dir_all(bench.path("proc/77")).unwrap();
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        let link = std::fs::read_link(bench.path("dev/char/195:0")).unwrap();
        assert_eq!(link, std::path::Path::new("../nvidia0"));
    }

    #[test]
    fn odd_drop_ins_end_no_task() {
        use std::os::unix::fs::{lchown, symlink};
        let bench = bench();
        bench.write("srv/settings", "[Service]\n");
        for (folder, name, target) in [
            ("other", "circle.conf", "circle.conf"),
            ("chrony", "circle.conf", "circle.conf"),
            ("chrony", "nowhere.conf", "nowhere"),
            ("chrony", ".hidden.conf", "../../../../srv/settings"),
        ] {
            let link = bench.path("etc/systemd/system").join(format!("{folder}.service.d/{name}"));
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(target, &link).unwrap();
            lchown(&link, Some(4711), Some(4711)).unwrap();
        }
        for task in [json!({"daemon_reload": true}), json!({"name": "chrony", "daemon_reload": true})] {
            assert_eq!(bench.run(&service(task.clone()), Mode::Apply).status, OpStatus::Ok, "{task}");
        }
        let folder = bench.path("etc/systemd/system/chrony.service.d");
        symlink("../../../../srv/settings", folder.join("ours.conf")).unwrap();
        lchown(folder.join("ours.conf"), Some(4711), Some(4711)).unwrap();
        for task in [json!({"daemon_reload": true}), json!({"name": "chrony", "state": "restarted"})] {
            assert_eq!(planned(&bench, task)[0], "systemd with older unit files -> unit files read again");
            bench.forget();
        }
    }

    #[test]
    fn a_first_drop_in_of_any_name_of_a_unit_counts() {
        for folder in ["chrony.service.d", "chronyd.service.d"] {
            for task in [json!({"daemon_reload": true}), json!({"name": "chrony", "state": "restarted"})] {
                let bench = bench();
                bench.write("more", "Names=chronyd.service chrony.service\n");
                bench.write(&format!("etc/systemd/system/{folder}/x.conf"), "[Service]\n");
                let changes = planned(&bench, task);
                assert_eq!(
                    changes[0], "systemd with older unit files -> unit files read again",
                    "{folder} {changes:?}"
                );
            }
        }
        // A settled task does not read any drop-ins.
        let bench = bench();
        bench.write("active", "active");
        bench.write("etc/systemd/system/chrony.service.d/x.conf", "[Service]\n");
        let task = service(json!({"name": "chrony", "state": "started"}));
        let state = bench.node(|node| task.observe(node)).unwrap();
        assert!(!state.stale);
    }

    /// As measured with systemd 252: NeedDaemonReload stays `no`, and a restart uses the old settings.
    #[test]
    fn a_first_drop_in_is_read_although_systemd_does_not_ask_for_it() {
        for task in [
            json!({"daemon_reload": true}),
            json!({"name": "chrony", "state": "restarted"}),
            json!({"name": "chrony", "state": "started", "daemon_reload": true}),
        ] {
            let bench = bench();
            bench.write(
                "etc/systemd/system/chrony.service.d/limits.conf",
                "[Service]\nLimitMEMLOCK=infinity\n",
            );
            let task = service(task);
            let predicted = bench.run(&task, Mode::Predict);
            let done = bench.run(&task, Mode::Apply);
            assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
            assert!(bench.read("log").starts_with("daemon-reload \n"), "{}", bench.read("log"));
            let only_reload = service(json!({"daemon_reload": true}));
            assert_eq!(bench.run(&only_reload, Mode::Apply).status, OpStatus::Ok);
            // The second one is in a folder that systemd knows; another unit's does not count for this one.
            bench.write("etc/systemd/system/other.service.d/x.conf", "");
            std::os::unix::fs::symlink(
                "/dev/null",
                bench.path("etc/systemd/system/chrony.service.d/masked.conf"),
            )
            .unwrap();
            bench.write("active", "active");
            let started = service(json!({"name": "chrony", "state": "started", "daemon_reload": true}));
            assert_eq!(bench.run(&started, Mode::Apply).status, OpStatus::Ok);
        }
    }

    #[test]
    fn a_prediction_reads_the_files_that_earlier_tasks_write_once() {
        let bench = bench();
        bench.write("etc/systemd/system/chrony.service.d/a.conf", "[Service]\n");
        bench.write("read", "/etc/systemd/system/chrony.service.d/a.conf");
        let reload = service(json!({"name": "chrony", "enabled": false, "daemon_reload": true}));
        assert_eq!(bench.run(&reload, Mode::Predict).status, OpStatus::Ok);
        let write = |text: &str| {
            let owned = crate::world::Owned { uid: 0, gid: 0, mode: 0o644 };
            let content = crate::world::Content::Known(text.as_bytes().into());
            let path = bench.path("etc/systemd/system/chrony.service.d/a.conf");
            bench.overlay.assume([Effect::Path { path, entry: Entry::File { owned, content } }]);
        };
        for text in ["[Service]\nNice=1\n", "[Service]\nNice=2\n"] {
            write(text);
            assert_eq!(bench.run(&reload, Mode::Predict).changes.len(), 1);
            assert_eq!(bench.run(&reload, Mode::Predict).status, OpStatus::Ok);
        }
        write("[Service]\nNice=3\n");
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&reload, Mode::Predict).status, OpStatus::Ok, "the boot reads them");
    }

    #[test]
    fn a_unit_that_runs_once_counts_as_started_after_it_ran() {
        let bench = bench();
        bench.write("type", "oneshot");
        let task = service(json!({"name": "chrony", "state": "started"}));
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
    }

    #[test]
    fn missing_units_and_failing_starts_say_so() {
        let bench = bench();
        let typo = bench.run(&service(json!({"name": "chrony2", "state": "started"})), Mode::Predict);
        assert_eq!(
            message(&typo),
            "there is no unit `chrony2.service` on this node; did you mean `chrony.service`?"
        );
        bench.write("broken", "");
        let done = bench.run(&service(json!({"name": "chrony", "state": "started"})), Mode::Apply);
        assert_eq!(
            message(&done),
            "systemctl start chrony.service: exit status 1: Job for chrony.service failed.; `journalctl -u chrony.service` on the node tells why"
        );
        let without =
            Bench::new().run(&service(json!({"name": "chrony", "state": "started"})), Mode::Predict);
        assert_eq!(message(&without), "this node does not run systemd, so it has no units");
    }

    #[test]
    fn a_systemd_that_does_not_answer_is_unknown() {
        let bench = bench();
        bench.script("usr/bin/systemctl", "#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n");
        let done = bench.run(&service(json!({"name": "chrony", "state": "started"})), Mode::Predict);
        let OpStatus::Unknown { reason } = done.status else { panic!("{done:?}") };
        assert_eq!(reason, "systemctl show: exit status 1: Failed to connect to bus");
    }

    #[test]
    fn an_assumed_reboot_starts_what_is_enabled() {
        let bench = bench();
        bench.write("active", "active");
        let started = service(json!({"name": "chrony", "state": "started"}));
        assert_eq!(bench.run(&started, Mode::Predict).status, OpStatus::Ok);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&started, Mode::Predict).status, OpStatus::Changed);
        bench.forget();
        bench.write("enabled", "enabled");
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&started, Mode::Predict).status, OpStatus::Ok);
    }

    /// Returns the changes that a task predicts.
    fn planned(bench: &Bench, task: Value) -> Vec<String> {
        let outcome = bench.run(&service(task), Mode::Predict);
        let line = |change: &Change| {
            let (what, from, to) = told(change);
            let open = if change.certainty == Certainty::Possible { " possible" } else { "" };
            format!("{what} {} -> {to}{open}", from.unwrap_or("-"))
        };
        outcome.changes.iter().map(line).collect()
    }

    #[test]
    fn an_assumed_reboot_keeps_what_the_play_enabled_and_starts_that() {
        let bench = bench();
        let both = json!({"name": "chrony", "state": "started", "enabled": true});
        assert_eq!(planned(&bench, both.clone()).len(), 2);
        bench.activate(Disruption::Reboot);
        assert_eq!(planned(&bench, both), Vec::<String>::new(), "the boot has started what was enabled");

        let bench = self::bench();
        bench.write("active", "active");
        bench.write("enabled", "enabled");
        assert_eq!(
            planned(&bench, json!({"name": "chrony", "enabled": false})),
            ["chrony.service at boot enabled -> disabled"]
        );
        bench.activate(Disruption::Reboot);
        assert_eq!(planned(&bench, json!({"name": "chrony", "enabled": false})), Vec::<String>::new());
        assert_eq!(planned(&bench, json!({"name": "chrony", "state": "stopped"})), Vec::<String>::new());
        assert_eq!(
            planned(&bench, json!({"name": "chrony", "state": "started"})),
            ["chrony.service stopped -> started"]
        );
    }

    #[test]
    fn whether_others_start_a_unit_at_boot_is_left_open() {
        for (file_state, more) in
            [("static", ""), ("indirect", ""), ("disabled", "TriggeredBy=chrony.socket")]
        {
            let bench = bench();
            bench.write("enabled", file_state);
            bench.write("more", more);
            bench.write("active", "active");
            bench.activate(Disruption::Reboot);
            let task = service(json!({"name": "chrony", "state": "started"}));
            let outcome = bench.run(&task, Mode::Predict);
            assert_eq!(outcome.status, OpStatus::Possible, "{file_state}: {outcome:?}");
            assert_eq!(outcome.changes[0].certainty, Certainty::Possible, "{file_state}");
            assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok, "it is asserted by then");
        }
        let bench = bench();
        bench.write("enabled", "static");
        bench.activate(Disruption::Reboot);
        assert_eq!(
            planned(&bench, json!({"name": "chrony", "state": "stopped"})),
            ["chrony.service - -> stopped possible"]
        );
    }

    #[test]
    fn links_below_run_do_not_outlive_a_boot() {
        let bench = bench();
        bench.write("enabled", "enabled-runtime");
        bench.write("active", "active");
        bench.activate(Disruption::Reboot);
        assert_eq!(
            planned(&bench, json!({"name": "chrony", "state": "started", "enabled": true})),
            ["chrony.service at boot disabled -> enabled", "chrony.service stopped -> started"]
        );
    }

    #[test]
    fn a_unit_file_that_an_earlier_task_brings_is_foreseen() {
        let bench = bench();
        let owned = crate::world::Owned { uid: 0, gid: 0, mode: 0o644 };
        let content = crate::world::Content::Digest { sha256: "0".into(), size: 1 };
        let path = bench.path("etc/systemd/system/new.service");
        bench.overlay.assume([Effect::Path { path, entry: Entry::File { owned, content } }]);
        let task = service(json!({"name": "new", "state": "started", "enabled": true}));
        assert_eq!(bench.run(&task, Mode::Predict).changes.len(), 2);
    }
}
