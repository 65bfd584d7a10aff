//! What a play has declared on a host so far, resolved.

use std::sync::Arc;

use gpufleet_protocol::op::GpuTask;
use gpufleet_protocol::tasks::{File, FileState, ServiceState};
use gpufleet_protocol::{Awaiting, Disruption, NodeOp};

use super::action::{BlobNeed, RunAs};
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
}

#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub task: Arc<Task>,
    pub title: String,
    pub item: Option<(u32, String)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub entries: Vec<Entry>,
}

impl Ledger {
    /// Takes in what was declared; what it replaces goes. Says where it stands, if it stands at all.
    pub(super) fn declare(&mut self, mut entry: Entry) -> Option<usize> {
        entry.op = lasting(entry.op)?;
        for earlier in &mut self.entries {
            supersede(&mut earlier.op, &mut earlier.owners, &entry.op);
        }
        self.entries.retain(|earlier| !is_void(&earlier.op));
        self.entries.push(entry);
        Some(self.entries.len() - 1)
    }

    /// What waits for an activation.
    pub(super) fn awaiting(&self) -> impl Iterator<Item = &Awaiting> {
        self.entries.iter().flat_map(|entry| entry.awaiting.iter())
    }

    /// Forgets what waited for an activation of this class.
    pub(super) fn activated(&mut self, class: Disruption) {
        for entry in &mut self.entries {
            entry.awaiting.retain(|awaiting| awaiting.activation > class);
        }
    }
}

/// The part of an operation that stays true; nothing for acts such as a restart.
fn lasting(op: NodeOp) -> Option<NodeOp> {
    match op {
        NodeOp::Service(mut service) => {
            service.daemon_reload = false;
            service.daemon_reexec = false;
            service.state = match service.state {
                Some(ServiceState::Restarted) => Some(ServiceState::Started),
                Some(ServiceState::Reloaded) => None,
                other => other,
            };
            let asks = service.state.is_some() || service.enabled.is_some() || service.masked.is_some();
            asks.then_some(NodeOp::Service(service))
        }
        NodeOp::File(mut file) => {
            if file.state == Some(FileState::Touch) {
                file.state = None;
            }
            // Why: a reading of the file later changes them, and nobody declared that it may not.
            (file.modification_time, file.access_time) = (None, None);
            Some(NodeOp::File(file))
        }
        NodeOp::Stat(_) => None,
        op if op.is_declarative() => Some(op),
        _ => None,
    }
}

/// Takes out of an earlier operation what a later one declares otherwise.
fn supersede(earlier: &mut NodeOp, owners: &mut Vec<Owner>, later: &NodeOp) {
    match (&mut *earlier, later) {
        (NodeOp::Sysctl(old), NodeOp::Sysctl(new)) if old.name == new.name => void(earlier),
        (NodeOp::Service(old), NodeOp::Service(new)) if unit(&old.name) == unit(&new.name) => {
            if new.state.is_some() {
                old.state = None;
            }
            if new.enabled.is_some() {
                old.enabled = None;
            }
            if new.masked.is_some() {
                old.masked = None;
            }
        }
        (NodeOp::PutFile(old), NodeOp::PutFile(new)) if old.dest == new.dest && old.name == new.name => {
            void(earlier);
        }
        (NodeOp::PutFile(old), NodeOp::File(new)) if old.dest == new.path => {
            if matches!(new.state, None | Some(FileState::File)) {
                old.owner = old.owner.take().filter(|_| new.owner.is_none());
                old.group = old.group.take().filter(|_| new.group.is_none());
                old.mode = old.mode.take().filter(|_| new.mode.is_none());
            } else {
                void(earlier);
            }
        }
        // Why: a line written into a file that an earlier task gave its content means the file is no longer that content.
        (NodeOp::PutFile(old), NodeOp::LineInFile(new)) if old.dest == new.path => void(earlier),
        (NodeOp::File(old), NodeOp::File(new)) if old.path == new.path => {
            old.owner = old.owner.take().filter(|_| new.owner.is_none());
            old.group = old.group.take().filter(|_| new.group.is_none());
            old.mode = old.mode.take().filter(|_| new.mode.is_none());
            if new.state.is_some() {
                void(earlier);
            }
        }
        (NodeOp::File(old), NodeOp::PutFile(new)) if old.path == new.dest && !is_directory(old) => {
            void(earlier)
        }
        (NodeOp::LineInFile(old), NodeOp::LineInFile(new)) if old.path == new.path => {
            let same = old.regexp.is_some() && old.regexp == new.regexp || old.line == new.line;
            if same {
                void(earlier);
            }
        }
        (NodeOp::LineInFile(old), NodeOp::PutFile(new)) if old.path == new.dest => void(earlier),
        (NodeOp::KernelCmdline(old), NodeOp::KernelCmdline(new)) => {
            let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
            let touched: Vec<_> = new.add.iter().chain(&new.remove).map(|word| key(word)).collect();
            old.add.retain(|word| !touched.contains(&key(word)));
            old.remove.retain(|word| !touched.contains(&key(word)));
        }
        (NodeOp::GpuGroup(old), NodeOp::GpuGroup(new)) => {
            let kept: Vec<bool> = old
                .members
                .iter()
                .map(|member| !new.members.iter().any(|later| replaces(&member.task, &later.task)))
                .collect();
            let mut keep = kept.iter();
            old.members.retain(|_| keep.next().copied().unwrap_or(true));
            let mut keep = kept.iter();
            owners.retain(|_| keep.next().copied().unwrap_or(true));
        }
        _ => {}
    }
}

fn unit(name: &str) -> &str {
    name.strip_suffix(".service").unwrap_or(name)
}

fn is_directory(file: &File) -> bool {
    file.state == Some(FileState::Directory)
}

/// Whether a later GPU task declares everything that an earlier one did.
fn replaces(earlier: &GpuTask, later: &GpuTask) -> bool {
    macro_rules! same_kind {
        ($($variant:ident),*) => {
            match (earlier, later) {
                $((GpuTask::$variant(old), GpuTask::$variant(new)) => new.gpus.is_empty() || new.gpus == old.gpus,)*
                _ => false,
            }
        };
    }
    match (earlier, later) {
        // Why: the two clocks are two knobs.
        (GpuTask::GpuClocks(old), GpuTask::GpuClocks(new)) => {
            (new.gpus.is_empty() || new.gpus == old.gpus)
                && (new.reset
                    || (old.graphics_mhz.is_none() || new.graphics_mhz.is_some())
                        && (old.memory_mhz.is_none() || new.memory_mhz.is_some()))
        }
        _ => same_kind!(GpuPersistence, GpuEcc, GpuMig, GpuPower, GpuComputeMode, GpuMps),
    }
}

fn void(op: &mut NodeOp) {
    *op = NodeOp::Idle;
}

fn is_void(op: &NodeOp) -> bool {
    match op {
        NodeOp::Idle => true,
        NodeOp::Service(service) => {
            service.state.is_none() && service.enabled.is_none() && service.masked.is_none()
        }
        NodeOp::KernelCmdline(words) => words.add.is_empty() && words.remove.is_empty(),
        NodeOp::GpuGroup(group) => group.members.is_empty(),
        _ => false,
    }
}
