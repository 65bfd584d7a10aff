//! The page of the fleet from rows made up here, which other tests use too.

use gpufleet_compliance::Action;

use super::*;

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

pub(crate) fn node(name: &str) -> NodeRow {
    NodeRow {
        node: name.to_owned(),
        groups: Vec::new(),
        hardware: Some("8x H100 80GB HBM3".to_owned()),
        driver: None,
        run: "01A".to_owned(),
        at: at(0),
        verdict: Verdict::Ok,
        since: at(-86_400),
        action: Action::None,
        compliant: true,
        score: Some(100),
        judged: 60,
        applicable: 60,
        findings: 0,
    }
}

pub(crate) fn audit(run: &str, second: i64, nodes: u32, compliant: u32) -> AuditRow {
    AuditRow {
        run: run.to_owned(),
        controller: "login1".to_owned(),
        started: at(second - 60),
        finished: at(second),
        playbooks: Vec::new(),
        baselines: vec!["training".to_owned()],
        exit_code: 3,
        nodes,
        compliant,
        verdicts: BTreeMap::new(),
    }
}

fn fleet() -> Vec<NodeRow> {
    let mut nodes: Vec<NodeRow> = (1..=12).map(|at| node(&format!("gpu{at}"))).collect();
    for (at, node) in nodes.iter_mut().enumerate() {
        node.groups = vec![format!("rack{}", at / 4 + 1), "training".to_owned()];
    }
    nodes[10].verdict = Verdict::Fail;
    nodes[10].compliant = false;
    nodes[1].verdict = Verdict::Warn;
    nodes[9].groups.clear();
    nodes
}

fn names(view: &FleetView) -> Vec<(&str, Vec<&str>)> {
    view.rows
        .iter()
        .map(|row| (row.name.as_str(), row.cells.iter().map(|cell| cell.name.as_str()).collect()))
        .collect()
}

#[test]
fn the_worst_rack_comes_first_and_nodes_keep_their_order() {
    let nodes = fleet();
    let view = FleetView::of(&[audit("01A", 0, 12, 11)], &nodes, &[], &Asked::default(), now());
    assert_eq!(
        names(&view),
        [
            ("rack3", vec!["gpu9", "gpu11", "gpu12"]),
            ("rack1", vec!["gpu1", "gpu2", "gpu3", "gpu4"]),
            ("rack2", vec!["gpu5", "gpu6", "gpu7", "gpu8"]),
            ("no rack", vec!["gpu10"]),
        ]
    );
    assert_eq!((view.nodes, view.compliant, view.percent.as_str()), (12, 11, "91.7"));
    let tiles: Vec<_> = view.tiles.iter().map(|tile| (tile.verdict.word(), tile.count)).collect();
    assert_eq!(tiles, [("fail", 1), ("unknown", 0), ("drift", 0), ("warn", 1), ("ok", 10)]);
    assert_eq!(view.tiles[0].href, "/?by=groups%3Arack&verdict=fail");
}

#[test]
fn a_choice_of_group_and_verdict_narrows_everything() {
    let nodes = fleet();
    let asked = Asked {
        by: Some("group".to_owned()),
        group: Some("rack3".to_owned()),
        verdict: Some(Verdict::Fail),
        ..Asked::default()
    };
    let view = FleetView::of(&[], &nodes, &[], &asked, now());
    assert_eq!(names(&view), [("rack3", vec!["gpu11"]), ("training", vec!["gpu11"])]);
    assert_eq!((view.nodes, view.percent.as_str()), (3, "66.7"), "of the group, whatever the verdict");
    let fail = &view.tiles[0];
    assert!(fail.chosen && fail.href == "/?by=group&group=rack3", "{fail:?}");
    let rack3 = view.groups.iter().find(|group| group.label == "rack3").unwrap();
    assert_eq!(rack3.href, "/?by=group&verdict=fail", "a second click takes it back");
    let odd = Asked { by: Some("no such axis".to_owned()), ..Asked::default() };
    assert_eq!(FleetView::of(&[], &nodes, &[], &odd, now()).rows[0].name, "rack3");
}

fn now() -> Timestamp {
    at(120)
}

