//! `disk_queue`: how the kernel queues what disks read and write, now and whenever a disk appears.
//!
//! The scheduler comes first, on the node and in the rule, because another one resets the depth.

use std::{collections::BTreeMap, fs};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Layer, Property, Subject,
    change::Value as Typed,
    glob::Glob,
    tasks::{DiskQueue, DiskScheduler, DiskType},
};
use serde_json::{Map, Value, json};

use super::{
    edits,
    edits::Present,
    knobs::{self, Impossible},
    layered, modprobe,
    sysctl::owners::Profile,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{FileError, Ownership},
        lines::{self, Edit},
    },
    world::Effect,
};

const BLOCK: &str = "/sys/block";
/// Disks that are made of software, which `type` leaves out.
const SOFT: &str = "loop*|ram*|zram*|dm-*|md*|sr*|fd*|nbd*|rbd*|drbd*|bcache*|zd*";
/// Folders of udev's rules; of files with the same name, the first folder's counts.
const RULES: [&str; 5] = [
    "/etc/udev/rules.d",
    "/run/udev/rules.d",
    "/usr/local/lib/udev/rules.d",
    "/usr/lib/udev/rules.d",
    "/lib/udev/rules.d",
];
const HEAD: &str = "# Written by gpufleet: `disk_queue`.\n";
/// More disks than any machine has.
const MOST: usize = 1024;

#[derive(Debug)]
struct Setting {
    name: &'static str,
    wanted: String,
    /// By disk, without those that have no such setting; none if it is known only after an assumed boot.
    now: BTreeMap<String, Option<String>>,
}

impl Setting {
    /// Returns the names of the disks that it is set of, or would be, shortened.
    fn of(&self, disks: &[String]) -> String {
        let having: Vec<String> = disks.iter().filter(|disk| self.now.contains_key(*disk)).cloned().collect();
        shown(if having.is_empty() { disks } else { &having })
    }
}

#[derive(Debug)]
pub struct State {
    disks: Vec<String>,
    settings: Vec<Setting>,
    /// What disks do not have, and why.
    impossible: Impossible,
    file: Present,
    text: String,
    /// What others set of the same after us.
    others: Vec<Other>,
    /// Why another task's rule of our file and this one undo each other.
    conflict: Option<String>,
    /// By disk, the `nr_requests` of earlier tasks that is in force, and that another scheduler would reset.
    depths: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    who: String,
    name: &'static str,
    value: String,
}

#[derive(Clone, Debug)]
pub enum Step {
    Live { disk: String, name: &'static str, value: String },
    File(edits::Step),
}

fn file(disk: &str, name: &str) -> String {
    format!("{BLOCK}/{disk}/queue/{name}")
}

fn assumption(disk: &str, name: &str) -> String {
    file(disk, name)
}

/// Returns the scheduler in use of `none [mq-deadline] kyber`.
fn in_use(text: &str) -> &str {
    let bracketed = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    bracketed.unwrap_or(text)
}

fn matches_any(patterns: &str, name: &str) -> bool {
    patterns.split('|').any(|pattern| Glob::of_shell(pattern).matches(name))
}

/// Returns what a rule sets, such as `("scheduler", "none")`, in its order.
fn assigned(line: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for part in line.split("ATTR{queue/").skip(1) {
        let Some((name, rest)) = part.split_once('}') else { continue };
        // `==` and `!=` compare.
        let value = rest.strip_prefix('=').filter(|rest| !rest.starts_with('=')).or(rest.strip_prefix(":="));
        let value = value.and_then(|value| value.trim_start().strip_prefix('"'));
        if let Some((value, _)) = value.and_then(|value| value.split_once('"')) {
            found.push((name, value));
        }
    }
    found
}

/// Returns what a rule of ours for this condition sets; none for every other line, also one with conditions more, which is for
/// other disks.
fn of_rule<'l>(line: &'l str, condition: &str) -> Option<Vec<(&'l str, &'l str)>> {
    let rest = line.strip_prefix(condition)?.strip_prefix(',')?;
    let assignment = |part: &'l str| {
        let part = part.trim();
        let is_one = part.starts_with("ATTR{queue/") && part.ends_with('"') && part.matches('"').count() == 2;
        assigned(part).first().copied().filter(|_| is_one)
    };
    rest.split(',').map(assignment).collect()
}

/// Returns what the first rule of ours for this condition sets.
fn rule_in<'t>(text: &'t str, condition: &str) -> Vec<(&'t str, &'t str)> {
    text.lines().find_map(|line| of_rule(line, condition)).unwrap_or_default()
}

