use super::*;
use crate::samples::policy;
use crate::samples::{everything, node};
use crate::{fold, judge};

fn with(change: impl FnOnce(&mut Signals)) -> Signals {
    let mut signals = node();
    change(&mut signals);
    signals
}

fn put(signals: &mut Signals, name: &str, value: impl Into<Signal>) {
    let value = value.into();
    match crate::vocabulary::lookup(name).unwrap().0 {
        Scope::Node => drop(signals.node.insert(name.to_owned(), value)),
        Scope::Port => signals
            .ports
            .iter_mut()
            .for_each(|port| drop(port.readings.insert(name.to_owned(), value.clone()))),
        _ => {
            signals.gpus.iter_mut().for_each(|gpu| drop(gpu.readings.insert(name.to_owned(), value.clone())))
        }
    }
}

fn fleet(nodes: &[Signals]) -> Compared {
    let policy = everything();
    let peers: Vec<Peers> = nodes.iter().map(|signals| super::peers(&policy, signals, &[])).collect();
    compare(&peers)
}

fn told(compared: &Compared) -> String {
    let found = compared.findings.iter().flat_map(|(node, found)| {
        found.iter().map(move |it| {
            let read: Vec<String> = it
                .evidence
                .iter()
                .map(|(name, value)| format!("{name} {}", value.known().unwrap()))
                .collect();
            format!(
                "{node} {} [{}] {}: {} ({})",
                it.check.id,
                it.subject.label(),
                it.verdict,
                it.note,
                read.join(", ")
            )
        })
    });
    let mixed = compared.mixed.iter().map(|it| format!("mixed {}: {}", it.check, it.text));
    found.chain(mixed).collect::<Vec<_>>().join("\n")
}

#[test]
fn equal_nodes_have_no_outlier() {
    assert_eq!(told(&fleet(&vec![node(); 12])), "");
}

#[test]
fn one_among_many_is_told_of() {
    let mut nodes = vec![node(); 9];
    nodes.push(with(|it| put(it, "kernel", "6.5.0")));
    insta::assert_snapshot!(told(&fleet(&nodes)), @"9 os.kernel_version [] warn: another kernel than its peers run; 9 of 10 have 6.8.0-45-generic (kernel \"6.5.0\")");
}

#[test]
fn fewer_than_five_are_not_compared() {
    let nodes = [node(), node(), node(), with(|it| put(it, "kernel", "6.5.0"))];
    assert_eq!(told(&fleet(&nodes)), "");
}

#[test]
fn without_a_majority_the_group_is_mixed_once() {
    let mut nodes = vec![node(); 5];
    nodes.extend(vec![with(|it| put(it, "kernel", "6.5.0")); 5]);
    insta::assert_snapshot!(told(&fleet(&nodes)), @"mixed os.kernel_version: 10 nodes that are alike differ in `kernel`: 5 have 6.5.0, 5 have 6.8.0-45-generic");
}

#[test]
fn other_hardware_is_no_peer() {
    let mut nodes = vec![node(); 9];
    nodes.push(with(|it| {
        put(it, "name", "NVIDIA H100");
        put(it, "kernel", "6.5.0");
    }));
    assert_eq!(told(&fleet(&nodes)), "");
    let policy = everything();
    let mut peers: Vec<Peers> = (0..9).map(|_| super::peers(&policy, &node(), &[])).collect();
    let canary = with(|it| put(it, "kernel", "6.5.0"));
    peers.push(super::peers(&policy, &canary, &["canary"]));
    assert_eq!(told(&compare(&peers)), "", "nor is another group of the policy");
}

#[test]
fn what_is_not_known_is_compared_with_nothing() {
    let mut nodes = vec![node(); 9];
    nodes.push(with(|it| put(it, "kernel", Signal::Unknown("x".to_owned()))));
    nodes.push(with(|it| put(it, "kernel", Signal::Absent)));
    assert_eq!(told(&fleet(&nodes)), "");
}

