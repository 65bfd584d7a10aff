//! What is written, what a boot would accept, and who waits.

use std::os::unix::fs::PermissionsExt;

use ed25519_dalek::{Signer, SigningKey};
use gpufleet_protocol::{
    FailureKind, OpOutcome, OpStatus,
    keep::{FORMAT, KeepPolicy, KeptState, KeptVerdict, Seal, Sealed, to_be_signed},
    message::Mode,
    op::{GpuMember, GpuTask, KeepState},
    tasks::{GpuKeep, GpuPower, KeepPresence, OnKeepFailure},
};
use proptest::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha512};

use super::{Pin, Store, assert_on, at_boot, gate, kept, prove, remove, report, seal, units};
use crate::{
    deadline::Deadline,
    gpu::{
        Gpus, Kept,
        sim::{Sim, SimGpu, SimMachine},
    },
    os::files,
    state::Record,
    tasks::testing::{Bench, told},
    world::World,
};

const MACHINE: &str = "0123456789abcdef0123456789abcdef";
const STATE: &str = "var/lib/gpufleet/keep/state.json";
const PROGRAM: &str = "usr/local/sbin/gpufleet-keep";
const UNIT: &str = "etc/systemd/system/gpufleet-keep.service";
const WANTS: &str = "etc/systemd/system/multi-user.target.wants/gpufleet-keep.service";

fn power(watts: u32) -> GpuMember {
    let power: GpuPower = serde_json::from_value(json!({ "limit_watts": watts })).unwrap();
    GpuMember { task: GpuTask::GpuPower(power) }
}

fn document(serial: u64, watts: u32, policy: KeepPolicy) -> KeptState {
    KeptState {
        format: FORMAT,
        machine_id: MACHINE.to_owned(),
        gpus: vec!["GPU-1".to_owned()],
        serial,
        run: "RUN".to_owned(),
        policy,
        members: vec![power(watts)],
    }
}

fn signed(kept: &KeptState, key: u8) -> Sealed {
    let key = SigningKey::from_bytes(&[key; 32]);
    let document = serde_json::to_string(kept).unwrap();
    let signature = key.sign(&to_be_signed(&Sha512::digest(document.as_bytes())));
    let (key, signature) = (files::hex(key.verifying_key().as_bytes()), files::hex(signature.to_bytes()));
    Sealed { document, seal: Seal { key, signature } }
}

fn serve() -> KeepPolicy {
    KeepPolicy::of(&GpuKeep::default(), None)
}

fn hold(units: &[&str]) -> KeepPolicy {
    let hold = units.iter().map(|unit| (*unit).to_owned()).collect();
    KeepPolicy { on_failure: OnKeepFailure::Hold, hold, ..serve() }
}

fn asked(kept: &KeptState, key: u8) -> KeepState {
    KeepState {
        policy: GpuKeep::default(),
        members: kept.members.clone(),
        sealed: Some(signed(kept, key)),
        dropped: Vec::new(),
    }
}

fn absent() -> KeepState {
    let policy = GpuKeep { state: KeepPresence::Absent, ..GpuKeep::default() };
    KeepState { policy, members: Vec::new(), sealed: None, dropped: Vec::new() }
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("etc/machine-id", &format!("{MACHINE}\n"));
    bench.write("proc/self/exe", "the node file");
    bench.write("proc/sys/kernel/random/boot_id", "boot-1\n");
    bench.write("etc/systemd/system/other.service.d/50-other.conf", "[Service]\n");
    bench
}

fn shown(outcome: &OpOutcome) -> Vec<&'static str> {
    outcome.changes.iter().map(|change| told(change).0).collect()
}

