//! The pages of `gpufleet serve` in a real browser: from the fleet to a node to a check by clicks, a run that goes on, and
//! who is let in.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use gpufleet::{
    event::{
        EVENT_VERSION, Event, NodeOutcome, NodeState, PlayStarted, RecapCounts, RunFinished, RunStarted,
        Verb, WaveShape, What,
    },
    index::PlayIndex,
    journal::{Journal, RunDir, RunId},
};
use gpufleet_compliance::{Action, Severity, Verdict};
use gpufleet_history::{Audit, Controls, Found, NodeReading, Place, Store};
use gpufleet_systems_tests::Browser;
use gpufleet_tests::binary;
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

const EVIL: &str = "\"'></a><img src=x onerror=\"window.harm=1\"><script>window.harm=1</script>";

/// `gpufleet serve` at work on a store and a state folder of its own.
struct Served {
    child: Child,
    url: String,
    state: TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start(audits: &[Audit], arguments: &[&str]) -> Self {
        let state = tempfile::Builder::new().prefix("gpufleet-serve-").tempdir().expect("a folder");
        let store = state.path().join("store.db");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let store = Store::at(&Place::file(&store)).await.expect("a store");
            for audit in audits {
                store.record(audit).await.expect("a record");
            }
            store.close().await;
        });
        let mut child = Command::new(binary("gpufleet"))
            .args(["serve", "--listen", "127.0.0.1:0", "--store"])
            .arg(format!("sqlite:{}", store.display()))
            .args(arguments)
            .env("XDG_STATE_HOME", state.path())
            .env("HOME", state.path())
            .current_dir(state.path())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("gpufleet");
        let mut said = String::new();
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        errors.read_line(&mut said).expect("a line");
        let url =
            said.split(' ').find(|word| word.starts_with("http://")).unwrap_or_else(|| panic!("{said}"));
        let url = url.trim_end_matches('/').to_owned();
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self { child, url, state }
    }

    fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn run_dir(&self, run: &RunId) -> RunDir {
        RunDir::new(&self.state.path().join("gpufleet"), run)
    }
}

fn at(day: i64) -> Timestamp {
    let long_ago = SignedDuration::from_hours(24 * (60 - day));
    Timestamp::now().checked_sub(long_ago).expect("a time")
}

fn found(control: &str, title: &str, verdict: Verdict, action: Action, text: &str) -> Found {
    Found {
        control: control.to_owned(),
        title: title.to_owned(),
        severity: Severity::High,
        subject: "GPU 3".to_owned(),
        verdict,
        action,
        text: text.to_owned(),
        evidence: vec!["remap_failed true".to_owned()],
        waived: None,
        explained_by: None,
    }
}

/// What an audit finds about the node with this number on this day.
fn findings(at: usize, day: i64) -> Vec<Found> {
    let mut all = Vec::new();
    if at % 97 == 12 && day > 41 {
        let text = if at == 12 { EVIL } else { "row remapping failed" };
        all.push(found(
            "mem.remap_failed",
            "No row remapping has failed",
            Verdict::Fail,
            Action::Replace,
            text,
        ));
    }
    if (at / 32 == 3 && day > 20 && day < 55) || (at % 61 == 5 && day > 10) {
        all.push(found(
            "os.swappiness",
            "Memory is not swapped early",
            Verdict::Drift,
            Action::Apply,
            "vm.swappiness is 60, declared 10",
        ));
    }
    if at % 40 == 17 && day % 9 < 4 {
        all.push(found(
            "pcie.replays",
            "The PCIe link repeats little",
            Verdict::Warn,
            Action::Investigate,
            "412 replays a day",
        ));
    }
    all
}

