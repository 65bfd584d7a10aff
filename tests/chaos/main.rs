//! `make chaos`: kills the controller at every record of its journal and at random instants, and judges what is left.
//!
//! Says what it does in lines and ends with 1 when a case failed. Environment:
//! `CHAOS_NODES` (12), `CHAOS_VARIANT` (`mig,command`), `CHAOS_HOW` (`before,after,torn`), `CHAOS_EVERY` (1: every record),
//! `CHAOS_RANDOM` (200 instants), `CHAOS_SEED` (1), `CHAOS_CASE` (one case by its name), `CHAOS_SECOND` (`resume --yes`),
//! `CHAOS_KEEP` (`target/chaos`: where failed cases stay).
//!
//! With `faults` for its argument it breaks a node instead, in every way that the lab knows, and prints the table of
//! docs/reliability.md.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::process::ExitCode;
use std::time::Instant;

use gpufleet_tests::{Campaign, CampaignOptions, FAULTS, Kill, Variant};

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

/// Runs all cases of one variant; answers whether each went well.
fn campaign(variant: Variant) -> Result<bool, String> {
    let begin = Instant::now();
    let nodes = number("CHAOS_NODES", 12)?;
    let second = variable("CHAOS_SECOND", "resume --yes");
    let campaign = Campaign::start(CampaignOptions {
        nodes,
        variant,
        budget: (nodes / 4).max(1),
        second: second.split_whitespace().map(str::to_owned).collect(),
        keep: variable("CHAOS_KEEP", "target/chaos").into(),
    })?;
    let (records, took) = (campaign.records(), campaign.took());
    println!(
        "{}: {nodes} nodes, {records} records, {:.1} s uninterrupted",
        variant.name(),
        took.as_secs_f64()
    );
    let kills = match std::env::var("CHAOS_CASE") {
        Ok(text) => {
            vec![Kill::parse(&text).ok_or_else(|| format!("CHAOS_CASE is `{text}`, which is no case"))?]
        }
        Err(_) => {
            let ways = variable("CHAOS_HOW", "before,after,torn");
            let ways: Vec<&str> = ways.split(',').filter(|way| !way.is_empty()).collect();
            let mut kills = Kill::at_records(records, number("CHAOS_EVERY", 1)?, &ways);
            kills.extend(Kill::at_random(
                number("CHAOS_RANDOM", 200)?,
                took,
                number("CHAOS_SEED", 1)? as u64,
            ));
            kills
        }
    };
    let (mut failed, mut missed, mut held) = (Vec::new(), 0, 0);
    for kill in &kills {
        let outcome = campaign.case(*kill);
        let verdict = if outcome.problems.is_empty() { "ok" } else { "FAILED" };
        let reached = if outcome.reached { "" } else { " (the run was over)" };
        println!(
            "{} {kill}: {verdict}, {} records, {:.1} s{reached}",
            variant.name(),
            outcome.records,
            outcome.took.as_secs_f64()
        );
        missed += usize::from(!outcome.reached);
        held += usize::from(outcome.held > 0);
        if !outcome.problems.is_empty() {
            for problem in &outcome.problems {
                println!("    {problem}");
            }
            if let Some(folder) = &outcome.folder {
                println!("    kept in {}", folder.display());
            }
            println!(
                "    again: CHAOS_NODES={nodes} CHAOS_VARIANT={} CHAOS_CASE={kill} make chaos",
                variant.name()
            );
            failed.push(kill.to_string());
        }
    }
    println!(
        "{}: {} cases, {} failed, {missed} over before the kill, {held} with a held command, {:.0} s",
        variant.name(),
        kills.len(),
        failed.len(),
        begin.elapsed().as_secs_f64()
    );
    if !failed.is_empty() {
        println!("failed: {}", failed.join(" "));
    }
    Ok(failed.is_empty())
}
