//! The page of a report in a real browser: which scripts it runs, what its filter finds, what its address keeps, how
//! it looks on a phone and on paper.

use std::path::PathBuf;

use gpufleet::{
    event::{
        EVENT_VERSION, Event, NodeOutcome, NodeState, OpId, PlayStarted, Position, RecapCounts, RunFinished,
        RunStarted, TaskReport, TaskStatus, Verb, WaveShape, What,
    },
    index::PlayIndex,
    report::{RunModel, html},
};
use gpufleet_protocol::{Change, Disruption, Property, Subject, Unit, change::Value};
use gpufleet_systems_tests::{Browser, sheets};
use tempfile::TempDir;

/// A script, an image and the end of every element that it can be in.
const EVIL: &str =
    "\"'></title></style></script><img src=x onerror=\"window.harm=1\"><script>window.harm=1</script>";

struct Page {
    folder: TempDir,
}

impl Page {
    fn file(&self) -> PathBuf {
        self.folder.path().join("report.html")
    }
}

/// Returns an audit of `count` nodes: every tenth differs, every fiftieth fails, and two of those have hostile names.
fn page(count: usize) -> Page {
    let name = |at: usize| match at {
        49 | 99 => format!("gpu{at:04}{EVIL}"),
        _ => format!("gpu{at:04}"),
    };
    let hosts: Vec<String> = (0..count).map(name).collect();
    let mut whats = vec![
        What::RunStarted(RunStarted {
            version: EVENT_VERSION,
            run_id: "01JD8Q4T9X".to_owned(),
            verb: Verb::Audit,
            gpufleet: "0.1.0".to_owned(),
            playbooks: vec!["site.yaml".to_owned()],
            inventories: Vec::new(),
            hosts: hosts.clone(),
            command_line: vec!["gpufleet".to_owned(), EVIL.to_owned()],
            digest: String::new(),
            inputs: Default::default(),
            audit: None,
        }),
        What::PlayStarted(PlayStarted {
            play: PlayIndex(0),
            name: "Audit".to_owned(),
            hosts: hosts.clone(),
            waves: vec![WaveShape { label: "all".to_owned(), hosts: hosts.clone(), aside: false }],
            max_unavailable: 1,
            policy: None,
            work: None,
        }),
    ];
    for (at, host) in hosts.into_iter().enumerate() {
        let (state, message) = match (at % 50, at % 10) {
            (49, _) => (NodeState::Failed, Some(EVIL.to_owned())),
            (_, 3) => (NodeState::Drift, None),
            _ => (NodeState::Compliant, None),
        };
        let file = |path: &str, from: &str, to: &str| {
            Change::new(Subject::file(path), Property::CONTENT, from, to, Disruption::Live)
        };
        let gpu = Subject::Gpu { index: 0, uuid: "GPU-0".to_owned() };
        let watts = |watts: u32| Value::quantity(watts, Unit::Watts);
        let limit = watts(if at == 13 { 613 } else { 600 });
        let changes = match state {
            NodeState::Drift => vec![
                file("/etc/motd", &"ab12".repeat(16), &"cd34".repeat(16)),
                file("a long path below /var/lib/some/folder/that/never/ends/and/goes/on.conf", EVIL, "kept"),
                Change::new(gpu, Property::POWER_LIMIT, watts(700), limit, Disruption::Live),
            ],
            _ => Vec::new(),
        };
        let status = if changes.is_empty() { TaskStatus::Ok } else { TaskStatus::Changed };
        let op_id = OpId::new(PlayIndex(0), "tasks.0", host.as_str());
        let position = Position { file: "site.yaml".into(), line: 4, column: 7 };
        let report =
            TaskReport { changes, ..TaskReport::new(op_id, "declared", "gpu_power", position, status) };
        whats.push(What::TaskFinished { host: host.clone(), report });
        let outcome = NodeOutcome {
            state,
            message,
            counts: RecapCounts::default(),
            seconds: 3,
            rebooted: false,
            out_of_service: false,
        };
        whats.push(What::NodeFinished { host, outcome });
    }
    whats.push(What::RunFinished(RunFinished {
        exit_code: 3,
        summary: "read".to_owned(),
        out_of_service: Vec::new(),
        stopped: None,
        resumable: false,
    }));
    let at = jiff::Timestamp::UNIX_EPOCH;
    let events: Vec<Event> = (0..).zip(whats).map(|(seq, what)| Event { seq, at, what }).collect();
    let page = Page { folder: tempfile::tempdir().expect("a folder") };
    std::fs::write(page.file(), html(&RunModel::of(&events)).expect("a page")).expect("a file");
    page
}

const SHOWN: &str = "document.querySelectorAll('details.node:not([hidden])').length";
const FIRST: &str = "document.querySelector('details.node .name').textContent.slice(0,7)";

