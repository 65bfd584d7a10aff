//! A baseline from nodes that are known to be good: declares what all of them have.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpufleet_language::visible::visible;
use gpufleet_protocol::signal::{Readings, Signal, Signals};
use serde_json::{Value, json};

use crate::catalogue::Catalogue;
use crate::verdict::Scope;

/// Of a hundred nodes, how many must agree on a value before the others count as different from it.
const MAJORITY: usize = 80;
/// Different values that a comment shows.
const MOST_SHOWN: usize = 4;
/// Characters of a value that is learned: more than any version has.
const MOST_TEXT: usize = 200;

/// How a declared value follows from a reading.
#[derive(Clone, Copy)]
enum How {
    /// The reading itself.
    Same,
    /// A list of every value that the nodes have.
    All,
    /// What it gives; `None` where the reading declares nothing.
    By(fn(&Value) -> Option<Value>),
}

/// What can be learned: the declared name, and the reading that the check compares with it. Left out is what belongs to
/// one node or one job: UUIDs, cliques, locked clocks, the CUDA version that jobs need.
const LEARNED: &[(&str, Scope, &str, How)] = &[
    ("accounting", Scope::Gpu, "accounting", How::Same),
    ("compute_mode", Scope::Gpu, "compute_mode", How::Same),
    ("cpus", Scope::Node, "cpus_online", How::Same),
    ("dcgm", Scope::Node, "dcgm_state", How::By(runs)),
    ("driver_version", Scope::Node, "driver_version", How::Same),
    ("ecc", Scope::Gpu, "ecc_current", How::Same),
    ("fabric", Scope::Gpu, "fabric_state", How::By(|state| is(state, &json!(FABRIC_COMPLETED), json!(true)))),
    ("gpu_count", Scope::Node, "nvml_count", How::Same),
    ("gsp", Scope::Gpu, "gsp_mode", How::Same),
    // Nodes without such ports are as they are: nothing is declared then.
    (
        "ib_ports",
        Scope::Node,
        "ib_up",
        How::By(|count| Some(count.clone()).filter(|it| it.as_f64() > Some(0.0))),
    ),
    ("imex", Scope::Node, "imex_state", How::By(|state| is(state, &json!("READY"), json!(true)))),
    ("kernel", Scope::Node, "kernel", How::Same),
    ("memlock", Scope::Node, "memlock_limited", How::By(|count| is(count, &json!(0), json!("unlimited")))),
    ("memory_gib", Scope::Node, "memory_gib", How::Same),
    ("mig", Scope::Gpu, "mig_current", How::Same),
    (
        "mig_layout",
        Scope::Gpu,
        "mig_layout",
        How::By(|all| all.as_array().filter(|it| !it.is_empty()).map(|_| all.clone())),
    ),
    ("module_kind", Scope::Node, "module_kind", How::Same),
    ("mps", Scope::Node, "mps_state", How::By(runs)),
    ("nic_fw", Scope::Port, "nic_fw", How::All),
    ("numa_balancing", Scope::Node, "numa_balancing", How::Same),
    ("nvlink_mbps", Scope::Gpu, "nvl_speed_min", How::Same),
    ("nvlinks", Scope::Gpu, "nvl_active", How::Same),
    ("nvme", Scope::Node, "nvme_count", How::Same),
    (
        "persistence",
        Scope::Node,
        "persistenced",
        How::By(|state| is(state, &json!("running"), json!("daemon"))),
    ),
    ("power_w", Scope::Gpu, "power_limit_w", How::Same),
    ("swap", Scope::Node, "swap_kib", How::By(|kib| Some(json!(kib.as_f64()? > 0.0)))),
    ("swappiness", Scope::Node, "swappiness", How::Same),
    ("thp", Scope::Node, "thp", How::All),
    ("vbios", Scope::Gpu, "vbios", How::All),
];

/// `nvmlGpuFabricState_t` of a GPU that has joined its fabric (nvml.h).
const FABRIC_COMPLETED: u64 = 3;

/// That a service does not run may not be meant: nothing is declared then.
fn runs(state: &Value) -> Option<Value> {
    is(state, &json!("running"), json!(true))
}

fn is(value: &Value, wanted: &Value, gives: Value) -> Option<Value> {
    (value == wanted).then_some(gives)
}

