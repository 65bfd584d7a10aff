//! What no way can go below.
//!
//! A Lagrangian bound for each kind of cost, with the kinds before it at most as in the way that was found: every row has
//! a price, and so has every earlier kind of cost. Then each node chooses for itself, so that the best of all ways is a
//! sum over nodes, and below whatever the demands allow. Any prices give a true bound; a subgradient method finds good
//! ones. It has a fixed number of steps, so that equal input gives an equal bound.

use std::{collections::BTreeMap, rc::Rc};

use super::{
    Cost,
    master::{Column, Master, Uncovered},
    model::{Model, Pick},
};

const STEPS: u32 = 150;
/// Steps without a better bound after which they become shorter.
const PATIENCE: u32 = 12;
/// How many of the last ways of the subgradient method the program begins with.
const KEPT: usize = 60;
const LEAST_KEPT: usize = 6;
/// Most changes of the program's basis for one way.
const PIVOTS: usize = 400;
/// Most ways that the program adds.
const COLUMNS: usize = 250;
/// The program ends when its mix costs at most this part more than the bound.
const PRECISION: f64 = 1e-4;
/// Costs are whole numbers, so that a bound above one is at least the next. This is far more than what adding up a fleet
/// loses in floating point, and far less than one.
const ROUNDING: f64 = 1e-6;

/// Kinds of costs, in the order of [`Cost`].
const KINDS: usize = 4;
const MISSING: usize = 0;
const DESTROYED: usize = 1;
const DRAINED: usize = 2;
const CHANGED: usize = 3;

pub(super) fn kinds(cost: &Cost) -> [u32; KINDS] {
    [cost.missing, cost.destroyed, cost.drained, cost.changed]
}

/// The prices that bound one kind of cost.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    kind: usize,
    /// By row.
    rows: Vec<f64>,
    /// By kind of cost: 1 for the one that is bounded, 0 for those behind it. `None` for missing instances if there must
    /// be none.
    costs: [Option<f64>; KINDS],
    bound: u32,
    mix: Mix,
}

/// Bounds of all kinds of costs.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// The cost of the way that was found.
    pub target: Cost,
    of_kinds: Vec<Prices>,
}

/// What a class costs at these prices, and the picks: without and with its node drained.
#[derive(Clone, Copy, Debug, Default)]
struct Best {
    stays: (f64, usize),
    drained: (f64, usize),
}

impl Prices {
    fn cost(&self, kind: usize) -> f64 {
        self.costs.get(kind).copied().flatten().unwrap_or_default()
    }

    /// The prices that are looked for: of rows, and of earlier kinds of costs.
    fn numbers(&self) -> Vec<f64> {
        self.rows.iter().copied().chain((0..self.kind).map(|kind| self.cost(kind))).collect()
    }

    fn set(&mut self, numbers: &[f64]) {
        let mut numbers = numbers.iter().copied();
        self.rows.iter_mut().zip(&mut numbers).for_each(|(price, number)| *price = number);
        // A price that is given stays so.
        let costs = self.costs.iter_mut().take(self.kind);
        costs.zip(numbers).for_each(|(cost, number)| *cost = cost.map(|_| number));
    }

    fn of_pick(&self, pick: &Pick) -> f64 {
        let given: f64 = pick
            .gives
            .iter()
            .map(|(row, amount)| self.rows.get(*row).copied().unwrap_or_default() * f64::from(*amount))
            .sum();
        let changed = if pick.changed { self.cost(CHANGED) } else { 0.0 };
        self.cost(DESTROYED) * f64::from(pick.destroyed) + changed - given
    }

    fn classes(&self, model: &Model) -> Vec<Best> {
        let best = |picks: &Vec<Pick>| {
            let mut best = Best { stays: (f64::INFINITY, 0), drained: (f64::INFINITY, 0) };
            for (at, pick) in picks.iter().enumerate() {
                let cost = self.of_pick(pick);
                if !pick.drains && cost < best.stays.0 {
                    best.stays = (cost, at);
                }
                if cost < best.drained.0 {
                    best.drained = (cost, at);
                }
            }
            best
        };
        model.classes.iter().map(best).collect()
    }

    /// What is paid for what is missing at the start, or given up, at these prices.
    fn of_missing(&self, missing: impl Iterator<Item = u32>) -> f64 {
        let row = |(price, missing): (&f64, u32)| {
            let given_up = self.costs.first().copied().flatten().map_or(0.0, |cost| (cost - price).min(0.0));
            f64::from(missing) * (price + given_up)
        };
        self.rows.iter().zip(missing).map(row).sum()
    }

