//! The linear program whose duals are the best prices: which mix of ways covers all rows at the least cost.
//!
//! Dantzig and Wolfe's master. Nodes in the same scopes are a block; a column is what a block gives and costs at some
//! prices, and the shares of a block's columns add up to 1. There is a row for each demand, each earlier kind of cost and
//! each block, so that a dense basis of a few dozen rows is all it needs. Its numbers guide and prove nothing: the bound
//! is computed from the prices, and holds for any.

/// What a block does at some prices: what it costs, and how much it gives of the rows of which it gives something.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub block: usize,
    pub cost: f64,
    pub gives: Vec<(usize, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    Column(usize),
    /// What a row has too much.
    Surplus(usize),
    /// What is left uncovered of a row, where that has a cost or a budget.
    Uncovered(usize),
    /// What a row lacks, which must not be.
    Lack(usize),
}

/// How rows may stay uncovered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Uncovered {
    No,
    /// Each unit costs 1.
    Costs,
    /// Each unit takes 1 from the budget that is this row.
    Budget(usize),
}

/// Smallest number that is not taken for 0.
const TINY: f64 = 1e-9;

#[derive(Clone, Debug)]
pub(super) struct Master {
    columns: Vec<Column>,
    rows: usize,
    /// How many of the rows are demands.
    demands: usize,
    uncovered: Uncovered,
    penalty: f64,
    basis: Vec<Variable>,
    /// Of the basis; its last rows are the blocks.
    inverse: Vec<Vec<f64>>,
    values: Vec<f64>,
}

fn add(cells: &mut [f64], at: usize, amount: f64) {
    cells.iter_mut().skip(at).take(1).for_each(|cell| *cell += amount);
}

fn at(cells: &[f64], at: usize) -> f64 {
    cells.get(at).copied().unwrap_or_default()
}

impl Master {
    /// The program of one column for each block, in their order. `needs` has what each row needs: demands, then budgets.
    pub fn new(
        first: Vec<Column>,
        needs: &[f64],
        demands: usize,
        uncovered: Uncovered,
        penalty: f64,
    ) -> Self {
        let (rows, size) = (needs.len(), needs.len() + first.len());
        let mut left = needs.to_vec();
        for (row, amount) in first.iter().flat_map(|column| &column.gives) {
            add(&mut left, *row, -amount);
        }
        let mut basis = Vec::new();
        let mut inverse = Vec::new();
        let mut values = Vec::new();
        for (row, left) in left.iter().enumerate() {
            let lacks = *left > 0.0;
            let sign = if lacks { 1.0 } else { -1.0 };
            basis.push(if lacks { Variable::Lack(row) } else { Variable::Surplus(row) });
            let mut line = vec![0.0; size];
            add(&mut line, row, sign);
            for column in &first {
                let given: f64 =
                    column.gives.iter().filter(|(of, _)| *of == row).map(|(_, given)| given).sum();
                add(&mut line, rows + column.block, -given * sign);
            }
            inverse.push(line);
            values.push(left.abs());
        }
        for block in 0..first.len() {
            basis.push(Variable::Column(block));
            let mut line = vec![0.0; size];
            add(&mut line, rows + block, 1.0);
            inverse.push(line);
            values.push(1.0);
        }
        Self { columns: first, rows, demands, uncovered, penalty, basis, inverse, values }
    }

    /// Adds columns, and finds the best mix again; with at most so many changes of the basis.
    pub fn add(&mut self, columns: Vec<Column>, most: usize) {
        self.columns.extend(columns);
        for _ in 0..most {
            let duals = self.duals();
            let Some(entering) = self.entering(&duals) else { break };
            if !self.pivot(entering) {
                break;
            }
        }
    }

    fn cost(&self, variable: Variable) -> f64 {
        match variable {
            Variable::Column(at) => self.columns.get(at).map_or(0.0, |column| column.cost),
            Variable::Surplus(_) => 0.0,
            Variable::Uncovered(_) => f64::from(u8::from(self.uncovered == Uncovered::Costs)),
            Variable::Lack(_) => self.penalty,
        }
    }

