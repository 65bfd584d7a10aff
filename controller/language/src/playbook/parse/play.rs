//! Plays.

use std::sync::Arc;

use gpufleet_protocol::Disruption;
use gpufleet_protocol::tasks::{GpuKeep, Kind as _, KubernetesNode};
use serde_json::json;

use super::reach::{LogsIn, plain};
use super::task::Inherited;
use super::{Base, Parser, join, keys};
use crate::diagnostic::{Diagnostic, suggest};
use crate::playbook::program::{
    Amount, Flag, Item, Items, LateFile, Order, Play, Section, SectionName, Strategy, Task, Wave, tasks_of,
};
use crate::template::{self, Dict, Value, is_template};
use crate::yaml::{self, Node};

impl Parser<'_> {
    /// Renders a play's name from what is known before any host; unchanged if that fails or uses a secret.
    fn shown(&self, name: String, inherited: &Inherited) -> String {
        if !is_template(&name) {
            return name;
        }
        let (found, secret) = template::watch(|| self.settled_now(&name, inherited));
        found.filter(|_| !secret).unwrap_or(name)
    }

    pub(super) fn play(&mut self, node: &Node, directory: &str, base: &Base) -> Option<Arc<Play>> {
        directory.clone_into(&mut self.directory);
        let Some(entries) = node.as_map() else {
            self.error(node.wrong_type("a play", "a mapping with `hosts` and `tasks`"));
            return None;
        };
        self.play_keys(node);
        let Some((_, hosts_node)) = node.entry("hosts") else {
            let misspelt = |key: &Node| suggest(&key.key_text(), ["hosts"]).is_some();
            if entries.iter().any(|(key, _)| misspelt(key)) {
                return None;
            }
            self.error(
                Diagnostic::error("a play needs `hosts`")
                    .at(&node.span)
                    .help("name a group, a host or a pattern: `hosts: all`"),
            );
            return None;
        };
        self.take_references();
        let hosts_items = hosts_node.as_seq().unwrap_or(std::slice::from_ref(hosts_node));
        let mut hosts = Vec::new();
        for item in hosts_items {
            match item.as_str().map(str::trim) {
                Some("") | None if item.as_i64().is_none() => {
                    self.error(item.wrong_type("`hosts`", "a host pattern or a list of them"));
                }
                _ => {
                    let value = self.value(item);
                    hosts.push((value, item.span.clone()));
                }
            }
        }
        // `hosts` is rendered over extra variables before any host is known, and reports missing names itself.
        self.take_references();

        let name = node.get("name").and_then(|name| self.text("name", name));
        let pattern = hosts.iter().map(|(value, _)| value.to_text()).collect::<Vec<_>>().join(":");
        let mut vars = node.get("vars").map(|vars| self.vars(vars)).unwrap_or_default();
        if !base.vars.is_empty() {
            Arc::make_mut(&mut vars).extend(&base.vars);
        }
        let (file_vars, late_files) =
            node.get("vars_files").map(|files| self.vars_files(files, directory)).unwrap_or_default();
        self.statics = vec![Arc::clone(&file_vars), Arc::clone(&vars)];
        let block = self.rollout(node);
        let waves = self.batches(node, block);
        let unavailable_node = self.play_or_rollout(node, block, "max_unavailable");
        let max_unavailable = unavailable_node.and_then(|n| self.amount("max_unavailable", n));
        let max_fail_percentage =
            self.play_or_rollout(node, block, "max_fail_percentage").and_then(|n| self.percentage(n));
        let max_failures =
            self.play_or_rollout(node, block, "max_failures").and_then(|n| self.count("max_failures", n));
        let policy = Arc::new(self.policy(block));
        let strategy = node.get("strategy").and_then(|n| self.strategy(n));
        let order = node.get("order").and_then(|n| self.order(n)).unwrap_or_default();
        let fixed =
            |parser: &mut Self, key: &str| node.get(key).is_some_and(|value| parser.fixed_flag(key, value));
        let gather = node.get("gather_facts").map(|value| self.fixed_flag("gather_facts", value));
        let any_errors_fatal = fixed(self, "any_errors_fatal");
        let ignore_unreachable = fixed(self, "ignore_unreachable");
        let force_handlers = fixed(self, "force_handlers");
        let remote_user = self.remote_user(node);
        let connection = node.get("connection").and_then(|value| self.connection(value));
        let port = self.port(node);
        self.logs_in =
            LogsIn { user: remote_user.clone(), connection: connection.clone(), port: port.clone() };
        let privilege = self.privilege(node);
        let environment = node.get("environment").map(|value| self.value(value)).into_iter().collect();

        let mut tags = base.tags.clone();
        tags.extend(node.get("tags").map(|tags| self.words("tags", tags)).unwrap_or_default());
        let mut around = Inherited::default();
        for key in ["throttle", "check_mode", "diff", "module_defaults"] {
            if let Some(value) = node.get(key) {
                let one = Node {
                    value: yaml::Value::Map(vec![(
                        node.entry(key).map_or_else(|| value.clone(), |(key, _)| key.clone()),
                        value.clone(),
                    )]),
                    span: value.span.clone(),
                };
                around = self.inherit(&one, &around);
            }
        }
        let (no_log, hidden_when) = match node.get("no_log") {
            Some(value) => self.no_log(value),
            None => (false, None),
        };
        let mut inherited = Inherited {
            directory: directory.to_owned(),
            section: SectionName::Tasks,
            environment,
            search: Arc::from([directory.to_owned()]),
            when: base.when.clone(),
            throttle: around.throttle,
            check_mode: around.check_mode,
            defaults: around.defaults,
            statics: self.statics.clone(),
            logs_in: self.logs_in.clone(),
            tags,
            no_log,
            hidden_when,
            run_once: fixed(self, "run_once"),
            ignore_errors: node.get("ignore_errors").map(|value| self.flag("ignore_errors", value)),
            ignore_unreachable,
            any_errors_fatal,
            timeout_s: node.get("timeout").and_then(|value| self.seconds("timeout", value)),
            reboot_timeout_s: block
                .and_then(|block| block.get("reboot")?.get("timeout"))
                .map(|_| policy.reboot.timeout_s),
            ..Inherited::default()
        };
        let references = self.take_references();
        let tags = inherited.tags.clone();

        let (of_roles, mut roles, mut handlers) = match node.get("roles") {
            Some(list) => self.roles(list, &inherited),
            None => (Vec::new(), Vec::new(), Vec::new()),
        };
        let mut sections = Vec::new();
        for section in [SectionName::PreTasks, SectionName::Tasks, SectionName::PostTasks] {
            let list = node.get(section.as_str());
            // As in Ansible, the tasks of roles come first, and handlers last.
            let before = if section == SectionName::Tasks { of_roles.as_slice() } else { &[] };
            if list.is_none() && before.is_empty() {
                continue;
            }
            inherited.section = section;
            let items = list.map(|list| self.items(list, &inherited, section.as_str(), section.as_str()));
            let items = before.iter().chain(items.iter().flat_map(|items| items.iter())).cloned().collect();
            sections.push(Section { name: section, items });
        }
        inherited.section = SectionName::PostTasks;
        self.keep(node, &mut sections, &inherited);
        inherited.section = SectionName::Handlers;
        if let Some(list) = node.get("handlers") {
            let items = self.items(list, &inherited, "handlers", "handlers");
            handlers.extend(self.handlers(&items));
        }
        handlers.append(&mut self.role_handlers_behind);
        roles.append(&mut self.imported_roles);
        let block_references = std::mem::take(&mut self.block_references);
        let templates_ask = std::mem::take(&mut self.templates_ask);
        let mut play = Play {
            name: self.shown(name.unwrap_or(pattern), &inherited),
            span: entries.first().map_or_else(|| node.span.clone(), |(key, _)| key.span.clone()),
            hosts,
            directory: directory.to_owned(),
            tags,
            vars,
            file_vars,
            late_files,
            roles,
            waves,
            max_unavailable: max_unavailable.unwrap_or(Amount::Count(1)),
            max_unavailable_span: unavailable_node.map(|value| value.span.clone()),
            max_fail_percentage,
            max_failures,
            policy,
            any_errors_fatal,
            strategy: Strategy::Linear,
            strategy_span: node.get("strategy").map(|value| value.span.clone()),
            gather_facts: gather.unwrap_or_default(),
            connection,
            order,
            ignore_unreachable,
            force_handlers,
            remote_user,
            port,
            privilege,
            sections,
            handlers,
            disruption: Disruption::Live,
            has_gpu_tasks: false,
            keeps: false,
            var_references: references,
            block_references,
            file_names: std::mem::take(&mut self.file_names),
            settled_names: std::mem::take(&mut self.settled_names),
            open_names: std::mem::take(&mut self.open_names),
            playbook: self.given_file,
        };
        // Facts are gathered only if something uses them, so that other plays do not wait for them.
        play.gather_facts |= gather.is_none() && (play.asks_for_facts() || templates_ask);
        let tasks = play.tasks();
        let disruption = tasks.iter().map(|task| task.disruption()).max().unwrap_or_default();
        let has_gpu_tasks = tasks.iter().any(|task| task.is_gpu());
        let keeps = tasks.iter().any(|task| task.kind.is::<GpuKeep>());
        self.names_its_cluster(&play, &tasks);
        self.notified_handlers_exist(&play);
        play.disruption = disruption;
        play.has_gpu_tasks = has_gpu_tasks;
        play.keeps = keeps;
        let default = if disruption > Disruption::Live { Strategy::HostPinned } else { Strategy::Linear };
        play.strategy = strategy.unwrap_or(default);
        Some(Arc::new(play))
    }

    /// Refuses `kubernetes_node` in a play that does not say which cluster its nodes are in.
    fn names_its_cluster(&mut self, play: &Play, tasks: &[&Arc<Task>]) {
        let drainer = play.policy.drain.info();
        if drainer.has_labels {
            return;
        }
        for task in tasks.iter().filter(|task| task.kind.is::<KubernetesNode>()) {
            let label = match drainer.scheduler {
                Some(_) => format!("the play has `drain: {}`", drainer.word),
                None => "it writes through the cluster of the play's `drain`".to_owned(),
            };
            self.error(
                Diagnostic::error(format!("`{}` needs a play with `drain: kubernetes`", task.kind.name))
                    .at(&task.span)
                    .label(label)
                    .help("write `rollout: {drain: {kubernetes: {kubeconfig: ~/.kube/config}}}` in the play; the task itself drains nothing"),
            );
        }
    }

    /// Adds the task that `keep` stands for, behind all others.
    fn keep(&mut self, node: &Node, sections: &mut Vec<Section>, inherited: &Inherited) {
        let tasks = tasks_of(sections);
        let says_itself = tasks.iter().any(|task| task.kind.is::<GpuKeep>());
        let (parameters, span) = match node.entry("keep") {
            Some((key, value)) => match (value.as_map(), value.as_bool()) {
                (Some(_), _) => (value.clone(), key.span.clone()),
                (None, Some(true)) => (Node::of_json(&json!({}), &value.span), key.span.clone()),
                (None, Some(false)) => return,
                (None, None) => {
                    self.error(value.wrong_type("`keep`", "true, false or the parameters of `gpu_keep`"));
                    return;
                }
            },
            None if self.keeps && !says_itself && tasks.iter().any(|task| task.is_gpu()) => {
                (Node::of_json(&json!({}), &node.span), node.span.clone())
            }
            None => return,
        };
        drop(tasks);
        let key = |text: &str| Node::of_json(&json!(text), &span);
        let task = yaml::Value::Map(vec![
            (key("name"), key("Keep the state of the GPUs")),
            (key(GpuKeep::INFO.name), parameters),
        ]);
        let list = Node {
            value: yaml::Value::Seq(vec![Node { value: task, span: span.clone() }]),
            span: span.clone(),
        };
        let added = self.items(&list, inherited, "keep", "keep");
        match sections.last_mut().filter(|section| section.name == SectionName::PostTasks) {
            Some(last) => last.items = last.items.iter().chain(added.iter()).cloned().collect(),
            None => sections.push(Section { name: SectionName::PostTasks, items: added }),
        }
    }

    /// Parses the sizes of the waves, which are written in one of three places.
    fn batches(&mut self, node: &Node, block: Option<&Node>) -> Vec<Wave> {
        let rolled = block.and_then(|block| block.entry("waves"));
        let serial = node.entry("serial");
        match (node.entry("waves").or(rolled), serial) {
            (Some((waves, _)), Some((key, _))) => {
                let at = &waves.span;
                self.error(
                    Diagnostic::error("`serial` and `waves` are the same thing: give one of them")
                        .at(&key.span)
                        .note(format!("`waves` is at {}:{}:{}", at.file(), at.line, at.column)),
                );
                Vec::new()
            }
            (Some(_), None) => match self.play_or_rollout(node, block, "waves") {
                Some(waves) => self.waves("waves", waves),
                None => Vec::new(),
            },
            (None, Some((_, serial))) => self.waves("serial", serial),
            (None, None) => Vec::new(),
        }
    }

    fn play_keys(&mut self, node: &Node) {
        for (key, _) in node.as_map().unwrap_or_default() {
            let text = key.key_text();
            if keys::PLAY.contains(&text.as_str()) {
                continue;
            }
            if let Some(hint) = keys::not_yet(&text) {
                self.error(
                    Diagnostic::error(format!("`{text}` is not available yet")).at(&key.span).help(hint),
                );
                continue;
            }
            let mut error = Diagnostic::error(format!("unknown key `{text}`"))
                .at(&key.span)
                .label("not a key of a play")
                .suggest(&text, keys::PLAY.iter().copied());
            if keys::ROLLOUT.contains(&text.as_str()) {
                error = error.help(format!("it belongs into `rollout`: `rollout: {{{text}: …}}`"));
            } else if gpufleet_protocol::tasks::find(&text).is_some() {
                error = error.help("a task belongs into the list `tasks`");
            }
            self.error(error);
        }
    }

    /// Parses `vars_files`: those that can be read now, merged, and those that depend on variables.
    fn vars_files(&mut self, node: &Node, directory: &str) -> (Arc<Dict>, Vec<LateFile>) {
        let items = node.as_seq().unwrap_or(std::slice::from_ref(node));
        let (mut merged, mut late) = (Dict::default(), Vec::new());
        for item in items {
            let choices = item.as_seq().unwrap_or(std::slice::from_ref(item));
            let names: Vec<(String, &Node)> = choices
                .iter()
                .filter_map(|choice| Some((self.text("vars_files", choice)?, choice)))
                .collect();
            if names.is_empty() {
                continue;
            }
            if names.iter().any(|(name, _)| is_template(name)) || !late.is_empty() {
                self.open_names = true;
                let names = choices.iter().map(|choice| self.value(choice)).collect();
                late.push(LateFile { names, span: item.span.clone() });
                continue;
            }
            let found = names.iter().find(|(name, _)| self.is_there(&join(directory, name)));
            let Some((name, at)) = found.or_else(|| names.first()) else { continue };
            if let Some(found) = self.variables_of(&join(directory, name), Some(&at.span)) {
                merged.extend(&found);
            }
        }
        (Arc::new(merged), late)
    }

    /// Parses `connection` of a play.
    pub(super) fn connection(&mut self, node: &Node) -> Option<Value> {
        let text = self.text("connection", node)?;
        if !is_template(&text)
            && !matches!(plain(&text), "ssh" | "local" | "smart" | "paramiko" | "paramiko_ssh")
        {
            self.error(
                Diagnostic::error(format!("`connection: {text}` is not available"))
                    .at(&node.span)
                    .label("ssh or local"),
            );
        }
        Some(self.value(node))
    }

    fn percentage(&mut self, node: &Node) -> Option<f64> {
        let node = &self.settled_node("max_fail_percentage", node)?;
        let text = node.scalar_text().unwrap_or_default();
        let number = text.trim().trim_end_matches('%').parse::<f64>().ok();
        let number = number.filter(|number| (0.0..=100.0).contains(number));
        if number.is_none() {
            let got = if text.is_empty() { node.kind() } else { text.as_str() };
            self.error(
                Diagnostic::error(format!("`max_fail_percentage` wants a number from 0 to 100, got {got}"))
                    .at(&node.span),
            );
        }
        number
    }

    fn strategy(&mut self, node: &Node) -> Option<Strategy> {
        let node = &self.settled_node("strategy", node)?;
        let text = self.text("strategy", node)?;
        match text.strip_prefix("ansible.builtin.").unwrap_or(&text) {
            "linear" => Some(Strategy::Linear),
            // Both let a host go on without the others; here all hosts of a batch begin at once.
            "host_pinned" | "free" => Some(Strategy::HostPinned),
            _ => {
                let words = ["linear", "host_pinned", "free"];
                self.error(
                    Diagnostic::error(format!("unknown strategy `{text}`"))
                        .at(&node.span)
                        .label("linear, host_pinned or free")
                        .suggest(&text, words),
                );
                None
            }
        }
    }

    fn order(&mut self, node: &Node) -> Option<Order> {
        let node = &self.settled_node("order", node)?;
        let text = self.text("order", node)?;
        Some(match text.as_str() {
            "inventory" => Order::Inventory,
            "reverse_inventory" => Order::ReverseInventory,
            "sorted" => Order::Sorted,
            "reverse_sorted" => Order::ReverseSorted,
            "shuffle" => Order::Shuffle,
            _ => {
                let words = ["inventory", "reverse_inventory", "sorted", "reverse_sorted", "shuffle"];
                self.error(
                    Diagnostic::error(format!("unknown order `{text}`"))
                        .at(&node.span)
                        .label(words.join(", "))
                        .suggest(&text, words),
                );
                return None;
            }
        })
    }

    /// Returns the handlers; each task of a block is a handler of its own.
    ///
    /// As in Ansible, other sections of the block, such as `rescue`, are never notified.
    pub(super) fn handlers(&mut self, items: &Items) -> Vec<Arc<crate::playbook::Task>> {
        let mut handlers = Vec::new();
        for item in items.iter() {
            match item {
                Item::Task(task) => self.handler(task, &mut handlers),
                Item::GpuGroup(tasks) => tasks.iter().for_each(|task| self.handler(task, &mut handlers)),
                Item::Block(block) => handlers.extend(self.handlers(&block.body)),
            }
        }
        handlers
    }

    fn handler(&mut self, task: &Arc<crate::playbook::Task>, handlers: &mut Vec<Arc<crate::playbook::Task>>) {
        if task.name.is_none() && task.listen.is_empty() {
            self.error(
                Diagnostic::error("a handler without `name` and `listen` can never be notified")
                    .at(&task.span),
            );
        }
        handlers.push(Arc::clone(task));
    }

    fn notified_handlers_exist(&mut self, play: &Play) {
        let mut known: Vec<&str> = Vec::new();
        for handler in &play.handlers {
            known.extend(handler.name.as_ref().and_then(|name| name.as_str()));
            known.extend(handler.listen.iter().map(String::as_str));
        }
        let sites: Vec<_> = play.tasks().into_iter().filter_map(|task| task.site.clone()).collect();
        if sites.iter().any(|site| !site.complete) {
            return;
        }
        let included =
            || sites.iter().flat_map(|site| site.known.iter().flat_map(|known| known.handlers.iter()));
        for handler in included() {
            known.extend(handler.name.as_ref().and_then(|name| name.as_str()));
            known.extend(handler.listen.iter().map(String::as_str));
        }
        let prefixed: Vec<String> =
            play.handlers.iter().chain(included()).filter_map(|handler| handler.role_title()).collect();
        known.extend(prefixed.iter().map(String::as_str));
        let templated = known.iter().any(|name| crate::template::is_template(name));
        for task in play.tasks() {
            for (value, span) in task.notify.iter().zip(&task.notify_spans) {
                let Some(name) = value.as_str() else { continue };
                if crate::template::is_template(name) || templated || known.contains(&name) {
                    continue;
                }
                self.errors.push(
                    Diagnostic::error(format!("no handler is called `{name}`"))
                        .at(span)
                        .label("neither a name nor a `listen` topic of the play's handlers")
                        .suggest(name, known.iter().copied()),
                );
            }
        }
    }
}

/// Returns the inner flag if it is set, else the outer one. `Flag`'s default is "no", which differs from "not set".
pub(super) fn said(flag: Option<Flag>, outer: Option<&Flag>) -> Option<Flag> {
    flag.or_else(|| outer.cloned())
}
