//! Silence, and what it says: of the node itself, of the way that it shares with others, or nothing.
//!
//! Pure, as all of this module: told times and what was found out, and sees no node and no clock.
//!
//! Invariants (each one a property test in `tests`):
//! * no node counts as dead without proof that the way to it works at that time, or the word of its BMC;
//! * a way that does not answer is never the death of a node, nor is one behind which several others fell silent too,
//!   however many still answer: a switch takes some of them and leaves the rest;
//! * nobody is disturbed from when most of the fleet fell silent at once until one of those answers again;
//! * no more power cycles in any hour than the policy allows.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// Time in which many losses count as one event.
///
/// Why not less: SSH's keepalives find a dead connection within a minute, each at its own time.
const AT_ONCE: Duration = Duration::from_secs(120);
/// Losses that are no coincidence any more.
const MANY: usize = 3;
/// Others that fell silent since the node was heard last, and are no coincidence any more.
///
/// Why not one: in a large fleet some other node dies within the time of a reboot every few days.
const SEVERAL: usize = 2;
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// What the way to a node says when it is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WayWord {
    /// There is nothing on it that could be asked.
    #[default]
    Nothing,
    /// Its last station before the node let us in and opened a channel.
    Works,
    Silent,
}

/// What was found out about a silent node and the way to it, all at about the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    pub way: WayWord,
    /// Its address refuses connections: packets get there and back.
    pub refuses: bool,
    /// Others behind the same way that answer.
    pub others_answer: usize,
    /// Others behind the same way that fell silent since the node was heard last, although nothing was done to them.
    pub others_silent: usize,
    /// Its BMC says that it is hung.
    pub hung: bool,
}

/// Whose silence it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The node's own.
    Own,
    /// That of the way to it.
    Way,
    /// Nobody can tell.
    Unknown,
}

impl Evidence {
    /// Whose silence it is.
    pub const fn judge(&self) -> Silence {
        let shared = self.others_silent >= SEVERAL;
        match self.way {
            _ if self.hung => Silence::Own,
            _ if !shared && self.others_answer > self.others_silent => Silence::Own,
            _ if self.others_silent > 0 => Silence::Way,
            // Why behind the others: a firewall may refuse connections to a whole rack.
            _ if self.refuses => Silence::Own,
            WayWord::Silent => Silence::Way,
            WayWord::Works => Silence::Own,
            WayWord::Nothing => Silence::Unknown,
        }
    }
}

/// How a host was heard last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    /// By an earlier process of the run.
    HeardBefore,
    Heard,
    /// It was told to go away.
    Expected(Duration),
    Lost(Duration),
}

/// What a host can tell of a way that it shares with one that is silent; those that can tell most come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Witness {
    /// It fell silent since the other one was heard last.
    Lost,
    /// It was heard before: its silence counts as its answer does.
    Heard,
    /// Nobody knows whether it lives: its answer counts, its silence does not.
    Stranger,
}

/// Who was heard in a run, and who fell silent when. Hosts are places in the caller's list, times are since its begin.
#[derive(Clone, Debug, Default)]
pub struct Voices {
    hosts: BTreeMap<usize, Voice>,
    /// Most of them fell silent at once, and none of those has answered since.
    storm: bool,
}

impl Voices {
    /// An earlier process of the run heard the host, and did not tell it to go away.
    pub fn heard_before(&mut self, host: usize) {
        self.hosts.entry(host).or_insert(Voice::HeardBefore);
    }

    /// The host answers.
    pub fn heard(&mut self, host: usize) {
        let before = self.hosts.insert(host, Voice::Heard);
        // Why the others stay lost: an end for one of them is none for a part of the fleet whose switch is still dead.
        if matches!(before, Some(Voice::Lost(_))) {
            self.storm = false;
        }
    }

    /// The host was told to reboot.
    pub fn expects(&mut self, host: usize, now: Duration) {
        self.hosts.insert(host, Voice::Expected(now));
        let goes_on = self.lost_since(Duration::ZERO).next().is_some();
        self.storm &= goes_on;
    }

    /// The host was asked, and did not answer.
    pub fn silent(&mut self, host: usize, now: Duration) {
        if let Some(voice @ (Voice::Heard | Voice::HeardBefore)) = self.hosts.get_mut(&host) {
            *voice = Voice::Lost(now);
        }
    }

    /// The connection to a host was lost.
    pub fn lost(&mut self, host: usize, now: Duration) {
        if let Some(voice @ Voice::Heard) = self.hosts.get_mut(&host) {
            *voice = Voice::Lost(now);
        }
        let lost = self.lost_since(now.saturating_sub(AT_ONCE)).count();
        let heard = self.hosts.values().filter(|voice| **voice == Voice::Heard).count();
        self.storm |= lost >= MANY && lost > heard;
    }

    fn lost_since(&self, since: Duration) -> impl Iterator<Item = usize> {
        let lost =
            self.hosts.iter().filter(move |(_, voice)| matches!(voice, Voice::Lost(at) if *at >= since));
        lost.map(|(host, _)| *host)
    }

    /// Those who fell silent at once, as long as that goes on; empty otherwise.
    pub fn storm(&self) -> Vec<usize> {
        if self.storm { self.lost_since(Duration::ZERO).collect() } else { Vec::new() }
    }

    /// Whether the host was heard in this run; one that was told to reboot is not missed.
    pub fn is_missed(&self, host: usize) -> bool {
        matches!(self.hosts.get(&host), Some(Voice::Heard | Voice::Lost(_)))
    }

    /// Whether the host fell silent since then, and was not heard again.
    pub fn is_lost(&self, host: usize, since: Duration) -> bool {
        matches!(self.hosts.get(&host), Some(Voice::Lost(at)) if *at >= since)
    }

    /// What a host can tell of the way to another one that is silent; nothing where it was told to go away itself.
    pub fn witness(&self, host: usize, of: usize) -> Option<Witness> {
        // Why the margin: each connection is found dead at its own time.
        let since = match self.hosts.get(&of) {
            Some(Voice::Expected(at) | Voice::Lost(at)) => at.saturating_sub(AT_ONCE),
            Some(Voice::Heard | Voice::HeardBefore) | None => Duration::ZERO,
        };
        Some(match self.hosts.get(&host) {
            Some(Voice::Expected(_)) => return None,
            Some(Voice::Lost(_)) if self.is_lost(host, since) => Witness::Lost,
            Some(Voice::Heard | Voice::HeardBefore) => Witness::Heard,
            Some(Voice::Lost(_)) | None => Witness::Stranger,
        })
    }
}

/// The power cycles of a run, whoever of its processes made them.
#[derive(Clone, Debug, Default)]
pub struct Cycles(Vec<Timestamp>);

impl Cycles {
    pub fn new(made: Vec<Timestamp>) -> Self {
        Self(made)
    }

    /// Takes one, unless the last hour has so many; the error is how many it has.
    ///
    /// # Errors
    /// The number of power cycles in the last hour.
    pub fn take(&mut self, now: Timestamp, an_hour: u32) -> Result<(), usize> {
        let since = now.checked_sub(HOUR).unwrap_or(Timestamp::MIN);
        // Why not only up to now: a clock that was set back makes no room.
        let recent = self.0.iter().filter(|at| **at > since).count();
        if recent >= an_hour as usize {
            return Err(recent);
        }
        self.0.push(now);
        Ok(())
    }
}
