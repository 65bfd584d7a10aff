//! From the interpreter's words to those of events and of the rollout.

use std::collections::HashMap;

use gpufleet_protocol::{
    Disruption,
    tasks::{Params, Reboot},
};

use crate::{
    engine::{
        fleet::domains::Domains,
        replay::durations::{DurationHistory, Figures, Models},
    },
    event::{DomainShape, DurationOrigin, OutagePart, PolicyShape, WorstCase, WorstPart},
    playbook::{self, Overrides, Play},
    rollout::{Amount, Batch},
};

/// What a node may need beside drain and reboot: changes, resets, the health gate, resuming.
const WORK_RESERVE_S: u64 = 600;

pub(crate) fn amount(amount: playbook::Amount) -> Amount {
    match amount {
        playbook::Amount::Count(count) => Amount::Count(count as usize),
        playbook::Amount::Percent(percent) => Amount::Percent(percent),
    }
}

pub(crate) fn batch(wave: &playbook::Wave) -> Batch {
    match wave {
        playbook::Wave::Canary => Batch::Canary,
        playbook::Wave::Count(count) => Batch::Of(Amount::Count(*count as usize)),
        playbook::Wave::Percent(percent) => Batch::Of(Amount::Percent(*percent)),
    }
}

/// The longest that a node may be out for changes of this class; none for live ones, which take nothing out. For each
/// part, what is written wins; what was measured replaces a default.
fn worst_case(
    play: &Play,
    policy: &playbook::Policy,
    class: Disruption,
    history: Option<&Figures>,
) -> Option<WorstCase> {
    if class == Disruption::Live {
        return None;
    }
    let part = |what, is_written: bool, seconds: u64| {
        let figure = history.filter(|_| !is_written).and_then(|figures| figures.of(what, seconds));
        let (seconds, from) = match (figure, is_written) {
            (Some(figure), _) => figure,
            (None, true) => (seconds, DurationOrigin::Declared),
            (None, false) => (seconds, DurationOrigin::Default),
        };
        WorstPart { what, seconds, from }
    };
    let mut parts = Vec::new();
    if !policy.drain.is_none() {
        parts.push(part(OutagePart::Drain, policy.written.drain, policy.drain.worst_case_s()));
    }
    if class == Disruption::Reboot {
        let (is_written, seconds) = reboot(play, policy);
        parts.push(part(OutagePart::Reboot, is_written, seconds));
        if let Some(cycle) = &policy.power_cycle {
            parts.push(part(OutagePart::PowerCycle, policy.written.power_cycle, cycle.timeout_s));
        }
    }
    parts.push(part(OutagePart::Work, false, WORK_RESERVE_S));
    Some(WorstCase::new(class, parts))
}

/// How long a reboot may take, and whether the playbook says so.
fn reboot(play: &Play, policy: &playbook::Policy) -> (bool, u64) {
    let tasks: Vec<_> = play.tasks().into_iter().filter(|task| task.kind.is::<Reboot>()).collect();
    let timeouts = tasks.iter().filter_map(|task| match task.params.fixed.as_deref()? {
        Params::Reboot(reboot) => Some(reboot.timeout),
        _ => None,
    });
    let says = |name| tasks.iter().all(|task| task.params.get(name).is_some());
    let is_written = match tasks.is_empty() {
        true => policy.written.reboot,
        false => says("timeout") || says("reboot_timeout"),
    };
    (is_written, timeouts.max().unwrap_or(policy.reboot.timeout_s))
}

