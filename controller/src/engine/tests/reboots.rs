//! Reboots that do not go as they should, and nodes that are lost in the middle of something.

use std::time::Duration;

use super::{
    world::{Fault, Machine},
    *,
};
use crate::event::{Level, NodeOutcome, NodeState};

const MINUTE: Duration = Duration::from_secs(60);

/// One node that needs a reboot, with this in its rollout.
fn rebooting(rollout: &str) -> String {
    format!(
        "- hosts: all\n  gather_facts: false\n  vars: {{well: /bin/well}}\n  rollout:\n    max_unavailable: 1\n{rollout}  tasks:\n    \
         - gpu_ecc: {{mode: enabled}}\n    - reboot: {{when: required, timeout: 20m}}\n"
    )
}

const POWER: &str = "    power_cycle: {command: power cycle, status: power status, timeout: 15m}\n";

/// How it ended, after as many crashes as the steps say.
struct Story {
    outcome: NodeOutcome,
    events: Vec<Event>,
    asked: u32,
    cycled: u32,
    ran: Vec<String>,
}

impl Story {
    fn message(&self) -> &str {
        self.outcome.message.as_deref().unwrap_or_default()
    }

    fn count(&self, wanted: impl Fn(&What) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(&event.what)).count()
    }
}

fn told(playbook: &str, crash: Option<u32>, set: impl FnOnce(&mut Machine)) -> Story {
    virtual_time(async {
        let (hosts, state) = (hosts(1), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        world.with(&hosts[0], set);
        let dir = RunDir::new(state.path(), &RunId::generate());
        *world.crash_in.lock().unwrap() = crash;
        let mut ended = process_of(playbook, &world, &hosts, &dir, 1).await.is_some();
        *world.crash_in.lock().unwrap() = None;
        if !ended {
            ended = process_of(playbook, &world, &hosts, &dir, 2).await.is_some();
        }
        assert!(ended);
        let events = events_in(&dir);
        let outcome = events.iter().rev().find_map(|event| match &event.what {
            What::NodeFinished { outcome, .. } => Some(outcome.clone()),
            _ => None,
        });
        let (asked, cycled, ran) = world
            .with(&hosts[0], |machine| (machine.asked, machine.cycled, std::mem::take(&mut machine.ran)));
        Story { outcome: outcome.unwrap(), events, asked, cycled, ran }
    })
}

fn faulty(playbook: &str, fault: Fault) -> Story {
    told(playbook, None, |machine| machine.fault = fault)
}

#[test]
fn a_machine_that_is_starting_is_waited_for() {
    let story = faulty(&rebooting(""), Fault::Starts(5 * MINUTE));
    assert_eq!(story.outcome.state, NodeState::Done, "{}", story.message());
    let after = story.events.iter().find_map(|event| match &event.what {
        What::Rebooted { seconds, .. } => Some(*seconds),
        _ => None,
    });
    assert!(after.is_some_and(|seconds| (390..=401).contains(&seconds)), "{after:?}");
    assert_eq!(story.asked, 1);
}

#[test]
fn what_a_node_says_right_before_its_reboot_is_in_the_journal() {
    let told = told(&rebooting(""), None, |machine| {
        machine.warns = ["GPU 0 counted 3 errors", "GPU 1 counted 1"].map(str::to_owned).to_vec();
    });
    let is_it = |what: &What| {
        matches!(what, What::Notice { level: Level::Warning, text }
            if text == "gpu001: GPU 0 counted 3 errors; GPU 1 counted 1")
    };
    assert_eq!(told.count(is_it), 1, "{}", told.message());
}

#[test]
fn one_that_starts_for_ever_is_failed_with_what_it_waits_for() {
    let story = faulty(&rebooting(POWER), Fault::Starts(1000 * MINUTE));
    assert_eq!((story.outcome.state, story.outcome.out_of_service), (NodeState::Failed, true));
    let message = story.message();
    assert!(message.contains("not up 1200 s after it was told to"), "{message}");
    assert!(message.contains("systemd says starting; not done: slow.service"), "{message}");
    assert_eq!((story.asked, story.cycled), (1, 0), "it answers, so it is not power cycled");
    assert_eq!(story.count(|what| matches!(what, What::Rebooted { .. })), 0);
}

#[test]
fn a_slow_shutdown_is_not_broken_off() {
    let story = faulty(&rebooting(""), Fault::Stops(8 * MINUTE));
    assert_eq!((story.outcome.state, story.asked), (NodeState::Done, 1), "{}", story.message());
    let story = faulty(&rebooting(POWER), Fault::Stops(1000 * MINUTE));
    assert_eq!((story.outcome.state, story.asked, story.cycled), (NodeState::Held, 1, 0));
    let message = story.message();
    assert!(message.contains("does not go down: its shutdown is under way"), "{message}");
}

#[test]
fn a_node_that_does_not_hear_is_told_again() {
    let story = faulty(&rebooting(""), Fault::Deaf);
    assert_eq!((story.outcome.state, story.asked), (NodeState::Done, 2), "{}", story.message());
}

#[test]
fn the_old_boot_again_is_no_reboot() {
    let story = faulty(&rebooting(POWER), Fault::SameBoot);
    assert_eq!((story.outcome.state, story.outcome.out_of_service), (NodeState::Held, true));
    assert!(
        story.message().contains("did not reboot: it went away and answered again"),
        "{}",
        story.message()
    );
    assert_eq!(story.cycled, 0);
}

#[test]
fn nobody_asks_again_while_a_shutdown_is_under_way_whenever_the_controller_dies() {
    for step in 0..40 {
        for fault in [Fault::Stops(8 * MINUTE), Fault::Starts(5 * MINUTE), Fault::Hesitates] {
            let story = told(&rebooting(""), Some(step), |machine| machine.fault = fault);
            assert_eq!(story.outcome.state, NodeState::Done, "step {step}: {}", story.message());
            assert_eq!(story.asked, 1, "killed at step {step}, {fault:?}");
        }
    }
}

#[test]
fn a_node_that_never_returns_is_power_cycled_once() {
    let story = faulty(&rebooting(POWER), Fault::NeverBack);
    assert_eq!(
        (story.outcome.state, story.outcome.out_of_service),
        (NodeState::Done, false),
        "{}",
        story.message()
    );
    assert_eq!((story.asked, story.cycled), (1, 1));
    assert_eq!(story.count(|what| matches!(what, What::PowerCycled { .. })), 1);
    let unasked = faulty(&rebooting(""), Fault::NeverBack);
    assert_eq!((unasked.outcome.state, unasked.cycled), (NodeState::Unreachable, 0));
    assert!(
        unasked.message().contains("did not come back within 1200 s after its reboot"),
        "{}",
        unasked.message()
    );
}

#[test]
fn a_node_that_lets_nobody_in_is_not_power_cycled() {
    let story = faulty(&rebooting(POWER), Fault::NoLogin);
    assert_eq!((story.outcome.state, story.cycled), (NodeState::Unreachable, 0));
    assert!(story.message().contains("last try: user `root` was not let in"), "{}", story.message());
}

#[test]
fn an_unknown_power_state_is_left_alone() {
    let story = told(&rebooting(POWER), None, |machine| {
        machine.fault = Fault::NeverBack;
        machine.power_known = false;
    });
    assert_eq!((story.outcome.state, story.outcome.out_of_service), (NodeState::Held, true));
    assert_eq!((story.cycled, story.count(|what| matches!(what, What::PowerCycled { .. }))), (0, 0));
    let message = story.message();
    assert!(
        message.contains("its power state is not known, since `status` ended with status 1: that is deaf"),
        "{message}"
    );
}

#[test]
fn a_crash_never_power_cycles_twice() {
    let mut cycles = 0;
    for step in 0..60 {
        let story = told(&rebooting(POWER), Some(step), |machine| machine.fault = Fault::NeverBack);
        assert!(story.cycled <= 1, "killed at step {step}");
        cycles += story.cycled;
        let expected = if story.cycled == 1 { NodeState::Done } else { NodeState::Unreachable };
        assert_eq!(story.outcome.state, expected, "killed at step {step}: {}", story.message());
    }
    assert!(cycles >= 58, "only the crash between the journal and the act costs the cycle: {cycles}");
}

#[test]
fn a_command_of_the_gate_decides() {
    let gate = |line: &str| rebooting(&format!("    health_gate: [gpu_count, {{command: \"{line}\"}}]\n"));
    let story = faulty(&gate("{{ well }} --deep"), Fault::None);
    assert_eq!(story.outcome.state, NodeState::Done, "{}", story.message());
    assert_eq!(story.ran, [r#"Shell { line: "/bin/well --deep", executable: "/bin/sh" }"#]);
    let story = faulty(&gate("/bin/ill --key s3cret-{{ well }}"), Fault::None);
    assert_eq!((story.outcome.state, story.outcome.out_of_service), (NodeState::Held, true));
    let message = story.message();
    assert!(
        message.contains("command `/bin/ill --key s3cret-{{ well }}`: exit status 3: GPU 2 is hot"),
        "{message}"
    );
    let story = faulty(&gate("{{ nowhere }}"), Fault::None);
    assert_eq!((story.outcome.state, story.ran.len()), (NodeState::Held, 0));
    assert!(story.message().contains("its template cannot be rendered"), "{}", story.message());
}

const COMMAND: &str = "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: /bin/long\n";

#[test]
fn a_reboot_that_nobody_asked_for_is_named() {
    let story = faulty(COMMAND, Fault::PowerCut);
    assert_eq!(story.outcome.state, NodeState::Failed);
    assert!(
        story.message().starts_with("rebooted unexpectedly: this run knew it in boot "),
        "{}",
        story.message()
    );
}

#[test]
fn a_helper_that_dies_on_a_node_that_lives_is_a_failure() {
    let story = faulty(COMMAND, Fault::HelperDies);
    assert_eq!(story.outcome.state, NodeState::Failed);
    let message = story.message();
    assert!(message.contains("the helper ended with exit code 137; the node itself goes on"), "{message}");
}

#[test]
fn a_resume_asks_the_power_hook_again_where_nothing_was_done() {
    let story = virtual_time(async {
        let (hosts, state) = (hosts(1), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        world.with(&hosts[0], |machine| {
            machine.fault = Fault::NeverBack;
            machine.power_known = false;
        });
        let dir = RunDir::new(state.path(), &RunId::generate());
        let play = rebooting(POWER);
        let held = process_of(&play, &world, &hosts, &dir, 1).await.unwrap();
        assert!(held.held && held.out_of_service == hosts);
        world.with(&hosts[0], |machine| machine.power_known = true);
        let done = process_of(&play, &world, &hosts, &dir, 2).await.unwrap();
        (done.out_of_service, world.with(&hosts[0], |machine| (machine.asked, machine.cycled)))
    });
    assert_eq!(story, (Vec::new(), (1, 1)));
}

const SETUP: &str =
    "- hosts: all\n  gather_facts: false\n  tasks:\n    - gpu_mig: {mode: enabled}\n    - setup:\n";

#[test]
fn a_gpu_that_a_reset_lost_is_missed_whoever_reads_the_facts_behind_it() {
    let story = told(SETUP, None, |machine| {
        machine.gpus = Some(2);
        machine.fault = Fault::LosesGpuInReset;
    });
    assert_eq!(
        (story.outcome.state, story.outcome.out_of_service),
        (NodeState::Held, true),
        "{}",
        story.message()
    );
    assert!(story.message().contains("gpu_count"), "{}", story.message());
}

#[test]
fn a_node_that_lost_a_gpu_in_its_reboot_stays_out_wherever_the_journal_ends() {
    let ways = [
        (rebooting(""), Fault::LosesGpu, false),
        (rebooting(POWER), Fault::LosesGpuWithPower, false),
        // A driver that was replaced on disk listed none of them before.
        (rebooting(""), Fault::LosesGpu, true),
    ];
    for (play, fault, mute) in ways {
        virtual_time(async {
            let (hosts, state) = (hosts(1), tempfile::tempdir().unwrap());
            let world = World::new(&hosts, false);
            world.with(&hosts[0], |machine| {
                machine.gpus = Some(2);
                machine.mute = mute;
                machine.fault = fault;
            });
            let dir = RunDir::new(state.path(), &RunId::generate());
            let result = process_of(&play, &world, &hosts, &dir, 1).await.unwrap();
            assert_eq!(result.out_of_service, hosts);
            let journal = fs::read_to_string(dir.journal()).unwrap();
            let records: Vec<&str> = journal.split_inclusive('\n').collect();
            let rebooted = records.iter().position(|record| record.contains("\"rebooted\"")).unwrap();
            for end in rebooted + 1..records.len() {
                fs::write(dir.journal(), records[..end].concat()).unwrap();
                // Why twice: the first one leaves facts of its own behind.
                for epoch in 2..4 {
                    let result = process_of(&play, &world, &hosts, &dir, epoch).await.unwrap();
                    assert_eq!(result.out_of_service, hosts, "{fault:?}, cut behind {}", records[end - 1]);
                }
            }
        });
    }
}
