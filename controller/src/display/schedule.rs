//! The part of a plan with the order of the nodes, the limits, and how long it may take.

use std::collections::HashMap;

use gpufleet_protocol::Disruption;

use super::{
    Role, Style, clean, count,
    figures::length,
    plan::{LABEL, note},
};
use crate::{
    event::{DurationOrigin, PlayStarted, PolicyShape, WaveShape, WorstCase},
    report::{RunModel, fold_names},
};

/// Largest number of rows: a fleet in waves of one has as many waves as nodes.
const ROWS: usize = 12;

/// Consecutive waves with the same label.
struct Row<'a> {
    first: usize,
    last: usize,
    label: String,
    aside: bool,
    /// Size of one wave; the last one may be smaller.
    size: usize,
    hosts: Vec<&'a str>,
}

/// Writes `Waves`, `Drain`, `Time` and `Window` of one play.
pub(super) fn schedule(play: &PlayStarted, model: &RunModel, style: &Style, out: &mut String) {
    if model.plays.len() > 1 {
        note("Play", &format!("\"{}\"", clean(&play.name)), style, out);
    }
    waves(play, style, out);
    note(if play.waves.is_empty() { "Waves" } else { "" }, &bounds(play), style, out);
    let Some(policy) = &play.policy else { return };
    let disturbed = play.hosts.iter().filter_map(|host| class_of(model, host)).max();
    if disturbed.is_some() || policy.drain != "none" {
        note("Drain", &drain(policy), style, out);
    }
    if let Some(class) = disturbed {
        note("Time", &time(play, policy, model, class), style, out);
    }
    if let Some(window) = &policy.window {
        note("Window", &window_text(window, policy, disturbed), style, out);
    }
}

/// Writes a row for each wave; equal consecutive ones share a row.
fn waves(play: &PlayStarted, style: &Style, out: &mut String) {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (at, WaveShape { label, hosts, aside }) in play.waves.iter().enumerate() {
        let hosts = hosts.iter().map(String::as_str);
        let label = clean(label);
        match rows.last_mut().filter(|row| row.label == label && row.aside == *aside) {
            Some(row) => {
                row.last = at + 1;
                row.hosts.extend(hosts);
            }
            None => {
                let hosts: Vec<&str> = hosts.collect();
                let (first, size) = (at + 1, hosts.len());
                rows.push(Row { first, last: first, label, aside: *aside, size, hosts });
            }
        }
    }
    let hidden = rows.len().saturating_sub(ROWS);
    rows.truncate(ROWS);
    let number = |row: &Row<'_>| match row.first == row.last {
        true => row.first.to_string(),
        false => format!("{}-{}", row.first, row.last),
    };
    let numbers = rows.iter().map(|row| number(row).len()).max().unwrap_or(0);
    let labels = rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
    let sizes = rows.iter().map(|row| count(row.hosts.len(), "node").len()).max().unwrap_or(0);
    for (at, row) in rows.iter().enumerate() {
        let heading = if at == 0 { "Waves" } else { "" };
        let cells = format!(
            "{:numbers$}  {:labels$}  {:sizes$}  ",
            number(row),
            row.label,
            count(row.hosts.len(), "node")
        );
        let why = match row.label.as_str() {
            "canary" => "  one of each class".to_owned(),
            _ if row.aside => "  of unknown class: after all others".to_owned(),
            _ if row.first < row.last => format!("  {} at a time", row.size),
            _ => String::new(),
        };
        let used = 3 + LABEL + cells.chars().count() + why.chars().count();
        let names = style.cut(&fold_names(&row.hosts), style.width.saturating_sub(used).max(12));
        let heading = style.paint(Role::Strong, format!("{heading:LABEL$}"));
        let line = format!("  {heading} {cells}{names}{why}");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    if hidden > 0 {
        note("", &format!("and {} more", count(hidden, "row")), style, out);
    }
}

/// Returns `at most 2 out at once, 1 of each rack; each wave is watched for 10m`.
fn bounds(play: &PlayStarted) -> String {
    let mut text = format!("at most {} out at once", play.max_unavailable);
    let Some(policy) = &play.policy else { return text };
    if let (Some(domain), Some(most)) = (&policy.failure_domain, policy.max_per_domain) {
        text.push_str(&format!(", {most} of each {} ({} of them", clean(domain), policy.domains.len()));
        let inside: usize = policy.domains.iter().map(|domain| domain.hosts.len()).sum();
        let outside = play.hosts.len().saturating_sub(inside);
        if outside > 0 {
            text.push_str(&format!("; {} in none", count(outside, "node")));
        }
        text.push(')');
    }
    if policy.soak_s > 0 {
        text.push_str(&format!("; each wave is watched for {}", length(policy.soak_s)));
    }
    text
}

