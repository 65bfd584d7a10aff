//! Tasks of one play of which the later takes away what the earlier declares.
//!
//! Owns which parameters of which kinds are lasting settings. What a newer task replaces of an older one is the protocol's
//! knowledge ([`Operation::yields`](gpufleet_protocol::operation::Operation::yields)). Only tasks that are certain to run count, with
//! constants only: what a template or a condition decides may be meant. So do those of files that are certain to be included.

use std::collections::BTreeSet;

use gpufleet_protocol::{
    NodeOp,
    cmdline::Unit,
    op::GpuTask,
    operation::Newer,
    tasks::{GpuSelectorItem, IncludeTasks, KernelCmdline, MetaAction, Params},
};
use serde_json::{Map, Value as Json};

use super::run::Finding;
use crate::diagnostic::{Diagnostic, Span};
use crate::playbook::{Item, Play, Program, SectionName, Task};

/// A kind whose parameters are lasting settings.
struct Settings {
    kind: &'static str,
    /// Parameters that say what the settings are of.
    of: &'static [&'static str],
    /// Parameters that are no settings: how something is done, or a default that declares nothing.
    beside: &'static [&'static str],
}

/// Kinds of which a second value is never a step towards something else. Kinds that are used in steps, such as a service
/// that is stopped and started, a file that is written and edited, and a package that is removed and installed, are left out.
const SETTINGS: &[Settings] = &[
    of("sysctl", &["name"], &["sysctl_file", "reload"]),
    of("thp", &[], &[]),
    of("hugepages", &["size"], &["when", "mount"]),
    of("cpu_frequency", &[], &[]),
    of("cpu_idle", &["cpus"], &["except"]),
    of("cpu_isolation", &["words"], &["flags", "services"]),
    of("smt", &[], &["cmdline"]),
    of("irq_affinity", &["devices"], &["irqbalance"]),
    of("disk_queue", &["device", "sort"], &[]),
    of("pci_settings", &["devices"], &[]),
    of("network_interface", &["name", "driver", "rdma"], &["allow_management"]),
    of("rdma_link", &["device"], &[]),
    of("swap", &[], &[]),
    of("tuned", &[], &["recommended"]),
    of("time_sync", &[], &[]),
    of("kdump", &[], &[]),
    of("limits", &["name"], &["state"]),
    of("unit_settings", &["unit", "name"], &["state", "reset", "restart"]),
    of("hostname", &[], &["strategy"]),
    of("kernel_blacklist", &["name"], &["blacklist_file"]),
    of("gpu_driver", &[], &["source", "packages", "hold", "reboot", "go_back", "update_cache"]),
    of("gpu_persistence", &["gpus"], &[]),
    of("gpu_ecc", &["gpus"], &[]),
    of("gpu_mig", &["gpus"], &["strategy", "config_file"]),
    of("gpu_power", &["gpus", "scope"], &[]),
    of("gpu_clocks", &["gpus"], &[]),
    of("gpu_compute_mode", &["gpus"], &[]),
    of("gpu_mps", &["gpus"], &["user"]),
    of("gpu_accounting", &["gpus"], &[]),
    of("gpu_confidential_compute", &[], &[]),
];

const fn of(kind: &'static str, of: &'static [&'static str], beside: &'static [&'static str]) -> Settings {
    Settings { kind, of, beside }
}

/// Two sayings about one thing, fit to stand before the places of their tasks.
#[derive(Debug, PartialEq, Eq)]
struct Contradiction {
    first: String,
    second: String,
}

/// A task that is certain to run.
struct Certain<'a> {
    task: &'a Task,
    params: &'a Params,
    /// Number of its group of GPU tasks.
    group: Option<usize>,
}

/// Adds a finding for each task that contradicts an earlier one of its play; `line` is the first line of a task.
pub(super) fn check(program: &Program, line: impl Fn(&Span) -> Option<u32>, findings: &mut Vec<Finding>) {
    for play in &program.plays {
        for finding in of_play(play) {
            let first = finding.diagnostic.span.as_ref().and_then(&line);
            findings.push(match first {
                Some(first) => finding.in_task(first),
                None => finding,
            });
        }
    }
}

fn of_play(play: &Play) -> Vec<Finding> {
    let mut walk = Walk::default();
    for section in play.sections.iter().filter(|section| section.name != SectionName::Handlers) {
        walk.items(&section.items);
    }
    walk.findings
}

#[derive(Default)]
struct Walk<'a> {
    earlier: Vec<Certain<'a>>,
    groups: usize,
    /// Roles that ran already and do not run again.
    once: BTreeSet<&'a str>,
    findings: Vec<Finding>,
}

impl<'a> Walk<'a> {
    fn items(&mut self, items: &'a [Item]) {
        for item in items {
            match item {
                Item::Task(task) => self.task(task, None),
                Item::GpuGroup(tasks) => {
                    self.groups += 1;
                    tasks.iter().for_each(|task| self.task(task, Some(self.groups)));
                }
                Item::Block(block) => {
                    if block.once.as_deref().is_some_and(|role| !self.once.insert(role)) {
                        continue;
                    }
                    self.items(&block.body);
                    self.items(&block.always);
                }
            }
        }
    }

