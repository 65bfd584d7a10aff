//! Which GPUs of a fleet get which layout, so that a demand is met with the least disturbance.
//!
//! Pure: no clock, no I/O, no randomness; equal input gives equal output. Of all ways it takes one with the fewest missing
//! instances, then the fewest destroyed, then the fewest drained nodes, then the fewest changed GPUs, in this order.
//! Work is never touched: what may be done to a GPU is its [`Freedom`], which is input and a hard limit.
//!
//! How: every GPU has a few choices ([`choices`]), the others are worse in every respect. Demands that share no node are
//! separate problems. A greedy search ([`greedy`]) finds a good way, a Lagrangian bound ([`bound`]) proves how good it is,
//! and an exact search ([`exact`]) takes over where the number of states allows it, which for 16 GPUs it does. Why no
//! solver library: docs/design/0017-mig-fit.md.

mod bound;
mod choices;
mod exact;
mod greedy;
mod master;
mod model;
mod rounding;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use gpufleet_protocol::{mig::Slot, nvml::MigProfile};

use self::model::{Model, Plan};

/// What may be done to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Freedom {
    /// Nothing; its instances count.
    Frozen,
    /// Instances may be created in free slices, which disturbs nothing that runs.
    CreateOnly,
    /// Its node runs no work: instances may be destroyed too, and the MIG mode may change.
    Any,
}

/// An instance that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    pub slot: Slot,
    /// Whether it has the one compute instance of its full size, without which work cannot use it as what it is.
    pub whole: bool,
}

/// A GPU as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// The profiles that its driver lists, shared by GPUs that are alike.
    pub profiles: Arc<[MigProfile]>,
    /// Whether MIG is on.
    pub mig: bool,
    pub instances: Vec<Instance>,
    pub freedom: Freedom,
}

/// A node with its GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub gpus: Vec<Gpu>,
    /// The scopes that it is in.
    pub scopes: Vec<usize>,
}

/// What is wanted of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wish {
    /// An instance of this profile, by the name that the driver gives it.
    Profile(String),
    /// A GPU with MIG off.
    Whole,
}

/// At least so many, over all nodes of a scope. Those that exist count, whether something works on them or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    pub scope: usize,
    pub wish: Wish,
    pub count: u32,
}

/// What a way costs, the worst first: its order is the order of ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Instances that are missing at the end.
    pub missing: u32,
    /// Instances that are destroyed.
    pub destroyed: u32,
    /// Nodes on which an instance is destroyed or the MIG mode changes, which takes an idle node.
    pub drained: u32,
    /// GPUs on which anything changes.
    pub changed: u32,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.missing += other.missing;
        self.destroyed += other.destroyed;
        self.drained += other.drained;
        self.changed += other.changed;
    }
}

/// A GPU that gets another layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Position of its node, and its own on the node.
    pub node: usize,
    pub gpu: usize,
    /// Whether MIG is on afterwards.
    pub mig: bool,
    /// All instances afterwards, by place.
    pub layout: Vec<Slot>,
    pub created: Vec<Slot>,
    pub destroyed: Vec<Slot>,
    /// Whether its node must be idle for it.
    pub drains: bool,
}

/// The best way that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// By node and GPU.
    pub changes: Vec<Change>,
    pub cost: Cost,
    /// What no way can go below: each number with those before it as they are in `cost`.
    pub bound: Cost,
    /// By demand: how many there are now, and how many afterwards.
    pub before: Vec<u32>,
    pub after: Vec<u32>,
}

impl Fit {
    /// Whether no other way is better.
    pub fn is_proven(&self) -> bool {
        self.cost == self.bound
    }
}

/// Finds the layouts. Demands of an equal scope and wish count once, with the larger number.
pub fn fit_fleet(nodes: &[Node], demands: &[Demand]) -> Fit {
    let mut fit = Fit {
        changes: Vec::new(),
        cost: Cost::default(),
        bound: Cost::default(),
        before: Vec::new(),
        after: Vec::new(),
    };
    let mut layouts: BTreeMap<(usize, usize), (bool, Vec<Slot>)> = BTreeMap::new();
    for model in Model::parts(nodes, demands) {
        let (plan, bound) = best(&model);
        fit.bound += bound;
        layouts.extend(model.layouts(nodes, &plan));
    }
    trim(nodes, demands, &mut layouts);
    fit.changes = layouts
        .into_iter()
        .filter_map(|((node, gpu), (mig, layout))| {
            let now = nodes.get(node)?.gpus.get(gpu)?;
            is_changed(now, mig, &layout).then(|| change(now, node, gpu, mig, layout))
        })
        .collect();
    fit.before = demands.iter().map(|demand| total(nodes, demand, &[])).collect();
    fit.after = demands.iter().map(|demand| total(nodes, demand, &fit.changes)).collect();
    fit.cost = cost(demands, &fit);
    // Leaving out what is not needed may have done better than was known.
    fit.bound = fit.bound.min(fit.cost);
    fit
}

/// Whether a GPU has to be touched for a layout. MIG without instances is of no use to anybody.
fn is_changed(now: &Gpu, mig: bool, layout: &[Slot]) -> bool {
    let stays = |instance: &Instance| instance.whole && layout.contains(&instance.slot);
    match (now.mig, mig) {
        (false, true) => !layout.is_empty(),
        (false, false) => false,
        (true, false) => true,
        (true, true) => now.instances.len() != layout.len() || !now.instances.iter().all(stays),
    }
}

