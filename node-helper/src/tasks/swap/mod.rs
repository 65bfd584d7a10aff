//! `swap`: nothing is swapped to, now and at boot; or what this kind turned off is on again.
//!
//! What a boot would turn on is dealt with first: a crash before `swapoff` is then seen by the next run. Only lines with
//! our mark and masks in our record are ever taken back.

mod boot;

use std::{path::PathBuf, time::Duration};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Layer, Property, Subject,
    change::Value as Typed,
    tasks::{Swap, SwapState},
};
use serde_json::{Map, Value, json};

use self::boot::{Target, Units};
use super::{
    edits::{self, Present},
    mount::fstab,
    sysctl::owners,
    tool,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, Ownership},
        reload,
    },
    world::{Effect, UnitView},
};

/// Time limit of one `swapoff`: 100 GiB on a slow disk take minutes.
const SWAPOFF: Duration = Duration::from_secs(1800);
/// Time limit of turning swap on.
const SWAPON: Duration = Duration::from_secs(120);
/// Memory that programs are moved back into without anybody noticing, in KiB.
const LITTLE: u64 = 256 * 1024;
const BRINGS: &str = "the package `mount` or `util-linux` brings it";
/// Name of a prediction's assumption.
const ASSUMED: &str = "swap";

/// A line of /proc/swaps; sizes in KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Area {
    path: String,
    size: u64,
    used: u64,
}

#[derive(Debug)]
pub struct State {
    areas: Vec<Area>,
    /// KiB.
    available: u64,
    total: u64,
    fstab: Present,
    units: Units,
    /// What fstab and our units turn on once all of it is allowed again.
    targets: Vec<Target>,
    record: Present,
    systemctl: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub enum Step {
    File(edits::Step),
    Mask(Vec<String>),
    Unmask(Vec<String>),
    Reload,
    Off(String),
    /// All of fstab, and these units.
    On(Vec<String>),
}

fn number_after(text: &str, name: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok();
    text.lines().find_map(value).unwrap_or_default()
}

fn areas(text: &str) -> Vec<Area> {
    let area = |line: &str| {
        let mut words = line.split_whitespace();
        let path = fstab::unescaped(words.next()?);
        Some(Area { path, size: words.nth(1)?.parse().ok()?, used: words.next()?.parse().ok()? })
    };
    text.lines().skip(1).filter_map(area).collect()
}

fn mib(kib: u64) -> u64 {
    kib / 1024
}

impl NodeKind for Swap {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if owners::in_container(node) {
            return Err(Trouble::NotApplicable("swap is the host's, and this is a container".to_owned()));
        }
        let read = |name: &str| -> Result<Option<String>, Trouble> {
            let bytes = files::read_bounded(&node.roots.proc(name), 1 << 20)?;
            Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        let Some(swaps) = read("swaps")? else {
            return Err(Trouble::NotApplicable("the running kernel has no swap".to_owned()));
        };
        let memory = read("meminfo")?.unwrap_or_default();
        let fstab = Present::read(node, "/etc/fstab")?;
        let record = Present::read(node, Self::RECORD)?;
        let systemctl = node.roots.tool("systemctl");
        let mut units = Units::default();
        if let Some(systemctl) = &systemctl {
            let recorded: Vec<&str> = boot::recorded(record.text()?).collect();
            units = boot::units(node, systemctl, &recorded)?;
        }
        let is_clean = units.starting.is_empty() && boot::entries(fstab.text()?).next().is_none();
        let found = areas(&swaps);
        let areas = match node.world.parameter(ASSUMED).as_deref() {
            Some("off") => Vec::new(),
            Some(_) => vec![Area { path: "swap".to_owned(), size: 0, used: 0 }],
            None if node.world.rebooted() && is_clean => Vec::new(),
            None => found,
        };
        let (available, total) = (number_after(&memory, "MemAvailable:"), number_after(&memory, "MemTotal:"));
        let targets = match self.state {
            SwapState::On => boot::targets(node, &boot::restored(fstab.text()?), &units.ours)?,
            SwapState::Off => Vec::new(),
        };
        Ok(State { areas, available, total, fstab, units, targets, record, systemctl })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        match self.state {
            SwapState::Off => plan_off(state),
            SwapState::On => plan_on(state),
        }
    }

