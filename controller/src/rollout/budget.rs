//! Amounts of nodes: a number, or a percentage of the fleet.

use serde::{Deserialize, Serialize};

/// How many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    Count(usize),
    /// Percentage, above 0 and at most 100.
    Percent(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BudgetError {
    #[error(
        "{percent}% of {hosts} node{} is less than one node: nothing could ever be taken out of service; \
         write a number, such as `max_unavailable: 1`",
        if *hosts == 1 { "" } else { "s" }
    )]
    RoundsToZero { percent: f64, hosts: usize },
    #[error("`max_unavailable: 0` forbids every disruptive change; write at least 1")]
    Zero,
}

impl Amount {
    /// Parses `4` or `10%`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        match text.strip_suffix('%') {
            Some(percent) => {
                percent.trim().parse().ok().filter(|p| *p > 0.0 && *p <= 100.0).map(Self::Percent)
            }
            None => text.parse().ok().map(Self::Count),
        }
    }

    /// Returns how many of `hosts` nodes may be out at once. Percentages round down; of nodes that a limit left
    /// (`limited`) to at least one.
    ///
    /// # Errors
    /// If the amount rounds to no node.
    pub fn budget(self, hosts: usize, limited: bool) -> Result<usize, BudgetError> {
        match self {
            Self::Count(0) => Err(BudgetError::Zero),
            Self::Count(count) => Ok(count),
            Self::Percent(percent) => match share(percent, hosts).max(usize::from(limited)) {
                0 => Err(BudgetError::RoundsToZero { percent, hosts }),
                count => Ok(count),
            },
        }
    }

    /// Returns the size of a batch out of `hosts` nodes: percentages round down to at least one node, as in Ansible.
    pub fn batch(self, hosts: usize) -> usize {
        match self {
            Self::Count(count) => count.max(1),
            Self::Percent(percent) => share(percent, hosts).max(1),
        }
    }
}

fn share(percent: f64, hosts: usize) -> usize {
    // The small addend, because 29% of 100 is 28.999… in binary.
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
