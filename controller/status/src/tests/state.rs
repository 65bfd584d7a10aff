//! The rules by which a GPU is free, held or out of use.

use gpufleet_protocol::{
    signal::Signal,
    status::{GpuNow, Recent},
};
use proptest::prelude::*;

use super::{fleet, gpu, held, read, set, sliced, status};
use crate::{
    row::rows,
    state::{State, busy, judge},
    totals::{Totals, free_by_group},
};

fn state(change: impl FnOnce(&mut GpuNow)) -> State {
    let mut now = gpu(0);
    change(&mut now);
    judge(&now).0
}

fn unknown(now: &mut GpuNow, name: &str) {
    now.signals.readings.insert(name.to_owned(), Signal::Unknown("no permission".to_owned()));
}

#[test]
fn each_state_has_its_rule() {
    assert_eq!(state(|_| {}), State::Free);
    assert_eq!(state(|now| set(now, "lost_code", 15)), State::Lost);
    assert_eq!(state(|now| unknown(now, "lost_code")), State::Unknown);
    assert_eq!(state(|now| set(now, "remap_failed", 1)), State::Degraded);
    assert_eq!(state(|now| set(now, "remap_pending", 1)), State::Degraded);
    assert_eq!(state(|now| set(now, "recovery_action", 2)), State::Degraded);
    assert_eq!(state(|now| set(now, "drain_state", 1)), State::Drain);
    assert_eq!(state(|now| set(now, "compute_mode", 2)), State::Drain);
    assert_eq!(state(|now| set(now, "mem_used_mib", 256)), State::Free);
    // Held by something that NVML does not list, such as a process of another container.
    assert_eq!(state(|now| set(now, "mem_used_mib", 257)), State::IdleHeld);
    assert_eq!(state(|now| set(now, "process_count", 1)), State::IdleHeld);
    for name in ["process_count", "mem_used_mib", "mig_current"] {
        assert_eq!(state(|now| unknown(now, name)), State::Unknown, "{name}");
    }
}

#[test]
fn work_that_waits_is_told_from_work() {
    for (permille, peak, expected) in [
        (0, 0, State::IdleHeld),
        (50, 100, State::IdleHeld),
        (51, 79, State::Busy),
        (51, 80, State::Starved),
        (499, 100, State::Starved),
        (500, 100, State::Busy),
        (980, 100, State::Busy),
    ] {
        assert_eq!(judge(&held(0, permille, peak)).0, expected, "{permille} {peak}");
    }
    let mut brief = held(0, 0, 0);
    brief.recent = Some(Recent { span_ms: 4000, ..Recent::default() });
    assert_eq!(judge(&brief).0, State::Busy, "nothing is said of a moment");
    brief.recent = None;
    assert_eq!(judge(&brief).0, State::Busy);
}

#[test]
fn no_verdict_contradicts_the_power_of_the_gpu() {
    // An H200 in the second second of its job: nvidia-smi read 98 %, the samples of before it 18 %.
    let mut began = held(0, 180, 98);
    set(&mut began, "util_gpu", 98);
    for change in [("power_draw_w", 693), ("reasons", 4)] {
        let mut works = began.clone();
        set(&mut works, change.0, change.1);
        assert_eq!((judge(&works).0, busy(&works).unwrap().permille), (State::Busy, 980), "{change:?}");
        works.recent = Some(Recent { permille: 20, halves: [20; 2], peak: 98, span_ms: 9800 });
        assert_eq!(judge(&works).0, State::Busy, "{change:?}");
    }
    began.recent = Some(Recent { permille: 180, halves: [0, 360], peak: 98, span_ms: 9800 });
    assert_eq!(judge(&began).0, State::Busy, "its work began within the window");
    began.recent = Some(Recent { permille: 40, halves: [0, 80], peak: 98, span_ms: 9800 });
    assert_eq!(judge(&began).0, State::Busy, "idle is not said of a GPU that is at 98 % now");
    began.recent = Some(Recent { permille: 180, halves: [180; 2], peak: 98, span_ms: 9800 });
    began.held_ms = None;
    assert_eq!(judge(&began).0, State::Busy, "nobody knows whether the window is of what holds it");
    let mut short = held(0, 0, 0);
    short.recent = Some(Recent { span_ms: 2000, ..Recent::default() });
    short.held_ms = Some(2100);
    let (state, why) = judge(&short);
    assert_eq!((state, why.as_str()), (State::Busy, "its use is not judged: what holds it has just begun"));
}

#[test]
fn a_gpu_that_nothing_holds_is_as_busy_as_it_is_now() {
    let mut left = gpu(0);
    left.recent = Some(Recent { permille: 710, halves: [1000, 420], peak: 100, span_ms: 9800 });
    assert_eq!((judge(&left).0, busy(&left).unwrap().permille), (State::Free, 0));
}

