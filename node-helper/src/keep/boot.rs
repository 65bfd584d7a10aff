//! Asserts the kept state: the process of the unit.
//!
//! The same plan and apply as in a run, without a permit: nothing is reset or rebooted, and a GPU is changed only while
//! nothing can use it. Invariants: it ends before the unit's time is over; its end is recorded, or its begin is.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::{
    Disruption, FailureKind, OpOutcome, OpStatus, RunEpoch,
    facts::GpuSystemState,
    keep::{KeptBoot, KeptState, KeptVerdict, Sealed},
    message::{Mode, Open},
    op::{GpuGroup, GpuMember, GpuTask},
    tasks::MpsScope,
};
use rustix::fs::{FlockOperation, flock};

use super::{Store, declared, gate, kept};
use crate::{
    deadline::Deadline,
    gpu::{AtBoot, FORGETS, Gpus, Settings},
    os::{roots::Roots, units},
    state::{
        Record, dir,
        lock::{KEEPER, Lock, LockError},
    },
    tasks::reboot,
};

/// Time between two looks at a lock, or at a driver that is not up yet.
const PAUSE: Duration = Duration::from_millis(500);
/// Time to wait for the lock.
const TURN: Duration = Duration::from_secs(5);
/// Time for one reading of the GPUs.
const READING: Duration = Duration::from_secs(60);
/// The last part of the time, in which nothing begins, so that the end can be told.
const RESERVE: Duration = Duration::from_secs(10);
/// Units whose processes may use a GPU at any moment.
const WORKERS: [&str; 9] = [
    "slurmd.service",
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "containerd.service",
    "docker.service",
    "crio.service",
];

/// Writes a line to the unit's journal.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// How an assertion ended.
#[derive(Clone)]
struct Ended {
    verdict: KeptVerdict,
    reasons: Vec<String>,
    changes: Vec<gpufleet_protocol::Change>,
}

impl Ended {
    fn because(verdict: KeptVerdict, reason: impl Into<String>) -> Self {
        Self { verdict, reasons: vec![reason.into()], changes: Vec::new() }
    }
}

/// Asserts what the node keeps; succeeds if the GPUs are as declared.
pub fn assert(roots: &Roots) -> ExitCode {
    assert_on(roots, Gpus::new)
}

