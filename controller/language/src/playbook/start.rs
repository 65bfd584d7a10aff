//! `--start-at-task`: the program without the tasks before a given one.
//!
//! Pure, and the same for the same text, so that a resumed run skips the same tasks.

use std::sync::Arc;

use gpufleet_protocol::glob::Glob;

use super::{
    program::{Block, Item, Items, Play, Program, Task},
    tags::TagFilter,
};

impl Program {
    /// Returns the program from the first task on that `wanted` names, or matches as a glob; tasks excluded by `tags`
    /// are skipped. Earlier plays have no tasks left, and later ones are complete. The play itself still gathers
    /// facts, and keeps its handlers.
    ///
    /// # Errors
    /// If there is no such task: the names of all tasks.
    pub fn starting_at(&self, wanted: &str, tags: &TagFilter) -> Result<Self, Vec<String>> {
        let start = Start { wanted, glob: Glob::new(wanted), tags };
        let mut found = false;
        let plays = self.plays.iter().map(|play| {
            if found {
                return Arc::clone(play);
            }
            let mut rest = Play::clone(play);
            for section in &mut rest.sections {
                if !found {
                    section.items = match start.cut(&section.items) {
                        Some(items) => {
                            found = true;
                            items
                        }
                        None => Items::from([]),
                    };
                }
            }
            if !found {
                rest.sections.clear();
                rest.handlers.clear();
                rest.gather_facts = false;
            }
            Arc::new(rest)
        });
        let plays = plays.collect();
        if found {
            return Ok(Self { plays, ..self.clone() });
        }
        let mut names: Vec<String> = Vec::new();
        for task in self.plays.iter().flat_map(|play| play.tasks()) {
            let name = task.role_title().unwrap_or_else(|| task.title().to_owned());
            if tags.runs(&task.tags) && !names.contains(&name) {
                names.push(name);
            }
        }
        Err(names)
    }
}

struct Start<'a> {
    wanted: &'a str,
    glob: Glob,
    tags: &'a TagFilter,
}

impl Start<'_> {
    fn is_at(&self, task: &Task) -> bool {
        let is = |title: &str| title == self.wanted || self.glob.matches(title);
        self.tags.runs(&task.tags) && (is(task.title()) || task.role_title().is_some_and(|title| is(&title)))
    }

    /// Returns the items from the task on; `None` if it is not among them. A `rescue` cannot be the start, as nothing
    /// failed.
    fn cut(&self, items: &Items) -> Option<Items> {
        for (at, item) in items.iter().enumerate() {
            let first = match item {
                Item::Task(task) => self.is_at(task).then(|| item.clone()),
                Item::GpuGroup(tasks) => {
                    let at = tasks.iter().position(|task| self.is_at(task));
                    at.map(|at| Item::GpuGroup(tasks.iter().skip(at).cloned().collect()))
                }
                Item::Block(block) => self.cut(&block.body).map(|body| part(block, body)).or_else(|| {
                    let always = self.cut(&block.always)?;
                    Some(Item::Block(Arc::new(Block {
                        body: Items::from([]),
                        always,
                        ..Block::clone(block)
                    })))
                }),
            };
            if let Some(first) = first {
                return Some(std::iter::once(first).chain(items.iter().skip(at + 1).cloned()).collect());
            }
        }
        None
    }
}

fn part(block: &Block, body: Items) -> Item {
    Item::Block(Arc::new(Block { body, ..block.clone() }))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "- hosts: a\n  gather_facts: true\n  pre_tasks:\n    - {name: one, debug: {msg: x}, tags: first}\n  tasks:\n    \
                        - name: block\n      block:\n        - {name: two, debug: {msg: x}}\n        - {name: three, debug: {msg: x}}\n      \
                        rescue:\n        - {name: saved, debug: {msg: x}}\n      always:\n        - {name: end, debug: {msg: x}}\n    \
                        - gpu_ecc: {mode: enabled}\n    - {name: limit, gpu_power: {limit_watts: 600}}\n  handlers:\n    - {name: told, debug: {msg: x}}\n\
                        - hosts: b\n  tasks:\n    - {name: two, debug: {msg: x}}\n    - {name: last one, debug: {msg: x}}\n";

    fn program() -> Program {
        Program::load(&["p.yml"], &HashMap::from([("p.yml".to_owned(), TEXT.to_owned())])).unwrap()
    }

    fn left(wanted: &str, only: &[&str]) -> String {
        let tags = TagFilter { only: only.iter().map(ToString::to_string).collect(), skip: Vec::new() };
        match program().starting_at(wanted, &tags) {
            Ok(program) => {
                let names = |play: &Arc<Play>| {
                    let names: Vec<String> =
                        play.tasks().iter().map(|task| task.title().to_owned()).collect();
                    format!("{}{}", if play.gather_facts { "facts " } else { "" }, names.join(" "))
                };
                program.plays.iter().map(names).collect::<Vec<_>>().join(" | ")
            }
            Err(names) => format!("no: {}", names.join(", ")),
        }
    }

    #[test]
    fn what_comes_before_is_left_out() {
        insta::assert_snapshot!(left("two", &[]), @"facts two three saved end gpu_ecc limit told | two last one");
        insta::assert_snapshot!(left("thr*", &[]), @"facts three saved end gpu_ecc limit told | two last one");
        insta::assert_snapshot!(left("end", &[]), @"facts saved end gpu_ecc limit told | two last one");
        insta::assert_snapshot!(left("limit", &[]), @"facts limit told | two last one");
        insta::assert_snapshot!(left("last one", &[]), @" | last one");
    }

    #[test]
    fn a_rescue_a_handler_and_what_tags_leave_out_are_no_start() {
        insta::assert_snapshot!(left("saved", &["first"]), @"no: one");
        insta::assert_snapshot!(left("two", &["first"]), @"no: one");
        insta::assert_snapshot!(left("told", &["first"]), @"no: one");
    }

    proptest! {
        #[test]
        fn nothing_but_a_tail_is_left(wanted in "[a-z*\\[?]{0,6}") {
            let whole: Vec<String> = program().plays.iter().flat_map(|play| play.tasks()).map(|task| task.path.to_string()).collect();
            if let Ok(rest) = program().starting_at(&wanted, &TagFilter::default()) {
                let rest: Vec<String> = rest.plays.iter().flat_map(|play| play.tasks()).map(|task| task.path.to_string()).collect();
                prop_assert!(rest.iter().all(|path| whole.contains(path)));
                prop_assert!(!rest.is_empty());
            }
        }
    }
}
