//! No text of a node, a playbook or a name can act on the terminal or imitate gpufleet's lines on any screen.

use gpufleet_protocol::facts::Facts;
use jiff::{Timestamp, tz::TimeZone};
use proptest::prelude::*;
use serde_json::Value;

use super::{figures::looks_like_ours, *};
use crate::{
    event::{Event, NodeState, Verb},
    report::{RunModel, Timing, html, sample},
    visible::is_hidden,
};

/// Fields with checked content (names of hosts), or that no outsider can set.
const OURS: [&str; 5] = ["host", "hosts", "run_id", "op_id", "at"];

/// Returns the events with the text in every field that accepts one, and the number of these fields.
fn infested(events: &[Event], text: &str) -> (Vec<Event>, usize) {
    let mut fields = 0;
    let events = events
        .iter()
        .map(|event| {
            let mut known: Event = event.clone();
            let mut json = serde_json::to_value(event).unwrap();
            let mut paths = Vec::new();
            strings(&json, String::new(), &mut paths);
            for path in paths {
                let leaf = json.pointer_mut(&path).unwrap();
                let before = leaf.clone();
                *leaf = Value::from(format!("{}{text}", before.as_str().unwrap()));
                match serde_json::from_value::<Event>(json.clone()) {
                    Ok(event) => {
                        known = event;
                        fields += 1;
                    }
                    // A field for a state or a time accepts no other text.
                    Err(_) => *json.pointer_mut(&path).unwrap() = before,
                }
            }
            known
        })
        .collect();
    (events, fields)
}

fn strings(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(path),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| strings(item, format!("{path}/{at}"), found));
        }
        Value::Object(map) => {
            for (name, value) in map.iter().filter(|(name, _)| !OURS.contains(&name.as_str())) {
                let name = name.replace('~', "~0").replace('/', "~1");
                strings(value, format!("{path}/{name}"), found);
            }
        }
        _ => {}
    }
}

/// Returns all screens that a person may see of these events.
fn screens(events: &[Event]) -> Vec<(&'static str, String)> {
    let style = Style { verbosity: Verbosity::All, ..Style::default() };
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let model = RunModel::of(events);
    let mut shown = Vec::new();
    for width in [40, 100, Style::UNCUT] {
        let style = Style { width, ..style };
        shown.push(("recap", recap(&model, &style)));
        shown.push(("failures", failures(&model, &style)));
        shown.push(("ending", ending_lines(&model, Some("report.html"), &style)));
        shown.push(("plan", plan_screen(&model, PlanView::Diff, &style)));
        shown.push(("changes", changes_screen(&model, &style)));
        shown.push(("audit", audit_screen(&model, &style)));
        shown.push(("confirm", confirm_text(&disrupted(&model), &style).unwrap_or_default()));
        for node in model.nodes() {
            shown.push(("node", node_screen(node, &style)));
            shown.push(("held", held_screen(&model, node, &style)));
        }
        let rows: Vec<FactsRow<'_>> = model
            .nodes()
            .iter()
            .map(|node| FactsRow { host: &node.name, facts: node.facts.as_deref().ok_or("none") })
            .collect();
        shown.push(("facts", facts_table(&rows, false, &style)));
        let mut progress = String::new();
        let mut announcer = Announcer::new(style, true);
        let mut ansible = AnsibleLines::new(style, 3, true);
        let mut model = RunModel::new();
        let mut timing = Timing::default();
        let mut words = String::new();
        for event in events {
            model.apply(event);
            timing.apply(event);
            announcer
                .event(&model, event)
                .into_iter()
                .for_each(|line| progress.push_str(&format!("{line}\n")));
            progress.push_str(&progress_frame(&model, now, &style).join("\n"));
            progress.push_str(&format!("\n{}\n", plain_status(&model, now, &style)));
            words.push_str(&ansible.event(&model, event));
        }
        announcer.finish().into_iter().for_each(|line| progress.push_str(&format!("{line}\n")));
        shown.push(("progress", progress));
        shown.push(("ansible", words));
        shown.push(("profile", profile_screen(&timing, &style)));
    }
    let mut lines = JsonLines::new(Vec::new());
    events.iter().for_each(|event| lines.event(event).unwrap());
    shown.push(("jsonl", lines.into_text()));
    shown
}

