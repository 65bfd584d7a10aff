//! `async`: jobs whose connection breaks, whose controller dies, whose node reboots.

use std::time::Duration;

use super::{world::Fault, *};

const JOB: &str = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {command: /bin/long, async: 600, poll: 5, \
                   register: long}\n    - command: '/bin/after {{ long.stdout }} {{ long.finished }}'\n    \
                   - {command: /bin/begun, async: 600, poll: 0, register: job}\n    \
                   - async_status: {jid: '{{ job.ansible_job_id }}'}\n      register: ended\n      until: \
                   ended.finished\n      retries: 9\n      delay: 1\n    - command: '/bin/last {{ ended.stdout }}'\n";

fn words(line: &str) -> Vec<String> {
    let mut words = line.split('"').skip(1).step_by(2);
    let program = words.next().unwrap_or_default().to_owned();
    [program].into_iter().chain(words.map(ToOwned::to_owned)).collect()
}

pub(super) fn ran(world: &World, host: &str) -> Vec<String> {
    world.with(host, |machine| machine.ran.iter().map(|line| words(line).join(" ")).collect())
}

const ALL: [&str; 4] = ["/bin/long", "/bin/after done True", "/bin/begun", "/bin/last done"];

#[test]
fn a_job_begins_once_wherever_its_controller_dies() {
    let mut whole = false;
    for crash in 0..120 {
        virtual_time(async {
            let (hosts, state) = (hosts(1), tempfile::tempdir().unwrap());
            let world = World::new(&hosts, false);
            let dir = RunDir::new(state.path(), &RunId::generate());
            *world.crash_in.lock().unwrap() = Some(crash);
            let first = process_of(JOB, &world, &hosts, &dir, 1).await;
            whole |= first.is_some();
            *world.crash_in.lock().unwrap() = None;
            if first.is_none() {
                process_of(JOB, &world, &hosts, &dir, 2).await.unwrap();
            }
            let mut ran = ran(&world, "gpu001");
            // Why: a plain command that was cut off is held, which is its own contract.
            ran.retain(|line| line == "/bin/long" || line == "/bin/begun");
            ran.sort();
            let once = |name: &str| ran.iter().filter(|line| *line == name).count() <= 1;
            assert!(once("/bin/long") && once("/bin/begun"), "{crash}: {ran:?}");
        });
        if whole {
            return;
        }
    }
    panic!("no schedule was whole");
}

#[test]
fn connections_that_break_are_made_anew() {
    virtual_time(async {
        let (hosts, state) = (hosts(2), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        world.with("gpu002", |machine| machine.fault = Fault::Drops);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let result = process_of(JOB, &world, &hosts, &dir, 1).await.unwrap();
        assert_eq!(result.stop, None);
        assert_eq!(ran(&world, "gpu001"), ALL);
        let waited = &ran(&world, "gpu002")[..3];
        assert_eq!(waited, &ALL[..3], "what is asked once loses the node as ever");
    });
}

#[test]
fn a_stop_waits_for_no_job_and_the_next_process_finds_it() {
    virtual_time(async {
        let (hosts, state) = (hosts(1), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let (press, mut interrupts) = mpsc::channel(1);
        let stop = async {
            while world.with("gpu001", |machine| machine.ran.is_empty()) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            press.send(()).await.unwrap();
            tokio::time::Instant::now()
        };
        let first = process_with(engine(JOB, &world, &hosts, 1), &world, &hosts, &dir, &mut interrupts);
        let (first, pressed) = tokio::join!(first, stop);
        let took = pressed.elapsed();
        assert!(took < Duration::from_secs(2), "a job of 15 s was waited for: {took:?}");
        assert_eq!(first.unwrap().stop, Some(Stop::Interrupted));
        assert_eq!(ran(&world, "gpu001"), ALL[..1]);
        process_of(JOB, &world, &hosts, &dir, 2).await.unwrap();
        assert_eq!(ran(&world, "gpu001"), ALL);
    });
}
