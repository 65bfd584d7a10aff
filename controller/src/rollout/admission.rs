//! Decides which node may be taken out of service next, and which never.
//!
//! Invariants: each host that is queued at the end of a step waits for a node of this run that will come back, for a
//! survey that is requested now or at the next alarm, or for the window to open. No host is denied because of outages
//! that only surveys report, unless they were reported for the policy's patience and still are.

use gpufleet_protocol::Disruption;
use jiff::{SignedDuration, Timestamp};

use super::{Action, Denial, Rollout, host::Host};

enum Decision {
    Claim,
    Deny(Denial),
    Wait,
    /// Depends on which other nodes are out, and that information is too old.
    Ask,
    /// Prevented by others' outages, which may be over at the next survey, at `until`.
    Hope {
        /// The domain whose limit they fill; `None` for the fleet's.
        domain: Option<usize>,
        until: Timestamp,
    },
}

impl Rollout {
    /// Gives places in the budget to waiting hosts, first come first served among those that fit.
    pub(super) fn serve_queue(&mut self, actions: &mut Vec<Action>) {
        self.again = None;
        if self.places.fleet_tally().gone < self.policy.budget {
            self.patience.end(None);
        }
        if self.queue.is_empty() {
            return;
        }
        if let Some(reason) = self.stop.clone() {
            for host in self.queue.hosts() {
                self.deny(host, Denial::Stopped { reason: reason.clone() }, actions);
            }
            return;
        }
        if !self.has_opened() {
            return;
        }
        self.deny_latecomers(actions);
        self.deny_where_all_is_spent(actions);
        let (mut from, mut ask) = (0, false);
        loop {
            let room = self.places.fleet_tally().known_out < self.policy.budget;
            let Some((number, host)) = self.queue.candidate(from, room) else { break };
            from = number + 1;
            match self.decide(host) {
                Decision::Claim => {
                    if let Some(Host::Queued { class }) = self.hosts.get(host).copied() {
                        self.queue.remove(host);
                        self.unannounced.remove(&host);
                        self.claim(host, class, actions);
                    }
                }
                Decision::Deny(why) => self.deny(host, why, actions),
                Decision::Wait => {}
                Decision::Hope { domain, until } => {
                    self.patience.begin(domain, self.now);
                    self.again = Some(self.again.map_or(until, |again| again.min(until)));
                }
                // Later hosts need a survey that is at least as recent.
                Decision::Ask => {
                    ask = true;
                    break;
                }
            }
        }
        if ask {
            if self.surveys.ask(self.now) {
                actions.push(Action::Survey);
            }
        } else {
            self.announce(actions);
        }
    }

    pub(super) fn is_full_for(&self, host: usize) -> bool {
        self.has_opened() && matches!(self.decide(host), Decision::Wait)
    }

    fn decide(&self, host: usize) -> Decision {
        let share = self.places.share(host);
        let domain = self.places.domain(host);
        let (budget, limit) = (self.policy.budget, self.places.limit(domain));
        let fleet = self.places.fleet_tally().without(share);
        let own = self.places.domain_tally(domain).without(share);
        let spent = |in_domain: bool| {
            Decision::Deny(if in_domain {
                let (domain, out) = (self.places.domain_name(domain), self.places.named(Some(domain), host));
                Denial::DomainSpent { domain, out, limit }
            } else {
                Denial::BudgetSpent { out: self.places.named(None, host), budget }
            })
        };
        if fleet.known_gone >= budget || own.known_gone >= limit {
            return spent(fleet.known_gone < budget);
        }
        if fleet.known_out >= budget || own.known_out >= limit {
            return Decision::Wait;
        }
        let ticket = self.queue.ticket(host);
        let asked = ticket.map_or(u64::MAX, |ticket| ticket.surveys);
        let decides = !self.policy.surveys || self.surveys.decides(asked, self.now);
        if fleet.gone >= budget || own.gone >= limit {
            let in_domain = fleet.gone < budget;
            let about = in_domain.then_some(domain);
            let wished = ticket.map_or(self.now, |ticket| ticket.at);
            let over = self.patience_ends(self.patience.since(about, self.now).max(wished));
            // Without surveys, nothing would report the end of the outages.
            if self.policy.surveys && self.now < over {
                let until = self.surveys.again().min(over);
                return if self.now < until {
                    Decision::Hope { domain: about, until }
                } else {
                    Decision::Ask
                };
            }
            return if decides { spent(in_domain) } else { Decision::Ask };
        }
        if !decides {
            return Decision::Ask;
        }
        if fleet.out >= budget || own.out >= limit { Decision::Wait } else { Decision::Claim }
    }

    /// Takes a place, unless the host has one, and begins the steps to a permit.
    pub(super) fn claim(&mut self, host: usize, class: Disruption, actions: &mut Vec<Action>) {
        self.mark(host, |marks| marks.ours = true);
        if self.policy.drains {
            self.draining.insert(host);
            self.set(host, Host::Draining { class });
            actions.push(Action::Drain { host, deadline: self.drained_by(class) });
        } else {
            self.set(host, Host::Proving { class, was_out: false });
            actions.push(Action::ProveIdle { host });
        }
    }