    fn duals(&self) -> Vec<f64> {
        let mut duals = vec![0.0; self.inverse.len()];
        for (variable, line) in self.basis.iter().zip(&self.inverse) {
            let cost = self.cost(*variable);
            if cost != 0.0 {
                duals.iter_mut().zip(line).for_each(|(dual, cell)| *dual += cost * cell);
            }
        }
        duals
    }

    /// By row: what one more of it costs.
    pub fn prices(&self) -> Vec<f64> {
        self.duals().into_iter().take(self.rows).map(|dual| dual.max(0.0)).collect()
    }

    /// What the best mix costs.
    pub fn value(&self) -> f64 {
        self.basis.iter().zip(&self.values).map(|(variable, value)| self.cost(*variable) * value).sum()
    }

    /// The columns of the best mix, with their shares of their blocks.
    pub fn mix(&self) -> Vec<(usize, f64)> {
        let shares = self.basis.iter().zip(&self.values).filter_map(|(variable, value)| match variable {
            Variable::Column(at) if *value > TINY => Some((*at, *value)),
            _ => None,
        });
        let mut mix: Vec<(usize, f64)> = shares.collect();
        mix.sort_by_key(|(at, _)| *at);
        mix
    }

    /// The variable that improves most for each unit of it.
    fn entering(&self, duals: &[f64]) -> Option<Variable> {
        let columns = self.columns.iter().enumerate().map(|(place, column)| {
            let given: f64 = column.gives.iter().map(|(row, amount)| at(duals, *row) * amount).sum();
            (Variable::Column(place), column.cost - given - at(duals, self.rows + column.block))
        });
        let surplus = (0..self.rows).map(|row| (Variable::Surplus(row), at(duals, row)));
        let uncovered = (0..self.demands).filter_map(|row| {
            let cost = match self.uncovered {
                Uncovered::No => return None,
                Uncovered::Costs => 1.0,
                Uncovered::Budget(budget) => at(duals, budget),
            };
            Some((Variable::Uncovered(row), cost - at(duals, row)))
        });
        let best = columns.chain(surplus).chain(uncovered).min_by(|one, other| one.1.total_cmp(&other.1))?;
        (best.1 < -1e-7).then_some(best.0)
    }

    fn column_of(&self, variable: Variable) -> Vec<(usize, f64)> {
        match variable {
            Variable::Column(at) => {
                let Some(column) = self.columns.get(at) else { return Vec::new() };
                column.gives.iter().copied().chain([(self.rows + column.block, 1.0)]).collect()
            }
            Variable::Surplus(row) => vec![(row, -1.0)],
            Variable::Uncovered(row) => match self.uncovered {
                Uncovered::Budget(budget) => vec![(row, 1.0), (budget, -1.0)],
                Uncovered::No | Uncovered::Costs => vec![(row, 1.0)],
            },
            Variable::Lack(row) => vec![(row, 1.0)],
        }
    }

    fn pivot(&mut self, entering: Variable) -> bool {
        let column = self.column_of(entering);
        let times = |line: &Vec<f64>| column.iter().map(|(place, amount)| at(line, *place) * amount).sum();
        let direction: Vec<f64> = self.inverse.iter().map(times).collect();
        let ratios = direction
            .iter()
            .zip(&self.values)
            .enumerate()
            .filter(|(_, (step, _))| **step > TINY)
            .map(|(at, (step, value))| (at, value / step));
        let Some((leaving, step)) = ratios.min_by(|one, other| one.1.total_cmp(&other.1)) else {
            return false;
        };
        let pivot = at(&direction, leaving);
        let line: Vec<f64> =
            self.inverse.get(leaving).into_iter().flatten().map(|cell| cell / pivot).collect();
        for (place, ((own, value), factor)) in
            self.inverse.iter_mut().zip(&mut self.values).zip(&direction).enumerate()
        {
            if place == leaving {
                own.clone_from(&line);
                *value = step;
            } else if *factor != 0.0 {
                own.iter_mut().zip(&line).for_each(|(cell, other)| *cell -= factor * other);
                *value = (*value - factor * step).max(0.0);
            }
        }
        self.basis.iter_mut().skip(leaving).take(1).for_each(|variable| *variable = entering);
        true
    }
}
