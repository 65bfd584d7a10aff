//! Counts the nodes that are out of service, for the fleet and for each failure domain.
//!
//! Invariant: the counts always match the marks. A change costs logarithmic time in the size of the fleet.

use std::collections::{BTreeMap, BTreeSet};

use super::Domains;

/// Number of nodes that a message names as being waited for.
const NAMED: usize = 16;

/// Why a host counts as out of service; several marks may be set at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Has a place of this run: draining, proving, out, or ended while out.
    pub(super) ours: bool,
    /// Has a place of this run, and will not come back in this play.
    pub(super) ended: bool,
    /// Has not answered yet: counts as out, but will not stay so.
    pub(super) late: bool,
    /// Out for a reason outside of this play, until an input says otherwise.
    pub(super) absent: bool,
    /// Out for a reason outside of this run, by the last survey.
    pub(super) surveyed: bool,
}

/// The numbers of one domain, or of the fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Hosts that are out, for any reason.
    pub(super) out: usize,
    /// Hosts that are out, and that this run will not bring back.
    pub(super) gone: usize,
    /// The same two without outages that only a survey reports.
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
    /// The last entry is for hosts without a domain.
    domains: Vec<Tally>,
    of: Vec<usize>,
    names: Vec<String>,
    limit: usize,
    fleet: Tally,
    surveyed: BTreeSet<usize>,
    out: BTreeSet<(usize, usize)>,
    elsewhere: usize,
    surveyed_elsewhere: usize,
    /// How many of these are in which domain.
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

    /// Stores a survey and returns the hosts that changed since the last one.
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

    /// Returns how many nodes of this domain may be out.
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

    /// Returns the numbers of the whole fleet, including nodes outside of the play.
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

    /// Returns what one host adds to the numbers of its domain and of the fleet.
    pub(super) fn share(&self, host: usize) -> Tally {
        self.marks(host).tally()
    }

    pub(super) fn all_out(&self) -> Vec<usize> {
        let mut out: Vec<usize> = self.out.iter().map(|(_, host)| *host).collect();
        out.sort_unstable();
        out
    }

    /// Returns some of the nodes that are out, for messages; those of a domain in order.
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
