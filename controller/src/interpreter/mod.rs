//! What one host does next: the pure core that walks a play.
//!
//! Owns the order of tasks on a host: blocks, loops, handlers, conditions, results, GPU groups, the ledger of what was
//! declared, and its verification. Must not know connections, clocks, other hosts or the fleet's limits. Invariants:
//! the same cursor fed the same results gives the same steps (a run is resumed by replay); predicting and applying
//! are one code path that differs in the mode of its operations; every operation is asked for once, answered once; a
//! reset or reboot is followed by what the play declared before it.

mod action;
mod arguments;
mod check_files;
mod cursor;
mod facts;
mod files;
mod guard;
mod intervening;
mod ledger;
mod mig_config;
mod outside;
mod placing;
mod prepare;
mod snapshots;
mod var_files;

pub use action::{Action, BlobNeed, FetchFile, Job, Mode, OpId, Phase, RunAs, Terms, Work};
pub use check_files::{check_files, template_texts};
pub(crate) use cursor::for_all;
pub use cursor::{Copied, Cursor, End, EndState, Fed, HostContext, HostVars, Position, Step};
pub use facts::fact_vars;
pub use files::{CachedFiles, FileContent, FileKind, Files, TreeFile};
pub use outside::Machine;
pub use snapshots::{DelegatedFacts, HostSnapshots};

#[cfg(test)]
pub(crate) mod tests;
