//! Walks tasks of files that may be invalid.
//!
//! A tree is walked as far as its shape is known; nothing is refused.

use std::cell::RefCell;
use std::collections::BTreeMap;

use gpufleet_protocol::tasks::{KindInfo, find};

use crate::playbook::{Reader, VOCABULARY, unavailable};
use crate::yaml::{Node, Value as Yaml};

/// Reads files and records what it read.
pub struct Recorder<'a> {
    inner: &'a dyn Reader,
    files: RefCell<BTreeMap<String, Vec<u8>>>,
}

impl<'a> Recorder<'a> {
    pub fn new(inner: &'a dyn Reader) -> Self {
        Self { inner, files: RefCell::default() }
    }

    /// Returns every file that was read, by the name that was asked for.
    pub fn into_files(self) -> BTreeMap<String, Vec<u8>> {
        self.files.into_inner()
    }

    pub fn names(&self) -> Vec<String> {
        self.files.borrow().keys().cloned().collect()
    }
}

impl Reader for Recorder<'_> {
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        let bytes = self.inner.read(path)?;
        self.files.borrow_mut().insert(path.to_owned(), bytes.clone());
        Ok(bytes)
    }

    fn list(&self, folder: &str) -> std::io::Result<Vec<String>> {
        self.inner.list(folder)
    }
}

/// What a file holds, judged by its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRole {
    Playbook,
    Tasks,
    /// Variables, or anything else.
    Other,
}

impl FileRole {
    pub fn of(root: &Node) -> Self {
        let Some(items) = root.as_seq() else { return Self::Other };
        let has = |key: &str| items.iter().any(|item| item.get(key).is_some());
        let imports = items.iter().any(|item| {
            item.as_map()
                .unwrap_or_default()
                .iter()
                .any(|(key, _)| short(&key.key_text()) == "import_playbook")
        });
        if has("hosts") || imports {
            Self::Playbook
        } else if items.iter().any(|item| item.as_map().is_some_and(|map| !map.is_empty())) {
            Self::Tasks
        } else {
            Self::Other
        }
    }
}

/// Returns the name without `ansible.builtin.` or `ansible.legacy.`.
pub(crate) fn short(name: &str) -> &str {
    name.strip_prefix("ansible.builtin.").or_else(|| name.strip_prefix("ansible.legacy.")).unwrap_or(name)
}

/// The kind or module of a task.
pub struct Found<'n> {
    /// As written.
    pub name: String,
    pub key: &'n Node,
    pub value: &'n Node,
    pub kind: Option<&'static KindInfo>,
}

/// A task, or a block around tasks.
pub struct TaskView<'n> {
    pub node: &'n Node,
    pub play: Option<&'n Node>,
    /// Outermost first.
    pub blocks: Vec<&'n Node>,
    pub handler: bool,
}

impl<'n> TaskView<'n> {
    /// Returns the kind or module of the task; `None` for a block, and for a task without one.
    pub fn found(&self) -> Option<Found<'n>> {
        let entries = self.node.as_map()?;
        let mut first = None;
        for (key, value) in entries {
            let name = key.key_text();
            if is_keyword(&name) {
                continue;
            }
            let kind = find(&name);
            if kind.is_some() {
                return Some(Found { name, key, value, kind });
            }
            first.get_or_insert((name, key, value));
        }
        if let Some((name, key, value)) = first {
            return Some(Found { name, key, value, kind: None });
        }
        let (key, value) = ["action", "local_action"].iter().find_map(|key| self.node.entry(key))?;
        let name = match &value.value {
            Yaml::Str(text) => text.text.split_whitespace().next()?.to_owned(),
            _ => value.get("module")?.as_str()?.to_owned(),
        };
        let kind = find(&name);
        Some(Found { name, key, value, kind })
    }

    pub fn name(&self) -> Option<&'n str> {
        self.node.get("name")?.as_str()
    }

    /// Returns the nearest value of an inherited key: of the task, its blocks or the play.
    pub fn inherited(&self, key: &str) -> Option<&'n Node> {
        self.node
            .get(key)
            .or_else(|| self.blocks.iter().rev().find_map(|block| block.get(key)))
            .or_else(|| self.play.and_then(|play| play.get(key)))
    }

    /// Returns the first and the last line.
    pub fn lines(&self) -> (u32, u32) {
        let mut lines = (u32::MAX, 0);
        reach(self.node, &mut lines);
        lines
    }
}