/// The policy of a play as plans and reports show it.
pub(crate) fn policy(
    play: &Play,
    overrides: &Overrides,
    hosts: &[String],
    known: &Domains<'_>,
    (history, models): (&DurationHistory, &Models),
) -> PolicyShape {
    let policy = play.policy.overridden(overrides);
    let mut domains: Vec<DomainShape> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    if let Some(variable) = &policy.failure_domain {
        for host in hosts {
            let Some(name) = known.of(variable, host) else { continue };
            let place = *places.entry(name.clone()).or_insert_with(|| {
                domains.push(DomainShape { name, hosts: Vec::new() });
                domains.len() - 1
            });
            if let Some(domain) = domains.get_mut(place) {
                domain.hosts.push(host.clone());
            }
        }
    }
    let classes = [Disruption::Clients, Disruption::GpuReset, Disruption::Reboot];
    PolicyShape {
        failure_domain: policy.failure_domain.as_ref().map(ToString::to_string),
        max_per_domain: policy.max_unavailable_per_domain.map(|amount| match amount {
            playbook::Amount::Count(count) => count as usize,
            playbook::Amount::Percent(_) => amount.of(hosts.len()) as usize,
        }),
        domains,
        soak_s: policy.soak_s,
        window: policy.window.as_ref().map(ToString::to_string),
        window_longest_s: policy
            .window
            .as_ref()
            .map(|window| u64::try_from(window.longest().as_secs()).unwrap_or_default()),
        drain: policy.drain.to_string(),
        drain_s: policy.drain.worst_case_s(),
        health_gate: policy.health_gate.iter().map(ToString::to_string).collect(),
        worst_case: classes
            .into_iter()
            .filter_map(|class| {
                let figures = history.figures(class, models).filter(|_| policy.window.is_some());
                worst_case(play, &policy, class, figures.as_ref())
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use super::*;
    use crate::{
        interpreter::HostContext,
        playbook::Program,
        rollout::Window,
        template::{self, Dict},
    };

    fn play(text: &str) -> Arc<Play> {
        let files: HashMap<String, String> = [("play.yml".to_owned(), text.to_owned())].into();
        Arc::clone(&Program::load(&["play.yml"], &files).unwrap().plays[0])
    }

    fn nothing() -> (&'static DurationHistory, &'static Models) {
        static NOTHING: LazyLock<(DurationHistory, Models)> = LazyLock::new(Default::default);
        (&NOTHING.0, &NOTHING.1)
    }

    /// Hosts whose racks these are; the empty one has none.
    fn contexts(racks: &[(&str, &str)]) -> (Vec<String>, HashMap<String, Arc<HostContext>>) {
        let hosts = racks.iter().map(|(host, _)| (*host).to_owned()).collect();
        let context = |(host, rack): &(&str, &str)| {
            let mut vars = Dict::default();
            if !rack.is_empty() {
                vars.insert("rack", template::Value::text(rack));
            }
            vars.insert("row", template::Value::text("b"));
            let context = HostContext { vars: Arc::new(vars), ..HostContext::default() };
            ((*host).to_owned(), Arc::new(context))
        };
        (hosts, racks.iter().map(context).collect())
    }

    #[test]
    fn the_shape_of_a_policy() {
        let play = play(
            "- hosts: all\n  rollout:\n    failure_domain: rack\n    soak: 5m\n    drain: {slurm: {timeout: 1h, notice: requeue}}\n    reboot: {timeout: 30m}\n  tasks:\n    - reboot:\n",
        );
        let (hosts, contexts) =
            contexts(&[("a", "r{{ 1 }}-{{ row }}"), ("b", "r2"), ("c", ""), ("d", "r1-b")]);
        let overrides = Overrides {
            window: Window::parse("Sat 02:00-06:00 UTC").ok(),
            soak_s: Some(60),
            ..Overrides::default()
        };
        let shape = policy(&play, &overrides, &hosts, &Domains::Variables(&contexts), nothing());
        let domain = |name: &str, hosts: &[&str]| DomainShape {
            name: name.to_owned(),
            hosts: hosts.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(shape.domains, [domain("r1-b", &["a", "d"]), domain("r2", &["b"])]);
        assert_eq!((shape.max_per_domain, shape.soak_s), (Some(1), 60));
        assert_eq!(
            (shape.window.as_deref(), shape.window_longest_s),
            (Some("Sat 02:00-06:00 UTC"), Some(14_400))
        );
        assert_eq!((shape.drain.as_str(), shape.drain_s), ("slurm", 3900));
        assert_eq!(shape.worst_case_s(Disruption::Live), None);
        assert_eq!(shape.worst_case_s(Disruption::Clients), Some(3900 + 600));
        assert_eq!(shape.worst_case_s(Disruption::Reboot), Some(3900 + 1800 + 600));
    }

    #[test]
    fn what_is_written_is_known_from_defaults() {
        let (hosts, contexts) = contexts(&[("a", "")]);
        let origins = |rollout: &str, tasks: &str| {
            let play = play(&format!("- hosts: all\n  rollout: {{{rollout}}}\n  tasks:\n{tasks}"));
            let shape =
                policy(&play, &Overrides::default(), &hosts, &Domains::Variables(&contexts), nothing());
            let parts = &shape.worst_case.last().unwrap().parts;
            let short = |part: &WorstPart| {
                let from = if part.from == DurationOrigin::Declared { "written" } else { "usual" };
                format!("{} {from} {}", part.what, part.seconds)
            };
            parts.iter().map(short).collect::<Vec<_>>().join(", ")
        };
        let (ecc, reboot) = ("    - gpu_ecc: {mode: enabled}\n", "    - reboot:\n");
        insta::assert_snapshot!(origins("drain: slurm", ecc), @"drain usual 7200, reboot usual 1200, work usual 600");
        insta::assert_snapshot!(origins("drain: {slurm: {timeout: 1h}}, reboot: {timeout: 5m}", reboot), @"drain written 3600, reboot written 300, work usual 600");
        insta::assert_snapshot!(origins("drain: {slurm: {notice: requeue}}, reboot: {via: slurm}", reboot), @"drain usual 7500, reboot usual 1200, work usual 600");
        insta::assert_snapshot!(origins("power_cycle: cycle", "    - reboot: {timeout: 7m}\n"), @"reboot written 420, power cycle usual 1200, work usual 600");
        insta::assert_snapshot!(origins("power_cycle: {command: cycle, timeout: 5m}", reboot), @"reboot usual 1200, power cycle written 300, work usual 600");
        let two = "    - reboot: {timeout: 7m}\n    - reboot: {reboot_timeout: 9m}\n    - reboot:\n";
        insta::assert_snapshot!(origins("drain: none", two), @"reboot usual 1200, work usual 600");
        insta::assert_snapshot!(origins("drain: none", "    - reboot: {timeout: '{{ long }}'}\n"), @"reboot written 1200, work usual 600");
    }

    #[test]
    fn a_reboot_task_says_how_long_it_takes() {
        let (hosts, contexts) = contexts(&[("a", "")]);
        let seconds = |tasks: &str| {
            let play = play(&format!("- hosts: all\n  tasks:\n{tasks}"));
            policy(&play, &Overrides::default(), &hosts, &Domains::Variables(&contexts), nothing())
                .worst_case_s(Disruption::Reboot)
        };
        assert_eq!(seconds("    - reboot: {timeout: 5m}\n    - reboot: {timeout: 10m}\n"), Some(1200));
        assert_eq!(seconds("    - gpu_ecc: {mode: enabled}\n"), Some(1800));
        let hook = "  rollout: {power_cycle: {command: cycle, timeout: 15m}}\n";
        let play = play(&format!("- hosts: all\n{hook}  tasks:\n    - reboot: {{timeout: 5m}}\n"));
        let shape = policy(&play, &Overrides::default(), &hosts, &Domains::Variables(&contexts), nothing());
        assert_eq!(shape.worst_case_s(Disruption::Reboot), Some(300 + 900 + 600));
        assert_eq!(shape.worst_case_s(Disruption::GpuReset), Some(600));
    }
}