    /// What is left to spend on earlier kinds of costs, at these prices.
    fn of_budget(&self, left: [f64; KINDS]) -> f64 {
        (0..self.kind).map(|kind| self.cost(kind) * left.get(kind).copied().unwrap_or_default()).sum()
    }
}

/// Nodes that are alike: their classes, and which they are.
struct Kin {
    block: usize,
    gpus: Vec<usize>,
    nodes: Vec<usize>,
}

/// The nodes by kind, and by block: those that may give the same rows.
struct Kins {
    all: Vec<Kin>,
    blocks: usize,
    /// By class; GPUs of different blocks are of different classes.
    of_classes: Vec<usize>,
}

impl Kins {
    fn of(model: &Model) -> Self {
        let mut blocks: Vec<&[usize]> = model.nodes.iter().map(|node| node.rows.as_slice()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut nodes: BTreeMap<(usize, Vec<usize>), Vec<usize>> = BTreeMap::new();
        let mut of_classes = vec![0; model.classes.len()];
        for (at, node) in model.nodes.iter().enumerate() {
            let block = blocks.binary_search(&node.rows.as_slice()).unwrap_or_default();
            let mut gpus = node.gpus.clone();
            gpus.sort_unstable();
            for class in &gpus {
                of_classes.iter_mut().skip(*class).take(1).for_each(|of| *of = block);
            }
            nodes.entry((block, gpus)).or_default().push(at);
        }
        let all = nodes.into_iter().map(|((block, gpus), nodes)| Kin { block, gpus, nodes });
        Self { all: all.collect(), blocks: blocks.len(), of_classes }
    }
}

/// What is best for each node at some prices.
#[derive(Clone, Debug, Default)]
pub(super) struct Way {
    /// By node.
    drained: Vec<bool>,
    /// By class: the pick on a node that is not drained, and on one that is.
    picks: Vec<(usize, usize)>,
}

/// Ways that together, each by its share, cover all rows at the cost of the bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Mix {
    /// By block.
    ways: Vec<Vec<(Rc<Way>, f64)>>,
    /// By node.
    blocks: Vec<usize>,
}

impl Mix {
    fn new(nodes: &Kins, ways: Vec<Vec<(Rc<Way>, f64)>>) -> Self {
        let mut blocks: Vec<(usize, usize)> =
            nodes.all.iter().flat_map(|kin| kin.nodes.iter().map(|node| (*node, kin.block))).collect();
        blocks.sort_unstable();
        Self { ways, blocks: blocks.into_iter().map(|(_, block)| block).collect() }
    }

    /// The ways of a node's block.
    pub fn ways(&self, node: usize) -> &[(Rc<Way>, f64)] {
        let block = self.blocks.get(node).and_then(|block| self.ways.get(*block));
        block.map(Vec::as_slice).unwrap_or_default()
    }
}

impl Way {
    pub fn drains(&self, node: usize) -> bool {
        self.drained.get(node).copied().unwrap_or_default()
    }

    pub fn pick(&self, class: usize, drained: bool) -> usize {
        let (stays, goes) = self.picks.get(class).copied().unwrap_or_default();
        if drained { goes } else { stays }
    }
}

/// What a part of the nodes gives of each row, and uses of each kind of cost.
#[derive(Clone, Debug, Default)]
struct Sums {
    gives: Vec<f64>,
    uses: [f64; KINDS],
}

impl Sums {
    fn add(&mut self, kind: usize, amount: f64) {
        self.uses.iter_mut().skip(kind).take(1).for_each(|used| *used += amount);
    }

    fn give(&mut self, row: usize, amount: f64) {
        self.gives.iter_mut().skip(row).take(1).for_each(|given| *given += amount);
    }
}

/// The value of the bound, with its way, and what each block does there.
struct Value {
    sum: f64,
    blocks: Vec<Sums>,
    /// What stays uncovered, because that costs less.
    uncovered: Sums,
    way: Rc<Way>,
}

impl Value {
    fn total(&self) -> Sums {
        let mut total = self.uncovered.clone();
        for block in &self.blocks {
            total.gives.iter_mut().zip(&block.gives).for_each(|(sum, more)| *sum += more);
            total.uses.iter_mut().zip(&block.uses).for_each(|(sum, more)| *sum += more);
        }
        total
    }
}