/// Returns what is wrong with a screen: a hidden character, or a line that begins like a planted one.
fn wrong(screen: &str) -> Option<String> {
    screen
        .lines()
        .find(|line| {
            line.contains(|c| is_hidden(c) && c != '\t') || PLANTED.iter().any(|text| line.starts_with(text))
        })
        .map(|line| format!("{line:?}"))
}

/// Beginnings of lines that only the planted text has.
const PLANTED: [&str; 5] = ["ok: [planted]", "planted | ", "✗ planted", "error: planted", "PLAY [planted]"];

fn planted() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "\n",
        "\r",
        "\r\n",
        "\u{1b}[2J",
        "\u{1b}]0;title\u{7}",
        "\u{9b}31m",
        "\u{85}",
        "\u{2028}",
        "\u{202e}",
        "\u{200b}",
        "\u{feff}",
        "\u{e0041}",
        "\u{7f}",
        "\0",
        "\t",
        " ",
        "ok: [planted]",
        "planted | rc=0 >>",
        "✗ planted",
        "error: planted",
        "PLAY [planted] ***",
        "x",
        "GPU 0 ",
        "[",
    ]);
    prop::collection::vec(pieces, 1..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_screen_lets_a_text_act_or_speak_for_us(text in planted()) {
        for events in [sample::run(), sample::plan(), sample::audit(8)] {
            let (events, fields) = infested(&events, &text);
            prop_assert!(fields > 50, "only {fields} fields");
            let wrong: Vec<String> = screens(&events)
                .iter()
                .filter_map(|(name, screen)| Some(format!("{name}: {}", wrong(screen)?)))
                .collect();
            prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            let page = html(&RunModel::of(&events)).unwrap();
            prop_assert!(!page.contains(|c| is_hidden(c) && !matches!(c, '\n' | '\t')));
        }
    }

    #[test]
    fn answers_of_nodes_stay_theirs(text in planted()) {
        let style = Style::default();
        let result = ExecResult {
            host: "gpu001".to_owned(),
            rc: Some(0),
            stdout: text.clone(),
            stderr: format!("\n{text}"),
            error: None,
        };
        let failed = ExecResult { error: Some(text.clone()), rc: None, ..result.clone() };
        let mut shown = vec![exec_line(&result, &style), exec_grouped(&[result, failed], &style)];
        let mut report = sample::failed("command", 3, &text);
        for name in ["stdout", "stderr", "msg"] {
            report.data.insert(name.to_owned(), Value::from(text.clone()));
        }
        report.data.insert(text.clone(), Value::from(text.clone()));
        shown.push(ad_hoc("gpu001", &report, false, true, &style));
        report.data.insert("rc".to_owned(), Value::from(1));
        for one_line in [false, true] {
            shown.push(ad_hoc("gpu001", &report, one_line, true, &style));
            shown.push(ad_hoc_loss("gpu001", NodeState::Failed, &text, one_line, &style));
        }
        let row = RunRow {
            run_id: "01JD".to_owned(),
            verb: Verb::Run,
            playbooks: vec![text.clone()],
            resumable: true,
            started: None,
            exit_code: None,
            nodes: 1,
            summary: text.clone(),
        };
        shown.push(runs_table(&[row], &TimeZone::UTC, &style));
        shown.push(facts_table(&[FactsRow { host: "gpu001", facts: Err(&text) }], true, &style));
        let facts = Facts { kernel: text.clone(), errors: vec![text.clone()], ..sample::facts(&text, true) };
        shown.push(facts_table(&[FactsRow { host: "gpu001", facts: Ok(&facts) }], true, &style));
        for screen in shown {
            prop_assert!(wrong(&screen).is_none(), "{}", screen);
            let ours = screen.lines().filter(|line| looks_like_ours(line) && !line.starts_with("gpu001"));
            prop_assert_eq!(ours.filter(|line| !line.starts_with("note: gpu001")).count(), 0, "{}", screen);
        }
    }
}
