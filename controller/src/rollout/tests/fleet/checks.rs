//! Checks every action of the rollout against what the test itself knows.

use std::collections::BTreeSet;

use super::{Fleet, Place};
use crate::rollout::*;

/// Checks that canaries are healthy, one for each class, and that nodes of unknown class come last.
pub(super) fn check_waves(batches: &[Batch], hosts: &[WaveHost], waves: &[Wave]) {
    let takes_part = || (0..hosts.len()).filter(|host| !hosts[*host].gone);
    let mut all: Vec<usize> = waves.iter().flat_map(|wave| wave.hosts.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, takes_part().collect::<Vec<_>>(), "not everybody is in one wave");
    let is_known =
        |host: &usize| hosts[*host].class.is_some() && hosts[*host].reachable && !hosts[*host].late;
    let anybody = takes_part().any(|host| is_known(&host));
    let mut before = BTreeSet::new();
    for wave in waves {
        if wave.canary && anybody {
            assert!(wave.hosts.iter().all(is_known) && !wave.aside, "a canary of which nothing is known");
            let classes = |of: &mut dyn Iterator<Item = usize>| -> Vec<_> {
                let mut classes: Vec<_> = of.map(|host| hosts[host].class.clone()).collect();
                classes.sort();
                classes
            };
            let mut wanted =
                classes(&mut takes_part().filter(|host| is_known(host) && !before.contains(host)));
            wanted.dedup();
            assert_eq!(classes(&mut wave.hosts.iter().copied()), wanted, "one canary of each class");
        }
        if batches.contains(&Batch::Canary) && anybody {
            assert!(wave.hosts.iter().all(|host| is_known(host) != wave.aside), "not told from the others");
            let others = takes_part().filter(is_known).all(|host| before.contains(&host));
            assert!(!wave.aside || others, "led aside before somebody who is known");
        } else {
            assert!(!wave.aside);
        }
        before.extend(wave.hosts.iter().copied());
    }
}

impl Fleet {
    /// Checks that nodes that were broken before stop the run only by a declared threshold.
    pub(super) fn check_stop(&self, reason: &StopReason) {
        let wave = self.current_wave().map(|wave| &self.waves[wave]);
        let (canaries, _) = reason.canaries();
        assert!(
            canaries.iter().all(|host| wave.is_some_and(|wave| wave.canary && wave.hosts.contains(host)))
        );
        if !canaries.is_empty()
            && self.known.iter().zip(0..).any(|(known, host)| *known && !self.is_gone(host))
        {
            assert!(
                canaries.iter().all(|host| self.known[*host]),
                "a broken node stopped the others as a canary"
            );
            assert!(
                canaries.iter().all(|host| self.ended[host] != End::Done),
                "a canary that is done stopped"
            );
        }
        let bounds = &self.policy.thresholds;
        let written = bounds.max_failures.is_some() || bounds.max_fail_percentage.is_some();
        if matches!(reason, StopReason::WholeWave { .. }) {
            assert!(!wave.is_some_and(|wave| wave.aside) || !written, "stopped below the bounds");
        }
    }

    pub(super) fn started_aside(&self) -> bool {
        let aside = |wave: &&Wave| wave.aside && wave.hosts.iter().any(|host| self.started.contains(host));
        self.waves.iter().any(|wave| aside(&wave))
    }

    /// Checks that this action is allowed.
    pub(super) fn check(&self, action: &Action, stopped: bool) {
        let opening = self.opening();
        let inside = opening.is_none_or(|opening| opening.contains(self.instant()));
        match action {
            Action::StartWave { wave } => {
                assert!(inside && !stopped, "a wave starts outside the window or after a stop");
                if let Some(before) = wave.checked_sub(1).and_then(|wave| self.waves.get(wave)) {
                    assert!(before.hosts.iter().all(|host| self.ended.contains_key(host)));
                    let done =
                        before.hosts.iter().filter(|host| self.ended.get(host) == Some(&End::Done)).count();
                    assert!(!before.canary || done == before.hosts.len(), "not every canary is done");
                    if self.policy.soak_s > 0 && done > 0 {
                        let (until, left) = self.soak.as_ref().expect("no soak between the waves");
                        assert!(
                            *until <= self.now && left.as_ref().is_some_and(BTreeSet::is_empty),
                            "the soak is not over"
                        );
                        assert!(!before.canary || self.soaked, "a canary's gate failed");
                    }
                }
            }
            Action::Start { .. } => assert!(inside && !stopped),
            Action::Drain { host, deadline } => {
                assert!(*deadline >= self.instant() && self.policy.drains);
                assert!(opening.is_none_or(|opening| *deadline <= opening.closes));
                assert!(self.places[*host] != Place::Out, "drained while it is out");
                self.check_claim(*host, opening, stopped);
            }
            Action::ProveIdle { host } => match self.places[*host] {
                Place::Out => {}
                Place::Claimed { drained: true } if self.policy.drains => assert!(inside && !stopped),
                _ => {
                    assert!(!self.policy.drains, "host {host} was not drained");
                    self.check_claim(*host, opening, stopped);
                }
            },
            Action::Grant { host, class, deadline } => {
                assert_eq!(self.wish.get(host).map(|(class, ..)| class), Some(class));
                assert!(self.proven.contains(host), "no proof of idleness");
                let out = self.places[*host] == Place::Out;
                assert!(out || (inside && !stopped), "a permit outside the window or after a stop");
                match deadline {
                    Some(deadline) => assert_eq!(Some(*deadline), opening.map(|opening| opening.closes)),
                    None => assert!(out || opening.is_none(), "a permit without an end"),
                }
            }
            Action::Deny { host, why: Denial::WindowTooShort { needs_s, closes } } => {
                let opening = opening.expect("no window is too short");
                // The next opening may have begun, but the run uses one only.
                let fits = opening.closes == *closes && self.fits(opening, *needs_s);
                assert!(!fits || self.places[*host] != Place::None, "it did fit");
            }
            Action::Deny { host, why: Denial::BudgetSpent { .. } } => self.check_spent(*host, None),
            Action::Deny { host, why: Denial::DomainSpent { domain, .. } } => {
                self.check_spent(*host, Some(domain));
            }
            Action::WaitsForWindow { opens } => assert!(self.instant() < *opens),
            _ => {}
        }
    }

