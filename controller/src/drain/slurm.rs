//! Slurm, through `scontrol` and `squeue` where they are installed: here or on a login node.
//!
//! Owns what is asked of Slurm and how its answers are judged. Must not know SSH or the engine. Invariants:
//! * one node a call, its name never a list: a list with one bad name changes the good ones and fails;
//! * the marker goes to Reason and to Extra (Comment if Extra is in use) in one request, and is read back;
//! * nothing is written to a node whose last reading, right before, does not allow it. Slurm has no compare-and-swap: who
//!   drains between that reading and our request is overwritten; the reading after cannot show it;
//! * every program runs under `timeout`, and a timeout is unknown, never no.

mod parse;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use tokio::time::Instant;

use self::parse::{Job, NodeRecord};
use self::standing::{away, evidence, held_by, is_silent, marks, outage, second_place, shown, standing};
use super::{
    Activity, Call, Cordon, DrainError, Drainer, Effect, Marker, Outage, Output, Ownership, RebootOrder,
    Runner, Target,
};
use crate::engine::is_word;

/// How much of a reason's text follows the marker, in characters.
const WHY_LENGTH: usize = 300;
/// How long a new boot must have been registered unchanged before the node is given back.
///
/// Why: Slurm computes the boot's time anew at each registration, to the second. One that moves right after a resume is
/// an unexpected reboot to it, and the node goes down without a drain of ours that would hold it (seen on 22.05).
const SETTLE: Duration = Duration::from_secs(3);
/// How many polls long a node must be silent until it counts as out for that alone.
///
/// Why not at once: right after a resume, and after a start of slurmctld, nodes are silent until they were heard once.
const SILENCE: u32 = 4;
/// How long a node that was given back is waited for until it answers, and so takes work.
const ANSWER: Duration = Duration::from_secs(30);
/// What `timeout` exits with when it stopped the program: by TERM, and by KILL.
const STOPPED: [i32; 2] = [124, 137];

/// What jobs on a node are told before it is drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Notice {
    #[default]
    Nothing,
    /// `scancel --signal=NAME --batch`, for example `USR1`.
    Signal(String),
    /// `scontrol requeue`.
    Requeue,
}

/// How Slurm is used.
#[derive(Clone, Debug)]
pub struct SlurmOptions {
    pub notice: Notice,
    /// For one program; one that reads the whole cluster gets four times as long.
    pub command_timeout: Duration,
    /// How long `resume` waits for a node to register after its boot.
    pub register_timeout: Duration,
    /// Between two readings while waiting.
    pub poll: Duration,
}

impl Default for SlurmOptions {
    fn default() -> Self {
        Self {
            notice: Notice::Nothing,
            command_timeout: Duration::from_secs(20),
            register_timeout: Duration::from_secs(300),
            poll: Duration::from_secs(3),
        }
    }
}

/// Drains through a Slurm controller.
pub struct SlurmDrainer {
    runner: Arc<dyn Runner>,
    options: SlurmOptions,
    /// Since when nodes are silent, by name, as the surveys saw it.
    silent: Mutex<HashMap<String, Instant>>,
}

impl SlurmDrainer {
    pub fn new(runner: Arc<dyn Runner>, options: SlurmOptions) -> Self {
        Self { runner, options, silent: Mutex::default() }
    }

