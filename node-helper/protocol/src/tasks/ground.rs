//! What a kind that tunes the operating system reads and writes, and who else writes it.

use super::Kind;

/// The facts about such a kind. There are no defaults: a kind that leaves an answer out does not compile.
#[derive(Debug)]
pub struct Ground {
    /// Files and programs that it reads.
    pub reads: &'static [&'static str],
    pub writes: &'static [&'static str],
    pub takes_effect: &'static str,
    /// What outlives a reboot, an update and the like, and what does not.
    pub survives: &'static str,
    /// Who else writes the same thing, and who wins.
    pub owners: &'static [&'static str],
    pub source: &'static str,
}

/// A kind that tunes the operating system.
pub trait GroundKind: Kind {
    const GROUND: Ground;
}
