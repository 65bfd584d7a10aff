//! `gpu_drain_state`, alone and with what other kinds do with a drained GPU.

use gpufleet_protocol::tasks::{GpuDrainState, Params};

use super::*;
use crate::tasks::{
    drain_state::DrainState,
    testing::{Bench, shown},
};

impl Node {
    fn drain_state(&mut self, state: &str, gpus: &[&str], mode: Mode) -> OpOutcome {
        let given = json!({"state": state, "gpus": gpus});
        let Ok(Params::Node(gpufleet_protocol::NodeOp::GpuDrainState(task))) =
            <GpuDrainState as gpufleet_protocol::tasks::Kind>::INFO.parse(given)
        else {
            panic!("{state} {gpus:?}")
        };
        let before = self.machine.get().effects.len();
        let outcome = Bench::new().run(&DrainState::new(&task, &mut self.gpus, &|| Ok(())), mode);
        assert!(!self.machine.get().open, "the worker lives on");
        if mode == Mode::Predict {
            assert_eq!(self.machine.get().effects.len(), before, "a prediction changed something");
        }
        outcome
    }

    /// Plans, does as planned, and does it again without an effect.
    fn converges(&mut self, state: &str, gpus: &[&str]) -> OpOutcome {
        let planned = self.drain_state(state, gpus, Mode::Predict);
        self.gpus.forget_predictions();
        let done = self.drain_state(state, gpus, Mode::Apply);
        assert_eq!((&planned.status, shown(&planned)), (&done.status, shown(&done)));
        let effects = self.machine.get().effects.len();
        assert_eq!(self.drain_state(state, gpus, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(self.machine.get().effects.len(), effects);
        planned
    }
}

fn three() -> Sim {
    let mut sim = Sim::new((0..3).map(|index| SimGpu::new(index, true)).collect());
    sim.units.clear();
    sim
}

fn power(watts: u32, gpus: serde_json::Value) -> GpuGroup {
    group(&[json!({"gpu_power": {"limit_watts": watts, "gpus": gpus}})])
}

#[test]
fn one_gpu_is_taken_out_and_given_back() {
    let mut sim = three();
    sim.gpus[1].persistence = true;
    let mut node = Node::new(sim);
    let planned = node.converges("drained", &["1c:00.0"]);
    assert_eq!(
        shown(&planned),
        ["GPU 1 persistence: enabled -> disabled (live)", "GPU 1 drain state: active -> drained (live)",]
    );
    assert_eq!(node.effects(), ["GPU-1 Persistence(false)", "drain 0000:1c:00.0"]);
    for one in ["1", "GPU-1", "0000:1c:00.0"] {
        assert_eq!(node.drain_state("drained", &[one], Mode::Apply).status, OpStatus::Ok, "{one}");
    }
    let given = node.converges("active", &[]);
    assert_eq!(shown(&given), ["GPU 1 drain state: drained -> active (live)"]);
    assert_eq!(node.effects(), ["undrain 0000:1c:00.0"]);
    assert!(!node.machine.get().gpus[1].persistence, "it comes back as a GPU without it");
}

#[test]
fn other_kinds_name_a_drained_gpu_and_go_on_with_the_rest() {
    let mut sim = three();
    sim.gpus[0].drained = true;
    sim.gpus[1].persistence = true;
    let mut node = Node::new(sim);
    let all = node.apply(&power(500, json!([])));
    assert_eq!(all.status, OpStatus::Changed);
    assert!(
        all.warnings.contains(&"GPU 0 is drained, so that gpu_power leaves it out".to_owned()),
        "{all:?}"
    );
    let limits = |node: &Node| node.machine.get().gpus.iter().map(|gpu| gpu.power_mw).collect::<Vec<_>>();
    assert_eq!(limits(&node)[0], 700_000);
    assert_eq!(limits(&node)[1], 500_000);
    for one in [json!(0), json!("GPU-0"), json!("1b:00.0")] {
        let only = node.apply(&power(400, one.clone()));
        assert_eq!(
            only.members[0].status,
            OpStatus::NotApplicable {
                reason: "GPU 0 is drained, so that gpu_power leaves it out".to_owned()
            },
            "{one}"
        );
    }
    node.apply(&power(300, json!(1)));
    assert_eq!(limits(&node)[1], 300_000, "the numbers of the others stay");
    let facts = node.gpus.facts(&Deadline::after(Duration::from_secs(5)));
    let drained: Vec<bool> = facts.gpus.iter().map(|gpu| gpu.drained).collect();
    assert_eq!(drained, [true, false, false]);
    assert_eq!((facts.gpus[0].pci.as_str(), facts.gpus[0].uuid.as_str()), ("0000:1b:00.0", "GPU-0"));
}

#[test]
fn who_works_on_the_gpu_is_named_and_goes_on() {
    let mut sim = three();
    (sim.gpus[2].client, sim.gpus[2].client_unit) = (Some(77), Some("Slurm job 5".to_owned()));
    let mut node = Node::new(sim);
    let planned = node.converges("drained", &["GPU-2"]);
    assert_eq!(
        planned.warnings,
        [
            "process 77 (train, user ana) in Slurm job 5 holds GPU 2, and keeps it: only what starts later does not see it"
        ]
    );
    assert_eq!(node.machine.get().gpus[2].client, Some(77));
}

#[test]
fn a_refused_drain_leaves_the_gpu_as_it_was() {
    let mut sim = three();
    sim.gpus[0].persistence = true;
    sim.fuse = Some(1);
    let mut node = Node::new(sim);
    let failed = node.drain_state("drained", &["0"], Mode::Apply);
    let OpStatus::Failed { message, .. } = &failed.status else { panic!("{failed:?}") };
    assert_eq!(message, "GPU 0 (0000:1b:00.0): nvmlDeviceModifyDrainState: unknown error (NVML code 999)");
    let sim = node.machine.get();
    assert!(sim.gpus[0].persistence && !sim.gpus[0].drained);
}

#[test]
fn the_last_gpu_is_warned_of_and_none_is_taken_by_a_wrong_name() {
    let mut node = Node::new(three());
    let last = node.drain_state("drained", &["H100"], Mode::Predict);
    assert!(last.warnings.contains(&"no GPU of the node is left that programs see".to_owned()), "{last:?}");
    let wrong = node.drain_state("drained", &["0000:99:00.0"], Mode::Apply);
    let OpStatus::Failed { message, .. } = &wrong.status else { panic!("{wrong:?}") };
    assert!(message.contains("names no GPU of this node; it has GPU 0 (0000:1b:00.0)"), "{message}");
    node.machine.get().not_root = Some(1000);
    let refused = node.drain_state("drained", &["0"], Mode::Apply);
    assert!(matches!(refused.status, OpStatus::Failed { kind: FailureKind::Refused, .. }), "{refused:?}");
    assert_eq!(node.effects(), Vec::<String>::new());
}

#[test]
fn a_prediction_goes_on_with_what_it_drained() {
    let mut sim = three();
    sim.gpus.iter_mut().for_each(|gpu| gpu.persistence = true);
    sim.gpus[2].drained = true;
    let mut node = Node::new(sim);
    node.drain_state("drained", &["0"], Mode::Predict);
    let power_of =
        |node: &mut Node, watts, gpus| node.run(&power(watts, gpus), Mode::Predict, Disruption::Live);
    let left_out = power_of(&mut node, 500, json!([]));
    assert_eq!(shown(&left_out), ["GPU 1 power limit: 700 W -> 500 W (live)"]);
    assert_eq!(left_out.warnings.len(), 2, "{left_out:?}");
    // Drained here: what it comes back with is known. Drained before: only the run knows.
    node.drain_state("active", &[], Mode::Predict);
    assert_eq!(shown(&power_of(&mut node, 400, json!(0))), ["GPU 0 power limit: 700 W -> 400 W (live)"]);
    assert_eq!(power_of(&mut node, 400, json!(2)).members[0].status, OpStatus::Possible);
    // A reboot gives back what is drained.
    node.gpus.forget_predictions();
    node.gpus.assume_activation(Disruption::Reboot);
    assert_eq!(node.drain_state("active", &[], Mode::Predict).status, OpStatus::Ok);
    let again = node.drain_state("drained", &["2"], Mode::Predict);
    assert_eq!(shown(&again).last().unwrap(), "GPU 2 drain state: active -> drained (live)");
}

#[test]
fn a_reboot_ends_the_drain() {
    let mut node = Node::new(three());
    node.converges("drained", &["1"]);
    node.machine.get().reboot();
    node.new_session();
    assert_eq!(node.drain_state("drained", &["1"], Mode::Apply).status, OpStatus::Changed);
}