/// Whether a rule may be for a disk, by its name and sort: conditions that are not understood count as met.
fn may_match(line: &str, disk: &str, rotational: Option<&str>) -> bool {
    line.split(',').map(str::trim).all(|part| {
        let condition = |key: &str| {
            let rest = part.strip_prefix(key)?;
            let (equal, value) = match rest.strip_prefix("==") {
                Some(value) => (true, value),
                None => (false, rest.strip_prefix("!=")?),
            };
            Some((equal, value.trim().trim_matches('"')))
        };
        if let Some((equal, patterns)) = condition("KERNEL") {
            return matches_any(patterns, disk) == equal;
        }
        match (condition("ATTR{queue/rotational}"), rotational) {
            (Some((equal, value)), Some(rotational)) => (value == rotational) == equal,
            _ => true,
        }
    })
}

fn tuned(profile: &Profile, name: &'static str) -> Option<Other> {
    let key = match name {
        "scheduler" => "elevator",
        "read_ahead_kb" => "readahead",
        _ => return None,
    };
    let (path, value) = profile.sets("disk", key)?;
    Some(Other { who: format!("tuned's profile {} ({key} in {path})", profile.name), name, value })
}

trait Rule {
    fn condition(&self) -> String;
    fn edited(&self, text: &str) -> String;
    fn fits(&self, node: &Node<'_>, disk: &str) -> Result<bool, Trouble>;
    fn differing(
        &self,
        node: &Node<'_>,
        disks: &[String],
        text: &str,
    ) -> Result<Vec<(String, &'static str, String)>, Trouble>;
    fn conflict(&self, node: &Node<'_>, disks: &[String], text: &str) -> Result<Option<String>, Trouble>;
    fn others(&self, node: &Node<'_>, disks: &[String]) -> Result<Vec<Other>, Trouble>;
    fn depths(
        &self,
        node: &Node<'_>,
        disks: &[String],
        text: &str,
    ) -> Result<BTreeMap<String, String>, Trouble>;
}

impl Rule for DiskQueue {
    /// Returns the condition of the rule. `ENV{DEVTYPE}` leaves partitions out, which have no queue.
    fn condition(&self) -> String {
        let mut parts = vec![
            "ACTION==\"add|change\"".to_owned(),
            "SUBSYSTEM==\"block\"".to_owned(),
            "ENV{DEVTYPE}==\"disk\"".to_owned(),
        ];
        match self.device.is_empty() {
            false => parts.push(format!("KERNEL==\"{}\"", self.device.join("|"))),
            true => parts.push(format!("KERNEL!=\"{SOFT}\"")),
        }
        parts.extend(match self.sort {
            None => None,
            Some(DiskType::Nvme) => Some("KERNEL==\"nvme*\"".to_owned()),
            Some(DiskType::Ssd) => Some("ATTR{queue/rotational}==\"0\"".to_owned()),
            Some(DiskType::Rotational) => Some("ATTR{queue/rotational}==\"1\"".to_owned()),
        });
        parts.join(", ")
    }

    /// Returns the text with the rule of these disks: what it sets already stays, and the scheduler is first.
    fn edited(&self, text: &str) -> String {
        let condition = self.condition();
        let is_own = |line: &str| of_rule(line, &condition).is_some();
        let mut sets: Vec<(String, String)> = Vec::new();
        let wanted = self.settings();
        for own in text.lines().filter_map(|line| of_rule(line, &condition)) {
            let kept = own.into_iter().filter(|(name, _)| !wanted.iter().any(|(own, _)| own == name));
            sets.extend(kept.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        sets.extend(wanted.into_iter().map(|(name, value)| (name.to_owned(), value)));
        sets.sort_by_key(|(name, _)| (name != "scheduler", name.clone()));
        let values: String =
            sets.iter().map(|(name, value)| format!(", ATTR{{queue/{name}}}=\"{value}\"")).collect();
        let rule = format!("{condition}{values}");
        let mut placed = false;
        let mut out = lines::edited(text, |_, line| match is_own(line) && !placed {
            true => {
                placed = true;
                Edit::Set(rule.clone())
            }
            false => Edit::remove_if(is_own(line)),
        });
        if out.is_empty() {
            out.push_str(HEAD);
        }
        if !placed {
            lines::append(&mut out, &rule);
        }
        out
    }

    fn fits(&self, node: &Node<'_>, disk: &str) -> Result<bool, Trouble> {
        let named = match self.device.is_empty() {
            true => !matches_any(SOFT, disk),
            false => self.device.iter().any(|pattern| Glob::of_shell(pattern).matches(disk)),
        };
        // A path of a multipath drive of NVMe is no disk of its own.
        if !named || knobs::value(node, &format!("{BLOCK}/{disk}/hidden"))?.as_deref() == Some("1") {
            return Ok(false);
        }
        let rotational = || knobs::value(node, &file(disk, "rotational"));
        Ok(match self.sort {
            None => true,
            Some(DiskType::Nvme) => disk.starts_with("nvme"),
            Some(DiskType::Ssd) => rotational()?.as_deref() == Some("0"),
            Some(DiskType::Rotational) => rotational()?.as_deref() == Some("1"),
        })
    }

    /// Returns what lines set of the disks in another way: a disk, the setting, and the value.
    fn differing(
        &self,
        node: &Node<'_>,
        disks: &[String],
        text: &str,
    ) -> Result<Vec<(String, &'static str, String)>, Trouble> {
        let wanted = self.settings();
        let mut found = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            for (name, value) in assigned(line) {
                let Some((name, _)) = wanted.iter().find(|(own, wanted)| *own == name && wanted != value)
                else {
                    continue;
                };
                for disk in disks {
                    let rotational = knobs::value(node, &file(disk, "rotational"))?;
                    if may_match(line, disk, rotational.as_deref()) {
                        found.push((disk.clone(), *name, value.to_owned()));
                        break;
                    }
                }
            }
        }
        Ok(found)
    }

    /// Two tasks of which each would write what the other one has written.
    fn conflict(&self, node: &Node<'_>, disks: &[String], text: &str) -> Result<Option<String>, Trouble> {
        let condition = self.condition();
        let others = text.lines().filter(|line| of_rule(line, &condition).is_none());
        let others: String = others.map(|line| format!("{line}\n")).collect();
        let found = self.differing(node, disks, &others)?;
        Ok(found.first().map(|(disk, name, value)| {
            format!(
                "another rule in {}, of a task with other disks, sets {name} of {disk} to {value}, and the two would undo each other \
                 at every run; write each disk into one task only, such as `device: [\"sd*\"]` with `type: ssd` beside `type: nvme`; \
                 if no task declares that rule any more, take its line out of the file",
                Self::FILE
            )
        }))
    }

    fn depths(
        &self,
        node: &Node<'_>,
        disks: &[String],
        text: &str,
    ) -> Result<BTreeMap<String, String>, Trouble> {
        let mut found = BTreeMap::new();
        let Some(scheduler) = self.scheduler.filter(|_| self.nr_requests.is_none()) else {
            return Ok(found);
        };
        for disk in disks {
            let rotational = knobs::value(node, &file(disk, "rotational"))?;
            let rules = text.lines().filter(|line| !line.starts_with('#'));
            let rules = rules.filter(|line| may_match(line, disk, rotational.as_deref()));
            let set = rules.flat_map(assigned).rfind(|(name, _)| *name == "nr_requests");
            let Some((name, depth)) = set else { continue };
            // Source: kernel, block/blk-mq.c, blk_mq_update_nr_requests: without a scheduler, the queue of the drive bounds it.
            let tags = knobs::value(node, &format!("{BLOCK}/{disk}/mq/0/nr_tags"))?;
            let number = |text: &str| text.parse::<u32>().ok();
            let is_too_deep = scheduler == DiskScheduler::None
                && tags
                    .as_deref()
                    .and_then(number)
                    .zip(number(depth))
                    .is_none_or(|(most, depth)| depth > most);
            if !is_too_deep && had(node, disk, name)?.as_deref() == Some(depth) {
                found.insert(disk.clone(), depth.to_owned());
            }
        }
        Ok(found)
    }

    /// Returns what comes after our rule and sets the same of one of the disks.
    fn others(&self, node: &Node<'_>, disks: &[String]) -> Result<Vec<Other>, Trouble> {
        let wanted = self.settings();
        let own = Self::FILE.rsplit('/').next().unwrap_or_default();
        let mut found = Vec::new();
        for path in layered::files(node, &RULES, ".rules")? {
            // Another task's rule in our own file is no owner: it agrees, or is a conflict.
            if path.rsplit('/').next().is_none_or(|name| name <= own) {
                continue;
            }
            let bytes = node.world.read(&node.roots.path(&path))?.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).replace("\\\n", " ");
            for (_, name, value) in self.differing(node, disks, &text)? {
                found.push(Other { who: path.clone(), name, value });
            }
        }
        if let Some(profile) = Profile::read(node)? {
            let of = |(name, wanted): &(&'static str, String)| {
                tuned(&profile, name).filter(|other| other.value != *wanted)
            };
            found.extend(wanted.iter().filter_map(of));
        }
        Ok(found)
    }
}

impl NodeKind for DiskQueue {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let folder = node.roots.path(BLOCK);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Trouble::NotApplicable(
                    "the kernel shows no disks here, as in containers".to_owned(),
                ));
            }
            Err(error) => return Err(FileError::new("list", folder, error).into()),
        };
        let mut disks: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).take(MOST).collect();
        disks.sort_by_key(|name| (name.len(), name.clone()));
        let mut chosen = Vec::new();
        for disk in disks {
            if self.fits(node, &disk)? {
                chosen.push(disk);
            }
        }
        if chosen.is_empty() {
            return Err(Trouble::NotApplicable("this node has no such disk".to_owned()));
        }
        let file = Present::read(node, Self::FILE)?;
        let rule = rule_in(file.text()?, &self.condition());
        let at_boot =
            |name: &str| rule.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let (mut settings, mut impossible) = (Vec::new(), Impossible::default());
        for (name, wanted) in self.settings() {
            let mut now = BTreeMap::new();
            let mut lacking = Vec::new();
            for disk in &chosen {
                let Some(text) = had(node, disk, name)? else {
                    lacking.push(disk.clone());
                    continue;
                };
                knobs::changeable(node, &self::file(disk, name))?;
                judge(node, disk, name, &wanted, &text)?;
                let value = match node.world.parameter(&assumption(disk, name)) {
                    Some(assumed) => Some(assumed),
                    None if node.world.rebooted() => at_boot(name),
                    None => Some(in_use(&text).to_owned()),
                };
                now.insert(disk.clone(), value);
            }
            // Without a scheduler is what `none` asks for.
            if !lacking.is_empty() && wanted != DiskScheduler::None.as_str() {
                impossible.push(name, format!("the kernel has none for {}", shown(&lacking)));
            }
            settings.push(Setting { name, wanted, now });
        }
        if settings.iter().all(|setting: &Setting| setting.now.is_empty()) && !impossible.is_empty() {
            return Err(impossible.trouble());
        }
        let text = self.edited(file.text()?);
        let others = self.others(node, &chosen)?;
        let conflict = self.conflict(node, &chosen, file.text()?)?;
        let depths = self.depths(node, &chosen, file.text()?)?;
        Ok(State { disks: chosen, settings, impossible, text, file, others, conflict, depths })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        if let Some(conflict) = &state.conflict {
            return Err(Trouble::invalid(conflict));
        }
        let mut plan = Plan::default();
        let mut reset: Vec<&str> = Vec::new();
        for setting @ Setting { name, wanted, now } in &state.settings {
            let subject = Subject::kernel_setting(format!("queue/{name} of {}", setting.of(&state.disks)));
            let change = |from: Typed| {
                Change::new(subject.clone(), Property::VALUE, from, Typed::parsed(wanted), Disruption::Live)
            };
            let known: Vec<&str> = now.values().flatten().map(String::as_str).collect();
            if known.len() < now.len() {
                let note = "no rule of ours sets it, so its value after the boot is known only in the run";
                plan.changes.push(change(Typed::Unknown).with_note(note).possible());
                continue;
            }
            let wrong = |disk: &str| now.get(disk).is_some_and(|now| now.as_ref() != Some(wanted));
            for disk in &state.disks {
                let is_wrong = wrong(disk);
                if is_wrong && *name == "scheduler" {
                    reset.push(disk);
                }
                // Also where it is right now: the scheduler resets it.
                let is_reset = *name == "nr_requests" && reset.contains(&disk.as_str());
                if is_wrong || is_reset && now.contains_key(disk) {
                    plan.steps.push(Step::Live { disk: disk.clone(), name, value: wanted.clone() });
                }
                let depth = state.depths.get(disk).filter(|_| is_wrong && *name == "scheduler");
                plan.steps.extend(depth.map(|depth| Step::Live {
                    disk: disk.clone(),
                    name: "nr_requests",
                    value: depth.clone(),
                }));
            }
            if state.disks.iter().any(|disk| wrong(disk)) {
                plan.changes.push(change(Typed::parsed(&knobs::spread(known))));
            }
        }
        let before = state.file.text()?;
        if before != state.text {
            let was = rule_in(before, &self.condition());
            plan.steps.extend(state.file.written(state.text.clone(), Ownership::default()).map(Step::File));
            for setting @ Setting { name, wanted, .. } in &state.settings {
                let from = was.iter().find(|(set, _)| set == name).map(|(_, value)| *value);
                if from != Some(wanted.as_str()) {
                    let subject =
                        Subject::kernel_setting(format!("queue/{name} of {}", setting.of(&state.disks)));
                    let from = from.map_or(Typed::Absent, Typed::parsed);
                    let change =
                        Change::new(subject, Property::VALUE, from, Typed::parsed(wanted), Disruption::Live);
                    plan.changes.push(change.at(Layer::Boot));
                }
            }
        }
        plan.warnings.extend(state.others.iter().map(|other| {
            format!("{} sets {} to {} after {}, and wins", other.who, other.name, other.value, Self::FILE)
        }));
        plan.warnings.dedup();
        state.impossible.warn(&mut plan.warnings);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let files = plan.steps.iter().filter_map(|step| match step {
            Step::File(step) => Some(step.effect()),
            Step::Live { .. } => None,
        });
        let live = state.settings.iter().flat_map(|setting| {
            setting.now.keys().map(|disk| Effect::Parameter {
                name: assumption(disk, setting.name),
                value: setting.wanted.clone(),
            })
        });
        files.chain(live).collect()
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::File(step) => step.apply()?,
                Step::Live { disk, name, value } => {
                    let path = file(disk, name);
                    knobs::write(node, &path, value)?;
                    let now = knobs::value(node, &path)?.unwrap_or_default();
                    if in_use(&now) != value {
                        return Err(Trouble::failed(
                            FailureKind::Unconverged,
                            format!(
                                "{name} of {disk} was set to {value}, but reads {} afterwards",
                                in_use(&now)
                            ),
                        ));
                    }
                }
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data: Map<String, Value> = [("disks".to_owned(), json!(state.disks))].into_iter().collect();
        state.impossible.tell(&mut data);
        data
    }
}

