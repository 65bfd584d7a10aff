//! Makes one way of a mix of ways.
//!
//! Most nodes do the same in all ways of a mix, or nearly all: a program with few rows has few ways in its mix. Where they
//! differ, each node and GPU takes its part from the way that keeps the sums so far closest to those of the mix, so that
//! the whole is off by what a single node or GPU does.

use super::{
    bound::Mix,
    model::{Model, Pick},
};

/// Sums of what matters: every row, by its worth, and what is destroyed.
struct Sums {
    worth: Vec<f64>,
    /// By row, then what is destroyed: what was taken, less what the mix has.
    off: Vec<f64>,
}

impl Sums {
    fn add(off: &mut [f64], pick: &Pick, share: f64) {
        for (row, amount) in &pick.gives {
            off.iter_mut().skip(*row).take(1).for_each(|off| *off += share * f64::from(*amount));
        }
        off.iter_mut().rev().take(1).for_each(|off| *off += share * f64::from(pick.destroyed));
    }

    /// How far the sums are off with one more pick.
    fn with(&self, pick: &Pick) -> f64 {
        let mut off = self.off.clone();
        Self::add(&mut off, pick, 1.0);
        off.iter().zip(&self.worth).map(|(off, worth)| (off * worth).powi(2)).sum()
    }
}

/// Returns the pick of each GPU of each node.
pub(super) fn round(model: &Model, mix: &Mix, worth: &[f64]) -> Vec<Vec<usize>> {
    let mut taken: Vec<Vec<usize>> = model.nodes.iter().map(|node| vec![0; node.gpus.len()]).collect();
    let most = worth.iter().copied().fold(0.0, f64::max).max(1e-9);
    let worth = worth.iter().map(|worth| (worth / most).max(1e-3)).chain([1.0]).collect();
    let mut sums = Sums { worth, off: vec![0.0; model.needs.len() + 1] };
    let drained = |node: usize| -> f64 {
        mix.ways(node).iter().filter(|(way, _)| way.drains(node)).map(|(_, share)| share).sum()
    };
    let mut order: Vec<(bool, usize)> =
        (0..model.nodes.len()).map(|node| (!(1e-6..1.0 - 1e-6).contains(&drained(node)), node)).collect();
    // Those that are certain first: there is no choice that could make up for them.
    order.sort_by_key(|(certain, node)| (!certain, *node));
    let mut off_drained = 0.0;
    for (_, node) in order {
        let share = drained(node);
        let drains = off_drained + share >= 0.5;
        off_drained += share - f64::from(u8::from(drains));
        let Some(of) = model.nodes.get(node) else { continue };
        for (gpu, class) in of.gpus.iter().enumerate() {
            let mut candidates: Vec<usize> = Vec::new();
            for (way, share) in mix.ways(node) {
                let drained = way.drains(node);
                let at = way.pick(*class, drained);
                if let Some(pick) = model.pick(*class, at) {
                    Sums::add(&mut sums.off, pick, -share);
                }
                if drained == drains && !candidates.contains(&at) {
                    candidates.push(at);
                }
            }
            let off = |at: &usize| model.pick(*class, *at).map_or(f64::INFINITY, |pick| sums.with(pick));
            let best = candidates.iter().copied().min_by(|one, other| off(one).total_cmp(&off(other)));
            let best = best.unwrap_or_default();
            if let Some(pick) = model.pick(*class, best) {
                Sums::add(&mut sums.off, pick, 1.0);
            }
            taken
                .iter_mut()
                .skip(node)
                .take(1)
                .flat_map(|gpus| gpus.iter_mut().skip(gpu).take(1))
                .for_each(|taken| *taken = best);
        }
    }
    taken
}