/// Asserts it on GPUs of any machine.
pub fn assert_on(roots: &Roots, gpus: impl FnOnce(Settings) -> Gpus) -> ExitCode {
    let store = Store::of(roots);
    let begun = Instant::now();
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut boot = KeptBoot {
        boot_id: reboot::boot_id(roots).unwrap_or_default(),
        began,
        ms: 0,
        verdict: KeptVerdict::Begun,
        reasons: Vec::new(),
        changes: Vec::new(),
    };
    if let Ok(None) = kept(roots) {
        say("nothing is kept");
        return ExitCode::SUCCESS;
    }
    let record = |boot: &KeptBoot| {
        if let Err(error) = store.put_boot(boot) {
            say(&format!("what came of it cannot be recorded: {error}"));
        }
    };
    record(&boot);
    let _alive = alive(&store);
    // Held until the gate is set, so that no run writes another document meanwhile.
    let lock = lock(roots);
    let ended = match &lock {
        Ok((lock, state_dir)) => match kept(roots) {
            Ok(None) => {
                say("nothing is kept any more");
                return ExitCode::SUCCESS;
            }
            Ok(Some((kept, sealed))) => {
                let ended =
                    Boot { roots, kept: &kept, deadline: deadline(&kept) }.ended(lock, state_dir, gpus);
                with_gate(roots, &sealed, ended)
            }
            Err(why) => with_gate_shut(roots, Ended::because(KeptVerdict::Refused, why)),
        },
        Err(ended) => ended.clone(),
    };
    boot.ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    (boot.verdict, boot.reasons, boot.changes) = (ended.verdict, ended.reasons, ended.changes);
    for change in &boot.changes {
        say(&format!("{}: {}", change.what(), change.values()));
    }
    for reason in &boot.reasons {
        say(reason);
    }
    say(&format!("{} after {:.1} s", boot.verdict, begun.elapsed().as_secs_f64()));
    record(&boot);
    if boot.verdict == KeptVerdict::Asserted { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Opens the gate for what was asserted, or shuts it. A run that took the node over has the gate too.
fn with_gate(roots: &Roots, sealed: &Sealed, mut ended: Ended) -> Ended {
    match ended.verdict {
        KeptVerdict::Asserted => {
            if let Err(error) = gate::open(roots, sealed) {
                ended.verdict = KeptVerdict::Failed;
                ended.reasons.push(error.to_string());
            }
            ended
        }
        KeptVerdict::Yielded => ended,
        _ => with_gate_shut(roots, ended),
    }
}

fn with_gate_shut(roots: &Roots, mut ended: Ended) -> Ended {
    ended.reasons.extend(gate::shut(roots).err().map(|error| error.to_string()));
    ended
}

/// Holds a lock until this process ends.
fn alive(store: &Store) -> Option<File> {
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(store.alive()).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

fn deadline(kept: &KeptState) -> Deadline {
    Deadline::after(Duration::from_secs(kept.policy.timeout).saturating_sub(RESERVE))
}

struct Boot<'a> {
    roots: &'a Roots,
    kept: &'a KeptState,
    deadline: Deadline,
}

/// Takes the node's lock; a run that has it keeps it.
fn lock(roots: &Roots) -> Result<(Lock, PathBuf), Ended> {
    let failed = |why: String| Ended::because(KeptVerdict::Failed, why);
    let state_dir = dir::locate(roots, &dir::Place::default()).map_err(|error| failed(error.to_string()))?;
    let open = Open {
        holder: RunEpoch { run: KEEPER.to_owned(), epoch: 0 },
        who: format!("{} of this node", super::units::UNIT),
        writes: true,
        guest: false,
        commands: false,
        own_commands: false,
        login_uid: None,
    };
    let until = Instant::now() + TURN;
    loop {
        match Lock::take(&state_dir, &open) {
            Ok(lock) => return Ok((lock, state_dir)),
            Err(LockError::File(error)) => return Err(failed(error.to_string())),
            Err(LockError::Locked(_)) if Instant::now() < until => thread::sleep(PAUSE),
            // Not longer: the boot is not over before this unit is, and the run may wait for the boot.
            Err(LockError::Locked(locked)) => {
                let why = format!(
                    "a run of gpufleet works on the node ({}); its end starts this again",
                    locked.who
                );
                return Err(Ended::because(KeptVerdict::Yielded, why));
            }
        }
    }
}

impl Boot<'_> {
    fn ended(&self, lock: &Lock, state_dir: &Path, gpus: impl FnOnce(Settings) -> Gpus) -> Ended {
        let record = Record::of(Some(state_dir));
        let gpus = gpus(Settings { state_dir: state_dir.to_owned(), record, no_block: true });
        let ended = self.under_lock(gpus, lock);
        match lock.is_current() {
            Ok(false) => Ended {
                verdict: KeptVerdict::Yielded,
                reasons: vec!["a run of gpufleet took the node over; its end starts this again".to_owned()],
                changes: ended.changes,
            },
            _ => ended,
        }
    }

    fn under_lock(&self, mut gpus: Gpus, lock: &Lock) -> Ended {
        if let Err(ended) = self.await_driver(&mut gpus, lock) {
            return ended;
        }
        // What an assertion that was killed had stopped.
        let problems = gpus.put_back(&self.deadline);
        let declared = declared::noted(self.roots);
        let mode = if declared.is_some() { Mode::Predict } else { Mode::Apply };
        let allowed = self.allowed();
        let fence = || match lock.is_current() {
            Ok(true) => Ok(()),
            Ok(false) => Err("a run of gpufleet took the node over".to_owned()),
            Err(error) => Err(format!("whether a run took the node over is unknown: {error}")),
        };
        let (outcome, reasons) = attempt(&self.kept.members, allowed, |group| {
            gpus.run(group, mode, allowed, &self.deadline, &|text| say(&text), &fence)
        });
        gpus.release();
        let mut ended = match declared {
            None => judged(outcome, reasons),
            Some(run) => compared(outcome, &run),
        };
        if !problems.is_empty() && ended.verdict == KeptVerdict::Asserted {
            ended.verdict = KeptVerdict::Failed;
        }
        ended.reasons.extend(problems);
        ended
    }

    /// Waits until the driver answers with all of the GPUs that the state was signed for.
    fn await_driver(&self, gpus: &mut Gpus, lock: &Lock) -> Result<(), Ended> {
        let mut told = false;
        loop {
            let system = gpus.facts(&self.deadline.within(READING));
            let mut found: Vec<String> = system.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
            found.sort_unstable();
            let (verdict, why) = match &system.state {
                GpuSystemState::Ok if found == self.kept.gpus => return Ok(()),
                GpuSystemState::Ok => (KeptVerdict::Refused, differs(&self.kept.gpus, &found)),
                // A driver that answers in this way does not recover by waiting.
                GpuSystemState::VersionMismatch { detail }
                | GpuSystemState::Hung { detail }
                | GpuSystemState::Crashed { detail }
                | GpuSystemState::NoWorker { detail } => {
                    return Err(Ended::because(
                        KeptVerdict::Failed,
                        format!("the GPUs cannot be read: {detail}"),
                    ));
                }
                GpuSystemState::NoDriver { detail } | GpuSystemState::Failed { detail } => {
                    (KeptVerdict::Failed, format!("the driver is not up: {detail}"))
                }
                GpuSystemState::NoGpu | GpuSystemState::NotRead => {
                    (KeptVerdict::Failed, "no GPU is on the bus".to_owned())
                }
            };
            // Foreign GPUs stay foreign; missing ones may still come.
            let foreign = found.iter().any(|uuid| !self.kept.gpus.contains(uuid));
            if foreign || self.deadline.remaining() <= RESERVE || matches!(lock.is_current(), Ok(false)) {
                return Err(Ended::because(verdict, why));
            }
            if !told {
                say(&format!("{why}; waiting"));
                told = true;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Returns what may be disturbed: GPUs without work, if nothing could give them any meanwhile.
    fn allowed(&self) -> Disruption {
        let hold = self.kept.policy.hold.iter().map(String::as_str);
        let names: Vec<&str> = WORKERS.into_iter().chain(hold).collect();
        let shown = self.roots.tool("systemctl").map(|tool| units::show(tool, &names, &self.deadline));
        let may_work = match shown {
            Some(Ok(units)) => units.values().any(|unit| unit.main_pid > 0),
            Some(Err(_)) | None => true,
        };
        if may_work { Disruption::Live } else { Disruption::Clients }
    }
}

/// Carries out as much of what is kept as is allowed; returns what came of it, and why the rest was left.
fn attempt(
    members: &[GpuMember],
    allowed: Disruption,
    mut run: impl FnMut(&GpuGroup) -> OpOutcome,
) -> (OpOutcome, Vec<String>) {
    let mut group = GpuGroup { members: members.to_vec(), defer_to_reboot: false };
    // Its own unit starts MPS after this one, except for MIG instances, which are only made here.
    group
        .members
        .retain(|member| !matches!(&member.task, GpuTask::GpuMps(mps) if mps.scope != MpsScope::Mig));
    let outcome = run(&group);
    match outcome.status {
        OpStatus::NeedsPermit { .. } => {
            let reasons = leave(&mut group, &outcome, allowed);
            (run(&group), reasons)
        }
        _ => (outcome, Vec::new()),
    }
}

/// Returns why a boot of a node that does no work would not bring these GPUs to what is kept; empty if it would, or if only
/// the run can tell.
pub(super) fn left_by_a_boot(members: &[GpuMember], at_boot: &AtBoot) -> Vec<String> {
    let allowed = Disruption::Clients;
    let (mut outcome, reasons) = attempt(members, allowed, |group| at_boot.plan(group, allowed));
    // They are of who uses the GPUs now, and are no reason.
    outcome.warnings.clear();
    if outcome.status == OpStatus::Possible {
        return Vec::new();
    }
    let ended = judged(outcome, reasons);
    if ended.verdict == KeptVerdict::Asserted { Vec::new() } else { ended.reasons }
}

/// Returns how the GPUs differ from those of the document.
fn differs(wanted: &[String], found: &[String]) -> String {
    let without = |from: &[String], these: &[String]| -> Vec<String> {
        from.iter().filter(|uuid| !these.contains(uuid)).cloned().collect()
    };
    let (missing, foreign) = (without(wanted, found), without(found, wanted));
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{} of {} GPUs are missing: {}", missing.len(), wanted.len(), missing.join(", ")));
    }
    if !foreign.is_empty() {
        parts.push(format!("{} it was not signed for: {}", foreign.len(), foreign.join(", ")));
    }
    format!("the node has other GPUs than the kept state was signed for ({})", parts.join("; "))
}

/// Takes the members out of the group whose changes need more than is allowed; returns why they are left.
fn leave(group: &mut GpuGroup, outcome: &OpOutcome, allowed: Disruption) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut at = 0;
    group.members.retain(|member| {
        let changes = outcome.members.get(at).map(|part| part.changes.as_slice()).unwrap_or_default();
        at += 1;
        let above: Vec<_> = changes.iter().filter(|change| change.disruption > allowed).collect();
        reasons.extend(above.iter().map(|change| {
            let needs = match change.disruption {
                Disruption::Live | Disruption::Clients => {
                    "needs GPUs without work, and a scheduler or a container runtime runs already"
                }
                Disruption::GpuReset => "needs a GPU reset",
                Disruption::Reboot => "needs a reboot",
            };
            format!("{} left: {}: {} {needs}", member.task.kind(), change.what(), change.values())
        }));
        above.is_empty()
    });
    reasons
}

/// Returns how the GPUs compare with what is kept, where a run has changed them in this boot: nothing was touched.
fn compared(mut outcome: OpOutcome, run: &str) -> Ended {
    let reasons = outcome.changes.iter().map(|change| {
        let (what, values) = (change.what(), change.values());
        format!(
            "the run {run} has changed the GPUs in this boot, and this is kept otherwise: {what}: {values}"
        )
    });
    let reasons = reasons.collect();
    outcome.changes.clear();
    judged(outcome, reasons)
}

fn judged(outcome: OpOutcome, mut reasons: Vec<String>) -> Ended {
    reasons.extend(outcome.awaiting.iter().map(|awaiting| awaiting.reason.clone()));
    // Nobody uses a GPU so early, so that the driver forgets it at once.
    reasons.extend(outcome.changes.iter().filter_map(|change| {
        change.note.as_deref().filter(|note| note.contains(FORGETS))?;
        Some(format!("{}: {FORGETS}", change.what()))
    }));
    // All of it was so when it was kept, so that what does not apply any more is not as declared.
    reasons.extend(outcome.members.iter().filter_map(|member| match &member.status {
        OpStatus::NotApplicable { reason } | OpStatus::Skipped { reason } => Some(reason.clone()),
        _ => None,
    }));
    let left = !reasons.is_empty();
    let verdict = match outcome.status {
        OpStatus::Ok | OpStatus::Changed if !left => KeptVerdict::Asserted,
        OpStatus::Ok | OpStatus::Changed | OpStatus::NotApplicable { .. } | OpStatus::Skipped { .. } => {
            KeptVerdict::Left
        }
        OpStatus::NeedsPermit { class } => {
            reasons.push(format!("the GPUs changed meanwhile, and it needs {class} now"));
            KeptVerdict::Left
        }
        OpStatus::Failed { kind: FailureKind::Busy, message } => {
            reasons.push(message);
            KeptVerdict::Left
        }
        OpStatus::Failed { message, .. } => {
            reasons.push(message);
            KeptVerdict::Failed
        }
        OpStatus::Unknown { reason } => {
            reasons.push(reason);
            KeptVerdict::Failed
        }
        OpStatus::Possible => {
            reasons.push("it cannot be told what is there".to_owned());
            KeptVerdict::Failed
        }
    };
    reasons.extend(outcome.warnings);
    Ended { verdict, reasons, changes: outcome.changes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_members(status: OpStatus, members: Vec<OpStatus>) -> Ended {
        let mut outcome = OpOutcome::new(status);
        outcome.members = members.into_iter().map(OpOutcome::new).collect();
        judged(outcome, Vec::new())
    }

    #[test]
    fn what_does_not_apply_any_more_is_not_asserted() {
        let gone = || OpStatus::NotApplicable { reason: "no MIG here".to_owned() };
        assert_eq!(with_members(OpStatus::Ok, vec![OpStatus::Ok]).verdict, KeptVerdict::Asserted);
        for whole in [OpStatus::Changed, OpStatus::Ok, gone()] {
            let ended = with_members(whole, vec![OpStatus::Ok, gone()]);
            assert_eq!(
                (ended.verdict, ended.reasons.join("; ").as_str()),
                (KeptVerdict::Left, "no MIG here")
            );
        }
        let unknown = with_members(OpStatus::Unknown { reason: "hung".to_owned() }, Vec::new());
        assert_eq!(unknown.verdict, KeptVerdict::Failed);
    }
}