#[test]
fn mig_instances_are_free_one_by_one() {
    assert_eq!(judge(&sliced(0, "1g.10gb", 7, 0)).0, State::Free);
    assert_eq!(judge(&sliced(0, "1g.10gb", 7, 2)).0, State::PartFree);
    assert_eq!(judge(&sliced(0, "1g.10gb", 7, 7)).0, State::Busy);
    assert_eq!(judge(&sliced(0, "1g.10gb", 0, 0)).0, State::NoSlices);
    let mut somewhere = sliced(0, "1g.10gb", 7, 1);
    somewhere.holders[0].instance = None;
    assert_eq!(judge(&somewhere).0, State::Busy, "which instance it holds is not known");
    let mut uncounted = sliced(0, "1g.10gb", 7, 1);
    set(&mut uncounted, "process_count", 2);
    assert_eq!(judge(&uncounted).0, State::Busy, "a process is missing from the list");
    let mut bare = sliced(0, "1g.10gb", 2, 0);
    bare.instances[0].ready = false;
    bare.instances[1].ready = false;
    assert_eq!(judge(&bare).0, State::NoSlices);
}

#[test]
fn what_is_free_adds_up() {
    let readings = fleet();
    let all: Vec<_> = readings.iter().flat_map(rows).collect();
    let totals = Totals::of(&all, readings.len());
    insta::assert_snapshot!(totals.text(), @"5 nodes (1 unknown), 9 GPUs: 1 lost, 1 idle-held, 1 starved, 3 busy, 1 part-free, 2 free; 38 % busy, 1907 W");
    insta::assert_snapshot!(totals.free.text(), @"1 whole, 5 MIG 1g.10gb, 1 MPS");
    let groups: Vec<String> =
        free_by_group(&all).into_iter().map(|(group, free)| format!("{group}: {}", free.text())).collect();
    insta::assert_snapshot!(groups.join("\n"), @r"
    rack1: 1 whole
    rack2: 5 MIG 1g.10gb, 1 MPS
    ");
}

#[test]
fn a_node_without_gpus_says_why() {
    let told = |node: serde_json::Value| {
        let mut reading = read("n", "g", Vec::new());
        let mut found = status(Vec::new());
        found.node = serde_json::from_value(node).unwrap();
        reading.heard = crate::Heard::Status(Box::new(found));
        let row = rows(&reading).remove(0);
        (row.state, row.why)
    };
    assert_eq!(told(serde_json::json!({"nvml_count": 0})).0, State::NoGpu);
    assert_eq!(told(serde_json::json!({"nvml_count": null})).0, State::NoGpu);
    assert_eq!(told(serde_json::json!({})).0, State::Unknown);
    // Not a node without GPUs: the driver lost them, or was never loaded.
    for count in [serde_json::json!(0), serde_json::Value::Null] {
        let lost = told(serde_json::json!({"nvml_count": count, "pci_count": 8}));
        assert_eq!((lost.0, lost.1.contains("8 GPUs are on the PCI bus")), (State::Unknown, true));
    }
    let hidden = told(serde_json::json!({"nvml_count": 0, "pci_count": 1, "excluded_count": 1}));
    assert_eq!(hidden.0, State::NoGpu);
    let hung = told(serde_json::json!({"nvml_count": {"unknown": "NVML did not answer"}}));
    assert_eq!(hung, (State::Unknown, "NVML did not answer".to_owned()));
}

#[test]
fn a_gpu_that_is_missing_from_the_list_is_a_line() {
    let mut found = status(vec![gpu(0)]);
    found.node.insert("nvml_count".to_owned(), 2.into());
    let reading = super::node("n", "g", crate::Heard::Status(Box::new(found)));
    let states: Vec<State> = rows(&reading).iter().map(|row| row.state).collect();
    assert_eq!(states, [State::Free, State::Unknown]);
}

proptest! {
    /// Whatever a reading lacks, a GPU is free only if its processes and its memory are known.
    #[test]
    fn nothing_unknown_is_free(lost in proptest::sample::subsequence(gpufleet_protocol::status::SHOWN.to_vec(), 1..6), absent: bool) {
        let mut now = gpu(0);
        for name in &lost {
            match absent {
                true => { now.signals.readings.remove(*name); }
                false => unknown(&mut now, name),
            }
        }
        let needed = ["lost_code", "process_count", "mem_used_mib"];
        if lost.iter().any(|name| needed.contains(name)) {
            prop_assert_ne!(judge(&now).0, State::Free);
        }
    }
}
