//! Who is out of service, counted for the fleet and for each failure domain.
//!
//! Invariant: the counts are those of the marks; each change costs the logarithm of the fleet.

use std::collections::{BTreeMap, BTreeSet};

use super::Domains;

/// Nodes named to a person who waits for them.
const NAMED: usize = 16;

/// Why a host counts as out of service; several may hold at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Takes a place of ours: draining, proving, out, or ended while out.
    pub(super) ours: bool,
    /// Ours, and it will not come back in this play.
    pub(super) ended: bool,
    /// Not heard of yet: out as far as anybody knows, and that will end.
    pub(super) late: bool,
    /// Out through others until we are told otherwise.
    pub(super) absent: bool,
    /// Out through others by the last survey.
    pub(super) surveyed: bool,
}

/// One domain's numbers, or the fleet's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Out, whoever took it out.
    pub(super) out: usize,
    /// Out, and no wait of ours brings it back.
    pub(super) gone: usize,
    /// The same two without what only a survey says.
    pub(super) known_out: usize,
    pub(super) known_gone: usize,
}

impl Marks {
    fn tally(self) -> Tally {
        let active = (self.ours && !self.ended) || self.late;
        let known = self.ours || self.absent || self.late;
        let all = known || self.surveyed;
        Tally {
            out: usize::from(all),
            gone: usize::from(all && !active),
            known_out: usize::from(known),
            known_gone: usize::from(known && !active),
        }
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.out += other.out;
        self.gone += other.gone;
        self.known_out += other.known_out;
        self.known_gone += other.known_gone;
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self {
            out: self.out.saturating_sub(other.out),
            gone: self.gone.saturating_sub(other.gone),
            known_out: self.known_out.saturating_sub(other.known_out),
            known_gone: self.known_gone.saturating_sub(other.known_gone),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Places {
    marks: Vec<Marks>,
    /// The last one is for hosts without a domain.
    domains: Vec<Tally>,
    of: Vec<usize>,
    names: Vec<String>,
    limit: usize,
    fleet: Tally,
    surveyed: BTreeSet<usize>,
    out: BTreeSet<(usize, usize)>,
    elsewhere: usize,
    surveyed_elsewhere: usize,
    /// Of these, how many are in which domain.
    domains_elsewhere: BTreeMap<usize, usize>,
}

impl Places {
    pub(super) fn new(hosts: usize, domains: Option<Domains>) -> Self {
        let Domains { of, names, limit } = domains.unwrap_or_default();
        let none = names.len();
        let of = (0..hosts).map(|host| of.get(host).copied().unwrap_or(none).min(none)).collect();
        Self {
            marks: vec![Marks::default(); hosts],
            domains: vec![Tally::default(); none + 1],
            of,
            names,
            limit,
            fleet: Tally::default(),
            surveyed: BTreeSet::new(),
            out: BTreeSet::new(),
            elsewhere: 0,
            surveyed_elsewhere: 0,
            domains_elsewhere: BTreeMap::new(),
        }
    }

    pub(super) fn marks(&self, host: usize) -> Marks {
        self.marks.get(host).copied().unwrap_or_default()
    }

    pub(super) fn mark(&mut self, host: usize, change: impl FnOnce(&mut Marks)) {
        let domain = self.domain(host);
        let Some(marks) = self.marks.get_mut(host) else { return };
        let before = marks.tally();
        change(marks);
        let after = marks.tally();
        self.fleet = self.fleet.without(before);
        self.fleet.add(after);
        if let Some(tally) = self.domains.get_mut(domain) {
            *tally = tally.without(before);
            tally.add(after);
        }
        if after.out > 0 {
            self.out.insert((domain, host));
        } else {
            self.out.remove(&(domain, host));
        }
        if marks.surveyed {
            self.surveyed.insert(host);
        } else {
            self.surveyed.remove(&host);
        }
    }

    /// Hosts whose word in this survey differs from the last one's.
    pub(super) fn survey(
        &mut self,
        out: &BTreeSet<usize>,
        elsewhere: usize,
        domains: BTreeMap<usize, usize>,
    ) -> Vec<usize> {
        (self.surveyed_elsewhere, self.domains_elsewhere) = (elsewhere, domains);
        let changed: Vec<usize> = self.surveyed.symmetric_difference(out).copied().collect();
        for host in &changed {
            self.mark(*host, |marks| marks.surveyed = !marks.surveyed);
        }
        changed
    }

    pub(super) fn set_elsewhere(&mut self, nodes: usize) {
        self.elsewhere = nodes;
    }

    pub(super) fn elsewhere(&self) -> usize {
        self.elsewhere
    }

    pub(super) fn domain(&self, host: usize) -> usize {
        self.of.get(host).copied().unwrap_or(self.names.len())
    }

    pub(super) fn domain_name(&self, domain: usize) -> String {
        self.names.get(domain).cloned().unwrap_or_default()
    }

    /// Nodes of this domain that may be out.
    pub(super) fn limit(&self, domain: usize) -> usize {
        if domain < self.names.len() { self.limit } else { usize::MAX }
    }

    pub(super) fn domain_tally(&self, domain: usize) -> Tally {
        let mut tally = self.domains.get(domain).copied().unwrap_or_default();
        let elsewhere = self.domains_elsewhere.get(&domain).copied().unwrap_or_default();
        tally.out += elsewhere;
        tally.gone += elsewhere;
        tally
    }

    /// Of the whole fleet, nodes that are not in the play included.
    pub(super) fn fleet_tally(&self) -> Tally {
        let mut tally = self.fleet;
        let surveyed = self.surveyed_elsewhere;
        tally.add(Tally {
            out: self.elsewhere + surveyed,
            gone: self.elsewhere + surveyed,
            known_out: self.elsewhere,
            known_gone: self.elsewhere,
        });
        tally
    }

    /// What one host adds to both.
    pub(super) fn share(&self, host: usize) -> Tally {
        self.marks(host).tally()
    }

    pub(super) fn all_out(&self) -> Vec<usize> {
        let mut out: Vec<usize> = self.out.iter().map(|(_, host)| *host).collect();
        out.sort_unstable();
        out
    }

    /// Some of those out, for a person; those of one domain first to last.
    pub(super) fn named(&self, domain: Option<usize>, asking: usize) -> Vec<usize> {
        let first = domain.unwrap_or(0);
        let mut out: Vec<usize> = self
            .out
            .range((first, 0)..)
            .take_while(|(of, _)| domain.is_none_or(|domain| *of == domain))
            .map(|(_, host)| *host)
            .filter(|host| *host != asking)
            .take(NAMED)
            .collect();
        out.sort_unstable();
        out
    }
}
