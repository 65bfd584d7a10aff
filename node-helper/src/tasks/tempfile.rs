//! `tempfile`: a file or directory with an unused name.

use std::io;

use gpufleet_protocol::{
    Change, Disruption, OpOutcome, OpStatus, Property, Subject,
    change::Value,
    message::Mode,
    tasks::{TempFile, TempState},
};
use serde_json::json;

use crate::{
    declare::{Gate, Node, Trouble},
    os::{attributes, files::At, tree},
};

/// # Errors
/// If the directory is missing or not writable.
pub fn run(task: &TempFile, node: &Node<'_>, mode: Mode, gate: Gate<'_>) -> Result<OpOutcome, Trouble> {
    if mode == Mode::Predict {
        return Ok(OpOutcome::new(OpStatus::Possible));
    }
    let given = task.path.as_deref().unwrap_or("/tmp");
    gate(Disruption::Live)?;
    let folder = tree::dir(&node.roots.path(given))?;
    for _ in 0..100 {
        let letters = tree::random_letters::<8>().at("make a name in", folder.path())?;
        let name = format!("{}{letters}{}", task.prefix, task.suffix);
        let spot = folder.spot(&name);
        let path = spot.path();
        let made = match task.state {
            TempState::Directory => spot.make_new_dir(0o700),
            TempState::File => spot.create(0o600).map(drop),
        };
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.at("make", &path)?;
                let shown = format!("{}/{name}", given.trim_end_matches('/'));
                let mut outcome = OpOutcome::new(OpStatus::Changed);
                outcome.changes.push(Change::new(
                    Subject::file(&shown),
                    Property::TYPE,
                    Value::Absent,
                    task.state.as_str(),
                    Disruption::Live,
                ));
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
    use std::fs;

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
