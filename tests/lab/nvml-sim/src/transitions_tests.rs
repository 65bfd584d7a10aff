use proptest::prelude::*;

use super::*;
use crate::model::ModelKey;
use crate::state::Staged;

fn machine(model: ModelKey) -> Machine {
    Machine::new("gpu001", &[model, model], "boot-1".to_owned())
}

fn busy(pid: u32) -> Users {
    Users { open: vec![pid], computing: Vec::new() }
}

fn computing(pid: u32) -> Users {
    Users { open: vec![pid], computing: vec![pid] }
}

#[test]
fn ecc_waits_for_a_reset_or_a_reboot() {
    for reboot in [false, true] {
        let mut machine = machine(ModelKey::H100);
        machine.gpus[0].set_ecc(false);
        assert_eq!(machine.gpus[0].ecc, Staged { current: true, pending: false });
        if reboot {
            machine.reboot("boot-2".to_owned());
        } else {
            machine.reset(0, &Users::default()).unwrap();
        }
        assert_eq!(machine.gpus[0].ecc, Staged::settled(false));
        assert_eq!(machine.gpus[1].ecc, Staged::settled(true));
    }
}

#[test]
fn a_client_blocks_the_reset_and_nothing_changes() {
    let mut machine = machine(ModelKey::A100);
    machine.gpus[0].set_ecc(false);
    let before = machine.clone();
    assert_eq!(machine.reset(0, &busy(42)), Err(ResetRefused::InUse { pids: vec![42] }));
    assert_eq!(machine, before);
}

#[test]
fn the_display_module_blocks_a_reset_on_ampere_only() {
    for (model, refused) in [(ModelKey::A100, true), (ModelKey::H100, false)] {
        let mut machine = machine(model);
        machine.nvidia_drm_refs = 1;
        assert_eq!(machine.reset(0, &Users::default()).is_err(), refused, "{model}");
    }
}

#[test]
fn mig_on_ampere_survives_a_reboot_and_on_hopper_not() {
    for (model, survives) in [(ModelKey::A100, true), (ModelKey::H100, false), (ModelKey::H200, false)] {
        let mut machine = machine(model);
        assert_eq!(machine.gpus[0].set_mig_mode(true, &Users::default(), 0, false), code::SUCCESS);
        assert_eq!(machine.gpus[0].mig, Staged::settled(true));
        machine.gpus[0].create_instance(9, None).unwrap();
        machine.reboot("boot-2".to_owned());
        assert_eq!(machine.gpus[0].mig, Staged::settled(survives), "{model}");
        assert!(machine.gpus[0].instances.is_empty(), "instances never survive");
    }
}

#[test]
fn mig_on_a_busy_ampere_waits_and_on_hopper_minds_only_work() {
    let mut a100 = machine(ModelKey::A100);
    assert_eq!(a100.gpus[0].set_mig_mode(true, &busy(7), 0, false), code::IN_USE);
    assert_eq!(a100.gpus[0].mig, Staged { current: false, pending: true });
    a100.reset(0, &Users::default()).unwrap();
    assert_eq!(a100.gpus[0].mig, Staged::settled(true));

    let mut h100 = machine(ModelKey::H100);
    assert_eq!(h100.gpus[0].set_mig_mode(true, &busy(7), 0, false), code::SUCCESS);
    assert_eq!(h100.gpus[1].set_mig_mode(true, &computing(7), 0, false), code::IN_USE);
}

#[test]
fn a_pass_through_ampere_asks_for_a_reset() {
    let mut machine = machine(ModelKey::A100);
    assert_eq!(machine.gpus[0].set_mig_mode(true, &Users::default(), 0, true), code::RESET_REQUIRED);
    assert!(machine.gpus[0].mig.is_pending());
}

#[test]
fn instances_are_destroyed_from_the_inside_out() {
    let mut gpu = machine(ModelKey::H100).gpus.remove(0);
    assert_eq!(gpu.create_instance(9, None), Err(code::NOT_SUPPORTED), "MIG is off");
    gpu.set_mig_mode(true, &Users::default(), 0, false);
    let gi = gpu.create_instance(9, Some(4)).unwrap();
    assert_eq!(gi, 2);
    assert_eq!(gpu.create_instance(9, Some(4)), Err(code::INSUFFICIENT_RESOURCES));
    assert_eq!(gpu.create_instance(9, Some(3)), Err(code::INVALID_ARGUMENT));
    assert_eq!(gpu.create_instance(77, None), Err(code::INVALID_ARGUMENT));
    let ci = gpu.create_compute_instance(gi, 2, None).unwrap();
    assert_eq!(gpu.create_compute_instance(gi, 0, None), Err(code::INSUFFICIENT_RESOURCES));
    assert_eq!(gpu.create_compute_instance(gi, 4, None), Err(code::NOT_SUPPORTED));
    assert_eq!(gpu.destroy_instance(gi, &Users::default()), Err(code::IN_USE));
    assert_eq!(gpu.set_mig_mode(false, &Users::default(), 0, false), code::IN_USE);
    gpu.destroy_compute_instance(gi, ci, &Users::default()).unwrap();
    gpu.destroy_instance(gi, &Users::default()).unwrap();
    assert_eq!(gpu.set_mig_mode(false, &Users::default(), 0, false), code::SUCCESS);
}

