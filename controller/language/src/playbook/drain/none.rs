//! `drain: none`.

use super::setting::Block;
use super::{DrainBlock, DrainerInfo, Login};

/// Nobody keeps work off: GPU processes and open device files decide alone whether a node is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoDrain;

impl DrainBlock for NoDrain {
    const INFO: DrainerInfo = DrainerInfo {
        word: "none",
        scheduler: None,
        summary: "Asks no scheduler: a node with work on its GPUs is held.",
        example: "drain: none",
        mistaken: &[],
        program: None,
        has_labels: false,
        reboots: false,
        settings: &[],
    };

    fn read(_block: &mut Block<'_, '_>) -> Option<Self> {
        Some(Self)
    }

    fn login(&self) -> Option<&Login> {
        None
    }

    fn worst_case_s(&self) -> u64 {
        0
    }

    fn fingerprint(&self) -> Vec<String> {
        Vec::new()
    }
}
