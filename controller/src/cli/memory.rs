//! What this process holds in memory: kept from others (passwords, keys, decrypted variables), and given back when it is freed.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// Leaves no core dump behind and lets no other process of the same user look inside (`ptrace`, `/proc/PID/mem`). Root
/// can still. Programs that this one starts are not concerned, but for the soft limit of their core dumps.
pub fn hide() {
    let limit = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
    // Why go on: a kernel that refuses this leaves us where every other program is.
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::warn!(%error, "core dumps cannot be switched off");
    }
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "this process cannot be made untraceable");
    }
}

/// Has the memory of large texts go back to the machine when they are freed.
///
/// Why: glibc keeps blocks of up to 32 MiB for later once it saw one of that size, for each thread its own. What fifty nodes
/// say would stay resident twice over.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 1 << 20;
        #[expect(unsafe_code, reason = "the C library's only way to say so; it touches no memory of ours")]
        // SAFETY: a number is set under a lock of the allocator.
        let taken = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
        if taken == 0 {
            tracing::warn!("the C library keeps freed memory: it takes no threshold");
        }
    }
}

/// Gives back what was freed in small blocks, after work that needed many of them: glibc keeps these for the thread that had
/// them, and the next such work may be another thread's.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(
            unsafe_code,
            reason = "the C library's only way to say so; it touches no memory that is in use"
        )]
        // SAFETY: it takes the locks of the allocator, and no pointer of ours.
        let _given_back = unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn nothing_is_dumped_and_nobody_looks_inside() {
        hide();
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