    async fn run(&self, argv: &[&str], timeout: Duration) -> Result<Output, DrainError> {
        let seconds = timeout.as_secs().max(1).to_string();
        // Why unset: what a login shell exports would filter or redirect the answer.
        let wrapper = [
            "timeout",
            "-k",
            "2",
            &seconds,
            "env",
            "-u",
            "SQUEUE_STATES",
            "-u",
            "SQUEUE_USERS",
            "-u",
            "SQUEUE_PARTITION",
            "-u",
            "SLURM_CLUSTERS",
            "-u",
            "SLURM_TIME_FORMAT",
            "TZ=UTC",
            "LC_ALL=C",
        ];
        let call = Call::new(wrapper.iter().chain(argv).copied(), timeout + Duration::from_secs(5));
        let asks = matches!(
            argv,
            ["squeue" | "sinfo", ..] | ["scontrol", "show", ..] | ["scontrol", "-a", "show", ..]
        );
        let unknown = |did: String| DrainError::Program {
            command: argv.join(" "),
            place: self.runner.place(),
            did,
            effect: if asks { Effect::None } else { Effect::Unknown },
            next: "check that slurmctld answers (`scontrol ping`), then resume the run".to_owned(),
        };
        match self.runner.run(call).await {
            Ok(Output { status: Some(status), .. }) if STOPPED.contains(&status) => {
                Err(unknown(format!("gave no answer within {seconds} s")))
            }
            Ok(output @ Output { status: Some(0 | 1), .. }) => Ok(output),
            Ok(output) => Err(unknown(match output.status {
                Some(status) => format!("ended with status {status}: {}", said(&output)),
                None => "was ended by a signal".to_owned(),
            })),
            Err(error) => Err(unknown(error.to_string())),
        }
    }

    async fn ask(&self, argv: &[&str]) -> Result<Output, DrainError> {
        self.run(argv, self.options.command_timeout).await
    }

    fn refused(&self, argv: &[&str], output: &Output, help: &str) -> DrainError {
        DrainError::Refused {
            asked: format!("`{}`{}", argv.join(" "), self.runner.place()),
            said: said(output),
            next: help.to_owned(),
        }
    }

    async fn read(&self, target: &Target) -> Result<NodeRecord, DrainError> {
        let name = single(&target.node)?;
        let argv = ["scontrol", "show", "node", "-o", name];
        let output = self.ask(&argv).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let record = text.lines().filter_map(parse::node).find(|record| record.name == name);
        match record {
            Some(record) if output.status == Some(0) => Ok(record),
            _ => Err(self.refused(
                &argv,
                &output,
                &format!("check the name that Slurm has for the host `{}`", target.host),
            )),
        }
    }

    async fn jobs(&self, target: &Target) -> Result<Vec<Job>, DrainError> {
        let argv = ["squeue", "-a", "-h", "-w", single(&target.node)?, "-o", "%A|%u|%T|%j"];
        let output = self.ask(&argv).await?;
        if output.status != Some(0) {
            return Err(self.refused(&argv, &output, "what runs on the node is unknown"));
        }
        parse::jobs(&String::from_utf8_lossy(&output.stdout)).map_err(|line| DrainError::Program {
            command: argv.join(" "),
            place: self.runner.place(),
            did: format!("printed a line that is no job: `{line}`"),
            effect: Effect::None,
            next: "what runs on the node is unknown".to_owned(),
        })
    }

    async fn drain(&self, target: &Target, marker: &Marker, why: &str) -> Result<Cordon, DrainError> {
        writable(marker)?;
        let before = self.read(target).await?;
        match standing(&before, marker) {
            // Why again when DRAIN is missing: a node that is only DOWN may come back by itself and take work.
            Ownership::Ours if before.state.is_draining() => {
                return Ok(Cordon::Ours { evidence: evidence(&before) });
            }
            Ownership::Ours => {}
            Ownership::Theirs { by } => return Ok(Cordon::HeldByOthers { by }),
            Ownership::NotDrained => {
                if before.state.base == "UNKNOWN" {
                    return Err(unregistered(&before));
                }
                // Why not for silence alone: a node that was resumed a moment ago shows it for some seconds.
                if !marks(&before).is_empty() {
                    return Ok(Cordon::HeldByOthers { by: shown(&before) });
                }
            }
        }
        let name = format!("nodename={}", single(&target.node)?);
        let why = line(why);
        let reason = format!("reason={marker}{}{why}", if why.is_empty() { "" } else { " " });
        let second = second_place(&before).map(|place| format!("{place}={marker}"));
        let mut argv = vec!["scontrol", "update", &name, "state=drain", &reason];
        argv.extend(second.as_deref());
        let written = self.ask(&argv).await;
        // Why also after a failure: a request that gave no answer may have been carried out.
        let after = match (self.read(target).await, &written) {
            (Ok(after), _) => after,
            (Err(_), Err(error)) => return Err(error.clone()),
            (Err(error), Ok(_)) => return Err(error),
        };
        match standing(&after, marker) {
            Ownership::Ours if after.state.is_draining() => Ok(Cordon::Ours { evidence: evidence(&after) }),
            Ownership::Theirs { by } => Ok(Cordon::HeldByOthers { by }),
            _ => Err(match written {
                Err(error) => error,
                Ok(output) if output.status != Some(0) => self.refused(
                    &argv,
                    &output,
                    "draining needs a Slurm operator or administrator, or SlurmUser",
                ),
                Ok(_) => DrainError::Program {
                    command: argv.join(" "),
                    place: self.runner.place(),
                    did: format!("was accepted, yet {} shows {}", target.node, evidence(&after)),
                    effect: Effect::None,
                    next: format!(
                        "somebody may have resumed it at the same moment: look with `scontrol show node {}`",
                        target.node
                    ),
                },
            }),
        }
    }