fn failure(outcome: &OpOutcome) -> (FailureKind, &str) {
    match &outcome.status {
        OpStatus::Failed { kind, message } => (*kind, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plan_writes_nothing_and_a_run_writes_it_once() {
    let bench = bench();
    let declared = asked(&document(5, 400, hold(&["slurmd.service"])), 1);
    let mut planned = declared.clone();
    planned.sealed.as_mut().unwrap().seal.signature.clear();
    let before = bench.snapshot();
    let predicted = bench.run(&planned, Mode::Predict);
    assert_eq!(
        bench.run(&planned, Mode::Predict).status,
        OpStatus::Ok,
        "{:?}",
        bench.run(&planned, Mode::Predict)
    );
    assert_eq!(bench.snapshot(), before);
    bench.forget();
    let applied = bench.run(&declared, Mode::Apply);
    assert_eq!((&applied.status, &applied.changes), (&OpStatus::Changed, &predicted.changes));
    assert_eq!(shown(&applied)[3..], ["kept GPU state", "gpufleet-keep.service at boot"]);
    let settled = bench.snapshot();
    // A later run signs anew, and that alone is no change.
    let later = asked(&document(9, 400, hold(&["slurmd.service"])), 1);
    assert_eq!(bench.run(&later, Mode::Apply).status, OpStatus::Ok);
    assert_eq!(bench.snapshot(), settled);
    let mode = |path: &str| std::fs::metadata(bench.path(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("var/lib/gpufleet/keep"), mode(STATE), mode(PROGRAM)), (0o700, 0o600, 0o755));
    assert_eq!(std::fs::read_link(bench.path(WANTS)).unwrap().to_str(), Some("../gpufleet-keep.service"));
    assert!(kept(&bench.roots).unwrap().is_some());
}

#[test]
fn what_a_boot_must_not_assert_is_told() {
    let bench = bench();
    let kept_now = || kept(&bench.roots).map(|kept| kept.is_some());
    assert_eq!(kept_now(), Ok(false));
    bench.run(&asked(&document(5, 400, serve()), 1), Mode::Apply);
    assert_eq!(kept_now(), Ok(true));
    let good = bench.read(STATE);
    let refused = |why: &str| {
        let found = kept_now().unwrap_err();
        assert!(found.contains(why), "{found}");
        let told = report(&bench.roots).unwrap();
        assert!(told.concerns().iter().any(|concern| concern.contains(why)), "{told:?}");
    };
    bench.write(STATE, &good.replace("400", "700"));
    refused("it was changed after it was signed");
    bench.write(STATE, &good[..good.len() - 9]);
    refused("is damaged");
    bench.write(STATE, &serde_json::to_string(&signed(&document(5, 400, serve()), 2)).unwrap());
    refused("signed by another key");
    bench.write(STATE, &serde_json::to_string(&signed(&document(4, 300, serve()), 1)).unwrap());
    refused("stale");
    let foreign = KeptState { machine_id: "f".repeat(32), ..document(6, 400, serve()) };
    bench.write(STATE, &serde_json::to_string(&signed(&foreign, 1)).unwrap());
    refused("its disk was copied");
    bench.write(STATE, &good);
    assert_eq!(kept_now(), Ok(true));
    std::fs::remove_file(bench.path("var/lib/gpufleet/keep/pin.json")).unwrap();
    refused("no key is pinned");
}

#[test]
fn a_plan_knows_what_the_next_boot_would_set() {
    let bench = bench();
    let real = || at_boot(&bench.roots, &World::real());
    let foreseen = || at_boot(&bench.roots, &World::overlaid(&bench.overlay));
    let sets = Kept::Sets { gpus: ["GPU-1".to_owned()].into(), members: vec![power(400)] };
    assert_eq!(real(), Kept::Nothing);
    let declared = asked(&document(5, 400, serve()), 1);
    let mut planned = declared.clone();
    planned.sealed.as_mut().unwrap().seal.signature.clear();
    bench.run(&planned, Mode::Predict);
    assert_eq!((real(), foreseen()), (Kept::Nothing, sets.clone()), "an earlier task of the prediction");
    bench.forget();
    bench.run(&declared, Mode::Apply);
    assert_eq!((real(), foreseen()), (sets.clone(), sets.clone()));
    bench.run(&absent(), Mode::Predict);
    assert_eq!((real(), foreseen()), (sets.clone(), Kept::Nothing));
    bench.forget();
    let refused = |why: &str| match real() {
        Kept::Refused(told) => assert!(told.contains(why), "{told}"),
        other => panic!("{other:?}"),
    };
    let good = bench.read(STATE);
    bench.write(STATE, &serde_json::to_string(&signed(&document(4, 300, serve()), 1)).unwrap());
    refused("stale");
    bench.write(STATE, &good[..good.len() - 9]);
    refused("is damaged");
    bench.write(STATE, &good.replace("400", "700"));
    refused("it was changed after it was signed");
    bench.write(STATE, &good);
    std::fs::remove_file(bench.path(WANTS)).unwrap();
    refused("gpufleet-keep.service is not enabled");
    std::fs::remove_file(bench.path(PROGRAM)).unwrap();
    refused("gpufleet-keep is gone");
}

#[test]
fn nothing_that_a_boot_would_refuse_is_written() {
    let bench = bench();
    let before = bench.snapshot();
    let mut unsigned = asked(&document(5, 400, serve()), 1);
    unsigned.sealed.as_mut().unwrap().seal.signature = "0".repeat(128);
    let refused = bench.run(&unsigned, Mode::Apply);
    assert_eq!(failure(&refused).0, FailureKind::Refused, "{refused:?}");
    let foreign = KeptState { machine_id: "f".repeat(32), ..document(6, 400, serve()) };
    assert!(failure(&bench.run(&asked(&foreign, 1), Mode::Apply)).1.contains("its disk was copied"));
    assert_eq!(bench.snapshot(), before);
    bench.run(&asked(&document(5, 400, serve()), 1), Mode::Apply);
    let mine = bench.snapshot();
    let theirs = bench.run(&asked(&document(6, 300, serve()), 2), Mode::Apply);
    assert!(failure(&theirs).1.contains("another key has signed"), "{theirs:?}");
    assert_eq!(bench.snapshot(), mine);
}

#[test]
fn units_wait_until_the_gate_is_open() {
    let bench = bench();
    let declared = asked(&document(5, 400, hold(&["slurmd.service", "my.service"])), 1);
    assert!(units_wait(&bench).is_none(), "nothing is kept");
    bench.run(&declared, Mode::Apply);
    assert!(units_wait(&bench).is_none(), "the run has proven the state");
    bench.write("proc/sys/kernel/random/boot_id", "boot-2\n");
    assert!(units_wait(&bench).is_some());
    let again = bench.run(&declared, Mode::Apply);
    assert_eq!(shown(&again), ["slurmd.service, my.service"], "{again:?}");
    assert!(units_wait(&bench).is_none());
    // Who no longer waits loses the drop-in.
    let fewer = bench.run(&asked(&document(6, 400, hold(&["my.service"])), 1), Mode::Apply);
    assert_eq!(fewer.status, OpStatus::Changed);
    assert!(!bench.path("etc/systemd/system/slurmd.service.d/50-gpufleet-keep.conf").exists());
    assert!(bench.path("etc/systemd/system/my.service.d/50-gpufleet-keep.conf").exists());
    // Another state closes it, unless a run has proven that one.
    bench.write(STATE, &bench.read(STATE).replace("400", "401"));
    assert!(units_wait(&bench).is_some());
    bench.run(&asked(&document(7, 400, serve()), 1), Mode::Apply);
    bench.write("proc/sys/kernel/random/boot_id", "boot-3\n");
    assert!(units_wait(&bench).is_none(), "a node that serves as it is");
}

/// After a reboot of its own, a run may come before the unit of that boot or after it.
#[test]
fn whether_a_run_opens_the_gate_after_its_own_reboot_is_only_possible() {
    let bench = bench();
    let declared = asked(&document(5, 400, serve()), 1);
    bench.run(&declared, Mode::Apply);
    assert_eq!(bench.run(&declared, Mode::Predict).status, OpStatus::Ok);
    bench.activate(gpufleet_protocol::Disruption::Reboot);
    let planned = bench.run(&declared, Mode::Predict);
    assert_eq!((&planned.status, shown(&planned)), (&OpStatus::Possible, vec!["gpufleet-keep.service"]));
    bench.write("proc/sys/kernel/random/boot_id", "boot-2\n");
    let made = bench.run(&declared, Mode::Apply);
    assert_eq!(made.status, OpStatus::Changed);
    assert_eq!(
        (made.changes[0].about(), &made.changes[0].to),
        (planned.changes[0].about(), &planned.changes[0].to)
    );
}

fn units_wait(bench: &Bench) -> Option<()> {
    (format!("{:?}", gate::gate(&bench.roots)) != format!("{:?}", std::process::ExitCode::SUCCESS))
        .then_some(())
}

#[test]
fn removal_leaves_nothing_and_touches_nothing_else() {
    let bench = bench();
    let before: Vec<_> = bench.snapshot().into_keys().filter(|path| path.is_file()).collect();
    bench.run(&asked(&document(5, 400, hold(&["slurmd.service"])), 1), Mode::Apply);
    let predicted = bench.run(&absent(), Mode::Predict);
    bench.forget();
    let removed = bench.run(&absent(), Mode::Apply);
    assert_eq!((&removed.status, &removed.changes), (&OpStatus::Changed, &predicted.changes));
    let left =
        |bench: &Bench| -> Vec<_> { bench.snapshot().into_keys().filter(|path| path.is_file()).collect() };
    assert_eq!(left(&bench), before);
    assert_eq!(bench.run(&absent(), Mode::Apply).status, OpStatus::Ok);
    bench.run(&asked(&document(6, 400, hold(&["slurmd.service"])), 1), Mode::Apply);
    // Half of it is gone already.
    std::fs::remove_file(bench.path(STATE)).unwrap();
    std::fs::remove_file(bench.path(UNIT)).unwrap();
    remove(&bench.roots).unwrap();
    assert_eq!(left(&bench), before);
    assert_eq!(report(&bench.roots), None);
}

fn members(tasks: &[serde_json::Value]) -> Vec<GpuMember> {
    let member = |task: &serde_json::Value| {
        let (kind, with) = task.as_object().unwrap().iter().next().unwrap();
        serde_json::from_value(json!({"task": {"kind": kind, "with": with}})).unwrap()
    };
    tasks.iter().map(member).collect()
}

#[test]
fn a_boot_does_not_call_asserted_what_the_driver_forgets_at_once() {
    let boot = |tasks: &[serde_json::Value]| {
        let bench = bench();
        let gpus = vec!["GPU-0".to_owned()];
        let kept = KeptState { members: members(tasks), gpus, ..document(5, 400, serve()) };
        assert_eq!(bench.run(&asked(&kept, 1), Mode::Apply).status, OpStatus::Changed);
        let machine = SimMachine::new(Sim::new(vec![SimGpu::new(0, true)]));
        // It starts after the unit of the kept state.
        machine.get().set_unit("nvidia-dcgm.service", false);
        assert_on(&bench.roots, |settings| Gpus::with_machine(Box::new(machine.clone()), settings.record));
        let boot = report(&bench.roots).unwrap().boots.pop().unwrap();
        (boot.verdict, boot.reasons.join("; "), machine.get().gpus[0].power_mw)
    };
    let power = json!({"gpu_power": {"limit_watts": 400}});
    let awake = json!({"gpu_persistence": {"mode": "legacy"}});
    assert_eq!(boot(&[awake, power.clone()]), (KeptVerdict::Asserted, String::new(), 400_000));
    let (verdict, reasons, power_mw) = boot(&[power]);
    assert_eq!((verdict, power_mw), (KeptVerdict::Left, 700_000));
    assert!(reasons.contains("GPU 0 power limit: persistence is off, so the driver forgets it"), "{reasons}");
}

/// Why a node with one GPU would not keep these tasks; nothing if it would.
fn refused(tasks: &[serde_json::Value]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let machine = SimMachine::new(Sim::new(vec![SimGpu::new(0, true)]));
    let mut gpus = Gpus::with_machine(Box::new(machine.clone()), Record::of(Some(dir.path())));
    let kept = KeptState { members: members(tasks), ..document(5, 400, serve()) };
    let said = |gpus: &mut Gpus, mode| {
        let deadline = Deadline::after(std::time::Duration::from_secs(60));
        prove(&asked(&kept, 1), gpus, mode, &deadline).err().map(|why| why.text()).unwrap_or_default()
    };
    let planned = said(&mut gpus, Mode::Predict);
    assert_eq!(said(&mut gpus, Mode::Apply), planned, "a plan says what a run does");
    assert_eq!(machine.get().effects.len(), 0, "a proof changes nothing");
    planned
}

#[test]
fn a_state_that_no_boot_can_assert_is_refused_at_once() {
    let power = |watts: u32| json!({"gpu_power": {"limit_watts": watts}});
    let exclusive = json!({"gpu_compute_mode": {"mode": "exclusive_process"}});
    let mig = json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}});
    let awake = json!({"gpu_persistence": {"mode": "legacy"}});
    assert_eq!(refused(&[awake.clone(), power(400), mig.clone()]), "");
    for (tasks, says) in [
        // Units that use GPUs start only after that of the kept state.
        (vec![power(400), mig.clone()], "GPU 0 power limit: persistence is off, so the driver forgets it"),
        (vec![awake, power(400), power(300)], "shall be 400 W by task 2"),
        (vec![exclusive, mig], "is in MIG mode, where the compute mode exclusive_process cannot be set"),
        (vec![power(9000)], "9000"),
    ] {
        let told = refused(&tasks);
        assert!(told.contains(says) && told.contains("next step: declare it otherwise"), "{told}");
    }
}