/// What some good nodes have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    pub declared: BTreeMap<&'static str, Value>,
    /// What was not learned, with why.
    pub left_out: BTreeMap<&'static str, String>,
    /// Nodes that differ from most others, with how.
    pub different: Vec<(String, String)>,
}

/// Declares every value that at least 80 of 100 nodes have, by the readings of each node under its name.
pub fn learn(nodes: &[(&str, &Signals)]) -> Learned {
    let mut learned = Learned::default();
    for (name, scope, signal, how) in LEARNED {
        let mut votes: Vec<(Value, Vec<&str>)> = Vec::new();
        let mut unread: Option<(&str, &str)> = None;
        for (node, signals) in nodes {
            for reading in readings(signals, *scope).filter_map(|readings| readings.get(*signal)) {
                let value = match reading {
                    Signal::Known(value) => value,
                    Signal::Absent => continue,
                    Signal::Unknown(why) => {
                        unread.get_or_insert((node, why));
                        continue;
                    }
                };
                let value = match how {
                    How::By(by) => by(value),
                    How::Same | How::All => Some(value.clone()),
                };
                let Some(value) = value.filter(is_short) else { continue };
                match votes.iter_mut().find(|(known, _)| *known == value) {
                    Some((_, voters)) if voters.last() == Some(node) => {}
                    Some((_, voters)) => voters.push(node),
                    None => votes.push((value, vec![node])),
                }
            }
        }
        votes.sort_by_key(|(_, voters)| std::cmp::Reverse(voters.len()));
        if let Some((node, why)) = unread {
            learned.left_out.insert(name, format!("{signal} of {node} could not be read: {why}"));
        } else if matches!(how, How::All) && !votes.is_empty() {
            learned.declared.insert(name, votes.into_iter().map(|(value, _)| value).collect());
        } else {
            decide(&mut learned, name, &votes, nodes.len());
        }
    }
    learned
}

/// Takes the value of most nodes.
fn decide(learned: &mut Learned, name: &'static str, votes: &[(Value, Vec<&str>)], nodes: usize) {
    let Some(((value, voters), others)) = votes.split_first() else { return };
    let all: std::collections::BTreeSet<&&str> = votes.iter().flat_map(|(_, voters)| voters).collect();
    // GPUs of one node that differ vote twice, and can then make no majority of it.
    let several = voters.iter().any(|node| others.iter().any(|(_, voters)| voters.contains(node)));
    // Nodes that lack it have a vote too: what half of them lack is not to be declared of all.
    let lack = nodes - all.len();
    if several || voters.len() * 100 < nodes * MAJORITY {
        let shown =
            votes.iter().take(MOST_SHOWN).map(|(value, voters)| format!("{value} on {}", voters.len()));
        let more = if votes.len() > MOST_SHOWN { ", …" } else { "" };
        let lacking = if lack > 0 { format!(", none on {lack}") } else { String::new() };
        let shown = shown.collect::<Vec<_>>().join(", ");
        let text = format!("no value is on 80 of 100 nodes: {shown}{more}{lacking}");
        learned.left_out.insert(name, text);
        return;
    }
    learned.declared.insert(name, value.clone());
    for (other, nodes) in others {
        let text = format!("{name} is {other}, and {value} on most nodes");
        learned.different.extend(nodes.iter().map(|node| ((*node).to_owned(), text.clone())));
    }
}

fn readings(signals: &Signals, scope: Scope) -> impl Iterator<Item = &Readings> {
    let of = |wanted: Scope| (scope == wanted).then_some(());
    let node = of(Scope::Node).map(|()| &signals.node);
    let gpus = of(Scope::Gpu).into_iter().flat_map(|()| signals.gpus.iter().map(|gpu| &gpu.readings));
    let ports = of(Scope::Port).into_iter().flat_map(|()| signals.ports.iter().map(|port| &port.readings));
    node.into_iter().chain(gpus).chain(ports)
}

/// Whether a value can be one of a file: nodes may say anything.
fn is_short(value: &Value) -> bool {
    value.to_string().chars().count() <= MOST_TEXT
}

