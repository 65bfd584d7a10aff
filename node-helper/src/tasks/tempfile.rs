//! `tempfile`: a file or directory with a name that nobody has.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    time::{SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::{
    Change, Disruption, OpOutcome, OpStatus,
    message::Mode,
    tasks::{TempFile, TempState},
};
use serde_json::json;

use crate::{
    declare::{Gate, Node, Trouble},
    os::{attributes, files::At},
};

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789_";

/// Letters that differ each time.
fn name() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let mut state = time ^ (u64::from(std::process::id()) << 32) ^ crate::os::files::unique().rotate_left(17);
    (0..8)
        .map(|_| {
            // Why no better randomness: the name must only be new, and making it fails when it is not.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % LETTERS.len();
            LETTERS.get(at).copied().unwrap_or(b'x') as char
        })
        .collect()
}

/// # Errors
/// The directory is missing or cannot be written.
pub fn run(task: &TempFile, node: &Node<'_>, mode: Mode, gate: Gate<'_>) -> Result<OpOutcome, Trouble> {
    if mode == Mode::Predict {
        return Ok(OpOutcome::new(OpStatus::Possible));
    }
    let given = task.path.as_deref().unwrap_or("/tmp");
    let folder = node.roots.path(given);
    gate(Disruption::Live)?;
    for _ in 0..100 {
        let name = format!("{}{}{}", task.prefix, name(), task.suffix);
        let path = folder.join(&name);
        let made = match task.state {
            TempState::Directory => fs::DirBuilder::new().mode(0o700).create(&path),
            TempState::File => {
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map(|_| ())
            }
        };
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.at("make", &path)?;
                let shown = format!("{}/{name}", given.trim_end_matches('/'));
                let mut outcome = OpOutcome::new(OpStatus::Changed);
                outcome.changes.push(Change::new(&shown, None, task.state.as_str(), Disruption::Live));
                outcome.data = attributes::of(&path, &node.world, node.users);
                outcome.data.insert("path".to_owned(), json!(shown));
                return Ok(outcome);
            }
        }
    }
    Err(Trouble::io(format!("no free name was found in {given}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn names_are_new_and_a_prediction_makes_none() {
        let bench = Bench::new();
        bench.write("tmp/keep", "");
        let run = |value, mode| {
            let task: TempFile = serde_json::from_value(value).unwrap();
            bench.node(|node| run(&task, node, mode, &|_| Ok(())).unwrap())
        };
        assert_eq!(run(json!({}), Mode::Predict).status, OpStatus::Possible);
        assert_eq!(fs::read_dir(bench.path("tmp")).unwrap().count(), 1);
        let (one, two) =
            (run(json!({"suffix": ".x"}), Mode::Apply), run(json!({"state": "directory"}), Mode::Apply));
        let path = one.data["path"].as_str().unwrap();
        assert!(path.starts_with("/tmp/ansible.") && path.ends_with(".x"), "{path}");
        assert_eq!((&one.data["mode"], &two.data["state"]), (&json!("0600"), &json!("directory")));
        assert_ne!(one.data["path"], two.data["path"]);
    }
}
