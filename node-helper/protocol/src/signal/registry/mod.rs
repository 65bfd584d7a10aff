//! The registry of signals: name, scope, unit and source of each, as data.

mod gpu;
mod network;
mod node;

use crate::Unit;

/// What a signal is read of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Node,
    Gpu,
    Disk,
    /// A port of an RDMA device.
    Port,
}

/// One signal.
#[derive(Debug)]
pub struct SignalInfo {
    pub name: &'static str,
    pub scope: Scope,
    pub unit: Option<Unit>,
    /// One sentence: what it is, and what it is read from.
    pub source: &'static str,
}

/// Every signal, those of the node first.
pub static SIGNALS: &[&[SignalInfo]] = &[node::SIGNALS, gpu::SIGNALS, network::SIGNALS];

impl SignalInfo {
    /// Returns the signal with this name and scope.
    pub fn of(scope: Scope, name: &str) -> Option<&'static Self> {
        SIGNALS.iter().copied().flatten().find(|info| info.scope == scope && info.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_stands_once() {
        let mut seen = std::collections::HashSet::new();
        for info in SIGNALS.iter().copied().flatten() {
            assert!(seen.insert(info.name), "{}", info.name);
            assert!(info.source.ends_with('.'), "{}", info.name);
        }
    }
}
