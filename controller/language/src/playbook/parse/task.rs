//! Tasks and blocks.

use std::collections::HashSet;
use std::sync::Arc;

use gpufleet_protocol::tasks::{
    Class, IncludeRole, IncludeTasks, IncludeVars, KindInfo, Pause, Template, find,
};

use super::include::Around;
use super::kind::mistyped_task;
use super::play::said;
use super::reach::{LogsIn, plain};
use super::values::settle;
use super::{Parser, join, keys};
use crate::diagnostic::{Diagnostic, Span};
use crate::playbook::names::{OF_OTHERS, Reference, mentions_fact};
use crate::playbook::policy::OnInterrupt;
use crate::playbook::program::{
    Block, Condition, Flag, Item, Items, Parameters, Privilege, Retry, SectionName, Task,
};
use crate::playbook::role::Role;
use crate::template::{Dict, Value, wanted_templates};
use crate::yaml::{Entries, Node, Str, Value as Yaml};

/// What tasks inherit from the play and their blocks.
#[derive(Clone, Debug)]
pub(in crate::playbook) struct Inherited {
    /// The folder of the file that they are written in.
    pub directory: String,
    pub section: SectionName,
    pub when: Vec<Condition>,
    pub vars: Vec<Arc<Dict>>,
    /// `vars` of the includes around it, and the parameters of the roles around those; outermost first.
    pub given: Vec<Arc<Dict>>,
    pub tags: Vec<String>,
    pub privilege: Privilege,
    pub environment: Vec<Value>,
    pub ignore_errors: Option<Flag>,
    pub ignore_unreachable: bool,
    pub no_log: bool,
    /// A template over a host's variables that may hide them too.
    pub hidden_when: Option<Flag>,
    pub run_once: bool,
    pub once_when: Option<Flag>,
    pub any_errors_fatal: bool,
    pub timeout_s: Option<u64>,
    pub late_timeout: Option<Value>,
    /// Time limit for reboots that set none, from `rollout`.
    pub reboot_timeout_s: Option<u64>,
    /// Names whose existence a condition of an enclosing block tests.
    pub guarded: Vec<String>,
    /// Names that a loop around an include defines.
    pub locals: Vec<Arc<str>>,
    pub role: Option<Arc<Role>>,
    pub search: Arc<[String]>,
    pub delegate_to: Option<Value>,
    pub delegate_facts: bool,
    pub throttle: Option<Value>,
    pub check_mode: Option<Flag>,
    pub notify: Vec<(Value, Span)>,
    /// `module_defaults`: parameters of a kind for tasks that do not set them; inner ones last.
    pub defaults: Vec<(&'static KindInfo, Arc<Dict>)>,
    /// Variables of the play that are known before any host, in falling precedence.
    pub statics: Vec<Arc<Dict>>,
    /// `remote_user` and `connection` of the play.
    pub logs_in: LogsIn,
}

impl Default for Inherited {
    fn default() -> Self {
        Self {
            directory: String::new(),
            section: SectionName::Tasks,
            when: Vec::new(),
            vars: Vec::new(),
            given: Vec::new(),
            tags: Vec::new(),
            privilege: Privilege::default(),
            environment: Vec::new(),
            ignore_errors: None,
            ignore_unreachable: false,
            no_log: false,
            hidden_when: None,
            run_once: false,
            once_when: None,
            any_errors_fatal: false,
            timeout_s: None,
            late_timeout: None,
            reboot_timeout_s: None,
            guarded: Vec::new(),
            locals: Vec::new(),
            role: None,
            search: Arc::from([]),
            delegate_to: None,
            delegate_facts: false,
            throttle: None,
            check_mode: None,
            notify: Vec::new(),
            defaults: Vec::new(),
            statics: Vec::new(),
            logs_in: LogsIn::default(),
        }
    }
}

impl Parser<'_> {
    /// Parses a list of tasks and blocks; `path` is its place in the play.
    pub(super) fn items(&mut self, node: &Node, inherited: &Inherited, what: &str, path: &str) -> Items {
        if node.is_null() {
            return Items::from([]);
        }
        let Some(list) = node.as_seq() else {
            let error = node.wrong_type(&format!("`{what}`"), "a list of tasks");
            self.error(match node.as_map() {
                Some(_) => error.help("begin each task with `- `"),
                None => error,
            });
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
            let error = node.wrong_type("a task", "a mapping such as `command: uname -r`");
            self.error(match node.as_str().and_then(mistyped_task) {
                Some(help) => error.help(help),
                None => error,
            });
            return None;
        };
        if keys::BLOCK.iter().any(|key| node.get(key).is_some()) {
            return self.block(node, inherited, path).map(|block| Item::Block(Arc::new(block)));
        }
        for (key, value) in entries {
            match plain(&key.key_text()) {
                "import_tasks" => return self.import_tasks(node, key, value, inherited, path),
                "import_role" => return self.import_role(node, key, value, inherited, path),
                _ => {}
            }
        }
        let rewritten = self.with_action(node);
        let node = rewritten.as_ref().unwrap_or(node);
        self.task(node, inherited, path).map(|task| Item::Task(Arc::new(task)))
    }

