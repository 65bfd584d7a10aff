//! `async` and `poll` on one host.

use gpufleet_protocol::{NodeOp, OpOutcome, OpStatus};

use super::*;

const PLAY: &str = "
- hosts: all
  gather_facts: false
  vars: {limit: 30, never: 0}
  tasks:
    - {name: plain, command: /bin/a, async: 0, poll: 0}
    - {name: waited, command: /bin/b, async: 45}
    - {name: bounded, command: /bin/c, async: 45, poll: 5, timeout: 20}
    - {name: begun, command: '/bin/{{ item }}', async: '{{ limit }}', poll: '{{ never }}', loop: [d, e], register: jobs}
    - {name: folder, file: {path: /srv/x, state: directory}, async: 9, poll: 0, register: folder}
    - {name: asked, async_status: {jid: '{{ item.ansible_job_id }}'}, loop: '{{ jobs.results }}'}
    - {name: folder asked, async_status: {jid: '{{ folder.ansible_job_id }}', mode: cleanup}}
";

fn answer(asked: &mut Vec<String>) -> impl FnMut(&Action) -> Fed {
    |action| {
        let Work::Node { op, .. } = &action.work else { return Fed::Done };
        let job =
            action.terms.job.map_or_else(|| "-".to_owned(), |job| format!("{}/{}", job.limit_s, job.poll_s));
        let more = match &**op {
            NodeOp::JobStatus(ask) => format!(" {} {}", ask.jid, ask.forget),
            _ => String::new(),
        };
        asked.push(format!("{}: {job}{more}", action.task));
        let mut outcome = OpOutcome::new(OpStatus::Changed);
        if action.terms.job.is_some() {
            outcome.data.insert("ansible_job_id".to_owned(), json!(action.id.to_string()));
        }
        Fed::Outcome(Box::new(outcome))
    }
}

#[test]
fn tasks_say_how_long_and_how_often() {
    let mut asked = Vec::new();
    let story = run(&mut cursor(PLAY, json!({}), Mode::Apply), answer(&mut asked));
    assert_eq!(story.end.state, EndState::Done);
    assert_eq!(
        asked,
        [
            "plain: -",
            "waited: 45/15",
            "bounded: 20/5",
            "begun: 30/0",
            "begun: 30/0",
            "folder: 9/0",
            "asked: - 0/tasks.3[0]@n1 false",
            "asked: - 0/tasks.3[1]@n1 false",
            "folder asked: - 0/tasks.4@n1 true",
        ]
    );
}

#[test]
fn a_prediction_begins_nothing_and_what_asks_for_a_job_is_possible() {
    let mut asked = Vec::new();
    let story = run(&mut cursor(PLAY, json!({}), Mode::Predict), answer(&mut asked));
    assert_eq!(asked, ["folder: -"]);
    insta::assert_snapshot!(story.lines(), @r#"
    plain: possible "only a run executes it"
    waited: possible "only a run executes it"
    bounded: possible "only a run executes it"
    begun: possible [d] "only a run executes it"
    begun: possible [e] "only a run executes it"
    begun: possible
    folder: changed
    asked: possible "has a loop that hangs on the result of another task"
    folder asked: possible "`jid`: `ansible_job_id` is undefined"
    end: Done
    "#);
}

#[test]
fn no_time_is_too_long() {
    let text = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {command: /bin/a, async: 9223372036854775807, poll: 9223372036854775807}\n";
    let mut limits = Vec::new();
    run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        limits.extend(action.terms.job);
        Fed::Outcome(Box::new(OpOutcome::new(OpStatus::Changed)))
    });
    let longest = gpufleet_protocol::lenient::LONGEST_S;
    assert_eq!(limits, [Job { limit_s: longest, poll_s: longest }]);
}

#[test]
fn a_wrong_number_fails_the_task() {
    let text = "- hosts: all\n  gather_facts: false\n  vars: {word: soon}\n  tasks: [{command: /bin/a, async: '{{ word }}'}]\n";
    insta::assert_snapshot!(story(text, &[]).lines(), @r#"
    command: failed "`async` wants a whole number of seconds from 0, got "soon""
    end: Failed { task: "command", message: "`async` wants a whole number of seconds from 0, got \"soon\"" }
    "#);
}

#[test]
fn a_timeout_bounds_only_what_is_waited_for() {
    let job = |terms: &str| {
        let text = format!(
            "- hosts: all\n  gather_facts: false\n  tasks: [{{name: t, command: /bin/a, {terms}}}]\n"
        );
        let mut jobs = Vec::new();
        run(&mut cursor(&text, json!({}), Mode::Apply), |action| {
            jobs.push(action.terms.job.map(|job| (job.limit_s, job.poll_s)));
            Fed::Outcome(Box::new(OpOutcome::new(OpStatus::Changed)))
        });
        jobs.pop().flatten()
    };
    assert_eq!(job("async: 45, poll: 5, timeout: 20"), Some((20, 5)));
    assert_eq!(job("async: 45, poll: 5, timeout: 50"), Some((45, 5)));
    assert_eq!(job("async: 45, poll: 0, timeout: 20"), Some((45, 0)));
    assert_eq!(job("async: 45, timeout: 0"), Some((45, 15)));
    assert_eq!(job("async: 45, poll: '{{ omit }}'"), Some((45, 15)));
    assert_eq!(job("async: '{{ omit }}', poll: 5"), None);
    assert_eq!(job("async: ' 7 ', poll: 1"), Some((7, 1)));
}
