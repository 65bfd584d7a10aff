//! Finds which tasks of a playbook run as they are.
//!
//! The strict parser judges every task; its messages are attached to the tasks that they point at. Files that it does
//! not reach (tasks of roles that it cannot load, names with templates) are parsed one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_protocol::disturbing::{self, Act};
use serde::Serialize;

use super::commands::{Advice, Suggestion, advise, grub_line};
use super::rewrite::Edit;
use super::walk::{FileRole, Recorder, TaskView, short, tasks_of};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::playbook::{Program, Reader, module_advice_for};
use crate::vault::Keyring;
use crate::yaml::{self, Node, Value as Yaml};

/// What has to be done with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Runs as it is.
    AsIs,
    /// Runs as it is, but a kind declares it better.
    Better,
    /// Must be written another way; the report says which.
    Replace,
    /// No replacement is known.
    Unknown,
}

impl Verdict {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AsIs => "as it is",
            Self::Better => "better",
            Self::Replace => "replace",
            Self::Unknown => "unknown",
        }
    }
}

/// The verdict on one task.
#[derive(Clone, Debug, Serialize)]
pub struct TaskReport {
    pub file: String,
    pub line: u32,
    /// As written.
    pub name: Option<String>,
    /// Kind or module as written.
    pub kind: String,
    pub verdict: Verdict,
    /// What the strict parser reports about it.
    pub problems: Vec<Problem>,
    /// Tasks that replace it, ready to be copied.
    pub replacement: Vec<String>,
    pub notes: Vec<String>,
    /// How its text becomes the replacement; `None` where only a person can tell whether that means the same.
    #[serde(skip)]
    pub edit: Option<Edit>,
}

/// A reason why a text does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub file: Option<String>,
    pub line: Option<u32>,
    pub message: String,
    pub help: Vec<String>,
}

impl Problem {
    fn of(diagnostic: &Diagnostic) -> Self {
        Self {
            file: diagnostic.span.as_ref().map(|span| span.file().to_owned()),
            line: diagnostic.span.as_ref().map(|span| span.line),
            message: diagnostic.message.clone(),
            help: diagnostic.help.clone(),
        }
    }
}

/// The number of tasks with each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub tasks: usize,
    pub as_is: usize,
    pub better: usize,
    pub replace: usize,
    pub unknown: usize,
}

/// The report on some playbooks.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    pub totals: Totals,
    pub tasks: Vec<TaskReport>,
    /// Problems outside of tasks: keys of plays, files that cannot be read.
    pub problems: Vec<Problem>,
    /// Files that were read.
    pub files: Vec<String>,
}

/// Surveys playbooks and all files that they read. Roles may be in `roles_path` too.
pub fn survey(
    paths: &[String],
    reader: &dyn Reader,
    keyring: &Arc<Keyring>,
    roles_path: &[String],
) -> Survey {
    let recorder = Recorder::new(reader);
    let mut errors = Diagnostics::new();
    for path in paths {
        errors.absorb(Program::load_with(&[path], &recorder, keyring, roles_path));
    }
    let mut trees: BTreeMap<String, Node> = BTreeMap::new();
    let mut todo: Vec<String> = paths.to_vec();
    todo.extend(recorder.names().into_iter().filter(|name| !paths.contains(name)));
    let strict = todo.clone();
    let mut order = Vec::new();
    while !todo.is_empty() {
        let path = todo.remove(0);
        if trees.contains_key(&path) {
            continue;
        }
        let Ok(bytes) = recorder.read(&path) else { continue };
        let tree = yaml::decode(&path, &bytes).and_then(|source| yaml::parse_source(&source));
        let Ok(tree) = tree else { continue };
        todo.extend(named_files(&path, &tree, &recorder));
        if FileRole::of(&tree) == FileRole::Tasks && !strict.contains(&path) {
            errors.append(judge_alone(&path, &recorder, keyring));
        }
        order.push(path.clone());
        trees.insert(path, tree);
    }
    let mut told = Vec::new();
    errors.0.retain(|error| {
        let key = (error.span.as_ref().map(ToString::to_string), error.message.clone());
        let fresh = !told.contains(&key);
        told.push(key);
        fresh
    });

    let mut used = vec![false; errors.0.len()];
    let mut tasks = Vec::new();
    for path in &order {
        let Some(tree) = trees.get(path) else { continue };
        for view in tasks_of(tree) {
            let (first, last) = view.lines();
            let mut own = Vec::new();
            for (error, used) in errors.iter().zip(&mut used) {
                let inside = error
                    .span
                    .as_ref()
                    .is_some_and(|span| span.file() == path && (first..=last).contains(&span.line));
                if inside {
                    *used = true;
                    own.push(Problem::of(error));
                }
            }
            tasks.push(report(path, &view, own));
        }
    }
    let rest =
        errors.iter().zip(&used).filter(|(_, used)| !**used).map(|(error, _)| Problem::of(error)).collect();
    let mut totals = Totals { tasks: tasks.len(), ..Totals::default() };
    for task in &tasks {
        *match task.verdict {
            Verdict::AsIs => &mut totals.as_is,
            Verdict::Better => &mut totals.better,
            Verdict::Replace => &mut totals.replace,
            Verdict::Unknown => &mut totals.unknown,
        } += 1;
    }
    Survey { totals, tasks, problems: rest, files: order }
}