fn value(model: &Model, kins: &Kins, prices: &Prices, target: [u32; KINDS]) -> Value {
    let classes = prices.classes(model);
    let none = || Sums { gives: vec![0.0; model.needs.len()], uses: [0.0; KINDS] };
    let mut drained_nodes = vec![false; model.nodes.len()];
    let mut sum = 0.0;
    let mut blocks = vec![none(); kins.blocks];
    // By class: how many GPUs are on nodes that stay, and on drained ones.
    let mut counts = vec![(0.0, 0.0); classes.len()];
    for kin in &kins.all {
        let count = kin.nodes.len() as f64;
        let of = |class: &usize| classes.get(*class).copied().unwrap_or_default();
        let stays: f64 = kin.gpus.iter().map(|class| of(class).stays.0).sum();
        let drained = prices.cost(DRAINED) + kin.gpus.iter().map(|class| of(class).drained.0).sum::<f64>();
        let drains = drained < stays;
        sum += count * stays.min(drained);
        for class in &kin.gpus {
            if let Some((stay, drain)) = counts.get_mut(*class) {
                *(if drains { drain } else { stay }) += count;
            }
        }
        if drains {
            blocks.iter_mut().skip(kin.block).take(1).for_each(|block| block.add(DRAINED, count));
            for node in &kin.nodes {
                drained_nodes.iter_mut().skip(*node).take(1).for_each(|drained| *drained = true);
            }
        }
    }
    for (class, ((best, (stay, drain)), block)) in
        classes.iter().zip(&counts).zip(&kins.of_classes).enumerate()
    {
        let Some(block) = blocks.get_mut(*block) else { continue };
        for (pick, count) in [(best.stays.1, *stay), (best.drained.1, *drain)] {
            let Some(pick) = model.pick(class, pick).filter(|_| count > 0.0) else { continue };
            for (row, amount) in &pick.gives {
                block.give(*row, count * f64::from(*amount));
            }
            block.add(DESTROYED, count * f64::from(pick.destroyed));
            block.add(CHANGED, if pick.changed { count } else { 0.0 });
        }
    }
    let mut uncovered = none();
    if let Some(cost) = prices.costs.first().copied().flatten() {
        for (row, (price, need)) in prices.rows.iter().zip(&model.needs).enumerate() {
            // Rather pay for what is missing.
            if *price > cost {
                uncovered.give(row, f64::from(*need));
                uncovered.add(MISSING, f64::from(*need));
            }
        }
    }
    sum += prices.of_missing(model.needs.iter().copied()) - prices.of_budget(target.map(f64::from));
    let picks = classes.iter().map(|best| (best.stays.1, best.drained.1)).collect();
    Value { sum, blocks, uncovered, way: Rc::new(Way { drained: drained_nodes, picks }) }
}

impl Bounds {
    pub fn of(model: &Model, target: &Cost) -> Self {
        let nodes = Kins::of(model);
        let numbers = kinds(target);
        let of_kinds = (0..KINDS).map(|kind| best(model, &nodes, kind, numbers)).collect();
        Self { target: *target, of_kinds }
    }

    /// Bounds for a target that is as good as the bounds of a way allow, each given those before it.
    ///
    /// Why: the mix of a bound spends on earlier kinds of costs what the way did. If that was too much, a mix for less
    /// is what leads to a better way.
    pub fn aim(&self, model: &Model) -> Self {
        let nodes = Kins::of(model);
        let found = kinds(&self.target);
        let mut target = found;
        let mut of_kinds = Vec::new();
        let mut is_lower = false;
        for kind in 0..KINDS {
            if is_lower {
                // With less spent before, more may be needed here.
                target.iter_mut().skip(kind).take(1).for_each(|most| *most = *most * 2 + 10);
            }
            let prices = best(model, &nodes, kind, target);
            is_lower |= found.get(kind) != Some(&prices.bound);
            target.iter_mut().skip(kind).take(1).for_each(|most| *most = prices.bound);
            of_kinds.push(prices);
        }
        let [missing, destroyed, drained, changed] = target;
        Self { target: Cost { missing, destroyed, drained, changed }, of_kinds }
    }

    pub fn cost(&self) -> Cost {
        let bound = |kind: usize| self.of_kinds.get(kind).map_or(0, |prices| prices.bound);
        Cost {
            missing: bound(MISSING),
            destroyed: bound(DESTROYED),
            drained: bound(DRAINED),
            changed: bound(CHANGED),
        }
    }

    /// Mixes of ways that cover all rows, with what each row is worth to them; see [`super::rounding`].
    pub fn mixes(&self) -> Vec<(&Mix, &[f64])> {
        let mixes = self.of_kinds.iter().map(|prices| (&prices.mix, prices.rows.as_slice()));
        mixes.filter(|(mix, _)| !mix.ways.is_empty()).collect()
    }

