//! A fleet and its demands as numbers: rows to be covered, and what each GPU may give of them at which cost.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use gpufleet_protocol::{mig::Slot, nvml::MigProfile};

use super::{
    Cost, Demand, Freedom, Instance, Node, Wish,
    choices::{Choice, choices},
};

/// What a GPU may become, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    /// How much it gives of each row of which it gives something.
    pub gives: Vec<(usize, u32)>,
    pub destroyed: u32,
    pub drains: bool,
    pub changed: bool,
}

/// A node: its position in the fleet, and the class of each GPU.
#[derive(Clone, Debug)]
pub(super) struct NodeModel {
    pub at: usize,
    pub gpus: Vec<usize>,
    /// Rows that its GPUs may give something of.
    pub rows: Vec<usize>,
}

/// One part of the problem, which shares no node with another one.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// How much is wanted, by row.
    pub needs: Vec<u32>,
    /// Memory slices of what a row wants.
    sizes: Vec<f64>,
    /// GPUs that are alike have a class: its picks, of which the first is that nothing changes.
    pub classes: Vec<Vec<Pick>>,
    states: Vec<Vec<Choice>>,
    pub nodes: Vec<NodeModel>,
}

/// A pick for each GPU of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub taken: Vec<Vec<usize>>,
    pub cost: Cost,
}

/// Position of a node and of a GPU on it, with the MIG mode and the layout that the GPU gets.
pub(super) type Layout = ((usize, usize), (bool, Vec<Slot>));

/// What makes GPUs alike.
type Likeness<'a> = (*const MigProfile, bool, Vec<Instance>, Freedom, &'a [usize]);

impl Model {
    /// Splits the problem where no node is in the scopes of two demands.
    pub fn parts(nodes: &[Node], demands: &[Demand]) -> Vec<Self> {
        let mut rows: BTreeMap<(usize, &Wish), u32> = BTreeMap::new();
        for demand in demands {
            let row = rows.entry((demand.scope, &demand.wish)).or_default();
            *row = (*row).max(demand.count);
        }
        // The lowest scope that each scope is joined to by a node.
        let mut first: BTreeMap<usize, usize> = rows.keys().map(|(scope, _)| (*scope, *scope)).collect();
        for node in nodes {
            let known: Vec<usize> =
                node.scopes.iter().filter_map(|scope| first.get(scope)).copied().collect();
            if let Some(lowest) = known.iter().min().copied() {
                first.values_mut().filter(|root| known.contains(root)).for_each(|root| *root = lowest);
            }
        }
        let mut roots: Vec<usize> = first.values().copied().collect();
        roots.sort_unstable();
        roots.dedup();
        let part = |root: usize| {
            let of_part = |scope: &usize| first.get(scope) == Some(&root);
            let wanted: Vec<(usize, &Wish, u32)> = rows
                .iter()
                .filter(|((scope, _), _)| of_part(scope))
                .map(|((scope, wish), count)| (*scope, *wish, *count))
                .collect();
            Self::of(nodes, &wanted)
        };
        roots.into_iter().map(part).collect()
    }

