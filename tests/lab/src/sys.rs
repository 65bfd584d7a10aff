//! The few system calls that have no safe wrapper: namespaces and waiting for signals.
#![expect(unsafe_code, reason = "unshare, sigwaitinfo and waitpid(-1) have no safe form")]

use rustix::thread::UnshareFlags;

/// Moves this process into new namespaces. The process must have one thread only.
pub fn unshare(flags: UnshareFlags) -> std::io::Result<()> {
    // SAFETY: called before any thread is started; no file descriptor table is unshared.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Blocks signals for this thread and all that it starts, so that [`wait_signal`] can receive them.
pub fn block(signals: &[i32]) {
    let set = set_of(signals);
    // SAFETY: the set is initialised; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits for one of the blocked signals and returns it.
pub fn wait_signal(signals: &[i32]) -> i32 {
    let set = set_of(signals);
    loop {
        // SAFETY: the set is initialised; the details are not asked for.
        let signal = unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) };
        if signal > 0 {
            return signal;
        }
    }
}

/// Waits like [`wait_signal`], at most this long.
pub fn wait_signal_for(signals: &[i32], limit: std::time::Duration) -> Option<i32> {
    let set = set_of(signals);
    let limit =
        libc::timespec { tv_sec: limit.as_secs() as libc::time_t, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: set and limit are initialised; the details are not asked for.
    let signal = unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const limit) };
    (signal > 0).then_some(signal)
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set before anything reads it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Collects one dead child, if there is any. Returns its process id and its wait status.
pub fn reap() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status is a valid place.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Makes a command start with these resource limits, soft and hard alike.
pub fn limited(
    command: &mut std::process::Command,
    limits: Vec<(libc::__rlimit_resource_t, libc::rlim_t)>,
) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec only setrlimit is called, which is a system call and nothing more.
    unsafe {
        command.pre_exec(move || {
            for (resource, limit) in &limits {
                let both = libc::rlimit { rlim_cur: *limit, rlim_max: *limit };
                libc::setrlimit(*resource, &raw const both);
            }
            Ok(())
        })
    }
}

/// Makes a command start with no signal blocked, whatever this thread blocks.
pub fn unblocked(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec only sigemptyset and sigprocmask are called, which are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let none = set_of(&[]);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            Ok(())
        })
    }
}