/// Returns what the strict parser reports about a file of tasks that no play includes.
fn judge_alone(path: &str, reader: &Recorder<'_>, keyring: &Arc<Keyring>) -> Diagnostics {
    const PLAY: &str = "<a play around it>";
    let folder_up = if path.starts_with('/') { "" } else { "./" };
    let text = format!(
        "- hosts: all\n  tasks:\n    - import_tasks: {}\n",
        serde_json::json!(format!("{folder_up}{path}"))
    );
    let wrapped = |asked: &str| match asked {
        PLAY => Ok(text.clone().into_bytes()),
        other => reader.read(other.strip_prefix("./").unwrap_or(other)),
    };
    let found = Program::load_with(&[PLAY], &wrapped, keyring, &[]).err().unwrap_or_default();
    let named = format!("{folder_up}{path}");
    let mut kept = Diagnostics::new();
    for mut error in found {
        // The file is parsed without its role, so handlers and other files of the role are missing.
        let elsewhere = error.message.starts_with("no handler is called")
            || error.message.starts_with("`listen` is a key");
        if elsewhere {
            continue;
        }
        match &error.span {
            Some(span) if span.file() == named => {
                let source = crate::diagnostic::SourceFile::new(path, span.source.text());
                error.span = Some(crate::diagnostic::Span::new(&source, span.line, span.column, span.length));
                kept.push(error);
            }
            _ => {}
        }
    }
    kept
}