    async fn tell(&self, target: &Target) -> Result<Vec<String>, DrainError> {
        if self.options.notice == Notice::Nothing {
            return Ok(Vec::new());
        }
        let mut told = Vec::new();
        for job in self.jobs(target).await?.iter().filter(|job| job.state == "RUNNING") {
            let signal;
            let (argv, done) = match &self.options.notice {
                Notice::Nothing => continue,
                Notice::Signal(name) => {
                    signal = format!("--signal={name}");
                    (vec!["scancel", &signal, "--batch", &job.id], format!("sent {name} to {job}"))
                }
                Notice::Requeue => (vec!["scontrol", "requeue", &job.id], format!("requeued {job}")),
            };
            let output = self.ask(&argv).await?;
            told.push(if output.status == Some(0) {
                done
            } else {
                format!("could not tell {job}: {}", said(&output))
            });
        }
        Ok(told)
    }

    async fn give_back(
        &self,
        target: &Target,
        marker: &Marker,
        rebooted_after: Option<Timestamp>,
    ) -> Result<Ownership, DrainError> {
        let deadline = Instant::now() + self.options.register_timeout;
        let mut registered: Option<(Timestamp, Instant)> = None;
        let before = loop {
            let waiting = match self.read(target).await {
                Ok(record) => match standing(&record, marker) {
                    other @ (Ownership::NotDrained | Ownership::Theirs { .. }) => return Ok(other),
                    Ownership::Ours => match away(&record, rebooted_after) {
                        None => match (rebooted_after, record.booted) {
                            (Some(_), Some(booted)) => match registered {
                                Some((same, since)) if same == booted && since.elapsed() >= SETTLE => {
                                    break record;
                                }
                                Some((same, _)) if same == booted => {
                                    Ok("its boot was registered only just now".to_owned())
                                }
                                _ => {
                                    registered = Some((booted, Instant::now()));
                                    Ok("its boot was registered only just now".to_owned())
                                }
                            },
                            _ => break record,
                        },
                        Some(waiting) => Ok(waiting),
                    },
                },
                Err(error) => Err(error),
            };
            if Instant::now() + self.options.poll > deadline {
                let waiting = waiting?;
                let long = self.options.register_timeout.as_secs();
                let place = self.runner.place();
                return Err(DrainError::StaysOut {
                    node: target.node.clone(),
                    out: "drained",
                    why: format!("{waiting}, {long} s long (`scontrol show node {}`{place})", target.node),
                    next: "check slurmd on the node, then resume the run".to_owned(),
                });
            }
            tokio::time::sleep(self.options.poll).await;
        };
        let name = format!("nodename={}", single(&target.node)?);
        let mut argv = vec!["scontrol", "update", &name, "state=resume"];
        let own = marker.to_string();
        // Why in the same request: the second marker never outlives the drain, and is never taken off before it.
        if before.extra.as_deref() == Some(own.as_str()) {
            argv.push("extra=");
        }
        if before.comment.as_deref() == Some(own.as_str()) {
            argv.push("comment=");
        }
        let written = self.ask(&argv).await;
        let after = match (self.read(target).await, &written) {
            (Ok(after), _) => after,
            (Err(_), Err(error)) => return Err(error.clone()),
            (Err(error), Ok(_)) => return Err(error),
        };
        match standing(&after, marker) {
            Ownership::NotDrained => {
                self.answering(target, after).await;
                Ok(Ownership::NotDrained)
            }
            Ownership::Theirs { by } => Ok(Ownership::Theirs { by }),
            Ownership::Ours => Err(match written {
                Err(error) => error,
                Ok(output) => self.refused(
                    &argv,
                    &output,
                    &format!("{} is still drained ({})", target.node, evidence(&after)),
                ),
            }),
        }
    }

