//! `--format ansible`: a run in the lines that ansible-playbook prints, for people and programs that know them.
//!
//! Plays, tasks, results and the recap have Ansible's words and order. Steps that Ansible does not have (reboots,
//! drains, held nodes) get lines of the same form. A prediction (`--check`) is shown task by task too, although each
//! node is read as a whole.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use gpufleet_protocol::tasks::{self, Kind as _};
use serde_json::{Map, Value, json};

use super::{Role, Style, clean, figures::clean_block};
use crate::{
    event::{Event, Level, NodeState, Position, TaskReport, TaskStatus, Verb, What},
    index::PlayIndex,
    report::{RunModel, fold_changes, fold_gpus},
    visible::{visible_json, visible_lines},
};

/// Columns of a banner, as in Ansible without a terminal.
const COLUMNS: usize = 79;

/// Converts events to text.
#[derive(Debug)]
pub struct AnsibleLines {
    style: Style,
    /// How many `-v` were given.
    verbosity: u32,
    diff: bool,
    verb: Verb,
    /// `None` before the first play.
    play: Option<String>,
    /// Lines about nodes before the first play.
    early: String,
    banner: Option<Key>,
    /// Hosts whose items have been printed, with their task and whether one failed; the whole task follows.
    looping: HashMap<String, (Key, bool)>,
    /// Hosts whose end has been printed.
    told: HashSet<String>,
    /// Reports of a prediction, until all nodes are read.
    kept: Vec<(String, TaskReport)>,
}

type Key = (Position, PlayIndex, String);

/// Identifies a task of the play on all hosts, whatever its rendered name; as in Ansible, the banner has the first
/// host's name.
fn key(report: &TaskReport) -> Key {
    // Why no further: what an include brings in by each turn of its loop is one task as well.
    let of_all = report.op_id.task.split(['[', '+', '#', '~', '@']).next().unwrap_or_default();
    (report.position.clone(), report.op_id.play, of_all.to_owned())
}

impl AnsibleLines {
    pub fn new(style: Style, verbosity: u32, diff: bool) -> Self {
        Self {
            style,
            verbosity,
            diff,
            verb: Verb::Run,
            play: None,
            early: String::new(),
            banner: None,
            looping: HashMap::new(),
            told: HashSet::new(),
            kept: Vec::new(),
        }
    }

    /// Returns what to print now. The model must have the event already.
    pub fn event(&mut self, model: &RunModel, event: &Event) -> String {
        let mut out = String::new();
        match &event.what {
            What::RunStarted(run) => self.verb = run.verb,
            What::PlayStarted(play) => {
                self.play = Some(play.name.clone());
                self.banner = None;
                out.push_str(&banner(&format!("PLAY [{}]", clean(&play.name))));
                if play.hosts.is_empty() {
                    out.push_str(&self.line(Role::Busy, "skipping: no hosts matched"));
                }
                // After the play's banner: its nodes were read, and some were lost, before it began.
                out.push_str(&std::mem::take(&mut self.early));
                self.flush(model, &mut out);
            }
            // Ansible begins each batch of `serial` with the play's banner.
            What::WaveStarted { wave, .. } if *wave > 0 => {
                self.banner = None;
                out.push_str(&banner(&format!("PLAY [{}]", clean(self.play.as_deref().unwrap_or_default()))));
            }
            What::TaskFinished { host, report } if self.verb.writes() => self.report(host, report, &mut out),
            What::TaskFinished { host, report } => self.kept.push((host.clone(), report.clone())),
            What::NodeState { host, state, detail } if state.is_final() => {
                self.ended(host, *state, detail.as_deref(), &mut out);
            }
            What::NodeFinished { host, outcome } => {
                self.ended(host, outcome.state, outcome.message.as_deref(), &mut out);
            }
            What::RebootIssued { host, why, .. } => {
                let why = clean(&fold_gpus(why.iter().map(String::as_str)).join(", "));
                out.push_str(&self.line(Role::Warning, &format!("rebooting: [{host}] => {why}")));
            }
            What::Rebooted { host, seconds, .. } => {
                out.push_str(&self.line(Role::Good, &format!("rebooted: [{host}] => {seconds} s")));
            }
            What::PowerCycled { host, .. } => {
                out.push_str(&self.line(Role::Warning, &format!("power cycled: [{host}]")));
            }
            What::Drain { host, step } => {
                let text = clean(&step.to_string());
                out.push_str(&self.line(Role::Busy, &format!("scheduler: [{host}] => {text}")));
            }
            What::Overridden { host, what } => {
                let whom = host.as_ref().map(|host| format!("[{host}] ")).unwrap_or_default();
                let text = format!("[WARNING]: {whom}goes on against this: {}", clean(what));
                out.push_str(&self.line(Role::Warning, &text));
            }
            What::Notice { level, text } => {
                let word = match level {
                    Level::Info => "[INFO]",
                    Level::Warning => "[WARNING]",
                    Level::Error => "[ERROR]",
                };
                if *level > Level::Info || self.verbosity > 0 {
                    out.push_str(&self.line(Role::Warning, &format!("{word}: {}", clean(text))));
                }
            }
            What::RunFinished(_) => {
                self.flush(model, &mut out);
                out.push_str(&std::mem::take(&mut self.early));
                self.recap(model, &mut out);
            }
            _ => {}
        }
        out
    }

