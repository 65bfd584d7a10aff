//! `container_limits`: ulimits and the size of logs that podman and CRI-O give containers.
//!
//! Both read a main file and then a folder in the order of names, and a later list takes the place of an earlier one as a
//! whole. The drop-in therefore holds the limits of earlier files too, and a later file that says otherwise is refused.

use std::{collections::BTreeMap, time::Duration};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    tasks::{ContainerLimits, ContainerRuntime, DaemonRestart},
};
use serde_json::{Map, Value, json};
use toml_edit::{DocumentMut, Item, TableLike, Value as Toml};

use super::{
    edits::{self, Present},
    started, tool,
    toolkit::config,
};
use crate::{
    deadline::Deadline,
    declare::{Node, NodeKind, Plan, Trouble},
    os::{files::Ownership, units},
    world::Effect,
};

const CRIO: &str = "crio.service";
/// Time to start CRI-O with its old file.
const WAY_BACK: Duration = Duration::from_secs(120);
/// Under which a prediction notes that CRI-O reads its files.
const NOTE: &str = "crio limits";
const HEADER: &str =
    "# Written by gpufleet: `container_limits`. The lists hold the limits of earlier files too.\n";

/// Limits by name, `soft:hard`.
type Limits = BTreeMap<String, String>;

/// What one file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Layer {
    path: String,
    ulimits: Option<Limits>,
    /// Whether its list, and those of later files, add to that of earlier files; `None` if it leaves that as it is. Source:
    /// containers.conf(5), "Appending to string arrays".
    appends: Option<bool>,
    log: Option<i64>,
}

#[derive(Debug)]
pub struct State {
    target: Present,
    ours: Layer,
    earlier: Vec<Layer>,
    later: Vec<Layer>,
    active: bool,
    /// Whether a file is newer than CRI-O.
    unread: bool,
}

#[derive(Debug)]
pub enum Step {
    File(edits::Step),
    Restart,
}

/// Returns the way to the table of the settings, and what a runtime calls itself.
const fn table(runtime: ContainerRuntime) -> (&'static [&'static str], &'static str) {
    match runtime {
        ContainerRuntime::Crio => (&["crio", "runtime"], "CRI-O"),
        _ => (&["containers"], "podman"),
    }
}

/// Reads what a file says; texts that are no limit are left out, as neither runtime would start a container with them.
fn layer(path: &str, text: &str, way: &[&str]) -> Result<Layer, Trouble> {
    let mut layer = Layer { path: path.to_owned(), ..Layer::default() };
    let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        let why = error.message().lines().next().unwrap_or_default().to_owned();
        Trouble::invalid(format!("{path}: it is no valid TOML: {why}; it was left as it is"))
    })?;
    let mut found: Option<&dyn TableLike> = Some(document.as_table());
    for key in way {
        found = found.and_then(|table| table.get(key)).and_then(Item::as_table_like);
    }
    let Some(settings) = found else { return Ok(layer) };
    layer.log = settings.get("log_size_max").and_then(Item::as_integer);
    if let Some(list) = settings.get("default_ulimits").and_then(Item::as_array) {
        let limit = |text: &str| {
            let (name, value) = text.split_once('=')?;
            let is_number = |part: &str| part.trim().parse::<i64>().is_ok();
            // Source: docker/go-units, `ParseUlimit`.
            let limit = ContainerLimits::limit(value).filter(|_| value.split(':').all(is_number))?;
            Some((name.trim().to_lowercase(), limit))
        };
        layer.ulimits = Some(list.iter().filter_map(Toml::as_str).filter_map(limit).collect());
        layer.appends = list
            .iter()
            .filter_map(Toml::as_inline_table)
            .filter_map(|table| table.get("append").and_then(Toml::as_bool))
            .last();
    }
    Ok(layer)
}

/// Returns what files give together, in their order.
fn together<'a>(layers: impl IntoIterator<Item = &'a Layer>) -> (Limits, Option<i64>) {
    let (mut limits, mut log, mut appends) = (Limits::new(), None, false);
    for layer in layers {
        appends = layer.appends.unwrap_or(appends);
        if let Some(own) = &layer.ulimits {
            if !appends {
                limits.clear();
            }
            limits.extend(own.clone());
        }
        log = layer.log.or(log);
    }
    (limits, log)
}