    /// Prepares the bounds of what is left when a part of the nodes has chosen.
    pub fn rests<'a>(&'a self, model: &Model, order: &[usize]) -> Vec<Rest<'a>> {
        self.of_kinds.iter().map(|prices| Rest::of(prices, model, order, kinds(&self.target))).collect()
    }
}

/// Looks for the prices with the highest bound: first along the slope, which is quick at the start, then exactly.
fn best(model: &Model, nodes: &Kins, kind: usize, target: [u32; KINDS]) -> Prices {
    let wanted = target.get(kind).copied().unwrap_or_default();
    let mut costs = [0.0; KINDS].map(Some);
    costs.iter_mut().skip(kind).take(1).for_each(|cost| *cost = Some(1.0));
    if kind > MISSING && target.first() == Some(&0) {
        costs.iter_mut().take(1).for_each(|cost| *cost = None);
    }
    let first = Prices { kind, rows: vec![0.0; model.needs.len()], costs, bound: 0, mix: Mix::default() };
    // Nothing can be shown of what is 0 already.
    if wanted == 0 {
        return first;
    }
    let mut climb =
        Climb { model, nodes, target, wanted: f64::from(wanted), best: first, highest: f64::NEG_INFINITY };
    let ways = climb.along_the_slope();
    climb.exactly(ways);
    let whole = (climb.highest - ROUNDING).ceil().clamp(0.0, f64::from(wanted));
    climb.best.bound = whole as u32;
    climb.best
}

struct Climb<'a> {
    model: &'a Model,
    nodes: &'a Kins,
    target: [u32; KINDS],
    wanted: f64,
    best: Prices,
    highest: f64,
}

impl Climb<'_> {
    fn is_done(&self) -> bool {
        (self.highest - ROUNDING).ceil() >= self.wanted
    }

    /// The bound at some prices; keeps the best.
    fn value(&mut self, prices: &Prices) -> Value {
        let value = value(self.model, self.nodes, prices, self.target);
        if value.sum > self.highest {
            self.highest = value.sum;
            self.best = prices.clone();
        }
        value
    }

    /// What each row needs: demands, and not to spend more than this of each earlier kind.
    fn needs(&self) -> Vec<f64> {
        let budgets = self.target.iter().take(self.best.kind).map(|most| -f64::from(*most));
        self.model.needs.iter().map(|need| f64::from(*need)).chain(budgets).collect()
    }

    /// What is given of each row.
    fn gives(&self, sums: &Sums) -> Vec<f64> {
        sums.gives.iter().copied().chain(sums.uses.iter().take(self.best.kind).map(|used| -used)).collect()
    }

    fn columns(&self, value: &Value) -> Vec<Column> {
        let column = |(block, sums): (usize, &Sums)| {
            let gives = self.gives(sums).into_iter().enumerate().filter(|(_, amount)| *amount != 0.0);
            let cost = sums.uses.get(self.best.kind).copied().unwrap_or_default();
            Column { block, cost, gives: gives.collect() }
        };
        value.blocks.iter().enumerate().map(column).collect()
    }

    /// A subgradient method with Polyak's steps; returns the ways of its last ones.
    fn along_the_slope(&mut self) -> Vec<Value> {
        let mut prices = self.best.clone();
        let mut ways: Vec<Value> = Vec::new();
        let (mut pace, mut without) = (1.5, 0);
        for _ in 0..STEPS {
            let before = self.highest;
            let value = self.value(&prices);
            if self.highest > before + ROUNDING {
                without = 0;
            } else {
                without += 1;
                if without > PATIENCE {
                    (pace, without) = (pace / 1.6, 0);
                    prices = self.best.clone();
                }
            }
            if self.is_done() {
                break;
            }
            let gives = self.gives(&value.total());
            let slack: Vec<f64> = gives.iter().zip(self.needs()).map(|(gives, need)| gives - need).collect();
            let sum = value.sum;
            ways.push(value);
            let all = prices.numbers();
            // Prices at 0 do not fall, so that they take no part in the length of a step.
            let moves =
                |(price, slack): (&f64, &f64)| if *price > 0.0 || *slack < 0.0 { slack * slack } else { 0.0 };
            let square: f64 = all.iter().zip(&slack).map(moves).sum();
            if square < 1e-12 {
                break;
            }
            let step = pace * (self.wanted - sum) / square;
            let next = all.iter().zip(&slack).map(|(price, slack)| (price - step * slack).max(0.0));
            prices.set(&next.collect::<Vec<_>>());
        }
        let kept = ways.len().saturating_sub((KEPT / self.nodes.blocks.max(1)).max(LEAST_KEPT));
        ways.split_off(kept)
    }

    /// Goes on with the duals of the program whose columns are all ways so far.
    fn exactly(&mut self, ways: Vec<Value>) {
        let uncovered = match self.best.costs.first().copied().flatten() {
            _ if self.best.kind == MISSING => Uncovered::Costs,
            Some(_) => Uncovered::Budget(self.model.needs.len()),
            None => Uncovered::No,
        };
        let penalty = 2.0 * self.wanted + 10.0;
        let mut known: Vec<Rc<Way>> = Vec::new();
        let mut master: Option<Master> = None;
        for value in ways {
            let columns = self.columns(&value);
            known.push(value.way);
            match &mut master {
                None => {
                    let demands = self.model.needs.len();
                    master = Some(Master::new(columns, &self.needs(), demands, uncovered, penalty));
                }
                Some(master) => master.add(columns, PIVOTS),
            }
        }
        let Some(mut master) = master else { return };
        for _ in 0..COLUMNS / self.nodes.blocks.clamp(1, 8) {
            let mut prices = self.best.clone();
            prices.set(&master.prices());
            let (value, at_most) = (self.value(&prices), master.value());
            if at_most - self.highest < PRECISION * at_most.max(1.0) {
                break;
            }
            let columns = self.columns(&value);
            known.push(value.way);
            master.add(columns, PIVOTS);
        }
        let mut shares: Vec<Vec<(Rc<Way>, f64)>> = vec![Vec::new(); self.nodes.blocks];
        for (column, share) in master.mix() {
            // Each way has a column for each block.
            let (way, block) = (column / self.nodes.blocks, column % self.nodes.blocks);
            if let (Some(way), Some(shares)) = (known.get(way), shares.get_mut(block)) {
                shares.push((Rc::clone(way), share));
            }
        }
        self.best.mix = Mix::new(self.nodes, shares);
    }
}

