//! Why hosts cannot be reached as it is written.

use crate::{diagnostic::Diagnostics, transport::TargetError};

#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// Wrong input with places.
    #[error("{0}")]
    Input(Diagnostics),
    #[error("{host}: `{name}` cannot be rendered: {why}")]
    Rendering {
        host: String,
        /// The connection variable.
        name: String,
        why: String,
        /// Whether a play says it.
        by_play: bool,
    },
    #[error(transparent)]
    Target(TargetError),
}

impl ReachError {
    /// What may help.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Rendering { by_play: true, .. } => {
                Some("how a node is reached hangs on the inventory, the play's `vars` and `-e` only")
            }
            _ => None,
        }
    }
}

impl From<Diagnostics> for ReachError {
    fn from(diagnostics: Diagnostics) -> Self {
        Self::Input(diagnostics)
    }
}
