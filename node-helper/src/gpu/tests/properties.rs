//! Properties of plans for any node and any declaration.

use gpufleet_protocol::{Subject, change::Value};

use super::*;
use crate::gpu::sim::SimMps;

fn places() -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
    prop_oneof![
        Just(vec![]),
        Just(vec![(19, 0, 1), (19, 3, 1)]),
        Just(vec![(9, 0, 4), (9, 4, 4)]),
        Just(vec![(0, 0, 8)]),
        Just(vec![(14, 2, 2), (9, 4, 4)]),
    ]
}

prop_compose! {
    fn sim_gpus()(
        hopper in any::<bool>(),
        gpus in proptest::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), places(), any::<bool>(), prop_oneof![Just(700_000u32), Just(500_000)], prop_oneof![Just(0u32), Just(3)], proptest::bool::weighted(0.8)), 1..4),
    ) -> Vec<SimGpu> {
        gpus.into_iter().enumerate().map(|(index, (ecc, ecc_pending, mig, places, persistence, power_mw, compute_mode, resettable))| {
            let mut gpu = SimGpu::new(u32::try_from(index).unwrap(), hopper);
            if mig { gpu = gpu.with_instances(&places); }
            // The driver forgets limits while it has no client.
            let (power_mw, compute_mode) = if persistence { (power_mw, if mig { 0 } else { compute_mode }) } else { (700_000, 0) };
            SimGpu { ecc: Staged { current: ecc, pending: ecc_pending }, persistence, power_mw, compute_mode, resettable, ..gpu }
        }).collect()
    }
}

fn tasks() -> impl Strategy<Value = Vec<serde_json::Value>> {
    let ecc =
        prop_oneof![Just("enabled"), Just("disabled")].prop_map(|mode| json!({"gpu_ecc": {"mode": mode}}));
    let mig = prop_oneof![
        Just(json!({"gpu_mig": {"mode": "disabled"}})),
        Just(json!({"gpu_mig": {"mode": "enabled"}})),
        Just(json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}})),
        Just(json!({"gpu_mig": {"mode": "enabled", "layout": {"1g.10gb": 7}, "strategy": "rebuild"}})),
        Just(
            json!({"gpu_mig": {"mode": "enabled", "layout": [{"profile": "3g.40gb", "start": 4}, {"profile": "2g.20gb"}]}})
        ),
        Just(json!({"gpu_mig": {"mode": "enabled", "layout": {"7g.80gb": 1}, "gpus": [0]}})),
    ];
    let rest = vec![
        json!({"gpu_power": {"limit_watts": 500}}),
        json!({"gpu_clocks": {"graphics_mhz": [1200, 1980]}}),
        json!({"gpu_compute_mode": {"mode": "default"}}),
        json!({"gpu_mps": {"state": "started", "default_active_thread_percentage": 50}}),
    ];
    let rest = proptest::sample::subsequence(rest, 0..=4);
    (proptest::option::of(ecc), proptest::option::of(mig), rest, any::<bool>(), any::<bool>()).prop_map(
        |(ecc, mig, rest, reverse, apart)| {
            // Always with the daemon: without persistence no value lasts beyond the run.
            let mut all: Vec<_> = rest
                .into_iter()
                .chain(ecc)
                .chain(mig)
                .chain([json!({"gpu_persistence": {"mode": "daemon"}})])
                .collect();
            // Daemons for each device, where they can be.
            let mig = all.iter().find_map(|task| task.get("gpu_mig")).cloned();
            if let (true, Some(mig)) = (apart, &mig)
                && let Some(task) = all.iter_mut().find(|task| task.get("gpu_mps").is_some())
            {
                let on = mig["mode"] == "enabled";
                task["gpu_mps"]["scope"] = json!(if on { "mig" } else { "gpu" });
                if let (true, Some(gpus)) = (on, mig.get("gpus")) {
                    task["gpu_mps"]["gpus"] = gpus.clone();
                }
            }
            if reverse {
                all.reverse();
            }
            all
        },
    )
}

