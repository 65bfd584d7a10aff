//! Text about the checks of an audit, from their catalogue.

use std::fmt::Write as _;

use gpufleet_compliance::{
    Catalogue, Check,
    advice::{Class, DRAIN_FIRST},
    baseline,
    catalogue::RuleVerdict,
    xid,
};

use crate::visible::command_line;

/// The list of all checks, for a terminal.
pub fn checks_text() -> String {
    let mut out = String::from(
        "checks\n\n  What `gpufleet audit --health` judges; `gpufleet doc CHECK` describes one.\n\n",
    );
    let checks = Catalogue::get().checks();
    let width = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    for check in checks {
        let _ = writeln!(out, "  {:width$}  {:8}  {}", check.id, check.severity, check.title);
    }
    out.push_str("\nbaselines\n\n");
    for (name, purpose) in baseline::built_in() {
        let _ = writeln!(out, "  {name:width$}  {purpose}");
    }
    out
}

/// The manual of one check, for a terminal; `None` if there is none of this id.
pub fn check_text(id: &str) -> Option<String> {
    let check = Catalogue::get().check(id)?;
    let mut out = format!(
        "{}  ({}, of each {})\n\n  {}.\n  ok where: {}.\n",
        check.id, check.severity, check.scope, check.fault, check.title
    );
    let _ = writeln!(out, "  {}\n", check.why);
    for (when, verdict, note) in rules(check) {
        let _ = writeln!(out, "  {verdict}: {note}\n      {when}");
    }
    for outlier in &check.outliers {
        let _ = writeln!(
            out,
            "  warn, {}: {}\n      `{}` beside that of its peers",
            outlier.action, outlier.note, outlier.of.1
        );
    }
    if check.hysteresis.enter > 1 {
        let _ = writeln!(out, "\n  {}.", over_time(check));
    }
    if !check.params.is_empty() {
        out.push('\n');
        for (name, value) in &check.params {
            let _ = writeln!(out, "  parameter {name}: {value}");
        }
    }
    let _ = writeln!(out, "\n  next step: {}", check.remediation.text);
    if let Some(command) = &check.remediation.reads {
        let _ = writeln!(out, "\n  {}, on the node:\n      {command}", Class::Reads.label());
    }
    for (at, (action, command)) in check.destructive().enumerate() {
        if at == 0 {
            let _ = writeln!(out, "\n  {}: {DRAIN_FIRST}", Class::Destructive.label().to_uppercase());
        }
        let _ = writeln!(out, "  then, only where the action is {action}:\n      {command}");
    }
    out.push('\n');
    for reference in &check.references {
        let _ = writeln!(out, "  see {reference}");
    }
    Some(out)
}

/// What is known of an error code of the driver, for a terminal.
pub fn xid_text(code: u32) -> String {
    let (kind, name) = (xid::Kind::of(code), gpufleet_protocol::xid::name(code));
    let of_kind = format!("kind=\"{}\"", kind.word());
    let names_it = |text: &str| {
        let codes = text.split("count_xid([").skip(1).filter_map(|rest| rest.split(']').next());
        text.contains(&of_kind)
            || codes.flat_map(|codes| codes.split(',')).any(|known| known.trim().parse() == Ok(code))
    };
    let checks: Vec<String> = Catalogue::get()
        .checks()
        .iter()
        .filter(|check| check.rules.iter().any(|rule| names_it(&rule.text)))
        .map(|check| format!("`{}`", command_line(["gpufleet", "doc", &check.id])))
        .collect();
    let mut out = format!("Xid {code}{}{name}\n\n", if name.is_empty() { "" } else { "  " });
    let _ = writeln!(out, "  it asks for: {}", gpufleet_protocol::xid::asks(code).next_step());
    let _ = writeln!(out, "  an audit counts it as: {}", kind.word());
    if !checks.is_empty() {
        let _ = writeln!(out, "  judged by: {}", checks.join(", "));
    }
    out.push_str("  see https://docs.nvidia.com/deploy/xid-errors/\n");
    out
}

/// The reference of all checks, as docs/reference/checks.md holds it.
pub fn checks_markdown() -> String {
    let mut out = String::from(
        "# Checks\n\n\
         Made from the catalogue of checks; a test keeps this file true (`make reference` rewrites it). The guide is\n\
         [Health and compliance](../guide/health.md).\n\n\
         A check is `na` where what it reads is not there, and `unknown` where it could not be read. Its rules are tried in\n\
         their order; where none holds it is `ok`.\n\n\
         | check | severity | of each | what holds where it is ok |\n|---|---|---|---|\n",
    );
    for check in Catalogue::get().checks() {
        let anchor = check.id.replace(['.', '_'], "");
        let _ = writeln!(
            out,
            "| [`{}`](#{anchor}) | {} | {} | {} |",
            check.id, check.severity, check.scope, check.title
        );
    }
    let _ = writeln!(
        out,
        "\n## Destructive commands\n\nThey end what runs on the node. {DRAIN_FIRST} A play with `drain` does it by itself; \
         `gpufleet doc drain` tells how."
    );
    out.push_str("\n## Baselines\n\n| baseline | for |\n|---|---|\n");
    for (name, purpose) in baseline::built_in() {
        let _ = writeln!(out, "| `{name}` | {purpose} |");
    }
    for check in Catalogue::get().checks() {
        section(check, &mut out);
    }
    out
}