    /// Returns until when a drain that begins now may wait, so that the steps after it fit into the window.
    fn drained_by(&self, class: Disruption) -> Timestamp {
        let needs = self.policy.needs.of(class);
        let Some(opening) = self.opening else { return self.after(needs) };
        let rest = needs.saturating_sub(self.policy.drain_needs.of(class));
        earlier(opening.closes, rest).max(self.now)
    }

    /// Denies a host that has no place.
    pub(super) fn deny(&mut self, host: usize, why: Denial, actions: &mut Vec<Action>) {
        self.queue.remove(host);
        self.unannounced.remove(&host);
        self.set(host, Host::RUNNING);
        actions.push(Action::Deny { host, why });
    }

    /// Denies a host that has a place; a drained one keeps it until it is given back.
    pub(super) fn refuse(&mut self, host: usize, why: Denial, actions: &mut Vec<Action>) {
        if self.policy.drains {
            self.set(host, Host::HOLDING);
        } else {
            self.mark(host, |marks| marks.ours = false);
            self.set(host, Host::RUNNING);
        }
        actions.push(Action::Deny { host, why });
    }

    /// Returns why a host that claimed in time may not be disturbed now.
    pub(super) fn refusal(&self, class: Disruption) -> Option<Denial> {
        if let Some(reason) = self.stop.clone() {
            return Some(Denial::Stopped { reason });
        }
        let opening = self.opening.filter(|opening| !opening.contains(self.now))?;
        Some(Denial::WindowTooShort { needs_s: self.policy.needs.of(class), closes: opening.closes })
    }

    /// Returns why this class may not be claimed now, whatever is out.
    pub(super) fn refusal_to_claim(&self, class: Disruption) -> Option<Denial> {
        self.refusal(class).or_else(|| {
            let needs_s = self.policy.needs.of(class);
            let closes = self.opening.filter(|_| !self.fits(needs_s))?.closes;
            Some(Denial::WindowTooShort { needs_s, closes })
        })
    }

    /// Updates the queue for a host whose marks changed.
    pub(super) fn settle(&mut self, host: usize) {
        let marks = self.places.marks(host);
        self.queue.recount(host, marks.absent || marks.surveyed);
        let domain = self.places.domain(host);
        let (tally, limit) = (self.places.domain_tally(domain), self.places.limit(domain));
        self.queue.block(domain, tally.known_out >= limit && tally.known_gone < limit);
        if tally.gone < limit {
            self.patience.end(Some(domain));
        }
    }

    /// Denies the hosts whose class stopped fitting into the window since the last step.
    fn deny_latecomers(&mut self, actions: &mut Vec<Action>) {
        const CLASSES: [Disruption; 4] =
            [Disruption::Live, Disruption::Clients, Disruption::GpuReset, Disruption::Reboot];
        let late: Vec<Disruption> = CLASSES
            .into_iter()
            .filter(|class| !self.too_late.contains(class) && !self.fits(self.policy.needs.of(*class)))
            .collect();
        if late.is_empty() {
            return;
        }
        self.too_late.extend(late);
        for host in self.queue.hosts() {
            if let Some(Host::Queued { class }) = self.hosts.get(host).copied()
                && let Some(why) = self.refusal_to_claim(class)
            {
                self.deny(host, why, actions);
            }
        }
    }

    /// Denies all queued hosts if nodes that are gone for good fill the whole budget.
    fn deny_where_all_is_spent(&mut self, actions: &mut Vec<Action>) {
        if self.places.fleet_tally().known_gone < self.policy.budget {
            return;
        }
        for host in self.queue.hosts() {
            if let Decision::Deny(why) = self.decide(host) {
                self.deny(host, why, actions);
            }
        }
    }

    fn announce(&mut self, actions: &mut Vec<Action>) {
        for host in std::mem::take(&mut self.unannounced) {
            let domain = self.places.domain(host);
            let full = self.places.domain_tally(domain).out >= self.places.limit(domain);
            let out = self.places.named(full.then_some(domain), host);
            actions.push(Action::Waits { host, out });
        }
    }

    /// Whether this many seconds are left in the window; always true without one.
    pub(super) fn fits(&self, seconds: u64) -> bool {
        self.opening.is_none_or(|opening| opening.contains(self.now) && self.after(seconds) <= opening.closes)
    }

    pub(super) fn has_opened(&self) -> bool {
        self.opening.is_none_or(|opening| opening.opens <= self.now)
    }

    pub(super) fn after(&self, seconds: u64) -> Timestamp {
        later(self.now, seconds)
    }

    fn patience_ends(&self, since: Timestamp) -> Timestamp {
        later(since, self.policy.patience_s)
    }
}

fn earlier(than: Timestamp, seconds: u64) -> Timestamp {
    let span = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    than.checked_sub(span).unwrap_or(Timestamp::MIN)
}

fn later(from: Timestamp, seconds: u64) -> Timestamp {
    let span = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    from.checked_add(span).unwrap_or(Timestamp::MAX)
}
