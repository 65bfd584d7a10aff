//! Reads `watch.yaml`, with the places of its mistakes.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use gpufleet_compliance::{Severity, Verdict};
use gpufleet_language::{
    diagnostic::{Diagnostic, Diagnostics, SourceFile},
    yaml::{self, Node},
};
use jiff::tz::TimeZone;

use super::{
    AUDIT_TIME, Audit, Channel, Configuration, DELIVERY_TIME, Filter, Listen, Location, MOST_AUDITS,
    MOST_CHANNELS, Means, Target, Webhook, check_url, duration, is_name, time_of_day, weekday,
};
use crate::schedule::{Rhythm, When};

pub(super) const KEYS: [&str; 6] =
    ["listen", "token_file", "timezone", "reminder", "audits", "notifications"];
pub(super) const AUDIT_KEYS: [&str; 14] = [
    "name",
    "inventory",
    "limit",
    "health",
    "baselines",
    "playbooks",
    "waivers",
    "deep",
    "every",
    "at",
    "days",
    "timezone",
    "jitter",
    "timeout",
];
pub(super) const CHANNEL_KEYS: [&str; 12] = [
    "name",
    "webhook",
    "url_file",
    "secret_file",
    "token_file",
    "ca_file",
    "proxy",
    "command",
    "timeout",
    "verdicts",
    "severity",
    "audits",
];
/// What belongs to webhooks only.
const WEBHOOK_KEYS: [&str; 4] = ["secret_file", "token_file", "ca_file", "proxy"];
const TIME: &str = "write it as 90s, 20m, 6h or 1d";

impl Configuration {
    /// Reads a file. `seed` tells this machine apart from others with the same file; jitter is drawn from it.
    ///
    /// # Errors
    /// All mistakes, with their places.
    pub fn read(source: &Arc<SourceFile>, seed: &str) -> Result<Self, Diagnostics> {
        let mut read = Self::read_all(source, seed);
        if let Err(errors) = &mut read {
            hide_urls(errors);
        }
        read
    }

    fn read_all(source: &Arc<SourceFile>, seed: &str) -> Result<Self, Diagnostics> {
        let root = yaml::parse_source(source)?;
        root.expect_map("a configuration of `gpufleet watch`")?;
        let mut errors = root.refuse_unknown_keys("a configuration of `gpufleet watch`", &KEYS);
        let zone = zone(&root, &mut errors);
        let listen = listen(&root, &mut errors);
        let reminder = seconds(&root, "reminder", &mut errors).map(|s| Duration::from_secs(s.into()));
        let mut audits: Vec<Audit> = Vec::new();
        let items = list(&root, "audits", &mut errors);
        if items.is_empty() {
            let error = Diagnostic::error("there is nothing to audit").at(&root.span);
            errors.push(error.help("`audits:` is a list of what to audit, and when"));
        }
        bounded(&items, MOST_AUDITS, "audits", &mut errors);
        for (index, item) in items.iter().enumerate().take(MOST_AUDITS) {
            let Some(audit) = audit(item, index, &zone, seed, &mut errors) else { continue };
            once(item, &audit.name, audits.iter().map(|other| other.name.as_str()), "audit", &mut errors);
            audits.push(audit);
        }
        let mut channels: Vec<Channel> = Vec::new();
        let known: BTreeSet<String> = audits.iter().map(|audit| audit.name.clone()).collect();
        let items = list(&root, "notifications", &mut errors);
        bounded(&items, MOST_CHANNELS, "notifications", &mut errors);
        for (index, item) in items.iter().enumerate().take(MOST_CHANNELS) {
            let mut mistakes = Diagnostics::new();
            if let Some(channel) = channel(item, index, &known, &mut mistakes) {
                let others = channels.iter().map(|other| other.name.as_str());
                once(item, &channel.name, others, "channel", &mut mistakes);
                channels.push(channel);
            }
            // Its lines may hold a part of a URL that stands on several of them.
            if ["webhook", "proxy"].iter().any(|key| item.get(key).is_some()) {
                mistakes.0.iter_mut().for_each(|mistake| mistake.excerpt = false);
            }
            errors.append(mistakes);
        }
        errors.into_result(Self { audits, channels, listen, reminder })
    }
}