fn multiset(outcomes: &[&OpOutcome]) -> BTreeMap<(usize, Subject, String, Value, Value, Disruption), usize> {
    let mut all = BTreeMap::new();
    for outcome in outcomes {
        for (at, member) in outcome.members.iter().enumerate() {
            for change in &member.changes {
                let (subject, what) = (change.subject.clone(), change.what());
                let key = (at, subject, what, change.from.clone(), change.to.clone(), change.disruption);
                *all.entry(key).or_insert(0) += 1;
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn a_run_does_what_its_plan_said_and_a_second_one_does_nothing(gpus in sim_gpus(), tasks in tasks(), daemon in any::<bool>(), mps in any::<bool>(), devices in any::<bool>(), defer in proptest::bool::weighted(0.2)) {
        let mut sim = Sim::new(gpus);
        if daemon && sim.gpus.iter().all(|gpu| gpu.persistence) {
            (sim.persistenced.active, sim.persistenced.enabled) = (true, true);
        }
        let apart = |task: &serde_json::Value| task.get("gpu_mps").is_some_and(|task| task.get("scope").is_some());
        let apart = tasks.iter().any(apart);
        let mps = mps && !apart;
        if mps {
            sim.mps = SimMps::started(true);
        }
        if devices {
            for uuid in sim.gpus.iter().flat_map(SimGpu::devices).collect::<Vec<_>>() {
                let daemon = SimMps::started(uuid.starts_with("GPU-"));
                sim.device_mps.insert(uuid, daemon);
            }
        }
        let mut node = Node::new(sim);
        let wish = GpuGroup { defer_to_reboot: defer, ..group(&tasks) };
        let forecast = node.predict(&wish);
        prop_assert!(!matches!(forecast.status, OpStatus::Failed { .. }), "{:?}", forecast);
        let reboots = forecast.awaiting.iter().any(|awaiting| awaiting.activation == Disruption::Reboot);
        let predicted_again = if reboots {
            node.gpus.assume_activation(Disruption::Reboot);
            node.predict(&wish)
        } else {
            OpOutcome::new(OpStatus::Ok)
        };
        let end = node.predict(&wish);
        prop_assert!(end.changes.is_empty() && end.awaiting.is_empty(), "the forecast's end still plans {:?}", lines(&end));
        let class = forecast.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
        let done = node.run(&wish, Mode::Apply, class.max(Disruption::Live));
        prop_assert!(!matches!(done.status, OpStatus::Failed { .. } | OpStatus::NeedsPermit { .. }), "{:?}", done);
        prop_assert_eq!(done.activated, forecast.activated);
        prop_assert_eq!(&done.awaiting, &forecast.awaiting);
        let mut outcomes = vec![done];
        if reboots {
            node.machine.get().reboot();
            node.new_session();
            outcomes.push(node.apply(&wish));
        }
        let all: Vec<&OpOutcome> = outcomes.iter().collect();
        prop_assert_eq!(multiset(&all), multiset(&[&forecast, &predicted_again]));
        let effects = node.effects();
        let resets = effects.iter().filter(|effect| effect.starts_with("reset")).count();
        prop_assert!(resets <= 1, "{:?}", effects);
        if let Some(reset) = effects.iter().position(|effect| effect.starts_with("reset")) {
            let late = effects.iter().skip(reset).filter(|effect| effect.contains(" Ecc(")).count();
            prop_assert_eq!(late, 0, "a pending value after the reset: {:?}", effects);
        }
        prop_assert!(node.machine.get().units["nvidia-dcgm.service"]);
        prop_assert!(!mps || node.machine.get().mps.running.is_some());
        let there: Vec<String> = node.machine.get().gpus.iter().flat_map(SimGpu::devices).collect();
        for (uuid, daemon) in &node.machine.get().device_mps {
            prop_assert_eq!(daemon.running.is_some(), there.contains(uuid), "{}: {:?}", uuid, daemon);
        }
        if apart {
            prop_assert!(!node.machine.get().device_mps.is_empty() || there.len() == node.machine.get().gpus.len());
        }
        node.new_session();
        let second = node.apply(&wish);
        prop_assert!(matches!(second.status, OpStatus::Ok), "{:?}", second);
        prop_assert_eq!(node.effects(), Vec::<String>::new());
    }
}
