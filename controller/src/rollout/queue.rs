//! The queue of hosts for a place: first come first served, in one line for each failure domain.
//!
//! Invariant: a domain is in `open` exactly if a host waits in it and it is not blocked, so that a full domain does
//! not slow down the others. Hosts that are out for other reasons wait in a line of their own, as they need no new
//! place.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) number: u64,
    /// Number of surveys requested before the ticket.
    pub(super) surveys: u64,
    /// When the ticket was taken.
    pub(super) at: Timestamp,
    domain: usize,
    counted: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Queue {
    next: u64,
    tickets: BTreeMap<usize, Ticket>,
    lines: BTreeMap<usize, BTreeSet<(u64, usize)>>,
    /// The first ticket number of each domain that is not blocked.
    open: BTreeSet<(u64, usize)>,
    blocked: BTreeSet<usize>,
    /// Tickets of hosts that are out already, for other reasons.
    counted: BTreeSet<(u64, usize)>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    pub(super) fn hosts(&self) -> Vec<usize> {
        let mut hosts: Vec<(u64, usize)> =
            self.tickets.iter().map(|(host, ticket)| (ticket.number, *host)).collect();
        hosts.sort_unstable();
        hosts.into_iter().map(|(_, host)| host).collect()
    }

    pub(super) fn ticket(&self, host: usize) -> Option<Ticket> {
        self.tickets.get(&host).copied()
    }

    pub(super) fn push(&mut self, host: usize, domain: usize, counted: bool, surveys: u64, at: Timestamp) {
        let ticket = Ticket { number: self.next, surveys, at, domain, counted };
        self.next += 1;
        self.tickets.insert(host, ticket);
        self.line_up(host, ticket);
    }

    pub(super) fn remove(&mut self, host: usize) {
        let Some(ticket) = self.tickets.remove(&host) else { return };
        self.leave_line(host, ticket);
    }

    /// Moves a host between the lines after a change of whether it is out for other reasons.
    pub(super) fn recount(&mut self, host: usize, counted: bool) {
        let Some(ticket) = self.tickets.get(&host).copied().filter(|ticket| ticket.counted != counted) else {
            return;
        };
        self.leave_line(host, ticket);
        let ticket = Ticket { counted, ..ticket };
        self.tickets.insert(host, ticket);
        self.line_up(host, ticket);
    }

    /// Sets whether the domain is full of nodes that will come back.
    pub(super) fn block(&mut self, domain: usize, blocked: bool) {
        let changed = if blocked { self.blocked.insert(domain) } else { self.blocked.remove(&domain) };
        if let Some((number, _)) = self.lines.get(&domain).and_then(BTreeSet::first).copied()
            && changed
        {
            if blocked {
                self.open.remove(&(number, domain));
            } else {
                self.open.insert((number, domain));
            }
        }
    }

    /// Returns the first host from a ticket number on that may get a place, and its number. `new` includes hosts that
    /// need a place.
    pub(super) fn candidate(&self, from: u64, new: bool) -> Option<(u64, usize)> {
        let counted = self.counted.range((from, 0)..).next().copied();
        let open = self.open.range((from, 0)..).next().filter(|_| new);
        let open = open.and_then(|(_, domain)| self.lines.get(domain)?.first().copied());
        match (counted, open) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn line_up(&mut self, host: usize, ticket: Ticket) {
        if ticket.counted {
            self.counted.insert((ticket.number, host));
            return;
        }
        self.change_line(ticket.domain, |line| {
            line.insert((ticket.number, host));
        });
    }

    fn leave_line(&mut self, host: usize, ticket: Ticket) {
        if ticket.counted {
            self.counted.remove(&(ticket.number, host));
            return;
        }
        self.change_line(ticket.domain, |line| {
            line.remove(&(ticket.number, host));
        });
    }

    fn change_line(&mut self, domain: usize, change: impl FnOnce(&mut BTreeSet<(u64, usize)>)) {
        let line = self.lines.entry(domain).or_default();
        let before = line.first().copied();
        change(line);
        let after = line.first().copied();
        if after.is_none() {
            self.lines.remove(&domain);
        }
        if before == after {
            return;
        }
        if let Some((number, _)) = before {
            self.open.remove(&(number, domain));
        }
        if let Some((number, _)) = after.filter(|_| !self.blocked.contains(&domain)) {
            self.open.insert((number, domain));
        }
    }
}
