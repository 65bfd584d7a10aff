//! Whether anything works on the node: GPU clients, Slurm steps, pods.
//!
//! Pure. Judges one [`Scan`]. An unknown state counts as busy, and every reason is a sentence for people.

use std::collections::BTreeSet;

use gpufleet_protocol::{
    message::{GpuClient, IdleReport, IdleVerdict},
    op::Staying,
};

use super::clients::{Scan, job, pod};

/// Largest number of clients that are named.
pub const NAMED: usize = 8;

/// Judges a scan; `nvml_problem` is why NVML's process lists are missing, if so.
pub fn judge(scan: &Scan, staying: &Staying, nvml_problem: Option<String>) -> IdleReport {
    let stays = |client: &&GpuClient| {
        let pod = client.unit.as_deref().and_then(|unit| unit.strip_prefix("pod "));
        staying.may_hold_gpus && pod.is_some_and(|pod| staying.pods.iter().any(|known| known == pod))
    };
    let clients: Vec<GpuClient> = scan.workloads().filter(|client| !stays(client)).cloned().collect();
    let mut reasons = sentences(&clients);
    reasons.extend(slurm(scan));
    reasons.extend(kubernetes(scan, &staying.pods));
    let busy = !reasons.is_empty();
    let unknown: Vec<String> = scan.unknown.iter().cloned().chain(nvml_problem).collect();
    let verdict = match (busy, unknown.is_empty()) {
        (true, _) => IdleVerdict::Busy,
        (false, true) => IdleVerdict::Idle,
        (false, false) => IdleVerdict::Unknown,
    };
    reasons.extend(unknown);
    IdleReport { verdict, clients, reasons }
}

/// Returns a sentence for each client.
pub fn sentences(clients: &[GpuClient]) -> Vec<String> {
    let mut reasons: Vec<String> = clients.iter().take(NAMED).map(sentence).collect();
    if clients.len() > NAMED {
        reasons.push(format!("{} more processes hold GPUs", clients.len() - NAMED));
    }
    reasons
}

pub fn sentence(client: &GpuClient) -> String {
    let gpus = match client.gpus.as_slice() {
        [] => "the driver's control device".to_owned(),
        [one] => format!("GPU {one}"),
        many => {
            let list: Vec<String> = many.iter().map(u32::to_string).collect();
            format!("GPUs {}", list.join(", "))
        }
    };
    let unit = client.unit.as_ref().map(|unit| format!(" in {unit}")).unwrap_or_default();
    format!("process {} ({}, user {}){unit} holds {gpus}", client.pid, client.command, client.user)
}

/// Returns running Slurm steps, each of which is a `slurmstepd`; `slurmd` alone is idle.
fn slurm(scan: &Scan) -> Vec<String> {
    let mut jobs = BTreeSet::new();
    let mut steps = 0;
    // Not this one: Slurm keeps `slurmstepd infinity` there while slurmd runs, without any job.
    let is_step = |cgroup: &str| !cgroup.trim_end_matches('/').ends_with("slurmstepd.scope/system");
    let steps_of = scan.processes.iter().filter(|process| process.comm == "slurmstepd");
    for process in steps_of.filter(|process| is_step(&process.cgroup)) {
        steps += 1;
        if let Some(job) = job(&process.cgroup) {
            jobs.insert(job.to_owned());
        }
    }
    match (steps, jobs.len()) {
        (0, _) => Vec::new(),
        (_, 0) => vec![format!("slurmd has {steps} running job steps")],
        _ => vec![format!("slurmd runs jobs {}", jobs.into_iter().collect::<Vec<_>>().join(", "))],
    }
}

/// Returns pods that count as work: all but those that the kubelet runs from its own files (static pods), which belong
/// to the node, and those that a drain leaves there.
fn kubernetes(scan: &Scan, staying: &[String]) -> Vec<String> {
    let pods: BTreeSet<String> = scan
        .processes
        .iter()
        .filter_map(|process| pod(&process.cgroup))
        .filter(|(uid, fixed)| !fixed && !staying.contains(uid))
        .map(|(uid, _)| uid)
        .collect();
    match pods.len() {
        0 => Vec::new(),
        1 => vec![format!("the kubelet runs pod {}", pods.into_iter().collect::<String>())],
        count => {
            let some: Vec<String> = pods.into_iter().take(3).collect();
            vec![format!("the kubelet runs {count} pods, {} first", some.join(", "))]
        }
    }
}
