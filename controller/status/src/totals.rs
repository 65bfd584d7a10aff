//! How many GPUs there are, in which state, and what is free.

use std::collections::BTreeMap;

use crate::{
    row::Row,
    state::{State, busy, free_slices},
};

/// What is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeGpus {
    /// GPUs for one job alone.
    pub whole: usize,
    /// MIG instances by profile.
    pub mig: BTreeMap<String, usize>,
    /// GPUs that an MPS daemon shares.
    pub mps: usize,
}

impl FreeGpus {
    pub fn add(&mut self, row: &Row) {
        let Some(now) = row.now.as_ref().filter(|_| row.state.has_room()) else { return };
        match now.instances.is_empty() {
            true if row.mps => self.mps += 1,
            true => self.whole += 1,
            false => {
                for profile in free_slices(now) {
                    *self.mig.entry(profile.to_owned()).or_default() += 1;
                }
            }
        }
    }

    /// Whether anything is.
    pub fn is_any(&self) -> bool {
        self.whole > 0 || self.mps > 0 || !self.mig.is_empty()
    }

    /// Returns `37 whole, 12 MIG 1g.10gb, 3 MPS`.
    pub fn text(&self) -> String {
        let mut words = Vec::new();
        if self.whole > 0 {
            words.push(format!("{} whole", self.whole));
        }
        words.extend(self.mig.iter().map(|(profile, count)| format!("{count} MIG {profile}")));
        if self.mps > 0 {
            words.push(format!("{} MPS", self.mps));
        }
        if words.is_empty() { "none".to_owned() } else { words.join(", ") }
    }
}

/// What all rows come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    pub nodes: usize,
    pub gpus: usize,
    states: BTreeMap<State, usize>,
    /// Nodes of which not every GPU could be read.
    unread: usize,
    pub free: FreeGpus,
    /// Sums of what is known: watts, and tenths of a percent with the number of GPUs that tell.
    watts: f64,
    permille: f64,
    telling: usize,
}

impl Totals {
    pub fn add(&mut self, row: &Row) {
        self.free.add(row);
        let Some(now) = &row.now else {
            self.unread += usize::from(row.state == State::Unknown);
            return;
        };
        self.gpus += 1;
        *self.states.entry(row.state).or_default() += 1;
        if row.state == State::Unknown {
            return;
        }
        self.watts += row.number("power_draw_w").unwrap_or(0.0);
        if let Some(busy) = busy(now) {
            self.permille += f64::from(busy.permille);
            self.telling += 1;
        }
    }

    pub fn of<'a>(rows: impl IntoIterator<Item = &'a Row>, nodes: usize) -> Self {
        let mut totals = Self { nodes, ..Self::default() };
        rows.into_iter().for_each(|row| totals.add(row));
        totals
    }

    /// Returns how busy the GPUs were that tell, in percent.
    pub fn mean_percent(&self) -> Option<f64> {
        (self.telling > 0).then(|| self.permille / 10.0 / self.telling as f64)
    }

    /// Returns the power of all GPUs that tell.
    pub fn watts(&self) -> Option<f64> {
        (self.watts > 0.0).then_some(self.watts)
    }

    /// Returns `8 nodes (1 unknown), 56 GPUs: 31 busy, 25 free; 71 % busy, 31.2 kW`.
    pub fn text(&self) -> String {
        let count =
            |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
        let states: Vec<String> =
            self.states.iter().map(|(state, count)| format!("{count} {}", state.word())).collect();
        let mut text = count(self.nodes, "node");
        if self.unread > 0 {
            text.push_str(&format!(" ({} unknown)", self.unread));
        }
        text.push_str(&format!(", {}", count(self.gpus, "GPU")));
        if !states.is_empty() {
            text.push_str(&format!(": {}", states.join(", ")));
        }
        if let Some(percent) = self.mean_percent() {
            text.push_str(&format!("; {percent:.0} % busy"));
        }
        if let Some(watts) = self.watts() {
            text.push_str(&match watts >= 10_000.0 {
                true => format!(", {:.1} kW", watts / 1000.0),
                false => format!(", {watts:.0} W"),
            });
        }
        text
    }
}

/// Returns what is free in each group that does not have all of the rows, in the order of their names.
pub fn free_by_group<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<(String, FreeGpus)> {
    let mut groups: BTreeMap<&str, (usize, FreeGpus)> = BTreeMap::new();
    let mut all = 0;
    for row in rows {
        all += 1;
        for group in row.groups.iter() {
            let (members, free) = groups.entry(group).or_default();
            *members += 1;
            free.add(row);
        }
    }
    let parts = groups.into_iter().filter(|(_, (members, _))| *members < all);
    parts.map(|(group, (_, free))| (group.to_owned(), free)).collect()
}
