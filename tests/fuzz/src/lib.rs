//! Finds the target of a name.

/// Gives bytes to one of the library's readers.
///
/// # Panics
/// A name that the library does not have, and whatever the reader does wrong.
pub fn run(name: &str, bytes: &[u8]) {
    match gpufleet::fuzzing::TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => target(bytes),
        None => panic!("no target {name}"),
    }
}
