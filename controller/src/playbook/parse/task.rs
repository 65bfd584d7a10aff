//! Tasks and blocks.

use std::sync::Arc;

use gpufleet_protocol::tasks::{Class, KINDS, KindInfo, find};

use super::play::said;
use super::values::part;
use super::{Parser, join, keys, words};
use crate::diagnostic::{Diagnostic, Span, suggest};
use crate::playbook::names::Reference;
use crate::playbook::params::{ParamProblem, check_one, parse, whole};
use crate::playbook::policy::OnInterrupt;
use crate::playbook::program::{
    Block, Condition, Flag, Item, Items, Loop, Parameter, Parameters, Privilege, SectionName, Task, is_gpu,
};
use crate::template::{Dict, Value};
use crate::yaml::{Node, Value as Yaml};

/// What tasks get from the play and their blocks.
#[derive(Clone)]
pub(super) struct Inherited {
    pub directory: String,
    pub section: SectionName,
    pub when: Vec<Condition>,
    pub vars: Vec<Arc<Dict>>,
    pub tags: Vec<String>,
    pub privilege: Privilege,
    pub environment: Vec<Value>,
    pub ignore_errors: Option<Flag>,
    pub ignore_unreachable: bool,
    pub no_log: bool,
    pub run_once: bool,
    pub any_errors_fatal: bool,
    pub timeout_s: Option<u64>,
    /// What `rollout` says for reboots that say nothing themselves.
    pub reboot_timeout_s: Option<u64>,
    /// Names that a condition of an enclosing block tests for their existence.
    pub guarded: Vec<String>,
}

impl Default for Inherited {
    fn default() -> Self {
        Self {
            directory: String::new(),
            section: SectionName::Tasks,
            when: Vec::new(),
            vars: Vec::new(),
            tags: Vec::new(),
            privilege: Privilege::default(),
            environment: Vec::new(),
            ignore_errors: None,
            ignore_unreachable: false,
            no_log: false,
            run_once: false,
            any_errors_fatal: false,
            timeout_s: None,
            reboot_timeout_s: None,
            guarded: Vec::new(),
        }
    }
}

const IMPORTS: &[&str] =
    &["import_tasks", "include_tasks", "ansible.builtin.import_tasks", "ansible.builtin.include_tasks"];