/// Keeps lines with a URL, which may be a secret, out of the mistakes of what else stands there.
fn hide_urls(errors: &mut Diagnostics) {
    for error in &mut errors.0 {
        let line = error.span.as_ref().and_then(|span| span.source.line(span.line));
        if line.is_some_and(|line| line.contains("://")) {
            error.excerpt = false;
        }
    }
}

fn bounded(items: &[Node], most: usize, what: &str, errors: &mut Diagnostics) {
    if let Some(item) = items.get(most) {
        errors.push(Diagnostic::error(format!("at most {most} {what} are taken")).at(&item.span));
    }
}

fn once<'a>(
    item: &Node,
    name: &str,
    mut others: impl Iterator<Item = &'a str>,
    what: &str,
    errors: &mut Diagnostics,
) {
    if others.any(|other| other == name) {
        let place = item.get("name").unwrap_or(item);
        errors.push(Diagnostic::error(format!("the {what} `{name}` stands above already")).at(&place.span));
    }
}

/// The items below a key; none where there is no such key.
fn list(node: &Node, key: &str, errors: &mut Diagnostics) -> Vec<Node> {
    let found = node.get(key).and_then(|value| errors.absorb(value.expect_seq(&format!("`{key}`"))));
    found.map(<[Node]>::to_vec).unwrap_or_default()
}

fn text(node: &Node, key: &str, errors: &mut Diagnostics) -> Option<String> {
    let value = node.get(key)?;
    let text = errors.absorb(value.expect_str(&format!("`{key}`")))?;
    if text.trim().is_empty() {
        errors.push(Diagnostic::error(format!("`{key}` is empty")).at(&value.span));
        return None;
    }
    Some(text.to_owned())
}

fn flag(node: &Node, key: &str, errors: &mut Diagnostics) -> bool {
    let value = node.get(key).and_then(|value| errors.absorb(value.expect_bool(&format!("`{key}`"))));
    value.unwrap_or_default()
}

/// One text, or a list of texts.
fn texts(node: &Node, key: &str, errors: &mut Diagnostics) -> Vec<String> {
    let Some(value) = node.get(key) else { return Vec::new() };
    if value.as_str().is_some() {
        return text(node, key, errors).into_iter().collect();
    }
    let Some(items) = errors.absorb(value.expect_seq(&format!("`{key}`"))) else { return Vec::new() };
    items
        .iter()
        .filter_map(|item| errors.absorb(item.expect_str(&format!("an entry of `{key}`"))))
        .map(str::to_owned)
        .collect()
}

fn seconds(node: &Node, key: &str, errors: &mut Diagnostics) -> Option<u32> {
    let value = node.get(key)?;
    let found = value.scalar_text().and_then(|text| duration(&text));
    if found.is_none() {
        errors.push(Diagnostic::error(format!("`{key}` wants a duration")).at(&value.span).help(TIME));
    }
    found
}

fn zone(node: &Node, errors: &mut Diagnostics) -> Option<TimeZone> {
    let value = node.get("timezone")?;
    let name = errors.absorb(value.expect_str("`timezone`"))?;
    let zone = TimeZone::get(name).ok();
    if zone.is_none() {
        let error = Diagnostic::error(format!("there is no time zone `{name}`")).at(&value.span);
        errors.push(error.help("write it as Europe/Berlin, America/New_York or UTC"));
    }
    zone
}

fn listen(root: &Node, errors: &mut Diagnostics) -> Option<Listen> {
    let token_file = text(root, "token_file", errors).map(PathBuf::from);
    let Some(value) = root.get("listen") else {
        if let (Some(node), Some(_)) = (root.get("token_file"), &token_file) {
            errors.push(Diagnostic::error("`token_file` without `listen` has no use").at(&node.span));
        }
        return None;
    };
    let text = errors.absorb(value.expect_str("`listen`"))?;
    let Ok(address) = text.parse::<SocketAddr>() else {
        let error = Diagnostic::error(format!("`{text}` is no address with a port")).at(&value.span);
        errors.push(error.help("write it as 127.0.0.1:9464 or \"[::1]:9464\""));
        return None;
    };
    let listen = Listen { address, token_file };
    if let Err((error, help)) = listen.check() {
        errors.push(Diagnostic::error(error).at(&value.span).help(help));
    }
    Some(listen)
}

