//! The screen of `report diff`: a line for each cause, with the nodes that share it.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;

use super::{Role, Style, clean, count, moment};
use crate::report::{Difference, Found, Side, Verdict, fold_gpus, fold_names};

/// Number of lines of a section; the JSON document has all.
const MOST: usize = 40;

/// Equal entries of several nodes: names and subjects.
#[derive(Default)]
struct Group<'a> {
    nodes: Vec<&'a str>,
    subjects: Vec<&'a str>,
}

/// A line's verdicts and text, and in which nodes it is so.
type Lines<'a> = Vec<(Vec<Verdict>, String, Group<'a>)>;

/// Returns the screen.
pub fn difference_screen(of: &Difference, zone: &TimeZone, style: &Style) -> String {
    let mut out = format!("before  {}\nafter   {}\n", side(&of.before, zone), side(&of.after, zone));
    for (changed, text) in [
        (of.baseline_changed, "the baseline differs: verdicts may differ for that alone"),
        (of.waivers_changed, "the file of waivers differs"),
    ] {
        if changed {
            out.push_str(&format!("{} {text}\n", style.paint(Role::Warning, "note:")));
        }
    }
    if !of.inputs_changed.is_empty() {
        let names: Vec<String> = of.inputs_changed.iter().map(|name| clean(name)).collect();
        out.push_str(&format!("{} differs: {}\n", style.paint(Role::Warning, "note:"), names.join(", ")));
    }
    if of.is_empty() {
        out.push_str("no node, verdict, finding or waiver differs\n");
        return out;
    }
    let sections: [(&str, Lines<'_>); 7] = [
        ("VERDICTS", verdicts(of)),
        ("NEW", found(of.new.iter())),
        ("CHANGED", changed(of)),
        ("GONE", found(of.gone.iter().filter(|gone| gone.judged).map(|gone| &gone.finding))),
        ("NOT JUDGED ANY MORE", found(of.gone.iter().filter(|gone| !gone.judged).map(|gone| &gone.finding))),
        ("WAIVERS", waivers(of)),
        ("NODES", nodes(of)),
    ];
    for (title, lines) in sections.iter().filter(|(_, lines)| !lines.is_empty()) {
        out.push_str(&format!("\n{}\n", style.paint(Role::Strong, title)));
        for line in lines.iter().take(MOST) {
            row(line, style, &mut out);
        }
        if lines.len() > MOST {
            out.push_str(&format!("  … and {} more; --format json has all\n", lines.len() - MOST));
        }
    }
    out
}

fn side(side: &Side, zone: &TimeZone) -> String {
    let at = side.as_of.map(|at| format!(" as of {}", moment(at, zone))).unwrap_or_default();
    let baseline = side.baseline.as_ref().map(|it| format!(", baseline {}", it.name)).unwrap_or_default();
    let text = format!("{} {}{at}, {}{baseline}", side.verb, side.run_id, count(side.nodes, "node"));
    clean(&text)
}

fn row((verdicts, text, group): &(Vec<Verdict>, String, Group<'_>), style: &Style, out: &mut String) {
    let shown: Vec<String> =
        verdicts.iter().map(|verdict| style.verdict(*verdict, verdict.to_string())).collect();
    // Of the words alone: colours take no column.
    let used: usize = verdicts.iter().map(|verdict| verdict.word().len()).sum::<usize>()
        + 4 * verdicts.len().saturating_sub(1);
    let pad = if verdicts.is_empty() { String::new() } else { " ".repeat(18_usize.saturating_sub(used)) };
    let subjects = fold_gpus(group.subjects.iter().copied()).join(", ");
    let nodes = format!("{}: {}", count(group.nodes.len(), "node"), fold_names(&group.nodes));
    let words = [subjects.as_str(), text].into_iter().filter(|part| !part.is_empty());
    let words = words.collect::<Vec<_>>().join(" ");
    let line = if words.is_empty() { nodes } else { format!("{words} ({nodes})") };
    out.push_str(&format!("  {}{pad}{}\n", shown.join(" -> "), clean(&line)));
}

/// Groups entries by verdicts and text: the worst first, then what most nodes have.
fn grouped<'a>(entries: impl Iterator<Item = (Vec<Verdict>, String, &'a str, &'a str)>) -> Lines<'a> {
    let mut groups: BTreeMap<(Vec<Verdict>, String), Group<'a>> = BTreeMap::new();
    for (verdicts, text, node, subject) in entries {
        let group = groups.entry((verdicts, text)).or_default();
        if group.nodes.last() != Some(&node) {
            group.nodes.push(node);
        }
        if !subject.is_empty() && !group.subjects.contains(&subject) {
            group.subjects.push(subject);
        }
    }
    let mut lines: Lines<'a> =
        groups.into_iter().map(|((verdicts, text), group)| (verdicts, text, group)).collect();
    lines.sort_by_key(|(verdicts, _, group)| {
        (std::cmp::Reverse(verdicts.last().copied()), std::cmp::Reverse(group.nodes.len()))
    });
    lines
}

fn verdicts(of: &Difference) -> Lines<'_> {
    grouped(of.verdicts.iter().map(|it| {
        let next = match it.next_action.word() {
            "none" => String::new(),
            word => format!("next {word}"),
        };
        (vec![it.before, it.after], next, it.node.as_str(), "")
    }))
}

fn told(found: &Found) -> String {
    let waived = found.waived.as_ref().map(|id| format!(", waived by {id}")).unwrap_or_default();
    format!("{} [{}{waived}]", found.text, found.control)
}

fn found<'a>(all: impl Iterator<Item = &'a Found>) -> Lines<'a> {
    grouped(all.map(|it| (vec![it.verdict], told(it), it.node.as_str(), it.subject.as_str())))
}

fn changed(of: &Difference) -> Lines<'_> {
    grouped(of.changed.iter().map(|it| {
        let text = match it.before.text == it.after.text {
            true => told(&it.after),
            false => format!("{}; before: {}", told(&it.after), it.before.text),
        };
        let mut verdicts = vec![it.before.verdict, it.after.verdict];
        verdicts.dedup();
        (verdicts, text, it.after.node.as_str(), it.after.subject.as_str())
    }))
}

fn waivers(of: &Difference) -> Lines<'_> {
    grouped(of.waivers.iter().map(|it| {
        let text = match (&it.before, &it.after) {
            (None, Some(now)) => format!("{} is waived now by {now}", it.control),
            (Some(then), None) => format!("{} counts again, without waiver {then}", it.control),
            (then, now) => {
                let id = |id: &Option<String>| id.clone().unwrap_or_default();
                format!("{} is waived by {}, before by {}", it.control, id(now), id(then))
            }
        };
        (Vec::new(), text, it.node.as_str(), it.subject.as_str())
    }))
}

fn nodes(of: &Difference) -> Lines<'_> {
    let before = of.only_before.iter().map(|name| (Vec::new(), "only before".to_owned(), name.as_str(), ""));
    let after = of.only_after.iter().map(|name| (Vec::new(), "only after".to_owned(), name.as_str(), ""));
    grouped(before.chain(after))
}