impl Learned {
    /// Returns the file of a baseline. `name` and `extends` are words of the user, `origin` says where it comes from.
    pub fn file(&self, name: &str, extends: &str, origin: &str) -> String {
        // Every JSON value is one of YAML, and nothing in it can end its line.
        let quoted = |text: &str| Value::from(visible(text)).to_string();
        let mut out =
            format!("# {}\nname: {}\nextends: {}\ndeclared:", visible(origin), quoted(name), quoted(extends));
        if self.declared.is_empty() {
            out.push_str(" {}");
        }
        out.push('\n');
        for (name, value) in &self.declared {
            let _ = writeln!(out, "  {name}: {}", visible(&value.to_string()));
        }
        // Not every baseline asks for what compares with them, and a declared value that nothing judges says nothing.
        let _ = writeln!(out, "checks: [{}]", self.checks().collect::<Vec<_>>().join(", "));
        for (name, why) in &self.left_out {
            let _ = writeln!(out, "# not declared: {name}. {}", visible(why));
        }
        for (node, how) in &self.different {
            let _ = writeln!(out, "# {} differs: {}", visible(node), visible(how));
        }
        out
    }
}

impl Learned {
    /// Returns the checks that compare readings with what was learned.
    fn checks(&self) -> impl Iterator<Item = &'static str> {
        Catalogue::get()
            .checks()
            .iter()
            .filter(|check| {
                let codes = check.rules.iter().map(|rule| &rule.when).chain(&check.na_when);
                codes.flat_map(|code| &code.declared).any(|name| self.declared.contains_key(&**name))
            })
            .map(|check| &*check.id)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_language::diagnostic::SourceFile;
    use proptest::prelude::*;

    use super::*;
    use crate::baseline::{self, Choice, GroupHint};
    use crate::samples::{node, told};
    use crate::{declared, fold, judge, vocabulary};

    fn policy(text: &str) -> crate::Policy {
        let choice = Choice::File(SourceFile::new("learned.yaml", text));
        baseline::load(&[choice], &|_| GroupHint::Known)
            .unwrap_or_else(|errors| panic!("{errors}\n{text}"))
            .policy
    }

    #[test]
    fn what_is_learned_can_be_declared_and_is_read() {
        for (name, scope, signal, _) in LEARNED {
            assert!(declared::lookup(name).is_some(), "{name}");
            assert_eq!(vocabulary::lookup(signal).map(|(scope, _)| scope), Some(*scope), "{signal}");
        }
    }