    /// Reads a node; one whose state Slurm itself does not know yet, right after slurmctld's start, is waited for.
    async fn known(&self, target: &Target) -> Result<NodeRecord, DrainError> {
        let deadline = Instant::now() + self.options.poll * SILENCE;
        loop {
            let record = self.read(target).await?;
            if record.state.base != "UNKNOWN" {
                return Ok(record);
            }
            if Instant::now() >= deadline {
                return Err(unregistered(&record));
            }
            tokio::time::sleep(self.options.poll).await;
        }
    }

    /// Waits a bounded time until a node that was given back answers Slurm: before that it takes no work.
    async fn answering(&self, target: &Target, mut record: NodeRecord) {
        let deadline = Instant::now() + ANSWER;
        while is_silent(&record) && Instant::now() < deadline {
            tokio::time::sleep(self.options.poll.min(Duration::from_millis(500))).await;
            if let Ok(again) = self.read(target).await {
                record = again;
            }
        }
    }

    async fn leave_word(&self, target: &Target, marker: &Marker, why: &str) -> Result<(), DrainError> {
        if !matches!(standing(&self.read(target).await?, marker), Ownership::Ours) {
            return Ok(());
        }
        let name = format!("nodename={}", single(&target.node)?);
        let reason = format!("reason={marker} {}", line(why));
        let argv = ["scontrol", "update", &name, &reason];
        match self.ask(&argv).await? {
            output if output.status == Some(0) => Ok(()),
            output => Err(self.refused(&argv, &output, "its reason is the old one")),
        }
    }

    async fn everybody(&self, targets: &[Target]) -> Result<Vec<Outage>, DrainError> {
        let end = Instant::now() + self.options.poll * SILENCE * 2;
        loop {
            let nodes = self.all_nodes().await?;
            if !self.just_silent(targets, &nodes) || Instant::now() >= end {
                return Ok(targets
                    .iter()
                    .filter_map(|target| {
                        let record = nodes.get(&target.node);
                        let (why, marker) = match record {
                            None => ("not known to Slurm".to_owned(), None),
                            Some(record) => (outage(record)?, held_by(record)),
                        };
                        Some(Outage { node: target.node.clone(), why, marker, known: record.is_some() })
                    })
                    .collect());
            }
            tokio::time::sleep(self.options.poll).await;
        }
    }

    /// Whether any of these is silent, and not long enough to be out for that.
    fn just_silent(&self, targets: &[Target], nodes: &HashMap<String, NodeRecord>) -> bool {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut just = false;
        for target in targets {
            match nodes.get(&target.node) {
                Some(record) if is_silent(record) => {
                    let since = silent.entry(target.node.clone()).or_insert_with(Instant::now);
                    just |= since.elapsed() < self.options.poll * SILENCE;
                }
                _ => {
                    silent.remove(&target.node);
                }
            }
        }
        just
    }

    async fn all_nodes(&self) -> Result<HashMap<String, NodeRecord>, DrainError> {
        let argv = ["scontrol", "-a", "show", "node", "-o"];
        let output = self.run(&argv, self.options.command_timeout * 4).await?;
        if output.status != Some(0) {
            return Err(self.refused(&argv, &output, "who else is out is unknown"));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(parse::node).map(|record| (record.name.clone(), record)).collect())
    }

