//! What a GPU kind reads and writes, and how long what it writes lasts.

use super::super::Kind;

/// Whether a value is still there after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    Yes,
    No,
    /// No source says it. A run reads it again after the event and sets it where it is gone.
    Unsaid,
    /// Depends on something, which the text says.
    Partly(&'static str),
}

impl std::fmt::Display for Lasts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unsaid => "not documented, set again",
            Self::Partly(text) => text,
        })
    }
}

/// Something that is widely believed and not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    pub believed: &'static str,
    pub fact: &'static str,
}

/// The hardware facts of a GPU kind. There are no defaults: a kind that leaves an answer out does not compile.
#[derive(Debug)]
pub struct Hardware {
    /// Functions of NVML, commands and files.
    pub reads: &'static [&'static str],
    pub writes: &'static [&'static str],
    pub takes_effect: &'static str,
    pub survives_reset: Lasts,
    /// The end of the last client of a GPU without persistence.
    pub survives_last_client: Lasts,
    pub survives_reload: Lasts,
    pub survives_reboot: Lasts,
    pub architectures: &'static str,
    pub source: &'static str,
    pub beliefs: &'static [Belief],
}

/// A kind that declares the state of GPUs.
pub trait GpuKind: Kind {
    const HARDWARE: Hardware;
}
