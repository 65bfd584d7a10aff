//! A good way in little time: what gives most for what it costs comes first, and what turns out not to be needed goes.

use std::{cmp::Ordering, collections::BinaryHeap};

use super::{
    Cost,
    model::{Model, Pick, Plan},
};

/// Weights of costs in the order of [`Cost`]: one of an earlier kind outweighs all later ones that it may save.
const DESTROYED: f64 = 1e8;
const DRAINED: f64 = 1e4;
const CHANGED: f64 = 1.0;

/// What may be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// One GPU takes another pick.
    Gpu(usize, usize),
    /// A node is drained, and its GPUs take what gives most without destroying anything.
    Node(usize),
}

/// A step with its cost for each unit of worth, the cheapest first in a heap.
#[derive(Clone, Copy, Debug)]
struct Offer {
    price: f64,
    step: Step,
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Offer {}
impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |step: Step| match step {
            Step::Gpu(node, gpu) => (node, gpu + 1),
            Step::Node(node) => (node, 0),
        };
        other.price.total_cmp(&self.price).then_with(|| place(other.step).cmp(&place(self.step)))
    }
}

struct Search<'a> {
    model: &'a Model,
    worth: &'a [f64],
    /// By row: what is still missing; below 0 what is too much.
    missing: Vec<i64>,
    taken: Vec<Vec<usize>>,
}

/// Finds a plan from the fleet as it is; `worth` is what one more of each row is worth, in any unit.
pub(super) fn search(model: &Model, worth: &[f64]) -> Plan {
    improve(model, worth, model.nodes.iter().map(|node| vec![0; node.gpus.len()]).collect())
}

/// Makes of some picks a plan that covers what it can, with nothing that is not needed.
pub(super) fn improve(model: &Model, worth: &[f64], taken: Vec<Vec<usize>>) -> Plan {
    let missing = model.needs.iter().map(|need| i64::from(*need)).collect();
    let mut search = Search { model, worth, missing, taken };
    for (node, taken) in model.nodes.iter().zip(&search.taken) {
        for pick in node.gpus.iter().zip(taken).filter_map(|(class, at)| model.pick(*class, *at)) {
            take(&mut search.missing, pick, -1);
        }
    }
    search.cover();
    search.give_back();
    model.plan(search.taken)
}

/// Most attempts to do without something.
const ATTEMPTS: usize = 48;
/// How many of them may fail one after the other.
const FAILURES: usize = 12;

/// Tries to do without single nodes and GPUs of a plan, with others in their place, down to a goal that is known to be
/// the best or nearly so.
pub(super) fn polish(model: &Model, worth: &[f64], plan: Plan, goal: &Cost) -> Plan {
    let mut best = plan;
    let mut failures = 0;
    let mut tried: Vec<(usize, Option<usize>)> = Vec::new();
    for _ in 0..ATTEMPTS {
        let reached = (best.cost.missing, best.cost.destroyed, best.cost.drained)
            <= (goal.missing, goal.destroyed, goal.drained);
        if reached || failures > FAILURES {
            break;
        }
        let Some((node, gpu)) = dearest(model, &best, goal, &tried) else { break };
        tried.push((node, gpu));
        let mut taken = best.taken.clone();
        for (place, pick) in taken.iter_mut().skip(node).take(1).flatten().enumerate() {
            if gpu.is_none_or(|gpu| gpu == place) {
                *pick = 0;
            }
        }
        let other = improve(model, worth, taken);
        if other.cost < best.cost {
            best = other;
            failures = 0;
        } else {
            failures += 1;
        }
    }
    best
}

