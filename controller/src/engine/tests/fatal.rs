//! `any_errors_fatal`: what a failure on one host does to the others, and what a resume makes of it.

use super::*;

const RESCUED: &str = "- hosts: all\n  gather_facts: false\n  any_errors_fatal: true\n  tasks:\n    - block:\n        \
                       - command: /bin/first\n        \
                       - {command: /bin/ill, when: inventory_hostname == 'gpu001'}\n        \
                       - command: /bin/never\n      rescue:\n        - command: /bin/rescue\n        \
                       - command: /bin/more\n      always:\n        - command: /bin/always\n    \
                       - command: /bin/after\n";

/// A failure that was everybody's and is mended, and after it a bound that is reached.
const RESCUED_THEN_STOPPED: &str = "- hosts: all\n  gather_facts: false\n  max_fail_percentage: 20\n  tasks:\n    \
                                    - any_errors_fatal: true\n      block:\n        \
                                    - {command: /bin/ill, when: inventory_hostname == 'gpu001'}\n      rescue:\n        \
                                    - command: /bin/rescue\n    \
                                    - {command: /bin/ill, when: inventory_hostname == 'gpu001'}\n    \
                                    - command: /bin/never\n";

/// A task that one host does for all.
const ONCE: &str = "- hosts: all\n  gather_facts: false\n  strategy: linear\n  tasks:\n    - command: /bin/first\n    \
                    - {command: /bin/once, run_once: true}\n    - command: /bin/after\n";

/// One host has more tasks behind it than the other when a failure is everybody's.
const UNEVEN: &str = "- hosts: all\n  gather_facts: false\n  tasks:\n    - block:\n        \
                      - {command: /bin/ill, when: inventory_hostname == 'gpu001'}\n      rescue:\n        \
                      - command: /bin/rescue\n        - command: /bin/more\n    \
                      - any_errors_fatal: true\n      block:\n        - command: /bin/first\n        \
                      - {command: /bin/ill, when: inventory_hostname == 'gpu002'}\n        - command: /bin/never\n      \
                      rescue:\n        - command: /bin/both\n    - command: /bin/after\n";

/// The commands that each host ran, by their names.
fn ran(world: &World, hosts: &[String]) -> Vec<String> {
    let names =
        |line: &String| line.split("/bin/").nth(1).unwrap().trim_end_matches(['"', ']', ')']).to_owned();
    hosts
        .iter()
        .map(|host| world.with(host, |it| it.ran.iter().map(names).collect::<Vec<_>>().join(" ")))
        .collect()
}