    fn line(&self, role: Role, text: &str) -> String {
        format!("{}\n", self.style.paint(role, text))
    }

    /// Prints a prediction, task by task.
    fn flush(&mut self, model: &RunModel, out: &mut String) {
        let places: HashMap<&str, usize> =
            model.nodes().iter().map(|node| node.name.as_str()).zip(0..).collect();
        let kept = std::mem::take(&mut self.kept);
        let mut order: Vec<Key> = Vec::new();
        let mut by_task: HashMap<Key, Vec<(String, TaskReport)>> = HashMap::new();
        let mut after: HashMap<String, Key> = HashMap::new();
        for (host, report) in kept {
            let key = key(&report);
            if !by_task.contains_key(&key) {
                // A task that only some nodes have follows the task before it on them.
                let place =
                    after.get(&host).and_then(|before| order.iter().position(|known| known == before));
                order.insert(place.map_or(order.len(), |place| place + 1), key.clone());
            }
            after.insert(host.clone(), key.clone());
            by_task.entry(key).or_default().push((host, report));
        }
        for key in order {
            let mut reports = by_task.remove(&key).unwrap_or_default();
            reports.sort_by_key(|(host, _)| places.get(host.as_str()).copied());
            for (host, report) in reports {
                self.report(&host, &report, out);
            }
        }
    }

    fn task_banner(&mut self, report: &TaskReport, out: &mut String) {
        let key = key(report);
        if self.banner.as_ref() == Some(&key) {
            return;
        }
        let path = &report.op_id.task;
        let word = if path.starts_with("handlers") || path.contains(".handlers.") {
            "RUNNING HANDLER"
        } else {
            "TASK"
        };
        out.push_str(&banner(&format!("{word} [{}]", clean(&report.task))));
        if self.verbosity >= 2 {
            out.push_str(&self.line(Role::Muted, &format!("task path: {}", report.position)));
        }
        self.banner = Some(key);
    }

