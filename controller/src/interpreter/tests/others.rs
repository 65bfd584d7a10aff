//! What the hosts of a play know of each other, and set for each other.

use gpufleet_protocol::facts::{Facts, OsFacts};
use gpufleet_protocol::{NodeOp, OpOutcome, OpStatus};

use super::*;

/// Runs a play on these hosts, barrier by barrier; gives what each said, in order.
fn said(play: &str, hosts: &[&str], mode: Mode) -> (Vec<String>, Arc<HostSnapshots>) {
    let program = program(play);
    let names: Vec<Arc<str>> = hosts.iter().map(|host| Arc::from(*host)).collect();
    let known = names.iter().map(|host| (host.to_string(), json!({"inventory_hostname": &**host})));
    let base = Dict::trusted(&known.collect());
    let snapshots = Arc::new(HostSnapshots::new(
        Some(Arc::new(base)),
        names.clone(),
        vec![names.clone()],
        Arc::default(),
    ));
    let mut cursors: Vec<Cursor> = names
        .iter()
        .map(|host| {
            let context = HostContext { host: Arc::clone(host), ..HostContext::clone(&context(json!({}))) };
            let mut cursor = Cursor::new(
                &program,
                PlayIndex(0),
                Arc::new(context),
                HostVars::default(),
                mode,
                Arc::default(),
                files(),
            )
            .expect("a play");
            cursor.set_peers(
                Arc::new([("fleet", crate::template::Value::str("all of it"))].into_iter().collect()),
                Some(Arc::clone(&snapshots)),
            );
            cursor
        })
        .collect();
    let mut told = Vec::new();
    let mut ended = vec![false; hosts.len()];
    let mut rounds = 0;
    let mut places = std::collections::HashMap::new();
    while ended.contains(&false) {
        rounds += 1;
        assert!(rounds < 100, "it never ends");
        for ((cursor, host), ended) in cursors.iter_mut().zip(hosts).zip(&mut ended) {
            loop {
                let reports = match cursor.next() {
                    Step::Barrier { at, .. } => {
                        assert_eq!(places.entry(rounds).or_insert_with(|| at.clone()), &at);
                        break;
                    }
                    Step::Run(action) => cursor.feed(answer(&action)),
                    Step::Report(reports) => reports,
                    Step::End(end) => {
                        if !std::mem::replace(ended, true) {
                            told.push(format!("{host}: end {:?}", end.state));
                        }
                        break;
                    }
                    _ => Vec::new(),
                };
                told.extend(reports.iter().filter_map(|report| {
                    let message = report
                        .message
                        .as_ref()
                        .filter(|_| report.kind == "debug" || report.status == Status::Failed)?;
                    Some(format!("{host}: {message}"))
                }));
            }
        }
    }
    (told, snapshots)
}

/// Facts name the host that was asked.
fn answer(action: &Action) -> Fed {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    if let Work::Node { op, .. } = &action.work
        && let NodeOp::Facts(_) = &**op
    {
        let id = action.delegate.clone().unwrap_or_else(|| action.id.host.to_string());
        let os = OsFacts { id, ..OsFacts::default() };
        outcome.facts = Some(Box::new(Facts { os, ..Facts::default() }));
    }
    Fed::Outcome(Box::new(outcome))
}