impl Listen {
    /// Refuses an address that others can reach without a token.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), (String, &'static str)> {
        if self.address.ip().is_loopback() || self.token_file.is_some() {
            return Ok(());
        }
        let error = format!("{} can be reached from other machines, and there is no token", self.address);
        Err((error, "give a `token_file`, or listen on 127.0.0.1"))
    }
}

fn name(item: &Node, key: &str, otherwise: String, errors: &mut Diagnostics) -> Option<String> {
    let Some(value) = item.get(key) else { return Some(otherwise) };
    let name = text(item, key, errors)?;
    if !is_name(&name) {
        let error = Diagnostic::error(format!("`{name}` cannot be a name")).at(&value.span);
        errors.push(error.help("a name has at most 64 letters, digits, `-`, `_` and `.`"));
        return None;
    }
    Some(name)
}

fn audit(
    item: &Node,
    index: usize,
    zone_of_all: &Option<TimeZone>,
    seed: &str,
    errors: &mut Diagnostics,
) -> Option<Audit> {
    errors.absorb(item.expect_map("an audit"))?;
    errors.append(item.refuse_unknown_keys("an audit", &AUDIT_KEYS));
    let name = name(item, "name", format!("audit{}", index + 1), errors);
    let target = Target {
        playbooks: texts(item, "playbooks", errors),
        inventories: texts(item, "inventory", errors),
        limit: text(item, "limit", errors),
        health: flag(item, "health", errors),
        baselines: texts(item, "baselines", errors),
        waivers: text(item, "waivers", errors),
        deep: flag(item, "deep", errors),
    };
    if target.is_empty() {
        let error = Diagnostic::error("the audit judges nothing").at(&item.span);
        errors.push(error.help("give `health: true`, `baselines` or `playbooks`"));
    }
    let zone = zone(item, errors).or_else(|| zone_of_all.clone()).unwrap_or_else(TimeZone::system);
    let when = when(item, zone, errors);
    let jitter = seconds(item, "jitter", errors).unwrap_or_default();
    let timeout = seconds(item, "timeout", errors).map_or(AUDIT_TIME, |s| Duration::from_secs(s.into()));
    let name = name?;
    let rhythm = match Rhythm::new(when?, jitter, format!("{seed} {name}")) {
        Ok(rhythm) => rhythm,
        Err(error) => {
            let place = item.get("jitter").unwrap_or(item);
            errors.push(Diagnostic::error(error.to_string()).at(&place.span));
            return None;
        }
    };
    Some(Audit { name, rhythm, target, timeout })
}

fn when(item: &Node, zone: TimeZone, errors: &mut Diagnostics) -> Option<When> {
    let (every, at) = (item.get("every"), item.get("at"));
    match (every, at) {
        (Some(_), None) => {
            for key in ["days", "timezone"] {
                if let Some((place, _)) = item.entry(key) {
                    errors.push(
                        Diagnostic::error(format!("`{key}` is about times of day, and not about `every`"))
                            .at(&place.span),
                    );
                }
            }
            seconds(item, "every", errors).map(|seconds| When::Every { seconds })
        }
        (None, Some(node)) => {
            let mut times = Vec::new();
            let items = match node.as_seq() {
                Some(items) => items.to_vec(),
                None => vec![node.clone()],
            };
            for item in &items {
                match item.as_str().and_then(time_of_day) {
                    Some(time) => times.push(time),
                    None => errors.push(
                        Diagnostic::error("`at` wants times of day")
                            .at(&item.span)
                            .help("write them in quotes: `at: [\"02:00\", \"14:30\"]`"),
                    ),
                }
            }
            if items.is_empty() {
                errors.push(Diagnostic::error("`at` has no time").at(&node.span));
            }
            let mut days = Vec::new();
            for item in list(item, "days", errors) {
                match item.as_str().and_then(weekday) {
                    Some(day) => days.push(day),
                    None => errors.push(
                        Diagnostic::error("`days` wants days of the week")
                            .at(&item.span)
                            .help("such as mon, tue"),
                    ),
                }
            }
            (!times.is_empty()).then_some(When::At { times, days, zone })
        }
        (Some(node), Some(_)) => {
            errors.push(Diagnostic::error("an audit has `every` or `at`, and not both").at(&node.span));
            None
        }
        (None, None) => {
            let error = Diagnostic::error("the audit has no time").at(&item.span);
            errors.push(error.help("give `every: 6h`, or `at: [\"02:00\"]`"));
            None
        }
    }
}

