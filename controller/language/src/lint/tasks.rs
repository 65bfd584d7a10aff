//! Rules for single plays, tasks and values.

use std::collections::BTreeMap;

use gpufleet_protocol::tasks::{
    Apt, Class, Command, Dnf, GpuAccounting, GpuClocks, GpuComputeMode, GpuPersistence, GpuPower, KindInfo,
    Kubelet, Meta, Mistake, Package, Script, Service, Shell, kubelet_fields,
};

use super::run::Finding;
use crate::diagnostic::Diagnostic;
use crate::migration::{TaskView, advise, command_text, needs_shell, tasks_of};
use crate::template::is_template;
use crate::visible::command_line;
use crate::yaml::{Node, Value as Yaml};

/// Connection variables that have a newer name.
const OLD_VARIABLES: &[(&str, &str)] = &[
    ("ansible_ssh_user", "ansible_user"),
    ("ansible_ssh_host", "ansible_host"),
    ("ansible_ssh_port", "ansible_port"),
    ("ansible_sudo_pass", "ansible_become_password"),
];

/// Runs the rules for the plays and tasks of a file.
pub(super) fn check_file(tree: &Node, findings: &mut Vec<Finding>) {
    for play in tree.as_seq().unwrap_or_default() {
        if play.get("hosts").is_some() {
            partial_become(play, play.get("become").is_some(), findings, None);
            duplicate_handlers(play, findings);
        }
    }
    let views = tasks_of(tree);
    for view in &views {
        let mut own = Vec::new();
        check_task(view, &mut own);
        let (line, _) = view.lines();
        findings.extend(own.into_iter().map(|finding| finding.in_task(line)));
    }
    missing_become(&views, findings);
    gpus_without_root(tree, &views, findings);
    forgotten_limits(tree, &views, findings);
}

