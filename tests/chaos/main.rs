//! `make chaos`: kills the controller at every record of its journal and at random instants, and judges the result.
//!
//! Prints its progress in lines and exits with 1 if a case failed. Environment:
//! * `CHAOS_NODES` (12), `CHAOS_VARIANT` (`mig,command`), `CHAOS_HOW` (`before,after,torn`);
//! * `CHAOS_EVERY` (1: every record), `CHAOS_FROM` and `CHAOS_TO` (the first and the last record, to run a campaign
//!   in parts);
//! * `CHAOS_RANDOM` (200 instants), `CHAOS_SPAN` (ms over which they are spread; by default the length of the
//!   uninterrupted run), `CHAOS_SEED` (1), `CHAOS_CASE` (one case by its name);
//! * `CHAOS_JOBS` (2: cases at once, each on its own fleet), `CHAOS_SECOND` (`resume --yes`), `CHAOS_KEEP`
//!   (`target/chaos`: where failed cases are kept).
//!
//! With the argument `faults` it breaks a node instead, in every way that the lab supports, and prints the table of
//! docs/reliability.md.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpufleet_tests::{Campaign, CampaignOptions, FAULTS, Kill, Outcome, Variant};

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

fn number(name: &str, default: usize) -> Result<usize, String> {
    match std::env::var(name) {
        Ok(text) => text.parse().map_err(|_| format!("{name} is `{text}`, which is no number")),
        Err(_) => Ok(default),
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("faults") {
        return faults();
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn faults() -> ExitCode {
    println!("| fault | what happened | node | fleet |\n|---|---|---|---|");
    let mut well = true;
    for case in FAULTS {
        let seen = case.run();
        let stopped = match seen.left_stopped.as_slice() {
            [] => String::new(),
            units => format!(", left stopped: {}", units.join(" ")),
        };
        let out = match seen.out_of_service.as_slice() {
            [] => "none out".to_owned(),
            names => format!("out: {}", names.join(", ")),
        };
        println!(
            "| {} | {} | {}, {} reboots{stopped} | others {}; {out}; exit {}; {:.0} s |",
            case.name,
            if seen.message.is_empty() { "-" } else { &seen.message },
            seen.state,
            seen.reboots,
            seen.others.join(", "),
            seen.code.map_or_else(|| "none".to_owned(), |code| code.to_string()),
            seen.took.as_secs_f64()
        );
        if let Some(problem) = seen.problem(case) {
            println!("\nFAILED: {}: {problem}\n", case.name);
            well = false;
        }
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run() -> Result<bool, String> {
    let mut all_well = true;
    for name in variable("CHAOS_VARIANT", "mig,command").split(',') {
        let variant = Variant::parse(name)
            .ok_or_else(|| format!("CHAOS_VARIANT is `{name}`; there are `mig` and `command`"))?;
        all_well &= campaign(variant)?;
    }
    Ok(all_well)
}

/// The results of all cases of one variant.
#[derive(Default)]
struct Tally {
    failed: Vec<String>,
    missed: usize,
    held: usize,
    longest: Duration,
}

impl Tally {
    /// Prints the result of one case and counts it.
    fn add(&mut self, variant: Variant, nodes: usize, outcome: &Outcome) {
        let (name, kill) = (variant.name(), outcome.kill);
        println!(
            "{name} {kill}: {}, {} records, {:.1} s{}",
            if outcome.problems.is_empty() { "ok" } else { "FAILED" },
            outcome.records,
            outcome.took.as_secs_f64(),
            if outcome.reached { "" } else { " (the run was over)" }
        );
        self.missed += usize::from(!outcome.reached);
        self.held += usize::from(outcome.held > 0);
        self.longest = self.longest.max(outcome.took);
        if outcome.problems.is_empty() {
            return;
        }
        for problem in &outcome.problems {
            println!("    {problem}");
        }
        if let Some(folder) = &outcome.folder {
            println!("    kept in {}", folder.display());
        }
        println!("    again: CHAOS_NODES={nodes} CHAOS_VARIANT={name} CHAOS_CASE={kill} make chaos");
        self.failed.push(kill.to_string());
    }
}

/// Runs all cases of one variant. Returns whether all succeeded.
fn campaign(variant: Variant) -> Result<bool, String> {
    let begin = Instant::now();
    let nodes = number("CHAOS_NODES", 12)?;
    let second = variable("CHAOS_SECOND", "resume --yes");
    let options = CampaignOptions {
        nodes,
        variant,
        budget: (nodes / 4).max(1),
        second: second.split_whitespace().map(str::to_owned).collect(),
        keep: variable("CHAOS_KEEP", "target/chaos").into(),
    };
    let jobs = number("CHAOS_JOBS", 2)?.max(1);
    // All at once, so that the length of the uninterrupted run is measured beside others.
    let campaigns: Vec<Campaign> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..jobs).map(|_| scope.spawn(|| Campaign::start(options.clone()))).collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap_or_else(|_| Err("a fleet could not be started".to_owned())))
            .collect::<Result<_, _>>()
    })?;
    let records = campaigns.iter().map(Campaign::records).max().unwrap_or_default();
    let took = campaigns.iter().map(Campaign::took).max().unwrap_or_default();
    println!(
        "{}: {nodes} nodes, {records} records, {:.1} s uninterrupted, {jobs} cases at once",
        variant.name(),
        took.as_secs_f64()
    );
    let kills = kills(records, took)?;
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for campaign in &campaigns {
            scope.spawn(|| {
                while let Some(kill) = kills.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = campaign.case(*kill);
                    if let Ok(mut tally) = tally.lock() {
                        tally.add(variant, nodes, &outcome);
                    }
                }
            });
        }
    });
    let Tally { failed, missed, held, longest } = tally.into_inner().map_err(|error| error.to_string())?;
    println!(
        "{}: {} cases, {} failed, {missed} over before the kill, {held} with a held command, the longest {:.0} s, {:.0} s in all",
        variant.name(),
        kills.len(),
        failed.len(),
        longest.as_secs_f64(),
        begin.elapsed().as_secs_f64()
    );
    if !failed.is_empty() {
        println!("failed: {}", failed.join(" "));
    }
    Ok(failed.is_empty())
}

/// Returns the selected cases.
fn kills(records: usize, took: Duration) -> Result<Vec<Kill>, String> {
    if let Ok(text) = std::env::var("CHAOS_CASE") {
        let parsed = text.split(',').map(|one| Kill::parse(one).ok_or(one)).collect::<Result<_, _>>();
        return parsed.map_err(|wrong| format!("CHAOS_CASE has `{wrong}`, which is no case"));
    }
    let ways = variable("CHAOS_HOW", "before,after,torn");
    let ways: Vec<&str> = ways.split(',').filter(|way| !way.is_empty()).collect();
    let (from, to) = (number("CHAOS_FROM", 1)?, number("CHAOS_TO", records)?);
    let mut kills = Kill::at_records(from, to.min(records), number("CHAOS_EVERY", 1)?, &ways);
    let span = match number("CHAOS_SPAN", 0)? {
        0 => took,
        ms => Duration::from_millis(ms as u64),
    };
    kills.extend(Kill::at_random(number("CHAOS_RANDOM", 200)?, span, number("CHAOS_SEED", 1)? as u64));
    Ok(kills)
}