fn drain(policy: &PolicyShape) -> String {
    let gate = match policy.health_gate.is_empty() {
        true => "given back without a check".to_owned(),
        false => format!("given back when {} hold", policy.health_gate.join(", ")),
    };
    match policy.drain.as_str() {
        "none" => format!("none: a busy node is held; {gate}"),
        name => format!("{name}, up to {} a node; {gate}", length(policy.drain_s)),
    }
}

/// Returns the disruption for which a node would be taken out of service.
fn class_of(model: &RunModel, host: &str) -> Option<Disruption> {
    model.node(host)?.disruption().filter(|class| *class > Disruption::Live)
}

/// Returns how long one node and the whole play may take.
fn time(play: &PlayStarted, policy: &PolicyShape, model: &RunModel, worst: Disruption) -> String {
    let mut cases: Vec<String> = Vec::new();
    for case in policy.worst_case.iter().rev().filter(|case| case.class <= worst) {
        if play.hosts.iter().any(|host| class_of(model, host) == Some(case.class)) {
            cases.push(format!("{} ({}{})", length(case.seconds), case.class, learned(case)));
        }
    }
    let total = whole(play, policy, model);
    format!("a node is out for up to {}; all of them take up to {}", cases.join(", "), length(total))
}

/// Returns which parts of a time were measured, and how often.
fn learned(case: &WorstCase) -> String {
    let mut named: Vec<String> = Vec::new();
    let mut measured = None;
    for part in &case.parts {
        if let DurationOrigin::Learned { nodes, runs } = part.from {
            named.push(part.what.to_string());
            measured = Some((nodes, runs));
        }
    }
    let Some((nodes, runs)) = measured else { return String::new() };
    let what = match named.as_slice() {
        all if all.len() == case.parts.len() => ",".to_owned(),
        [first @ .., last] if !first.is_empty() => format!("; {} and {last}", first.join(", ")),
        rest => format!("; {}", rest.concat()),
    };
    format!("{what} learned from {} of {}", count(nodes, "node"), count(runs, "run"))
}

/// Returns the time of all waves in sequence, each with as many rounds as the budget and the fullest domain require.
fn whole(play: &PlayStarted, policy: &PolicyShape, model: &RunModel) -> u64 {
    let mut domain_of: HashMap<&str, usize> = HashMap::new();
    for (at, domain) in policy.domains.iter().enumerate() {
        domain_of.extend(domain.hosts.iter().map(|host| (host.as_str(), at)));
    }
    let mut total = 0_u64;
    for wave in &play.waves {
        let mut out = 0_usize;
        let mut longest = 0;
        let mut of_domain: HashMap<usize, usize> = HashMap::new();
        for host in &wave.hosts {
            let Some(seconds) = class_of(model, host).and_then(|class| policy.worst_case_s(class)) else {
                continue;
            };
            out += 1;
            longest = longest.max(seconds);
            if let Some(domain) = domain_of.get(host.as_str()) {
                *of_domain.entry(*domain).or_default() += 1;
            }
        }
        if out == 0 {
            continue;
        }
        let fullest = of_domain.values().copied().max().unwrap_or(0);
        let rounds = out
            .div_ceil(play.max_unavailable.max(1))
            .max(policy.max_per_domain.map_or(0, |most| fullest.div_ceil(most.max(1))));
        let rounds = u64::try_from(rounds).unwrap_or(u64::MAX);
        total = total.saturating_add(rounds.saturating_mul(longest)).saturating_add(policy.soak_s);
    }
    total
}

/// Seconds of a week: no window that closes at some time is open as long.
const WEEK: u64 = 7 * 86_400;

fn window_text(window: &str, policy: &PolicyShape, disturbed: Option<Disruption>) -> String {
    let mut text = clean(window);
    let Some(open) = policy.window_longest_s else { return text };
    // Why not its length: openings that touch are one, as far as anybody looks ahead.
    if open >= WEEK {
        text.push_str(", always open");
        return text;
    }
    text.push_str(&format!(", {} long", length(open)));
    let Some(needed) = disturbed.and_then(|class| policy.worst_case_s(class)) else { return text };
    if needed > open {
        text.push_str(&format!(
            ", which is too short: no node is begun that may need {}; shorten the timeouts or widen the window",
            length(needed)
        ));
    } else {
        text.push_str(&format!("; a node is begun up to {} before its end", length(needed)));
    }
    text
}
