//! The `rollout` block of a play.

use std::sync::Arc;

use gpufleet_protocol::{health::HealthCheck, lenient::parse_seconds};

use super::values::is_variable_name;
use super::{Parser, keys};
use crate::diagnostic::{Diagnostic, Span};
use crate::playbook::policy::{
    COMMAND_DRAIN_TIMEOUT_S, CommandDrain, Drain, Gate, HookSpans, Kubectl, KubernetesDrain,
    NOTICE_DEADLINE_S, Notice, NoticeHow, OnMigManager, POWER_CYCLE_TIMEOUT_S, POWER_CYCLES_PER_HOUR, Policy,
    PowerCycle, RebootPolicy, RebootVia, SlurmDrain, Written,
};
use crate::playbook::program::Amount;
use crate::template::{Value, is_template};
use crate::window::Window;
use crate::yaml::Node;

/// A longer wait is a mistake: every deadline must be able to come.
const LONGEST_S: u64 = 30 * 24 * 60 * 60;

const DRAINERS: &[&str] = &["none", "slurm", "kubernetes", "kubectl", "command"];
const KUBERNETES: &[&str] = &[
    "kubeconfig",
    "context",
    "node",
    "timeout",
    "ready_timeout",
    "delete_emptydir_data",
    "force",
    "grace_period",
    "notice",
    "skip_namespaces",
    "lock",
    "pause_operands",
    "mig_manager",
];
const HOOKS: &[&str] = &["drain", "is_idle", "resume"];
/// Signals that a job can act on; those that end it at once are no notice.
const SIGNALS: &[&str] = &["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "URG"];

impl Parser<'_> {
    /// The block, once its keys are known to be right.
    pub(super) fn rollout<'n>(&mut self, play: &'n Node) -> Option<&'n Node> {
        let block = play.get("rollout")?;
        if block.is_null() {
            return None;
        }
        if block.as_map().is_none() {
            self.error(
                block
                    .wrong_type("`rollout`", "a mapping")
                    .help("for example `rollout: {waves: [canary, 10%], max_unavailable: 1}`"),
            );
            return None;
        }
        for (key, _) in block.as_map().unwrap_or_default() {
            let text = key.key_text();
            if keys::ROLLOUT.contains(&text.as_str()) {
                continue;
            }
            let error = Diagnostic::error(format!("unknown key `{text}`"))
                .at(&key.span)
                .label("not a key of `rollout`");
            self.error(match text.as_str() {
                "serial" => error.help("in `rollout` it is called `waves`"),
                other if keys::PLAY.contains(&other) => {
                    error.help("it is a key of the play: write it beside `rollout`")
                }
                _ => error.suggest(&text, keys::ROLLOUT.iter().copied()),
            });
        }
        Some(block)
    }

    /// A key that may stand in the play or in its `rollout` block.
    pub(super) fn play_or_rollout<'n>(
        &mut self,
        play: &'n Node,
        block: Option<&'n Node>,
        key: &str,
    ) -> Option<&'n Node> {
        match (play.entry(key), block.and_then(|block| block.entry(key))) {
            (Some((outer, value)), Some((inner, _))) => {
                self.twice(key, &outer.span, &inner.span);
                Some(value)
            }
            (Some((_, value)), None) | (None, Some((_, value))) => Some(value),
            (None, None) => None,
        }
    }

    pub(super) fn twice(&mut self, key: &str, first: &Span, second: &Span) {
        let (first, second) = if (first.line, first.column) <= (second.line, second.column) {
            (first, second)
        } else {
            (second, first)
        };
        self.error(
            Diagnostic::error(format!("`{key}` is given twice, in the play and in its `rollout`"))
                .at(second)
                .label("the second")
                .note(format!("the first is at {}:{}:{}", first.file(), first.line, first.column))
                .help("keep one of them"),
        );
    }

    pub(super) fn policy(&mut self, block: Option<&Node>) -> Policy {
        let mut policy = Policy::default();
        let Some(block) = block else { return policy };
        if let Some((key, value)) = block.entry("failure_domain") {
            policy.failure_domain_is_label = value.as_map().is_some();
            policy.failure_domain = match policy.failure_domain_is_label {
                true => self.domain_label(value),
                false => self.failure_domain(value),
            };
            policy.failure_domain_span = Some(value.span.clone());
            policy.max_unavailable_per_domain = Some(Amount::Count(1));
            if value.is_null() {
                policy.failure_domain_span = Some(key.span.clone());
            }
        }
        if let Some((key, value)) = block.entry("max_unavailable_per_domain") {
            if policy.failure_domain_span.is_none() {
                self.error(
                    Diagnostic::error("`max_unavailable_per_domain` without `failure_domain`")
                        .at(&key.span)
                        .help("name the host variable that tells a host's domain: `failure_domain: rack`"),
                );
            }
            policy.max_unavailable_per_domain = self.per_domain(value).or(policy.max_unavailable_per_domain);
        }
        policy.max_unreachable =
            block.get("max_unreachable").and_then(|value| self.count("max_unreachable", value));
        if let Some(value) = block.get("soak") {
            policy.soak_s = self.wait("soak", value, 0).unwrap_or_default();
        }
        policy.window = block.get("window").and_then(|value| self.window(value));
        if let Some(value) = block.get("drain") {
            policy.drain = self.drain(value);
        }
        if policy.failure_domain_is_label && !matches!(policy.drain, Drain::Kubernetes(_)) {
            self.error(
                Diagnostic::error(
                    "a label as `failure_domain` wants `drain: kubernetes` or `drain: kubectl`",
                )
                .at(policy.failure_domain_span.as_ref().unwrap_or(&block.span))
                .label("labels are those of the nodes at Kubernetes")
                .help("elsewhere name a host variable: `failure_domain: rack`"),
            );
        }
        if let Some(value) = block.get("reboot") {
            policy.reboot = self.reboot_policy(value, &policy.drain);
        }
        if let Some(value) = block.get("health_gate") {
            policy.health_gate = self.health_gate(value);
            policy.gate_is_default = false;
        }
        policy.power_cycle = block.get("power_cycle").and_then(|value| self.power_cycle(value));
        let timeout_in = |node: Option<&Node>| node.is_some_and(|node| node.get("timeout").is_some());
        policy.written = Written {
            drain: timeout_in(block.get("drain").and_then(|drain| drain.get(policy.drain.as_str()))),
            reboot: timeout_in(block.get("reboot")),
            power_cycle: timeout_in(block.get("power_cycle")),
        };
        policy
    }

    /// A time to wait, from `least` seconds.
    fn wait(&mut self, key: &str, node: &Node, least: u64) -> Option<u64> {
        let text = node.scalar_text().filter(|_| !node.is_null());
        let got = text.as_ref().map_or_else(|| node.kind().to_owned(), |text| format!("\"{text}\""));
        let problem = match text.as_deref().and_then(parse_seconds) {
            Some(seconds) if seconds > LONGEST_S => format!("`{key}` wants at most 30d, got {got}"),
            Some(seconds) if seconds < least => format!("`{key}` wants a time above 0, got {got}"),
            Some(seconds) => return Some(seconds),
            None => format!("`{key}` wants a duration such as 90s, 20m or 2h, got {got}"),
        };
        self.error(Diagnostic::error(problem).at(&node.span));
        None
    }

    /// A line for `sh -c`, which may be a template.
    fn hook(&mut self, key: &str, node: &Node) -> Option<Value> {
        match node.as_str() {
            Some(text) if !text.trim().is_empty() => Some(self.value(node)),
            Some(_) => {
                self.error(Diagnostic::error(format!("`{key}` is empty")).at(&node.span));
                None
            }
            None => {
                self.error(node.wrong_type(&format!("`{key}`"), "a command as one line of text"));
                None
            }
        }
    }

    fn failure_domain(&mut self, node: &Node) -> Option<Arc<str>> {
        let text = node.as_str().unwrap_or_default();
        if is_variable_name(text) {
            return Some(Arc::from(text));
        }
        let error = match node.as_str() {
            Some(text) => Diagnostic::error(format!(
                "`failure_domain` wants the name of a host variable, got \"{text}\""
            ))
            .at(&node.span),
            None => node.wrong_type("`failure_domain`", "the name of a host variable"),
        };
        let help = if is_template(text) {
            "write the bare name, without braces: `failure_domain: rack`"
        } else {
            "set the variable in the inventory, such as `rack`, and write `failure_domain: rack`"
        };
        self.error(error.help(help));
        None
    }

    /// `{label: KEY}`.
    fn domain_label(&mut self, node: &Node) -> Option<Arc<str>> {
        self.settings(node, "`failure_domain`", &["label"]);
        let example = "for example `failure_domain: {label: topology.kubernetes.io/zone}`";
        let Some(value) = node.get("label") else {
            self.error(
                Diagnostic::error("`failure_domain` wants the name of a host variable, or a `label`")
                    .at(&node.span)
                    .help(example),
            );
            return None;
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        match value.as_str() {
            Some(text) if !text.is_empty() && text.bytes().all(plain) => Some(Arc::from(text)),
            _ => {
                self.error(value.wrong_type("`label`", "the key of a label of the nodes").help(example));
                None
            }
        }
    }

    fn per_domain(&mut self, node: &Node) -> Option<Amount> {
        let count = node.as_i64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
        if count.is_none() {
            let got = node.scalar_text().map_or_else(|| node.kind().to_owned(), |text| format!("\"{text}\""));
            let mut error =
                Diagnostic::error(format!("`max_unavailable_per_domain` wants a number from 1, got {got}"))
                    .at(&node.span);
            if got.contains('%') {
                error = error.help("domains differ in size: give a number of nodes");
            }
            self.error(error);
        }
        count.map(Amount::Count)
    }

    fn window(&mut self, node: &Node) -> Option<Window> {
        let Some(text) = node.as_str() else {
            self.error(
                node.wrong_type("`window`", "text")
                    .help("for example `window: \"Sat 02:00-06:00 Europe/Berlin\"`"),
            );
            return None;
        };
        match Window::parse(text) {
            Ok(window) => Some(window),
            Err(error) => {
                let text = error.to_string();
                let diagnostic = match text.rsplit_once("; write ") {
                    Some((what, next)) => Diagnostic::error(what).help(format!("write {next}")),
                    None => Diagnostic::error(text),
                };
                self.error(diagnostic.at(&node.span));
                None
            }
        }
    }

    fn drain(&mut self, node: &Node) -> Drain {
        if let Some(text) = node.as_str() {
            return match text {
                "none" => Drain::None,
                "slurm" => Drain::Slurm(SlurmDrain::default()),
                "kubernetes" => {
                    self.needs_kubernetes(&node.span);
                    Drain::Kubernetes(KubernetesDrain::default())
                }
                "kubectl" => Drain::Kubernetes(KubernetesDrain {
                    kubectl: Some(Kubectl::default()),
                    ..KubernetesDrain::default()
                }),
                "command" => {
                    self.error(
                        Diagnostic::error("`drain: command` needs its commands")
                            .at(&node.span)
                            .help("write `drain: {command: {drain: …, is_idle: …, resume: …}}`"),
                    );
                    Drain::None
                }
                other => {
                    self.no_drainer(other, &node.span);
                    Drain::None
                }
            };
        }
        let (key, value) = match node.as_map() {
            Some([(key, value)]) => (key, value),
            Some([_, (second, _), ..]) => {
                self.error(
                    Diagnostic::error("`drain` names more than one drainer")
                        .at(&second.span)
                        .label("the second")
                        .help("write one, with its settings below it: `drain: {slurm: {timeout: 2h}}`"),
                );
                return Drain::None;
            }
            _ => {
                self.error(
                    node.wrong_type("`drain`", "none, slurm, kubernetes, kubectl or command")
                        .help("for example `drain: none` or `drain: {slurm: {timeout: 2h}}`"),
                );
                return Drain::None;
            }
        };
        match key.key_text().as_str() {
            "none" => {
                if !value.is_null() && value.as_map().is_none_or(|entries| !entries.is_empty()) {
                    self.error(
                        Diagnostic::error("`none` has no settings")
                            .at(&value.span)
                            .help("write `drain: none`"),
                    );
                }
                Drain::None
            }
            "slurm" => Drain::Slurm(self.slurm_drain(value)),
            "kubernetes" => {
                self.needs_kubernetes(&key.span);
                Drain::Kubernetes(self.kubernetes_drain(value, false))
            }
            "kubectl" => Drain::Kubernetes(self.kubernetes_drain(value, true)),
            "command" => self.command_drain(value, &key.span).map_or(Drain::None, Drain::Command),
            other => {
                self.no_drainer(other, &key.span);
                Drain::None
            }
        }
    }

    fn no_drainer(&mut self, name: &str, span: &Span) {
        let error = Diagnostic::error(format!("unknown drainer `{name}`"))
            .at(span)
            .label("none, slurm, kubernetes, kubectl or command");
        self.error(match name {
            "k8s" | "kube" => error.help("write `drain: kubernetes`"),
            _ => error
                .suggest(name, DRAINERS.iter().copied())
                .help("for example `drain: none` or `drain: {slurm: {timeout: 2h}}`"),
        });
    }

    /// A gpufleet that was built without it must not wait for the run to say so.
    fn needs_kubernetes(&mut self, span: &Span) {
        if !cfg!(feature = "kubernetes") {
            self.error(
                Diagnostic::error("this gpufleet cannot drain by Kubernetes")
                    .at(span)
                    .label("it was built without the feature `kubernetes`")
                    .help("build it with its default features, or go through `kubectl`: `drain: kubectl`"),
            );
        }
    }

    fn kubernetes_drain(&mut self, node: &Node, by_kubectl: bool) -> KubernetesDrain {
        let kubectl = by_kubectl.then(Kubectl::default);
        let mut drain = KubernetesDrain { kubectl, ..KubernetesDrain::default() };
        let known: Vec<&str> = KUBERNETES.iter().copied().chain(by_kubectl.then_some("login")).collect();
        if !self.settings(node, if by_kubectl { "`kubectl`" } else { "`kubernetes`" }, &known) {
            return drain;
        }
        if let Some(kubectl) = &mut drain.kubectl {
            (kubectl.login, kubectl.login_span) = self.login(node);
        }
        let mut time = |key: &str, least: u64| node.get(key).and_then(|value| self.wait(key, value, least));
        drain.timeout_s = time("timeout", 1).unwrap_or(drain.timeout_s);
        drain.ready_timeout_s = time("ready_timeout", 1).unwrap_or(drain.ready_timeout_s);
        drain.grace_period_s = time("grace_period", 0);
        drain.notice_s = time("notice", 1);
        if let Some(name) = node.get("node").and_then(|value| self.hook("node", value)) {
            drain.node = name;
        }
        drain.kubeconfig = self.fixed_text(node, "kubeconfig", "the path of a kubeconfig file");
        drain.context = self.fixed_text(node, "context", "the name of a context of the kubeconfig");
        let mut flag =
            |key: &str, usual: bool| node.get(key).map_or(usual, |value| self.fixed_flag(key, value));
        drain.delete_emptydir_data = flag("delete_emptydir_data", false);
        drain.force = flag("force", false);
        drain.pause_operands = flag("pause_operands", true);
        if let Some(value) = node.get("skip_namespaces") {
            drain.skip_namespaces = self.namespaces(value);
        }
        if let Some(value) = node.get("lock") {
            drain.lock = self.lease(value);
        }
        if let Some(value) = node.get("mig_manager") {
            match value.as_str() {
                None if value.as_map().is_some() => {
                    self.settings(value, "`mig_manager`", &["label"]);
                    match self.fixed_text(
                        value,
                        "label",
                        "a configuration of mig-manager, such as all-1g.10gb",
                    ) {
                        Some(config) => drain.mig_manager = OnMigManager::Label(config),
                        None if value.get("label").is_none() => self
                            .error(value.wrong_type("`mig_manager`", "refuse, takeover or {label: CONFIG}")),
                        None => {}
                    }
                }
                Some("refuse") => {}
                Some("takeover") => drain.mig_manager = OnMigManager::Takeover,
                Some(other) => self.error(
                    Diagnostic::error(format!(
                        "`mig_manager` wants refuse, takeover or {{label: CONFIG}}, got \"{other}\""
                    ))
                    .at(&value.span)
                    .suggest(other, ["refuse", "takeover"]),
                ),
                None => self.error(value.wrong_type("`mig_manager`", "refuse, takeover or {label: CONFIG}")),
            }
        }
        drain.spans = spans(node, &["node", "kubeconfig"]);
        drain
    }

    /// A text that is the same for all hosts.
    fn fixed_text(&mut self, node: &Node, key: &str, what: &str) -> Option<String> {
        let value = node.get(key)?;
        match value.as_str() {
            Some(text) if is_template(text) => self.error(
                Diagnostic::error(format!("`{key}` cannot be a template"))
                    .at(&value.span)
                    .label("it is the same for all hosts of the play")
                    .help("write one play for each cluster"),
            ),
            Some(text) if !text.trim().is_empty() => return Some(text.trim().to_owned()),
            _ => self.error(value.wrong_type(&format!("`{key}`"), what)),
        }
        None
    }

    fn namespaces(&mut self, node: &Node) -> Vec<String> {
        let items = match (node.as_seq(), node.as_str()) {
            (Some(items), _) => items,
            (None, Some(_)) => std::slice::from_ref(node),
            (None, None) => {
                self.error(
                    node.wrong_type("`skip_namespaces`", "a list of namespaces")
                        .help("for example `[monitoring]`"),
                );
                return Vec::new();
            }
        };
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            match item.as_str() {
                Some(name) if is_label(name) => names.push(name.to_owned()),
                Some(name) => self.error(
                    Diagnostic::error(format!("`{name}` is no name of a namespace"))
                        .at(&item.span)
                        .label("lower-case letters, digits and `-`"),
                ),
                None => self.error(item.wrong_type("`skip_namespaces`", "a list of namespaces")),
            }
        }
        names
    }

    fn lease(&mut self, node: &Node) -> Option<(String, String)> {
        let named = node.as_str().and_then(|text| text.split_once('/'));
        if let Some((namespace, name)) =
            named.filter(|(namespace, name)| is_label(namespace) && is_label(name))
        {
            return Some((namespace.to_owned(), name.to_owned()));
        }
        let error = match node.as_str() {
            Some(text) => {
                Diagnostic::error(format!("`lock` wants NAMESPACE/NAME of a Lease, got \"{text}\""))
                    .at(&node.span)
            }
            None => node.wrong_type("`lock`", "NAMESPACE/NAME of a Lease"),
        };
        self.error(
            error.help("all runs on a cluster need the same one; without `lock` it is `default/gpufleet`"),
        );
        None
    }

    /// The entries of a mapping with these keys only; nothing written is an empty mapping.
    fn settings(&mut self, node: &Node, what: &str, known: &[&str]) -> bool {
        if node.as_map().is_none() {
            if !node.is_null() {
                self.error(node.wrong_type(what, "a mapping"));
            }
            return false;
        }
        let unknown = node.refuse_unknown_keys(what, known);
        self.errors.append(unknown);
        true
    }

    fn slurm_drain(&mut self, node: &Node) -> SlurmDrain {
        let mut slurm = SlurmDrain::default();
        if !self.settings(node, "`slurm`", &["timeout", "node", "login", "notice"]) {
            return slurm;
        }
        if let Some(seconds) = node.get("timeout").and_then(|value| self.wait("timeout", value, 1)) {
            slurm.timeout_s = seconds;
        }
        if let Some(name) = node.get("node").and_then(|value| self.hook("node", value)) {
            slurm.node = name;
            slurm.spans = spans(node, &["node"]);
        }
        (slurm.login, slurm.login_span) = self.login(node);
        slurm.notice = node.get("notice").and_then(|value| self.slurm_notice(value));
        slurm
    }

    /// The host that runs a scheduler's programs, and where it is written.
    fn login(&mut self, node: &Node) -> (Option<String>, Option<Span>) {
        let Some(value) = node.get("login") else { return (None, None) };
        match value.as_str() {
            Some(host) if !host.trim().is_empty() && !is_template(host) => {
                return (Some(host.trim().to_owned()), Some(value.span.clone()));
            }
            Some(host) if is_template(host) => self.error(
                Diagnostic::error("`login` cannot be a template")
                    .at(&value.span)
                    .help("write the name of one host of the inventory"),
            ),
            _ => self.error(value.wrong_type("`login`", "the name of a host of the inventory")),
        }
        (None, None)
    }

    fn slurm_notice(&mut self, node: &Node) -> Option<Notice> {
        let example = "write `{signal: USR1, deadline: 5m}` or `{requeue: true, deadline: 5m}`";
        if node.as_str() == Some("requeue") {
            return Some(Notice { how: NoticeHow::Requeue, deadline_s: NOTICE_DEADLINE_S });
        }
        if node.as_map().is_none() {
            self.error(node.wrong_type("`notice`", "a mapping").help(example));
            return None;
        }
        self.settings(node, "`notice`", &["signal", "requeue", "deadline"]);
        let deadline_s =
            node.get("deadline").map_or(Some(NOTICE_DEADLINE_S), |value| self.wait("deadline", value, 1))?;
        let requeue = node.get("requeue").is_some_and(|value| self.fixed_flag("requeue", value));
        let how = match (node.entry("signal"), requeue) {
            (Some((key, _)), true) => {
                self.error(
                    Diagnostic::error("`notice` sends a signal or requeues: give one of them")
                        .at(&key.span)
                        .help(example),
                );
                return None;
            }
            (Some((_, value)), false) => NoticeHow::Signal(self.signal(value)?),
            (None, true) => NoticeHow::Requeue,
            (None, false) => {
                self.error(
                    Diagnostic::error("`notice` does not say what jobs are told")
                        .at(&node.span)
                        .help(example),
                );
                return None;
            }
        };
        Some(Notice { how, deadline_s })
    }

    fn signal(&mut self, node: &Node) -> Option<String> {
        let upper = node.as_str().map(str::to_ascii_uppercase);
        let name = upper.as_deref().map(|text| text.strip_prefix("SIG").unwrap_or(text));
        if let Some(name) = name.filter(|name| SIGNALS.contains(name)) {
            return Some(name.to_owned());
        }
        let got = node.scalar_text().unwrap_or_default();
        let error = match node.as_str() {
            Some(_) => {
                Diagnostic::error(format!("`{got}` is no signal that a job could act on")).at(&node.span)
            }
            None => node.wrong_type("`signal`", "the name of a signal"),
        };
        self.error(
            error.label(SIGNALS.join(", ")).suggest(name.unwrap_or_default(), SIGNALS.iter().copied()),
        );
        None
    }

    fn command_drain(&mut self, node: &Node, key: &Span) -> Option<CommandDrain> {
        let optional = ["still_ours", "out", "notice", "timeout", "notice_deadline"];
        let known: Vec<&str> = HOOKS.iter().copied().chain(optional).collect();
        let right = self.settings(node, "`command`", &known);
        if !right && !node.is_null() {
            return None;
        }
        let missing: Vec<String> =
            HOOKS.iter().filter(|hook| node.get(hook).is_none()).map(|hook| format!("`{hook}`")).collect();
        if !missing.is_empty() {
            self.error(
                Diagnostic::error(format!("`drain: command` needs {}", missing.join(", ")))
                    .at(key)
                    .label("to drain, to tell whether a node is idle, and to give it back")
                    .help("each is one line for `sh -c` on this machine, such as `drain: \"cordon {{ inventory_hostname }}\"`"),
            );
        }
        let mut hook = |key: &str| node.get(key).and_then(|value| self.hook(key, value));
        let (drain, is_idle, resume) = (hook("drain"), hook("is_idle"), hook("resume"));
        let (still_ours, out, notice) = (hook("still_ours"), hook("out"), hook("notice"));
        let time = |parser: &mut Self, key: &str, usual: u64| {
            node.get(key).and_then(|value| parser.wait(key, value, 1)).unwrap_or(usual)
        };
        let timeout_s = time(self, "timeout", COMMAND_DRAIN_TIMEOUT_S);
        let notice_deadline_s = time(self, "notice_deadline", NOTICE_DEADLINE_S);
        if let (Some((key, _)), None) = (node.entry("notice_deadline"), node.get("notice")) {
            self.error(
                Diagnostic::error("`notice_deadline` without `notice`")
                    .at(&key.span)
                    .help("add the command that tells the jobs: `notice: …`"),
            );
        }
        Some(CommandDrain {
            drain: drain?,
            is_idle: is_idle?,
            resume: resume?,
            still_ours,
            out,
            notice,
            timeout_s,
            notice_deadline_s,
            spans: spans(node, &["drain", "is_idle", "resume", "still_ours", "out", "notice"]),
        })
    }

    fn reboot_policy(&mut self, node: &Node, drain: &Drain) -> RebootPolicy {
        let mut reboot = RebootPolicy::default();
        if node.as_map().is_none() {
            self.error(node.wrong_type("`reboot`", "a mapping").help("for example `reboot: {timeout: 20m}`"));
            return reboot;
        }
        self.settings(node, "`reboot`", &["timeout", "via"]);
        if let Some(seconds) = node.get("timeout").and_then(|value| self.wait("timeout", value, 1)) {
            reboot.timeout_s = seconds;
        }
        if let Some(value) = node.get("via") {
            match value.as_str() {
                Some("ssh") => {}
                Some("slurm") => {
                    reboot.via = RebootVia::Slurm;
                    if !matches!(drain, Drain::Slurm(_)) {
                        self.error(
                            Diagnostic::error(format!("`via: slurm` with `drain: {drain}`"))
                                .at(&value.span)
                                .label("only who drained a node may have it rebooted")
                                .help("add `drain: slurm`, or reboot over SSH: `via: ssh`"),
                        );
                    }
                }
                Some(other) => self.error(
                    Diagnostic::error(format!("unknown way to reboot `{other}`"))
                        .at(&value.span)
                        .label("ssh or slurm")
                        .suggest(other, ["ssh", "slurm"]),
                ),
                None => self.error(value.wrong_type("`via`", "ssh or slurm")),
            }
        }
        reboot
    }

    fn health_gate(&mut self, node: &Node) -> Vec<Gate> {
        let items = match (node.as_seq(), node.as_str(), node.as_map()) {
            (Some(items), ..) => items,
            (None, Some(_), _) | (None, _, Some(_)) => std::slice::from_ref(node),
            _ => {
                self.error(
                    node.wrong_type("`health_gate`", "a list of checks")
                        .help("for example `[gpu_count, mig_layout, ecc, xid]`; `[]` checks nothing"),
                );
                return Vec::new();
            }
        };
        let mut gates: Vec<Gate> = Vec::new();
        for item in items {
            let Some(gate) = self.gate(item) else { continue };
            if gates.contains(&gate) {
                self.error(
                    Diagnostic::error(format!("`{gate}` stands twice in `health_gate`")).at(&item.span),
                );
                continue;
            }
            gates.push(gate);
        }
        gates
    }

    fn gate(&mut self, node: &Node) -> Option<Gate> {
        if let Some([(key, value)]) = node.as_map()
            && key.as_str() == Some("command")
        {
            return self.hook("command", value).map(Gate::Command);
        }
        let Some(text) = node.as_str() else {
            self.error(
                node.wrong_type("`health_gate`", "names of checks, or `command: …`")
                    .label(gates().join(", ")),
            );
            return None;
        };
        if text == Gate::COMMAND {
            self.error(
                Diagnostic::error("`command` in `health_gate` needs the command")
                    .at(&node.span)
                    .help("write `- command: \"/usr/local/bin/healthy\"`"),
            );
            return None;
        }
        let check = HealthCheck::from_word(text);
        if check.is_none() {
            self.error(
                Diagnostic::error(format!("unknown check `{text}`"))
                    .at(&node.span)
                    .label(gates().join(", "))
                    .suggest(text, gates()),
            );
        }
        check.map(Gate::Check)
    }

    fn power_cycle(&mut self, node: &Node) -> Option<PowerCycle> {
        if node.as_str().is_some() {
            let command = self.hook("power_cycle", node)?;
            return Some(PowerCycle {
                command,
                status: None,
                hung: None,
                max_per_hour: POWER_CYCLES_PER_HOUR,
                timeout_s: POWER_CYCLE_TIMEOUT_S,
            });
        }
        let example = "for example `power_cycle: {command: \"ipmitool -H bmc-{{ inventory_hostname }} … chassis power cycle\"}`";
        if node.as_map().is_none() {
            self.error(node.wrong_type("`power_cycle`", "a command, or a mapping with one").help(example));
            return None;
        }
        self.settings(node, "`power_cycle`", &["command", "status", "hung", "max_per_hour", "timeout"]);
        let status = node.get("status").and_then(|value| self.hook("status", value));
        let hung = node.get("hung").and_then(|value| self.hook("hung", value));
        let max_per_hour = node
            .get("max_per_hour")
            .and_then(|value| self.count("max_per_hour", value))
            .unwrap_or(POWER_CYCLES_PER_HOUR);
        let timeout_s = node
            .get("timeout")
            .and_then(|value| self.wait("timeout", value, 1))
            .unwrap_or(POWER_CYCLE_TIMEOUT_S);
        let Some(command) = node.get("command") else {
            self.error(Diagnostic::error("`power_cycle` needs `command`").at(&node.span).help(example));
            return None;
        };
        let command = self.hook("command", command)?;
        Some(PowerCycle { command, status, hung, max_per_hour, timeout_s })
    }
}

/// A DNS label (RFC 1123), as namespaces and Leases are named.
fn is_label(name: &str) -> bool {
    let outer =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = name.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    name.len() <= 63 && bytes.iter().all(inner) && outer(bytes.first()) && outer(bytes.last())
}

fn spans(node: &Node, keys: &[&'static str]) -> HookSpans {
    let place = |key: &&'static str| node.get(key).map(|value| (*key, value.span.clone()));
    HookSpans(keys.iter().filter_map(place).collect())
}

/// Every word of `health_gate`.
fn gates() -> Vec<&'static str> {
    let checks = HealthCheck::ALL.iter().map(|check| check.word());
    checks.chain([Gate::COMMAND]).collect()
}
