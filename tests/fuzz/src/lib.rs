//! Finds a fuzz target by name.

/// Passes bytes to one of the library's readers.
///
/// # Panics
/// If the library has no such target, and for any fault of the reader.
pub fn run(name: &str, bytes: &[u8]) {
    match gpufleet::fuzzing::TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => target(bytes),
        None => panic!("no target {name}"),
    }
}