/// One value for each comparison of the catalogue, and what its peers have.
#[test]
fn each_comparison_is_made() {
    let busy: &[(&str, Value)] = &[
        ("busy", true.into()),
        ("idle", false.into()),
        ("reasons", 0.into()),
        ("util_gpu", 95.into()),
        ("power_draw_w", 650.into()),
        ("sm_mhz", 1900.into()),
        ("temp_c", 60.into()),
    ];
    let idle: &[(&str, Value)] =
        &[("idle", true.into()), ("busy", false.into()), ("process_count", 0.into())];
    type Planted<'a> = (&'a str, &'a str, &'a [(&'a str, Value)], Value);
    let planted: &[Planted<'_>] = &[
        ("os.kernel_version", "kernel", &[], "6.5".into()),
        ("os.cpus", "cpus_online", &[], 32.into()),
        ("os.cpus", "memory_gib", &[], 900.into()),
        ("disk.count", "nvme_count", &[], 7.into()),
        ("sw.driver_version", "driver_version", &[], "570.1".into()),
        ("sw.vbios", "vbios", &[], "96.00".into()),
        ("sw.inforom", "inforom", &[], "G520".into()),
        ("inv.memory_size", "memory_total_mib", &[("memory_total_mib", 143_771.into())], 130_000.into()),
        ("cfg.mig_mode", "mig_current", &[], 1.into()),
        ("pcie.width", "pcie_width_max", &[], 8.into()),
        (
            "nvl.links",
            "nvl_active",
            &[("name", "NVIDIA A100 80GB PCIe".into()), ("nvl_count", 12.into()), ("nvl_active", 12.into())],
            8.into(),
        ),
        ("pcie.generation", "pcie_gen_max", &[], 4.into()),
        ("pcie.nic_width", "nic_width_max", &[], 8.into()),
        ("net.nic_firmware", "nic_fw", &[], "28.1".into()),
        ("net.ib_ports", "ib_up", &[], 0.into()),
        ("power.draw", "power_draw_w", idle, 190.into()),
        ("thermal.outlier", "temp_c", busy, 85.into()),
        ("clock.busy", "sm_mhz", busy, 1_200.into()),
    ];
    let mut made = std::collections::BTreeSet::new();
    for (check, name, all, odd) in planted {
        let usual = with(|it| all.iter().for_each(|(name, value)| put(it, name, value.clone())));
        let mut nodes = vec![usual.clone(); 19];
        assert_eq!(told(&fleet(&nodes)), "", "{check}");
        let mut other = usual;
        put(&mut other, name, odd.clone());
        nodes.push(other);
        let compared = fleet(&nodes);
        assert_eq!(compared.findings.keys().collect::<Vec<_>>(), [&19], "{check}: {name}");
        let found =
            compared.findings[&19].iter().any(|it| &*it.check.id == *check && it.verdict == Verdict::Warn);
        assert!(found, "{check}: {name}: {}", told(&compared));
        made.insert((check.to_string(), name.to_string()));
    }
    for check in Catalogue::get().checks() {
        for outlier in &check.outliers {
            let key = (check.id.to_string(), outlier.of.1.to_string());
            assert!(made.contains(&key), "{key:?} has no test");
        }
    }
}

#[test]
fn a_wide_spread_has_no_outlier() {
    let nodes: Vec<Signals> =
        (0..20).map(|index| with(|it| put(it, "memory_gib", 1_000 + index * 10))).collect();
    assert_eq!(told(&fleet(&nodes)), "");
}

#[test]
fn what_is_found_stands_beside_a_nodes_own_findings() {
    let policy = everything();
    let mut nodes = vec![node(); 9];
    nodes.push(with(|it| put(it, "pcie_width_max", 32)));
    let compared = fleet(&nodes);
    let mut findings = judge(&policy, &nodes[9]);
    let before = findings.len();
    merge(&mut findings, compared.findings[&9].clone());
    assert_eq!(findings.len(), before);
    let width: Vec<Verdict> =
        findings.iter().filter(|it| &*it.check.id == "pcie.width").map(|it| it.verdict).collect();
    // Half of its own lanes are worse than another number of lanes than others have.
    assert_eq!(width, [Verdict::Fail, Verdict::Fail]);
    let mut findings = judge(&policy, &node());
    let mut nodes = vec![node(); 9];
    nodes.push(with(|it| put(it, "vbios", "96.00")));
    merge(&mut findings, fleet(&nodes).findings.remove(&9).unwrap());
    assert_eq!(fold(&policy, &mut findings).verdict, Verdict::Warn);
}

#[test]
fn cards_of_another_kind_are_no_peers() {
    let mut nodes = vec![node(); 9];
    nodes.push(with(|it| {
        put(it, "nic_board", "MT_1");
        put(it, "nic_fw", "16.35");
    }));
    assert_eq!(told(&fleet(&nodes)), "");
}

/// Without history and without a declared number, only its group tells that a node should have GPUs.
#[test]
fn a_node_without_gpus_among_nodes_that_have_some_is_told() {
    let core = policy("core").for_node("x", &[]);
    let counted = |count: u32, policy: &NodePolicy| {
        let mut signals = node();
        signals.node.insert("pci_count".to_owned(), count.into());
        signals.node.insert("nvml_count".to_owned(), count.into());
        peers(policy, &signals, &[])
    };
    let (some, none) = (counted(8, &core), counted(0, &core));
    let group = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect::<BTreeSet<_>>();
    let h100 = group(&["a", "b", "c"]);
    let groups = || [("h100", &h100)].into_iter();
    let nodes = [("a", &some), ("b", &none), ("c", &some), ("login", &none)];
    let found = bare(&nodes, groups());
    assert_eq!(found.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(found[&1][0].verdict, Verdict::Fail);
    assert_eq!(
        &*found[&1][0].note,
        "neither the driver nor the PCI bus shows a GPU, and 2 of the 2 other nodes of the group `h100` have some; declare \
         `gpu_count: 0` if that is meant"
    );
    // A group of nodes without GPUs in which one has some, and a number that is declared.
    assert!(bare(&[("a", &none), ("b", &none), ("c", &some)], groups()).is_empty());
    let told = policy("extends: core\ndeclared: {gpu_count: 0}\n").for_node("x", &[]);
    assert!(bare(&[("a", &some), ("b", &counted(0, &told)), ("c", &some)], groups()).is_empty());
}
