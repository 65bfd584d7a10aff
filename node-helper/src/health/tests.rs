use std::sync::Arc;

use gpufleet_protocol::nvml::{Code, RemappedRows, Staged};

use super::*;
use crate::{
    deadline::Deadline,
    gpu::{
        Gpus,
        sim::{Sim, SimGpu, SimMachine},
        worker::NvmlError,
    },
    state::Record,
};

fn seen(sim: Sim) -> Seen {
    let machine = SimMachine(Arc::new(std::sync::Mutex::new(sim)));
    let mut gpus = Gpus::with_machine(Box::new(machine), Record::of(None));
    gpus.health(&Deadline::after(std::time::Duration::from_secs(5)))
}

fn good() -> SimGpu {
    SimGpu { persistence: true, ..SimGpu::new(0, true) }
}

fn of(gpu: SimGpu, check: fn(&Seen) -> Found) -> Found {
    check(&seen(Sim::new(vec![good(), SimGpu { index: 1, ..gpu }])))
}

#[test]
fn a_good_node_passes_every_check_of_its_gpus() {
    let seen = seen(Sim::new(vec![good(), SimGpu { index: 1, ..good() }]));
    assert_eq!(gpu_count::check(&seen, Some(2)), (Verdict::Ok, "2 GPUs".to_owned()));
    assert_eq!(gpu_count::check(&seen, None).0, Verdict::Ok);
    for ask in [mig_layout::check, ecc::check, persistence::check] {
        assert_eq!(ask(&seen), (Verdict::Ok, "2 GPUs".to_owned()));
    }
    assert_eq!(fabric_manager::check(&seen).0, Verdict::NotApplicable);
}

#[test]
fn each_defect_is_told_with_its_gpu() {
    let staged = Staged { current: false, pending: true };
    for (gpu, ask, part) in [
        (
            SimGpu { mig: staged, ..good() },
            mig_layout::check as fn(&Seen) -> Found,
            "MIG mode is disabled and will be enabled",
        ),
        (SimGpu { ecc: staged, ..good() }, ecc::check, "ECC is disabled and will be enabled"),
        (
            SimGpu { uncorrected: 2, recovery_action: Ok(1), ..good() },
            ecc::check,
            "2 uncorrected memory errors since the driver was loaded, and the driver asks for a reset of the GPU",
        ),
        (
            SimGpu { uncorrected: 2, recovery_action: Ok(9), ..good() },
            ecc::check,
            "something that gpufleet does not know",
        ),
        (
            SimGpu { uncorrected: 2, recovery_action: Err(Code::NOT_SUPPORTED), ..good() },
            ecc::check,
            "does not tell whether they still matter",
        ),
        (SimGpu { uncorrected: 2, uncorrected_sram: 1, ..good() }, ecc::check, "1 of them in SRAM"),
        (
            SimGpu { uncorrected: 1, architecture: Some(6), ..good() },
            ecc::check,
            "this generation does not contain",
        ),
        (
            SimGpu { rows: Ok(RemappedRows { failed: true, ..Default::default() }), ..good() },
            ecc::check,
            "have the board replaced",
        ),
        (
            SimGpu { rows: Ok(RemappedRows { pending: true, ..Default::default() }), ..good() },
            ecc::check,
            "waits to be remapped",
        ),
        (SimGpu { persistence: false, ..good() }, persistence::check, "persistence is off"),
    ] {
        let (verdict, why) = of(gpu, ask);
        assert_eq!(verdict, Verdict::Fail, "{why}");
        assert!(why.starts_with("GPU 1: ") && why.contains(part), "{why}");
    }
}

#[test]
fn a_contained_error_and_counters_that_mig_refuses_hold_no_node() {
    let (verdict, why) = of(SimGpu { uncorrected: 1, ..good() }, ecc::check);
    assert_eq!(verdict, Verdict::Ok, "{why}");
    assert!(
        why.starts_with("2 GPUs; GPU 1: 1 uncorrected memory errors since the driver was loaded, contained"),
        "{why}"
    );
    let refuses = SimGpu { refuses_counters: true, ..good() };
    assert_eq!(of(refuses.clone(), ecc::check).0, Verdict::Unknown);
    assert_eq!(of(SimGpu { mig: Staged::settled(true), ..refuses }, ecc::check).0, Verdict::Ok);
}

#[test]
fn what_cannot_be_read_is_unknown_and_what_a_gpu_lacks_is_not() {
    assert_eq!(of(SimGpu { rows: Err(Code::UNKNOWN), ..good() }, ecc::check).0, Verdict::Unknown);
    assert_eq!(of(SimGpu { rows: Err(Code::NOT_SUPPORTED), ..good() }, ecc::check).0, Verdict::Ok);
    assert_eq!(
        of(SimGpu { has_ecc: false, ..good() }, ecc::check),
        (Verdict::Ok, "1 of 2 GPUs, the others do not have it".to_owned())
    );
    let without = seen(Sim::new(vec![SimGpu { has_ecc: false, ..good() }]));
    assert_eq!(ecc::check(&without).0, Verdict::NotApplicable);
    let lost = seen(Sim::new(vec![good(), SimGpu { index: 1, lost: true, ..good() }]));
    for ask in [mig_layout::check, ecc::check, persistence::check] {
        assert_eq!(ask(&lost).0, Verdict::Unknown);
    }
    let (verdict, why) = gpu_count::check(&lost, Some(2));
    assert_eq!(verdict, Verdict::Fail);
    assert!(why.starts_with("GPU 1 is lost"), "{why}");
}