#[test]
fn a_working_client_keeps_its_instance() {
    let mut gpu = machine(ModelKey::H200).gpus.remove(0);
    gpu.set_mig_mode(true, &Users::default(), 0, false);
    let gi = gpu.create_instance(0, None).unwrap();
    let ci = gpu.create_compute_instance(gi, 4, None).unwrap();
    gpu.clients.push(crate::state::Client { pid: 9, memory_mib: 1, gpu_instance: Some(gi), since_us: 0 });
    assert_eq!(gpu.destroy_compute_instance(gi, ci, &computing(9)), Err(code::IN_USE));
    assert_eq!(gpu.destroy_compute_instance(gi, ci, &Users::default()), Ok(()));
}

#[test]
fn limits_go_with_the_last_client_unless_persistence_holds_them() {
    let mut gpu = machine(ModelKey::H100).gpus.remove(0);
    assert_eq!(gpu.set_power_limit(100), code::INVALID_ARGUMENT);
    assert_eq!(gpu.set_power_limit(600_000), code::SUCCESS);
    gpu.persistence = true;
    gpu.wake();
    assert_eq!(gpu.power_limit_mw, 600_000);
    gpu.persistence = false;
    gpu.wake();
    assert_eq!(gpu.power_limit_mw, 700_000);
}

#[test]
fn memory_clocks_lock_on_ampere_only() {
    assert_eq!(machine(ModelKey::H100).gpus[0].lock_memory(1593, 2619), code::NOT_SUPPORTED);
    assert_eq!(machine(ModelKey::A100).gpus[0].lock_memory(1593, 1593), code::SUCCESS);
}

#[test]
fn a_pending_remap_is_done_by_the_reset() {
    let mut machine = machine(ModelKey::H100);
    machine.gpus[0].health.remap_pending = true;
    machine.reset(0, &Users::default()).unwrap();
    assert_eq!(machine.gpus[0].health.remapped_uncorrectable, 1);
    assert!(!machine.gpus[0].health.remap_pending);
}

#[derive(Clone, Debug)]
enum Event {
    Ecc(bool),
    Mig(bool, bool),
    Create(usize),
    Destroy(usize),
    Power(u32),
    Persistence(bool),
    Wake,
    Reset(bool),
    Reboot,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        any::<bool>().prop_map(Event::Ecc),
        (any::<bool>(), any::<bool>()).prop_map(|(on, busy)| Event::Mig(on, busy)),
        (0usize..7).prop_map(Event::Create),
        (0usize..7).prop_map(Event::Destroy),
        (0u32..900_000).prop_map(Event::Power),
        any::<bool>().prop_map(Event::Persistence),
        Just(Event::Wake),
        any::<bool>().prop_map(Event::Reset),
        Just(Event::Reboot),
    ];
    proptest::collection::vec(event, 0..40)
}

proptest! {
    #[test]
    fn invariants_hold_after_any_events(model in 0usize..3, events in events()) {
        let model = ModelKey::ALL[model];
        let mut machine = machine(model);
        let mut boots = 1;
        for event in events {
            let before = machine.clone();
            match event.clone() {
                Event::Ecc(on) => machine.gpus[0].set_ecc(on),
                Event::Mig(on, busy_now) => {
                    let users = if busy_now { computing(5) } else { Users::default() };
                    let status = machine.gpus[0].set_mig_mode(on, &users, 0, false);
                    prop_assert_eq!(status == code::SUCCESS, machine.gpus[0].mig.current == on);
                    prop_assert_eq!(machine.gpus[0].mig.pending, on);
                }
                Event::Create(profile) => {
                    let id = model.model().profiles[profile].id;
                    let _ = machine.gpus[0].create_instance(id, None);
                }
                Event::Destroy(index) => {
                    if let Some(id) = machine.gpus[0].instances.get(index).map(|instance| instance.id) {
                        machine.gpus[0].destroy_instance(id, &Users::default()).unwrap();
                    }
                }
                Event::Power(limit) => {
                    let rc = machine.gpus[0].set_power_limit(limit);
                    prop_assert_eq!(rc == code::SUCCESS, machine.gpus[0].power_limit_mw == limit);
                }
                Event::Persistence(on) => machine.gpus[0].persistence = on,
                Event::Wake => machine.gpus[0].wake(),
                Event::Reset(busy_now) => {
                    let users = if busy_now { busy(5) } else { Users::default() };
                    let done = machine.reset(0, &users).is_ok();
                    prop_assert_eq!(done, !busy_now);
                    if done {
                        prop_assert!(!machine.gpus[0].ecc.is_pending() && !machine.gpus[0].mig.is_pending());
                        prop_assert!(machine.gpus[0].instances.is_empty());
                    } else {
                        prop_assert_eq!(&machine, &before);
                    }
                }
                Event::Reboot => {
                    boots += 1;
                    machine.reboot(format!("boot-{boots}"));
                    let gpu = &machine.gpus[0];
                    prop_assert_eq!(gpu.ecc, Staged::settled(before.gpus[0].ecc.pending));
                    prop_assert!(gpu.instances.is_empty() && !gpu.persistence);
                    prop_assert_eq!(gpu.power_limit_mw, model.model().power_mw.2);
                    prop_assert_ne!(&machine.boot_id, &before.boot_id);
                }
            }
            let gpu = &machine.gpus[0];
            let (low, high, _) = model.model().power_mw;
            prop_assert!((low..=high).contains(&gpu.power_limit_mw));
            prop_assert!(gpu.instances.is_empty() || gpu.mig.current, "instances without MIG after {:?}", event);
            prop_assert_eq!(&machine.gpus[1].uuid, &before.gpus[1].uuid);
        }
    }
}
