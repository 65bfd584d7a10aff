//! How the play ends for a host.

use super::state::{Failure, Reach};
use super::{End, EndState, HostVars};

#[derive(Default)]
pub(super) struct Ending {
    /// The first failure that nothing took care of.
    failed: Option<Failure>,
    /// The failure ends all hosts.
    fatal: bool,
    end_play: bool,
    end_batch: bool,
    cleared_errors: bool,
    /// The play ends for this host after the section it is in.
    after_section: bool,
    /// What could not be read, one sentence each.
    unknown: Vec<String>,
    end: Option<EndState>,
}

impl Ending {
    /// Nothing took care of a failure. Whether it is the first one.
    pub(super) fn fail(&mut self, failure: Failure) -> bool {
        self.fatal |= failure.reach.ends_all();
        let first = self.failed.is_none();
        self.failed.get_or_insert(failure);
        first
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The state of a host that failed.
    pub(super) fn failed_state(&self) -> Option<EndState> {
        let failure = self.failed.as_ref()?;
        Some(match failure.reach {
            Reach::Elsewhere => EndState::Stopped,
            _ => EndState::Failed { task: failure.task.clone(), message: failure.message.clone() },
        })
    }

    pub(super) const fn end_play(&mut self) {
        self.end_play = true;
    }

    pub(super) const fn end_batch(&mut self) {
        self.end_batch = true;
    }

    pub(super) const fn clear_errors(&mut self) {
        self.cleared_errors = true;
    }

    pub(super) const fn end_after_section(&mut self) {
        self.after_section = true;
    }

    pub(super) const fn ends_after_section(&self) -> bool {
        self.after_section
    }

    /// Something could not be read.
    pub(super) fn note_unknown(&mut self, task: &str, reason: &str) {
        self.unknown.push(format!("{task}: {reason}"));
    }

    pub(super) fn set(&mut self, state: EndState) {
        self.end = Some(state);
    }

    pub(super) const fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// The end, once it is there.
    pub(super) fn end(&self, vars: &HostVars) -> Option<End> {
        Some(End {
            state: self.end.clone()?,
            fatal: self.fatal,
            end_play: self.end_play,
            end_batch: self.end_batch,
            cleared_errors: self.cleared_errors,
            unknown: self.unknown.clone(),
            vars: vars.clone(),
        })
    }
}