#[test]
fn boots_are_remembered_and_one_that_was_cut_off_says_so() {
    let bench = bench();
    bench.run(&asked(&document(5, 400, serve()), 1), Mode::Apply);
    let store = Store::of(&bench.roots);
    let boot = |at: u64, verdict| gpufleet_protocol::keep::KeptBoot {
        boot_id: format!("boot-{at}"),
        began: at,
        ms: 1,
        verdict,
        reasons: Vec::new(),
        changes: Vec::new(),
    };
    for at in 0..40 {
        store.put_boot(&boot(at, KeptVerdict::Begun)).unwrap();
        store.put_boot(&boot(at, KeptVerdict::Asserted)).unwrap();
    }
    store.put_boot(&boot(40, KeptVerdict::Begun)).unwrap();
    bench.write("proc/sys/kernel/random/boot_id", "boot-40\n");
    let report = report(&bench.roots).unwrap();
    assert_eq!((report.boots.len(), report.tasks, report.run.as_str()), (16, 1, "RUN"));
    let concerns = report.concerns();
    assert!(concerns.iter().any(|concern| concern.contains("cut off")), "{report:?}");
    std::fs::remove_file(bench.path(PROGRAM)).unwrap();
    assert!(super::report(&bench.roots).unwrap().problems[0].contains("gpufleet-keep is gone"));
}

