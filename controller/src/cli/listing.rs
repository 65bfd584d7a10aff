//! `--list-hosts`, `--list-tasks`, `--list-tags` and `--syntax-check`: what playbooks hold, as ansible-playbook shows it.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use gpufleet::{
    playbook::{Item, Program, TagFilter, Task},
    template::Dict,
};

use super::{
    args::{Listing, PlaybookSource},
    environment::Environment,
    error::CommandError,
    loading::{self, load},
    output::Output,
    sources, vault_passwords,
};

/// Shows the playbooks; no node is contacted.
///
/// # Errors
/// Every mistake in them, and where hosts are listed those of the inventory.
pub fn listing(
    listing: Listing,
    source: &PlaybookSource,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    // Why not always: tasks can be listed, and their syntax checked, where there is no inventory.
    let needs_hosts = listing.list_hosts || sources::has_inventory(&source.inventory);
    let hosts = if needs_hosts {
        // Why: a play without hosts is worth a list too.
        let mut source = source.clone();
        source.inventory.allow_empty = true;
        load(&source, None, environment, output)?.play_hosts
    } else {
        Vec::new()
    };
    let keyring = vault_passwords::keyring(&source.inventory.vault, environment)?;
    let extra = sources::extra_vars(&source.choice.extra_vars, &keyring)?;
    let extra = Arc::new(Dict::trusted(&extra));
    let mut tags = loading::tags(&source.choice);
    // Why: as in Ansible, a list of tags is to show also those that have to be asked for.
    if listing.list_tags && tags.only.is_empty() {
        tags.only = ["never", "all"].map(str::to_owned).into();
    }
    let mut text = String::new();
    let mut index = 0;
    for playbook in &source.playbooks {
        let program =
            loading::program(source, &[playbook.display().to_string()], &keyring, &extra, environment)?;
        let of_playbook: Vec<&[String]> = (index..index + program.plays.len())
            .map(|at| hosts.get(at).map_or(&[][..], Vec::as_slice))
            .collect();
        index += program.plays.len();
        text.push_str(&playbook_text(playbook, &program, &of_playbook, listing, &tags));
    }
    output.data(&text)?;
    Ok(0)
}

fn playbook_text(
    playbook: &Path,
    program: &Program,
    hosts: &[&[String]],
    listing: Listing,
    tags: &TagFilter,
) -> String {
    let mut out = format!("\nplaybook: {}\n", playbook.display());
    if !(listing.list_hosts || listing.list_tasks || listing.list_tags) {
        return out;
    }
    for (at, play) in program.plays.iter().enumerate() {
        let patterns: Vec<String> = play.hosts.iter().map(|(pattern, _)| pattern.to_text()).collect();
        let number = at + 1;
        out.push_str(&format!(
            "\n  play #{number} ({}): {}\tTAGS: [{}]\n",
            patterns.join(","),
            play.name,
            play.tags.join(",")
        ));
        if listing.list_hosts {
            let hosts = hosts.get(at).copied().unwrap_or_default();
            let quoted: Vec<String> = patterns.iter().map(|pattern| format!("'{pattern}'")).collect();
            out.push_str(&format!("    pattern: [{}]\n    hosts ({}):\n", quoted.join(", "), hosts.len()));
            for host in hosts {
                out.push_str(&format!("      {host}\n"));
            }
        }
        let mut tasks = Vec::new();
        for section in &play.sections {
            collect(&section.items, tags, &mut tasks);
        }
        if listing.list_tasks {
            out.push_str("    tasks:\n");
            for task in &tasks {
                // Why not always with the role: so Ansible lists a task without a name.
                let title = task.role_title().filter(|_| task.name.is_some());
                let title = title.as_deref().unwrap_or_else(|| task.title());
                out.push_str(&format!("      {title}\tTAGS: [{}]\n", sorted(task.tags.iter())));
            }
        }
        if listing.list_tags {
            let all = play.tags.iter().chain(tasks.iter().flat_map(|task| task.tags.iter()));
            out.push_str(&format!("      TASK TAGS: [{}]\n", sorted(all)));
        }
    }
    out
}

fn sorted<'a>(tags: impl Iterator<Item = &'a String>) -> String {
    let tags: BTreeSet<&str> = tags.map(String::as_str).collect();
    tags.into_iter().collect::<Vec<_>>().join(", ")
}

/// The tasks that would run, as Ansible lists them: those of `rescue` and `always` are not among them.
fn collect<'a>(items: &'a [Item], tags: &TagFilter, found: &mut Vec<&'a Task>) {
    for item in items {
        match item {
            Item::Task(task) if tags.runs(&task.tags) => found.push(task),
            Item::Task(_) => {}
            Item::GpuGroup(group) => {
                found.extend(group.iter().filter(|task| tags.runs(&task.tags)).map(AsRef::as_ref));
            }
            Item::Block(block) => collect(&block.body, tags, found),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const TEXT: &str = "- name: First play\n  hosts: [gpu, '!n3']\n  tags: t0\n  tasks:\n    - {command: echo hello, tags: [b, a]}\n    \
                        - name: block\n      tags: blk\n      block:\n        - {name: inner, debug: {msg: x}}\n      rescue:\n        \
                        - debug: {msg: x}\n    - {name: rare, debug: {msg: x}, tags: never}\n- hosts: n1\n  tasks: []\n";

    #[test]
    fn a_listing_is_that_of_ansible_playbook() {
        let program =
            Program::load(&["p.yml"], &HashMap::from([("p.yml".to_owned(), TEXT.to_owned())])).unwrap();
        let (first, second) = (["n1".to_owned(), "n2".to_owned()], ["n1".to_owned()]);
        let shown = |listing, only: &[&str]| {
            let tags = TagFilter { only: only.iter().map(ToString::to_string).collect(), skip: Vec::new() };
            playbook_text(Path::new("p.yml"), &program, &[&first, &second], listing, &tags)
                .replace('\t', "<TAB>")
        };
        let all = Listing { list_hosts: true, list_tasks: true, list_tags: true, syntax_check: false };
        insta::assert_snapshot!(shown(all, &[]), @r"

        playbook: p.yml

          play #1 (gpu,!n3): First play<TAB>TAGS: [t0]
            pattern: ['gpu', '!n3']
            hosts (2):
              n1
              n2
            tasks:
              command<TAB>TAGS: [a, b, t0]
              inner<TAB>TAGS: [blk, t0]
              TASK TAGS: [a, b, blk, t0]

          play #2 (n1): n1<TAB>TAGS: []
            pattern: ['n1']
            hosts (1):
              n1
            tasks:
              TASK TAGS: []
        ");
        insta::assert_snapshot!(shown(Listing { list_tasks: true, ..Listing::default() }, &["a", "rare", "never"]), @r"

        playbook: p.yml

          play #1 (gpu,!n3): First play<TAB>TAGS: [t0]
            tasks:
              command<TAB>TAGS: [a, b, t0]
              rare<TAB>TAGS: [never, t0]

          play #2 (n1): n1<TAB>TAGS: []
            tasks:
        ");
        insta::assert_snapshot!(shown(Listing { syntax_check: true, ..Listing::default() }, &[]), @"

        playbook: p.yml
        ");
    }
}