/// Returns the files that a playbook names, where Ansible looks for them.
fn named_files(path: &str, tree: &Node, reader: &Recorder<'_>) -> Vec<String> {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let join = |base: &str, name: &str| match (base, name.starts_with('/')) {
        ("", _) | (_, true) => name.to_owned(),
        (base, false) => format!("{base}/{name}"),
    };
    // A task file of a role is in ROLES/NAME/tasks: the role's folder is one level up.
    let roles_folder = directory
        .strip_suffix("/tasks")
        .or_else(|| directory.strip_suffix("/handlers"))
        .and_then(|role| role.rsplit_once('/'))
        .map(|(roles, _)| roles.to_owned());
    let mut files = Vec::new();
    let role = |name: &str, file: &str, files: &mut Vec<String>| {
        let mut bases = vec![join(directory, "roles"), "roles".to_owned()];
        bases.extend(roles_folder.clone());
        for base in bases {
            let mut any = false;
            for part in [format!("tasks/{file}"), "handlers/main".to_owned(), "meta/main".to_owned()] {
                for ending in ["", ".yml", ".yaml"] {
                    let full = format!("{base}/{name}/{part}{ending}");
                    if reader.read(&full).is_ok() {
                        files.push(full);
                        any = true;
                        break;
                    }
                }
            }
            if any {
                return;
            }
        }
    };
    let role_name = |node: &Node| -> Option<String> {
        let name =
            node.as_str().or_else(|| node.get("role")?.as_str()).or_else(|| node.get("name")?.as_str());
        name.filter(|name| !crate::template::is_template(name)).map(ToOwned::to_owned)
    };
    for play in tree.as_seq().unwrap_or_default() {
        for (key, value) in play.as_map().unwrap_or_default() {
            match short(&key.key_text()) {
                "roles" => {
                    for entry in value.as_seq().unwrap_or_default() {
                        if let Some(name) = role_name(entry) {
                            role(&name, "main", &mut files);
                        }
                    }
                }
                "import_playbook" => files.extend(value.as_str().map(|name| join(directory, name))),
                _ => {}
            }
        }
    }
    for dependency in tree.get("dependencies").and_then(Node::as_seq).unwrap_or_default() {
        if let Some(name) = role_name(dependency) {
            let above = directory
                .strip_suffix("/meta")
                .and_then(|role| role.rsplit_once('/'))
                .map(|(roles, _)| roles);
            for ending in ["yml", "yaml"] {
                files.extend(above.map(|roles| format!("{roles}/{name}/tasks/main.{ending}")));
            }
        }
    }
    for view in tasks_of(tree) {
        let Some(found) = view.found() else { continue };
        let literal = |node: &Node| {
            let name = node.as_str().or_else(|| node.get("file")?.as_str())?;
            (!crate::template::is_template(name)).then(|| name.to_owned())
        };
        match short(&found.name) {
            "include_tasks" | "import_tasks" | "include" => {
                files.extend(literal(found.value).map(|name| join(directory, &name)))
            }
            "include_role" | "import_role" => {
                if let Some(name) = role_name(found.value) {
                    let file = found.value.get("tasks_from").and_then(Node::as_str).unwrap_or("main");
                    role(&name, file, &mut files);
                }
            }
            _ => {}
        }
    }
    files
}

fn report(path: &str, view: &TaskView<'_>, problems: Vec<Problem>) -> TaskReport {
    let (line, _) = view.lines();
    let found = view.found();
    let kind = found.as_ref().map_or_else(String::new, |found| found.name.clone());
    let mut notes = Vec::new();
    let mut replacement = Vec::new();
    let (mut unknown, mut advised, mut edit) = (false, false, None);
    let work = matches!(
        short(&kind),
        "include_tasks"
            | "import_tasks"
            | "include_role"
            | "import_role"
            | "include_vars"
            | "include"
            | "import_playbook"
    );
    if let Some(found) = &found {
        match found.kind {
            Some(info) if matches!(info.name, "command" | "shell" | "raw") => {
                let text = command_text(found.value);
                let mut is_told = false;
                if let Some(advice) = text.as_deref().and_then(advise) {
                    is_told = advice.whole;
                    advised = !advice.suggestions.is_empty() || advice.sudo;
                    take_advice(&advice, &mut replacement, &mut notes);
                    edit = problems.is_empty().then(|| edit_of(view, found, &advice)).flatten();
                }
                let disturbs = text.and_then(|text| disturbing::of_template(&text, info.name != "command"));
                if let Some(found) = disturbs.filter(|_| problems.is_empty() && !is_told) {
                    advised = true;
                    notes.push(format!("{found}, and needs a permit as a kind does{}", instead(found.act)));
                }
            }
            Some(info) if info.name == "lineinfile" => {
                if let Some(Suggestion::Task { text, .. }) = grub_edit(found.value) {
                    advised = true;
                    replacement.push(text);
                    notes.push("it edits every boot entry, and a reboot is asked for".to_owned());
                }
            }
            Some(_) => {}
            None if !work => {
                let absent = found.value.get("state").and_then(Node::as_str) == Some("absent");
                let advice = module_advice_for(&found.name, absent);
                unknown = advice.is_none();
                if let Some(advice) = advice {
                    notes.push(advice.text());
                }
                // The parser's own help says the same.
                notes.retain(|note| !problems.iter().any(|problem| problem.help.contains(note)));
            }
            None => {}
        }
    }
    let verdict = match (problems.is_empty(), unknown, advised) {
        (true, false, false) => Verdict::AsIs,
        (true, false, true) => Verdict::Better,
        (_, true, _) => Verdict::Unknown,
        (false, false, _) => Verdict::Replace,
    };
    TaskReport {
        file: path.to_owned(),
        line,
        name: view.name().map(ToOwned::to_owned),
        kind,
        verdict,
        problems,
        replacement,
        notes,
        edit,
    }
}

