//! Keeps the helper's memory, which holds secrets of tasks, out of core dumps and debuggers.
//!
//! Programs of tasks get the limit back that the helper was started with.

use std::sync::OnceLock;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

static GIVEN: OnceLock<Rlimit> = OnceLock::new();

/// Forbids core dumps of this process, and tracing by other processes of its user.
pub fn forbid() {
    let given = getrlimit(Resource::Core);
    let _ = GIVEN.set(given);
    // Failures are ignored: this is a second line of defence, and no task depends on it.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..given });
    stay_closed();
}

/// Forbids them again: the kernel resets the setting whenever a thread changes its user.
pub fn stay_closed() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Returns the core limit for programs of tasks; `None` before [`forbid`].
pub fn given() -> Option<Rlimit> {
    GIVEN.get().copied()
}
