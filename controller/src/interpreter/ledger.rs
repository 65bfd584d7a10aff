//! What a play has declared on a host so far, resolved.

use std::sync::Arc;

use gpufleet_protocol::operation::{Newer, Part, Reach, is_below};
use gpufleet_protocol::{Awaiting, Change, Disruption, NodeOp, tasks::GpuDriver};

use super::action::{BlobNeed, RunAs};
use super::intervening::{Intervener, may_touch};
use crate::playbook::Task;

/// One operation that was declared, fit to be planned again.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Who declared it: the task, the index of its loop's item, and that item's label; for a group one a member.
    pub owners: Vec<Owner>,
    pub op: NodeOp,
    pub blobs: Vec<BlobNeed>,
    pub run_as: RunAs,
    pub environment: Vec<(String, String)>,
    pub timeout_s: Option<u64>,
    pub awaiting: Vec<Awaiting>,
    /// Changes that were made with a note, such as why a value does not last.
    pub noted: Vec<Change>,
    /// Later tasks that may have changed what it declared since it was last looked at.
    pub after: Vec<Intervener>,
    /// A later task of the play changed it: it is not asserted any more.
    pub overruled: bool,
    /// It was an act and left no state to hold.
    pub act: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub task: Arc<Task>,
    pub title: String,
    pub item: Option<(u32, String)>,
}

/// So many reasons for a reboot are kept: one is enough for it, and a node may tell any number.
const MOST_REASONS: usize = 100;

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub entries: Vec<Entry>,
    /// Jobs that are not waited for: they may touch anything at any time.
    loose: Vec<Intervener>,
    /// What tasks brought that runs from the next boot on, each once.
    for_next_boot: Vec<String>,
}

impl Ledger {
    /// Adds what was declared, and removes what it replaces. Gives its index, if it is something that lasts.
    pub(super) fn declare(&mut self, mut entry: Entry) -> Option<usize> {
        if !entry.op.operation_mut().lasting() {
            return None;
        }
        let newer = Newer::of(&entry.op);
        self.entries.retain_mut(|earlier| stands(earlier, &newer));
        if entry.act {
            return None;
        }
        self.entries.push(entry);
        Some(self.entries.len() - 1)
    }

    /// A task may have changed what earlier ones declared. `forever`: it is a job that goes on by itself.
    pub(super) fn intervened(&mut self, later: &NodeOp, who: &Intervener, forever: bool) {
        if forever && !self.loose.contains(who) {
            self.loose.push(who.clone());
        }
        for entry in self.entries.iter_mut().filter(|entry| may_touch(later, &entry.op)) {
            if !entry.after.contains(who) {
                entry.after.push(who.clone());
            }
        }
    }

    /// Who may have changed what an entry declares, once for each.
    pub(super) fn interveners(&self, index: usize) -> Vec<&Intervener> {
        let Some(entry) = self.entries.get(index) else { return Vec::new() };
        let loose = self.loose.iter().filter(|who| !entry.after.contains(who));
        entry.after.iter().chain(loose).collect()
    }

    /// Entries that a later task may have changed since they were last looked at. Entries that wait for an activation are left
    /// out: they differ in any case, and are asserted again after it.
    pub(super) fn touched(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.standing().filter(|(_, entry)| !entry.after.is_empty() && entry.awaiting.is_empty())
    }

    /// A later task changed what these owners of an entry declared.
    pub(super) fn overrule(&mut self, index: usize, owners: &[usize]) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        match &mut entry.op {
            // Why only these: what others of the group declared still stands, and a reset may lose it.
            NodeOp::GpuGroup(group)
                if group.members.len() == entry.owners.len() && owners.len() < entry.owners.len() =>
            {
                let mut at = 0..;
                group.members.retain(|_| at.next().is_none_or(|at| !owners.contains(&at)));
                let mut at = 0..;
                entry.owners.retain(|_| at.next().is_none_or(|at| !owners.contains(&at)));
            }
            _ => entry.overruled = true,
        }
    }

    /// Entries that still stand.
    pub(super) fn standing(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter(|(_, entry)| !entry.overruled)
    }

    /// What waits for an activation, fit to be shown.
    pub(super) fn awaiting(&self) -> impl Iterator<Item = Awaiting> {
        self.standing().flat_map(|(_, entry)| {
            let is_hidden = entry.owners.iter().any(|owner| owner.task.no_log);
            entry.awaiting.iter().cloned().map(move |mut awaiting| {
                if is_hidden {
                    awaiting.hide();
                }
                awaiting
            })
        })
    }

    /// Notes what a task brought that runs from the next boot on.
    pub(super) fn await_boot(&mut self, reasons: Vec<String>) {
        for reason in reasons {
            if self.for_next_boot.len() < MOST_REASONS && !self.for_next_boot.contains(&reason) {
                self.for_next_boot.push(reason);
            }
        }
    }

    pub(super) fn for_next_boot(&self) -> &[String] {
        &self.for_next_boot
    }

    /// Whether a driver was replaced on disk and runs only after a reboot.
    pub(super) fn driver_is_awaited(&self) -> bool {
        let mut awaiting = self.standing().flat_map(|(_, entry)| &entry.awaiting);
        awaiting.any(|awaiting| GpuDriver::is_awaited(&awaiting.reason))
    }

    /// Forgets what waited for an activation of this class.
    pub(super) fn activated(&mut self, class: Disruption) {
        for entry in &mut self.entries {
            entry.awaiting.retain(|awaiting| awaiting.activation > class);
        }
        if class == Disruption::Reboot {
            self.for_next_boot.clear();
        }
    }
}

/// Takes out of an earlier entry what a newer operation declares otherwise; false where nothing is left.
fn stands(entry: &mut Entry, newer: &Newer<'_>) -> bool {
    if is_overwritten(&entry.op, newer.op) {
        return false;
    }
    if let (NodeOp::GpuGroup(old), NodeOp::GpuGroup(new)) = (&entry.op, newer.op) {
        let mut keep = old.kept(new).into_iter();
        entry.owners.retain(|_| keep.next().unwrap_or(true));
    }
    entry.op.operation_mut().yields(newer)
}

/// Whether a later task of a file replaces what an earlier one declared.
fn is_overwritten(earlier: &NodeOp, later: &NodeOp) -> bool {
    let (Reach::File(old), Reach::File(new)) = (earlier.operation().reach(), later.operation().reach())
    else {
        return false;
    };
    if new.part == Part::Absence {
        return old.path == new.path || is_below(&old.path, &new.path);
    }
    old.path == new.path
        && match (old.part, new.part) {
            // Why: an edited file no longer has the content of an earlier task, and new content has no earlier edit.
            (Part::Content, part) | (part, Part::Content) if part.is_text() => true,
            // Why: what is replaced, and where a line is put, may be what the other one found or left out.
            (Part::Matches, part) | (part, Part::Matches) => part.is_text(),
            _ => false,
        }
}