    #[test]
    fn a_node_is_as_its_own_baseline_declares_and_another_is_not() {
        let good = node();
        let text = learn(&[("gpu001", &good)]).file("good", "core", "Learned from gpu001.");
        insta::assert_snapshot!(text, @r#"
        # Learned from gpu001.
        name: "good"
        extends: "core"
        declared:
          accounting: 0
          compute_mode: 0
          cpus: 64
          dcgm: true
          driver_version: "580.159.04"
          ecc: 1
          fabric: true
          gpu_count: 2
          gsp: 1
          ib_ports: 1
          imex: true
          kernel: "6.8.0-45-generic"
          memlock: "unlimited"
          memory_gib: 1000
          mig: 0
          module_kind: "open"
          nic_fw: ["28.39.1002"]
          numa_balancing: 0
          nvlink_mbps: 26562
          nvlinks: 18
          nvme: 0
          persistence: "daemon"
          power_w: 700
          swap: false
          swappiness: 0
          thp: ["madvise"]
          vbios: ["x"]
        checks: [inv.gpu_count, mem.ecc_mode, mem.ecc_pending, nvl.links, nvl.speed, nvl.fabric_state, nvl.imex, power.limit, cfg.persistence, cfg.mig_mode, cfg.mig_pending, cfg.compute_mode, cfg.accounting, sw.driver_loaded, sw.driver_version, sw.gsp, sw.vbios, sw.module_kind, sw.persistenced, sw.dcgm, net.ib_ports, net.nic_firmware, os.kernel_version, os.cpus, os.thp, os.numa_balancing, os.swap, os.limits, disk.count]
        "#);
        let policy = policy(&text).for_node("gpu001", &[]);
        let mut findings = judge(&policy, &good);
        assert_eq!(told(&findings), "");
        assert!(fold(&policy, &mut findings).compliant);
        let mut drifted = good;
        drifted.node.insert("swappiness".to_owned(), 60.into());
        drifted.gpus[1].readings.insert("power_limit_w".to_owned(), 600.into());
        let told = told(&judge(&policy, &drifted));
        assert!(told.contains("power.limit [GPU 1] drift") && told.contains("os.swap"), "{told}");
    }

    #[test]
    fn most_nodes_decide_and_the_others_are_named() {
        let usual = node();
        let mut other = node();
        other.node.insert("kernel".to_owned(), "6.9\n# evil: 1".into());
        let mut nodes: Vec<(&str, &Signals)> = vec![("odd", &other)];
        nodes.extend(["a", "b", "c", "d"].map(|name| (name, &usual)));
        let learned = learn(&nodes);
        assert_eq!(learned.declared["kernel"], usual.node["kernel"].known().unwrap().clone());
        assert_eq!(learned.different.len(), 1);
        let text = learned.file("x", "core", "y");
        assert!(text.contains("# odd differs: kernel is \"6.9\\n# evil: 1\", and"), "{text}");
        // Two of four are no majority.
        let learned = learn(&[("a", &usual), ("b", &other)]);
        assert!(!learned.declared.contains_key("kernel"));
        assert!(learned.left_out["kernel"].starts_with("no value is on 80 of 100 nodes"));
    }

    #[test]
    fn what_could_not_be_read_is_not_declared() {
        let mut hung = node();
        hung.node.insert("swappiness".to_owned(), Signal::Unknown("permission denied".to_owned()));
        let learned = learn(&[("a", &node()), ("b", &hung)]);
        assert!(!learned.declared.contains_key("swappiness"));
        assert_eq!(learned.left_out["swappiness"], "swappiness of b could not be read: permission denied");
    }

    #[test]
    fn what_half_of_the_nodes_lack_is_not_declared() {
        let mut bare = node();
        bare.node.insert("imex_state".to_owned(), Signal::Absent);
        let learned = learn(&[("a", &node()), ("b", &bare)]);
        assert!(!learned.declared.contains_key("imex"));
        assert_eq!(learned.left_out["imex"], "no value is on 80 of 100 nodes: true on 1, none on 1");
    }

    /// Of boards with bridges nobody else knows how many links are meant.
    #[test]
    fn the_number_of_links_is_learned_from_boards_with_bridges() {
        let bridged = |active: u32| {
            let mut node = node();
            for gpu in &mut node.gpus {
                gpu.readings.insert("name".to_owned(), "NVIDIA H100 NVL".into());
                gpu.readings.insert("nvl_active".to_owned(), active.into());
            }
            node
        };
        let learned = learn(&[("a", &bridged(12)), ("b", &bridged(12))]);
        assert_eq!(learned.declared["nvlinks"], json!(12));
        let policy = policy(&learned.file("site", "core", "Learned from a and b.")).for_node("a", &[]);
        assert_eq!(told(&judge(&policy, &bridged(12))), "");
        let fewer = told(&judge(&policy, &bridged(11)));
        assert!(
            fewer.contains("nvl.links [GPU 1] fail reset: fewer links are up than are declared"),
            "{fewer}"
        );
        // None is a number too.
        assert_eq!(learn(&[("a", &bridged(0))]).declared["nvlinks"], json!(0));
    }

    #[test]
    fn gpus_of_one_node_that_differ_declare_nothing() {
        let mut mixed = node();
        mixed.gpus[1].readings.insert("power_limit_w".to_owned(), 600.into());
        assert!(!learn(&[("a", &mixed)]).declared.contains_key("power_w"));
    }

    proptest! {
        /// Whatever a node says, the file is one that can be read.
        #[test]
        fn a_learned_file_is_a_baseline(text in ".{0,40}", number in any::<f64>(), name in ".{0,20}") {
            let mut odd = node();
            odd.node.insert("driver_version".to_owned(), text.as_str().into());
            odd.node.insert("thp".to_owned(), text.as_str().into());
            odd.node.insert("cpus_online".to_owned(), json!(number).into());
            let learned = learn(&[(&name, &odd)]);
            policy(&learned.file(&name, "core", &text));
        }
    }
}