    fn task(&mut self, task: &'a Task, group: Option<usize>) {
        let Some(params) = task.params.fixed.as_deref() else { return };
        if let Params::Meta(meta) = params {
            // What follows runs only where the play did not end here.
            if matches!(
                meta.action,
                MetaAction::EndPlay | MetaAction::EndHost | MetaAction::EndBatch | MetaAction::EndRole
            ) {
                self.earlier.clear();
            }
            return;
        }
        if !is_certain(task) {
            return;
        }
        if task.kind.is::<IncludeTasks>() {
            // With tags of its own, it is left out in runs in which tasks behind it run.
            let site = task.site.as_ref().filter(|_| task.tags.is_empty());
            if let Some(items) = site.and_then(|site| site.only()) {
                self.items(items);
            }
            return;
        }
        let this = Certain { task, params, group };
        // The nearest one, because an earlier one has its own finding with that.
        let found = self.earlier.iter().rev().find_map(|earlier| {
            // A file that is included twice says the same twice.
            if !same_tags(earlier.task, task) || earlier.task.span == task.span {
                return None;
            }
            Some((earlier, between(earlier, &this)?))
        });
        if let Some((earlier, said)) = found {
            self.findings.push(finding(earlier, &this, &said));
        }
        self.earlier.push(this);
    }
}

/// Whether nothing but an error keeps a task from running on every host of the play. Tasks whose values are hidden are left out.
fn is_certain(task: &Task) -> bool {
    task.when.is_empty()
        && task.looped.is_none()
        && task.delegate_to.is_none()
        && !task.run_once
        && task.once_when.is_none()
        && task.check_mode.is_none()
        && !task.no_log
        && task.hidden_when.is_none()
}

fn same_tags(one: &Task, other: &Task) -> bool {
    let tags = |task: &Task| task.tags.iter().cloned().collect::<BTreeSet<String>>();
    tags(one) == tags(other)
}

fn between(earlier: &Certain<'_>, later: &Certain<'_>) -> Option<Contradiction> {
    match (earlier.params, later.params) {
        (Params::Node(NodeOp::KernelCmdline(old)), Params::Node(NodeOp::KernelCmdline(new))) => {
            of_words(old, new)
        }
        (Params::Node(old), Params::Node(new)) => of_node(settings(earlier.task, later.task)?, old, new),
        (Params::Gpu(old), Params::Gpu(new)) => of_gpus(settings(earlier.task, later.task)?, old, new),
        _ => None,
    }
}

fn settings(one: &Task, other: &Task) -> Option<&'static Settings> {
    SETTINGS.iter().find(|settings| settings.kind == one.kind.name && settings.kind == other.kind.name)
}

/// Words are settings of their own.
fn of_words(old: &KernelCmdline, new: &KernelCmdline) -> Option<Contradiction> {
    let (before, after) = (old.wanted(), new.wanted());
    let (gone_before, gone_after) = (old.unwanted(), new.unwanted());
    let keeps = |units: &[Unit], unit: &Unit| units.iter().any(|other| other.is(unit));
    let said = |first: String, second: String| Some(Contradiction { first, second });
    for unit in &before {
        if let Some(other) = after.iter().find(|other| other.excludes(unit)) {
            return said(format!("`{}` is added", unit.text()), format!("replaced by `{}`", other.text()));
        }
        if unit.is_among(&gone_after) && !keeps(&after, unit) {
            return said(format!("`{}` is added", unit.text()), "removed".to_owned());
        }
    }
    let back = after.iter().find(|unit| unit.is_among(&gone_before) && !keeps(&before, unit))?;
    said(format!("`{}` is removed", back.text()), "added".to_owned())
}

fn of_node(settings: &Settings, old: &NodeOp, new: &NodeOp) -> Option<Contradiction> {
    let mut left = old.clone();
    if !left.operation_mut().lasting() {
        return None;
    }
    let before = parameters(&left)?;
    let stands = left.operation_mut().yields(&Newer::of(new));
    let after = if stands { parameters(&left)? } else { Map::new() };
    let newer = parameters(new)?;
    // Where it is for fewer things than before, all that it sets of the others is lost. An older task for more things than the newer
    // one stands as a whole, though it is lost for those that both name.
    let fewer = settings.of.iter().any(|name| after.get(*name) != before.get(*name));
    let shares = |name: &str| match (before.get(name), newer.get(name)) {
        (Some(Json::Array(one)), Some(Json::Array(other))) => one.iter().any(|item| other.contains(item)),
        _ => false,
    };
    let same = |name: &str| before.get(name) == newer.get(name);
    let overlap = settings.of.iter().any(|name| shares(name))
        && settings.of.iter().all(|name| shares(name) || same(name));
    let lost = |name: &str, value: &Json| fewer || overlap || after.get(name) != Some(value);
    differing(settings, &before, &newer, &lost)
}