/// Nightly audits over 60 days of `count` nodes in racks of 32.
fn audits(count: usize) -> Vec<Audit> {
    let node = |number: usize, day: i64| {
        let findings = findings(number, day);
        let unknown = number % 211 == 100 && day > 57;
        let worst = findings.iter().map(|found| found.verdict).max().unwrap_or(Verdict::Ok);
        let verdict = if unknown { worst.max(Verdict::Unknown) } else { worst };
        NodeReading {
            node: format!("gpu{number:03}"),
            at: at(day),
            verdict,
            action: findings.iter().map(|found| found.action).max().unwrap_or_default(),
            compliant: verdict < Verdict::Drift,
            score: Some(if findings.is_empty() { 100 } else { 71 }),
            judged: if unknown { 12 } else { 90 },
            applicable: 92,
            groups: vec![
                format!("rack{:02}", number / 32 + 1),
                if number.is_multiple_of(2) { "training" } else { "inference" }.to_owned(),
            ],
            hardware: Some("8x H100 80GB HBM3".to_owned()),
            driver: Some(if number % 50 == 3 { "570.172.08" } else { "580.95.05" }.to_owned()),
            findings,
            controls: Controls {
                judged: ["mem.remap_failed", "os.swappiness", "pcie.replays"].map(str::to_owned).into(),
                not_judged: Vec::new(),
                complete: true,
            },
            memory: None,
        }
    };
    let audit = |day: i64| Audit {
        run: RunId::generate().to_string(),
        controller: "login1".to_owned(),
        started: at(day),
        finished: at(day).checked_add(SignedDuration::from_secs(48)).expect("a time"),
        playbooks: vec!["site.yaml".to_owned()],
        baselines: vec!["training".to_owned()],
        exit_code: 3,
        nodes: (0..count).map(|number| node(number, day)).collect(),
    };
    (1..60).map(audit).collect()
}

#[test]
fn from_the_fleet_to_a_red_node_and_to_its_check_by_clicks() {
    let served = Served::start(&audits(200), &[]);
    let mut browser = Browser::at(&served.address("/"), 1280);
    let heading = "document.querySelector('h1').textContent";
    let told = browser.says(heading);
    assert!(told.as_str().is_some_and(|told| told.contains("of 200 nodes compliant")), "{told}");
    if let Some(folder) = std::env::var_os("SAMPLES") {
        browser.photograph(&Path::new(&folder).join("serve.png"));
    }
    // Many nodes are racks; one leads to its nodes.
    assert_eq!(browser.says("document.querySelectorAll('.card').length"), 7);
    browser.follow(".card[href*='row=rack01']");
    // The cells are coloured and marked, so that the style applies.
    let cell = "var c=document.querySelector('.cells .v.fail');[getComputedStyle(c,'::before').content,getComputedStyle(c).backgroundColor!==\
                getComputedStyle(document.querySelector('.cells .v.ok')).backgroundColor]";
    assert!(
        browser.says(cell).to_string().contains('✕') && browser.says(cell)[1] == true,
        "{}",
        browser.says(cell)
    );
    assert_eq!(browser.says("typeof window.harm"), "undefined");

    browser.follow(".cells .v.fail[href='/nodes/gpu012']");
    assert_eq!(browser.says("location.pathname"), "/nodes/gpu012");
    let told = browser.says(heading);
    assert!(told.as_str().is_some_and(|told| told.starts_with("gpu012") && told.contains("fail")), "{told}");
    assert_eq!(browser.says("document.querySelectorAll('.timeline rect').length>1"), true);
    if let Some(folder) = std::env::var_os("SAMPLES") {
        browser.photograph(&Path::new(&folder).join("node.png"));
    }

    browser.follow("tbody a[href^='/checks/']");
    assert_eq!(browser.says("location.pathname"), "/checks/mem.remap_failed");
    let nodes = "document.querySelector('table').textContent.indexOf('gpu109')>=0";
    assert_eq!(browser.says(nodes), true, "the other node that has it");
    assert_eq!(browser.says("typeof window.harm"), "undefined");

    browser.follow("nav a[href='/']");
    browser.follow(".tile.c-drift");
    let shown =
        "document.querySelectorAll('.cells .v').length===document.querySelectorAll('.cells .v.drift').length";
    assert_eq!(browser.says(shown), true, "only those that differ");
    assert_eq!(browser.complaints_on(&served.url), Vec::<String>::new());
    let bad = "document.body.insertAdjacentHTML('beforeend','<img src=x onerror=\"window.harm=1\">');\
               new Promise(function(done){setTimeout(function(){done(typeof window.harm)},300)})";
    assert_eq!(browser.says(bad), "undefined", "the policy stops what the escapes might let through");
}

