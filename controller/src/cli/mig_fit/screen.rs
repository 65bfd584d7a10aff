//! What `mig fit` says: the demand, what changes, what it costs, and why it cannot be met.

use std::collections::BTreeMap;

use gpufleet::{display::count, report::fold_names};
use gpufleet_mig::{
    demand, draw,
    fleet_fit::{Change, Demand, Fit, Freedom, Gpu, Node, Wish, fit_fleet},
};
use gpufleet_protocol::mig::Slot;
use serde_json::{Value, json};

use super::{
    fleet::{Fleet, Remark},
    playbook::profile,
    scopes::Scopes,
};
use crate::cli::output::Output;

/// Kinds of changes that are drawn.
/// Largest number of instances for which it is told how many GPUs more would do.
const MOST_SPARE: u64 = 4096;

const MOST_KINDS: usize = 24;
/// Nodes that are named for each.
const MOST_NODES: usize = 6;
/// Causes that are told of nodes and GPUs that cannot be used.
const MOST_CAUSES: usize = 8;

/// Tells which nodes and GPUs are not used, or not freely; equal causes once.
pub fn remarks(fleet: &Fleet, output: &Output) {
    for (remarks, what) in [(&fleet.left_out, "not used, and nothing of it counts"), (&fleet.held, "held")] {
        let mut causes: Vec<(&str, Vec<String>)> = Vec::new();
        for Remark { node, gpu, why } in remarks {
            let name = match gpu {
                Some(gpu) => format!("{node} GPU {gpu}"),
                None => node.to_string(),
            };
            match causes.iter_mut().find(|(known, _)| known == why) {
                Some((_, names)) => names.push(name),
                None => causes.push((why, vec![name])),
            }
        }
        for (why, names) in causes.iter().take(MOST_CAUSES) {
            let mut named = names.iter().take(MOST_NODES).map(String::as_str).collect::<Vec<_>>().join(", ");
            if names.len() > MOST_NODES {
                named.push_str(&format!(" and {} more", names.len() - MOST_NODES));
            }
            output.warning(&format!("{named}: {what}: {why}"));
        }
        if let Some(more) = causes.get(MOST_CAUSES..).filter(|more| !more.is_empty()) {
            let nodes: usize = more.iter().map(|(_, names)| names.len()).sum();
            output.warning(&format!("{nodes} more: {what}; `--format json` has all causes"));
        }
    }
    if fleet.wants_root {
        output.status("help: root sees every process: give the nodes `--become`");
    }
}

/// What the way costs, and how good it is.
pub fn cost(fit: &Fit, fleet: &Fleet) -> String {
    let gpus: usize = fleet.nodes.iter().map(|node| node.gpus.len()).sum();
    let cost = fit.cost;
    if fit.changes.is_empty() {
        return format!("Of {}, none has to change.", count(gpus, "GPU"));
    }
    let number = |number: u32, noun: &str| count(number as usize, noun);
    let mut text = format!(
        "{} of {gpus} change: {} destroyed, {} to be idle",
        number(cost.changed, "GPU"),
        match cost.destroyed {
            0 => "no instance is".to_owned(),
            1 => "1 instance is".to_owned(),
            many => format!("{many} instances are"),
        },
        match cost.drained {
            0 => "no node has".to_owned(),
            1 => "1 node has".to_owned(),
            many => format!("{many} nodes have"),
        },
    );
    let bound = fit.bound;
    text.push_str(&if fit.is_proven() {
        "; no way needs less.".to_owned()
    } else {
        format!(
            "; no way needs less than {} destroyed, {} idle and {} changed.",
            number(bound.destroyed, "instance"),
            number(bound.drained, "node"),
            number(bound.changed, "GPU")
        )
    });
    text
}

/// What a GPU becomes, for all GPUs that become so.
#[derive(PartialEq)]
struct Kind<'a> {
    gpu: &'a Gpu,
    change: &'a Change,
}