    /// Returns what the tasks of a block, or a task, inherit.
    pub(super) fn inherit(&mut self, node: &Node, outer: &Inherited) -> Inherited {
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
            let is_template = |node: &Node| node.as_str().is_some_and(crate::template::is_template);
            let fits = |node: &Node| node.as_map().is_some() || is_template(node) || node.is_null();
            if !items_of(environment).iter().all(fits) {
                self.error(environment.wrong_type("`environment`", "a mapping"));
            }
            own.environment.push(self.value(environment));
        }
        let flag = node.get("ignore_errors").map(|value| self.flag("ignore_errors", value));
        own.ignore_errors = said(flag, outer.ignore_errors.as_ref());
        let seen = self.layers_of(&own);
        for (key, place) in [
            ("ignore_unreachable", &mut own.ignore_unreachable),
            ("delegate_facts", &mut own.delegate_facts),
            ("any_errors_fatal", &mut own.any_errors_fatal),
        ] {
            if let Some(value) = node.get(key) {
                *place = self.fixed_flag_in(key, value, &seen);
            }
        }
        if let Some(value) = node.get("run_once") {
            (own.run_once, own.once_when) = self.late_flag("run_once", value, &seen);
        }
        if let Some(value) = node.get("no_log") {
            (own.no_log, own.hidden_when) = self.no_log(value);
        }
        if let Some(timeout) = node.get("timeout") {
            (own.timeout_s, own.late_timeout) = self.late_seconds("timeout", timeout, &seen);
        }
        if let Some(host) = node.get("delegate_to") {
            own.delegate_to = Some(self.value(host)).filter(|host| !matches!(host, Value::Null));
        }
        // A task with a local connection runs on the controller, as if delegated to localhost.
        if node.get("connection").and_then(Node::as_str).map(plain) == Some("local") {
            own.delegate_to.get_or_insert_with(|| Value::str("localhost"));
        }
        self.reached_as_the_play(node);
        if let Some(throttle) = node.get("throttle") {
            own.throttle = Some(self.value(throttle));
        }
        if let Some(check) = node.get("check_mode") {
            own.check_mode = Some(self.flag("check_mode", check));
        }
        if let Some(value) = node.get("diff") {
            self.flag("diff", value);
        }
        if node.get("notify").is_some() {
            // As in Ansible, a task's own handlers replace those of its block.
            own.notify.clear();
        }
        for item in node.get("notify").map(items_of).unwrap_or_default() {
            if item.as_str().is_none() {
                self.error(item.wrong_type("`notify`", "the name of a handler or a list of them"));
                continue;
            }
            let name = self.value(item);
            own.notify.push((name, item.span.clone()));
        }
        if let Some(defaults) = node.get("module_defaults") {
            self.module_defaults(defaults, &mut own.defaults);
        }
        own
    }

    fn module_defaults(&mut self, node: &Node, defaults: &mut Vec<(&'static KindInfo, Arc<Dict>)>) {
        if node.as_map().is_none() && !node.is_null() {
            self.error(node.wrong_type("`module_defaults`", "a mapping of kinds to parameters"));
        }
        for (key, value) in node.as_map().unwrap_or_default() {
            let name = key.key_text();
            if name.starts_with("group/") {
                self.error(
                    Diagnostic::error("groups of modules have no defaults here")
                        .at(&key.span)
                        .help("give the parameters for each kind"),
                );
                continue;
            }
            match find(&name) {
                Some(kind) => {
                    let parameters = self.dict(value);
                    defaults.push((kind, Arc::new(parameters)));
                }
                // A warning only: defaults that no task uses change nothing.
                None => self.warnings.push(
                    Diagnostic::warning(format!("there is no kind `{name}`"))
                        .at(&key.span)
                        .label("these defaults are not used"),
                ),
            }
        }
    }

    /// Replaces `action` and `local_action` by the key that they stand for.
    fn with_action(&mut self, node: &Node) -> Option<Node> {
        let entries = node.as_map()?;
        let (at, (key, value)) = entries
            .iter()
            .enumerate()
            .find(|(_, (key, _))| matches!(key.as_str(), Some("action" | "local_action")))?;
        let local = key.as_str() == Some("local_action");
        let (kind, rest) = match (&value.value, value.get("module").and_then(Node::as_str)) {
            (Yaml::Str(text), _) => {
                let (kind, rest) =
                    text.text.trim().split_once(char::is_whitespace).unwrap_or((&text.text, ""));
                let rest = Yaml::Str(Str { text: rest.trim().to_owned(), plain: false });
                (kind.trim().to_owned(), Node { value: rest, span: value.span.clone() })
            }
            (Yaml::Map(all), Some(kind)) => {
                let rest: Entries =
                    all.iter().filter(|(key, _)| key.as_str() != Some("module")).cloned().collect();
                (kind.to_owned(), Node { value: Yaml::Map(rest), span: value.span.clone() })
            }
            _ => {
                self.error(
                    value
                        .wrong_type(&format!("`{}`", key.key_text()), "a kind with its parameters")
                        .help("write the kind as a key: `command: …`"),
                );
                return None;
            }
        };
        let text = |text: String| Yaml::Str(Str { text, plain: true });
        let mut entries: Entries = entries.to_vec();
        entries[at] = (Node { value: text(kind), span: key.span.clone() }, rest);
        if local {
            let name = Node { value: text("delegate_to".to_owned()), span: key.span.clone() };
            let host = Node { value: text("localhost".to_owned()), span: key.span.clone() };
            entries.push((name, host));
        }
        Some(Node { value: Yaml::Map(entries), span: node.span.clone() })
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
                None if find(&text).is_some() => {
                    Diagnostic::error(format!("a block has no kind of its own, got `{text}`"))
                        .at(&key.span)
                        .help(format!("put it into the list: `- {text}: …`"))
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
            is_role: false,
            once: None,
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

    /// Records uses of variables in the keys of a block; they are checked with the play.
    pub(super) fn block_references(&mut self, references: &[Reference], own: &Inherited) {
        let mut found = settle(references.to_vec(), own, &[]);
        found.iter_mut().for_each(|reference| reference.guarded |= self.doubtful);
        self.block_references.extend(found);
    }

    fn task(&mut self, node: &Node, outer: &Inherited, path: &str) -> Option<Task> {
        let (kind, key, value) = self.kind_of(node, outer)?;
        self.take_references();
        let mut own = self.inherit(node, outer);
        let includes = kind.is::<IncludeTasks>() || kind.is::<IncludeRole>();
        if includes && node.get("vars").is_some() {
            own.given.extend(own.vars.last().cloned());
        }
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
        // Only these two see the task's own result.
        let mut after = self.references.split_off(before);
        after.retain(|reference| !own_register.contains(&reference.name));
        self.references.append(&mut after);
        let register = node.get("register").and_then(|value| self.name("register", value));
        let retry = self.retry(node, kind);
        let job = self.job(node, kind);
        let listen = match node.entry("listen") {
            Some((key, _)) if own.section != SectionName::Handlers => {
                self.error(Diagnostic::error("`listen` is a key of handlers").at(&key.span));
                Vec::new()
            }
            Some((_, value)) => items_of(value).iter().filter_map(|item| self.text("listen", item)).collect(),
            None => Vec::new(),
        };
        let mut local: Vec<&str> = Vec::new();
        if let Some(looped) = &looped {
            local.push(&looped.variable);
            local.extend(looped.index_variable.as_deref());
            local.push("ansible_loop");
        }
        let found = self.take_references();
        let mut references = settle(found, &own, &local);
        references.iter_mut().for_each(|reference| reference.guarded |= self.doubtful);
        if includes {
            self.include_keys(node, kind);
        }
        let site = includes.then(|| {
            self.site(value, &params, outer, &own, Around { locals: &local, task: Some(node) }, path)
        });
        let mut asks_for_others =
            references.iter().any(|reference| OF_OTHERS.contains(&reference.name.as_str()));
        if kind.is::<Template>() {
            let text = self.template_text(&params, &own);
            let mentions = |word: &str| text.as_ref().is_none_or(|text| text.contains(word));
            asks_for_others |= OF_OTHERS.iter().any(|word| mentions(word));
            self.templates_ask |= text.as_deref().is_some_and(mentions_fact);
        }
        if kind.is::<IncludeVars>() {
            self.names_of_file(&params, &own);
        }
        let on_interrupt = match node.entry("on_interrupt") {
            Some((key, value)) => self.on_interrupt(kind, key, value),
            None => OnInterrupt::default(),
        };
        let disturbance = self.disturbance(kind, key, &params, looped.as_ref(), &own);
        let disturbs =
            kind.disruption > gpufleet_protocol::Disruption::Live || kind.gpus || disturbance.is_some();
        if let (Some(_), Some(found)) = (&job, &disturbance) {
            self.error(
                Diagnostic::error(format!("{found}, and cannot go on by itself"))
                    .at(&key.span)
                    .label("`async` would let the run go on beside it")
                    .help("leave out `async` and `poll`; `timeout` bounds how long it may take"),
            );
        }
        if own.late_timeout.is_some() && kind.gpus {
            self.error(
                Diagnostic::error(format!(
                    "the `timeout` of `{}` is needed before any host is known",
                    kind.name
                ))
                .at(&key.span)
                .help("it can use variables of the play, of its `vars_files` and of `-e`"),
            );
        }
        if (own.run_once || own.once_when.is_some()) && disturbs {
            self.error(
                Diagnostic::error(format!("`run_once` cannot be used with `{}`", kind.name))
                    .at(&key.span)
                    .label("it may disturb the node")
                    .help("give the play a pattern that names the one host"),
            );
        }
        if let (Some(_), true) = (&own.delegate_to, disturbs) {
            self.error(
                Diagnostic::error(format!("`delegate_to` cannot be used with `{}`", kind.name))
                    .at(&key.span)
                    .label("it may disturb the other node, which nobody took out of service")
                    .help("run it in a play of its own for that host"),
            );
        }
        let bare = self.bare(kind, &key.span, &own, path);
        Some(Task {
            name,
            word: Arc::from(key.key_text()),
            params,
            looped,
            register,
            changed_when,
            failed_when,
            listen,
            on_interrupt,
            retry,
            job,
            site,
            disturbance,
            asks_for_others,
            references,
            ..bare
        })
    }

    /// Creates a task of a kind that has only what it inherits.
    pub(super) fn bare(&self, kind: &'static KindInfo, span: &Span, own: &Inherited, path: &str) -> Task {
        let (notify, notify_spans) = own.notify.iter().cloned().unzip();
        Task {
            path: Arc::from(path),
            section: own.section,
            name: None,
            kind,
            word: Arc::from(kind.name),
            span: span.clone(),
            params: Parameters::default(),
            when: own.when.clone(),
            looped: None,
            register: None,
            changed_when: None,
            failed_when: None,
            ignore_errors: own.ignore_errors.clone().unwrap_or_default(),
            ignore_unreachable: own.ignore_unreachable,
            notify,
            notify_spans,
            listen: Vec::new(),
            tags: own.tags.clone(),
            vars: own.vars.clone(),
            given: own.given.clone(),
            privilege: own.privilege.clone(),
            environment: own.environment.clone(),
            no_log: own.no_log,
            hidden_when: own.hidden_when.clone(),
            timeout_s: own.timeout_s,
            late_timeout: own.late_timeout.clone(),
            // As in Ansible, one pause serves all hosts.
            run_once: own.run_once || kind.is::<Pause>(),
            once_when: own.once_when.clone().filter(|_| !kind.is::<Pause>()),
            any_errors_fatal: own.any_errors_fatal,
            on_interrupt: OnInterrupt::default(),
            role: own.role.clone(),
            search: Arc::clone(&own.search),
            retry: None,
            job: None,
            delegate_to: own.delegate_to.clone(),
            delegate_facts: own.delegate_facts,
            throttle: own.throttle.clone(),
            check_mode: own.check_mode.clone(),
            site: None,
            disturbance: None,
            asks_for_others: false,
            references: Vec::new(),
        }
    }

    /// Refuses other keys on an include; as in Ansible, they would apply to nothing.
    fn include_keys(&mut self, node: &Node, kind: &KindInfo) {
        for (key, _) in node.as_map().unwrap_or_default() {
            let text = key.key_text();
            let applies = matches!(
                text.as_str(),
                "become"
                    | "become_user"
                    | "environment"
                    | "delegate_to"
                    | "throttle"
                    | "check_mode"
                    | "notify"
                    | "changed_when"
                    | "failed_when"
                    | "until"
                    | "retries"
                    | "async"
                    | "poll"
            );
            if applies {
                let error =
                    Diagnostic::error(format!("`{text}` cannot stand beside `{}`", kind.name)).at(&key.span);
                self.error(match keys::SHARED.contains(&text.as_str()) {
                    true => error.help(format!("give it to the included tasks: `apply: {{{text}: …}}`")),
                    false => error.help("put it at the tasks that are included"),
                });
            }
        }
    }

    fn retry(&mut self, node: &Node, kind: &KindInfo) -> Option<Retry> {
        let until = node.get("until").map(|value| self.conditions("until", value)).unwrap_or_default();
        let retries = node.get("retries").map(|value| self.value(value));
        let delay = node.get("delay").map(|value| self.value(value));
        let (key, _) = node.entry("until").or_else(|| node.entry("retries"))?;
        if kind.gpus || matches!(kind.class, Class::Session) || kind.name.starts_with("include_") {
            self.error(
                Diagnostic::error(format!("`{}` cannot be used with `{}`", key.key_text(), kind.name))
                    .at(&key.span)
                    .help("leave it out: it is applied, proven, and fails where it cannot be made to hold"),
            );
            return None;
        }
        Some(Retry { until, retries, delay })
    }

    /// Returns the text of a task's template and of those that it includes, if their names are known and they can be
    /// read before the run.
    fn template_text(&self, params: &Parameters, own: &Inherited) -> Option<String> {
        let name = params.get("src").and_then(|entry| entry.value.as_str())?;
        let mut text = self.template_named(name, own)?;
        let (mut known, mut open) = (HashSet::from([name.to_owned()]), taken_in(&text));
        while let Some(name) = open.pop() {
            if let Some(more) = self.template_named(&name, own).filter(|_| known.insert(name)) {
                open.extend(taken_in(&more));
                text.push_str(&more);
            }
        }
        Some(text)
    }

    fn template_named(&self, name: &str, own: &Inherited) -> Option<String> {
        let folders = own.search.iter();
        let mut paths =
            folders.flat_map(|folder| [join(&join(folder, "templates"), name), join(folder, name)]);
        let bytes = paths.find_map(|path| self.reader.read(&path).ok())?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Records the names that a file of variables defines, for the checks before the run.
    fn names_of_file(&mut self, params: &Parameters, own: &Inherited) {
        if let Some(name) = params.get("name").and_then(|entry| entry.value.as_str()) {
            self.file_names.insert(name.to_owned());
            return;
        }
        let file = params.get("file").and_then(|entry| entry.value.as_str().map(ToOwned::to_owned));
        let settled = file.filter(|name| !crate::template::is_template(name));
        let folders: Vec<String> = own
            .search
            .iter()
            .flat_map(|folder| [join(folder, "vars"), folder.clone()])
            .chain([own.directory.clone(), join(&own.directory, "vars"), self.directory.clone()])
            .collect();
        let found = settled.and_then(|name| {
            folders.iter().map(|folder| join(folder, &name)).find(|path| self.is_there(path))
        });
        let kept = self.take_references();
        let errors = self.errors.0.len();
        match found.and_then(|path| self.variables_of(&path, None)) {
            Some(found) => self.file_names.extend(found.keys().map(ToOwned::to_owned)),
            None => self.open_names = true,
        }
        // If it is read during the run, its task fails with these errors.
        self.errors.0.truncate(errors);
        self.references = kept;
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
}

/// Returns the names of the templates that a text includes.
fn taken_in(text: &str) -> Vec<String> {
    wanted_templates(text).into_iter().map(|wanted| wanted.name).collect()
}

/// Returns the items of a list, or a single value as one item.
fn items_of(node: &Node) -> &[Node] {
    node.as_seq().unwrap_or(std::slice::from_ref(node))
}