    async fn lock_holders(&self) -> Result<BTreeSet<String>, DrainError> {
        let argv = ["scontrol", "-a", "show", "reservation", "-o"];
        let output = self.ask(&argv).await?;
        match parse::lock_holders(&String::from_utf8_lossy(&output.stdout)) {
            Some(holders) if output.status == Some(0) => Ok(holders),
            _ => Err(self.refused(&argv, &output, "who holds the lock is unknown")),
        }
    }

    async fn take_lock(&self, run: &str) -> Result<Option<String>, DrainError> {
        let had = self.lock_holders().await?;
        if !had.contains(lock_word(run)?) {
            if let Some(holder) = had.into_iter().next() {
                return Ok(Some(holder));
            }
            return self.create_lock(run).await;
        }
        Ok(had.into_iter().find(|holder| holder != run))
    }

    async fn create_lock(&self, run: &str) -> Result<Option<String>, DrainError> {
        let argv = ["sinfo", "-a", "-h", "-N", "-o", "%N"];
        let output = self.ask(&argv).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(node) = text.lines().map(str::trim).find(|name| single(name).is_ok()) else {
            return Err(self.refused(&argv, &output, "a reservation as lock needs a node"));
        };
        let (name, nodes) = (format!("reservationname=gpufleet_{run}"), format!("nodes={node}"));
        // Why ten years: a job without a time limit counts as one year, and must not run into it.
        let argv = [
            "scontrol",
            "create",
            "reservation",
            &name,
            "starttime=now+3650days",
            "duration=1",
            &nodes,
            "users=root",
            "flags=ignore_jobs,overlap",
        ];
        let created = self.ask(&argv).await;
        let holders = match (self.lock_holders().await, &created) {
            (Ok(holders), _) => holders,
            (Err(_), Err(error)) => return Err(error.clone()),
            (Err(error), Ok(_)) => return Err(error),
        };
        if let Some(other) = holders.iter().find(|holder| *holder != run) {
            if holders.contains(run) {
                self.delete_lock(run).await?;
            }
            return Ok(Some(other.clone()));
        }
        if holders.contains(run) {
            return Ok(None);
        }
        Err(match created {
            Err(error) => error,
            Ok(output) => self.refused(
                &argv,
                &output,
                "the lock needs the right to create reservations: a Slurm operator, or SlurmUser",
            ),
        })
    }

    async fn delete_lock(&self, run: &str) -> Result<(), DrainError> {
        let name = format!("reservationname=gpufleet_{}", lock_word(run)?);
        let argv = ["scontrol", "delete", &name];
        let output = self.ask(&argv).await?;
        if self.lock_holders().await?.contains(run) {
            return Err(self.refused(&argv, &output, "the lock is still there"));
        }
        Ok(())
    }

    async fn reboot(&self, target: &Target, marker: &Marker) -> Result<RebootOrder, DrainError> {
        let reason = format!("reason={marker} reboot");
        let argv = ["scontrol", "reboot", "nextstate=DOWN", &reason, single(&target.node)?];
        let before = self.read(target).await?;
        let not_now = match standing(&before, marker) {
            Ownership::Ours if before.state.is_drained() => None,
            Ownership::Ours => Some(format!("is not drained yet (State={})", before.state)),
            Ownership::NotDrained => Some("is not drained".to_owned()),
            Ownership::Theirs { by } => Some(format!("is {by}")),
        };
        if let Some(why) = not_now {
            return Ok(RebootOrder::Refused(format!(
                "`{}` was not run: {} {why}; nothing was changed",
                argv.join(" "),
                target.node
            )));
        }
        let output = self.ask(&argv).await?;
        Ok(match output.status {
            Some(0) => RebootOrder::Taken,
            _ => RebootOrder::Refused(
                self.refused(&argv, &output, "check RebootProgram in slurm.conf, or reboot over SSH")
                    .to_string(),
            ),
        })
    }
}

impl Drainer for SlurmDrainer {
    fn name(&self) -> &str {
        "slurm"
    }