/// Returns the text of a setting; none if the disk has no such setting, as those that pass each request on to other disks.
///
/// Before Linux 6.4 these have the files of the scheduler and of the depth too, without effect: the one reads `none`, and there
/// is no folder `mq`. Source: kernel, block/elevator.c, blk-sysfs.c and blk-mq-sysfs.c.
fn had(node: &Node<'_>, disk: &str, name: &str) -> Result<Option<String>, Trouble> {
    if matches!(name, "scheduler" | "nr_requests") {
        let scheduler = knobs::value(node, &file(disk, "scheduler"))?;
        let is_mq = node.roots.path(format!("{BLOCK}/{disk}/mq")).exists();
        if !is_mq && scheduler.is_none_or(|text| text == "none") {
            return Ok(None);
        }
    }
    knobs::value(node, &file(disk, name))
}

/// Refuses what the kernel does not take of a disk.
fn judge(node: &Node<'_>, disk: &str, name: &str, wanted: &str, now: &str) -> Result<(), Trouble> {
    if name == "scheduler" {
        let words: Vec<&str> = now.split_whitespace().map(|word| word.trim_matches(['[', ']'])).collect();
        if !words.contains(&wanted) {
            let module = match wanted {
                "kyber" => "kyber-iosched",
                other => other,
            };
            if modprobe::is_loaded_by_plan(&node.world, module) {
                return Err(Trouble::Possible);
            }
            let module = match wanted {
                "bfq" => "; a module may bring it: `modprobe: {name: bfq, persistent: present}`",
                "kyber" => "; a module may bring it: `modprobe: {name: kyber-iosched, persistent: present}`",
                _ => "",
            };
            return Err(Trouble::invalid(format!(
                "{disk} has no scheduler {wanted}; it has {}{module}",
                words.join(", ")
            )));
        }
    }
    if name == "max_sectors_kb" {
        let most =
            knobs::value(node, &file(disk, "max_hw_sectors_kb"))?.and_then(|most| most.parse::<u32>().ok());
        if let (Some(most), Ok(wanted)) = (most, wanted.parse::<u32>())
            && wanted > most
        {
            return Err(Trouble::invalid(format!(
                "max_sectors_kb of {disk} is at most {most}, not {wanted}"
            )));
        }
    }
    Ok(())
}

/// Returns the names of disks, shortened.
fn shown(disks: &[String]) -> String {
    match disks {
        [one, two, three, rest @ ..] if !rest.is_empty() => {
            format!("{one}, {two}, {three} and {} more", rest.len())
        }
        few => few.join(", "),
    }
}

#[cfg(test)]
#[path = "disk_queue_tests.rs"]
mod tests;
