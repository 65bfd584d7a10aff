//! The plays and tasks that the guide shows are ones that gpufleet takes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::*;

/// The blocks of YAML in a page, each with the line that it begins at.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (line, text) in (1..).zip(page.lines()) {
        match (&mut open, text.trim_end()) {
            (None, "```yaml") => open = Some((line + 1, String::new())),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some((_, block)), text) => {
                block.push_str(text);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    blocks
}

/// The block as a playbook; nothing where it is a part of a play, an inventory or another file.
fn playbook(block: &str) -> Option<String> {
    let first = block.lines().find(|line| !line.starts_with('#') && !line.is_empty())?;
    if !first.starts_with("- ") || first.starts_with("- id:") {
        return None;
    }
    let is_play = block.lines().any(|line| line.trim_start_matches(['-', ' ']).starts_with("hosts:"));
    let indented = || block.lines().map(|line| format!("    {line}\n")).collect::<String>();
    Some(if is_play { block.to_owned() } else { format!("- hosts: all\n  tasks:\n{}", indented()) })
}

#[test]
fn the_plays_and_tasks_of_the_guide() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut wrong = Vec::new();
    let mut read = 0;
    for folder in ["guide", "ansible"] {
        for entry in docs.join(folder).read_dir().expect("the folder is there").flatten() {
            let page = std::fs::read_to_string(entry.path()).expect("it is text");
            for (line, block) in blocks(&page) {
                let Some(text) = playbook(&block) else { continue };
                read += 1;
                let files = HashMap::from([("play.yml".to_owned(), text)]);
                let report = check(&["play.yml".to_owned()], &files, &Arc::default(), &[], &Arc::default());
                let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
                wrong.extend(errors.map(|finding| format!("{}:{line}: {finding:?}", entry.path().display())));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read >= 30, "{read} blocks were read");
}
