//! The rollout of a play as it begins: its limits from what the play, the command line and earlier plays say.

use std::collections::HashMap;

use gpufleet_protocol::Disruption;

use crate::{
    engine::error::EngineError,
    engine::ports::scheduler::Scheduler,
    event::PlayStarted,
    playbook::{Overrides, Play},
    rollout::{Domains, Needs, Policy, Rollout, SoFar, Thresholds, Wave, Window},
};

/// The rollout of a play before anything happened.
pub(crate) fn rollout(
    play: &Play,
    shape: &PlayStarted,
    scheduler: Option<&Scheduler>,
    overrides: &Overrides,
    waves: Vec<Wave>,
    so_far: SoFar,
) -> Result<Rollout, EngineError> {
    let thresholds = Thresholds {
        max_fail_percentage: play.max_fail_percentage,
        max_failures: overrides.max_failures.or(play.max_failures).map(|allowed| allowed as usize),
        max_unreachable: play.policy.max_unreachable.map(|allowed| allowed as usize),
        any_errors_fatal: play.any_errors_fatal,
    };
    let mut policy = Policy {
        budget: shape.max_unavailable,
        thresholds,
        drains: scheduler.is_some(),
        surveys: scheduler.is_some_and(|scheduler| scheduler.surveys),
        patience_s: scheduler.map_or(0, |scheduler| scheduler.patience.as_secs()),
        ..Policy::default()
    };
    if let Some(written) = &shape.policy {
        let places: HashMap<&String, usize> = (written.domains.iter().zip(0..))
            .flat_map(|(domain, place)| domain.hosts.iter().map(move |host| (host, place)))
            .collect();
        policy.domains = written.max_per_domain.map(|limit| Domains {
            of: shape.hosts.iter().map(|host| places.get(host).copied().unwrap_or(usize::MAX)).collect(),
            names: written.domains.iter().map(|domain| domain.name.clone()).collect(),
            limit,
        });
        policy.soak_s = written.soak_s;
        // Why an error: without its window a play would disturb nodes at any time.
        policy.window = written.window.as_deref().map(Window::parse).transpose()?;
        let seconds = |class| written.worst_case_s(class).unwrap_or_default();
        let drain = |class| written.drain_part_s(class);
        policy.drain_needs = Needs {
            live: 0,
            clients: drain(Disruption::Clients),
            gpu_reset: drain(Disruption::GpuReset),
            reboot: drain(Disruption::Reboot),
        };
        policy.needs = Needs {
            live: 0,
            clients: seconds(Disruption::Clients),
            gpu_reset: seconds(Disruption::GpuReset),
            reboot: seconds(Disruption::Reboot),
        };
    }
    let rollout = Rollout::new(shape.hosts.len(), waves, policy, so_far.lost);
    Ok(rollout.with_out_elsewhere(so_far.out_elsewhere))
}
