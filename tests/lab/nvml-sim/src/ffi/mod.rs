//! NVML's C interface over the machine of this process' node.
//!
//! Owns the exported symbols and what they share: the session, the handles, the faults and the checks before each
//! call. Every function checks in the same order (initialised, fault, device present) before its body. No argument
//! may cause a panic.

mod devices;
mod fields;
mod geometry;
mod handles;
mod instances;
mod readings;
mod recorded;
mod session;
mod setters;
mod stubs;
mod system;

use std::ffi::{c_char, c_uint};

use crate::transitions::code;

pub use session::suffer;

/// The result of a body: nothing, or an NVML return code.
type Answer = Result<(), u32>;

/// Writes a result through a caller's pointer.
///
/// # Safety
/// `out` is null or valid for one `T`.
unsafe fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise; the pointer is not null.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a text with its final zero into a caller's buffer of `length` bytes.
///
/// # Safety
/// `out` is null or valid for `length` bytes.
unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Answer {
    if out.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the buffer holds `length` bytes, of which text and zero need at most that many.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list through a count and an array, like most lists of NVML: if the count is too small, the needed one is
/// returned.
///
/// # Safety
/// `count` is null or valid; `out` is null or valid for `*count` items.
unsafe fn put_list<T: Copy>(count: *mut c_uint, out: *mut T, items: &[T]) -> Answer {
    if count.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: checked for null above; the caller's promise for the rest.
    unsafe {
        let room = count.read();
        count.write(items.len() as c_uint);
        if items.is_empty() {
            return Ok(());
        }
        if (room as usize) < items.len() {
            return Err(code::INSUFFICIENT_SIZE);
        }
        if out.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        std::ptr::copy_nonoverlapping(items.as_ptr(), out, items.len());
    }
    Ok(())
}

/// Returns the version word of a structure: its size and its version number.
const fn version_of<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

/// Checks the version word at the beginning of a structure.
///
/// # Safety
/// `structure` is null or points to at least one readable word.
unsafe fn check_version<T>(structure: *const T, version: u32) -> Answer {
    if structure.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and every versioned structure of NVML starts with this word.
    let word = unsafe { structure.cast::<u32>().read_unaligned() };
    if word == version_of::<T>(version) { Ok(()) } else { Err(code::ARGUMENT_VERSION_MISMATCH) }
}

/// Returns a text in a fixed array of C characters.
fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (slot, byte) in array.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *slot = byte as c_char;
    }
    array
}