/// What to write in place of a command that disturbs, and that nothing is known to replace word for word.
const fn instead(act: Act) -> &'static str {
    match act {
        Act::EndsClients => ": leave it out, because a node is changed only once nobody uses its GPUs",
        Act::ChangesInstances | Act::SwitchesMig => ": `gpu_mig` declares mode and layout",
        Act::ResetsDevice => ": `gpu_drain_state` takes a GPU from its driver, `gpu_reset` resets one",
        Act::UnloadsDriver => {
            ": `gpu_driver` installs a driver from packages, and unloads, loads and proves it; a `.run` installer leaves no package"
        }
        Act::ResetsGpus => ": `gpu_reset` resets a GPU that needs it",
        Act::StopsService | Act::TakesFromWork | Act::Withdraws | Act::GoesDown | Act::Reboots => "",
    }
}

/// Keys of a task that mean the same beside a kind as beside the command, and beside a `block`.
const KEPT: [&str; 6] = ["name", "when", "become", "become_user", "tags", "vars"];

/// The edit of a task that is nothing but a command line, all of which kinds replace.
fn edit_of(view: &TaskView<'_>, found: &super::walk::Found<'_>, advice: &Advice) -> Option<Edit> {
    let tasks: Vec<String> = advice.tasks().map(ToOwned::to_owned).collect();
    let is_whole = advice.whole && !advice.sudo && tasks.len() == advice.suggestions.len();
    let keys = view.node.as_map()?.iter().map(|(key, _)| key.key_text());
    let is_plain = keys.filter(|key| *key != found.name).all(|key| KEPT.contains(&&*key));
    let is_one_line = found.value.as_str().is_some_and(|text| {
        !text.contains('\n') && command_text(found.value).is_some_and(|line| line == text.trim())
    });
    let span = &found.key.span;
    (is_whole && is_plain && is_one_line).then_some(Edit { line: span.line, column: span.column, tasks })
}

fn take_advice(advice: &Advice, replacement: &mut Vec<String>, notes: &mut Vec<String>) {
    replacement.extend(advice.tasks().map(ToOwned::to_owned));
    notes.extend(advice.notes().map(ToOwned::to_owned));
    if advice.sudo {
        notes.push("set `become: true` in place of `sudo`".to_owned());
    }
    if !advice.whole && !replacement.is_empty() {
        notes.push("a part of the line has no kind and stays a command".to_owned());
    }
}

/// Returns the command line of a task of `command`, `shell` or `raw`.
pub(crate) fn command_text(value: &Node) -> Option<String> {
    match &value.value {
        Yaml::Str(text) => {
            // `creates=/x` in a command line is a parameter.
            let kept: Vec<&str> = text
                .text
                .split(' ')
                .filter(|word| {
                    !["creates=", "removes=", "chdir=", "executable="].iter().any(|key| word.starts_with(key))
                })
                .collect();
            Some(kept.join(" ").trim().to_owned())
        }
        Yaml::Map(_) => {
            if let Some(text) = value.get("cmd").or_else(|| value.get("_raw_params")).and_then(Node::as_str) {
                return Some(text.to_owned());
            }
            let words: Option<Vec<String>> =
                value.get("argv")?.as_seq()?.iter().map(Node::scalar_text).collect();
            Some(shell_words::join(words?))
        }
        _ => None,
    }
}

/// Converts an edit of /etc/default/grub.
fn grub_edit(value: &Node) -> Option<Suggestion> {
    let path = value.get("path").or_else(|| value.get("dest"))?.as_str()?;
    (path == "/etc/default/grub").then(|| grub_line(value.get("line")?.as_str()?)).flatten()
}
