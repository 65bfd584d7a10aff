//! What the GPUs of a node are to pods, as the node itself tells.
//!
//! Owns the count alone. Must not know names at a scheduler. Invariant: what the node could not tell is never counted as none.

use std::collections::BTreeMap;

use gpufleet_protocol::facts::{GpuSystem, GpuSystemState};

/// The GPUs of a node, and what they are divided into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuOffer {
    /// GPUs that are not divided.
    pub whole: u64,
    /// GPUs under MIG, with or without instances.
    pub divided: u64,
    /// MIG instances, by profile such as `1g.10gb`.
    pub instances: BTreeMap<String, u64>,
    /// Instances are divided once more, or not usable yet: what becomes of them is not known.
    pub more: bool,
}

impl GpuOffer {
    /// `None` where the node could not read all of its GPUs.
    pub fn of(system: &GpuSystem) -> Option<Self> {
        match system.state {
            GpuSystemState::Ok => {}
            GpuSystemState::NoGpu => return Some(Self::default()),
            _ => return None,
        }
        let mut offer = Self::default();
        for gpu in &system.gpus {
            if gpu.mig_current != Some(true) {
                offer.whole += 1;
                continue;
            }
            offer.divided += 1;
            for instance in &gpu.mig_layout {
                *offer.instances.entry(instance.profile.clone()).or_default() += 1;
                offer.more |= instance.compute_instances != 1;
            }
        }
        Some(offer)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::facts::{GpuFacts, MigInstance};

    use super::*;

    #[test]
    fn instances_count_by_profile() {
        let instance = |profile: &str, compute_instances| MigInstance {
            profile: profile.to_owned(),
            start: 0,
            size: 1,
            id: 1,
            compute_instances,
        };
        let gpu = |mig, mig_layout| GpuFacts { mig_current: Some(mig), mig_layout, ..GpuFacts::default() };
        let seven = || vec![instance("1g.10gb", 1); 7];
        let mut system = GpuSystem {
            state: GpuSystemState::Ok,
            gpus: vec![gpu(true, seven()), gpu(true, seven()), gpu(true, Vec::new()), gpu(false, Vec::new())],
            ..GpuSystem::default()
        };
        let mut offer =
            GpuOffer { whole: 1, divided: 3, instances: [("1g.10gb".to_owned(), 14)].into(), more: false };
        assert_eq!(GpuOffer::of(&system).as_ref(), Some(&offer));
        system.gpus[2].mig_layout = vec![instance("3g.40gb", 3)];
        offer.instances.insert("3g.40gb".to_owned(), 1);
        offer.more = true;
        assert_eq!(GpuOffer::of(&system), Some(offer));
        system.state = GpuSystemState::Hung { detail: String::new() };
        assert_eq!(GpuOffer::of(&system), None);
    }
}