    fn after(&self, _: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let view = |name: &String, state: &str| Effect::Unit {
            name: name.clone(),
            view: UnitView { active: Some(false), file_state: state.to_owned(), ..UnitView::default() },
        };
        let assume = |word: &str| Effect::Parameter { name: ASSUMED.to_owned(), value: word.to_owned() };
        // The run asks for this verb before it touches a file.
        let read = || Effect::UnitFilesRead("daemon-reload");
        let effect = |step: &Step| match step {
            Step::File(step) => vec![step.effect()],
            Step::Mask(units) => units.iter().map(|unit| view(unit, "masked")).chain([read()]).collect(),
            Step::Unmask(units) => units.iter().map(|unit| view(unit, "generated")).chain([read()]).collect(),
            Step::Reload => vec![read()],
            Step::Off(_) => vec![assume("off")],
            Step::On(_) => vec![assume("on")],
        };
        plan.steps.iter().flat_map(effect).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let systemctl = |verb: &str, units: &[String]| -> Result<(), Trouble> {
            let Some(program) = &state.systemctl else { return Ok(()) };
            reload::before(verb, node.roots)?;
            let mut run = tool::run(node, program).args(["--no-ask-password", verb]);
            if !units.is_empty() {
                run = run.arg("--").args(units);
            }
            tool::act(node, &run, &format!("systemctl {verb} {}", units.join(" "))).map(drop)
        };
        let reloads = |step: &Step| matches!(step, Step::Mask(_) | Step::Unmask(_) | Step::Reload);
        if state.systemctl.is_some() && plan.steps.iter().any(reloads) {
            // Before a file is touched.
            reload::before("daemon-reload", node.roots)?;
        }
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::File(step) => step.apply()?,
                Step::Mask(units) => systemctl("mask", units)?,
                Step::Unmask(units) => systemctl("unmask", units)?,
                Step::Reload => systemctl("daemon-reload", &[])?,
                Step::Off(path) => swap_off(node, path)?,
                Step::On(units) => {
                    let program = tool::find(node, "swapon", BRINGS)?;
                    let what = "swapon --all";
                    (node.progress)(what.to_owned());
                    let done = tool::run(node, program).arg("--all").finish(&node.deadline.within(SWAPON))?;
                    if !done.exit.success() {
                        return Err(Trouble::failed(FailureKind::Exit, done.complaint(what)));
                    }
                    if !units.is_empty() {
                        systemctl("start", units)?;
                    }
                    let now = files::read_bounded(&node.roots.proc("swaps"), 1 << 20)?.unwrap_or_default();
                    if areas(&String::from_utf8_lossy(&now)).is_empty() {
                        return Err(Trouble::failed(
                            FailureKind::Unconverged,
                            "everything that was turned off is allowed again, and yet /proc/swaps is empty"
                                .to_owned(),
                        ));
                    }
                }
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let area =
            |area: &Area| json!({"path": area.path, "size_mib": mib(area.size), "used_mib": mib(area.used)});
        let areas: Vec<Value> = state.areas.iter().map(area).collect();
        [("areas".to_owned(), Value::Array(areas))].into_iter().collect()
    }
}

fn swap_off(node: &Node<'_>, path: &str) -> Result<(), Trouble> {
    let program = tool::find(node, "swapoff", BRINGS)?;
    let what = format!("swapoff {path}");
    (node.progress)(format!("{what}, which can take minutes"));
    let done = tool::run(node, program).arg("--").arg(path).finish(&node.deadline.within(SWAPOFF))?;
    if done.exit.success() {
        return Ok(());
    }
    Err(Trouble::failed(
        FailureKind::Exit,
        format!("{}; what is swapped out stays there, and the node goes on with it", done.complaint(&what)),
    ))
}

fn at_boot(unit: &str, from: &str, to: &str) -> Change {
    Change::new(Subject::unit(unit), Property::STATE, from, to, Disruption::Live).at(Layer::Boot)
}

/// A change of a line of fstab.
fn entry(line: &str, from: Typed, to: Typed) -> Change {
    let name = line.split_whitespace().next().unwrap_or_default().to_owned();
    let subject = Subject::FstabEntry { name, file: "/etc/fstab".to_owned() };
    Change::new(subject, Property::CONTENT, from, to, Disruption::Live)
}

fn plan_off(state: &State) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan::default();
    if let Some(unit) = state.units.starting.iter().find(|unit| !unit.can_mask) {
        return Err(Trouble::invalid(format!(
            "{} turns swap on, and its file is in /etc/systemd/system, where a mask would have to be; `service: {{name: {}, \
             enabled: false, state: stopped}}` before this task",
            unit.name, unit.name
        )));
    }
    let used: u64 = state.areas.iter().map(|area| area.used).sum();
    // Some is kept free, because programs go on while they are read back.
    let free = state.available.saturating_sub(state.total / 50);
    if used > 0 && used > free {
        return Err(Trouble::failed(
            FailureKind::Refused,
            format!(
                "{} MiB are swapped out, and {} MiB of memory are available, of which {} MiB are to stay free: the kernel would end \
                 programs; stop some first",
                mib(used),
                mib(state.available),
                mib(state.total / 50)
            ),
        ));
    }
    if !state.units.starting.is_empty() {
        let names: Vec<String> = state.units.starting.iter().map(|unit| unit.name.clone()).collect();
        // Before the masks, so that each of ours is known.
        let noted = boot::with_record(state.record.text()?, &names);
        plan.steps.extend(state.record.written(noted, Ownership::default()).map(Step::File));
        for unit in &state.units.starting {
            plan.changes.push(at_boot(&unit.name, "started", "masked").with_note(unit.why.clone()));
        }
        plan.steps.push(Step::Mask(names));
    }
    let text = state.fstab.text()?;
    let commented = boot::commented(text);
    if commented != text {
        for line in boot::entries(text) {
            plan.changes.push(entry(line, Typed::text(line.trim()), Typed::text("commented out")));
        }
        plan.steps.extend(state.fstab.written(commented, Ownership::default()).map(Step::File));
        plan.steps.push(Step::Reload);
    }
    let class = if used > LITTLE { Disruption::Clients } else { Disruption::Live };
    for area in &state.areas {
        let subject = Subject::kernel_setting(format!("swap on {}", area.path));
        let from = format!("{} of {} MiB used", mib(area.used), mib(area.size));
        let change = Change::new(subject, Property::VALUE, from, "off", class);
        plan.changes.push(match class {
            Disruption::Live => change,
            _ => change.with_note("memory of programs is read back, which stalls them for up to minutes"),
        });
        plan.steps.push(Step::Off(area.path.clone()));
    }
    plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
    Ok(plan)
}

