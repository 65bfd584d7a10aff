//! Compares inventories with ansible-core's results for the same files (written by tests/inventory/expected.py).
//!
//! `GPUFLEET_INVENTORY_CASES=FOLDER` uses the cases of another folder.

use std::path::{Path, PathBuf};

use gpufleet_language::inventory::{Inventory, LoadOptions};
use serde_json::Value;

struct Case {
    name: String,
    options: Vec<(String, String)>,
    files: Vec<(String, String)>,
    expected: Value,
}

impl Case {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let expected = std::fs::read_to_string(path.with_extension("json")).unwrap();
        let mut options = Vec::new();
        let mut files: Vec<(String, String)> = Vec::new();
        for line in text.split_inclusive('\n') {
            match line.strip_suffix(" --\n").and_then(|line| line.strip_prefix("-- ")) {
                Some(name) => files.push((name.to_owned(), String::new())),
                None => match files.last_mut() {
                    Some((_, content)) => content.push_str(line),
                    None => {
                        if let Some((key, value)) = line.trim_end_matches('\n').split_once(": ") {
                            options.push((key.to_owned(), value.to_owned()));
                        }
                    }
                },
            }
        }
        Self {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            options,
            files,
            expected: serde_json::from_str(&expected).unwrap(),
        }
    }

    fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the differences from Ansible; empty if there are none.
    fn differences(&self) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in &self.files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            if content.starts_with("#!") {
                use std::os::unix::fs::PermissionsExt as _;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        let at = |name: &str| folder.path().join(name);
        let source = |name: &str| {
            if name.contains(',') { name.to_owned() } else { at(name).display().to_string() }
        };
        let sources = self.option("sources").unwrap_or(&self.files[0].0);
        let options = LoadOptions {
            sources: sources.split_whitespace().map(source).collect(),
            playbook_dir: self.option("playbook_dir").map(at),
            ..LoadOptions::default()
        };
        let mut found = Vec::new();
        let inventory = match Inventory::load(&options) {
            Ok(inventory) => inventory,
            Err(errors) => {
                if !self.expected["list"].is_null() && self.option("refused").is_none() {
                    found.push(format!("refused:\n{errors}"));
                }
                return found;
            }
        };
        if self.expected["list"].is_null() || self.option("refused").is_some() {
            return vec![format!("not refused: {}", inventory.list_text(None, false).unwrap())];
        }
        let list = inventory.list_json(None, false).unwrap();
        if sorted(&list) != sorted(&self.expected["list"]) {
            found.push(format!("list: ours {}\ntheirs {}", sorted(&list), sorted(&self.expected["list"])));
        }
        if let Some(graph) = self.expected["graph"].as_str() {
            let ours = inventory.graph_text("all", true, false).unwrap();
            let differ = ours.lines().zip(graph.lines()).find(|(ours, theirs)| ours != theirs);
            if ours != graph && self.option("graph") != Some("no") {
                found.push(format!("graph: (ours, theirs) {differ:?}"));
            }
        }
        let differs: Vec<&str> = self.option("differs").unwrap_or_default().split(" | ").collect();
        let loose = self.option("order") == Some("loose");
        for (pattern, wanted) in self.expected["patterns"].as_object().into_iter().flatten() {
            let (hosts, limit) = match pattern.split_once(" ~~ ") {
                Some((hosts, limit)) => (hosts, Some(limit)),
                None => (pattern.as_str(), None),
            };
            let mut ours: Option<Vec<String>> = inventory
                .select(hosts, limit)
                .ok()
                .map(|hosts| hosts.iter().map(ToString::to_string).collect());
            let mut wanted: Option<Vec<String>> = serde_json::from_value(wanted.clone()).unwrap();
            // A pattern without hosts is an error here, and `[]` for Ansible.
            wanted = wanted.filter(|hosts| !hosts.is_empty());
            if loose {
                ours.iter_mut().for_each(|hosts| hosts.sort());
                wanted.iter_mut().for_each(|hosts| hosts.sort());
            }
            // Known differences are compared too, so that an entry that became equal is noticed.
            if differs.contains(&pattern.as_str()) == (ours == wanted) {
                found.push(format!("pattern {pattern}: ours {ours:?}, theirs {wanted:?}"));
            }
        }
        found
    }
}

/// Returns text with sorted keys, with numbers in one representation.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{key:?}: {}", sorted(value))).collect();
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(sorted).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn cases() -> Vec<PathBuf> {
    let folder = std::env::var_os("GPUFLEET_INVENTORY_CASES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inventory/cases"), PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "case"))
        .collect();
    found.sort();
    found
}

#[test]
fn inventories_are_read_as_ansible_reads_them() {
    let cases = cases();
    assert!(cases.len() >= 20, "only {} cases found", cases.len());
    let mut failed = Vec::new();
    for path in &cases {
        let case = Case::read(path);
        let differences = case.differences();
        if !differences.is_empty() {
            failed.push(format!("== {}\n{}", case.name, differences.join("\n")));
        }
    }
    assert!(failed.is_empty(), "{} of {} cases differ:\n{}", failed.len(), cases.len(), failed.join("\n"));
}