/// In both colour schemes, wide and on a phone: the fleet as racks and node by node, a node, a check and the lists.
#[test]
fn axe_core_finds_no_violation() {
    let served = Served::start(&audits(200), &[]);
    let mut browser = Browser::at(&served.address("/"), 1440);
    let mut wrong = Vec::new();
    for path in [
        "/",
        "/?by=groups%3Arack&row=rack01",
        "/?find=gpu01&sort=name",
        "/nodes/gpu012",
        "/checks/mem.remap_failed",
        "/checks",
        "/runs",
    ] {
        for (width, scheme) in [(1440, "light"), (1440, "dark"), (390, "light")] {
            browser.resize(width);
            browser.prefer(scheme);
            browser.visit(&served.address(path));
            browser.says("document.querySelectorAll('details').forEach(function(d){d.open=true})");
            let found = browser.violations();
            wrong.extend(found.into_iter().map(|one| format!("{path}, {width}, {scheme}: {one}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// No word of a table is broken, and a click on a title sorts.
#[test]
fn tables_are_whole_and_sorted() {
    let served = Served::start(&audits(200), &[]);
    let mut browser = Browser::at(&served.address("/"), 1440);
    let broken = "Array.from(document.querySelectorAll('td.word,td .chip,th')).filter(function(cell){\
                  var range=document.createRange();range.selectNodeContents(cell);\
                  var lines=new Set(Array.from(range.getClientRects()).map(function(box){return Math.round(box.bottom/9)}));\
                  return lines.size>1&&!/\\s/.test(cell.textContent.trim())}).length";
    assert_eq!(browser.says(broken), 0);
    let first = "document.querySelector('table[data-sort] tbody tr').textContent";
    assert!(browser.says(first).to_string().contains("No row remapping"), "the worst first");
    browser.says("document.querySelectorAll('table[data-sort] th button')[2].click()");
    let order = "Array.from(document.querySelectorAll('table[data-sort] tbody tr')).map(function(r){return +r.cells[2].dataset.key})";
    let order: Vec<u64> = serde_json::from_value(browser.says(order)).expect("numbers");
    assert!(order.is_sorted() && order.len() > 1, "{order:?}");
}

#[test]
fn the_pages_fit_a_phone() {
    let served = Served::start(&audits(100), &[]);
    let mut browser = Browser::at(&served.address("/"), 390);
    for path in ["/", "/nodes/gpu012", "/checks/mem.remap_failed", "/checks", "/runs"] {
        browser.visit(&served.address(path));
        let width = browser.says("document.documentElement.scrollWidth");
        assert!(width.as_u64().is_some_and(|width| width <= 390), "{path}: {width}");
    }
}

#[test]
fn five_thousand_nodes_are_light_in_the_browser() {
    let mut audits = audits(5000);
    let served = Served::start(&audits.split_off(audits.len() - 3), &[]);
    let mut browser = Browser::at(&served.address("/"), 1280);
    assert_eq!(browser.says("document.querySelectorAll('.card').length"), 157);
    let stops = "Array.from(document.querySelectorAll('a[href],button,input:not([type=hidden]),summary')).filter(function(one){\
                 return one.tabIndex>=0&&!(one.closest('details:not([open])')&&one.tagName!=='SUMMARY')}).length";
    let stops = browser.says(stops);
    assert!(stops.as_u64().is_some_and(|stops| stops < 250), "{stops} stops of the tab key");
    browser.resize(1440);
    let height = browser.says("document.documentElement.scrollHeight");
    assert!(height.as_u64().is_some_and(|height| height < 4000), "{height} pixels");
    browser.visit(&served.address("/"));
    let took = "(function(){var t=performance.getEntriesByType('navigation')[0];\
                return {server:Math.round(t.responseStart-t.requestStart),load:Math.round(t.loadEventEnd),bytes:t.encodedBodySize}})()";
    let took = browser.says(took);
    eprintln!("5,000 nodes: {took} (milliseconds, bytes)");
    assert!(took["load"].as_u64().is_some_and(|load| load < 5000), "{took}");
}

#[test]
fn a_page_of_a_run_changes_while_it_goes_on_and_becomes_its_report() {
    let served = Served::start(&[], &[]);
    let run = RunId::generate();
    let journal = Journal::create(&served.run_dir(&run)).expect("a journal");
    let mut seq = 0;
    let mut tell = |what: What| {
        let event = Event { seq, at: Timestamp::now(), what };
        seq += 1;
        journal.append(&event.into()).expect("a record");
    };
    let hosts: Vec<String> = (1..=3).map(|number| format!("gpu{number:03}")).collect();
    tell(What::RunStarted(RunStarted {
        version: EVENT_VERSION,
        run_id: run.to_string(),
        verb: Verb::Run,
        gpufleet: "0.1.0".to_owned(),
        playbooks: vec!["site.yaml".to_owned()],
        inventories: Vec::new(),
        hosts: hosts.clone(),
        command_line: Vec::new(),
        digest: String::new(),
        inputs: Default::default(),
        programs: Default::default(),
        groups: Default::default(),
        audit: None,
        trend: Vec::new(),
    }));
    tell(What::PlayStarted(PlayStarted {
        play: PlayIndex(0),
        name: "Bring up".to_owned(),
        hosts: hosts.clone(),
        waves: vec![WaveShape { label: "all".to_owned(), hosts: hosts.clone(), aside: false }],
        max_unavailable: 1,
        policy: None,
        work: None,
    }));
    let state = |host: &str, state, detail: Option<&str>| What::NodeState {
        host: host.to_owned(),
        state,
        detail: detail.map(str::to_owned),
    };
    tell(state("gpu001", NodeState::Preflight, None));
    let mut browser = Browser::at(&served.address("/runs"), 1280);
    browser.until("document.body.textContent.indexOf('is running')>=0");
    browser.follow("tbody a[href^='/runs/']");
    let row = |number: usize| format!("document.querySelector('#nodes').rows[{number}].textContent");
    browser.until(&format!("{}.indexOf('preflight')>=0", row(0)));
    browser.says("window.same=1");
    tell(state("gpu001", NodeState::Rebooting, Some(EVIL)));
    browser.until(&format!("{}.indexOf('rebooting')>=0", row(0)));
    assert_eq!(browser.says("window.same"), 1, "without a reload");
    assert_eq!(browser.says("typeof window.harm"), "undefined");
    for host in &hosts {
        let outcome = NodeOutcome {
            state: NodeState::Done,
            message: None,
            counts: RecapCounts::default(),
            seconds: 3,
            rebooted: false,
            out_of_service: false,
        };
        tell(What::NodeFinished { host: host.clone(), outcome });
    }
    tell(What::RunFinished(RunFinished {
        exit_code: 0,
        summary: "3 done".to_owned(),
        out_of_service: Vec::new(),
        stopped: None,
        resumable: false,
    }));
    journal.close().expect("the end");
    browser
        .until("typeof window.same==='undefined'&&!document.getElementById('live')&&document.title.length>0");
    let report = browser.says("document.body.textContent");
    assert!(
        report.as_str().is_some_and(|text| text.contains("gpu003") && text.contains("exit code")),
        "{report}"
    );
    // The report's own script and style apply under its own policy, and there is a way back.
    assert_eq!(browser.says("getComputedStyle(document.body).margin"), "0px");
    browser.follow("a[href='/runs']");
    assert_eq!(browser.complaints_on(&served.url), Vec::<String>::new());
}

#[test]
fn without_the_token_nothing_is_shown_and_a_login_leads_to_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    let token = "3f0c9a4b7d5e61280f9c3f0c9a4b7d5e";
    std::fs::write(&file, format!("{token}\n")).expect("a file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    let served = Served::start(&audits(40), &["--token-file", &file.to_string_lossy()]);
    let mut browser = Browser::at(&served.address("/nodes/gpu012"), 1280);
    let status = "performance.getEntriesByType('navigation')[0].responseStatus";
    assert_eq!(browser.says(status), 401);
    assert_eq!(browser.says("document.body.textContent.indexOf('H100')"), -1);
    let login = |token: &str| format!("document.querySelector('[name=token]').value='{token}'");
    browser.says(&login("wrong, and long enough to be one"));
    browser.follow("main button");
    assert_eq!(browser.says("document.querySelector('[role=alert]').textContent"), "This is not the token.");
    browser.says(&login(token));
    browser.follow("main button");
    assert_eq!(browser.says("location.pathname"), "/nodes/gpu012");
    assert_eq!(browser.says("document.cookie"), "", "no script sees the login");
    assert_eq!(browser.says("document.body.textContent.indexOf('H100')>0"), true);
    browser.follow("header button");
    browser.visit(&served.address("/"));
    assert_eq!(browser.says(status), 401, "after logging out");
}
