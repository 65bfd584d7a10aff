//! Nodes that break during a rolling reconfiguration: each is reported, and no other node is affected.

use std::sync::Mutex;

use gpufleet_tests::{FAULTS, FaultCase};

/// Number of fleets at once; a case mostly waits.
const AT_ONCE: usize = 4;

#[test]
fn a_node_that_breaks_is_named_and_the_others_are_done() {
    let cases = Mutex::new(FAULTS.iter());
    let problems = Mutex::new(Vec::new());
    let next = || cases.lock().expect("no case panics while it is taken").next();
    let work = || {
        while let Some(case) = next() {
            let case: &FaultCase = case;
            let seen = case.run();
            if let Some(problem) = seen.problem(case) {
                let text = format!("{}: {problem}\n{}", case.name, seen.said);
                problems.lock().expect("no case panics while it tells").push(text);
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let problems = problems.into_inner().expect("all are done");
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}
