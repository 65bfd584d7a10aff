//! What earlier runs of the same machine left drained.

use super::{
    Holder, PLAYBOOK, RunDir, RunId, engine, events_in, hosts, process_with, virtual_time, world::lock,
};
use crate::{
    drain::{LeftBehind, Marker, VainReboot},
    event::What,
    rollout::Amount,
};
use tokio::sync::mpsc;

#[test]
fn what_an_own_finished_run_left_drained_is_taken_over_where_the_scheduler_says_so() {
    virtual_time(async {
        let marker = Marker { run: "EARLIER".to_owned(), nonce: "1".to_owned() };
        for (is_taken_over, holder) in [
            (true, Some(Holder::Run(marker.clone()))),
            (true, Some(Holder::Person("alice"))),
            (true, None),
            (false, Some(Holder::Run(marker.clone()))),
        ] {
            let world = super::World::new(&hosts(3), true);
            if let Some(holder) = holder.clone() {
                lock(&world.queue.held).insert("gpu002".to_owned(), holder);
            }
            let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
            let dir = RunDir::new(state.path(), &RunId::generate());
            let mut engine = engine(PLAYBOOK, &world, &hosts, 1);
            // Why as many: none waits for the budget that another one takes up.
            engine.options.rollout.max_unavailable = Some(Amount::Count(3));
            engine.options.earlier.left = vec![LeftBehind {
                host: "gpu002".to_owned(),
                scheduler: "queue".to_owned(),
                node: "gpu002".to_owned(),
                marker: marker.clone(),
                run: "EARLIER".to_owned(),
                is_taken_over,
                next: "`gpufleet resume EARLIER` goes on with it".to_owned(),
            }];
            let (_press, mut interrupts) = mpsc::channel(1);
            let result = process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
            let stays = holder.is_some() && (!is_taken_over || holder != Some(Holder::Run(marker.clone())));
            assert_eq!((result.held, result.out_of_service.len()), (stays, 0), "{is_taken_over} {holder:?}");
            assert_eq!(world.queue.holder("gpu002"), holder.clone().filter(|_| stays), "{is_taken_over}");
            if !is_taken_over {
                let says = "run EARLIER has it drained: `gpufleet resume EARLIER` goes on with it";
                let told =
                    events_in(&dir).into_iter().any(|event| format!("{:?}", event.what).contains(says));
                assert!(told, "{:?}", events_in(&dir));
            }
        }
    });
}

#[test]
fn a_reboot_that_did_not_help_is_not_made_again_by_the_next_run() {
    let playbook = "- hosts: all\n  gather_facts: false\n  tasks:\n    - gpu_ecc: {mode: enabled}\n    - reboot: {when: required}\n";
    // What the reboot is for, then what becomes of it after the same in vain, and after another boot.
    let rebooted = |vain: Option<(Vec<String>, u32)>| {
        virtual_time(async {
            let (hosts, state) = (hosts(1), tempfile::tempdir().unwrap());
            let world = super::World::new(&hosts, false);
            let dir = RunDir::new(state.path(), &RunId::generate());
            let mut engine = engine(playbook, &world, &hosts, 1);
            if let Some((why, boot)) = vain {
                let boot_id = super::world::boot_id("gpu001", boot);
                let at = jiff::Timestamp::UNIX_EPOCH;
                let vain = VainReboot { why, boot_id, at, run: "EARLIER".to_owned() };
                engine.options.earlier.vain = [("gpu001".to_owned(), vain)].into();
            }
            let (_press, mut interrupts) = mpsc::channel(1);
            process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
            let mut why = Vec::new();
            let mut message = None;
            for event in events_in(&dir) {
                match event.what {
                    What::RebootIssued { why: reasons, .. } => why = reasons,
                    What::NodeFinished { outcome, .. } => message = outcome.message,
                    _ => {}
                }
            }
            (why, world.with("gpu001", |machine| machine.asked), message.unwrap_or_default())
        })
    };
    let (why, asked, _) = rebooted(None);
    assert!(!why.is_empty() && asked == 1, "{why:?}");
    assert_eq!(rebooted(Some((why.clone(), 7))).1, 1, "another boot may have helped");
    assert_eq!(rebooted(Some((vec!["something else".to_owned()], 1))).1, 1);
    let (_, asked, message) = rebooted(Some((why, 1)));
    assert_eq!(asked, 0);
    assert!(
        message.contains("that of 1970-01-01 00:00 UTC by run EARLIER did not make it current"),
        "{message}"
    );
}