fn reach(node: &Node, lines: &mut (u32, u32)) {
    let extra = match &node.value {
        // The span of a text of several lines is its first line.
        Yaml::Str(text) => u32::try_from(text.text.matches('\n').count()).unwrap_or(0),
        _ => 0,
    };
    lines.0 = lines.0.min(node.span.line);
    lines.1 = lines.1.max(node.span.line + extra);
    match &node.value {
        Yaml::Seq(items) => items.iter().for_each(|item| reach(item, lines)),
        Yaml::Map(entries) => entries.iter().for_each(|(key, value)| {
            reach(key, lines);
            reach(value, lines);
        }),
        Yaml::Tagged { node, .. } => reach(node, lines),
        _ => {}
    }
}

/// Whether a word is a keyword of Ansible's tasks, available here or not.
fn is_keyword(name: &str) -> bool {
    // These do the work of a task, though they are in the list of unavailable keywords.
    const WORK: &[&str] = &["include_role", "import_role", "include_vars", "include_tasks", "import_tasks"];
    let plain = short(name);
    if WORK.contains(&plain) {
        return false;
    }
    VOCABULARY.shared.contains(&name)
        || VOCABULARY.task.contains(&name)
        || VOCABULARY.block.contains(&name)
        || (unavailable(name).is_some() && find(name).is_none())
        || (plain.starts_with("with_"))
        || matches!(
            plain,
            "action"
                | "local_action"
                | "args"
                | "register"
                | "until"
                | "retries"
                | "delay"
                | "async"
                | "poll"
                | "throttle"
                | "delegate_to"
                | "delegate_facts"
                | "check_mode"
                | "diff"
                | "debugger"
                | "module_defaults"
                | "remote_user"
                | "connection"
                | "port"
                | "collections"
                | "become_flags"
                | "become_exe"
                | "sudo"
                | "sudo_user"
                | "always_run"
        )
}

/// Returns every task of a playbook or of a file of tasks, in the order written.
pub fn tasks_of(root: &Node) -> Vec<TaskView<'_>> {
    let mut found = Vec::new();
    let items = root.as_seq().unwrap_or_default();
    match FileRole::of(root) {
        FileRole::Playbook => {
            for play in items.iter().filter(|item| item.as_map().is_some()) {
                for section in ["pre_tasks", "tasks", "post_tasks", "handlers"] {
                    if let Some(list) = play.get(section) {
                        walk(list, Some(play), &[], section == "handlers", &mut found);
                    }
                }
            }
        }
        FileRole::Tasks => {
            let handlers = root.span.file().contains("handlers/");
            walk(root, None, &[], handlers, &mut found);
        }
        FileRole::Other => {}
    }
    found
}

fn walk<'n>(
    list: &'n Node,
    play: Option<&'n Node>,
    blocks: &[&'n Node],
    handler: bool,
    found: &mut Vec<TaskView<'n>>,
) {
    for node in list.as_seq().unwrap_or_default() {
        if node.as_map().is_none() {
            continue;
        }
        if VOCABULARY.block.iter().any(|key| node.get(key).is_some()) {
            let mut inner = blocks.to_vec();
            inner.push(node);
            for key in VOCABULARY.block {
                if let Some(list) = node.get(key) {
                    walk(list, play, &inner, handler, found);
                }
            }
            continue;
        }
        found.push(TaskView { node, play, blocks: blocks.to_vec(), handler });
    }
}
