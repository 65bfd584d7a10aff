//! The persistence daemon as distributions ship it.

use super::*;
use crate::gpu::{
    boot_commands::SetsPersistence,
    persistenced::{Repair, Start},
    state::Unit,
};

/// Ubuntu's: without [Install], started by a rule of udev, and told to switch persistence off.
fn ubuntu() -> Sim {
    let command = "/usr/bin/nvidia-persistenced --user nvidia-persistenced --persistence-mode --verbose";
    Sim {
        persistenced: Unit { exists: true, active: true, enabled: false },
        persistenced_start: Start { is_static: true, off: true, has_drop_in: false },
        persistenced_repairs: vec![Repair::Start { command: Some(command.to_owned()), unneeded: true }],
        ..Sim::new(vec![SimGpu::new(0, true)])
    }
}

fn daemon() -> GpuGroup {
    group(&[json!({"gpu_persistence": {"mode": "daemon"}})])
}

const DROP_IN: &str = "/etc/systemd/system/nvidia-persistenced.service.d/51-gpufleet-start.conf at boot: ? -> \
                       ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --persistence-mode \
                       --verbose, StopWhenUnneeded=no [live] (otherwise each start of the daemon switches \
                       persistence off)";

#[test]
fn the_unit_of_ubuntu_is_made_to_stay_on_and_the_second_run_changes_nothing() {
    for active in [true, false] {
        let mut node =
            Node::new(Sim { persistenced: Unit { exists: true, active, enabled: false }, ..ubuntu() });
        let planned = node.predict(&daemon());
        let now = if active { "active" } else { "inactive" };
        let unit = format!(
            "nvidia-persistenced: {now}, disabled -> active, enabled [live] (by /etc/systemd/system/multi-user.target.wants/\
             nvidia-persistenced.service, because its file has no [Install])"
        );
        assert_eq!(lines(&planned), [DROP_IN, &*unit, "GPU 0 persistence: disabled -> enabled [live]"]);
        node.gpus.forget_predictions();
        let done = node.apply(&daemon());
        assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)));
        let effects = node.effects();
        assert!(effects[0].starts_with("repair Start"), "{effects:?}");
        assert_eq!(effects[1], "add-wants nvidia-persistenced.service");
        assert_eq!((node.apply(&daemon()).status, node.effects()), (OpStatus::Ok, Vec::new()));
        node.machine.get().reboot();
        node.new_session();
        assert!(node.machine.get().gpus[0].persistence, "and so does a boot");
        assert_eq!((node.apply(&daemon()).status, node.effects()), (OpStatus::Ok, Vec::new()));
    }
}

#[test]
fn a_daemon_that_runs_and_is_enabled_gets_what_keeps_persistence_on_at_boot() {
    let sim = Sim {
        persistenced: Unit { exists: true, active: true, enabled: true },
        persistenced_start: Start { is_static: false, off: true, has_drop_in: false },
        ..ubuntu()
    };
    let mut node = Node::new(sim);
    node.machine.get().gpus[0].persistence = true;
    let done = node.apply(&daemon());
    assert_eq!(lines(&done), [DROP_IN]);
    assert_eq!(node.effects().len(), 1, "neither started nor enabled again");
    assert_eq!((node.apply(&daemon()).status, node.effects()), (OpStatus::Ok, Vec::new()));
}

#[test]
fn a_boot_is_predicted_with_persistence_off_where_the_daemon_starts_so() {
    for (off, more) in [(true, vec!["GPU 0 persistence: disabled -> enabled [live]"]), (false, vec![])] {
        let sim = Sim {
            persistenced: Unit { exists: true, active: true, enabled: true },
            persistenced_start: Start { is_static: false, off, has_drop_in: false },
            ..Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }])
        };
        let mut node = Node::new(sim);
        node.gpus.assume_activation(Disruption::Reboot);
        assert_eq!(lines(&node.predict(&daemon())), more, "{off}");
    }
}