    fn report(&mut self, host: &str, report: &TaskReport, out: &mut String) {
        self.task_banner(report, out);
        let before = self.looping.remove(host).filter(|(task, _)| *task == key(report));
        let whole = before.is_some() && report.item.is_none();
        let item_failed = before.is_some_and(|(_, failed)| failed);
        if report.item.is_some() {
            let failed = item_failed || report.status == TaskStatus::Failed;
            self.looping.insert(host.to_owned(), (key(report), failed));
        }
        for warning in fold_gpus(report.warnings.iter().map(String::as_str)) {
            out.push_str(&self.line(Role::Warning, &format!("[WARNING]: {}", clean(&warning))));
        }
        let changed = report.status == TaskStatus::Changed;
        if self.diff && !whole && (changed || report.status == TaskStatus::Held) {
            self.differences(report, out);
        }
        // These messages were written to be read. A quiet `assert` has none.
        let speaks = matches!(report.kind.as_str(), "debug" | "assert") && report.message.is_some();
        let shown = || if speaks { json_block(&said(report)) } else { json_line(&result(report)) };
        let place = match &report.delegated_to {
            Some(other) => format!("{host} -> {}", clean(other)),
            None => host.to_owned(),
        };
        let bad = |word: &str| format!("fatal: [{place}]: {word} => {}", shown());
        match report.status {
            TaskStatus::Ok | TaskStatus::Changed | TaskStatus::Possible if whole => {}
            TaskStatus::Ok | TaskStatus::Changed | TaskStatus::Possible | TaskStatus::Skipped => {
                let (role, word) = match report.status {
                    TaskStatus::Changed => (Role::Changed, "changed"),
                    TaskStatus::Skipped => (Role::Busy, "skipping"),
                    TaskStatus::Possible => (Role::Busy, "possible"),
                    _ => (Role::Good, "ok"),
                };
                let mut text = format!("{word}: [{place}]");
                if let Some(item) = &report.item {
                    text.push_str(&format!(" => (item={})", clean(item)));
                    if report.status == TaskStatus::Skipped {
                        text.push(' ');
                    }
                }
                let happened = matches!(report.status, TaskStatus::Ok | TaskStatus::Changed);
                if let Some((file, item)) = included(report) {
                    let item = item.map(|item| format!(" => {}", clean(item))).unwrap_or_default();
                    text = format!("included: {} for {host}{item}", clean(file));
                } else if happened && speaks || self.verbosity > 0 {
                    text.push_str(&format!(" => {}", shown()));
                }
                out.push_str(&self.line(role, &text));
            }
            TaskStatus::Failed => match &report.item {
                Some(item) => {
                    let text = format!("failed: [{place}] (item={}) => {}", clean(item), shown());
                    out.push_str(&self.line(Role::Bad, &text));
                }
                // The items' lines report the failure already; one after the items has no such line.
                None if item_failed => {}
                None => out.push_str(&self.line(Role::Bad, &bad("FAILED!"))),
            },
            TaskStatus::Unreachable => out.push_str(&self.line(Role::Bad, &bad("UNREACHABLE!"))),
            TaskStatus::Held => out.push_str(&self.line(Role::Bad, &bad("HELD!"))),
            TaskStatus::Unknown => out.push_str(&self.line(Role::Bad, &bad("UNKNOWN!"))),
        }
        let is_bad = matches!(
            report.status,
            TaskStatus::Failed | TaskStatus::Unreachable | TaskStatus::Held | TaskStatus::Unknown
        );
        if is_bad && report.ignored && report.item.is_none() {
            out.push_str(&self.line(Role::Busy, "...ignoring"));
        } else if is_bad && !report.rescued {
            self.told.insert(host.to_owned());
        }
    }

    /// Prints the bad end of a node, if no task has explained it.
    fn ended(&mut self, host: &str, state: NodeState, message: Option<&str>, out: &mut String) {
        let word = match state {
            NodeState::Unreachable => "UNREACHABLE!",
            NodeState::Failed => "FAILED!",
            NodeState::Held => "HELD!",
            NodeState::Unknown => "UNKNOWN!",
            _ => return,
        };
        if !self.told.insert(host.to_owned()) {
            return;
        }
        let result = loss(state, message.unwrap_or_default());
        let text = self.line(Role::Bad, &format!("fatal: [{host}]: {word} => {}", json_line(&result)));
        match self.play {
            Some(_) => out.push_str(&text),
            None => self.early.push_str(&text),
        }
    }

    /// Prints changes for `--diff`: file texts as unified differences, anything else as `from -> to`.
    fn differences(&self, report: &TaskReport, out: &mut String) {
        for group in fold_changes(report.changes.iter().map(|change| (report, change))) {
            match &group.change.diff {
                Some(diff) => {
                    for line in visible_lines(diff).lines() {
                        // Every line of a difference begins with one of these, and no line of gpufleet does.
                        let line = match line.starts_with([' ', '+', '-', '@', '\\']) {
                            true => Cow::Borrowed(line),
                            false => Cow::Owned(format!(" {line}")),
                        };
                        let role = match line.bytes().next() {
                            Some(b'+') => Role::Good,
                            Some(b'-') => Role::Bad,
                            Some(b'@') => Role::Busy,
                            _ => Role::Muted,
                        };
                        out.push_str(&self.line(role, &line));
                    }
                    out.push('\n');
                }
                None => {
                    let text = format!(
                        "{} {}: {}",
                        group.gpu_label(),
                        group.change.what_of_gpu(),
                        group.change.values()
                    );
                    let text = clean_block(&clean(&text));
                    out.push_str(&format!("{}\n", text.trim_end()));
                }
            }
        }
    }

    fn recap(&self, model: &RunModel, out: &mut String) {
        out.push_str(&banner("PLAY RECAP"));
        let nodes: BTreeMap<&str, _> = model.nodes().iter().map(|node| (node.name.as_str(), node)).collect();
        for (name, node) in nodes {
            let counts = node.counts();
            let cell = |word: &str, number: u32, role: Role| {
                let text = format!("{word}={number:<4}");
                if number > 0 { self.style.paint(role, text) } else { text }
            };
            let cells = [
                cell("ok", counts.ok, Role::Good),
                cell("changed", counts.changed, Role::Changed),
                cell("unreachable", counts.unreachable, Role::Bad),
                cell("failed", counts.failed, Role::Bad),
                cell("skipped", counts.skipped, Role::Busy),
                cell("rescued", counts.rescued, Role::Good),
                cell("ignored", counts.ignored, Role::Changed),
            ];
            let host = self.style.state(node.state, format!("{name:<26}"));
            out.push_str(&format!("{host} : {}\n", cells.join(" ")));
        }
        out.push('\n');
    }
}