/// 4,000 nodes in 125 racks: a drawing for each, and one stop of the tab key.
#[test]
fn many_nodes_are_racks_with_a_link_each() {
    let mut nodes: Vec<NodeRow> = (0..4000).map(|at| node(&format!("gpu{at:04}"))).collect();
    for (at, node) in nodes.iter_mut().enumerate() {
        node.groups = vec![format!("rack{:03}", at / 32)];
        // One failed node in rack 3; rack 7 differs in half of its nodes.
        if at == 3 * 32 || at / 32 == 7 && at % 2 == 0 {
            node.verdict = if at == 3 * 32 { Verdict::Fail } else { Verdict::Drift };
            node.compliant = false;
        }
    }
    let page = |asked: &Asked| FleetView::of(&[], &nodes, &[], asked, now());
    let view = page(&Asked::default());
    assert!(view.rows.is_empty() && view.cards.len() == 125 && view.rows_left_out == 0);
    let [first, second, third] = [0, 1, 2].map(|at| &view.cards[at]);
    assert_eq!((first.name.as_str(), first.compliant, first.heat), ("rack003", 31, 1), "a little is bad");
    assert_eq!((second.name.as_str(), second.compliant, second.heat), ("rack007", 16, 3), "half of it");
    assert_eq!((third.heat, third.drawn.len(), third.lines), (0, 1, 2));
    assert_eq!(first.href, "/?by=groups%3Arack&row=rack003");
    let rack = page(&Asked { row: Some("rack003".to_owned()), ..Asked::default() });
    assert_eq!((rack.rows[0].cells.len(), rack.cards.len(), rack.narrowed.len()), (32, 0, 1));
    assert_eq!(rack.narrowed[0].href, "/?by=groups%3Arack");
    let by_name = page(&Asked { order: Order::Name, ..Asked::default() });
    assert_eq!(by_name.cards[0].name, "rack000");
}

#[test]
fn a_search_finds_names_in_any_case_and_keeps_the_other_choices() {
    let nodes = fleet();
    let asked = Asked { find: Some("GPU1".to_owned()), group: Some("rack3".to_owned()), ..Asked::default() };
    let view = FleetView::of(&[], &nodes, &[], &asked, now());
    assert_eq!(names(&view), [("rack3", vec!["gpu11", "gpu12"])]);
    assert_eq!(view.kept, [("by", "groups:rack".to_owned()), ("group", "rack3".to_owned())]);
    assert!(view.axes[1].href.ends_with("&find=GPU1"), "{:?}", view.axes);
    let others = Asked { row: Some(String::new()), ..Asked::default() };
    assert_eq!(names(&FleetView::of(&[], &nodes, &[], &others, now())), [("no rack", vec!["gpu10"])]);
}

#[test]
fn where_nobody_audits_any_more_everything_is_old() {
    let nodes = [node("gpu1")];
    let audits = [audit("01A", 0, 1, 1)];
    let view = FleetView::of(&audits, &nodes, &[], &Asked::default(), at(12 * 86_400));
    assert_eq!((view.old, view.newest.and_then(|newest| newest.days)), (1, Some(12)));
    let view = FleetView::of(&audits, &nodes, &[], &Asked::default(), now());
    assert_eq!((view.old, view.newest.and_then(|newest| newest.days)), (0, None));
}

#[test]
fn a_reading_much_older_than_the_latest_audit_says_so() {
    let mut nodes = vec![node("fresh"), node("stale")];
    nodes[1].at = at(-3 * 86_400);
    let view = FleetView::of(&[audit("01A", 60, 1, 1)], &nodes, &[], &Asked::default(), now());
    let cells: Vec<_> = view.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.old).collect();
    assert_eq!((view.old, cells), (1, vec![false, true]));
}

#[test]
fn nearly_all_is_not_all_and_nothing_is_no_share() {
    assert_eq!(percent(4999, 5000), "99.9");
    assert_eq!(percent(5000, 5000), "100.0");
    assert_eq!(percent(0, 0), "–");
    let view = FleetView::of(&[], &[], &[], &Asked::default(), now());
    assert!(view.rows.is_empty() && view.chart.is_none() && view.newest.is_none());
}

#[test]
fn an_audit_of_a_few_nodes_is_no_part_of_the_trend() {
    let audits = [audit("01C", 300, 3, 0), audit("01B", 200, 100, 97), audit("01A", 100, 98, 98)];
    let chart = serde_json::to_value(trend(&audits).unwrap()).unwrap();
    let points = chart["points"].as_array().unwrap();
    assert_eq!(points.iter().map(|point| point["aside"] == true).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(chart["line"].as_str().unwrap().split(' ').count(), 3, "a step");
}
