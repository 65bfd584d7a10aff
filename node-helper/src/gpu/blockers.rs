//! What blocks a forecast in the node's present state.
//!
//! Pure. Judges what was read with the node, so that a plan shows what a run would be refused for. The run checks again
//! right before it acts ([`super::apply`]).

use std::collections::BTreeSet;

use gpufleet_protocol::{Blocker, Disruption, message::GpuClient};

use super::{
    clients::CONTAINERS,
    idle, mps,
    plan::{Activation, Stage},
    state::{Gpu, State},
};

/// Modules that hold GPUs up to Ada while they are in use.
///
/// Source: NVIDIA/mig-parted#181. Other modules do not count: their use counts may be above zero without a user.
const HOLDING: [&str; 2] = ["nvidia_drm", "nvidia_peermem"];

/// Returns why the helper may not change GPUs, if so.
pub fn rights(state: &State) -> Option<Blocker> {
    let uid = state.holding.not_root?;
    Some(Blocker::new(
        format!("only root may change GPUs, and gpufleet works as uid {uid} on this node"),
        "declare `become: true` for the task or the play",
    ))
}

/// Returns the module that keeps these GPUs from being reset, if any.
pub fn module(state: &State, activation: Option<&Activation>) -> Option<Blocker> {
    let activation = activation.filter(|activation| activation.class == Disruption::GpuReset)?;
    let gpus: Vec<&Gpu> = activation.uuids.iter().filter_map(|uuid| state.gpu(uuid)).collect();
    if gpus.iter().all(|gpu| gpu.architecture.has_volatile_mig()) {
        return None;
    }
    let held = |(module, _): &&(String, u32)| HOLDING.contains(&module.as_str());
    let (module, count) = state.holding.modules.iter().find(held)?;
    let labels: Vec<String> = gpus.iter().map(|gpu| gpu.label()).collect();
    let next = match module.as_str() {
        "nvidia_drm" => {
            "end what shows something on these GPUs, such as a display manager (`systemctl isolate multi-user.target`), \
             and unload the module: `modprobe -r nvidia_drm`"
        }
        _ => {
            "end the processes that use RDMA with GPU memory, and unload the module: `modprobe -r nvidia_peermem`"
        }
    };
    let works = |gpu: &&Gpu| state.holding.clients.iter().any(|client| client.gpus.contains(&gpu.index));
    // A job over InfiniBand counts in nvidia_peermem, and ends with the drain.
    let next = match gpus.iter().any(works) {
        true => {
            format!(
                "if it is used by what works on these GPUs now, it is free when that ends; if not, {next}"
            )
        }
        false => next.to_owned(),
    };
    Some(Blocker::new(
        format!("the kernel module {module} (use count {count}) holds {}", labels.join(", ")),
        next,
    ))
}

/// Returns everything that a run of these stages would be refused for now.
pub fn of_stages(state: &State, stages: &[&Stage]) -> Vec<Blocker> {
    let acts = stages.iter().any(|stage| !stage.changes.is_empty());
    let mut blockers: Vec<Blocker> = rights(state).filter(|_| acts).into_iter().collect();
    let disturbing: Vec<&&Stage> =
        stages.iter().filter(|stage| stage.class() >= Disruption::Clients).collect();
    let through_mps = state.host.client_units.iter().any(|unit| mps::is_unit(unit));
    // All GPUs: MPS is stopped too, and any client of it loses its server, on whichever GPU it works.
    let all = through_mps && disturbing.iter().any(|stage| stage.stops_units());
    let mut free: Option<BTreeSet<String>> = (!all).then(BTreeSet::new);
    for stage in &disturbing {
        free = match (free, stage.must_be_free()) {
            (Some(mut all), Some(more)) => {
                all.extend(more);
                Some(all)
            }
            _ => None,
        };
    }
    let indexes: Option<BTreeSet<u32>> =
        free.map(|uuids| uuids.iter().filter_map(|uuid| state.gpu(uuid)).map(|gpu| gpu.index).collect());
    let meant = |client: &&GpuClient| match &indexes {
        None => true,
        Some(indexes) => client.gpus.iter().any(|index| indexes.contains(index)),
    };
    if !disturbing.is_empty() {
        let clients = state.holding.clients.iter().filter(meant);
        blockers.extend(clients.map(|client| Blocker::new(idle::sentence(client), next_for(client))));
        if indexes.is_none_or(|indexes| !indexes.is_empty()) {
            blockers.extend(state.holding.unknown.iter().map(unknown));
        }
    }
    let activation = stages.iter().find_map(|stage| stage.activation.as_ref());
    blockers.extend(module(state, activation));
    blockers
}

/// Whether a word that a node tells can stand in a command that people copy.
fn is_plain(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || ":_.@-".contains(c))
}

/// Returns the next step, by who owns the process.
pub fn next_for(client: &GpuClient) -> String {
    let drain = "let gpufleet drain the node (`rollout: {drain: …}`)";
    let owner = client.unit.as_deref().unwrap_or_default();
    let container = CONTAINERS
        .iter()
        .find_map(|(program, words)| Some((program, owner.strip_prefix(words).filter(|id| is_plain(id))?)));
    if let Some(job) = owner.strip_prefix("Slurm job ") {
        return match !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit()) {
            true => format!("wait for {owner}, {drain}, or end it: `scancel {job}`"),
            false => format!("wait for {owner}, or {drain}"),
        };
    }
    match container {
        _ if owner.starts_with("pod ") => format!("wait for {owner}, or {drain}"),
        Some((program, id)) => format!("stop it before: `{program} stop {id}`"),
        None if owner.ends_with(".service") && is_plain(owner) => {
            format!("stop it before: `systemctl stop {owner}`")
        }
        None => format!("wait for it, or end it: `kill {}`", client.pid),
    }
}

pub fn unknown(why: &String) -> Blocker {
    Blocker::new(
        format!("whether the GPUs are free is unknown: {why}"),
        "let gpufleet be root there: `become: true`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_fits_the_owner_and_is_no_trap() {
        let next = |unit: &str| {
            next_for(&GpuClient {
                pid: 41,
                command: "train.py".to_owned(),
                user: "ana".to_owned(),
                gpus: vec![0],
                unit: Some(unit.to_owned()),
            })
        };
        assert!(next("Slurm job 77").ends_with("or end it: `scancel 77`"));
        assert!(!next("Slurm job 77; reboot").contains("scancel"));
        assert_eq!(next("Docker container 0123456789ab"), "stop it before: `docker stop 0123456789ab`");
        assert_eq!(next("Podman container 0123456789ab"), "stop it before: `podman stop 0123456789ab`");
        assert_eq!(next("ollama@1.service"), "stop it before: `systemctl stop ollama@1.service`");
        assert!(next("pod 1-2").starts_with("wait for pod 1-2, or let gpufleet drain"));
        for other in ["session-3.scope", "-x.service", "a;b.service", "a`b.service"] {
            assert_eq!(next(other), "wait for it, or end it: `kill 41`", "{other}");
        }
    }
}