fn section(check: &Check, out: &mut String) {
    let _ = write!(
        out,
        "\n## {}\n\n{}. It is ok where this holds: {}. {}\n",
        check.id, check.fault, check.title, check.why
    );
    let rules: Vec<_> = rules(check).collect();
    if !rules.is_empty() {
        out.push_str("\n| verdict | if | which means |\n|---|---|---|\n");
    }
    for (when, verdict, note) in rules {
        let _ = writeln!(out, "| {verdict} | `{}` | {} |", when.replace('|', "\\|"), note);
    }
    for outlier in &check.outliers {
        let _ = writeln!(
            out,
            "\nAmong nodes: warn, {} where `{}` is odd: {}.",
            outlier.action, outlier.of.1, outlier.note
        );
    }
    if check.hysteresis.enter > 1 {
        let _ = writeln!(out, "\n{}.", over_time(check));
    }
    if !check.params.is_empty() {
        let params: Vec<String> =
            check.params.iter().map(|(name, value)| format!("`{name}` {value}")).collect();
        let _ = writeln!(out, "\nParameters: {}.", params.join(", "));
    }
    let _ = write!(out, "\nNext step: {}", check.remediation.text);
    out.push('\n');
    if let Some(command) = &check.remediation.reads {
        let _ = writeln!(out, "\n{}, on the node: `{command}`", sentence(Class::Reads.label()));
    }
    for (action, command) in check.destructive() {
        let class = sentence(Class::Destructive.label());
        let _ = writeln!(
            out,
            "\n**{class}**, [behind a drain](#destructive-commands), only where the action is {action}: `{command}`"
        );
    }
    if !check.references.is_empty() {
        let _ = writeln!(out, "\nSource: {}.", check.references.join(", "));
    }
}

/// Returns a label with a capital letter.
fn sentence(label: &str) -> String {
    let mut rest = label.chars();
    rest.next().into_iter().flat_map(char::to_uppercase).chain(rest).collect()
}

/// How findings come and go.
fn over_time(check: &Check) -> String {
    let (enter, clear) = (check.hysteresis.enter, check.hysteresis.clear);
    format!("A finding counts in full after {enter} audits in a row, and is over after {clear} without it")
}

/// Condition, verdict and next action, and what they mean.
fn rules(check: &Check) -> impl Iterator<Item = (&str, String, &str)> {
    check.rules.iter().map(|rule| {
        let verdict = match &rule.verdict {
            RuleVerdict::Fixed(verdict) => verdict.to_string(),
            RuleVerdict::Param(name) => format!("as `{name}` says"),
        };
        (rule.text.as_str(), format!("{verdict}, {}", rule.action), &*rule.note)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_checks_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/checks.md");
        let wanted = checks_markdown();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == wanted, "docs/reference/checks.md is out of date: run `make reference`");
    }

    #[test]
    fn every_check_has_a_manual() {
        for check in Catalogue::get().checks() {
            let text = check_text(&check.id).unwrap();
            assert!(text.contains(&check.why) && text.contains("next step: "), "{text}");
            if let Some(at) = text.find("gpufleet exec") {
                assert!(text.find(DRAIN_FIRST).is_some_and(|drain| drain < at), "{text}");
            }
        }
        assert_eq!(check_text("mem.nothing"), None);
        insta::assert_snapshot!(check_text("err.xid_reboot").unwrap(), @r#"
        err.xid_reboot  (critical, of each gpu)

          An error code asks for a reboot.
          ok where: No error code asks for a reboot.
          The GPU is off the bus (79), by a fault of PCIe, power or firmware, or lost its keys (151). Only a new boot brings it back, often only a power cycle.

          fail, reboot: an Xid that only a reboot settles was logged
              count_xid(kind="reboot", settled=false) > 0

          next step: Drain the node, as jobs on its other GPUs may still run; reboot it when they have ended, and power it off and on if the GPU stays away. If the code comes back within two weeks, look at seat, cables and power.

          reads only, on the node:
              dmesg | grep 'NVRM: Xid'

          DESTRUCTIVE: Drain first: `scontrol update nodename=NODE state=drain reason=…`, or `kubectl cordon NODE`, and wait until its jobs have ended; a node with work is held, and not touched.
          then, only where the action is reboot:
              gpufleet exec NODE -b -m reboot -a 'when=always'

          see https://docs.nvidia.com/deploy/xid-errors/
        "#);
    }
}
