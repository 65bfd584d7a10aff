//! A library for `LD_PRELOAD` that kills `gpufleet` with SIGKILL at an exact record of its journal.
//!
//! It replaces libc's calls that write files, and acts only on the file `journal.jsonl`. `CRASH_AT` is the number of
//! the record, counted from 1 over what this process writes; `CRASH_HOW` is `before`, `after` or `torn:BYTES`
//! (see [`plan::How`]). In any other program, and without both variables, every call is passed on. The program under
//! test has no hook for this and cannot notice it.
//!
//! Nothing here may allocate, lock or write through the standard library: it runs inside another program's `write`.

pub mod plan;

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use plan::How;

/// File name of the program that is killed.
const PROGRAM: &[u8] = b"gpufleet";
const JOURNAL: &[u8] = b"/journal.jsonl";

const UNKNOWN: u8 = 0;
const IDLE: u8 = 1;
const ARMED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static RECORDS: AtomicUsize = AtomicUsize::new(0);

/// Whether this process is to be killed.
fn armed() -> bool {
    match STATE.load(Ordering::Acquire) {
        UNKNOWN => {
            let armed = order().is_some() && is_program();
            STATE.store(if armed { ARMED } else { IDLE }, Ordering::Release);
            armed
        }
        state => state == ARMED,
    }
}

fn order() -> Option<(usize, How)> {
    let at = plan::number(variable(c"CRASH_AT")?)?;
    Some((at, How::parse(variable(c"CRASH_HOW")?)?))
}

fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends in a zero byte; the text lives as long as the environment, which this program does not change.
    unsafe {
        let text = libc::getenv(name.as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text).to_bytes())
    }
}

fn is_program() -> bool {
    let mut place = [0_u8; 4096];
    let exe = link(c"/proc/self/exe", &mut place);
    exe.rsplit(|byte| *byte == b'/').next() == Some(PROGRAM)
}

fn link<'a>(path: &CStr, place: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the path ends in a zero byte; no more is written than the place has.
    let length = unsafe { libc::readlink(path.as_ptr(), place.as_mut_ptr().cast(), place.len()) };
    place.get(..usize::try_from(length).unwrap_or(0)).unwrap_or_default()
}

/// Whether a descriptor is the journal's.
fn is_journal(fd: c_int) -> bool {
    let Ok(mut number) = u32::try_from(fd) else { return false };
    // `/proc/self/fd/N` without an allocation: the digits are written from the end.
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = 1;
    while number >= 10_u32.pow(digits) && digits < 10 {
        digits += 1;
    }
    for place in (0..digits as usize).rev() {
        path[14 + place] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    let mut place = [0_u8; 4096];
    link(path, &mut place).ends_with(JOURNAL)
}

/// Writes with the kernel's own call, as much as possible. `None` means the file's current position.
fn put(fd: c_int, bytes: &[u8], offset: Option<i64>) -> isize {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the slice is valid for its length.
        let count = unsafe {
            match offset {
                None => libc::syscall(libc::SYS_write, fd, rest.as_ptr(), rest.len()),
                Some(at) => {
                    libc::syscall(libc::SYS_pwrite64, fd, rest.as_ptr(), rest.len(), at + done as i64)
                }
            }
        };
        match usize::try_from(count) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(_) if done == 0 => return -1,
            Err(_) => break,
        }
    }
    done as isize
}

/// Writes a piece of the journal, or the part before the crash, and then dies.
fn journal(fd: c_int, piece: &[u8], offset: Option<i64>) -> isize {
    let written = RECORDS.load(Ordering::Acquire);
    if let Some((at, how)) = order()
        && let Some(bytes) = plan::last_bytes(piece, written, at, how)
    {
        put(fd, piece.get(..bytes).unwrap_or_default(), offset);
        die();
    }
    let done = put(fd, piece, offset);
    let whole = piece.get(..usize::try_from(done).unwrap_or(0)).unwrap_or_default();
    RECORDS.fetch_add(plan::records(whole), Ordering::AcqRel);
    done
}

fn die() -> ! {
    // SAFETY: plain calls; the process ends with the first.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        loop {
            libc::pause();
        }
    }
}

/// Replaces `write(2)`.
///
/// # Safety
/// As libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    if armed() && count > 0 && is_journal(fd) {
        // SAFETY: the caller's contract.
        return journal(fd, unsafe { std::slice::from_raw_parts(bytes.cast(), count) }, None);
    }
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_write, fd, bytes, count) as isize }
}

/// Replaces `pwrite64(2)`.
///
/// # Safety
/// As libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, count: usize, offset: i64) -> isize {
    if armed() && count > 0 && is_journal(fd) {
        // SAFETY: the caller's contract.
        return journal(fd, unsafe { std::slice::from_raw_parts(bytes.cast(), count) }, Some(offset));
    }
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes, count, offset) as isize }
}

/// Replaces `writev(2)`. For the journal only the first non-empty part is written, which the call may do.
///
/// # Safety
/// As libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    if armed() && is_journal(fd) {
        // SAFETY: the caller's contract.
        let parts = unsafe { std::slice::from_raw_parts(parts, usize::try_from(count).unwrap_or(0)) };
        if let Some(part) = parts.iter().find(|part| part.iov_len > 0) {
            // SAFETY: the caller's contract.
            let piece = unsafe { std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) };
            return journal(fd, piece, None);
        }
    }
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_writev, fd, parts, count) as isize }
}