/// Finds limits that the driver drops with its last client, in a file where no task keeps the GPUs initialised.
fn forgotten_limits(tree: &Node, views: &[TaskView<'_>], findings: &mut Vec<Finding>) {
    let plays = tree.as_seq().unwrap_or_default();
    let brings_more = |play: &Node| play.get("roles").is_some() || play.get("hosts").is_none();
    if plays.is_empty() || plays.iter().any(brings_more) {
        return;
    }
    let mut limits = Vec::new();
    for view in views {
        let Some(found) = view.found() else { continue };
        let statement = found.name.rsplit('.').next().unwrap_or_default();
        if statement.starts_with("import_") || statement.starts_with("include_") {
            return;
        }
        let word = |key: &str| found.value.get(key).and_then(Node::as_str);
        let Some(kind) = found.kind else { continue };
        let keeps = kind.is::<GpuPersistence>() && word("mode") != Some("off")
            || kind.is::<Service>()
                && word("name").is_some_and(|name| name.starts_with("nvidia-persistenced"))
            || (kind.is::<Command>() || kind.is::<Shell>())
                && command_text(found.value).is_some_and(|text| text.contains("-pm"));
        if keeps {
            return;
        }
        let forgets = kind.is::<GpuPower>()
            || kind.is::<GpuClocks>()
            || kind.is::<GpuComputeMode>() && word("mode") != Some("default")
            || kind.is::<GpuAccounting>() && word("mode") == Some("enabled");
        if forgets {
            limits.push((view, found));
        }
    }
    for (view, found) in limits {
        let (line, _) = view.lines();
        findings.push(
            Finding::new(
                "limit-without-persistence",
                Diagnostic::warning(format!("nothing keeps what `{}` sets", found.name))
                    .at(&found.key.span)
                    .note("without persistence the driver forgets it when its last client ends")
                    .help("add `gpu_persistence: {mode: daemon}` to the play"),
            )
            .in_task(line),
        );
    }
}

fn check_task(view: &TaskView<'_>, findings: &mut Vec<Finding>) {
    let node = view.node;
    partial_become(node, view.inherited("become").is_some(), findings, Some(view));
    conditions(node, findings);
    for (old, new) in [("with_items", "loop"), ("local_action", "delegate_to: localhost")] {
        if let Some((key, _)) = node.entry(old) {
            findings.push(Finding::new(
                "deprecated-key",
                Diagnostic::warning(format!("`{old}` has a newer form"))
                    .at(&key.span)
                    .help(format!("write `{new}`")),
            ));
        }
    }
    let Some(found) = view.found() else { return };
    let statement = found.name.rsplit('.').next().unwrap_or_default();
    let names_itself = statement.starts_with("import_")
        || statement.starts_with("include_")
        || found.kind.is_some_and(KindInfo::is::<Meta>);
    if node.get("name").is_none() && !names_itself && found.kind.is_some() {
        findings.push(Finding::new(
            "name-missing",
            Diagnostic::warning("this task has no name").at(&found.key.span).help("begin it with `name: …`"),
        ));
    }
    let Some(kind) = found.kind else { return };
    truthy_words(kind, found.value, findings);
    if kind.class == Class::Command && !kind.is::<Script>() {
        command(view, kind, found.key, found.value, findings);
    }
    if kind.class == Class::Command {
        changes(view, kind.name, found.key, found.value, findings);
    }
    if (kind.is::<Package>() || kind.is::<Apt>() || kind.is::<Dnf>())
        && let Some(state) = found.value.get("state").filter(|state| state.as_str() == Some("latest"))
    {
        findings.push(Finding::new(
            "package-latest",
            Diagnostic::warning("`latest` is another version on another day")
                .at(&state.span)
                .help("name a version, or write `state: present`"),
        ));
    }
    if kind.is::<Kubelet>() {
        kubelet_settings(found.value, findings);
    }
    if kind.class == Class::Node
        && let Some(mode) = found.value.get("mode").or_else(|| found.value.get("directory_mode"))
    {
        octal(mode, findings);
    }
}

/// Finds fields that no release of the kubelet known here has; slips of known ones are errors.
fn kubelet_settings(value: &Node, findings: &mut Vec<Finding>) {
    let settings = value.get("settings").and_then(Node::as_map).unwrap_or_default();
    for (key, _) in settings {
        let name = key.key_text();
        if !is_template(&name) && kubelet_fields::is_strange(&name) {
            findings.push(Finding::new(
                "unknown-kubelet-setting",
                Diagnostic::warning(kubelet_fields::told(&name)).at(&key.span).help(
                    "look it up in the documentation of the kubelet's own version; `# noqa: unknown-kubelet-setting` keeps it",
                ),
            ));
        }
    }
}

/// Finds `on` and `off` for words of a kind: `mode: on` is `enabled`, which `true` would not tell.
fn truthy_words(kind: &KindInfo, value: &Node, findings: &mut Vec<Finding>) {
    for (key, given) in value.as_map().unwrap_or_default() {
        let name = key.key_text();
        let Yaml::Bool(_) = given.value else { continue };
        let with = |word: serde_json::Value| {
            let mut all = value.to_json();
            all.as_object_mut()?.insert(name.clone(), word);
            kind.parse(all).ok()
        };
        // No word of any kind, so that what it wants is told.
        let probe = kind.parse(serde_json::json!({ &name: "\u{1}" })).err();
        let Some(Mistake::Value { wanted }) = probe.map(|error| error.mistake) else { continue };
        let wanted = wanted.to_string();
        let Some(words) = wanted.strip_prefix("one of ") else { continue };
        let meant = with(given.to_json());
        let word = words.split(", ").find(|word| meant.is_some() && with((*word).into()) == meant);
        if let (Some(word), Some(text)) = (word, truthy_text(given)) {
            let help = match word.eq_ignore_ascii_case(&text) {
                true => format!("write `{word}` in quotes"),
                false => format!("write `{word}`"),
            };
            findings.push(truthy_finding(given, &text, &help));
        }
    }
}

fn octal(mode: &Node, findings: &mut Vec<Finding>) {
    let Some(number) = mode.as_i64().filter(|number| (0..=0o7777).contains(number)) else { return };
    let written = written(mode);
    if written.starts_with('0') {
        return;
    }
    findings.push(Finding::new(
        "risky-octal",
        Diagnostic::warning(format!("`{written}` is decimal: as a mode it is {number:04o}"))
            .at(&mode.span)
            .help(format!("write `mode: '0{written}'`")),
    ));
}

/// Returns a plain scalar as it is written in the file.
fn written(node: &Node) -> String {
    let line = node.span.source.line(node.span.line).unwrap_or_default();
    line.chars().skip(node.span.column.saturating_sub(1) as usize).take(node.span.length as usize).collect()
}

fn command(view: &TaskView<'_>, kind: &KindInfo, key: &Node, value: &Node, findings: &mut Vec<Finding>) {
    let Some(text) = command_text(value) else { return };
    if let Some(advice) = advise(&text) {
        let tasks: Vec<&str> = advice.tasks().collect();
        if !tasks.is_empty() && advice.whole {
            let noun = if tasks.len() == 1 { "a kind declares this" } else { "kinds declare this" };
            let mut finding = Diagnostic::warning(format!(
                "{noun}: it can be planned, verified and done only where needed"
            ))
            .at(&key.span);
            for task in tasks {
                finding = finding.help(format!("write `{task}`"));
            }
            for note in advice.notes() {
                finding = finding.note(note);
            }
            findings.push(Finding::new("command-instead-of-kind", finding));
            return;
        }
        if advice.sudo && advice.tasks().next().is_none() {
            findings.push(Finding::new(
                "command-instead-of-kind",
                Diagnostic::warning("`sudo` in a command")
                    .at(&key.span)
                    .help("set `become: true` in its place"),
            ));
        }
    }
    let plain = kind.is::<Shell>() && !needs_shell(&text) && value.get("executable").is_none();
    if plain && view.inherited("environment").is_none() {
        findings.push(Finding::new(
            "command-instead-of-shell",
            Diagnostic::warning("this needs no shell").at(&key.span).help("write `command`"),
        ));
    }
}

fn changes(view: &TaskView<'_>, kind: &str, key: &Node, value: &Node, findings: &mut Vec<Finding>) {
    let says = |name: &str| {
        value.get(name).is_some()
            || view.node.get("args").is_some_and(|args| args.get(name).is_some())
            || value.as_str().is_some_and(|text| text.contains(&format!("{name}=")))
    };
    if view.handler || view.node.get("changed_when").is_some() || says("creates") || says("removes") {
        return;
    }
    // The command already has a finding that suggests a kind, which needs no `changed_when`.
    if command_text(value)
        .and_then(|text| advise(&text))
        .is_some_and(|advice| advice.whole && advice.tasks().next().is_some())
    {
        return;
    }
    findings.push(Finding::new(
        "no-changed-when",
        Diagnostic::warning(format!("this `{kind}` counts as a change every time"))
            .at(&key.span)
            .help("add `changed_when: false` if it only reads, or else a condition, `creates` or `removes`"),
    ));
}

fn conditions(node: &Node, findings: &mut Vec<Finding>) {
    for name in ["when", "changed_when", "failed_when", "until"] {
        let Some(value) = node.get(name) else { continue };
        for item in value.as_seq().unwrap_or(std::slice::from_ref(value)) {
            if item.as_str().is_some_and(|text| text.contains("{{") || text.contains("{%")) {
                findings.push(Finding::new(
                    "no-jinja-when",
                    Diagnostic::warning(format!("`{name}` is an expression already"))
                        .at(&item.span)
                        .help("leave out the braces"),
                ));
            }
        }
    }
}

fn partial_become(node: &Node, becomes: bool, findings: &mut Vec<Finding>, view: Option<&TaskView<'_>>) {
    let Some((key, _)) = node.entry("become_user") else { return };
    // The tasks of a play may set `become` themselves.
    let below = view.is_none()
        && ["pre_tasks", "tasks", "post_tasks", "handlers"]
            .iter()
            .any(|section| node.get(section).is_some_and(|list| mentions(list, "become")));
    if becomes || below {
        return;
    }
    findings.push(Finding::new(
        "partial-become",
        Diagnostic::warning("`become_user` without `become` does nothing")
            .at(&key.span)
            .help("add `become: true`"),
    ));
}

fn mentions(node: &Node, name: &str) -> bool {
    match &node.value {
        Yaml::Seq(items) => items.iter().any(|item| mentions(item, name)),
        Yaml::Map(entries) => {
            entries.iter().any(|(key, value)| key.as_str() == Some(name) || mentions(value, name))
        }
        _ => false,
    }
}

fn duplicate_handlers(play: &Node, findings: &mut Vec<Finding>) {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for handler in play.get("handlers").and_then(Node::as_seq).unwrap_or_default() {
        let Some(name) = handler.get("name") else { continue };
        let Some(text) = name.as_str().filter(|text| !is_template(text)) else { continue };
        match seen.get(text) {
            Some(line) => findings.push(Finding::new(
                "duplicate-handler",
                Diagnostic::warning(format!("two handlers are called `{text}`"))
                    .at(&name.span)
                    .label(format!("first on line {line}"))
                    .help("give each a name of its own, or let both `listen` to one topic"),
            )),
            None => {
                seen.insert(text, name.span.line);
            }
        }
    }
}

/// Whether a task sets `become`.
fn becomes_root(view: &TaskView<'_>) -> bool {
    let yes = match view.inherited("become").map(|node| &node.value) {
        Some(Yaml::Bool(yes)) => *yes,
        Some(_) => true,
        None => false,
    };
    yes && view.inherited("become_user").is_none_or(|user| user.as_str() == Some("root"))
}

fn missing_become(views: &[TaskView<'_>], findings: &mut Vec<Finding>) {
    for view in views {
        let Some(kind) = view.found().and_then(|found| found.kind) else { continue };
        let silent = view.inherited("become").is_none();
        // Not tasks of a file without a play: only the plays that use it tell whether they are root.
        if !kind.needs_root || !silent || view.play.is_none() || view.node.get("delegate_to").is_some() {
            continue;
        }
        if view.inherited("remote_user").is_some_and(|user| user.as_str() == Some("root")) {
            continue;
        }
        let same_play = |other: &&TaskView<'_>| match (other.play, view.play) {
            (Some(a), Some(b)) => std::ptr::eq(a, b),
            _ => false,
        };
        let others = views.iter().filter(same_play).any(|other| {
            let likewise = other.found().and_then(|found| found.kind);
            likewise.is_some_and(|kind| kind.needs_root) && becomes_root(other)
        });
        if others {
            let (line, _) = view.lines();
            let place = view.found().map_or(&view.node.span, |found| &found.key.span);
            findings.push(
                Finding::new(
                    "missing-become",
                    Diagnostic::warning(format!(
                        "`{}` needs root, and this task does not become it",
                        kind.name
                    ))
                    .at(place)
                    .note("other tasks of the play become root for what they change")
                    .help("add `become: true`, or set it once for the play"),
                )
                .in_task(line),
            );
        }
    }
}

/// Finds plays that change GPUs but set `become` nowhere.
fn gpus_without_root(tree: &Node, views: &[TaskView<'_>], findings: &mut Vec<Finding>) {
    for play in tree.as_seq().unwrap_or_default().iter().filter(|play| play.get("hosts").is_some()) {
        let of_play = |view: &&TaskView<'_>| view.play.is_some_and(|other| std::ptr::eq(other, play));
        let said = |view: &TaskView<'_>| {
            let is_root = view.inherited("remote_user").is_some_and(|user| user.as_str() == Some("root"));
            is_root || view.inherited("become").is_some() || view.inherited("connection").is_some()
        };
        let variables = ["ansible_become", "ansible_user", "ansible_ssh_user", "ansible_connection"];
        let in_variables =
            variables.iter().any(|name| play.get("vars").and_then(|vars| vars.get(name)).is_some());
        let local = play.get("hosts").and_then(Node::as_str) == Some("localhost");
        // Files of variables are not read here, and may set it too.
        if in_variables || local || play.get("vars_files").is_some() || views.iter().filter(of_play).any(said)
        {
            continue;
        }
        let first = views.iter().filter(of_play).find_map(|view| {
            let found = view.found().filter(|_| view.node.get("delegate_to").is_none())?;
            found.kind.filter(|kind| kind.gpus).map(|kind| (view, found, kind.name))
        });
        let Some((view, found, name)) = first else { continue };
        findings.push(
            Finding::new(
                "gpu-without-root",
                Diagnostic::warning(format!("`{name}` changes GPUs, and nothing in this play becomes root"))
                    .at(&found.key.span)
                    .note("only root may change GPUs: plan and run fail for every other user")
                    .help(
                        "add `become: true` to the play; with -i, what the inventory says of it counts too",
                    ),
            )
            .in_task(view.lines().0),
        );
    }
}

/// Runs the rules for every value of a file.
pub(super) fn check_values(node: &Node, findings: &mut Vec<Finding>) {
    match &node.value {
        Yaml::Seq(items) => items.iter().for_each(|item| check_values(item, findings)),
        Yaml::Map(entries) => {
            for (key, value) in entries {
                truthy(key, findings);
                secret(key, value, findings);
                let name = key.key_text();
                if let Some((_, new)) = OLD_VARIABLES.iter().find(|(old, _)| *old == name) {
                    findings.push(Finding::new(
                        "deprecated-key",
                        Diagnostic::warning(format!("`{name}` has a newer name"))
                            .at(&key.span)
                            .help(format!("write `{new}`")),
                    ));
                }
                check_values(value, findings);
            }
        }
        Yaml::Bool(_) => truthy(node, findings),
        _ => {}
    }
}

fn truthy(node: &Node, findings: &mut Vec<Finding>) {
    let (Yaml::Bool(value), Some(text)) = (&node.value, truthy_text(node)) else { return };
    let is_known =
        |finding: &Finding| finding.rule == "truthy" && finding.diagnostic.span.as_ref() == Some(&node.span);
    if !findings.iter().any(is_known) {
        let help = format!("write `{value}`, or put it into quotes if text is meant");
        findings.push(truthy_finding(node, &text, &help));
    }
}

/// Returns a boolean as it is written, if it is written as a word that is text elsewhere.
fn truthy_text(node: &Node) -> Option<String> {
    let text = written(node);
    matches!(text.to_ascii_lowercase().as_str(), "yes" | "no" | "on" | "off").then_some(text)
}

fn truthy_finding(node: &Node, text: &str, help: &str) -> Finding {
    Finding::new(
        "truthy",
        Diagnostic::warning(format!("`{text}` is a boolean here and text elsewhere"))
            .at(&node.span)
            .help(help),
    )
}

fn secret(key: &Node, value: &Node, findings: &mut Vec<Finding>) {
    let name = key.key_text().to_lowercase();
    let ends = ["password", "passwd", "passphrase", "secret", "token", "api_key"]
        .iter()
        .any(|end| name.ends_with(end));
    let Yaml::Str(text) = &value.value else { return };
    let literal = !text.text.trim().is_empty() && !is_template(&text.text) && !text.text.contains("vault");
    // Parameters such as `update_password: always` take a word that is no secret.
    let word = matches!(text.text.as_str(), "always" | "on_create" | "*" | "!" | "!!" | "x");
    // A text that begins with `$` is a hash, which is not secret.
    if ends && literal && !word && !text.text.starts_with('$') && !text.text.starts_with('/') {
        findings.push(Finding::new(
            "plain-secret",
            Diagnostic::warning(format!("`{}` stands here for everybody to read", key.key_text()))
                .at(&key.span)
                .help(format!(
                    "encrypt it: `{}`",
                    command_line(["gpufleet", "vault", "encrypt-string", "--name", &key.key_text()])
                )),
        ));
    }
}
