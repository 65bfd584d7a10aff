//! `service`: a systemd unit runs, starts at boot, is masked.
//!
//! One `systemctl show` tells all that is compared; every call of `systemctl` ends with the operation's deadline.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use gpufleet_protocol::{
    Change, Disruption, FailureKind,
    tasks::{Service, ServiceState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Declaration, Node, Plan, Trouble},
    process::{Finished, Run},
    tasks::nearest::nearest,
    world::{Effect, Entry, UnitView},
};

/// How long systemd may take to tell something.
const ANSWER: Duration = Duration::from_secs(25);
const PROPERTIES: &str = "Id,LoadState,ActiveState,SubState,UnitFileState,Type,RemainAfterExit,Result,CanReload,\
                          NeedDaemonReload,FragmentPath,MainPID,LoadError";

#[derive(Debug)]
pub struct State {
    systemctl: PathBuf,
    /// What systemd tells of the unit; empty when the task names none.
    properties: HashMap<String, String>,
    view: UnitView,
    /// Whether systemd has read older unit files than there are.
    stale: bool,
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

    /// A unit that does something once and is inactive afterwards.
    fn runs_once(&self) -> bool {
        self.property("Type") == "oneshot" && self.property("RemainAfterExit") != "yes"
    }
}

/// The name with its suffix, as systemd completes it.
fn unit(name: &str) -> String {
    let suffixes = [
        ".service",
        ".socket",
        ".timer",
        ".target",
        ".path",
        ".mount",
        ".automount",
        ".swap",
        ".slice",
        ".scope",
        ".device",
    ];
    if suffixes.iter().any(|suffix| name.ends_with(suffix)) {
        name.to_owned()
    } else {
        format!("{name}.service")
    }
}

fn parse(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn systemctl(node: &Node<'_>) -> Result<PathBuf, Trouble> {
    let found = node.roots.tool("systemctl");
    // Why the folder: systemctl is also installed where systemd does not run, such as in containers.
    let runs = !node.roots.is_real() || node.roots.path("/run/systemd/system").is_dir();
    found
        .filter(|_| runs)
        .ok_or_else(|| Trouble::invalid("this node does not run systemd, so it has no units"))
}

fn ask(node: &Node<'_>, systemctl: &PathBuf, arguments: &[&str]) -> Result<Finished, Trouble> {
    let run =
        Run::new(systemctl).args(["--no-ask-password", "--no-pager"]).args(arguments).user(node.user.clone());
    Ok(run.finish(&node.deadline.within(ANSWER))?)
}

fn not_found(node: &Node<'_>, systemctl: &PathBuf, unit: &str) -> Trouble {
    let listed = ask(node, systemctl, &["list-unit-files", "--no-legend", "--full"]);
    let text = listed.map(|done| done.stdout()).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    let hint = nearest(unit, names).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    Trouble::missing(format!("there is no unit `{unit}` on this node{hint}"))
}

/// Whether an earlier task of a prediction brings the file of a unit.
fn foreseen(node: &Node<'_>, unit: &str) -> bool {
    ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/system"]
        .iter()
        .any(|folder| {
            let path = node.roots.path(folder).join(unit);
            matches!(node.world.follow(&path), Ok((_, Entry::File { .. })))
        })
}

impl Declaration for Service {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let systemctl = systemctl(node)?;
        if self.name.is_empty() {
            let done = ask(node, &systemctl, &["show", "--property=NeedDaemonReload", "*"])?;
            if !done.exit.success() {
                return Err(Trouble::io(done.complaint("systemctl show")));
            }
            let stale = done.stdout().lines().any(|line| line == "NeedDaemonReload=yes");
            let view = UnitView { active: false, file_state: String::new() };
            return Ok(State { systemctl, properties: HashMap::new(), view, stale });
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
        let mut view = UnitView { active, file_state: get("UnitFileState").to_owned() };
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
            match view.file_state.as_str() {
                "enabled" => view.active = true,
                "disabled" | "masked" => view.active = false,
                _ => {}
            }
        }
        let stale = get("NeedDaemonReload") == "yes";
        Ok(State { systemctl, properties, view, stale })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        plan_as(self, state, true)
    }

    fn left(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        if self.no_block {
            // Why: nobody waited, so whether the unit runs is not known yet.
            let settled = Service { state: None, ..self.clone() };
            return plan_as(&settled, state, false);
        }
        plan_as(self, state, false)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let mut view = state.view.clone();
        for step in &plan.steps {
            match step {
                Step::Do("start" | "restart") => view.active = !state.runs_once(),
                Step::Do("stop") => view.active = false,
                Step::Do("enable") => view.file_state = "enabled".to_owned(),
                Step::Do("disable" | "unmask") => view.file_state = "disabled".to_owned(),
                Step::Do("mask") => view.file_state = "masked".to_owned(),
                _ => {}
            }
        }
        if view == state.view || self.name.is_empty() {
            return Vec::new();
        }
        vec![Effect::Unit { name: unit(&self.name), view }]
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
            data.insert("state".to_owned(), json!(if state.view.active { "started" } else { "stopped" }));
            data.insert("enabled".to_owned(), json!(starts_at_boot(&state.view.file_state)));
        }
        data
    }
}

/// Whether a unit file state means that the unit starts by itself, or cannot be told to.
fn starts_at_boot(file_state: &str) -> bool {
    matches!(file_state, "enabled" | "alias" | "static" | "indirect" | "generated" | "transient")
}

