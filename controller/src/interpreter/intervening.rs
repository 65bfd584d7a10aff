//! What later tasks of a play may have done to what an earlier one declared.
//!
//! A declared state that differs at the end is a failure, unless the play itself may have made the difference: a command, of which
//! nobody knows what it touches, or a task of another kind that works at the same place. Pure; it errs towards failure.

use gpufleet_protocol::NodeOp;
use gpufleet_protocol::operation::{Reach, is_below};

use super::action::Action;
use crate::event::Position;

/// A task that ran after another one had declared something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intervener {
    title: String,
    position: Position,
}

impl Intervener {
    pub(super) fn of(action: &Action) -> Self {
        let title = if action.no_log { action.kind.to_owned() } else { action.task.clone() };
        Self { title, position: action.position.clone() }
    }

    /// Tasks by name and place, for a sentence.
    pub(super) fn named(all: &[&Self]) -> String {
        const NAMED: usize = 3;
        let mut names: Vec<String> = all
            .iter()
            .take(NAMED)
            .map(|one| format!("\"{}\" ({}:{})", one.title, one.position.file, one.position.line))
            .collect();
        if all.len() > NAMED {
            names.push(format!("{} more", all.len() - NAMED));
        }
        match names.pop() {
            Some(last) if !names.is_empty() => format!("{} and {last}", names.join(", ")),
            last => last.unwrap_or_default(),
        }
    }
}

/// Whether what a later task did may change what an earlier one declared.
pub(super) fn may_touch(later: &NodeOp, earlier: &NodeOp) -> bool {
    match (later.operation().reach(), earlier.operation().reach()) {
        (Reach::Anything, _) => true,
        // Why not of GPUs: what holds their state is not in packages, and their proof is worth most.
        (Reach::Packages(_), Reach::Gpus | Reach::Packages(_)) | (Reach::Unit(_), Reach::Packages(_)) => {
            false
        }
        (Reach::Packages(_), _) => true,
        (Reach::Unit(unit), Reach::Gpus) | (Reach::Gpus, Reach::Unit(unit)) => is_of_gpus(unit),
        (Reach::Unit(new), Reach::Unit(old)) => old != new,
        (Reach::Unit(_), _) => true,
        (Reach::Places { driver: true, .. }, Reach::Gpus) => true,
        (new, old) => {
            let same_kind = std::mem::discriminant(later) == std::mem::discriminant(earlier);
            let (new, old) = (places(new), places(old));
            let meet =
                |new: &str, old: &str| is_below(old, new) || is_below(new, old) || new == old && !same_kind;
            new.iter().any(|new| old.iter().any(|old| meet(new, old)))
        }
    }
}

/// Whether a unit belongs to the driver or works on GPUs by itself.
fn is_of_gpus(unit: &str) -> bool {
    ["nvidia", "dcgm", "nvsm", "gpufleet-mps"].iter().any(|start| unit.starts_with(start))
}

/// The files and folders that an operation writes, as far as its words tell.
fn places(reach: Reach<'_>) -> Vec<String> {
    let mut paths = match reach {
        Reach::File(claim) => vec![claim.path],
        Reach::Places { paths, .. } => paths,
        Reach::Nothing | Reach::Anything | Reach::Packages(_) | Reach::Unit(_) | Reach::Gpus => Vec::new(),
    };
    for path in &mut paths {
        path.truncate(path.trim_end_matches('/').len());
    }
    paths
}