#[test]
fn the_unit_comes_before_whatever_takes_notice_of_gpus() {
    let kept = document(5, 400, hold(&["slurmd.service", "my.service"]));
    let text = units::unit(&kept);
    let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let before: Vec<&str> = line("Before=").split(' ').collect();
    for unit in [
        "slurmd.service",
        "kubelet.service",
        "containerd.service",
        "nvidia-dcgm.service",
        "dcgm.service",
        "nvidia-dcgm-exporter.service",
        "my.service",
    ] {
        assert_eq!(before.iter().filter(|name| **name == unit).count(), 1, "{unit} in {before:?}");
    }
    assert!(line("After=").contains("nvidia-persistenced.service"));
    assert_eq!(line("TimeoutStartSec="), "510");
    assert!(units::drop_in("slurmd.service").contains("Restart=on-failure"));
    assert!(!units::drop_in("kubelet.service").contains("Restart=on"), "its own unit restarts it always");
}

proptest! {
    /// No change of a document, a key or a signature is taken for what was signed.
    #[test]
    fn one_changed_byte_is_refused(at in any::<prop::sample::Index>(), byte in 0x20u8..0x7f) {
        let sealed = signed(&document(5, 400, serve()), 1);
        let pin = Pin { key: sealed.seal.key.clone(), serial: 0 };
        prop_assert!(seal::check(&sealed, Some(&pin), Some(MACHINE)).is_ok());
        let text = serde_json::to_string(&sealed).unwrap();
        let mut bytes = text.clone().into_bytes();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        if let Ok(other) = serde_json::from_slice::<Sealed>(&bytes) {
            prop_assume!(other != sealed);
            prop_assert!(seal::check(&other, Some(&pin), Some(MACHINE)).is_err());
        }
    }
}