fn of_gpus(settings: &Settings, old: &GpuTask, new: &GpuTask) -> Option<Contradiction> {
    if old.is_once() || new.is_once() {
        return None;
    }
    let (before, after) = (parameters(old)?, parameters(new)?);
    let same_scope = settings.kind != "gpu_power" || before.get("scope") == after.get("scope");
    if !same_scope || !meet(&gpus(&before), &gpus(&after)) {
        return None;
    }
    if let (GpuTask::GpuClocks(one), GpuTask::GpuClocks(other)) = (old, new)
        && one.reset != other.reset
    {
        let key =
            if one.graphics_mhz.or(other.graphics_mhz).is_some() { "graphics_mhz" } else { "memory_mhz" };
        let said = |map: &Map<String, Json>| match map.get(key) {
            Some(value) => shown(value),
            None => "given back to the driver (`reset: true`)".to_owned(),
        };
        let first = format!("{} is {}", named(settings, key, &before), said(&before));
        return Some(Contradiction { first, second: said(&after) });
    }
    differing(settings, &before, &after, &|_, _| true)
}

fn gpus(map: &Map<String, Json>) -> Vec<GpuSelectorItem> {
    map.get("gpus").and_then(|gpus| serde_json::from_value(gpus.clone()).ok()).unwrap_or_default()
}

/// Whether two selectors certainly have a GPU in common.
fn meet(one: &[GpuSelectorItem], other: &[GpuSelectorItem]) -> bool {
    one.is_empty() || other.is_empty() || one.iter().any(|item| other.contains(item))
}

/// Returns the parameters of an operation, without those that are left out.
fn parameters(op: &impl serde::Serialize) -> Option<Map<String, Json>> {
    match serde_json::to_value(op).ok()? {
        Json::Object(mut map) => match map.remove("with")? {
            Json::Object(parameters) => Some(parameters),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the first setting that is lost to another value.
fn differing(
    settings: &Settings,
    old: &Map<String, Json>,
    new: &Map<String, Json>,
    lost: &dyn Fn(&str, &Json) -> bool,
) -> Option<Contradiction> {
    let is_setting = |name: &&String| {
        let name = name.as_str();
        !settings.of.contains(&name) && !settings.beside.contains(&name)
    };
    old.keys().filter(is_setting).find_map(|name| {
        let (value, other) = (old.get(name)?, new.get(name)?);
        if value == other || value.is_null() || other.is_null() || !lost(name, value) {
            return None;
        }
        // Of a group of settings, only those that both have.
        if let (Json::Object(inside), Json::Object(others)) = (value, other)
            && settings.kind == "thp"
        {
            let inner = inside.iter().find(|(key, value)| others.get(*key).is_some_and(|it| it != *value));
            let (key, value) = inner?;
            let key_said = named(settings, &format!("{name}.{key}"), old);
            return Some(Contradiction {
                first: format!("{key_said} is {}", shown(value)),
                second: shown(others.get(key)?),
            });
        }
        let key = named(settings, name, old);
        Some(Contradiction { first: format!("{key} is {}", shown(value)), second: shown(other) })
    })
}

/// Returns a setting and what it is of.
fn named(settings: &Settings, name: &str, map: &Map<String, Json>) -> String {
    let subject =
        settings.of.iter().filter(|of| **of != "scope").find_map(|of| map.get(*of).map(|it| (*of, it)));
    match subject {
        Some(("name", subject)) if settings.kind == "sysctl" && name == "value" => {
            format!("`{}`", shown(subject))
        }
        Some(("gpus", subject)) => format!("`{name}` of GPU {}", shown(subject)),
        Some((_, subject)) => format!("`{name}` of {}", shown(subject)),
        None => format!("`{name}`"),
    }
}

/// Returns a value as one writes it, shortened.
fn shown(value: &Json) -> String {
    const MOST: usize = 60;
    let text = match value {
        Json::String(text) => text.clone(),
        Json::Array(items) if items.iter().all(|item| !item.is_object()) => {
            items.iter().map(shown).collect::<Vec<_>>().join(", ")
        }
        Json::Object(entries) => {
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("{key}: {}", shown(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    };
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

fn finding(earlier: &Certain<'_>, later: &Certain<'_>, said: &Contradiction) -> Finding {
    let (one, other) = (&earlier.task.span, &later.task.span);
    let here = if one.file() == other.file() { "" } else { other.file() };
    let message = format!(
        "`{}` contradicts an earlier task: {} at {}:{}:{}, and {} at {here}:{}:{}",
        later.task.kind.name,
        said.first,
        one.file(),
        one.line,
        one.column,
        said.second,
        other.line,
        other.column
    );
    let in_group = earlier.group.is_some() && earlier.group == later.group;
    let note = if in_group {
        "GPU tasks that follow each other are one declaration, and the node refuses this one"
    } else {
        "every run does both, so that it always changes something, and only the later one lasts"
    };
    Finding::new(
        "contradicting-tasks",
        Diagnostic::warning(message).at(other).note(note).help(
            "remove one of them, or give each the hosts or the `when` that it is for; if the first one is meant for the time \
             between, `# noqa: contradicting-tasks` says so",
        ),
    )
}
