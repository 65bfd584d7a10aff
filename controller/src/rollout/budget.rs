//! Amounts of nodes: a number, or a share of the fleet.

use serde::{Deserialize, Serialize};

/// How many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    Count(usize),
    /// Percent, above 0 and at most 100.
    Percent(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BudgetError {
    #[error(
        "{percent}% of {hosts} nodes is less than one node: nothing could ever be taken out of service; \
         write a number, such as `max_unavailable: 1`"
    )]
    RoundsToZero { percent: f64, hosts: usize },
    #[error("`max_unavailable: 0` forbids every disruptive change; write at least 1")]
    Zero,
}

impl Amount {
    /// Reads `4` or `10%`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        match text.strip_suffix('%') {
            Some(percent) => {
                percent.trim().parse().ok().filter(|p| *p > 0.0 && *p <= 100.0).map(Self::Percent)
            }
            None => text.parse().ok().map(Self::Count),
        }
    }

    /// Nodes out at once that `hosts` nodes may afford. Shares round down.
    ///
    /// # Errors
    /// An amount that is no node at all.
    pub fn budget(self, hosts: usize) -> Result<usize, BudgetError> {
        match self {
            Self::Count(0) => Err(BudgetError::Zero),
            Self::Count(count) => Ok(count),
            Self::Percent(percent) => match share(percent, hosts) {
                0 => Err(BudgetError::RoundsToZero { percent, hosts }),
                count => Ok(count),
            },
        }
    }

    /// Size of a batch out of `hosts` nodes: shares round down, but a batch has one node at least, as in Ansible.
    pub fn batch(self, hosts: usize) -> usize {
        match self {
            Self::Count(count) => count.max(1),
            Self::Percent(percent) => share(percent, hosts).max(1),
        }
    }
}

fn share(percent: f64, hosts: usize) -> usize {
    // Why the small addend: 29% of 100 is 28.999… in binary.
    (percent * hosts as f64 / 100.0 + 1e-9).floor() as usize
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}
