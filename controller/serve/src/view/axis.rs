//! By what the heat map puts nodes into rows.
//!
//! Racks are groups of the inventory whose names differ in a number: `rack1`, `rack2`. Such a family is an axis where no
//! node is in two of its groups.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_history::NodeRow;

/// What makes a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Groups with this beginning and a number.
    Family(String),
    Group,
    Hardware,
    Driver,
}

/// Families that are offered.
const FAMILIES: usize = 8;

impl Axis {
    /// Returns its word in an address.
    pub(crate) fn word(&self) -> String {
        match self {
            Self::Family(name) => format!("groups:{name}"),
            Self::Group => "group".to_owned(),
            Self::Hardware => "hardware".to_owned(),
            Self::Driver => "driver".to_owned(),
        }
    }

    /// Returns its label for people.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Family(name) => name.trim_end_matches(['-', '_', '.']).to_owned(),
            axis => axis.word(),
        }
    }

    /// Returns the axes that these nodes have, the best one first.
    pub(crate) fn of(nodes: &[NodeRow]) -> Vec<Self> {
        let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut members: BTreeMap<&str, usize> = BTreeMap::new();
        let mut crossed: BTreeSet<&str> = BTreeSet::new();
        for node in nodes {
            let mut seen: BTreeSet<&str> = BTreeSet::new();
            for group in &node.groups {
                let Some(family) = family(group) else { continue };
                groups.entry(family).or_default().insert(group);
                *members.entry(family).or_default() += 1;
                if !seen.insert(family) {
                    crossed.insert(family);
                }
            }
        }
        let mut families: Vec<(&str, usize)> = groups
            .iter()
            .filter(|(family, groups)| groups.len() > 1 && !crossed.contains(*family))
            .map(|(family, _)| (*family, members.get(family).copied().unwrap_or(0)))
            .collect();
        let is_rack = |family: &str| family.to_ascii_lowercase().contains("rack");
        families
            .sort_by(|a, b| is_rack(b.0).cmp(&is_rack(a.0)).then(b.1.cmp(&a.1)).then_with(|| a.0.cmp(b.0)));
        families.truncate(FAMILIES);
        let racks = families.first().is_some_and(|(family, _)| is_rack(family));
        let named = families.into_iter().map(|(family, _)| Self::Family(family.to_owned()));
        let grouped = nodes.iter().any(|node| !node.groups.is_empty());
        let mut axes: Vec<Self> = named.collect();
        if grouped {
            axes.insert(usize::from(racks), Self::Group);
        }
        axes.extend([Self::Hardware, Self::Driver]);
        axes
    }

    /// Returns the rows that a node is in; none where it has nothing of this axis.
    pub(crate) fn rows<'a>(&self, node: &'a NodeRow) -> Vec<&'a str> {
        match self {
            Self::Family(wanted) => {
                let of_family = node.groups.iter().filter(|group| family(group) == Some(wanted));
                of_family.map(String::as_str).collect()
            }
            Self::Group => node.groups.iter().map(String::as_str).collect(),
            Self::Hardware => node.hardware.as_deref().into_iter().collect(),
            Self::Driver => node.driver.as_deref().into_iter().collect(),
        }
    }
}

/// Returns the part of a group's name before the number at its end.
fn family(group: &str) -> Option<&str> {
    let stem = group.trim_end_matches(|c: char| c.is_ascii_digit());
    (!stem.is_empty() && stem.len() < group.len()).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fleet::tests::node;

    fn words(nodes: &[NodeRow]) -> Vec<String> {
        Axis::of(nodes).iter().map(Axis::word).collect()
    }

    #[test]
    fn racks_come_first_where_there_are_some() {
        let nodes: Vec<NodeRow> = (0..6)
            .map(|at| {
                let mut node = node(&format!("gpu{at}"));
                node.groups =
                    vec!["training".to_owned(), format!("hall{}", at % 2), format!("rack-{}", at / 2)];
                node
            })
            .collect();
        assert_eq!(words(&nodes), ["groups:rack-", "group", "groups:hall", "hardware", "driver"]);
        let rack = Axis::Family("rack-".to_owned());
        assert_eq!((rack.label(), rack.rows(&nodes[5])), ("rack".to_owned(), vec!["rack-2"]));
    }

    #[test]
    fn a_family_with_a_node_in_two_of_its_groups_is_no_axis() {
        let mut nodes = [node("a"), node("b")];
        nodes[0].groups = vec!["wave1".to_owned(), "wave2".to_owned()];
        nodes[1].groups = vec!["wave2".to_owned()];
        assert_eq!(words(&nodes), ["group", "hardware", "driver"]);
        assert_eq!(words(&[node("alone")]), ["hardware", "driver"]);
    }
}
