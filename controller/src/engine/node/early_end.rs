//! Why the work on a node ended before its end.

/// Why a node's task ended before its cursor did.
pub(crate) enum EarlyEnd {
    Unreachable(String),
    /// For a person to decide; the node was left as it is.
    Held(String),
    Failed(String),
    /// The run stops.
    Stopped,
}

impl EarlyEnd {
    const fn reason(&mut self) -> Option<&mut String> {
        match self {
            Self::Unreachable(why) | Self::Held(why) | Self::Failed(why) => Some(why),
            Self::Stopped => None,
        }
    }

    /// Adds what went wrong after it.
    pub(crate) fn and(&mut self, mut then: Self) {
        match (self.reason(), then.reason()) {
            // Why not twice: one cause may end both.
            (Some(first), Some(then)) if first.contains(then.as_str()) => {}
            (Some(first), Some(then)) => first.push_str(&format!("; {then}")),
            (None, Some(_)) => *self = then,
            (_, None) => {}
        }
    }
}