#[test]
fn what_hosts_set_for_each_other_is_there_behind_the_next_barrier() {
    let play = "
- hosts: all
  gather_facts: false
  tasks:
    - {name: own, set_fact: {mine: 'of {{ inventory_hostname }}'}}
    - {name: gift, set_fact: {given: 'from {{ inventory_hostname }}'}, delegate_to: b, delegate_facts: true}
    - {name: facts, setup: {}, delegate_to: b, delegate_facts: true, when: inventory_hostname == 'a'}
    - {name: own facts, setup: {}, delegate_to: a, when: inventory_hostname == 'c'}
    - {name: see, debug: {msg: '{{ given | default(\"-\") }} {{ ansible_distribution | default(\"-\") }} {{ fleet }}'}}
    - {name: others, debug: {msg: '{{ hostvars.a.mine }} {{ hostvars.b.given | default(\"-\") }} {{ ansible_play_hosts | join }}'}}
    - {name: early, debug: {msg: '{{ hostvars.c.late | default(\"-\") }}'}}
    - {name: late, set_fact: {late: now}}
    - {name: later, debug: {msg: '{{ hostvars.c.late | default(\"-\") }}'}}
";
    let (told, snapshots) = said(play, &["a", "b", "c"], Mode::Apply);
    insta::assert_snapshot!(told.join("\n"), @r"
    a: - - all of it
    b: from c b all of it
    c: - a all of it
    a: of a from c abc
    b: of a from c abc
    c: of a from c abc
    a: -
    b: -
    c: -
    a: now
    a: end Done
    b: now
    b: end Done
    c: now
    c: end Done
    ");
    assert!(snapshots.gifts().is_empty(), "b has it");
}

#[test]
fn a_variable_of_the_play_may_ask_for_others() {
    let play = "
- hosts: all
  gather_facts: false
  vars: {who: '{{ hostvars.b.mine | default(\"-\") }}'}
  tasks:
    - {name: own, set_fact: {mine: 'of {{ inventory_hostname }}'}}
    - {name: see, debug: {msg: '{{ who }}'}}
";
    assert_eq!(said(play, &["a", "b"], Mode::Apply).0, ["a: of b", "a: end Done", "b: of b", "b: end Done"]);
}

#[test]
fn what_is_given_to_somebody_else_waits_on_the_board_and_a_secret_stays_one() {
    let play = "
- hosts: all
  gather_facts: false
  vars: {pw: hunter2}
  tasks:
    - {name: plain, set_fact: {open: 'yes'}, delegate_to: nobody, delegate_facts: true}
    - {name: sealed, set_fact: {given: '{{ pw }}'}, delegate_to: b, delegate_facts: true}
    - {name: unsaid, set_fact: {own: 1}, delegate_facts: true}
    - {name: see, debug: {msg: '{{ given | default(\"-\") }} {{ own | default(\"-\") }}'}}
";
    let (told, snapshots) = said(play, &["a"], Mode::Apply);
    assert_eq!(told, ["a: - 1", "a: end Done"]);
    let gifts = snapshots.gifts();
    assert_eq!(gifts.len(), 2);
    assert_eq!(gifts["nobody"].set.get("open").map(|value| value.to_json()), Some(json!("yes")));
    assert_eq!(gifts["b"].set.get("given").map(|value| value.to_json()), Some(json!("hunter2")));
}

#[test]
fn the_names_of_a_run_are_variables() {
    let text = "- hosts: all\n  name: x\n  tasks:\n    - {debug: {msg: '{{ ansible_run_tags }} {{ ansible_skip_tags }} {{ ansible_diff_mode }} {{ ansible_check_mode }} {{ ansible_play_name }} {{ playbook_dir }}'}, tags: [one, always]}\n";
    let shown = |only: &[&str], skip: &[&str], diff: Option<bool>, mode: Mode| {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let tags = Arc::new(TagFilter { only: words(only), skip: words(skip) });
        let mut cursor = Cursor::new(
            &program(text),
            PlayIndex(0),
            context(json!({})),
            HostVars::default(),
            mode,
            tags,
            files(),
        )
        .expect("a play");
        if let Some(diff) = diff {
            cursor.set_diff_mode(diff);
        }
        run(&mut cursor, answer).reports[0].message.clone().unwrap_or_default()
    };
    assert_eq!(shown(&[], &[], None, Mode::Apply), "['all'] [] False False x .");
    assert_eq!(shown(&["one"], &["two"], Some(true), Mode::Predict), "['one'] ['two'] True True x .");
    assert_eq!(shown(&["one"], &[], Some(false), Mode::Apply), "['one'] [] False False x .");
}
