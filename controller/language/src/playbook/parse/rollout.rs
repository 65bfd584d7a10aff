//! The `rollout` block of a play.

use std::sync::Arc;

use gpufleet_protocol::{health::HealthCheck, lenient::parse_seconds};

use super::values::is_variable_name;
use super::{Parser, keys};
use crate::diagnostic::{Diagnostic, Span};
use crate::playbook::drain::{DRAINERS, Drain, one_of};
use crate::playbook::policy::{
    Gate, POWER_CYCLE_TIMEOUT_S, POWER_CYCLES_PER_HOUR, Policy, PowerCycle, RebootPolicy, RebootVia, Written,
};
use crate::playbook::program::Amount;
use crate::template::{Value, is_template};
use crate::window::Window;
use crate::yaml::Node;

/// A longer wait is a mistake: every deadline must be able to come.
const LONGEST_S: u64 = 30 * 24 * 60 * 60;

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
            policy.drain = Drain::read(self, value);
        }
        if policy.failure_domain_is_label && !policy.drain.info().has_labels {
            let with_labels = DRAINERS.iter().filter(|drainer| drainer.has_labels);
            let words: Vec<String> =
                with_labels.clone().map(|drainer| format!("`drain: {}`", drainer.word)).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut schedulers: Vec<&str> = with_labels.filter_map(|drainer| drainer.scheduler).collect();
            schedulers.dedup();
            self.error(
                Diagnostic::error(format!("a label as `failure_domain` wants {}", one_of(&words)))
                    .at(policy.failure_domain_span.as_ref().unwrap_or(&block.span))
                    .label(format!("labels are those of the nodes at {}", one_of(&schedulers)))
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
    pub(in crate::playbook) fn wait(&mut self, key: &str, node: &Node, least: u64) -> Option<u64> {
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
    pub(in crate::playbook) fn hook(&mut self, key: &str, node: &Node) -> Option<Value> {
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
                self.error(Diagnostic::error(error.to_string()).help(error.hint()).at(&node.span));
                None
            }
        }
    }

    /// A text that is the same for all hosts.
    pub(in crate::playbook) fn fixed_text(&mut self, key: &str, value: &Node, what: &str) -> Option<String> {
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

    /// The entries of a mapping with these keys only; nothing written is an empty mapping.
    pub(in crate::playbook) fn settings(&mut self, node: &Node, what: &str, known: &[&str]) -> bool {
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
            let reboots = DRAINERS.iter().filter(|drainer| drainer.reboots).map(|drainer| drainer.word);
            let words: Vec<&str> = std::iter::once(RebootVia::SSH).chain(reboots).collect();
            match value.as_str() {
                Some(RebootVia::SSH) => {}
                Some(word) if words.contains(&word) => {
                    reboot.via = RebootVia::Scheduler;
                    if drain.as_str() != word {
                        self.error(
                            Diagnostic::error(format!("`via: {word}` with `drain: {drain}`"))
                                .at(&value.span)
                                .label("only who drained a node may have it rebooted")
                                .help(format!("add `drain: {word}`, or reboot over SSH: `via: ssh`")),
                        );
                    }
                }
                Some(other) => self.error(
                    Diagnostic::error(format!("unknown way to reboot `{other}`"))
                        .at(&value.span)
                        .label(one_of(&words))
                        .suggest(other, words),
                ),
                None => self.error(value.wrong_type("`via`", &one_of(&words))),
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

/// Every word of `health_gate`.
fn gates() -> Vec<&'static str> {
    let checks = HealthCheck::ALL.iter().map(|check| check.word());
    checks.chain([Gate::COMMAND]).collect()
}
