//! Keeps what the helper holds in memory, such as secrets of tasks, out of core dumps and debuggers.
//!
//! Programs of tasks get back the limit that the helper itself was started with.

use std::sync::OnceLock;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

static GIVEN: OnceLock<Rlimit> = OnceLock::new();

/// Forbids dumps of this process, and that others of its user trace it.
pub fn forbid() {
    let given = getrlimit(Resource::Core);
    let _ = GIVEN.set(given);
    // Why failures do not count: it is a second line, and no task depends on it.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..given });
    stay_closed();
}

/// Forbids it anew: the kernel decides again whenever a thread changes whom it acts as.
pub fn stay_closed() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// The limit for programs of tasks; none before [`forbid`].
pub fn given() -> Option<Rlimit> {
    GIVEN.get().copied()
}
