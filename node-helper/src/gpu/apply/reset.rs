//! Resets GPUs, after proof that no process works on them.
//!
//! Invariant: the NVML worker is ended before a reset.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    FailureKind,
    message::{GpuClient, IdleReport, IdleVerdict},
};

use super::{Done, Failure, LETTING_GO, READERS, Running, busy, stopped};
use crate::gpu::{
    blockers,
    desired::merge,
    idle,
    machine::ResetError,
    observe::{forget_locks, keep_counted, minors, put_resets},
    plan::Activation,
};

impl Running<'_> {
    /// Returns the processes that work on these GPUs, or on any.
    pub(super) fn holders(&mut self, uuids: Option<&BTreeSet<String>>) -> IdleReport {
        let read = self.job.machine.snapshot(self.job.deadline);
        let problem = read.as_ref().err().map(|error| format!("what NVML lists is unknown: {error}"));
        let snapshot = read.ok();
        let minors = snapshot.as_ref().map(minors).unwrap_or_default();
        let mut scan = self.job.machine.scan(&minors, snapshot.as_ref());
        scan.unknown.extend(problem);
        let meant: Option<BTreeSet<u32>> = uuids
            .map(|uuids| uuids.iter().filter_map(|uuid| self.state.gpu(uuid)).map(|gpu| gpu.index).collect());
        let hits = |client: &&GpuClient| match &meant {
            None => true,
            Some(indexes) => client.gpus.iter().any(|index| indexes.contains(index)),
        };
        let clients: Vec<GpuClient> = scan.workloads().filter(hits).cloned().collect();
        let mut reasons = idle::sentences(&clients);
        let verdict = match (clients.is_empty(), scan.unknown.is_empty()) {
            (false, _) => IdleVerdict::Busy,
            (true, true) => IdleVerdict::Idle,
            (true, false) => IdleVerdict::Unknown,
        };
        reasons.extend(scan.unknown);
        IdleReport { verdict, clients, reasons }
    }

    pub(super) fn wait_free(&mut self, uuids: Option<BTreeSet<String>>, member: usize) -> Done {
        if uuids.as_ref().is_some_and(BTreeSet::is_empty) {
            return Ok(());
        }
        let until = Instant::now() + LETTING_GO.min(self.job.deadline.remaining());
        loop {
            let report = self.holders(uuids.as_ref());
            if report.verdict == IdleVerdict::Idle {
                return Ok(());
            }
            // Without a stopped unit there is nothing to wait for: a job does not end within seconds.
            if Instant::now() >= until || self.stopped.is_empty() {
                return Err(busy(member, "the GPUs are in use".to_owned(), report));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits for the NVML workers of read-only sessions, which hold every GPU for a moment.
    pub(super) fn wait_readers(&mut self, member: usize) -> Done {
        let until = Instant::now() + READERS.min(self.job.deadline.remaining());
        loop {
            let scan = self.job.machine.scan(&BTreeMap::new(), None);
            let readers: Vec<GpuClient> = scan.readers().cloned().collect();
            if readers.is_empty() {
                return Ok(());
            }
            if let Some(stop) = self.job.deadline.stop() {
                return Err(stopped(member, stop));
            }
            if Instant::now() >= until {
                let reasons = idle::sentences(&readers);
                let report = IdleReport { verdict: IdleVerdict::Busy, clients: readers, reasons };
                return Err(busy(member, "another session of gpufleet reads the GPUs".to_owned(), report));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Records that kernel messages of these GPUs before their reset are settled. Without a state directory they keep
    /// counting.
    fn remember_reset(&mut self, pcis: &[String], end: Option<u64>) {
        let mark = self.job.machine.boot_mark();
        if let Some(end) = end {
            let _ = put_resets(self.job.record, &mark.boot_id, pcis, end);
        }
    }

    /// Resets GPUs; returns `false` if this machine cannot, so that a reboot is needed.
    pub(super) fn reset(&mut self, activation: &Activation) -> Result<bool, Failure> {
        let member = activation.reasons.first().map_or(0, |(member, _)| *member);
        let uuids: BTreeSet<String> = activation.uuids.iter().cloned().collect();
        let gpus: Vec<_> = activation.uuids.iter().filter_map(|uuid| self.state.gpu(uuid)).collect();
        let labels: Vec<String> = gpus.iter().map(|gpu| gpu.label()).collect();
        let pcis: Vec<String> = gpus.iter().map(|gpu| gpu.pci.clone()).collect();
        // Read first: on Ampere, the call that sets the MIG mode may have reset the GPU itself.
        self.refresh(member)?;
        let desired = merge(self.job.group, &self.state);
        let needed = crate::gpu::plan::activation(&self.state, &desired, false).is_some();
        if needed {
            self.wait_free(Some(uuids), member)?;
            // Again, because the wait may have lasted, and what is counted now is gone after the reset.
            self.refresh(member)?;
            self.state.holding.modules = self.job.machine.module_holders();
            if let Some(blocker) = blockers::module(&self.state, Some(activation)) {
                let message = format!("{}; next step: {}", blocker.what, blocker.next);
                let mut report = self.holders(None);
                (report.verdict, report.reasons) = (IdleVerdict::Busy, vec![message.clone()]);
                return Err(busy(member, message, report));
            }
            (self.job.progress)(format!("resetting {}", labels.join(", ")));
        }
        self.job.machine.release();
        let mut done = true;
        if needed {
            self.wait_readers(member)?;
            self.still_ours(member)?;
            let boot_id = self.job.machine.boot_mark().boot_id;
            let gpus = activation.uuids.iter().filter_map(|uuid| self.state.gpu(uuid));
            let counted = keep_counted(self.job.record, &boot_id, gpus, "reset");
            // Before the reset: what the kernel logs during the reset counts against the GPUs.
            let end = self.job.machine.log_end();
            match self.job.machine.reset(&pcis, self.job.deadline) {
                Ok(()) => {
                    self.remember_reset(&pcis, end);
                    self.applied.warnings.extend(counted);
                }
                Err(ResetError::Unsupported(why)) => {
                    self.applied.warnings.push(format!(
                        "{} cannot be reset here, a reboot is needed: {why}",
                        labels.join(", ")
                    ));
                    done = false;
                }
                Err(ResetError::InUse(why)) => {
                    let mut all = self.holders(None);
                    let modules = self.job.machine.module_holders();
                    all.reasons.extend(modules.iter().map(|(module, count)| {
                        format!("the kernel module {module} is in use (use count {count})")
                    }));
                    let message = format!("{} could not be reset: {why}", labels.join(", "));
                    return Err(busy(member, message, all));
                }
                Err(ResetError::Failed(message)) => {
                    return Err(Failure { member, kind: FailureKind::Io, message, idle: None });
                }
            }
        }
        for uuid in &activation.uuids {
            let _ = forget_locks(self.job.record, uuid);
        }
        let problems = self.take_persistence(self.job.deadline);
        self.applied.warnings.extend(problems);
        Ok(done)
    }
}
