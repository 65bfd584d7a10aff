//! Nodes beside a play: hosts that `--limit` leaves out, and others of the scheduler in its failure domains. The play
//! does not touch them, but their outages count.
//!
//! Pure. Invariant: a budget in percent is that of the hosts that take part; what the others may have out by the same
//! share is theirs, and only what goes beyond it takes up the play's.

use std::collections::{BTreeMap, HashMap};

use crate::{
    engine::fleet::domains::Domains, event::PlayStarted, playbook::Play, report::fold_names, rollout::Amount,
};

#[derive(Default)]
pub(crate) struct Neighbours {
    /// Hosts, and behind them nodes that are no hosts here.
    pub(crate) names: Vec<String>,
    /// How many of them are hosts.
    hosts: usize,
    /// The failure domain of the play that each is in.
    domains: Vec<Option<usize>>,
    /// Outages of theirs that take up nothing.
    room: usize,
}

impl Neighbours {
    pub(crate) fn of(
        names: &[String],
        play: &Play,
        shape: &PlayStarted,
        max_unavailable: Amount,
        known: &Domains<'_>,
    ) -> Self {
        let place: HashMap<&str, usize> = (shape.policy.iter())
            .flat_map(|policy| policy.domains.iter().map(|domain| domain.name.as_str()).zip(0..))
            .collect();
        let domain = |name: &String| {
            let variable = play.policy.failure_domain.as_ref()?;
            place.get(known.of(variable, name)?.as_str()).copied()
        };
        let mut domains: Vec<Option<usize>> = names.iter().map(domain).collect();
        let everybody = max_unavailable.budget(shape.hosts.len() + names.len(), false).unwrap_or_default();
        let hosts = names.len();
        let mut names = names.to_vec();
        for (node, domain) in known.others() {
            if let Some(domain) = place.get(domain.as_str()) {
                names.push(node.clone());
                domains.push(Some(*domain));
            }
        }
        Self { names, hosts, domains, room: everybody.saturating_sub(shape.max_unavailable) }
    }

    /// What these (by their places) take up: of the budget, and of each failure domain.
    pub(crate) fn taken(&self, out: &[usize]) -> (usize, BTreeMap<usize, usize>) {
        let mut domains = BTreeMap::new();
        for domain in out.iter().filter_map(|place| self.domains.get(*place).copied().flatten()) {
            *domains.entry(domain).or_default() += 1;
        }
        // Why only hosts: the play's budget is about the inventory, a failure domain's about all that is in it.
        let hosts = out.iter().filter(|place| **place < self.hosts).count();
        (hosts.saturating_sub(self.room), domains)
    }

    /// These (by their places), with what they have to do with the play.
    pub(crate) fn named(&self, out: &[usize]) -> Vec<String> {
        let of = |hosts: bool| -> Vec<&str> {
            let these = out.iter().filter(|place| (**place < self.hosts) == hosts);
            these.filter_map(|place| self.names.get(*place)).map(String::as_str).collect()
        };
        let mut named = Vec::new();
        for (names, what) in [(of(true), "which --limit leaves out"), (of(false), "outside of the play")] {
            if !names.is_empty() {
                named.push(format!("{}, {what}", fold_names(&names)));
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        engine::ports::scheduler::Labelled,
        event::{DomainShape, PolicyShape},
        index::PlayIndex,
        interpreter::HostContext,
        playbook::Program,
        template::{Dict, Value},
    };

    const PLAY: &str = "- hosts: all\n  rollout: {failure_domain: rack}\n  tasks: []\n";

    /// Neighbours n1, n2, … in these racks, of a play over ten hosts in the racks a and b.
    fn neighbours(racks: &[&str], allowed: Amount) -> Neighbours {
        let (names, contexts) = hosts(racks);
        of(&names, allowed, &Domains::Variables(&contexts))
    }

    fn of(names: &[String], allowed: Amount, known: &Domains<'_>) -> Neighbours {
        let files: HashMap<String, String> = [("play.yml".to_owned(), PLAY.to_owned())].into();
        let program = Program::load(&["play.yml"], &files).unwrap();
        let domain = |name: &str| DomainShape { name: name.to_owned(), hosts: Vec::new() };
        let shape = PlayStarted {
            play: PlayIndex(0),
            name: String::new(),
            hosts: (0..10).map(|host| format!("h{host}")).collect(),
            waves: Vec::new(),
            max_unavailable: allowed.budget(10, false).unwrap(),
            policy: Some(PolicyShape { domains: vec![domain("a"), domain("b")], ..PolicyShape::default() }),
            work: None,
        };
        Neighbours::of(names, &program.plays[0], &shape, allowed, known)
    }

    fn hosts(racks: &[&str]) -> (Vec<String>, HashMap<String, Arc<HostContext>>) {
        let names: Vec<String> = (1..=racks.len()).map(|number| format!("n{number}")).collect();
        let context = |(name, rack): (&String, &&str)| {
            let mut vars = Dict::default();
            vars.insert("rack", Value::text(rack));
            let context = HostContext { vars: Arc::new(vars), ..HostContext::default() };
            (name.clone(), Arc::new(context))
        };
        let contexts = names.iter().zip(racks).map(context).collect();
        (names, contexts)
    }

    #[test]
    fn each_counts_for_its_rack() {
        let beside = neighbours(&["b", "c", "a", "b"], Amount::Count(1));
        assert_eq!(beside.taken(&[0, 1, 3]), (3, [(1, 2)].into()));
        assert_eq!(beside.taken(&[]), (0, BTreeMap::new()));
    }

    #[test]
    fn nodes_that_are_no_hosts_count_for_their_pool_alone() {
        let text = |list: &[(&str, &str)]| -> Vec<(String, String)> {
            list.iter().map(|(name, pool)| ((*name).to_owned(), (*pool).to_owned())).collect()
        };
        let labelled = Labelled {
            hosts: text(&[("n1", "a")]).into_iter().collect(),
            others: text(&[("x1", "b"), ("x2", "elsewhere"), ("x3", "b")]).into_iter().collect(),
        };
        let beside = of(&["n1".to_owned()], Amount::Count(1), &Domains::Labels(labelled));
        assert_eq!(beside.names, ["n1", "x1", "x3"]);
        assert_eq!(beside.taken(&[0, 1, 2]), (1, [(0, 1), (1, 2)].into()));
        assert_eq!(beside.taken(&[1]), (0, [(1, 1)].into()));
        assert_eq!(beside.named(&[0, 1, 2]), ["n1, which --limit leaves out", "x[1,3], outside of the play"]);
    }

    #[test]
    fn a_share_leaves_the_others_theirs() {
        // A tenth of thirty hosts is three, one of them the play's own.
        let beside = neighbours(&[""; 20], Amount::Percent(10.0));
        let taken = |count: usize| beside.taken(&(0..count).collect::<Vec<_>>()).0;
        assert_eq!([0, 1, 2, 3, 20].map(taken), [0, 0, 0, 1, 18]);
    }
}
