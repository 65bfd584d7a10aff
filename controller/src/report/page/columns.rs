//! Groups of nodes: those of the inventory, or else the classes of hardware; and which of them are columns of the matrix.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
};

use super::super::RunModel;

/// Columns of the matrix, the last one for all other nodes included.
const MOST_COLUMNS: usize = 10;
/// Groups that the page knows; an inventory with more has the largest of them.
const MOST_GROUPS: usize = 400;
/// What stands for nodes of no column. No inventory has a group of this name.
const OTHERS: &str = "(others)";

/// Nodes by their place in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub name: String,
    pub nodes: Vec<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    /// By name.
    pub all: Vec<Group>,
    /// No node is in two of them, and every node is in one.
    pub columns: Vec<Group>,
}

impl Groups {
    pub(super) fn of(model: &RunModel) -> Self {
        let total = model.nodes().len();
        let mut all = of_inventory(model);
        if all.is_empty() {
            all = of_hardware(model);
        }
        let columns = columns(&all, total);
        // Nodes of no column can be asked for too.
        all.extend(columns.iter().filter(|column| column.name == OTHERS).cloned());
        Self { all, columns }
    }

    /// Returns the column of each node.
    pub(super) fn column_of(&self) -> HashMap<usize, usize> {
        let each = |(at, column): (usize, &Group)| {
            column.nodes.iter().map(move |node| (*node, at)).collect::<Vec<_>>()
        };
        self.columns.iter().enumerate().flat_map(each).collect()
    }

    /// Returns the groups of each node, as places in [`Self::all`].
    pub(super) fn by_node(&self, total: usize) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new(); total];
        for (at, group) in self.all.iter().enumerate() {
            for node in &group.nodes {
                if let Some(groups) = all.get_mut(*node) {
                    groups.push(at);
                }
            }
        }
        all
    }
}

/// The groups of the inventory that tell nodes apart: those of all nodes and those of the same nodes as another do not.
fn of_inventory(model: &RunModel) -> Vec<Group> {
    let Some(run) = &model.run else { return Vec::new() };
    let places: HashMap<&str, usize> =
        model.nodes().iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
    let mut known: HashSet<Vec<usize>> = HashSet::new();
    let mut all: Vec<Group> = Vec::new();
    for (name, hosts) in &run.groups {
        let mut nodes: Vec<usize> =
            hosts.iter().filter_map(|host| places.get(host.as_str()).copied()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if !nodes.is_empty() && nodes.len() < places.len() && known.insert(nodes.clone()) {
            all.push(Group { name: name.clone(), nodes });
        }
    }
    if all.len() > MOST_GROUPS {
        all.sort_by_key(|group| Reverse(group.nodes.len()));
        all.truncate(MOST_GROUPS);
        all.sort_by(|one, other| one.name.cmp(&other.name));
    }
    all
}

fn of_hardware(model: &RunModel) -> Vec<Group> {
    let mut classes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, node) in model.nodes().iter().enumerate() {
        let class = node.hardware().unwrap_or_else(|| "hardware not known".to_owned());
        classes.entry(class).or_default().push(at);
    }
    if classes.len() < 2 {
        return Vec::new();
    }
    classes.into_iter().take(MOST_GROUPS).map(|(name, nodes)| Group { name, nodes }).collect()
}

/// Chooses groups that share no node: the largest first, because these are the fewest.
fn columns(all: &[Group], total: usize) -> Vec<Group> {
    let mut taken: HashSet<usize> = HashSet::new();
    let mut columns: Vec<Group> = Vec::new();
    let mut by_size: Vec<&Group> = all.iter().collect();
    by_size.sort_by_key(|group| Reverse(group.nodes.len()));
    for group in by_size {
        let whole = taken.len() == total;
        // One place is kept for all others.
        if !whole && columns.len() + 1 < MOST_COLUMNS && group.nodes.iter().all(|node| !taken.contains(node))
        {
            taken.extend(&group.nodes);
            columns.push(group.clone());
        }
    }
    columns.sort_by(|one, other| one.name.cmp(&other.name));
    let others: Vec<usize> = (0..total).filter(|node| !taken.contains(node)).collect();
    if columns.is_empty() {
        return vec![Group { name: "all nodes".to_owned(), nodes: others }];
    }
    if !others.is_empty() {
        columns.push(Group { name: OTHERS.to_owned(), nodes: others });
    }
    columns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(name: &str, nodes: impl IntoIterator<Item = usize>) -> Group {
        Group { name: name.to_owned(), nodes: nodes.into_iter().collect() }
    }

    fn names(columns: &[Group]) -> Vec<&str> {
        columns.iter().map(|column| column.name.as_str()).collect()
    }

    #[test]
    fn the_fewest_groups_that_share_no_node_are_columns() {
        let racks = (0..20).map(|rack| group(&format!("rack{rack:02}"), rack * 5..rack * 5 + 5));
        let mut all: Vec<Group> = racks.collect();
        assert_eq!(columns(&all, 100).len(), MOST_COLUMNS);
        assert_eq!(columns(&all, 100).last().unwrap(), &group(OTHERS, 45..100));
        all.extend([group("training", 0..60), group("inference", 60..90)]);
        assert_eq!(names(&columns(&all, 100)), ["inference", "rack18", "rack19", "training"]);
        assert_eq!(columns(&[], 3), [group("all nodes", 0..3)]);
    }

    proptest! {
        #[test]
        fn every_node_is_in_one_column(groups in prop::collection::vec(prop::collection::btree_set(0_usize..30, 1..30), 0..40)) {
            let all: Vec<Group> =
                groups.into_iter().enumerate().map(|(at, nodes)| group(&at.to_string(), nodes)).collect();
            let columns = columns(&all, 30);
            let mut nodes: Vec<usize> = columns.iter().flat_map(|column| column.nodes.clone()).collect();
            nodes.sort_unstable();
            prop_assert_eq!(nodes, (0..30).collect::<Vec<_>>());
            prop_assert!(columns.len() <= MOST_COLUMNS);
        }
    }
}
