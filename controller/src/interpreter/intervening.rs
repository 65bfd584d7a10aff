//! What later tasks of a play may have done to what an earlier one declared.
//!
//! A declared state that differs at the end is a failure, unless the play itself may have made the difference: a command, of which
//! nobody knows what it touches, or a task of another kind that works at the same place. Pure; it errs towards failure.

use std::sync::Arc;

use gpufleet_protocol::NodeOp;

use super::action::Action;

/// A task that ran after another one had declared something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intervener {
    title: String,
    file: Arc<str>,
    line: u32,
}

impl Intervener {
    pub(super) fn of(action: &Action) -> Self {
        let title = if action.no_log { action.kind.to_owned() } else { action.task.clone() };
        Self { title, file: Arc::clone(&action.file), line: action.line }
    }

    /// Tasks by name and place, for a sentence.
    pub(super) fn named(all: &[&Self]) -> String {
        const NAMED: usize = 3;
        let mut names: Vec<String> = all
            .iter()
            .take(NAMED)
            .map(|one| format!("\"{}\" ({}:{})", one.title, one.file, one.line))
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
    if is_command(later) {
        return true;
    }
    let same_kind = std::mem::discriminant(later) == std::mem::discriminant(earlier);
    let on_gpus = matches!(earlier, NodeOp::GpuGroup(_));
    match later {
        // Why not of GPUs: what holds their state is not in packages, and their proof is worth most.
        NodeOp::Apt(_) | NodeOp::Dnf(_) | NodeOp::Package(_) => !on_gpus && !is_package(earlier),
        NodeOp::Service(service) if on_gpus => is_of_gpus(&service.name),
        NodeOp::Service(service) => match earlier {
            NodeOp::Service(old) => old.name != service.name,
            other => !is_package(other),
        },
        NodeOp::Modprobe(module) if on_gpus => module.name.starts_with("nvidia"),
        NodeOp::GpuGroup(_) => matches!(earlier, NodeOp::Service(service) if is_of_gpus(&service.name)),
        _ => {
            let (new, old) = (places(later), places(earlier));
            let meet = |new: &String, old: &String| {
                is_below(old, new) || is_below(new, old) || new == old && !same_kind
            };
            new.iter().any(|new| old.iter().any(|old| meet(new, old)))
        }
    }
}

/// Whether an operation does whatever its words say.
pub(super) fn is_command(op: &NodeOp) -> bool {
    matches!(op, NodeOp::Exec(_) | NodeOp::JobStart(_))
}

fn is_package(op: &NodeOp) -> bool {
    matches!(op, NodeOp::Apt(_) | NodeOp::Dnf(_) | NodeOp::Package(_))
}

/// Whether a unit belongs to the driver or works on GPUs by itself.
fn is_of_gpus(unit: &str) -> bool {
    ["nvidia", "dcgm", "nvsm", "gpufleet-mps"].iter().any(|start| unit.starts_with(start))
}

fn is_below(place: &str, folder: &str) -> bool {
    place.strip_prefix(folder.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
}

/// The files and folders that an operation writes, as far as its words tell.
fn places(op: &NodeOp) -> Vec<String> {
    let own = |path: &str| vec![path.trim_end_matches('/').to_owned()];
    match op {
        NodeOp::PutFile(put) if put.dest.ends_with('/') => vec![format!("{}{}", put.dest, put.name)],
        NodeOp::PutFile(put) => own(&put.dest),
        NodeOp::PutTree(tree) => own(&tree.dest),
        NodeOp::GetUrl(get) => own(&get.dest),
        NodeOp::Unarchive(archive) => own(&archive.task.dest),
        NodeOp::File(file) => own(&file.path),
        NodeOp::LineInFile(line) => own(&line.path),
        NodeOp::BlockInFile(block) => own(&block.path),
        NodeOp::Replace(replace) => own(&replace.path),
        NodeOp::Sysctl(sysctl) => own(&sysctl.sysctl_file),
        NodeOp::Mount(mount) => vec![mount.fstab.clone(), mount.path.clone()],
        NodeOp::Hostname(_) => own("/etc/hostname"),
        NodeOp::Modprobe(module) => {
            vec![
                format!("/etc/modules-load.d/{}.conf", module.name),
                format!("/etc/modprobe.d/{}.conf", module.name),
            ]
        }
        NodeOp::KernelCmdline(_) => {
            ["/etc/default/grub", "/etc/default/grub.d", "/etc/kernel/cmdline", "/boot"]
                .map(str::to_owned)
                .to_vec()
        }
        NodeOp::User(_) | NodeOp::Group(_) => {
            ["/etc/passwd", "/etc/shadow", "/etc/group"].map(str::to_owned).to_vec()
        }
        NodeOp::Cron(cron) => cron.cron_file.iter().map(|file| format!("/etc/cron.d/{file}")).collect(),
        _ => Vec::new(),
    }
}
