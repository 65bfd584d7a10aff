//! The plan is the run: over random states of all kinds together, including resets and reboots.
//!
//! Runs the real interpreter and the helper's real operations in one process. A node is a folder with fake system
//! programs, and simulated GPUs. Each state is planned, run, and run again. The planned changes must be the changes
//! made, the blockers of the plan must be what the run is refused for, and the second run must change nothing.
//!
//! Environment: `PLAN_STATES` (500) is the number of states; `PLAN_SEED` selects one of them, by the number in a
//! failure, and prints all reports of its plans and runs.
//!
//! Includes the helper's sources instead of a library, because the helper is a program built for another target, and
//! its simulated GPUs are part of its tests only. Has no test harness, because with one the helper's own tests would be
//! tests here too.
#![expect(clippy::print_stdout, reason = "a program for people and for the test runner")]
#![expect(unused, reason = "most of the helper is not called here")]

#[path = "../../../node-helper/src/deadline.rs"]
mod deadline;
#[path = "../../../node-helper/src/declare.rs"]
mod declare;
#[path = "../../../node-helper/src/facts/mod.rs"]
mod facts;
#[path = "../../../node-helper/src/gpu/mod.rs"]
mod gpu;
#[path = "../../../node-helper/src/health/mod.rs"]
mod health;
#[path = "../../../node-helper/src/keep/mod.rs"]
mod keep;
#[path = "../../../node-helper/src/os/mod.rs"]
mod os;
#[path = "../../../node-helper/src/process.rs"]
mod process;
#[path = "../../../node-helper/src/serve/mod.rs"]
mod serve;
#[path = "../../../node-helper/src/signals/mod.rs"]
mod signals;
#[path = "../../../node-helper/src/state/mod.rs"]
mod state;
#[path = "../../../node-helper/src/tasks/mod.rs"]
mod tasks;
#[path = "../../../node-helper/src/world.rs"]
mod world;

mod judged;
mod node;
mod play;
mod random;

use std::process::ExitCode;

const NAME: &str = "the_plan_is_the_run";

/// Reads a positive number from an environment variable.
fn number(name: &str) -> Result<Option<u64>, String> {
    let Ok(text) = std::env::var(name) else { return Ok(None) };
    match text.parse::<u64>() {
        Ok(number) if number > 0 => Ok(Some(number)),
        _ => Err(format!("{name} is `{text}`, and has to be a number above 0")),
    }
}

/// Returns the seeds of the states to play.
fn seeds() -> Result<Vec<u64>, String> {
    let states = number("PLAN_STATES")?.unwrap_or(500);
    Ok(number("PLAN_SEED")?.map_or_else(|| (1..=states).collect(), |seed| vec![seed]))
}

/// Plays every state, and prints which failed.
fn play_all() -> ExitCode {
    let seeds = match seeds() {
        Ok(seeds) => seeds,
        Err(why) => {
            println!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let begun = std::time::Instant::now();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(Vec::new());
    let tally = std::sync::Mutex::new(judged::Tally::default());
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).min(8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let judged = std::panic::catch_unwind(|| judged::state(*seed))
                        .unwrap_or_else(|_| Err("it panicked".to_owned()));
                    match (judged, failed.lock(), tally.lock()) {
                        (Ok(one), _, Ok(mut tally)) => tally.add(&one),
                        (Err(why), Ok(mut failed), _) => failed.push((*seed, why)),
                        _ => {}
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_default();
    failed.sort();
    for (seed, why) in failed.iter().take(20) {
        println!(
            "state {seed}: {why}\n    again: PLAN_SEED={seed} cargo test -p gpufleet --test plan_is_run\n"
        );
    }
    let tally = tally.into_inner().unwrap_or_default();
    println!(
        "{} states, {} failed, {:.0} s; {tally}",
        seeds.len(),
        failed.len(),
        begun.elapsed().as_secs_f64()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    // By hand, because test runners query each test program with libtest's arguments.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let says = |word: &str| words.iter().any(|known| known == word);
    if says("--list") {
        if !says("--ignored") {
            println!("{NAME}: test");
        }
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    if says("--ignored")
        || !filters.is_empty() && !filters.iter().any(|filter| NAME.contains(filter.as_str()))
    {
        return ExitCode::SUCCESS;
    }
    play_all()
}
