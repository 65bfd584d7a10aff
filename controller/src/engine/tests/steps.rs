//! `--step`: a person's word on each task, and what a resume makes of it.

use std::sync::Mutex;

use super::*;
use crate::{engine::Stepper, index::PlayIndex};

const TWO: &str = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: first, command: /bin/first}\n    \
                   - {name: second, command: /bin/second}\n    - {name: third, command: /bin/third}\n";

/// Says no to some tasks and notes what it was asked.
struct Person {
    no: &'static str,
    asked: Mutex<BTreeMap<String, usize>>,
}

impl Stepper for Person {
    fn runs<'a>(&'a self, play: PlayIndex, task: &'a str, title: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            *self.asked.lock().unwrap().entry(format!("{play} {task} {title}")).or_default() += 1;
            title != self.no
        })
    }
}

fn ran(world: &World, hosts: &[String]) -> Vec<String> {
    hosts.iter().map(|host| world.with(host, |machine| format!("{:?}", machine.ran))).collect()
}

async fn stepped(
    world: &Arc<World>,
    hosts: &[String],
    dir: &RunDir,
    epoch: u64,
    person: &Arc<Person>,
) -> Option<RunResult> {
    let mut engine = engine(TWO, world, hosts, epoch);
    engine.options.stepper = Some(Arc::clone(person) as Arc<dyn Stepper>);
    let (_keep, mut interrupts) = mpsc::channel(1);
    process_with(engine, world, hosts, dir, &mut interrupts).await
}

#[test]
fn tasks_that_a_person_does_not_want_do_not_run_also_after_a_resume() {
    for crash in 0..12 {
        virtual_time(async {
            let (hosts, state) = (hosts(2), tempfile::tempdir().unwrap());
            let world = World::new(&hosts, false);
            let dir = RunDir::new(state.path(), &RunId::generate());
            let person = Arc::new(Person { no: "second", asked: Mutex::default() });
            *world.crash_in.lock().unwrap() = (crash > 0).then_some(crash);
            let mut result = stepped(&world, &hosts, &dir, 1, &person).await;
            *world.crash_in.lock().unwrap() = None;
            if result.is_none() {
                result = stepped(&world, &hosts, &dir, 2, &person).await;
            }
            assert_eq!(result.unwrap().stop, None);
            for ran in ran(&world, &hosts) {
                assert!(
                    ran.contains("first") && ran.contains("third") && !ran.contains("second"),
                    "{crash}: {ran}"
                );
            }
            let asked: Vec<String> = person.asked.lock().unwrap().keys().cloned().collect();
            assert_eq!(asked, ["0 tasks.0 first", "0 tasks.1 second", "0 tasks.2 third"]);
        });
    }
}