impl Kind<'_> {
    fn is(&self, other: &Self) -> bool {
        let layout = |slots: &[Slot]| {
            let mut slots = slots.to_vec();
            slots.sort_unstable();
            slots
        };
        self.gpu.profiles == other.gpu.profiles
            && self.gpu.mig == other.gpu.mig
            && layout(&present(self.gpu)) == layout(&present(other.gpu))
            && self.change.mig == other.change.mig
            && layout(&self.change.layout) == layout(&other.change.layout)
    }
}

fn present(gpu: &Gpu) -> Vec<Slot> {
    gpu.instances.iter().map(|instance| instance.slot).collect()
}

fn drawn(gpu: &Gpu, mig: bool, slots: &[Slot]) -> String {
    if !mig {
        return "MIG off".to_owned();
    }
    let used = gpu.profiles.iter().filter(|profile| {
        gpu.instances.iter().map(|one| &one.slot).chain(slots).any(|slot| slot.profile_id == profile.id)
    });
    let ends = |slot: &Slot| slot.placement.start + slot.placement.size;
    let places = gpu.profiles.iter().flat_map(|profile| profile.placements.iter().flatten());
    let grid = places.map(|place| place.start + place.size).chain(slots.iter().map(ends)).max().unwrap_or(0);
    draw::slots(&gpu.profiles, grid, slots, draw::width_of(used).max(1))
}