/// What a plan should do without first: a GPU that loses instances, or a drained node.
fn dearest(
    model: &Model,
    plan: &Plan,
    goal: &Cost,
    tried: &[(usize, Option<usize>)],
) -> Option<(usize, Option<usize>)> {
    let destroys = (plan.cost.missing, plan.cost.destroyed) > (goal.missing, goal.destroyed);
    let mut all: Vec<(u32, usize, Option<usize>)> = Vec::new();
    for (node, (of, taken)) in model.nodes.iter().zip(&plan.taken).enumerate() {
        let picks = of.gpus.iter().zip(taken).enumerate();
        let picks = picks.filter_map(|(gpu, (class, at))| Some((gpu, model.pick(*class, *at)?)));
        if destroys {
            let dear = picks.filter(|(_, pick)| pick.destroyed > 0);
            all.extend(dear.map(|(gpu, pick)| (pick.destroyed, node, Some(gpu))));
        } else {
            let draining = picks.filter(|(_, pick)| pick.drains).count();
            if draining > 0 {
                // Those with the fewest GPUs that need it are the easiest to do without.
                all.push((u32::MAX - u32::try_from(draining).unwrap_or(u32::MAX), node, None));
            }
        }
    }
    all.retain(|(_, node, gpu)| !tried.contains(&(*node, *gpu)));
    let best =
        all.into_iter().max_by_key(|(weight, node, gpu)| (*weight, std::cmp::Reverse((*node, *gpu))))?;
    Some((best.1, best.2))
}

fn take(missing: &mut [i64], pick: &Pick, sign: i64) {
    for (row, amount) in &pick.gives {
        if let Some(missing) = missing.get_mut(*row) {
            *missing += sign * i64::from(*amount);
        }
    }
}