/// Returns the declared limits as files have them.
fn declared(task: &ContainerLimits) -> Limits {
    let one = |(name, text): (&String, &String)| Some((name.clone(), ContainerLimits::limit(text)?));
    task.ulimits.iter().filter_map(one).collect()
}

impl NodeKind for ContainerLimits {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let (way, _) = table(self.runtime);
        let is_crio = self.runtime == ContainerRuntime::Crio;
        let (program, mains, folder, endings): (&str, &[&str], &str, &[&str]) = if is_crio {
            ("crio", &["/etc/crio/crio.conf"], "/etc/crio/crio.conf.d", &[""])
        } else {
            let mains = &["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"];
            ("podman", mains, "/etc/containers/containers.conf.d", &[".conf"])
        };
        tool::find(node, program, "`runtime` names it; its package brings it")?;
        let target = Present::read(node, self.drop_in())?;
        let mut layers = Vec::new();
        let mut paths = Vec::new();
        for main in mains {
            let file = Present::read(node, main)?;
            layers.push(layer(&file.shown, file.text()?, way)?);
            paths.push(file.place);
        }
        let mut later = Vec::new();
        for file in Present::all(node, folder, endings)? {
            paths.push(file.place.clone());
            if file.shown == target.shown {
                continue;
            }
            let is_later = file.shown > target.shown;
            let layer = layer(&file.shown, file.text()?, way)?;
            if is_later { later.push(layer) } else { layers.push(layer) }
        }
        let ours = layer(&target.shown, target.text()?, way)?;
        let (mut active, mut unread) = (false, false);
        if let Some(systemctl) = node.roots.tool("systemctl").filter(|_| is_crio) {
            let shown = units::show(systemctl, &[CRIO], node.deadline)?;
            let unit = shown.get(CRIO).cloned().unwrap_or_default();
            active = match node.world.unit(CRIO) {
                Some(view) => view.active.ok_or(Trouble::Possible)?,
                None => unit.active,
            };
            let fresh = node.world.rebooted() || !node.world.noted(NOTE).is_empty();
            unread = active && unit.active && !fresh && started::before(node, unit.main_pid, &paths)?;
        }
        Ok(State { target, ours, earlier: layers, later, active, unread })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let (way, name) = table(self.runtime);
        let mut plan = Plan::default();
        let (limits, log) = (declared(self), self.log_bytes());
        self.refuse_later(state, &limits, log)?;
        let (now, now_log) = together(state.earlier.iter().chain([&state.ours]).chain(&state.later));
        let restarts = state.active && self.restart == DaemonRestart::IfNeeded;
        let class = if restarts { Disruption::Clients } else { Disruption::Live };
        let note = match (restarts, state.active, self.runtime) {
            (true, ..) => "CRI-O restarts; containers that run keep theirs",
            (_, true, _) => "it awaits a restart of CRI-O",
            (.., ContainerRuntime::Podman) => "for containers that start from now on",
            _ => "for the next start of CRI-O",
        };
        let subject = Subject::file(&state.target.shown);
        let change = |property: String, from: Typed, to: Typed| {
            Change::new(subject.clone(), Property::from(property), from, to, class).with_note(note)
        };
        let value = |log: i64| if log < 0 { Typed::text("unlimited") } else { Typed::number(log) };
        for (limit, wanted) in &limits {
            let found = now.get(limit);
            if found != Some(wanted) {
                let from = found.map_or(Typed::Absent, |found| Typed::text(found.clone()));
                plan.changes.push(change(format!("ulimits.{limit}"), from, Typed::text(wanted.clone())));
            }
        }
        if log.is_some() && log != now_log {
            let from = now_log.map_or(Typed::Absent, value);
            plan.changes.push(change("log_size_max".to_owned(), from, log.map_or(Typed::Absent, value)));
        }
        if !plan.changes.is_empty() {
            let mut settings = Vec::new();
            if !limits.is_empty() {
                let mut list = together(&state.earlier).0;
                list.extend(state.ours.ulimits.clone().unwrap_or_default());
                list.extend(limits);
                let list: Vec<Value> =
                    list.iter().map(|(name, value)| json!(format!("{name}={value}"))).collect();
                settings.push((format!("{}.default_ulimits", way.join(".")), Value::Array(list)));
            }
            if let Some(log) = log {
                settings.push((format!("{}.log_size_max", way.join(".")), json!(log)));
            }
            let (mut text, _) = config::edited(state.target.text()?, &settings)
                .map_err(|why| Trouble::invalid(format!("{}: {why}", state.target.shown)))?;
            if state.target.bytes.is_none() {
                text.insert_str(0, HEADER);
            }
            plan.steps.extend(state.target.written(text, Ownership::default()).map(Step::File));
        } else if state.unread && restarts {
            let unit = Subject::unit(CRIO);
            let change =
                Change::new(unit, Property::STATE, "with older settings", "restarted", Disruption::Clients);
            plan.changes.push(change.with_note("its files are newer than its start"));
        }
        if restarts && !plan.changes.is_empty() {
            plan.steps.push(Step::Restart);
        } else if state.active && (state.unread || !plan.changes.is_empty()) {
            plan.warnings.push(format!(
                "{name} runs without it until {CRIO} restarts, which `restart: never` leaves to you"
            ));
        }
        plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
        Ok(plan)
    }

    fn after(&self, _: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let effect = |step: &Step| match step {
            Step::File(step) => step.effect(),
            Step::Restart => Effect::Noted { name: NOTE.to_owned(), value: "read".to_owned() },
        };
        plan.steps.iter().map(effect).collect()
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        let mut done = Vec::new();
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::File(step) => {
                    step.apply()?;
                    done.push(step);
                }
                Step::Restart => {
                    let Err(trouble) = tool::restart(node, CRIO) else { continue };
                    let Trouble::Failed { kind, message } = trouble else { return Err(trouble) };
                    // A node without its runtime loses its pods.
                    let undone = done.iter().rev().all(|step| step.undo().is_ok());
                    // With time of its own, because the task's may be over.
                    let grace = Deadline::after(WAY_BACK);
                    let again = undone && tool::restart(&node.until(&grace), CRIO).is_ok();
                    let left = match (done.is_empty(), again) {
                        (true, _) => "its files were not changed",
                        (false, true) => "its file has its old content again, and CRI-O runs with it",
                        (false, false) => "CRI-O does not run with its old file either",
                    };
                    return Err(Trouble::Failed { kind, message: format!("{message}; {left}") });
                }
            }
        }
        Ok(Map::new())
    }
}

