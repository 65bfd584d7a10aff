//! Decides what a node's silence means: that the node is down, that the way it shares with others is, or neither.
//!
//! Pure, like all of this module: it gets times and findings, and uses no node and no clock.
//!
//! Invariants (each one a property test in `tests`):
//! * no node counts as dead without proof that the way to it works at that time, or its BMC's report;
//! * a way that does not answer never proves the death of a node, and neither does one behind which several others
//!   fell silent too, however many still answer: a broken switch may cut off only some of them;
//! * from when most of the fleet falls silent at once until one of these hosts answers again, no node is disturbed;
//! * at most as many power cycles in any hour as the policy allows.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// Time in which many losses count as one event.
///
/// SSH's keepalives find a dead connection within a minute, each at its own time, so it cannot be less.
const AT_ONCE: Duration = Duration::from_secs(120);
/// Smallest number of losses that is taken for more than a coincidence.
const MANY: usize = 3;
/// Smallest number of other hosts, silent since the node last answered, that is taken for more than a coincidence.
///
/// More than one, because in a large fleet another node dies during some reboot every few days.
const SEVERAL: usize = 2;
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// What a check of the way to a node has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WayWord {
    /// There is nothing on the way that can be checked.
    #[default]
    Nothing,
    /// The last jump host before the node accepts logins and opens channels.
    Works,
    Silent,
}

/// Findings about a silent node and the way to it, all from about the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    pub way: WayWord,
    /// Whether its address refuses connections, so that packets get there and back.
    pub refuses: bool,
    /// Number of other hosts behind the same way that answer.
    pub others_answer: usize,
    /// Number of other hosts behind the same way that fell silent since the node last answered, although nothing was
    /// done to them.
    pub others_silent: usize,
    /// Whether its BMC reports that it is hung.
    pub hung: bool,
}

/// What a silence is attributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The node itself.
    Own,
    /// The way to the node.
    Way,
    /// It cannot be told.
    Unknown,
}

impl Evidence {
    /// Returns what the silence is attributed to.
    pub const fn judge(&self) -> Silence {
        let shared = self.others_silent >= SEVERAL;
        match self.way {
            _ if self.hung => Silence::Own,
            _ if !shared && self.others_answer > self.others_silent => Silence::Own,
            _ if self.others_silent > 0 => Silence::Way,
            // After the check of others, because a firewall may refuse connections to a whole rack.
            _ if self.refuses => Silence::Own,
            WayWord::Silent => Silence::Way,
            WayWord::Works => Silence::Own,
            WayWord::Nothing => Silence::Unknown,
        }
    }
}

/// The last contact with a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    /// It answered an earlier process of the run.
    HeardBefore,
    Heard,
    /// It was told to reboot.
    Expected(Duration),
    Lost(Duration),
}

/// The evidence that a host gives about a way that it shares with a silent one, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Witness {
    /// It fell silent since the other one last answered.
    Lost,
    /// It answered earlier, so its silence is evidence as much as an answer.
    Heard,
    /// Whether it is alive is unknown, so an answer is evidence, but silence is not.
    Stranger,
}

/// Which hosts answered in a run, and when others fell silent. Hosts are indexes of the caller's list, times are
/// since the run's begin.
#[derive(Clone, Debug, Default)]
pub struct Voices {
    hosts: BTreeMap<usize, Voice>,
    /// Whether most of them fell silent at once, and none of these has answered since.
    storm: bool,
}

impl Voices {
    /// Records that an earlier process of the run reached the host, and did not tell it to reboot.
    pub fn heard_before(&mut self, host: usize) {
        self.hosts.entry(host).or_insert(Voice::HeardBefore);
    }

    /// Records that the host answers.
    pub fn heard(&mut self, host: usize) {
        let before = self.hosts.insert(host, Voice::Heard);
        // The others stay lost: one that is back says nothing of those behind a switch that is still dead.
        if matches!(before, Some(Voice::Lost(_))) {
            self.storm = false;
        }
    }

    /// Records that the host was told to reboot.
    pub fn expects(&mut self, host: usize, now: Duration) {
        self.hosts.insert(host, Voice::Expected(now));
        let goes_on = self.lost_since(Duration::ZERO).next().is_some();
        self.storm &= goes_on;
    }

    /// Records that the host did not answer a connection.
    pub fn silent(&mut self, host: usize, now: Duration) {
        if let Some(voice @ (Voice::Heard | Voice::HeardBefore)) = self.hosts.get_mut(&host) {
            *voice = Voice::Lost(now);
        }
    }

    /// Records that the connection to a host was lost.
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

    /// Returns the hosts that fell silent at once, while that lasts; empty otherwise.
    pub fn storm(&self) -> Vec<usize> {
        if self.storm { self.lost_since(Duration::ZERO).collect() } else { Vec::new() }
    }

    /// Whether the host answered in this run, and was not told to reboot.
    pub fn is_missed(&self, host: usize) -> bool {
        matches!(self.hosts.get(&host), Some(Voice::Heard | Voice::Lost(_)))
    }

    /// Whether the host fell silent since then and has not answered again.
    pub fn is_lost(&self, host: usize, since: Duration) -> bool {
        matches!(self.hosts.get(&host), Some(Voice::Lost(at)) if *at >= since)
    }

    /// Returns the evidence of a host about the way to a silent one; `None` if it was told to reboot itself.
    pub fn witness(&self, host: usize, of: usize) -> Option<Witness> {
        // With a margin, because each connection is found dead at its own time.
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

/// The power cycles of a run, by all of its processes.
#[derive(Clone, Debug, Default)]
pub struct Cycles(Vec<Timestamp>);

impl Cycles {
    pub fn new(made: Vec<Timestamp>) -> Self {
        Self(made)
    }

    /// Counts a power cycle, unless the last hour has `an_hour` already.
    ///
    /// # Errors
    /// The number of power cycles in the last hour.
    pub fn take(&mut self, now: Timestamp, an_hour: u32) -> Result<(), usize> {
        let since = now.checked_sub(HOUR).unwrap_or(Timestamp::MIN);
        // Including later times: setting a clock back must not allow more.
        let recent = self.0.iter().filter(|at| **at > since).count();
        if recent >= an_hour as usize {
            return Err(recent);
        }
        self.0.push(now);
        Ok(())
    }
}
