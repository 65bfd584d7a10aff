//! Plans that include the effects of earlier tasks on units and modules.

use super::*;
use crate::world::{BootView, Effect, Overlay, UnitView};

fn over(node: &mut Node, overlay: &Overlay, wish: &GpuGroup) -> OpOutcome {
    node.gpus.predict(wish, overlay, &Deadline::after(Duration::from_secs(60)), &|_| {})
}

fn unit(name: &str, active: bool) -> Effect {
    let view = UnitView { active: Some(active), file_state: "enabled".to_owned(), boot: BootView::default() };
    Effect::Unit { name: name.to_owned(), view }
}

fn blockers(outcome: &OpOutcome) -> Vec<&str> {
    outcome.blockers.iter().map(|blocker| blocker.what.as_str()).collect()
}

#[test]
fn the_process_of_a_unit_that_the_play_stops_is_not_in_the_way() {
    let wish = group(&[json!({"gpu_mig": {"mode": "enabled"}})]);
    let mut node = Node::new(Sim::new(vec![SimGpu {
        client: Some(77),
        client_unit: Some("jupyter.service".to_owned()),
        ..SimGpu::new(0, true)
    }]));
    let overlay = Overlay::default();
    let held = "process 77 (train, user ana) in jupyter.service holds GPU 0";
    assert_eq!(blockers(&over(&mut node, &overlay, &wish)), [held]);
    node.gpus.forget_predictions();
    overlay.assume([unit("jupyter.service", false)]);
    let planned = over(&mut node, &overlay, &wish);
    assert_eq!((blockers(&planned), &planned.status), (vec![], &OpStatus::Changed));
    // Started again before the next GPU tasks.
    overlay.assume([unit("jupyter.service", true)]);
    let back = over(&mut node, &overlay, &group(&[json!({"gpu_mig": {"mode": "disabled"}})]));
    assert_eq!(blockers(&back), [held]);
    node.machine.get().set_unit("jupyter.service", false);
    assert_eq!(node.apply(&wish).status, OpStatus::Changed);
}

#[test]
fn a_module_that_the_play_unloads_is_not_in_the_way() {
    let wish = group(&[json!({"gpu_ecc": {"mode": "enabled"}})]);
    let mut node = Node::new(Sim { drm: 2, ..Sim::new(vec![without_ecc(false)]) });
    let overlay = Overlay::default();
    assert!(blockers(&over(&mut node, &overlay, &wish))[0].contains("nvidia_drm"));
    node.gpus.forget_predictions();
    overlay.assume([Effect::Parameter { name: "modules/nvidia_drm".to_owned(), value: String::new() }]);
    assert_eq!(blockers(&over(&mut node, &overlay, &wish)), [""; 0]);
}

#[test]
fn a_limit_goes_with_the_service_that_the_play_stops_and_stays_with_one_that_it_starts() {
    let wish = group(&[json!({"gpu_power": {"limit_watts": 500}})]);
    for stops in [true, false] {
        let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
        node.machine.get().set_unit("nvidia-dcgm.service", stops);
        let overlay = Overlay::default();
        overlay.assume([unit("nvidia-dcgm.service", !stops)]);
        assert_eq!(over(&mut node, &overlay, &wish).changes.len(), 1);
        let planned = over(&mut node, &overlay, &wish).changes.len();
        node.machine.get().set_unit("nvidia-dcgm.service", !stops);
        node.apply(&wish);
        let made = node.apply(&wish).changes.len();
        assert_eq!((planned, made), if stops { (1, 1) } else { (0, 0) });
    }
}

#[test]
fn where_nvml_cannot_be_read_it_is_asked_once() {
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    node.machine.get().broken = Some(NvmlError::NoDriver { detail: "gone".to_owned() });
    let wish = group(&[json!({"gpu_power": {"limit_watts": 500}})]);
    let outcome = over(&mut node, &Overlay::default(), &wish);
    assert!(matches!(outcome.status, OpStatus::Unknown { .. }), "{outcome:?}");
    assert_eq!(node.machine.get().snapshots, 1);
}