impl Parser<'_> {
    /// A list of tasks and blocks; `path` is its place in the play.
    pub(super) fn items(&mut self, node: &Node, inherited: &Inherited, what: &str, path: &str) -> Items {
        if node.is_null() {
            return Items::from([]);
        }
        let Some(list) = node.as_seq() else {
            self.error(node.wrong_type(&format!("`{what}`"), "a list of tasks"));
            return Items::from([]);
        };
        let mut items: Vec<Item> = Vec::new();
        let mut group: Vec<Arc<Task>> = Vec::new();
        let finish = |items: &mut Vec<Item>, group: &mut Vec<Arc<Task>>| {
            if !group.is_empty() {
                items.push(Item::GpuGroup(std::mem::take(group).into()));
            }
        };
        for (index, entry) in list.iter().enumerate() {
            let path = format!("{path}.{index}");
            match self.item(entry, inherited, &path) {
                Some(Item::Task(task)) if task.is_gpu() && inherited.section != SectionName::Handlers => {
                    let uses_earlier = group
                        .iter()
                        .filter_map(|member| member.register.as_ref())
                        .any(|name| task.references.iter().any(|reference| reference.name == **name));
                    if uses_earlier {
                        finish(&mut items, &mut group);
                    }
                    group.push(task);
                }
                Some(item) => {
                    finish(&mut items, &mut group);
                    items.push(item);
                }
                None => {}
            }
        }
        finish(&mut items, &mut group);
        items.into()
    }

    fn item(&mut self, node: &Node, inherited: &Inherited, path: &str) -> Option<Item> {
        let Some(entries) = node.as_map() else {
            let mut error = node.wrong_type("a task", "a mapping such as `command: uname -r`");
            if node.as_str().is_some_and(|text| text.contains('=')) {
                error = error.help("write the kind as a key: `kind: …`");
            }
            self.error(error);
            return None;
        };
        if keys::BLOCK.iter().any(|key| node.get(key).is_some()) {
            return self.block(node, inherited, path).map(|block| Item::Block(Arc::new(block)));
        }
        if let Some((key, file)) =
            entries.iter().find(|(key, _)| key.as_str().is_some_and(|key| IMPORTS.contains(&key)))
        {
            return self.import(node, key, file, inherited, path);
        }
        self.task(node, inherited, path).map(|task| Item::Task(Arc::new(task)))
    }

    /// What a block or task says, over what it inherits.
    fn inherit(&mut self, node: &Node, outer: &Inherited) -> Inherited {
        let mut own = outer.clone();
        if let Some(when) = node.get("when") {
            own.when.extend(self.conditions("when", when));
        }
        own.guarded.extend(self.references.iter().filter(|r| r.guarded).map(|r| r.name.clone()));
        if let Some(vars) = node.get("vars") {
            own.vars.push(self.vars(vars));
        }
        if let Some(tags) = node.get("tags") {
            for tag in self.words("tags", tags) {
                if !own.tags.contains(&tag) {
                    own.tags.push(tag);
                }
            }
        }
        own.privilege = self.privilege(node).over(&outer.privilege);
        if let Some(environment) = node.get("environment") {
            if environment.as_map().is_none() && environment.as_str().is_none() {
                self.error(environment.wrong_type("`environment`", "a mapping"));
            }
            own.environment.push(self.value(environment));
        }
        let flag = node.get("ignore_errors").map(|value| self.flag("ignore_errors", value));
        own.ignore_errors = said(flag, outer.ignore_errors.as_ref());
        for (key, place) in [
            ("ignore_unreachable", &mut own.ignore_unreachable),
            ("no_log", &mut own.no_log),
            ("run_once", &mut own.run_once),
            ("any_errors_fatal", &mut own.any_errors_fatal),
        ] {
            if let Some(value) = node.get(key) {
                *place = self.fixed_flag(key, value);
            }
        }
        if let Some(timeout) = node.get("timeout") {
            own.timeout_s = self.seconds("timeout", timeout);
        }
        own
    }

    fn block(&mut self, node: &Node, outer: &Inherited, path: &str) -> Option<Block> {
        let mut span = node.span.clone();
        for (key, _) in node.as_map().unwrap_or_default() {
            let text = key.key_text();
            if text == "block" {
                span = key.span.clone();
            }
            if keys::SHARED.contains(&text.as_str()) || keys::BLOCK.contains(&text.as_str()) {
                continue;
            }
            self.error(match keys::not_yet(&text) {
                Some(hint) => {
                    Diagnostic::error(format!("`{text}` is not available yet")).at(&key.span).help(hint)
                }
                None => Diagnostic::error(format!("unknown key `{text}`"))
                    .at(&key.span)
                    .label("not a key of a block")
                    .suggest(&text, keys::SHARED.iter().chain(keys::BLOCK).copied()),
            });
        }
        let kept = self.take_references();
        let own = self.inherit(node, outer);
        let references = self.take_references();
        self.block_references(&references, &own);
        let Some(body) = node.get("block") else {
            self.error(
                Diagnostic::error("`rescue` and `always` need a `block`")
                    .at(&node.span)
                    .help("put the tasks before into `block:`"),
            );
            return None;
        };
        let block = Block {
            name: node.get("name").and_then(|name| self.text("name", name)),
            span,
            body: self.items(body, &own, "block", path),
            rescue: node.get("rescue").map_or_else(
                || Items::from([]),
                |n| self.items(n, &own, "rescue", &format!("{path}.rescue")),
            ),
            always: node.get("always").map_or_else(
                || Items::from([]),
                |n| self.items(n, &own, "always", &format!("{path}.always")),
            ),
        };
        self.references = kept;
        Some(block)
    }

    /// Uses of variables in the keys of a block; they are checked with the play.
    fn block_references(&mut self, references: &[Reference], own: &Inherited) {
        let found = settle(references.to_vec(), own, &[]);
        self.block_references.extend(found);
    }

    fn import(
        &mut self,
        node: &Node,
        key: &Node,
        file: &Node,
        outer: &Inherited,
        path: &str,
    ) -> Option<Item> {
        let kind = key.key_text();
        for (other, _) in node.as_map().unwrap_or_default() {
            let text = other.key_text();
            if text == kind || keys::SHARED.contains(&text.as_str()) {
                continue;
            }
            self.error(
                Diagnostic::error(format!("`{text}` cannot stand beside `{kind}`"))
                    .at(&other.span)
                    .help("put it at the tasks of the file"),
            );
        }
        let name = self.literal_file(file, &kind)?;
        let kept = self.take_references();
        let mut own = self.inherit(node, outer);
        let references = self.take_references();
        self.block_references(&references, &own);
        let full = join(&own.directory, &name);
        own.directory = super::directory_of(&full);
        self.imports += 1;
        let body = match self.file(&full, Some(&file.span)) {
            Some(root) => self.items(&root, &own, &name, path),
            None => Items::from([]),
        };
        self.imports -= 1;
        self.references = kept;
        let name = node.get("name").and_then(|name| self.text("name", name));
        let (rescue, always) = (Items::from([]), Items::from([]));
        Some(Item::Block(Arc::new(Block { name, span: key.span.clone(), body, rescue, always })))
    }

    fn task(&mut self, node: &Node, outer: &Inherited, path: &str) -> Option<Task> {
        let (kind, key, value) = self.kind_of(node)?;
        self.take_references();
        let own = self.inherit(node, outer);
        let name = node.get("name").filter(|name| !name.is_null()).map(|name| self.value(name));
        let looped = self.looped(node);
        let params = self.parameters(kind, &key.span, value, node.get("args"), &own);
        let conditions =
            |parser: &mut Self, key: &str| node.get(key).map(|value| parser.conditions(key, value));
        let own_register: Vec<String> =
            node.get("register").and_then(Node::as_str).map(ToOwned::to_owned).into_iter().collect();
        let before = self.references.len();
        let changed_when = conditions(self, "changed_when");
        let failed_when = conditions(self, "failed_when");
        // Why: only these two see the task's own result.
        let mut after = self.references.split_off(before);
        after.retain(|reference| !own_register.contains(&reference.name));
        self.references.append(&mut after);
        let register = node.get("register").and_then(|value| self.name("register", value));
        let mut notify = Vec::new();
        let mut notify_spans = Vec::new();
        if let Some(value) = node.get("notify") {
            for item in value.as_seq().unwrap_or(std::slice::from_ref(value)) {
                if item.as_str().is_none() {
                    self.error(item.wrong_type("`notify`", "the name of a handler or a list of them"));
                    continue;
                }
                notify.push(self.value(item));
                notify_spans.push(item.span.clone());
            }
        }
        let listen = match node.entry("listen") {
            Some((key, _)) if own.section != SectionName::Handlers => {
                self.error(Diagnostic::error("`listen` is a key of handlers").at(&key.span));
                Vec::new()
            }
            Some((_, value)) => {
                let items = value.as_seq().unwrap_or(std::slice::from_ref(value));
                items.iter().filter_map(|item| self.text("listen", item)).collect()
            }
            None => Vec::new(),
        };
        let mut local: Vec<&str> = Vec::new();
        if let Some(looped) = &looped {
            local.push(&looped.variable);
            local.extend(looped.index_variable.as_deref());
            local.push("ansible_loop");
        }
        let found = self.take_references();
        let references = settle(found, &own, &local);
        let on_interrupt = match node.entry("on_interrupt") {
            Some((key, value)) => self.on_interrupt(kind, key, value),
            None => OnInterrupt::default(),
        };
        let disturbs = kind.disruption > gpufleet_protocol::Disruption::Live || is_gpu(kind);
        if own.run_once && disturbs {
            self.error(
                Diagnostic::error(format!("`run_once` cannot be used with `{}`", kind.name))
                    .at(&key.span)
                    .label("it may disturb the node")
                    .help("give the play a pattern that names the one host"),
            );
        }
        Some(Task {
            path: Arc::from(path),
            section: own.section,
            name,
            kind,
            span: key.span.clone(),
            params,
            when: own.when,
            looped,
            register,
            changed_when,
            failed_when,
            ignore_errors: own.ignore_errors.unwrap_or_default(),
            ignore_unreachable: own.ignore_unreachable,
            notify,
            notify_spans,
            listen,
            tags: own.tags,
            vars: own.vars,
            privilege: own.privilege,
            environment: own.environment,
            no_log: own.no_log,
            timeout_s: own.timeout_s,
            run_once: own.run_once,
            any_errors_fatal: own.any_errors_fatal,
            on_interrupt,
            references,
        })
    }

    fn on_interrupt(&mut self, kind: &KindInfo, key: &Node, value: &Node) -> OnInterrupt {
        if kind.class != Class::Command {
            self.error(
                Diagnostic::error(format!("`on_interrupt` cannot be used with `{}`", kind.name))
                    .at(&key.span)
                    .label("a key of command, shell and script")
                    .help("leave it out: a resumed run plans this task again and does what is left"),
            );
            return OnInterrupt::default();
        }
        let words = OnInterrupt::ALL.map(OnInterrupt::as_str);
        let text = value.scalar_text().unwrap_or_default();
        if let Some(found) = OnInterrupt::ALL.into_iter().find(|known| known.as_str() == text) {
            return found;
        }
        self.error(match value.as_str() {
            Some(text) => Diagnostic::error(format!("unknown `on_interrupt` \"{text}\""))
                .at(&value.span)
                .label("hold, rerun or fail")
                .suggest(text, words),
            None => value.wrong_type("`on_interrupt`", "hold, rerun or fail"),
        });
        OnInterrupt::default()
    }

    /// The kind of a task, and the errors for every key that is none of a task.
    fn kind_of<'n>(&mut self, node: &'n Node) -> Option<(&'static KindInfo, &'n Node, &'n Node)> {
        let entries = node.as_map().unwrap_or_default();
        let mut kinds = Vec::new();
        let mut unknown = Vec::new();
        for (key, value) in entries {
            let text = key.key_text();
            if keys::SHARED.contains(&text.as_str()) || keys::TASK.contains(&text.as_str()) {
                continue;
            }
            match find(&text) {
                Some(kind) => kinds.push((kind, key, value)),
                None => unknown.push((text, key)),
            }
        }
        for (text, key) in &unknown {
            let near_key = suggest(text, keys::SHARED.iter().chain(keys::TASK).copied());
            let near_kind = suggest_kind(text);
            let error = if let Some(hint) = keys::not_yet(text) {
                Diagnostic::error(format!("`{text}` is not available yet")).at(&key.span).help(hint)
            } else if kinds.is_empty() && (near_key.is_none() || near_kind.is_some()) {
                let error = Diagnostic::error(format!("unknown task `{text}`"))
                    .at(&key.span)
                    .label("no task kind of this name");
                match near_kind {
                    Some(name) => {
                        error.help(format!("did you mean `{name}`? `gpufleet doc` lists all kinds"))
                    }
                    None => error.help("`gpufleet doc` lists all kinds"),
                }
            } else {
                let error = Diagnostic::error(format!("unknown key `{text}`"))
                    .at(&key.span)
                    .label("not a key of a task");
                match (near_key.or(near_kind), kinds.first()) {
                    (Some(near), _) => error.help(format!("did you mean `{near}`?")),
                    (None, Some((kind, ..)))
                        if (kind.parse)(serde_json::json!({ text.as_str(): null }))
                            .is_err_and(|e| !e.message.starts_with("unknown field")) =>
                    {
                        error.help(format!("it is a parameter: indent it below `{}`", kind.name))
                    }
                    _ => error,
                }
            };
            self.error(error);
        }
        match kinds.as_slice() {
            [one] => Some(*one),
            [] => {
                if unknown.is_empty() {
                    let place = entries.first().map_or(&node.span, |(key, _)| &key.span);
                    self.error(
                        Diagnostic::error("a task without a kind")
                            .at(place)
                            .label("nothing here says what to do")
                            .help("add one, such as `command: uname -r`; `gpufleet doc` lists all kinds"),
                    );
                }
                None
            }
            [(first, ..), (second, key, _), ..] => {
                self.error(
                    Diagnostic::error(format!(
                        "one task has two kinds: `{}` and `{}`",
                        first.name, second.name
                    ))
                    .at(&key.span)
                    .label("the second")
                    .help("begin another task with `- `"),
                );
                None
            }
        }
    }

    fn looped(&mut self, node: &Node) -> Option<Loop> {
        let (items, flatten) = match (node.entry("loop"), node.entry("with_items")) {
            (Some(_), Some((key, _))) => {
                self.error(Diagnostic::error("`loop` and `with_items` are two loops").at(&key.span));
                return None;
            }
            (Some((_, items)), None) => (items, false),
            (None, Some((_, items))) => (items, true),
            (None, None) => {
                if let Some((key, _)) = node.entry("loop_control") {
                    self.error(Diagnostic::error("`loop_control` without `loop`").at(&key.span));
                }
                return None;
            }
        };
        let single = items.as_str().is_some_and(|text| !crate::template::is_template(text));
        if !flatten && (single || (items.as_seq().is_none() && items.as_str().is_none())) {
            self.error(
                items
                    .wrong_type("`loop`", "a list or a template that gives one")
                    .help("write a list, or `loop: \"{{ name }}\"`"),
            );
        }
        let mut looped = Loop {
            items: self.value(items),
            span: items.span.clone(),
            flatten,
            variable: Arc::from("item"),
            index_variable: None,
            label: None,
        };
        if let Some(control) = node.get("loop_control") {
            if control.as_map().is_none() {
                self.error(control.wrong_type("`loop_control`", "a mapping"));
                return Some(looped);
            }
            let unknown = control.refuse_unknown_keys(
                "`loop_control`",
                &["loop_var", "index_var", "label", "extended", "pause"],
            );
            self.errors.append(unknown);
            for key in ["extended", "pause"] {
                if let Some((key_node, _)) = control.entry(key) {
                    self.error(Diagnostic::error(format!("`{key}` is not available yet")).at(&key_node.span));
                }
            }
            if let Some(name) = control.get("loop_var").and_then(|value| self.name("loop_var", value)) {
                looped.variable = name;
            }
            looped.index_variable = control.get("index_var").and_then(|value| self.name("index_var", value));
            looped.label = control.get("label").map(|value| self.value(value));
        }
        Some(looped)
    }

    fn parameters(
        &mut self,
        kind: &'static KindInfo,
        kind_span: &Span,
        node: &Node,
        args: Option<&Node>,
        own: &Inherited,
    ) -> Parameters {
        let mut entries: Vec<Parameter> = Vec::new();
        let before = self.errors.0.len();
        if let Some(args) = args {
            match args.as_map() {
                Some(_) => self.parameter_map(kind, args, &mut entries),
                None if args.is_null() => {}
                None => self.error(args.wrong_type("`args`", "a mapping")),
            }
        }
        let mut written = Vec::new();
        match &node.value {
            Yaml::Map(_) => self.parameter_map(kind, node, &mut written),
            Yaml::Null => {}
            Yaml::Str(text) => self.parameter_text(kind, node, &text.text, &mut written),
            Yaml::Bool(_) | Yaml::Int(_) | Yaml::Float(_) if kind.free_form.is_some() => {
                let text = node.scalar_text().unwrap_or_default();
                self.parameter_text(kind, node, &text, &mut written);
            }
            _ => self.error(
                node.wrong_type(&format!("`{}`", kind.name), "a mapping of parameters")
                    .help(format!("for example `{}`", kind.example)),
            ),
        }
        entries.retain(|entry| !written.iter().any(|written| written.name == entry.name));
        entries.append(&mut written);
        if self.errors.0.len() > before {
            return Parameters { entries, fixed: None };
        }
        let says_how_long = |entry: &Parameter| matches!(&*entry.name, "timeout" | "reboot_timeout");
        if let Some(seconds) = own.reboot_timeout_s.filter(|_| kind.name == "reboot")
            && !entries.iter().any(says_how_long)
        {
            entries.push(Parameter {
                name: Arc::from("timeout"),
                value: Value::literal(&seconds.into()),
                key_span: kind_span.clone(),
                span: kind_span.clone(),
            });
        }
        let fixed = self.check_parameters(kind, kind_span, &entries, own.no_log);
        Parameters { entries, fixed }
    }

    fn parameter_map(&mut self, kind: &KindInfo, node: &Node, entries: &mut Vec<Parameter>) {
        for (key, value) in node.as_map().unwrap_or_default() {
            let name = key.key_text();
            let parsed = match (kind.name, name.as_str()) {
                ("assert", "that") => self.assertions(value),
                ("debug", "var") => {
                    if let Some(text) = value.as_str() {
                        self.expression(value, text);
                    }
                    Value::literal(&value.to_json())
                }
                _ => self.value(value),
            };
            entries.push(Parameter {
                name: Arc::from(name),
                value: parsed,
                key_span: key.span.clone(),
                span: value.span.clone(),
            });
        }
    }

    /// `that` of `assert`: expressions, which are not rendered but evaluated.
    fn assertions(&mut self, node: &Node) -> Value {
        let conditions = self.conditions("that", node);
        Value::list(conditions.into_iter().map(|condition| Value::Str(condition.text)).collect())
    }

    /// `kind: text`: `key=value` words, free text, or both.
    fn parameter_text(&mut self, kind: &KindInfo, node: &Node, text: &str, entries: &mut Vec<Parameter>) {
        let runs = matches!(kind.name, "command" | "shell" | "script");
        let known = |key: &str| {
            if runs {
                return matches!(
                    key,
                    "creates" | "removes" | "chdir" | "executable" | "stdin" | "argv" | "cmd"
                );
            }
            kind.open_keys
                || (kind.parse)(serde_json::json!({ key: null }))
                    .err()
                    .is_none_or(|error| !error.message.starts_with("unknown field"))
        };
        let mut free = String::new();
        let mut copied = 0;
        let all = words::split(text);
        let pairs: Vec<_> = all
            .iter()
            .filter_map(|(at, word)| Some((*at, *word, words::pair(word)?)))
            .filter(|(_, _, (key, _))| known(key))
            .collect();
        for (at, word, (key, value)) in &pairs {
            free.push_str(text.get(copied..*at).unwrap_or_default());
            copied = at + word.len();
            let span = part(node, at + key.len() + 1..at + word.len());
            let inner =
                Node { value: Yaml::Str(crate::yaml::Str { text: value.clone(), plain: true }), span };
            let value = match (kind.name, *key) {
                ("assert", "that") => self.assertions(&inner),
                ("debug", "var") => {
                    self.expression(&inner, value);
                    Value::str(value)
                }
                _ => self.value(&inner),
            };
            entries.push(Parameter {
                name: Arc::from(*key),
                value,
                key_span: part(node, *at..at + key.len()),
                span: inner.span.clone(),
            });
        }
        free.push_str(text.get(copied..).unwrap_or_default());
        let free = free.trim();
        if free.is_empty() {
            return;
        }
        match kind.free_form {
            Some(name) => {
                let inner = Node {
                    value: Yaml::Str(crate::yaml::Str { text: free.to_owned(), plain: plain(node) }),
                    span: node.span.clone(),
                };
                let value = self.value(&inner);
                entries.push(Parameter {
                    name: Arc::from(name),
                    value,
                    key_span: node.span.clone(),
                    span: node.span.clone(),
                });
            }
            None => {
                let mut error =
                    Diagnostic::error(format!("`{}` wants a mapping of parameters, got text", kind.name))
                        .at(&node.span);
                if let Some((at, word)) =
                    all.iter().find(|(_, word)| words::pair(word).is_some_and(|(key, _)| !known(key)))
                    && let Some((key, _)) = words::pair(word)
                {
                    error = Diagnostic::error(format!("`{}` has no parameter `{key}`", kind.name))
                        .at(&part(node, *at..at + key.len()));
                }
                self.error(error.help(format!("for example `{}`", kind.example)));
            }
        }
    }

    /// Literal parameters against the kind; those with templates are left for the run.
    fn check_parameters(
        &mut self,
        kind: &'static KindInfo,
        kind_span: &Span,
        entries: &[Parameter],
        secret: bool,
    ) -> Option<Arc<gpufleet_protocol::tasks::Params>> {
        let mut values = serde_json::Map::new();
        let mut complete = true;
        let mut wrong = false;
        for entry in entries {
            if crate::template::is_template(&entry.name) {
                complete = false;
                continue;
            }
            let json = if entry.value.is_settled() {
                entry.value.to_json()
            } else {
                complete = false;
                // Why: the name can be wrong even where the value is not known yet.
                if let Some(problem) = check_one(kind, &entry.name, &serde_json::Value::Null)
                    && problem.name_is_wrong
                {
                    wrong = true;
                    self.parameter_problem(&problem, kind_span, entries, secret);
                }
                continue;
            };
            if let Some(problem) = check_one(kind, &entry.name, &json) {
                wrong = true;
                self.parameter_problem(&problem, kind_span, entries, secret);
            }
            values.insert(entry.name.to_string(), json);
        }
        if wrong || !complete {
            if !wrong {
                self.missing_parameters(kind, kind_span, entries, values);
            }
            return None;
        }
        match parse(kind, &values) {
            Ok(params) => Some(Arc::new(params)),
            Err(error) => {
                self.parameter_problem(&whole(kind, error), kind_span, entries, secret);
                None
            }
        }
    }

    /// A required parameter that is not written is missing, whatever the others will be.
    fn missing_parameters(
        &mut self,
        kind: &'static KindInfo,
        kind_span: &Span,
        entries: &[Parameter],
        values: serde_json::Map<String, serde_json::Value>,
    ) {
        if let Err(error) = (kind.parse)(serde_json::Value::Object(values)) {
            let problem = whole(kind, error);
            let given =
                entries.iter().any(|entry| problem.message.contains(&format!("needs `{}`", entry.name)));
            // Why: an alias may stand for the parameter that is asked for; then the run tells.
            let aliased = entries.iter().any(|entry| !entry.value.is_settled());
            if problem.incomplete && !given && !aliased {
                self.parameter_problem(&problem, kind_span, entries, false);
            }
        }
    }

    fn parameter_problem(
        &mut self,
        problem: &ParamProblem,
        kind_span: &Span,
        entries: &[Parameter],
        secret: bool,
    ) {
        let entry =
            problem.parameter.as_ref().and_then(|name| entries.iter().find(|entry| *entry.name == **name));
        let span = match entry {
            Some(entry) if problem.name_is_wrong => &entry.key_span,
            Some(entry) => &entry.span,
            None => kind_span,
        };
        let message = if secret && !problem.name_is_wrong {
            problem.message.split(", got ").next().unwrap_or_default()
        } else {
            &problem.message
        };
        let mut error = Diagnostic::error(message).at(span);
        if let Some(help) = &problem.help {
            error = error.help(help);
        }
        if secret {
            error = error.without_excerpt();
        }
        self.error(error);
    }
}

fn plain(node: &Node) -> bool {
    matches!(&node.value, Yaml::Str(text) if text.plain)
}

fn suggest_kind(text: &str) -> Option<&'static str> {
    let names = KINDS.iter().flat_map(|kind| kind.aliases.iter().copied().chain([kind.name]));
    suggest(text, names)
}

/// Drops what the task itself provides, and marks what a condition on the way tests for.
fn settle(references: Vec<Reference>, own: &Inherited, local: &[&str]) -> Vec<Reference> {
    let tested: Vec<String> = references
        .iter()
        .filter(|reference| reference.guarded)
        .map(|reference| reference.name.clone())
        .chain(own.guarded.iter().cloned())
        .collect();
    references
        .into_iter()
        .filter(|reference| {
            !local.contains(&reference.name.as_str())
                && !own.vars.iter().any(|vars| vars.contains(&reference.name))
        })
        .map(|mut reference| {
            reference.guarded |= tested.contains(&reference.name);
            reference
        })
        .collect()
}