/// Runs it, killed at this step and with so much of the journal lost, if at all.
fn run(playbook: &str, count: usize, kill: Option<(u32, usize, usize)>) -> (Vec<String>, Option<Stop>) {
    virtual_time(async {
        let (hosts, state) = (hosts(count), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let mut result = None;
        if let Some((step, records, torn)) = kill {
            *world.crash_in.lock().unwrap() = Some(step);
            result = process_of(playbook, &world, &hosts, &dir, 1).await;
            *world.crash_in.lock().unwrap() = None;
            if result.is_none() {
                lose_tail(&dir, records, torn);
            }
        }
        if result.is_none() {
            result = process_of(playbook, &world, &hosts, &dir, 2).await;
        }
        (ran(&world, &hosts), result.unwrap().stop)
    })
}

#[test]
fn the_others_go_to_their_rescue_too() {
    let (ran, stop) = run(RESCUED, 3, None);
    let others = "first rescue more always after";
    assert_eq!(
        (ran, stop),
        (vec!["first ill rescue more always after".to_owned(), others.to_owned(), others.to_owned()], None)
    );
}

#[test]
fn without_a_rescue_only_what_is_always_done_is_done() {
    let playbook =
        RESCUED.replace("      rescue:\n        - command: /bin/rescue\n        - command: /bin/more\n", "");
    let (ran, stop) = run(&playbook, 3, None);
    assert_eq!(ran, ["first ill always", "first always", "first always"]);
    assert!(matches!(stop, Some(Stop::Threshold(_))), "{stop:?}");
}

#[test]
fn a_failure_that_ends_its_host_leads_the_others_into_their_rescue() {
    let playbook = "- hosts: all\n  gather_facts: false\n  any_errors_fatal: true\n  tasks:\n    - command: /bin/first\n    \
                    - {command: /bin/ill, when: inventory_hostname == 'gpu001'}\n    - command: /bin/after\n";
    let (ran, stop) = run(playbook, 2, None);
    assert_eq!(ran, ["first ill", "first"]);
    assert!(matches!(stop, Some(Stop::Threshold(_))), "{stop:?}");
}

/// What is everybody's happens in the last task before the handlers.
const LAST: &str = "- hosts: all\n  gather_facts: false\n  any_errors_fatal: true\n  tasks:\n    \
                    - {command: /bin/first, notify: late}\n    \
                    - {command: /bin/ill, when: inventory_hostname == 'gpu001'}\n  handlers:\n    \
                    - {name: late, command: /bin/late}\n";

#[test]
fn handlers_run_nowhere_where_the_last_task_failed_for_everybody() {
    let share = LAST.replace("any_errors_fatal: true", "max_fail_percentage: 10");
    for playbook in [LAST, &share] {
        let (ran, stop) = run(playbook, 3, None);
        assert_eq!(ran, ["first ill", "first", "first"]);
        assert!(matches!(stop, Some(Stop::Threshold(_))), "{stop:?}");
    }
    let (ran, _) = run(&LAST.replace("any_errors_fatal", "force_handlers"), 2, None);
    assert_eq!(ran, ["first ill late", "first late"]);
}

#[test]
fn a_host_that_went_through_a_rescue_of_its_own_hears_of_it_too() {
    let (ran, stop) = run(UNEVEN, 2, None);
    assert_eq!(
        (ran, stop),
        (vec!["ill rescue more first both after".to_owned(), "first ill both after".to_owned()], None)
    );
}

#[test]
fn a_bound_stops_those_who_heard_of_an_earlier_failure() {
    let (ran, stop) = run(RESCUED_THEN_STOPPED, 2, None);
    assert_eq!(ran, ["ill rescue ill", "rescue"]);
    assert!(matches!(stop, Some(Stop::Threshold(_))), "{stop:?}");
}

#[test]
fn a_bound_stops_them_too_where_the_process_that_reached_it_could_not_say_so() {
    for records in 1..10 {
        virtual_time(async {
            let (hosts, state) = (hosts(2), tempfile::tempdir().unwrap());
            let world = World::new(&hosts, false);
            let dir = RunDir::new(state.path(), &RunId::generate());
            process_of(RESCUED_THEN_STOPPED, &world, &hosts, &dir, 1).await.unwrap();
            lose_tail(&dir, records, 0);
            process_of(RESCUED_THEN_STOPPED, &world, &hosts, &dir, 2).await.unwrap();
            assert_eq!(ran(&world, &hosts), ["ill rescue ill", "rescue"], "{records} records lost");
        });
    }
}

#[test]
fn killed_at_any_step_the_others_end_where_they_would_have() {
    let always =
        RESCUED.replace("      rescue:\n        - command: /bin/rescue\n        - command: /bin/more\n", "");
    let share = LAST.replace("any_errors_fatal: true", "max_fail_percentage: 10");
    for playbook in [RESCUED, &always, RESCUED_THEN_STOPPED, UNEVEN, LAST, &share, ONCE] {
        let expected = run(playbook, 2, None);
        for step in 0..40 {
            for (records, torn) in [(0, 0), (1, 7), (4, 0)] {
                assert_eq!(
                    run(playbook, 2, Some((step, records, torn))),
                    expected,
                    "killed at step {step}, {records} records lost"
                );
            }
        }
    }
}