/// What a task asks of later files.
trait Refuses {
    fn refuse_later(&self, state: &State, limits: &Limits, log: Option<i64>) -> Result<(), Trouble>;
}

impl Refuses for ContainerLimits {
    /// Refuses what a later file says otherwise, because ours would never count.
    fn refuse_later(&self, state: &State, limits: &Limits, log: Option<i64>) -> Result<(), Trouble> {
        let wins = |path: &str, what: String| {
            Trouble::invalid(format!(
                "{path} comes after {} and {what}, which wins; take it out there",
                state.target.shown
            ))
        };
        let before = state.earlier.iter().chain([&state.ours]);
        let mut appends = before.filter_map(|layer| layer.appends).next_back().unwrap_or_default();
        for later in &state.later {
            appends = later.appends.unwrap_or(appends);
            if let Some(theirs) = &later.ulimits {
                for (name, wanted) in limits {
                    match theirs.get(name) {
                        Some(found) if found == wanted => {}
                        Some(found) => {
                            return Err(wins(&later.path, format!("sets the ulimit {name} to {found}")));
                        }
                        None if appends => {}
                        None => {
                            let what = format!("has a list of ulimits without {name}");
                            return Err(wins(&later.path, what));
                        }
                    }
                }
            }
            if let Some((found, wanted)) = later.log.zip(log).filter(|(found, wanted)| found != wanted) {
                return Err(wins(
                    &later.path,
                    format!("sets log_size_max to {found}, not the declared {wanted}"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::{
        declare::drive,
        tasks::testing::{Bench, changed, failure, shown},
    };

    const OURS: &str = "etc/crio/crio.conf.d/90-gpufleet.conf";
    const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
if [ "$1" = show ]; then
  echo Id=crio.service; echo LoadState=loaded; echo ActiveState=active; echo UnitFileState=enabled; echo MainPID=4711; exit 0
fi
echo "$*" >> $d/log
[ ! -e $d/slow ] || [ ! -e $d/etc/crio/crio.conf.d/90-gpufleet.conf ] || sleep 20
if [ -e $d/broken ] && [ -e $d/etc/crio/crio.conf.d/90-gpufleet.conf ]; then echo 'Job for crio.service failed.' >&2; exit 1; fi
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/systemctl", SYSTEMCTL);
        bench.script("usr/bin/crio", "#!/bin/sh\n");
        bench.script("usr/bin/podman", "#!/bin/sh\n");
        bench.write("log", "");
        bench.write(
            "etc/crio/crio.conf.d/10-crio.conf",
            "[crio.runtime]\nlog_size_max = -1\ndefault_ulimits = [\"nofile=1024:2048\"]\n",
        );
        bench
    }

    fn task(value: Value) -> ContainerLimits {
        serde_json::from_value(value).unwrap()
    }

    fn run(bench: &Bench, task: &ContainerLimits, mode: Mode, allowed: Disruption) -> OpOutcome {
        bench.node(|node| drive(task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
    }

    #[test]
    fn limits_of_crio_are_merged_behind_a_drain() {
        let bench = bench();
        let declared = task(json!({"runtime": "crio", "ulimits": {"memlock": "unlimited"}}));
        let held = run(&bench, &declared, Mode::Apply, Disruption::Live);
        assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
        let before = bench.snapshot();
        let predicted = run(&bench, &declared, Mode::Predict, Disruption::Live);
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<std::path::PathBuf>::new());
        bench.forget();
        let done = run(&bench, &declared, Mode::Apply, Disruption::Clients);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(
            shown(&done),
            ["/etc/crio/crio.conf.d/90-gpufleet.conf ulimits.memlock: nothing -> -1:-1 (clients)"]
        );
        assert_eq!(
            bench.read(OURS),
            format!("{HEADER}[crio.runtime]\ndefault_ulimits = [\"memlock=-1:-1\", \"nofile=1024:2048\"]\n")
        );
        assert_eq!(bench.read("log"), "--no-ask-password restart crio.service\n");
        let settled = bench.snapshot();
        assert_eq!(run(&bench, &declared, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
        // Another task's limit stays.
        let more = task(json!({"runtime": "crio", "ulimits": {"core": 0}, "log_size_max": "unlimited"}));
        assert_eq!(changed(&settled, &bench.snapshot()), Vec::<std::path::PathBuf>::new());
        assert_eq!(run(&bench, &more, Mode::Apply, Disruption::Clients).status, OpStatus::Changed);
        let text = bench.read(OURS);
        assert!(text.contains("[\"core=0:0\", \"memlock=-1:-1\", \"nofile=1024:2048\"]"), "{text}");
        assert_eq!(run(&bench, &declared, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    }

    #[test]
    fn what_earlier_files_have_already_is_not_written_again() {
        let bench = bench();
        let declared =
            task(json!({"runtime": "crio", "ulimits": {"nofile": "1024:2048"}, "log_size_max": "unlimited"}));
        assert_eq!(run(&bench, &declared, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
        assert_eq!(bench.read("log"), "");
    }

    #[test]
    fn a_later_file_wins_and_is_named() {
        let bench = bench();
        let declared = task(json!({"runtime": "crio", "ulimits": {"memlock": -1}}));
        let later = "etc/crio/crio.conf.d/99-site.conf";
        bench.write(later, "[crio.runtime]\ndefault_ulimits = [\"nproc=5:6\"]\n");
        let done = run(&bench, &declared, Mode::Predict, Disruption::Live);
        assert_eq!(
            failure(&done),
            "/etc/crio/crio.conf.d/99-site.conf comes after /etc/crio/crio.conf.d/90-gpufleet.conf and has a list of ulimits \
             without memlock, which wins; take it out there"
        );
        bench.write(later, "[crio.runtime]\ndefault_ulimits = [\"memlock=5:6\"]\n");
        let done = run(&bench, &declared, Mode::Apply, Disruption::Clients);
        assert!(failure(&done).contains("sets the ulimit memlock to 5:6, which wins"), "{done:?}");
        bench.write(later, "[crio.runtime]\ndefault_ulimits = [\"memlock=-1\"]\n");
        assert_eq!(run(&bench, &declared, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    }

    #[test]
    fn a_crio_that_does_not_come_back_gets_its_old_file_back() {
        let bench = bench();
        bench.write("broken", "");
        let declared = task(json!({"runtime": "crio", "log_size_max": "1MiB"}));
        let done = run(&bench, &declared, Mode::Apply, Disruption::Clients);
        assert_eq!(
            failure(&done),
            "systemctl restart crio.service: exit status 1: Job for crio.service failed.; its file has its old content again, \
             and CRI-O runs with it"
        );
        assert!(!bench.path(OURS).exists());
    }

    #[test]
    fn the_way_back_has_time_of_its_own() {
        let bench = bench();
        bench.write("slow", "");
        let declared = task(json!({"runtime": "crio", "log_size_max": "1MiB"}));
        // Long enough for a busy machine to come as far as the restart.
        let done = bench.node_with(Duration::from_secs(6), &|_| {}, |node| {
            drive(&declared, node, Mode::Apply, &bench.overlay, Disruption::Clients, &|_| Ok(()))
        });
        let why = failure(&done);
        assert!(why.ends_with("its file has its old content again, and CRI-O runs with it"), "{why}");
        assert!(!bench.path(OURS).exists());
    }

    /// `append` holds from the file that says it on; what go-units does not read is no limit.
    #[test]
    fn append_holds_for_later_files_and_words_are_no_limits() {
        let bench = bench();
        bench.write(
            "etc/containers/containers.conf",
            "[containers]\ndefault_ulimits = [\"core=0\", {append = true}]\n",
        );
        let folder = "etc/containers/containers.conf.d";
        bench.write(
            &format!("{folder}/10-a.conf"),
            "[containers]\ndefault_ulimits = [\"nofile=8\", \"memlock=unlimited\"]\n",
        );
        bench.write(&format!("{folder}/99-b.conf"), "[containers]\ndefault_ulimits = [\"nproc=9\"]\n");
        let declared = task(json!({"runtime": "podman", "ulimits": {"core": 0, "nofile": 8}}));
        let done = run(&bench, &declared, Mode::Apply, Disruption::Live);
        assert_eq!(done.status, OpStatus::Ok, "the later lists add to the first: {done:?}");
        let declared = task(json!({"runtime": "podman", "ulimits": {"memlock": "unlimited"}}));
        let done = run(&bench, &declared, Mode::Apply, Disruption::Live);
        assert_eq!(
            shown(&done),
            ["/etc/containers/containers.conf.d/90-gpufleet.conf ulimits.memlock: nothing -> -1:-1 (live)"]
        );
        // A file between may end it.
        bench.write(&format!("{folder}/98-c.conf"), "[containers]\ndefault_ulimits = [{append = false}]\n");
        let done = run(&bench, &declared, Mode::Predict, Disruption::Live);
        assert!(failure(&done).contains("98-c.conf"), "{done:?}");
    }

    #[test]
    fn podman_has_no_daemon_and_may_append() {
        let bench = bench();
        bench.write(
            "usr/share/containers/containers.conf",
            "[containers]\ndefault_ulimits = [\"nofile=8\"]\n",
        );
        bench.write(
            "etc/containers/containers.conf",
            "[containers]\ndefault_ulimits = [\"core=0\", {append = true}]\n",
        );
        let declared =
            task(json!({"runtime": "podman", "ulimits": {"memlock": "unlimited"}, "log_size_max": "1MiB"}));
        let done = run(&bench, &declared, Mode::Apply, Disruption::Live);
        assert_eq!(
            shown(&done),
            [
                "/etc/containers/containers.conf.d/90-gpufleet.conf ulimits.memlock: nothing -> -1:-1 (live)",
                "/etc/containers/containers.conf.d/90-gpufleet.conf log_size_max: nothing -> 1048576 (live)"
            ]
        );
        assert_eq!(
            bench.read("etc/containers/containers.conf.d/90-gpufleet.conf"),
            format!(
                "{HEADER}[containers]\ndefault_ulimits = [\"core=0:0\", \"memlock=-1:-1\", \"nofile=8:8\"]\nlog_size_max = 1048576\n"
            )
        );
        assert_eq!(run(&bench, &declared, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
        assert_eq!(bench.read("log"), "");
        let bare = Bench::new();
        let done = run(&bare, &declared, Mode::Apply, Disruption::Live);
        assert!(failure(&done).starts_with("there is no program `podman`"), "{done:?}");
    }
}
