//! A sample of `make chaos`: the controller is killed, and a second command finishes its work.

use std::path::Path;

use gpufleet_tests::{Campaign, CampaignOptions, Kill, Variant};

/// Runs a sample of kills; every case is judged by the lab's own logs.
fn sample(variant: Variant, cases: usize, ways: &[&str]) {
    let campaign = Campaign::start(CampaignOptions {
        nodes: 4,
        variant,
        budget: 1,
        second: ["resume", "--yes"].map(str::to_owned).to_vec(),
        keep: Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos"),
    })
    .unwrap_or_else(|problem| panic!("{problem}"));
    let every = (campaign.records() * ways.len()).div_ceil(cases);
    for kill in Kill::at_records(1, campaign.records(), every, ways) {
        let outcome = campaign.case(kill);
        // The number of records differs a little between runs, so the last kills may be too late.
        assert!(outcome.reached || outcome.records + 20 > campaign.records(), "{outcome:?}");
        assert!(outcome.problems.is_empty(), "{kill}: {:#?}\nkept in {:?}", outcome.problems, outcome.folder);
    }
}

#[test]
fn a_rolling_reconfiguration_survives_kills_of_its_controller() {
    sample(Variant::Mig, 12, &["before", "after", "torn"]);
}

#[test]
fn a_command_never_runs_twice_whenever_its_controller_is_killed() {
    sample(Variant::Command, 6, &["before", "after"]);
}