    fn of(nodes: &[Node], wanted: &[(usize, &Wish, u32)]) -> Self {
        let mut model = Self { needs: wanted.iter().map(|(.., count)| *count).collect(), ..Self::default() };
        let mut known: HashMap<Likeness<'_>, usize> = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            let rows: Vec<(usize, &Wish)> = wanted
                .iter()
                .enumerate()
                .filter(|(_, (scope, ..))| node.scopes.contains(scope))
                .map(|(row, (_, wish, _))| (row, *wish))
                .collect();
            if rows.is_empty() {
                continue;
            }
            let mut wishes: Vec<&Wish> = rows.iter().map(|(_, wish)| *wish).collect();
            wishes.sort_unstable();
            wishes.dedup();
            let class = |gpu: &super::Gpu| {
                let mut instances = gpu.instances.clone();
                instances.sort_unstable();
                let likeness = (
                    Arc::as_ptr(&gpu.profiles).cast(),
                    gpu.mig,
                    instances,
                    gpu.freedom,
                    node.scopes.as_slice(),
                );
                *known.entry(likeness).or_insert_with(|| {
                    let states = choices(gpu, &wishes);
                    model.classes.push(states.iter().map(|state| pick(state, &wishes, &rows)).collect());
                    model.states.push(states);
                    model.classes.len() - 1
                })
            };
            let gpus = node.gpus.iter().map(class).collect();
            let rows = rows.iter().map(|(row, _)| *row).collect();
            model.nodes.push(NodeModel { at, gpus, rows });
        }
        model.sizes = wanted.iter().map(|(_, wish, _)| size(nodes, wish)).collect();
        model
    }

    /// A first guess of what each row is worth: the memory slices of what it wants.
    pub fn sizes(&self) -> Vec<f64> {
        self.sizes.clone()
    }

    pub fn picks(&self, class: usize) -> &[Pick] {
        self.classes.get(class).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn pick(&self, class: usize, at: usize) -> Option<&Pick> {
        self.picks(class).get(at)
    }

    /// The plan that takes these picks, with what it costs.
    pub fn plan(&self, taken: Vec<Vec<usize>>) -> Plan {
        let mut missing: Vec<u32> = self.needs.clone();
        let mut cost = Cost::default();
        for (node, taken) in self.nodes.iter().zip(&taken) {
            let mut drains = false;
            for pick in node.gpus.iter().zip(taken).filter_map(|(class, at)| self.pick(*class, *at)) {
                for (row, amount) in &pick.gives {
                    missing
                        .iter_mut()
                        .skip(*row)
                        .take(1)
                        .for_each(|left| *left = left.saturating_sub(*amount));
                }
                cost.destroyed += pick.destroyed;
                cost.changed += u32::from(pick.changed);
                drains |= pick.drains;
            }
            cost.drained += u32::from(drains);
        }
        cost.missing = missing.iter().sum();
        Plan { taken, cost }
    }

    /// Returns MIG mode and layout of each GPU that a plan changes, by the positions of node and GPU.
    pub fn layouts(&self, nodes: &[Node], plan: &Plan) -> Vec<Layout> {
        let mut changed = Vec::new();
        for (node, taken) in self.nodes.iter().zip(&plan.taken) {
            for (gpu, (class, at)) in node.gpus.iter().zip(taken).enumerate() {
                let state = self.states.get(*class).and_then(|states| states.get(*at));
                if let Some(state) = state.filter(|state| state.changed && node.at < nodes.len()) {
                    changed.push(((node.at, gpu), (state.mig, state.layout.clone())));
                }
            }
        }
        changed
    }
}

fn pick(state: &Choice, wishes: &[&Wish], rows: &[(usize, &Wish)]) -> Pick {
    let amount = |wish: &Wish| {
        wishes.iter().zip(&state.gives).find(|(known, _)| **known == wish).map_or(0, |(_, amount)| *amount)
    };
    let gives = rows.iter().map(|(row, wish)| (*row, amount(wish))).filter(|(_, amount)| *amount > 0);
    Pick { gives: gives.collect(), destroyed: state.destroyed, drains: state.drains, changed: state.changed }
}

/// Memory slices of a wish, on the GPUs where it has most.
fn size(nodes: &[Node], wish: &Wish) -> f64 {
    let mut seen: Vec<*const MigProfile> = Vec::new();
    let mut most = 1;
    for gpu in nodes.iter().flat_map(|node| &node.gpus) {
        let table = Arc::as_ptr(&gpu.profiles).cast();
        if seen.contains(&table) {
            continue;
        }
        seen.push(table);
        for profile in gpu.profiles.iter() {
            let meant = match wish {
                Wish::Whole => true,
                Wish::Profile(name) => profile.name.eq_ignore_ascii_case(name),
            };
            let sizes = profile.placements.iter().flatten().map(|place| place.size);
            most = if meant { sizes.max().unwrap_or(0).max(most) } else { most };
        }
    }
    f64::from(most)
}
