//! The text that a person confirms before nodes are disturbed.

use std::collections::BTreeMap;

use gpufleet_protocol::Disruption;

use super::{Role, Style, count};
use crate::report::{RunModel, fold_names};

/// Returns the nodes that a forecast disturbs, by the highest disruption of each.
pub fn disrupted(model: &RunModel) -> BTreeMap<Disruption, Vec<String>> {
    let mut all: BTreeMap<Disruption, Vec<String>> = BTreeMap::new();
    for node in model.nodes() {
        if let Some(class) = node.disruption().filter(|class| class.needs_permit()) {
            all.entry(class).or_default().push(node.name.clone());
        }
    }
    all
}

/// Returns `7 nodes will reboot: gpu[001-007].`, the highest disruption first; `None` if no node is disturbed.
///
/// The caller adds the question.
pub fn confirm_text(disrupted: &BTreeMap<Disruption, Vec<String>>, style: &Style) -> Option<String> {
    let mut lines = Vec::new();
    for (class, hosts) in
        disrupted.iter().rev().filter(|(class, hosts)| class.needs_permit() && !hosts.is_empty())
    {
        let what = match class {
            Disruption::Reboot => "will reboot",
            Disruption::GpuReset => "will have GPUs reset",
            Disruption::Clients | Disruption::Live => "will have clients of their GPUs stopped",
        };
        let nodes = count(hosts.len(), "node");
        // Never cut, because a person agrees to this list.
        let names = fold_names(hosts);
        let nodes = style.paint(Role::Strong, nodes);
        lines.push(format!("{nodes} {}: {names}", style.disruption(*class, what)));
    }
    if lines.is_empty() { None } else { Some(lines.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first() {
        let hosts = |range: std::ops::Range<u32>| range.map(|n| format!("gpu{n:03}")).collect();
        let forecast = BTreeMap::from([
            (Disruption::Live, hosts(20..40)),
            (Disruption::GpuReset, hosts(10..12)),
            (Disruption::Reboot, hosts(1..8)),
        ]);
        insta::assert_snapshot!(confirm_text(&forecast, &Style::default()).unwrap(), @r"
        7 nodes will reboot: gpu[001-007]
        2 nodes will have GPUs reset: gpu[010,011]
        ");
        let live = BTreeMap::from([(Disruption::Live, hosts(1..3))]);
        assert_eq!(confirm_text(&live, &Style::default()), None);
    }
}