/// Returns `\nTEXT ****`, as Ansible draws it.
fn banner(text: &str) -> String {
    let stars = COLUMNS.saturating_sub(text.chars().count()).max(3);
    format!("\n{text} {}\n", "*".repeat(stars))
}

/// Replaces messages that Ansible's users search for by Ansible's words.
fn as_ansible_says(message: &str) -> Cow<'_, str> {
    match message.strip_prefix("no handler is called `").and_then(|rest| rest.strip_suffix('`')) {
        Some(name) => Cow::Owned(format!(
            "The requested handler '{name}' was not found in either the main handlers list nor in the listening handlers \
             list"
        )),
        None => Cow::Borrowed(message),
    }
}

/// Returns what `register` gets, with what Ansible adds for people.
fn result(report: &TaskReport) -> Value {
    let changed = report.status == TaskStatus::Changed || report.data.get("changed") == Some(&json!(true));
    if report.message.as_deref() == Some("hidden by `no_log`") {
        let censored =
            "the output has been hidden due to the fact that 'no_log: true' was specified for this result";
        return json!({ "censored": censored, "changed": changed });
    }
    let mut result = report.data.clone();
    result.entry("changed").or_insert(json!(changed));
    for stream in ["stdout", "stderr"] {
        if let Some(Value::String(text)) = result.get(stream) {
            let lines: Vec<&str> = text.lines().collect();
            let lines = json!(lines);
            result.entry(format!("{stream}_lines")).or_insert(lines);
        }
    }
    if let Some(message) = &report.message {
        let message = as_ansible_says(message.trim_end());
        if result.get("msg").is_none_or(|msg| msg.as_str() == Some("")) {
            result.insert("msg".to_owned(), json!(message));
        }
    }
    if report.status == TaskStatus::Unreachable {
        result.insert("unreachable".to_owned(), json!(true));
    }
    Value::Object(result)
}

/// Returns what an include task included, and for which item.
fn included(report: &TaskReport) -> Option<(&str, Option<&str>)> {
    let file = report.data.get("include")?.as_str()?;
    let rest = report.message.as_deref()?.strip_prefix("included: ")?.strip_prefix(file)?;
    Some((file, rest.strip_prefix(' '))).filter(|_| report.status == TaskStatus::Ok)
}

/// Returns the result of a task whose purpose is its message.
fn said(report: &TaskReport) -> Value {
    let mut said = report.data.clone();
    for name in ["changed", "failed"] {
        said.remove(name);
    }
    if report.kind == tasks::Assert::INFO.name {
        said.insert("changed".to_owned(), json!(false));
    }
    if said.is_empty() {
        said.insert("msg".to_owned(), json!(report.message.clone().unwrap_or_default()));
    }
    Value::Object(said)
}

/// Returns JSON as Python writes it with sorted keys.
fn json_line(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().collect();
            let entries: Vec<String> = sorted
                .into_iter()
                .map(|(name, value)| {
                    format!("{}: {}", json_text(&Value::from(name.as_str())), json_line(value))
                })
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(json_line).collect();
            format!("[{}]", items.join(", "))
        }
        other => json_text(other),
    }
}

/// Returns JSON with escapes for invisible characters.
fn json_text(value: &Value) -> String {
    visible_json(&value.to_string()).into_owned()
}

/// Returns JSON in lines, indented by 4.
fn json_block(value: &Value) -> String {
    fn write(value: &Value, depth: usize, out: &mut String) {
        let pad = " ".repeat(4 * (depth + 1));
        let end = " ".repeat(4 * depth);
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push_str("{\n");
                let sorted: BTreeMap<&String, &Value> = map.iter().collect();
                for (at, (name, value)) in sorted.into_iter().enumerate() {
                    if at > 0 {
                        out.push_str(",\n");
                    }
                    out.push_str(&format!("{pad}{}: ", json_text(&Value::from(name.as_str()))));
                    write(value, depth + 1, out);
                }
                out.push_str(&format!("\n{end}}}"));
            }
            Value::Array(items) if !items.is_empty() => {
                out.push_str("[\n");
                for (at, value) in items.iter().enumerate() {
                    if at > 0 {
                        out.push_str(",\n");
                    }
                    out.push_str(&pad);
                    write(value, depth + 1, out);
                }
                out.push_str(&format!("\n{end}]"));
            }
            other => out.push_str(&json_text(other)),
        }
    }
    let mut out = String::new();
    write(value, 0, &mut out);
    out
}

