//! `kubernetes_node`: what is asked for, and what a prediction knows of what a node offers.

use gpufleet_protocol::{Change, Disruption, FailureKind, OpOutcome, OpStatus, Property, Subject};

use super::*;

const PLAY: &str = "
- hosts: all
  gather_facts: false
  become: true
  rollout: {drain: kubernetes}
  vars: {pool: training}
  tasks:
    - {name: before, kubernetes_node: {allocatable: {nvidia.com/gpu: 8}}}
    - {name: mig, kubelet: {settings: {maxPods: 64}}}
    - {name: after, kubernetes_node: {labels: {pool: '{{ pool }}', old: null}, allocatable: {nvidia.com/gpu: 8}}, register: told}
";

/// The kubelet would have to restart, and the node offers too few GPUs where `short` says so.
fn answer(short: &str, asked: &mut Vec<String>) -> impl FnMut(&Action) -> Fed {
    move |action| {
        let outcome = match &action.work {
            Work::NodeObject(declared) => {
                asked.push(format!(
                    "{} {:?} {:?}",
                    action.task,
                    action.mode,
                    declared.labels().collect::<Vec<_>>()
                ));
                match action.task == short {
                    true => OpOutcome::failed(FailureKind::Unconverged, "it offers 7"),
                    false => OpOutcome::new(OpStatus::Ok),
                }
            }
            _ if action.phase() == Phase::Verify => OpOutcome::new(OpStatus::Ok),
            _ => {
                let mut outcome = OpOutcome::new(OpStatus::Changed);
                let subject = Subject::unit("kubelet.service");
                let change = Change::new(subject, Property::STATE, "old", "new", Disruption::Clients);
                outcome.changes = vec![change];
                outcome
            }
        };
        Fed::Outcome(Box::new(outcome))
    }
}

fn told(mode: Mode, short: &str) -> (Story, Vec<String>) {
    let mut asked = Vec::new();
    let story = run(&mut cursor(PLAY, json!({}), mode), answer(short, &mut asked));
    (story, asked)
}

#[test]
fn the_scheduler_is_asked_with_rendered_values() {
    let (story, asked) = told(Mode::Apply, "");
    assert_eq!(story.end.state, EndState::Done);
    assert_eq!(asked, ["before Apply []", r#"after Apply [("pool", Some("training")), ("old", None)]"#]);
}

#[test]
fn an_offer_behind_a_foreseen_disturbance_is_not_known() {
    let (story, _) = told(Mode::Predict, "after");
    let report = story.reports.iter().find(|report| report.task == "after").unwrap();
    let why = "only the run can tell what it offers then; as it is now, it offers 7".to_owned();
    assert_eq!((report.status, &report.message), (Status::Skipped, &Some(why.clone())));
    assert_eq!(report.warnings, [why]);
    let (story, _) = told(Mode::Predict, "before");
    let report = story.reports.iter().find(|report| report.task == "before").unwrap();
    assert_eq!((report.status, report.message.as_deref()), (Status::Failed, Some("it offers 7")));
    let (story, _) = told(Mode::Apply, "after");
    assert_eq!(story.reports.last().unwrap().status, Status::Failed, "a run has done it, and reads what is");
}