#[test]
fn nothing_but_the_pages_own_script_runs() {
    let page = page(100);
    let mut browser = Browser::open(&page.file(), "open=gpu0003", 1280);
    assert_eq!(browser.says("typeof window.harm"), "undefined");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // The policy stops what the escapes might let through, and reports it.
    let slipped = "document.body.insertAdjacentHTML('beforeend','<img src=x onerror=\"window.harm=1\">');\
                   var s=document.createElement('script');s.textContent='window.harm=1';document.body.append(s);\
                   document.body.insertAdjacentHTML('beforeend','<form action=\"http://127.0.0.1:9/\"></form>');\
                   new Promise(function(done){setTimeout(function(){done(typeof window.harm)},300)})";
    assert_eq!(browser.says(slipped), "undefined");
    let told = browser.complaints().join("\n");
    assert!(told.contains("Content Security Policy"), "{told}");
    // It contains only the messages about the page's script and style; filter and tiles work, so both apply.
    assert_eq!(browser.says(SHOWN), 100);
    assert_eq!(browser.says("getComputedStyle(document.querySelector('.tiles')).display"), "flex");
}

#[test]
fn the_filter_finds_what_is_folded_and_the_address_keeps_what_was_chosen() {
    let page = page(100);
    let mut browser = Browser::open(&page.file(), "", 1280);
    let filter = |text: &str| {
        format!(
            "var q=document.getElementById('q');q.value='{text}';q.dispatchEvent(new Event('input'));{SHOWN}"
        )
    };
    assert_eq!(browser.says(&filter("/etc/motd")), 10, "a change of a node that is folded");
    assert_eq!(browser.says(&filter("613 w")), 1);
    assert_eq!(browser.says(&filter(&"cd34".repeat(16))), 10, "a digest that is shown shortened");
    assert_eq!(browser.says(&filter("no such text")), 0);
    assert_eq!(browser.says(&filter("")), 100);
    assert_eq!(browser.says("document.getElementById('shown').textContent"), "100 of 100");

    let click = |what: &str| format!("document.querySelector('{what}').click();{FIRST}");
    let by_name = "[data-sort=name]";
    assert_eq!(browser.says(&click(by_name)), "gpu0000");
    assert_eq!(browser.says(&click(by_name)), "gpu0099");
    browser.says(&click(".tile[data-verdict=drift]"));
    assert_eq!(browser.says(SHOWN), 10);
    browser.says(&filter("motd"));
    let open = "document.querySelector('[data-name=gpu0013]').open=true;\
                new Promise(function(done){setTimeout(function(){done(location.hash)},200)})";
    let address = browser.says(open);
    let address = address.as_str().expect("an address").trim_start_matches('#').to_owned();
    assert_eq!(address, "q=motd&verdict=drift&sort=-name&open=gpu0013");
    browser.go(&page.file(), &address);
    assert_eq!(browser.says(SHOWN), 10);
    let shown = "document.querySelector('details.node:not([hidden]) .name').textContent";
    assert_eq!(browser.says(shown), "gpu0093");
    assert_eq!(browser.says("document.querySelector('[data-name=gpu0013]').open"), true);
    assert_eq!(browser.says("document.querySelectorAll('details.node[open]').length"), 1);
    assert_eq!(browser.says("document.getElementById('q').value"), "motd");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // A forged address is plain text.
    browser.go(&page.file(), "sort=constructor&verdict=%22%5D&open=%3Cimg%3E&q=%3Cscript%3E");
    assert_eq!(browser.says("typeof window.harm"), "undefined");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_page_fits_a_phone_with_everything_open() {
    let page = page(100);
    let mut browser = Browser::open(&page.file(), "", 390);
    let widest = "document.querySelectorAll('details').forEach(function(n){n.open=true});\
                  document.documentElement.scrollWidth";
    assert!(browser.says(widest).as_u64().is_some_and(|width| width <= 390), "{}", browser.says(widest));
    assert_ne!(browser.says("getComputedStyle(document.querySelector('.brief')).display"), "none");
}

#[test]
fn gpus_lead_and_digests_are_short() {
    let page = page(10);
    let mut browser = Browser::open(&page.file(), "open=gpu0003", 1280);
    let first = "document.querySelector('[data-name=gpu0003] .changes td').textContent";
    assert_eq!(browser.says(first), "GPU 0 power limit");
    let cells = "[].slice.call(document.querySelectorAll('[data-name=gpu0003] .value')).map(function(c){\
                 return c.textContent})";
    let cells = browser.says(cells);
    let short = |text: &str| cells.as_array().is_some_and(|cells| cells.iter().any(|cell| cell == text));
    assert!(short("ab12ab12…") && short("cd34cd34…"), "{cells}");
}

#[test]
fn a_thousand_nodes_print_in_few_sheets() {
    let page = page(1000);
    let all = sheets(&page.file(), "");
    assert!((1..=8).contains(&all), "{all} sheets");
    assert!(sheets(&page.file(), "open=gpu0003") <= all + 1);
}
