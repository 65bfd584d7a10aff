//! Variables of the command line whose names are slips.

use std::collections::BTreeSet;

use super::names::{MAGIC, Reference, count};
use super::program::Program;
use crate::diagnostic::suggest;

/// By which a text uses a variable whose name is computed, or other texts that are not known here.
const COMPUTED: &[&str] = &["hostvars", "varnames"];
/// As [`COMPUTED`], as the name of a lookup in quotes.
const LOOKUPS: &[&str] = &["vars", "template", "file", "url", "pipe"];

impl Program {
    /// Returns which of these variables neither the program's files nor the `others` name, though a variable with nearly the
    /// same name is used; with that name. None where a name may be computed, or where not all files are known.
    pub fn misspelt<'n>(
        &self,
        given: impl Iterator<Item = &'n str>,
        others: &[String],
    ) -> Vec<(&'n str, String)> {
        let own = || self.sources.iter().map(|source| source.text());
        let texts = || own().chain(others.iter().map(String::as_str));
        let mut open = self.plays.iter().map(|play| play.open_names || !play.late_files.is_empty());
        if open.any(|open| open) || texts().any(computes_names) {
            return Vec::new();
        }
        let mut used: BTreeSet<&str> = BTreeSet::new();
        for play in &self.plays {
            let tasks = play.tasks();
            let of_tasks = tasks.iter().flat_map(|task| &task.references);
            let references = play.var_references.iter().chain(&play.block_references).chain(of_tasks);
            used.extend(references.map(|Reference { name, .. }| name.as_str()));
            used.extend(play.vars.keys());
            let roles = play.roles.iter().chain(tasks.iter().filter_map(|task| task.role.as_ref()));
            used.extend(roles.flat_map(|role| role.defaults.keys().chain(role.vars.keys())));
        }
        used.retain(|name| !MAGIC.contains(name) && !name.starts_with("ansible_"));
        given
            .filter(|name| !is_reserved(name) && texts().all(|text| count(text, name) == 0))
            .filter_map(|name| Some((name, suggest(name, used.iter().copied())?.to_owned())))
            .collect()
    }
}

/// Whether gpufleet itself reads variables of such a name.
fn is_reserved(name: &str) -> bool {
    name.starts_with("ansible_") || name.starts_with("gpufleet") || name.starts_with('_')
}

/// Whether a text may use a variable whose name it does not hold.
fn computes_names(text: &str) -> bool {
    let quoted = |name: &&str| ["'", "\""].iter().any(|quote| text.contains(&format!("{name}{quote}")));
    COMPUTED.iter().any(|word| count(text, word) > 0)
        || text.contains("lookup(") && LOOKUPS.iter().any(quoted)
        || text.contains("query(") && LOOKUPS.iter().any(quoted)
        || indexes_vars(text)
}

/// Whether a text uses `vars`, the mapping of all variables, as a value: `vars[name]`, `vars | dict2items`.
fn indexes_vars(text: &str) -> bool {
    text.match_indices("vars").any(|(at, word)| {
        let before = text.get(..at).and_then(|text| text.chars().next_back());
        let after = text.get(at + word.len()..).unwrap_or_default().trim_start_matches(' ');
        let is_whole = !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '/' || c == '.');
        let is_file = [".yml", ".yaml", ".json"].iter().any(|end| after.starts_with(end));
        let is_field = after.strip_prefix('.').is_some_and(|rest| rest.starts_with(char::is_alphabetic));
        is_whole && !is_file && (is_field || after.starts_with(['[', '|', ')', '}', ',']))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn found(text: &str, given: &[&'static str], others: &[&str]) -> Vec<(&'static str, String)> {
        let files: HashMap<String, String> = [("play.yml".to_owned(), text.to_owned())].into();
        let others: Vec<String> = others.iter().map(|text| (*text).to_owned()).collect();
        let program = Program::load(&["play.yml"], &files).unwrap();
        program.misspelt(given.iter().copied(), &others)
    }

    const PLAY: &str =
        "- hosts: all\n  vars: {channel: 570}\n  tasks:\n    - debug: {msg: '{{ channel }} {{ rack }}'}\n";

    #[test]
    fn a_slip_of_a_used_name_is_found() {
        assert_eq!(
            found(PLAY, &["chanel", "channel", "rak"], &[]),
            [("chanel", "channel".to_owned()), ("rak", "rack".to_owned())]
        );
        for fine in
            ["channel", "rack", "something_else", "ansible_chanel", "gpufleet_chanel", "inventory_hostnam"]
        {
            assert_eq!(found(PLAY, &[fine], &[]), [], "{fine}");
        }
        assert_eq!(found(PLAY, &["chanel"], &["{{ chanel | default(1) }}"]), [], "another file uses it");
        assert_eq!(found(PLAY, &["chanel"], &["{{ chanels }}"]).len(), 1);
    }

    #[test]
    fn where_names_are_computed_nothing_is_said() {
        for task in [
            "debug: {msg: \"{{ vars[name] }}\"}",
            "debug: {msg: \"{{ lookup('vars', name) }}\"}",
            "debug: {msg: \"{{ lookup('ansible.builtin.vars', name) }}\"}",
            "debug: {msg: \"{{ lookup('template', 'a.j2') }}\"}",
            "debug: {msg: \"{{ hostvars[name].x }}\"}",
            "debug: {msg: \"{{ vars | length }}\"}",
            "include_vars: '{{ name }}.yml'",
            "include_tasks: '{{ name }}.yml'",
        ] {
            assert_eq!(found(&format!("{PLAY}    - {task}\n"), &["chanel"], &[]), [], "{task}");
        }
        assert_eq!(found(PLAY, &["chanel"], &["{{ vars[name] }}"]), []);
        for task in ["debug: {msg: \"{{ my_vars['a'] }}\"}", "debug: {msg: see group_vars.yml or vars.yml}"] {
            assert_eq!(found(&format!("{PLAY}    - {task}\n"), &["chanel"], &[]).len(), 1, "{task}");
        }
    }
}