fn channel(
    item: &Node,
    index: usize,
    audits: &BTreeSet<String>,
    errors: &mut Diagnostics,
) -> Option<Channel> {
    errors.absorb(item.expect_map("a channel"))?;
    errors.append(item.refuse_unknown_keys("a channel", &CHANNEL_KEYS));
    let name = name(item, "name", format!("channel{}", index + 1), errors);
    let means = means(item, errors);
    let timeout = seconds(item, "timeout", errors).map_or(DELIVERY_TIME, |s| Duration::from_secs(s.into()));
    let mut filter = Filter::default();
    if let Some(node) = item.get("verdicts") {
        filter.verdicts = texts(item, "verdicts", errors)
            .iter()
            .filter_map(|word| {
                word_of(word, Verdict::of_word(word), Verdict::ALL, Verdict::word, node, errors)
            })
            .collect();
        if let Some(verdict) = filter.verdicts.iter().find(|verdict| !verdict.is_not_ok()) {
            let error = Diagnostic::error(format!("`{verdict}` is no finding")).at(&node.span);
            errors.push(error.help("a recovery is told where its finding was told"));
        }
    }
    if let Some(node) = item.get("severity") {
        let found = text(item, "severity", errors).and_then(|word| {
            word_of(&word, Severity::of_word(&word), Severity::ALL, Severity::word, node, errors)
        });
        filter.severity = found.unwrap_or(filter.severity);
    }
    if let Some(node) = item.get("audits") {
        filter.audits = texts(item, "audits", errors);
        for name in filter.audits.iter().filter(|name| !audits.contains(*name)) {
            let error = Diagnostic::error(format!("there is no audit `{name}`")).at(&node.span);
            errors.push(error.suggest(name, audits.iter().map(String::as_str)));
        }
    }
    Some(Channel { name: name?, means: means?, timeout, filter })
}

fn word_of<T: Copy>(
    word: &str,
    found: Option<T>,
    all: &[T],
    word_of: fn(T) -> &'static str,
    node: &Node,
    errors: &mut Diagnostics,
) -> Option<T> {
    if found.is_none() {
        let words: Vec<&str> = all.iter().map(|it| word_of(*it)).collect();
        let error = Diagnostic::error(format!("there is no `{word}` here")).at(&node.span);
        errors.push(error.help(format!("words are {}", words.join(", "))).suggest(word, words));
    }
    found
}

fn means(item: &Node, errors: &mut Diagnostics) -> Option<Means> {
    let given: Vec<&str> =
        ["webhook", "url_file", "command"].into_iter().filter(|key| item.get(key).is_some()).collect();
    if given.len() != 1 {
        let error =
            Diagnostic::error("a channel has one of `webhook`, `url_file` and `command`").at(&item.span);
        errors.push(error);
        return None;
    }
    if let Some(node) = item.get("command") {
        for key in WEBHOOK_KEYS {
            if let Some((place, _)) = item.entry(key) {
                errors.push(Diagnostic::error(format!("`{key}` belongs to a webhook")).at(&place.span));
            }
        }
        let words = match node.as_seq() {
            Some(_) => texts(item, "command", errors),
            None => Vec::new(),
        };
        if words.first().is_none_or(|program| program.is_empty()) {
            let error =
                Diagnostic::error("`command` wants a program and its arguments, as a list").at(&node.span);
            errors.push(error.help("no shell reads it: `command: [/usr/local/bin/page, --team, gpu]`"));
            return None;
        }
        return Some(Means::Command(words));
    }
    let path = |key: &str, errors: &mut Diagnostics| text(item, key, errors).map(PathBuf::from);
    let url = match item.get("webhook") {
        Some(node) => {
            let url = text(item, "webhook", errors)?;
            if let Err(why) = check_url(&url) {
                // A URL may be a secret.
                errors.push(Diagnostic::error(format!("`webhook`: {why}")).at(&node.span).without_excerpt());
                return None;
            }
            Location::Url(url)
        }
        None => Location::File(path("url_file", errors)?),
    };
    Some(Means::Webhook(Webhook {
        url,
        secret_file: path("secret_file", errors),
        token_file: path("token_file", errors),
        ca_file: path("ca_file", errors),
        proxy: text(item, "proxy", errors),
    }))
}
