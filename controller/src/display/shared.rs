//! Groups equal things of many nodes.

use std::{collections::HashMap, hash::Hash};

/// Things with the nodes that share them, in the order of their first occurrence.
pub(super) struct Shared<'a, T>(HashMap<T, (usize, Vec<&'a str>)>);

impl<T> Default for Shared<'_, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<'a, T: Eq + Hash> Shared<'a, T> {
    pub(super) fn add(&mut self, thing: T, host: &'a str) {
        let next = self.0.len();
        let (_, hosts) = self.0.entry(thing).or_insert((next, Vec::new()));
        // The same thing twice from one node counts once.
        if hosts.last() != Some(&host) {
            hosts.push(host);
        }
    }

    pub(super) fn in_order(self) -> Vec<(T, Vec<&'a str>)> {
        let mut all: Vec<_> = self.0.into_iter().collect();
        all.sort_by_key(|(_, (place, _))| *place);
        all.into_iter().map(|(thing, (_, hosts))| (thing, hosts)).collect()
    }
}