impl Search<'_> {
    fn class(&self, node: usize, gpu: usize) -> usize {
        self.model.nodes.get(node).and_then(|node| node.gpus.get(gpu)).copied().unwrap_or_default()
    }

    fn now(&self, node: usize, gpu: usize) -> usize {
        self.taken.get(node).and_then(|gpus| gpus.get(gpu)).copied().unwrap_or_default()
    }

    fn set(&mut self, node: usize, gpu: usize, to: usize) {
        let (class, from) = (self.class(node, gpu), self.now(node, gpu));
        for (at, sign) in [(from, 1), (to, -1)] {
            if let Some(pick) = self.model.pick(class, at) {
                take(&mut self.missing, pick, sign);
            }
        }
        if let Some(taken) = self.taken.get_mut(node).and_then(|gpus| gpus.get_mut(gpu)) {
            *taken = to;
        }
    }

    fn is_drained(&self, node: usize) -> bool {
        let Some(model) = self.model.nodes.get(node) else { return false };
        let taken = self.taken.get(node).map(Vec::as_slice).unwrap_or_default();
        let mut picks = model.gpus.iter().zip(taken).filter_map(|(class, at)| self.model.pick(*class, *at));
        picks.any(|pick| pick.drains)
    }

    /// What a change of picks is worth: what it gives of what is missing.
    fn gain(&self, missing: &[i64], from: &Pick, to: &Pick) -> f64 {
        let mut gain = 0.0;
        let amount = |pick: &Pick, row: usize| {
            pick.gives.iter().find(|(of, _)| *of == row).map_or(0, |(_, amount)| i64::from(*amount))
        };
        let mut row_gain = |row: usize| {
            let (Some(missing), Some(worth)) = (missing.get(row), self.worth.get(row)) else { return };
            let after = missing + amount(from, row) - amount(to, row);
            gain += worth * (missing.max(&0) - after.max(0)) as f64;
        };
        to.gives.iter().for_each(|(row, _)| row_gain(*row));
        let only = from.gives.iter().filter(|(row, _)| amount(to, *row) == 0);
        only.for_each(|(row, _)| row_gain(*row));
        gain
    }

    fn cost(from: &Pick, to: &Pick, drained: bool) -> f64 {
        let destroyed = f64::from(to.destroyed) - f64::from(from.destroyed);
        let drains = if to.drains && !drained { DRAINED } else { 0.0 };
        let changed = f64::from(u8::from(to.changed)) - f64::from(u8::from(from.changed));
        DESTROYED * destroyed + drains + CHANGED * changed
    }

    /// The cheapest pick of a GPU, and what it costs for each unit of worth.
    fn of_gpu(&self, node: usize, gpu: usize) -> Option<(f64, usize)> {
        let class = self.class(node, gpu);
        let from = self.model.pick(class, self.now(node, gpu))?;
        let drained = self.is_drained(node);
        let mut best: Option<(f64, usize)> = None;
        for (at, to) in self.model.picks(class).iter().enumerate() {
            let gain = self.gain(&self.missing, from, to);
            if gain <= 1e-9 {
                continue;
            }
            // What costs nothing more is not free of every doubt: more gain for it is better.
            let price = Self::cost(from, to, drained).max(1e-3) / gain;
            if best.is_none_or(|(least, _)| price < least) {
                best = Some((price, at));
            }
        }
        best
    }

    /// What draining a node gives, if nothing is destroyed on it: the picks of its GPUs, and the cost for each unit of
    /// worth.
    fn of_node(&self, node: usize) -> Option<(f64, Vec<usize>)> {
        if self.is_drained(node) {
            return None;
        }
        let mut missing = self.missing.clone();
        let (mut gained, mut cost, mut drains) = (0.0, DRAINED, false);
        let mut chosen = Vec::new();
        for (gpu, class) in self.model.nodes.get(node)?.gpus.iter().enumerate() {
            let now = self.now(node, gpu);
            let from = self.model.pick(*class, now)?;
            let mut best = (1e-9, now);
            for (at, to) in self.model.picks(*class).iter().enumerate() {
                let gain = self.gain(&missing, from, to);
                if to.destroyed == from.destroyed && gain > best.0 {
                    best = (gain, at);
                }
            }
            if best.1 != now {
                let to = self.model.pick(*class, best.1)?;
                take(&mut missing, from, 1);
                take(&mut missing, to, -1);
                gained += best.0;
                cost += CHANGED;
                drains |= to.drains;
            }
            chosen.push(best.1);
        }
        (drains && gained > 0.0).then(|| (cost / gained, chosen))
    }

    fn price(&self, step: Step) -> Option<f64> {
        match step {
            Step::Gpu(node, gpu) => self.of_gpu(node, gpu).map(|(price, _)| price),
            Step::Node(node) => self.of_node(node).map(|(price, _)| price),
        }
    }

    /// Takes steps until nothing is missing, or nothing helps.
    fn cover(&mut self) {
        let mut heap = BinaryHeap::new();
        let steps = |node: usize, gpus: usize| {
            std::iter::once(Step::Node(node)).chain((0..gpus).map(move |gpu| Step::Gpu(node, gpu)))
        };
        for (node, of) in self.model.nodes.iter().enumerate() {
            for step in steps(node, of.gpus.len()) {
                heap.extend(self.price(step).map(|price| Offer { price, step }));
            }
        }
        while self.missing.iter().any(|missing| *missing > 0) {
            let Some(Offer { step, .. }) = heap.pop() else { break };
            // What is left to give may have changed since the step was weighed.
            let Some(price) = self.price(step) else { continue };
            if heap.peek().is_some_and(|next| next.price < price) {
                heap.push(Offer { price, step });
                continue;
            }
            let node = match step {
                Step::Gpu(node, gpu) => {
                    let Some((_, pick)) = self.of_gpu(node, gpu) else { continue };
                    self.set(node, gpu, pick);
                    node
                }
                Step::Node(node) => {
                    let Some((_, picks)) = self.of_node(node) else { continue };
                    picks.into_iter().enumerate().for_each(|(gpu, pick)| self.set(node, gpu, pick));
                    node
                }
            };
            // On a drained node, everything else has become cheaper.
            let gpus = self.model.nodes.get(node).map_or(0, |node| node.gpus.len());
            for step in steps(node, gpus) {
                heap.extend(self.price(step).map(|price| Offer { price, step }));
            }
        }
    }

    /// Whether nothing more is missing if a GPU took another pick.
    fn allows(&self, missing: &[i64], from: &Pick, to: &Pick) -> bool {
        from.gives.iter().all(|(row, amount)| {
            let kept = to.gives.iter().find(|(of, _)| of == row).map_or(0, |(_, amount)| *amount);
            let lost = i64::from(*amount) - i64::from(kept);
            lost <= 0 || missing.get(*row).is_some_and(|missing| missing + lost <= 0)
        })
    }

    /// The cheapest pick that leaves nothing more missing.
    fn cheaper(&self, missing: &[i64], class: usize, now: usize, may_drain: bool) -> usize {
        let Some(from) = self.model.pick(class, now) else { return now };
        let cost = |pick: &Pick| (pick.destroyed, pick.drains, pick.changed);
        let mut best = (cost(from), now);
        let mut is_allowed = may_drain || !from.drains;
        for (at, to) in self.model.picks(class).iter().enumerate() {
            let better = cost(to) < best.0 || !is_allowed;
            if better && (may_drain || !to.drains) && self.allows(missing, from, to) {
                best = (cost(to), at);
                is_allowed = true;
            }
        }
        if is_allowed { best.1 } else { usize::MAX }
    }

    /// Gives back what is not needed: single GPUs, the dearest first, then whole drains, then GPUs again.
    fn give_back(&mut self) {
        self.relieve_gpus();
        self.relieve_nodes();
        self.relieve_gpus();
    }

    fn relieve_gpus(&mut self) {
        let mut order: Vec<(u32, bool, usize, usize)> = Vec::new();
        for (node, of) in self.model.nodes.iter().enumerate() {
            for (gpu, class) in of.gpus.iter().enumerate() {
                let pick = self.model.pick(*class, self.now(node, gpu));
                if let Some(pick) = pick.filter(|pick| pick.changed) {
                    order.push((pick.destroyed, pick.drains, node, gpu));
                }
            }
        }
        order.sort_by_key(|(destroyed, drains, node, gpu)| {
            (std::cmp::Reverse((*destroyed, *drains)), std::cmp::Reverse((*node, *gpu)))
        });
        for (.., node, gpu) in order {
            let (class, now) = (self.class(node, gpu), self.now(node, gpu));
            let to = self.cheaper(&self.missing, class, now, true);
            if to != now && to != usize::MAX {
                self.set(node, gpu, to);
            }
        }
    }

    fn relieve_nodes(&mut self) {
        let mut drained: Vec<(usize, usize)> = Vec::new();
        for (node, of) in self.model.nodes.iter().enumerate() {
            let draining = of
                .gpus
                .iter()
                .enumerate()
                .filter_map(|(gpu, class)| self.model.pick(*class, self.now(node, gpu)))
                .filter(|pick| pick.drains)
                .count();
            if draining > 0 {
                drained.push((draining, node));
            }
        }
        // Those with the fewest GPUs that need it are the easiest to do without.
        drained.sort_unstable();
        for (_, node) in drained {
            let mut missing = self.missing.clone();
            let mut chosen = Vec::new();
            let Some(of) = self.model.nodes.get(node) else { continue };
            for (gpu, class) in of.gpus.iter().enumerate() {
                let now = self.now(node, gpu);
                let to = self.cheaper(&missing, *class, now, false);
                let (Some(from), Some(pick)) = (self.model.pick(*class, now), self.model.pick(*class, to))
                else {
                    break;
                };
                take(&mut missing, from, 1);
                take(&mut missing, pick, -1);
                chosen.push(to);
            }
            if chosen.len() == of.gpus.len() {
                chosen.into_iter().enumerate().for_each(|(gpu, to)| self.set(node, gpu, to));
            }
        }
    }
}