    fn fits(&self, opening: Opening, needs_s: u64) -> bool {
        let end = self.now + i64::try_from(needs_s).unwrap() * 1000;
        opening.contains(self.instant()) && end <= opening.closes.as_millisecond()
    }

    /// Checks that outages that only surveys report deny no host before the patience is over.
    fn check_spent(&self, host: usize, domain: Option<&String>) {
        let domains = self.policy.domains.as_ref();
        let within = |index: usize| match (domain, domains) {
            (Some(name), Some(domains)) => domains.names.get(domains.of[index]) == Some(name),
            (name, _) => name.is_none(),
        };
        let gone = |surveyed: bool| {
            let gone = |index: &usize| {
                let known = self.places[*index] == Place::Kept || self.absent.contains(index);
                let active = matches!(self.places[*index], Place::Claimed { .. } | Place::Out);
                !active && (known || (surveyed && self.surveyed.contains(index)))
            };
            let hosts =
                (0..self.places.len()).filter(|index| *index != host && within(*index)).filter(gone).count();
            let told = |nodes: usize| if surveyed { nodes } else { 0 };
            let elsewhere = match (domain, domains) {
                (Some(name), Some(domains)) => {
                    let of = domains.names.iter().position(|other| other == name);
                    told(of.and_then(|of| self.surveyed_domains.get(&of)).copied().unwrap_or_default())
                }
                _ => self.elsewhere + told(self.surveyed_elsewhere),
            };
            hosts + elsewhere
        };
        let limit = match (domain, domains) {
            (Some(_), Some(domains)) => domains.limit,
            _ => self.policy.budget,
        };
        if gone(false) >= limit {
            return;
        }
        assert!(gone(true) >= limit, "host {host} was denied where there is room");
        if self.policy.surveys {
            let waited = self.now - self.wish[&host].2;
            assert!(
                waited >= i64::try_from(self.policy.patience_s).unwrap() * 1000,
                "only {waited} ms of patience"
            );
            let (_, _, answered_at) = self.answer.expect("a denial without a survey");
            assert!(self.now - answered_at <= 1000, "denied on a survey that is too old");
        }
    }

    fn check_claim(&self, host: usize, opening: Option<Opening>, stopped: bool) {
        let (class, asked, _) = self.wish[&host];
        assert!(!stopped, "host {host} claims a place after the stop");
        let needs_s = self.policy.needs.of(class);
        assert!(opening.is_none_or(|opening| self.fits(opening, needs_s)), "it does not fit into the window");
        if self.places[host] != Place::None {
            return;
        }
        let out = |index: &usize| {
            *index == host
                || self.places[*index] != Place::None
                || self.absent.contains(index)
                || self.surveyed.contains(index)
        };
        let fleet = (0..self.places.len()).filter(out).count() + self.elsewhere + self.surveyed_elsewhere;
        assert!(fleet <= self.policy.budget, "{fleet} are out of {} allowed", self.policy.budget);
        if let Some(domains) = &self.policy.domains
            && domains.of[host] < domains.names.len()
        {
            let own = (0..self.places.len())
                .filter(|index| domains.of[*index] == domains.of[host])
                .filter(out)
                .count()
                + self.surveyed_domains.get(&domains.of[host]).copied().unwrap_or_default();
            assert!(own <= domains.limit, "{own} are out in the domain, {} allowed", domains.limit);
        }
        if self.policy.surveys {
            let (number, asked_at, answered_at) = self.answer.expect("a claim without a survey");
            assert!(self.now - answered_at <= 1000, "the survey is too old");
            assert!(number > asked || self.now - asked_at <= 1000, "the survey is older than the wish");
        }
    }
}