fn change(now: &Gpu, node: usize, gpu: usize, mig: bool, layout: Vec<Slot>) -> Change {
    let present: Vec<Slot> = now.instances.iter().map(|instance| instance.slot).collect();
    let created = layout.iter().filter(|slot| !present.contains(slot)).copied().collect();
    let destroyed: Vec<Slot> = present.into_iter().filter(|slot| !layout.contains(slot)).collect();
    let drains = mig != now.mig || !destroyed.is_empty();
    Change { node, gpu, mig, layout, created, destroyed, drains }
}

/// How often a bound is made sharper for a better way, and a way better with a sharper bound.
const ROUNDS: usize = 4;

/// Whether a way is so near to its bound, half a percent, that looking for a better one is not worth the time.
fn is_near(cost: &Cost, bound: &Cost) -> bool {
    let numbers = bound::kinds(cost).into_iter().zip(bound::kinds(bound));
    numbers.into_iter().all(|(cost, bound)| cost.saturating_sub(bound) <= bound / 200)
}

/// The best way of one part, and what no way can go below.
fn best(model: &Model) -> (Plan, Cost) {
    let mut found = greedy::search(model, &model.sizes());
    let mut bounds = bound::Bounds::of(model, &found.cost);
    for _ in 0..ROUNDS {
        if bounds.cost() == found.cost {
            return (found, bounds.cost());
        }
        if is_near(&found.cost, &bounds.cost()) {
            break;
        }
        let aim = bounds.aim(model);
        for (mix, worth) in aim.mixes().into_iter().chain(bounds.mixes()) {
            // A row that costs nothing in the mix is still to be covered.
            let least = worth.iter().copied().fold(0.0, f64::max) / 100.0;
            let worth: Vec<f64> = worth.iter().map(|worth| worth.max(least)).collect();
            let rounded = greedy::improve(model, &worth, rounding::round(model, mix, &worth));
            let rounded = greedy::polish(model, &worth, rounded, &bounds.cost());
            if rounded.cost < found.cost {
                found = rounded;
            }
        }
        if bounds.target == found.cost {
            break;
        }
        bounds = bound::Bounds::of(model, &found.cost);
    }
    match exact::search(model, &found, &bounds) {
        Some(exact) => {
            let cost = exact.cost;
            (exact, cost)
        }
        None => (found, bounds.cost()),
    }
}

/// How many of a demand there are with these changes.
fn total(nodes: &[Node], demand: &Demand, changes: &[Change]) -> u32 {
    let mut count = 0;
    for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.scopes.contains(&demand.scope)) {
        for (place, gpu) in node.gpus.iter().enumerate() {
            let found = changes.binary_search_by_key(&(at, place), |change| (change.node, change.gpu));
            count += match found.ok().and_then(|found| changes.get(found)) {
                Some(change) => choices::amount(gpu, &demand.wish, change.mig, change.layout.iter()),
                None => {
                    let whole = gpu.instances.iter().filter(|instance| instance.whole);
                    choices::amount(gpu, &demand.wish, gpu.mig, whole.map(|instance| &instance.slot))
                }
            };
        }
    }
    count
}

fn cost(demands: &[Demand], fit: &Fit) -> Cost {
    let mut rows: BTreeMap<(usize, &Wish), (u32, u32)> = BTreeMap::new();
    for (demand, after) in demands.iter().zip(&fit.after) {
        let row = rows.entry((demand.scope, &demand.wish)).or_insert((0, *after));
        row.0 = row.0.max(demand.count);
    }
    let mut drained: Vec<usize> =
        fit.changes.iter().filter(|change| change.drains).map(|change| change.node).collect();
    drained.dedup();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Cost {
        missing: rows.values().map(|(wanted, after)| wanted.saturating_sub(*after)).sum(),
        destroyed: number(fit.changes.iter().map(|change| change.destroyed.len()).sum()),
        drained: number(drained.len()),
        changed: number(fit.changes.len()),
    }
}

/// Takes back new instances that nobody asked for.
fn trim(nodes: &[Node], demands: &[Demand], layouts: &mut BTreeMap<(usize, usize), (bool, Vec<Slot>)>) {
    let changes: Vec<Change> = layouts
        .iter()
        .filter_map(|((node, gpu), (mig, layout))| {
            Some(change(nodes.get(*node)?.gpus.get(*gpu)?, *node, *gpu, *mig, layout.clone()))
        })
        .collect();
    let mut surplus: Vec<i64> = demands
        .iter()
        .map(|demand| i64::from(total(nodes, demand, &changes)) - i64::from(demand.count))
        .collect();
    for change in changes.iter().rev() {
        let Some((node, gpu)) =
            nodes.get(change.node).and_then(|node| Some((node, node.gpus.get(change.gpu)?)))
        else {
            continue;
        };
        for slot in change.created.iter().rev() {
            let touched: Vec<usize> = demands
                .iter()
                .enumerate()
                .filter(|(_, demand)| node.scopes.contains(&demand.scope))
                .filter(|(_, demand)| choices::amount(gpu, &demand.wish, true, [slot]) > 0)
                .map(|(at, _)| at)
                .collect();
            if touched.iter().all(|at| surplus.get(*at).is_some_and(|left| *left > 0)) {
                for at in touched {
                    surplus.iter_mut().skip(at).take(1).for_each(|left| *left -= 1);
                }
                if let Some((_, layout)) = layouts.get_mut(&(change.node, change.gpu)) {
                    layout.retain(|kept| kept != slot);
                }
            }
        }
    }
}