/// Returns a node's answer as `ansible PATTERN -m KIND` shows it; `one_line` as with `-o`.
pub fn ad_hoc(host: &str, report: &TaskReport, one_line: bool, diff: bool, style: &Style) -> String {
    let (role, word) = match report.status {
        TaskStatus::Ok => (Role::Good, "SUCCESS"),
        TaskStatus::Changed => (Role::Changed, "CHANGED"),
        TaskStatus::Skipped => (Role::Busy, "SKIPPED"),
        TaskStatus::Possible => (Role::Busy, "POSSIBLE"),
        TaskStatus::Failed => (Role::Bad, "FAILED"),
        TaskStatus::Unreachable => (Role::Bad, "UNREACHABLE!"),
        TaskStatus::Held => (Role::Bad, "HELD!"),
        TaskStatus::Unknown => (Role::Bad, "UNKNOWN!"),
    };
    let mut out = String::new();
    for warning in report.warnings.iter().filter(|_| !one_line) {
        out.push_str(&format!("{}\n", style.paint(Role::Warning, format!("[WARNING]: {}", clean(warning)))));
    }
    if diff && report.status == TaskStatus::Changed {
        AnsibleLines::new(*style, 0, true).differences(report, &mut out);
    }
    if report.status == TaskStatus::Skipped || report.status == TaskStatus::Possible {
        out.push_str(&format!("{}\n", style.paint(role, format!("{host} | {word}"))));
        return out;
    }
    let is_command = matches!(report.kind.as_str(), "command" | "shell" | "raw" | "script");
    let text = |name: &str| report.data.get(name).and_then(Value::as_str).unwrap_or_default();
    if is_command && report.data.contains_key("rc") {
        let rc = report.data.get("rc").map(ToString::to_string).unwrap_or_default();
        if one_line {
            let escaped = |text: &str| visible_lines(text).trim_end_matches('\n').replace('\n', "\\n");
            let mut line = format!("{host} | {word} | rc={rc} | (stdout) {}", escaped(text("stdout")));
            let stderr = escaped(text("stderr"));
            if !stderr.is_empty() {
                line.push_str(&format!(" (stderr) {stderr}"));
            }
            out.push_str(&format!("{}\n", style.paint(role, line)));
            return out;
        }
        out.push_str(&format!("{}\n", style.paint(role, format!("{host} | {word} | rc={rc} >>"))));
        let failed = report.status == TaskStatus::Failed;
        let message = report.message.as_deref().filter(|_| failed).map(clean_block);
        let (stdout, stderr) = (clean_block(text("stdout")), clean_block(text("stderr")));
        for part in [stdout, stderr, message.unwrap_or_default()] {
            let part = part.trim_end_matches('\n');
            if !part.is_empty() {
                out.push_str(&format!("{part}\n"));
            }
        }
        return out;
    }
    let word = if report.status == TaskStatus::Failed { "FAILED!" } else { word };
    let mut shown = if report.kind == tasks::Debug::INFO.name { said(report) } else { result(report) };
    if let Value::Object(map) = &mut shown {
        map.remove("failed");
    }
    let shown = if one_line { json_line(&shown) } else { json_block(&shown) };
    out.push_str(&format!("{}\n", style.paint(role, format!("{host} | {word} => {shown}"))));
    out
}

/// Returns the line for a node without an answer.
pub fn ad_hoc_loss(host: &str, state: NodeState, message: &str, one_line: bool, style: &Style) -> String {
    let word = match state {
        NodeState::Unreachable => "UNREACHABLE!",
        NodeState::Held => "HELD!",
        NodeState::Unknown => "UNKNOWN!",
        _ => "FAILED!",
    };
    let shown = loss(state, message);
    let shown = if one_line { json_line(&shown) } else { json_block(&shown) };
    format!("{}\n", style.paint(Role::Bad, format!("{host} | {word} => {shown}")))
}

/// Returns what is known of a node that ended without a task's result.
fn loss(state: NodeState, message: &str) -> Value {
    let mut result = Map::new();
    result.insert("changed".to_owned(), json!(false));
    result.insert("msg".to_owned(), json!(clean(message)));
    if state == NodeState::Unreachable {
        result.insert("unreachable".to_owned(), json!(true));
    }
    Value::Object(result)
}

#[cfg(test)]
mod tests;
