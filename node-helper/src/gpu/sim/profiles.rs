//! MIG profiles of simulated GPUs.

use gpufleet_protocol::nvml::{MigProfile, Placement};

/// The profiles of an H100 80GB, as measured.
pub fn h100() -> Vec<MigProfile> {
    let profile = |id, name: &str, slices, max_count, size, starts: &[u32]| MigProfile {
        id,
        name: name.to_owned(),
        slices,
        max_count,
        memory_mib: u64::from(size) * 9984,
        placements: Ok(starts.iter().map(|start| Placement { start: *start, size }).collect()),
    };
    vec![
        profile(19, "1g.10gb", 1, 7, 1, &[0, 1, 2, 3, 4, 5, 6]),
        profile(20, "1g.10gb+me", 1, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
        profile(15, "1g.20gb", 1, 4, 2, &[0, 2, 4, 6]),
        profile(14, "2g.20gb", 2, 3, 2, &[0, 2, 4]),
        profile(9, "3g.40gb", 3, 2, 4, &[0, 4]),
        profile(5, "4g.40gb", 4, 1, 4, &[0]),
        profile(0, "7g.80gb", 7, 1, 8, &[0]),
    ]
}