    fn cordon<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Cordon, DrainError>> {
        self.drain(target, marker, why).boxed()
    }

    fn notify<'a>(
        &'a self,
        target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Vec<String>, DrainError>> {
        self.tell(target).boxed()
    }

    fn activity<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Activity, DrainError>> {
        async move {
            let record = self.known(target).await?;
            let mut work: Vec<String> = self.jobs(target).await?.iter().map(Job::to_string).collect();
            if work.is_empty() && !record.state.is_drained() {
                work.push(if record.state.is_draining() {
                    format!("Slurm is not done with it (State={})", record.state)
                } else {
                    format!("it is not drained (State={})", record.state)
                });
            }
            Ok(if work.is_empty() { Activity::Idle } else { Activity::Busy { work } })
        }
        .boxed()
    }

    fn ownership<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        async move { Ok(standing(&self.read(target).await?, marker)) }.boxed()
    }

    fn resume<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        rebooted_after: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        self.give_back(target, marker, rebooted_after).boxed()
    }

    fn explain<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), DrainError>> {
        self.leave_word(target, marker, why).boxed()
    }

    fn survey<'a>(&'a self, targets: &'a [Target]) -> BoxFuture<'a, Result<Vec<Outage>, DrainError>> {
        self.everybody(targets).boxed()
    }

    fn lock<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Option<String>, DrainError>> {
        self.take_lock(run).boxed()
    }

    fn locked<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<bool, DrainError>> {
        async move { Ok(self.lock_holders().await?.contains(run)) }.boxed()
    }

    fn unlock<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<(), DrainError>> {
        self.delete_lock(run).boxed()
    }

    fn holders(&self) -> BoxFuture<'_, Result<Vec<String>, DrainError>> {
        async move { Ok(self.lock_holders().await?.into_iter().collect()) }.boxed()
    }

    fn reboot_via<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<RebootOrder, DrainError>> {
        self.reboot(target, marker).boxed()
    }

    fn reboot_is_queued<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<bool, DrainError>> {
        async move { Ok(self.read(target).await?.state.has("REBOOT_REQUESTED")) }.boxed()
    }
}

/// One line of bounded length.
fn line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(WHY_LENGTH).collect()
}

fn said(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let text = if stderr.trim().is_empty() { stdout } else { stderr };
    let text = line(&text);
    if text.is_empty() { "nothing".to_owned() } else { text }
}

/// Whether Slurm takes a name for one node: no list, no range, not its word for all.
pub fn is_node_name(name: &str) -> bool {
    is_word(name) && !name.starts_with('-') && !name.eq_ignore_ascii_case("all")
}

/// A node whose state Slurm itself does not know yet.
fn unregistered(record: &NodeRecord) -> DrainError {
    DrainError::Standing {
        what: format!("Slurm does not know the state of {} yet (State={})", record.name, record.state),
        next: "it will once the node registered after slurmctld's start".to_owned(),
    }
}

fn single(name: &str) -> Result<&str, DrainError> {
    if is_node_name(name) {
        Ok(name)
    } else {
        Err(DrainError::NotSent { why: format!("`{name}` is no name of one Slurm node"), left: "run" })
    }
}

fn lock_word(run: &str) -> Result<&str, DrainError> {
    if is_word(run) {
        Ok(run)
    } else {
        let why = format!("`{run}` cannot be part of a reservation's name");
        Err(DrainError::NotSent { why, left: "run" })
    }
}

fn writable(marker: &Marker) -> Result<(), DrainError> {
    if marker.is_writable() {
        Ok(())
    } else {
        Err(DrainError::NotSent { why: format!("`{marker}` cannot be read back from Slurm"), left: "run" })
    }
}

/// Reads a text as each of the answers that Slurm gives.
#[cfg(any(test, feature = "fuzzing"))]
pub fn read_foreign_text(text: &str) {
    for line in text.lines() {
        let _ = parse::node(line);
        let _ = is_node_name(line);
    }
    let _ = parse::State::parse(text).to_string();
    let _ = parse::jobs(text);
    let _ = parse::lock_holders(text);
}