pub fn text(fleet: &Fleet, scopes: &Scopes, fit: &Fit, cost: &str, why: &[String]) -> String {
    let mut out = table(scopes, fit);
    let mut kinds: Vec<(Kind<'_>, BTreeMap<usize, Vec<u32>>)> = Vec::new();
    for change in &fit.changes {
        let Some(gpu) = fleet.nodes.get(change.node).and_then(|node| node.gpus.get(change.gpu)) else {
            continue;
        };
        let Some(name) = fleet.names.get(change.node).and_then(|(_, gpus)| gpus.get(change.gpu)) else {
            continue;
        };
        let kind = Kind { gpu, change };
        let at = kinds.iter().position(|(known, _)| known.is(&kind)).unwrap_or_else(|| {
            kinds.push((kind, BTreeMap::new()));
            kinds.len() - 1
        });
        if let Some((_, nodes)) = kinds.get_mut(at) {
            nodes.entry(change.node).or_default().push(name.index);
        }
    }
    for (Kind { gpu, change }, nodes) in kinds.iter().take(MOST_KINDS) {
        let gpus: usize = nodes.values().map(Vec::len).sum();
        let idle = if change.drains { "node idle" } else { "live" };
        out.push_str(&format!("\n{} ({idle}): {}\n", count(gpus, "GPU"), places(fleet, nodes)));
        out.push_str(&format!("  now   {}\n", drawn(gpu, gpu.mig, &present(gpu))));
        out.push_str(&format!("  then  {}\n", drawn(gpu, change.mig, &change.layout)));
    }
    if kinds.len() > MOST_KINDS {
        out.push_str(&format!(
            "\n… and {} more; `--format json` lists all\n",
            count(kinds.len() - MOST_KINDS, "kind")
        ));
    }
    out.push_str(&format!("\n{cost}\n"));
    for line in why {
        out.push_str(&format!("{line}\n"));
    }
    out
}

fn places(fleet: &Fleet, nodes: &BTreeMap<usize, Vec<u32>>) -> String {
    let name = |(node, gpus): (&usize, &Vec<u32>)| {
        let name = fleet.names.get(*node).map_or("?", |(name, _)| name);
        let gpus: Vec<String> = gpus.iter().map(u32::to_string).collect();
        format!("{name} GPU {}", gpus.join(","))
    };
    let mut text = nodes.iter().take(MOST_NODES).map(name).collect::<Vec<_>>().join("; ");
    if nodes.len() > MOST_NODES {
        text.push_str(&format!(" … and on {} more", count(nodes.len() - MOST_NODES, "node")));
    }
    text
}

/// The demand, a line for each number.
fn table(scopes: &Scopes, fit: &Fit) -> String {
    let mut rows = vec![["", "PROFILE", "WANTED", "NOW", "AFTER", ""].map(str::to_owned)];
    for ((demand, before), after) in scopes.demands.iter().zip(&fit.before).zip(&fit.after) {
        let missing = demand.count.saturating_sub(*after);
        rows.push([
            scopes.name(demand.scope).to_owned(),
            demand::name(&demand.wish).to_owned(),
            demand.count.to_string(),
            before.to_string(),
            after.to_string(),
            if missing > 0 { format!("{missing} missing") } else { String::new() },
        ]);
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..6).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 | 1 | 5 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Why a demand cannot be met, and what would help.
pub fn why_impossible(fleet: &Fleet, scopes: &Scopes, fit: &Fit) -> Vec<String> {
    let mut lines = vec![format!("The demand cannot be met: {} missing at the end.", are(fit.cost.missing))];
    if fit.bound.missing < fit.cost.missing {
        lines.push(format!("No way misses fewer than {}.", fit.bound.missing));
    }
    let gpus = || fleet.nodes.iter().flat_map(|node| &node.gpus);
    let mut known: Vec<&str> =
        gpus().flat_map(|gpu| gpu.profiles.iter()).map(|profile| profile.name.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    let mut unknown: Vec<&str> = Vec::new();
    for demand in &scopes.demands {
        let name = demand::name(&demand.wish);
        let is_known = known.iter().any(|known| known.eq_ignore_ascii_case(name));
        if demand.wish != Wish::Whole && !is_known && !unknown.contains(&name) {
            unknown.push(name);
            lines.push(match known.is_empty() {
                true => "No GPU that was read has MIG profiles.".to_owned(),
                false => format!("No GPU here has `{name}`; they have {}.", known.join(", ")),
            });
        }
    }
    if !fleet.busy.is_empty() {
        let mut nodes = fleet.nodes.clone();
        for (_, node) in nodes.iter_mut().enumerate().filter(|(at, _)| fleet.busy.contains(at)) {
            for gpu in &mut node.gpus {
                gpu.freedom = freed(gpu.freedom);
            }
        }
        let idle = fit_fleet(&nodes, &scopes.demands);
        let names = fleet.busy.iter().filter_map(|at| fleet.names.get(*at)).map(|(name, _)| name.to_string());
        let names = fold_names(names.collect::<Vec<_>>().iter());
        if idle.cost.missing < fit.cost.missing {
            let then = match idle.cost.missing {
                0 => "it could be met".to_owned(),
                missing => format!("{missing} would be missing"),
            };
            lines.push(format!("If nothing worked on {names}, {then}."));
        }
    }
    lines.extend(more_gpus(fleet, scopes, fit));
    lines
}

fn are(missing: u32) -> String {
    if missing == 1 { "1 instance is".to_owned() } else { format!("{missing} instances are") }
}

/// A GPU of a busy node may be used as freely as its own state allows.
const fn freed(freedom: Freedom) -> Freedom {
    match freedom {
        Freedom::CreateOnly => Freedom::Any,
        other => other,
    }
}

/// How many empty GPUs more would do, by scope.
fn more_gpus(fleet: &Fleet, scopes: &Scopes, fit: &Fit) -> Vec<String> {
    let mut missing: BTreeMap<usize, Vec<Demand>> = BTreeMap::new();
    for (demand, after) in scopes.demands.iter().zip(&fit.after) {
        let count = demand.count.saturating_sub(*after);
        if count > 0 {
            missing.entry(demand.scope).or_default().push(Demand { scope: 0, count, ..demand.clone() });
        }
    }
    let mut lines = Vec::new();
    for (scope, wanted) in missing {
        let (whole, wanted): (Vec<Demand>, Vec<Demand>) =
            wanted.into_iter().partition(|demand| demand.wish == Wish::Whole);
        let has_all = |gpu: &&Gpu| {
            let has = |demand: &Demand| {
                let name = demand::name(&demand.wish);
                gpu.profiles.iter().any(|profile| profile.name.eq_ignore_ascii_case(name))
            };
            wanted.iter().all(has)
        };
        let inside = |(node, _): &(&Node, _)| node.scopes.contains(&scope);
        let named = || fleet.nodes.iter().zip(&fleet.names);
        let like =
            named().filter(inside).chain(named()).find(|(node, _)| node.gpus.iter().any(|gpu| has_all(&gpu)));
        let Some((node, (name, _))) = like else { continue };
        let Some(gpu) = node.gpus.iter().find(has_all) else { continue };
        let count_of = |demands: &[Demand]| demands.iter().map(|demand| u64::from(demand.count)).sum::<u64>();
        if count_of(&wanted) > MOST_SPARE {
            continue;
        }
        let empty = Gpu { mig: false, instances: Vec::new(), freedom: Freedom::Any, ..gpu.clone() };
        let spare = vec![
            Node { gpus: vec![empty], scopes: vec![0] };
            usize::try_from(count_of(&wanted)).unwrap_or_default()
        ];
        let found = fit_fleet(&spare, &wanted);
        let more = u64::from(found.cost.changed) + count_of(&whole);
        if found.cost.missing == 0 && more > 0 {
            let place = match scopes.name(scope) {
                "all" => String::new(),
                scope => format!(" in {scope}"),
            };
            lines.push(format!(
                "{} more{place}, empty and like those of {name}, would do.",
                count(usize::try_from(more).unwrap_or(usize::MAX), "GPU")
            ));
        }
    }
    lines
}

fn slots(gpu: &Gpu, slots: &[Slot]) -> Value {
    let mut slots = slots.to_vec();
    slots.sort_unstable();
    let slot = |slot: &Slot| json!({"profile": profile(&gpu.profiles, *slot), "start": slot.placement.start, "size": slot.placement.size});
    slots.iter().map(slot).collect()
}

pub fn document(fleet: &Fleet, scopes: &Scopes, fit: &Fit, why: &[String]) -> Value {
    let demands = scopes.demands.iter().zip(&fit.before).zip(&fit.after);
    let demands: Vec<Value> = demands
        .map(|((demand, before), after)| {
            json!({
                "scope": scopes.name(demand.scope),
                "profile": demand::name(&demand.wish),
                "wanted": demand.count,
                "now": before,
                "after": after,
                "missing": demand.count.saturating_sub(*after),
            })
        })
        .collect();
    let change = |change: &Change| {
        let gpu = fleet.nodes.get(change.node)?.gpus.get(change.gpu)?;
        let (node, gpus) = fleet.names.get(change.node)?;
        let name = gpus.get(change.gpu)?;
        Some(json!({
            "node": &**node,
            "gpu": name.index,
            "uuid": name.uuid,
            "mig": change.mig,
            "now": slots(gpu, &present(gpu)),
            "layout": slots(gpu, &change.layout),
            "created": slots(gpu, &change.created),
            "destroyed": slots(gpu, &change.destroyed),
            "idle": change.drains,
        }))
    };
    let numbers = |cost: gpufleet_mig::fleet_fit::Cost| {
        json!({
            "missing": cost.missing,
            "destroyed": cost.destroyed,
            "drained_nodes": cost.drained,
            "changed_gpus": cost.changed,
        })
    };
    let remarks = |remarks: &[Remark]| -> Vec<Value> {
        let remark = |remark: &Remark| json!({"node": &*remark.node, "gpu": remark.gpu, "why": remark.why});
        remarks.iter().map(remark).collect()
    };
    json!({
        "demands": demands,
        "cost": numbers(fit.cost),
        "bound": numbers(fit.bound),
        "proven": fit.is_proven(),
        "changes": fit.changes.iter().filter_map(change).collect::<Vec<_>>(),
        "left_out": remarks(&fleet.left_out),
        "held": remarks(&fleet.held),
        "why": why,
    })
}