/// `acts` leaves out what is asked for each time, such as a restart.
fn plan_as(task: &Service, state: &State, acts: bool) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan::default();
    let change =
        |what: String, from: &str, to: &str| Change::new(what, Some(from.to_owned()), to, Disruption::Live);
    if task.daemon_reexec && acts {
        plan.push(Step::DaemonReexec, change("systemd".to_owned(), "running", "started anew"));
    }
    if task.daemon_reload && state.stale {
        plan.push(
            Step::DaemonReload,
            change("systemd".to_owned(), "with older unit files", "unit files read again"),
        );
    }
    if task.name.is_empty() {
        return Ok(plan);
    }
    let unit = unit(&task.name);
    let mut file_state = state.view.file_state.as_str();
    match (task.masked, file_state) {
        (Some(true), now) if now != "masked" => {
            plan.push(Step::Do("mask"), change(format!("{unit} at boot"), shown(now), "masked"));
            file_state = "masked";
        }
        (Some(false), "masked" | "masked-runtime") => {
            plan.push(Step::Do("unmask"), change(format!("{unit} at boot"), file_state, "unmasked"));
            file_state = "disabled";
        }
        _ => {}
    }
    let starts =
        matches!(task.state, Some(ServiceState::Started | ServiceState::Restarted | ServiceState::Reloaded));
    if file_state == "masked" && (task.enabled == Some(true) || (starts && !state.view.active)) {
        return Err(Trouble::invalid(format!("{unit} is masked; `masked: false` would unmask it first")));
    }
    match task.enabled {
        Some(true) if !starts_at_boot(file_state) => {
            plan.push(Step::Do("enable"), change(format!("{unit} at boot"), shown(file_state), "enabled"));
        }
        Some(false)
            if matches!(
                file_state,
                "enabled" | "enabled-runtime" | "alias" | "linked" | "linked-runtime"
            ) =>
        {
            plan.push(Step::Do("disable"), change(format!("{unit} at boot"), file_state, "disabled"));
        }
        Some(false) if matches!(file_state, "static" | "indirect" | "generated") => {
            plan.warnings.push(format!(
                "{unit} is {file_state}: it cannot be disabled, because other units start it; `masked: true` would keep it down"
            ));
        }
        _ => {}
    }
    let now = if state.view.active { "started" } else { "stopped" };
    let settled_once = !acts && state.runs_once() && state.property("Result") == "success";
    match task.state {
        Some(ServiceState::Started) if !state.view.active && !settled_once => {
            plan.push(Step::Do("start"), change(unit, now, "started"));
        }
        Some(ServiceState::Stopped) if state.view.active => {
            plan.push(Step::Do("stop"), change(unit, now, "stopped"));
        }
        Some(ServiceState::Restarted) if acts => {
            plan.push(Step::Do("restart"), change(unit, now, "restarted"));
        }
        Some(ServiceState::Reloaded) if acts && !state.view.active => {
            plan.push(Step::Do("start"), change(unit, now, "started"));
        }
        Some(ServiceState::Reloaded) if acts => {
            if state.property("CanReload") == "no" {
                return Err(Trouble::invalid(format!(
                    "{unit} cannot be reloaded; `state: restarted` would restart it"
                )));
            }
            plan.push(Step::Do("reload"), change(unit, now, "reloaded"));
        }
        Some(ServiceState::Restarted | ServiceState::Reloaded) if !state.view.active && !settled_once => {
            plan.push(Step::Do("start"), change(unit, now, "started"));
        }
        _ => {}
    }
    Ok(plan)
}

fn shown(file_state: &str) -> &str {
    if file_state.is_empty() { "without a unit file" } else { file_state }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::Bench;

    /// A systemctl that keeps the state of one unit in files and logs what it was told.
    const FAKE: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
while case "$1" in --no-*) true;; *) false;; esac; do shift; done
case "$1" in
show)
  for last; do :; done
  if [ "$last" = '*' ]; then echo "NeedDaemonReload=$(cat $d/stale)"; exit 0; fi
  if [ "$last" != chrony.service ]; then echo LoadState=not-found; echo ActiveState=inactive; exit 0; fi
  echo Id=chrony.service; echo LoadState=loaded; echo "ActiveState=$(cat $d/active)"; echo "UnitFileState=$(cat $d/enabled)"
  echo "Type=$(cat $d/type)"; echo RemainAfterExit=no; echo Result=success; echo "CanReload=no"; echo "NeedDaemonReload=$(cat $d/stale)"
  exit 0;;
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
daemon-reload) echo no > $d/stale;;
esac
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/systemctl", FAKE);
        for (name, value) in
            [("active", "inactive"), ("enabled", "disabled"), ("type", "notify"), ("stale", "no")]
        {
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
        let shown: Vec<_> =
            done.changes.iter().map(|c| (c.what.as_str(), c.from.as_deref(), c.to.as_str())).collect();
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
        bench.overlay.activate(Disruption::Reboot);
        assert_eq!(bench.run(&started, Mode::Predict).status, OpStatus::Changed);
        bench.forget();
        bench.write("enabled", "enabled");
        bench.overlay.activate(Disruption::Reboot);
        assert_eq!(bench.run(&started, Mode::Predict).status, OpStatus::Ok);
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
