//! Why a node may not be disturbed.

/// Why a node may not be disturbed.
pub(crate) struct No {
    pub(crate) why: String,
    /// No `--force` goes over it: the node is someone else's, or it is not known whose.
    pub(crate) firm: bool,
    /// What was asked to go, and may be gone in a moment.
    pub(crate) passing: bool,
    /// It was given back by someone else: it takes work.
    pub(crate) serves: bool,
}

impl No {
    pub(crate) const fn firm(why: String) -> Self {
        Self { why, firm: true, passing: false, serves: false }
    }

    /// Busy, or unknown.
    pub(crate) const fn soft(why: String) -> Self {
        Self { why, firm: false, passing: false, serves: false }
    }

    pub(crate) const fn passing(why: String) -> Self {
        Self { why, firm: false, passing: true, serves: false }
    }
}
