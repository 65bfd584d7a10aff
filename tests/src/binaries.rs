//! The paths of the programs under test.

use std::path::PathBuf;

/// Returns a program that cargo built beside the calling test.
///
/// # Panics
/// If it does not exist, with the command that builds it.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    let folders = test.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "{name} is not beside {}: build it with `cargo build -p gpufleet -p gpufleet-lab -p nvml-sim -p crashpoint`",
            test.display()
        )
    })
}