#[test]
fn a_gpu_that_is_missing_fails_and_a_node_without_any_has_nothing_to_check() {
    let one = seen(Sim::new(vec![good()]));
    assert_eq!(
        gpu_count::check(&one, Some(2)),
        (
            Verdict::Fail,
            "the driver lists 1 GPU, and 2 were here before; next step: look for Xid errors; with the node drained, reboot it, \
             and power it off and on if they do not come back"
                .to_owned()
        )
    );
    // A driver that was just installed, or mended, has found what is on the bus.
    let two = seen(Sim::new(vec![good(), SimGpu { index: 1, ..good() }]));
    assert_eq!(gpu_count::check(&two, Some(0)), gpu_count::check(&two, None));
    let no_driver = |on_bus| Seen {
        snapshot: Err(Unread { why: "no NVIDIA driver".to_owned(), no_driver: true }),
        on_bus,
        switches: 0,
        fabric_manager: FabricManager::Absent,
        resets: Default::default(),
    };
    assert_eq!(gpu_count::check(&no_driver(0), None).0, Verdict::NotApplicable);
    assert_eq!(gpu_count::check(&no_driver(0), Some(0)).0, Verdict::NotApplicable);
    assert_eq!(gpu_count::check(&no_driver(0), Some(8)).0, Verdict::Fail);
    assert_eq!(ecc::check(&no_driver(0)).0, Verdict::NotApplicable);
    assert_eq!(gpu_count::check(&no_driver(8), Some(8)).0, Verdict::Unknown);
    assert_eq!(ecc::check(&no_driver(8)).0, Verdict::Unknown);
    let hung =
        Sim { broken: Some(NvmlError::Hung { detail: "NVML hangs".into() }), ..Sim::new(vec![good()]) };
    assert_eq!(mig_layout::check(&seen(hung)), (Verdict::Unknown, "NVML hangs".to_owned()));
}

#[test]
fn a_drained_gpu_is_not_missing() {
    let one = || Sim::new(vec![SimGpu { drained: true, ..good() }, SimGpu { index: 1, ..good() }]);
    for expected in [None, Some(2)] {
        let found = gpu_count::check(&seen(one()), expected);
        assert_eq!(found, (Verdict::Ok, "1 GPU, and drained: 0000:1b:00.0".to_owned()));
    }
    assert_eq!(gpu_count::check(&seen(one()), Some(3)).0, Verdict::Fail);
    let none = seen(Sim::new(vec![SimGpu { drained: true, ..good() }]));
    assert_eq!(ecc::check(&none), (Verdict::NotApplicable, "every GPU of the node is drained".to_owned()));
}

#[test]
fn switches_need_their_manager() {
    let with = |fabric_manager| Sim { switches: 4, fabric_manager, ..Sim::new(vec![good()]) };
    assert_eq!(fabric_manager::check(&seen(with(true))).0, Verdict::Ok);
    // The simulated node lists no processes, so the state is unknown.
    assert_eq!(fabric_manager::check(&seen(with(false))).0, Verdict::Unknown);
    let absent = Seen { fabric_manager: FabricManager::Absent, ..seen(with(true)) };
    assert_eq!(fabric_manager::check(&absent).0, Verdict::Fail);
}

#[test]
fn another_boot_makes_everything_unknown_and_results_keep_the_order_asked_for() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("proc/sys/kernel/random")).unwrap();
    std::fs::write(root.path().join("proc/sys/kernel/random/boot_id"), "new\n").unwrap();
    let roots = Roots::below(root.path());
    let deadline = Deadline::after(std::time::Duration::from_secs(5));
    let ask = |since: &str| HealthRequest {
        checks: vec![HealthCheck::System, HealthCheck::GpuCount],
        gpus: Some(1),
        since_boot: Some(since.to_owned()),
    };
    let seen = seen(Sim::new(vec![good()]));
    let verdicts = |since: &str| -> Vec<(HealthCheck, Verdict)> {
        let report = report(&ask(since), Some(&seen), &roots, &deadline);
        report.results.iter().map(|result| (result.check, result.verdict)).collect()
    };
    let (system, count) = (HealthCheck::System, HealthCheck::GpuCount);
    assert_eq!(verdicts("old"), [(system, Verdict::Unknown), (count, Verdict::Unknown)]);
    let now = crate::tasks::reboot::boot_id(&roots).unwrap();
    assert_eq!(verdicts(&now), [(system, Verdict::NotApplicable), (count, Verdict::Ok)]);
}