/// The bound of what is left, for a fixed order of nodes.
pub(super) struct Rest<'a> {
    prices: &'a Prices,
    target: [u32; KINDS],
    /// By node in the order, and GPU: what the GPUs from there on cost at least, if the node is not drained yet, and if
    /// it is.
    left: Vec<Vec<(f64, f64)>>,
}

impl<'a> Rest<'a> {
    fn of(prices: &'a Prices, model: &Model, order: &[usize], target: [u32; KINDS]) -> Self {
        let classes = prices.classes(model);
        let mut after = 0.0;
        let mut left: Vec<Vec<(f64, f64)>> = Vec::new();
        for node in order.iter().rev() {
            let (mut stays, mut drained) = (0.0, 0.0);
            let mut row = vec![(after, after)];
            for class in model.nodes.get(*node).into_iter().flat_map(|node| node.gpus.iter().rev()) {
                let best = classes.get(*class).copied().unwrap_or_default();
                stays += best.stays.0;
                drained += best.drained.0;
                let fresh = f64::min(stays, drained + prices.cost(DRAINED));
                row.push((after + fresh, after + drained));
            }
            after = row.last().map_or(after, |(fresh, _)| *fresh);
            row.reverse();
            left.push(row);
        }
        left.reverse();
        Self { prices, target, left }
    }

    /// Whether all ways from here on cost at least as much of this kind as the one that was found, or more of an earlier
    /// kind.
    pub fn is_no_better(
        &self,
        node: usize,
        gpu: usize,
        drained: bool,
        spent: &Cost,
        missing: &[u32],
    ) -> bool {
        let kind = self.prices.kind;
        let spent = kinds(spent);
        if spent.iter().zip(&self.target).take(kind).any(|(spent, most)| spent > most) {
            return true;
        }
        let left = self.left.get(node).and_then(|row| row.get(gpu)).copied().unwrap_or_default();
        let left = if drained { left.1 } else { left.0 };
        let mut budget = [0.0; KINDS];
        for (budget, (spent, most)) in budget.iter_mut().zip(spent.iter().zip(&self.target)) {
            *budget = f64::from(*most) - f64::from(*spent);
        }
        let so_far = f64::from(spent.get(kind).copied().unwrap_or_default());
        let most = f64::from(self.target.get(kind).copied().unwrap_or_default());
        let least =
            so_far + left + self.prices.of_missing(missing.iter().copied()) - self.prices.of_budget(budget);
        (least - ROUNDING).ceil() >= most
    }
}
