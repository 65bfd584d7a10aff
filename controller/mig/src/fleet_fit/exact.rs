//! The best way, and the proof that there is none better.
//!
//! GPU after GPU, all states that are reached are kept: what is still missing, with the least cost of getting there. A
//! state goes no further if the bounds show that it leads to nothing better than the way that is known. If no state is
//! left, that way is the best.

use std::collections::HashMap;

use super::{
    Cost,
    bound::{Bounds, Rest},
    model::{Model, Plan},
};

/// GPUs up to which the search takes all the work it needs, in practice.
const SMALL: usize = 16;
/// Most states that are made, for a small fleet and for any other.
const MOST_SMALL: usize = 60_000_000;
const MOST: usize = 300_000;

/// What decides about the rest of the way: what is missing of each row, and whether the node is drained.
type Key = (Box<[u32]>, bool);

/// A step of a way: the state before it, and what the GPU became.
#[derive(Clone, Copy)]
struct Trace {
    before: usize,
    pick: u16,
}

struct State {
    key: Key,
    cost: Cost,
    trace: usize,
}

/// Returns the best plan; `None` if there are too many states.
pub(super) fn search(model: &Model, known: &Plan, bounds: &Bounds) -> Option<Plan> {
    let mut order: Vec<usize> = (0..model.nodes.len()).collect();
    // Nodes of a scope together, so that its rows are done with early; alike nodes together, so that states meet.
    order.sort_by_key(|at| model.nodes.get(*at).map(|node| (node.rows.clone(), node.gpus.clone(), *at)));
    let rests = bounds.rests(model, &order);
    let gpus: usize = model.nodes.iter().map(|node| node.gpus.len()).sum();
    let most = if gpus <= SMALL { MOST_SMALL } else { MOST };
    let last = last_nodes(model, &order);
    let mut made = 0;
    let mut traces = vec![Trace { before: 0, pick: 0 }];
    let mut states =
        vec![State { key: (model.needs.clone().into_boxed_slice(), false), cost: Cost::default(), trace: 0 }];
    for (place, node) in order.iter().enumerate() {
        let classes = model.nodes.get(*node).map(|node| node.gpus.as_slice()).unwrap_or_default();
        for (gpu, class) in classes.iter().enumerate() {
            let is_last = gpu + 1 == classes.len();
            let done: &[usize] = if is_last { last.get(place).map(Vec::as_slice)? } else { &[] };
            let mut next = Layer::default();
            for state in &states {
                for (at, pick) in model.picks(*class).iter().enumerate() {
                    made += 1;
                    if made > most {
                        return None;
                    }
                    let mut missing = state.key.0.clone();
                    for (row, amount) in &pick.gives {
                        missing
                            .iter_mut()
                            .skip(*row)
                            .take(1)
                            .for_each(|left| *left = left.saturating_sub(*amount));
                    }
                    let mut cost = state.cost;
                    let drained = state.key.1 || pick.drains;
                    cost.destroyed += pick.destroyed;
                    cost.drained += u32::from(pick.drains && !state.key.1);
                    cost.changed += u32::from(pick.changed);
                    for row in done {
                        cost.missing += missing.get_mut(*row).map(std::mem::take).unwrap_or_default();
                    }
                    let key = (missing, drained && !is_last);
                    if next.is_worse(&key, &cost)
                        || leads_nowhere(&rests, place, gpu + 1, drained, &cost, &key.0)
                    {
                        continue;
                    }
                    traces.push(Trace { before: state.trace, pick: u16::try_from(at).ok()? });
                    next.put(State { key, cost, trace: traces.len() - 1 });
                }
            }
            states = next.states;
        }
    }
    let best = states.into_iter().min_by_key(|state| (state.cost, state.trace));
    Some(match best.filter(|best| best.cost < known.cost) {
        Some(best) => model.plan(taken(model, &order, &traces, best.trace)),
        None => known.clone(),
    })
}

/// States after a GPU, in the order in which they were found.
#[derive(Default)]
struct Layer {
    states: Vec<State>,
    places: HashMap<Key, usize>,
}

impl Layer {
    fn is_worse(&self, key: &Key, cost: &Cost) -> bool {
        let known = self.places.get(key).and_then(|at| self.states.get(*at));
        known.is_some_and(|known| known.cost <= *cost)
    }

    fn put(&mut self, state: State) {
        match self.places.get(&state.key).and_then(|at| self.states.get_mut(*at)) {
            Some(known) => *known = state,
            None => {
                self.places.insert(state.key.clone(), self.states.len());
                self.states.push(state);
            }
        }
    }
}

fn leads_nowhere(
    rests: &[Rest<'_>],
    node: usize,
    gpu: usize,
    drained: bool,
    cost: &Cost,
    missing: &[u32],
) -> bool {
    rests.iter().all(|rest| rest.is_no_better(node, gpu, drained, cost, missing))
}

/// By place in the order: the rows that no later node gives anything of.
fn last_nodes(model: &Model, order: &[usize]) -> Vec<Vec<usize>> {
    let mut last: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
    for row in 0..model.needs.len() {
        let gives = |at: &usize| model.nodes.get(*at).is_some_and(|node| node.rows.contains(&row));
        if let Some(rows) = order.iter().rposition(gives).and_then(|place| last.get_mut(place)) {
            rows.push(row);
        }
    }
    last
}

/// Follows a way back to its start.
fn taken(model: &Model, order: &[usize], traces: &[Trace], end: usize) -> Vec<Vec<usize>> {
    let mut taken: Vec<Vec<usize>> = model.nodes.iter().map(|node| vec![0; node.gpus.len()]).collect();
    let mut at = end;
    for node in order.iter().rev() {
        for pick in taken.get_mut(*node).into_iter().flat_map(|gpus| gpus.iter_mut().rev()) {
            if let Some(trace) = traces.get(at) {
                *pick = usize::from(trace.pick);
                at = trace.before;
            }
        }
    }
    taken
}
