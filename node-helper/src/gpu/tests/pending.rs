//! Modes that somebody requested and that wait for a reset or reboot, whoever makes it.

use super::*;

fn with_mig_requested(index: u32, on: bool) -> SimGpu {
    let mig = Staged { current: !on, pending: on };
    SimGpu { mig, ..SimGpu::new(index, false) }
}

fn ecc(mode: &str) -> GpuGroup {
    group(&[json!({"gpu_ecc": {"mode": mode}})])
}

const MIG: &str = "GPU 0: the reset also makes the pending MIG mode current, which no task declares: disabled -> enabled, \
                   without instances, so that no work can use the GPU; to keep it disabled, declare \
                   `gpu_mig: {mode: disabled}`";

/// By plan, permit and run alike, for every GPU of the reset.
#[test]
fn undeclared_pending_modes_that_a_reset_makes_current_are_told() {
    let mut node = Node::new(Sim::new(vec![with_mig_requested(0, true)]));
    let off = ecc("disabled");
    assert_eq!(node.predict(&off).warnings, [MIG]);
    node.gpus.forget_predictions();
    let asked = node.run(&off, Mode::Apply, Disruption::Live);
    assert_eq!(
        (asked.status, asked.warnings),
        (OpStatus::NeedsPermit { class: Disruption::GpuReset }, vec![MIG.to_owned()])
    );
    assert_eq!(node.apply(&off).warnings, [MIG]);
    assert!(node.machine.get().gpus[0].mig.current, "what was told is what happened");

    let wish = ecc("disabled");
    let mut several = Node::new(Sim::new((0..3).map(|index| with_mig_requested(index, true)).collect()));
    assert_eq!(several.predict(&wish).warnings, [MIG.replace("GPU 0", "GPU 0-2")]);
}

#[test]
fn what_a_task_declares_is_not_told_and_its_pending_opposite_is_withdrawn() {
    let mut node = Node::new(Sim::new(vec![with_mig_requested(0, true)]));
    let wish = group(&[json!({"gpu_ecc": {"mode": "disabled"}}), json!({"gpu_mig": {"mode": "disabled"}})]);
    assert_eq!(node.predict(&wish).warnings, Vec::<String>::new());
    assert_eq!(node.apply(&wish).status, OpStatus::Changed);
    assert_eq!(node.machine.get().gpus[0].mig, Staged::settled(false));
}

#[test]
fn a_peer_that_is_reset_too_and_a_pending_ecc_mode_are_told() {
    let ecc = Staged { current: true, pending: false };
    let peer = SimGpu { ecc, nvlinks: Ok(12), ..SimGpu::new(1, false) };
    let mut node = Node::new(Sim::new(vec![SimGpu { nvlinks: Ok(12), ..SimGpu::new(0, false) }, peer]));
    node.machine.get().switches = 6;
    node.machine.get().fabric_manager = false;
    let wish = group(&[json!({"gpu_mig": {"mode": "enabled", "gpus": [0]}})]);
    let told = "GPU 1: the reset also makes the pending ECC mode current, which no task declares: enabled -> disabled; to keep \
                it enabled, declare `gpu_ecc: {mode: enabled}`";
    assert_eq!(node.predict(&wish).warnings, [told]);
}

#[test]
fn reboots_and_reloads_tell_it_too_but_not_of_a_mode_that_unloading_loses() {
    for (taker, by) in [(Taker::Reboot, "reboot"), (Taker::Reload, "reload of the driver")] {
        let mut node = Node::new(Sim::new(vec![with_mig_requested(0, true), with_mig_requested(1, false)]));
        let told = |index: u32, change: &str, keep: &str| {
            format!(
                "GPU {index}: the {by} also makes the pending MIG mode current, which no task up to here declares: {change}; to \
                 keep it {keep}, declare `gpu_mig: {{mode: {keep}}}`"
            )
        };
        let on = "disabled -> enabled, without instances, so that no work can use the GPU";
        let both = [told(0, on, "disabled"), told(1, "enabled -> disabled", "enabled")].join("; ");
        assert_eq!(node.lost_by(taker), [both]);
    }
    let hopper = SimGpu { mig: Staged { current: false, pending: true }, ..SimGpu::new(0, true) };
    assert_eq!(Node::new(Sim::new(vec![hopper])).lost_by(Taker::Reboot), Vec::<String>::new());
}

/// What others do to the GPUs is a difference of the next plan, and the run mends it.
#[test]
fn what_a_reset_and_a_restart_of_the_daemon_by_others_take_is_set_again() {
    let wish = group(&[
        json!({"gpu_persistence": {"mode": "daemon"}}),
        json!({"gpu_ecc": {"mode": "enabled"}}),
        json!({"gpu_power": {"limit_watts": 500}}),
    ]);
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    // Nothing else keeps the GPUs awake meanwhile.
    node.machine.get().set_unit("nvidia-dcgm.service", false);
    assert_eq!(node.apply(&wish).status, OpStatus::Changed);
    node.machine.restart_persistenced();
    assert_eq!(lines(&node.apply(&wish)), ["GPU 0 power limit: 700 W -> 500 W [live]"]);
    node.machine.get().gpus[0].ecc.pending = false;
    node.machine.get().foreign_reset();
    assert!(!node.machine.get().gpus[0].ecc.current);
    assert_eq!(node.apply(&wish).activated, Some(Disruption::GpuReset));
    assert_eq!((node.apply(&wish).status, node.machine.get().gpus[0].power_mw), (OpStatus::Ok, 500_000));
}