#[test]
fn a_rule_of_udev_that_starts_the_daemon_again_is_told_where_it_is_to_stop() {
    let mut node = Node::new(ubuntu());
    let planned = node.predict(&group(&[json!({"gpu_persistence": {"mode": "legacy"}})]));
    let lines = lines(&planned);
    assert!(lines[0].contains("a rule of udev?"), "{lines:?}");
}

#[test]
fn persistence_that_is_to_be_off_loses_the_drop_in_that_switches_it_on_at_each_boot() {
    let off = group(&[json!({"gpu_persistence": {"mode": "disabled"}})]);
    let mut node = Node::new(ubuntu());
    assert_eq!(node.apply(&daemon()).status, OpStatus::Changed);
    node.new_session();
    let planned = node.predict(&off);
    node.new_session();
    node.effects();
    let done = node.apply(&off);
    assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)));
    let told = lines(&done);
    assert_eq!(
        told[0],
        "/etc/systemd/system/nvidia-persistenced.service.d/51-gpufleet-start.conf at boot: file -> absent [live] \
         (otherwise whatever starts the daemon switches persistence on)"
    );
    assert!(
        told[1].contains("a rule of udev?"),
        "systemd calls it enabled, and it has no [Install]: {told:?}"
    );
    assert_eq!(node.effects()[0], "repair NoStart");
    assert_eq!((node.apply(&off).status, node.effects()), (OpStatus::Ok, Vec::new()));
    node.machine.get().reboot();
    assert!(!node.machine.get().gpus[0].persistence, "the rule of udev started it as Ubuntu has it");
}

#[test]
fn a_drop_in_that_an_earlier_run_left_is_removed_though_the_daemon_is_down() {
    let mut node = Node::new(ubuntu());
    assert_eq!(node.apply(&daemon()).status, OpStatus::Changed);
    {
        let mut sim = node.machine.get();
        (sim.persistenced.active, sim.persistenced.enabled, sim.gpus[0].persistence) = (false, false, false);
    }
    node.effects();
    node.new_session();
    assert_eq!(
        node.apply(&group(&[json!({"gpu_persistence": {"mode": "disabled"}})])).status,
        OpStatus::Changed
    );
    assert_eq!(node.effects(), ["repair NoStart"]);
}

#[test]
fn a_daemon_that_runs_and_hangs_is_a_failure_too() {
    let fault = "the persistence daemon hangs in the driver";
    let sim = Sim {
        persistenced: Unit { exists: true, active: true, enabled: true },
        persistenced_fault: Some(fault.to_owned()),
        ..Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }])
    };
    let mut node = Node::new(sim);
    let failed = OpStatus::Failed { kind: FailureKind::Invalid, message: fault.to_owned() };
    assert_eq!(node.apply(&daemon()).status, failed);
    assert_eq!(node.effects(), Vec::<String>::new());
}

/// What others switch at each boot is told where a task declares persistence, and only there.
#[test]
fn a_unit_of_somebody_else_that_sets_persistence_at_boot_is_told() {
    let told = |mode: &str, on: bool| {
        let setter = SetsPersistence {
            unit: "gpu-init.service".to_owned(),
            place: "/etc/systemd/system/gpu-init.service:7".to_owned(),
            on,
        };
        let sim = Sim { persistence_setters: vec![setter], ..Sim::new(vec![SimGpu::new(0, true)]) };
        Node::new(sim).predict(&group(&[json!({"gpu_persistence": {"mode": mode}})])).warnings
    };
    assert_eq!(
        told("daemon", true),
        [
            "the unit gpu-init.service runs `nvidia-smi -pm 1` at each boot (/etc/systemd/system/gpu-init.service:7), which switches \
          persistence on without the daemon too, so that nobody notices where it does not run; if nothing else needs the unit: \
          `systemctl disable gpu-init.service`, otherwise take that command out of it"
        ]
    );
    assert!(told("daemon", false)[0].contains("which switches persistence off, against what is declared"));
    assert!(told("off", true)[0].contains("which switches persistence on, against what is declared"));
    assert_eq!((told("legacy", true), told("off", false)), (vec![], vec![]));
}