impl State {
    /// Whether something that is to be on is off. Areas of others do not stand in for it.
    fn lacks_an_area(&self) -> bool {
        let mut rest: Vec<&str> = self.areas.iter().map(|area| area.path.as_str()).collect();
        let mut unknown = 0;
        for target in &self.targets {
            match target {
                Target::Path(path) => match rest.iter().position(|area| area == path) {
                    Some(at) => drop(rest.swap_remove(at)),
                    None => return true,
                },
                Target::Unknown => unknown += 1,
            }
        }
        rest.len() < unknown
    }
}

fn plan_on(state: &State) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan::default();
    let text = state.fstab.text()?;
    let restored = boot::restored(text);
    if restored != text {
        for line in boot::marked(text) {
            plan.changes.push(entry(line, Typed::text("commented out"), Typed::text(line.trim())));
        }
        plan.steps.extend(state.fstab.written(restored.as_str(), Ownership::default()).map(Step::File));
    }
    let masked: Vec<String> =
        state.units.ours.iter().filter(|(_, masked)| *masked).map(|(name, _)| name.clone()).collect();
    plan.changes.extend(masked.iter().map(|name| at_boot(name, "masked", "unmasked")));
    if !masked.is_empty() {
        plan.steps.push(Step::Unmask(masked));
    }
    if !plan.steps.is_empty() {
        plan.steps.push(Step::Reload);
    }
    let has_entries = boot::entries(&restored).next().is_some();
    let has_record = state.record.bytes.is_some();
    if state.areas.is_empty() && !has_entries && !has_record {
        return Err(Trouble::missing(
            "this node has no swap that could be turned on: none in /etc/fstab, and none that `state: off` turned off",
        ));
    }
    // `off` may have failed between two areas.
    let is_half = (has_record || !plan.steps.is_empty()) && state.lacks_an_area();
    if state.areas.is_empty() || is_half {
        let subject = Subject::kernel_setting("swap");
        let from = if state.areas.is_empty() { "off" } else { "partly on" };
        plan.changes.push(Change::new(subject, Property::VALUE, from, "on", Disruption::Live));
        plan.steps.push(Step::On(state.units.ours.iter().map(|(name, _)| name.clone()).collect()));
    }
    if has_record {
        // Last, so that a crash before leaves what is known of our masks.
        if plan.changes.is_empty() {
            plan.changes.push(state.record.change(None));
        }
        plan.steps.push(Step::File(state.record.removed()));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests;
