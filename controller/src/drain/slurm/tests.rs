use std::sync::Mutex;

use futures::future::{BoxFuture, FutureExt as _};
use proptest::prelude::*;

use super::*;
use crate::drain::RunError;

const V22: &str = "NodeName=gpu1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=1.56 AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:8 NodeAddr=127.0.0.1 NodeHostName=vm Port=27801 Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=2048 AllocMem=0 FreeMem=18353 Sockets=4 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=train,infer  BootTime=2026-11-21T09:32:03 SlurmdStartTime=2026-11-21T14:46:00 LastBusyTime=2026-11-21T14:46:00 CfgTRES=cpu=4,mem=2G,billing=4 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s Reason=gpufleet:01J:n1 mig = x | y [root@2026-11-21T14:46:01] Comment=hello = there Extra=gpufleet:01J:n1";
/// The shape of 24.11 and newer, after its source.
const V24: &str = "NodeName=gpu1 Arch=x86_64 CoresPerSocket=32  CPUAlloc=4 CPUEfctv=64 CPUTot=64 CPULoad=0.10 AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:h100:8(S:0-1) NodeAddr=gpu1 NodeHostName=gpu1 Version=24.11.5 OS=Linux 6.1.0-28-amd64 #1 SMP Debian 6.1.119-1  RealMemory=2048 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1 RestrictedCoresPerGPU=2(gpu:0-3)  State=MIXED+DRAIN+REBOOT_REQUESTED+NEW_FLAG ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A NextState=RESUME Partitions=train  BootTime=None SlurmdStartTime=None LastBusyTime=2026-11-21T14:46:00 ResumeAfterTime=None CfgTRES=cpu=64,mem=2G,billing=4 AllocTRES=cpu=4 CurrentWatts=n/a AveWatts=n/a Reason=bad DIMM [bob@2026-11-20T10:00:00] : reboot issued [alice@2026-11-21T10:00:00]         second line Comment=x Extra={\"a\": 1} InstanceId=i-1 InstanceType=p5 ReservationName=gpufleet_01J";

fn fields(line: &str) -> String {
    let record = parse::node(line).unwrap();
    let reason = record.reason.as_ref().map(|reason| (reason.text.as_str(), reason.by.as_ref()));
    format!(
        "{} {} booted {:?}\nreason {:?}\ncomment {:?}\nextra {:?}",
        record.name,
        record.state,
        record.booted.map(|booted| booted.to_string()),
        reason,
        record.comment,
        record.extra
    )
}

#[test]
fn reads_22_05() {
    insta::assert_snapshot!(fields(V22), @r#"
    gpu1 IDLE+DRAIN booted Some("2026-11-21T09:32:03Z")
    reason Some(("gpufleet:01J:n1 mig = x | y", Some(("root", "2026-11-21T14:46:01"))))
    comment Some("hello = there")
    extra Some("gpufleet:01J:n1")
    "#);
}

#[test]
fn reads_newer_versions() {
    insta::assert_snapshot!(fields(V24), @r#"
    gpu1 MIXED+DRAIN+NEW_FLAG+REBOOT_REQUESTED booted None
    reason Some(("bad DIMM [bob@2026-11-20T10:00:00] : reboot issued", Some(("alice", "2026-11-21T10:00:00"))))
    comment Some("x")
    extra Some("{\"a\": 1}")
    "#);
}

#[test]
fn completing_is_not_drained_and_marks_are_stripped() {
    for (text, drained) in [
        ("IDLE+DRAIN", true),
        ("DOWN+DRAIN+NOT_RESPONDING", true),
        ("IDLE*+DRAIN", true),
        ("IDLE+COMPLETING+DRAIN", false),
        ("MIXED+DRAIN", false),
        ("ALLOCATED+DRAIN", false),
        ("UNKNOWN+DRAIN", false),
        ("IDLE", false),
        ("DOWN", false),
        ("IDLE+DRAIN+SOMETHING_NEW", true),
    ] {
        assert_eq!(parse::State::parse(text).is_drained(), drained, "{text}");
    }
    assert!(parse::State::parse("DOWN*").has("NOT_RESPONDING"));
    for mark in ["~", "#", "$", "@", "^", "!", "%", "-"] {
        assert_eq!(parse::State::parse(&format!("IDLE{mark}")).base, "IDLE");
    }
}

#[test]
fn reads_jobs_and_locks() {
    let jobs = parse::jobs("1|alice|RUNNING|a b|c\n2|bob|COMPLETING|\n\n").unwrap();
    let shown: Vec<String> = jobs.iter().map(Job::to_string).collect();
    assert_eq!(shown, ["job 1 of alice", "job 2 of bob (completing)"]);
    assert_eq!(jobs[0].name, "a b|c");
    assert!(parse::jobs("slurm_load_jobs error").is_err());
    assert_eq!(parse::lock_holders("No reservations in the system").unwrap().len(), 0);
    let holders =
        parse::lock_holders("ReservationName=gpufleet_A StartTime=x\nReservationName=maint Start=y\n")
            .unwrap();
    assert_eq!(holders.into_iter().collect::<Vec<_>>(), ["A"]);
    assert_eq!(parse::lock_holders("slurm_load_reservations error: x"), None);
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*", line in "NodeName=[a-z]+ State=[A-Z+*]* ( Reason=| Extra=| Comment=| \\[|@|\\]|=|[a-zé]| )*") {
        let _ = (parse::node(&text), parse::node(&line), parse::jobs(&text), parse::lock_holders(&text));
        let _ = parse::State::parse(&text);
    }

    #[test]
    fn what_slurm_prints_is_read_back(
        reason in "[a-zA-Z0-9=|:\\[\\]@é.\" ]{0,40}[a-z]",
        comment in "[a-z=| ]{0,20}[a-z]",
        flags in proptest::sample::subsequence(vec!["COMPLETING", "DRAIN", "NOT_RESPONDING", "XYZ"], 0..4),
    ) {
        let reason = reason.trim();
        let state = std::iter::once("IDLE").chain(flags.clone()).collect::<Vec<_>>().join("+");
        let line = format!("NodeName=n1 State={state} BootTime=2026-01-02T03:04:05 AllocTRES= Reason={reason} [al@2026-01-02T03:04:05] Comment={comment} Extra=gpufleet:r:n");
        let record = parse::node(&line).unwrap();
        prop_assert_eq!(&record.reason.as_ref().unwrap().text, reason);
        prop_assert_eq!(record.comment.as_deref(), Some(comment.trim()));
        prop_assert_eq!(record.extra.as_deref(), Some("gpufleet:r:n"));
        prop_assert_eq!(record.state.flags.iter().map(String::as_str).collect::<Vec<_>>(), flags);
        prop_assert_eq!(record.booted, Some("2026-01-02T03:04:05Z".parse().unwrap()));
    }
}

/// A slurmctld in a few fields, and what people do to it between our requests.
#[derive(Default)]
struct Fake {
    state: String,
    reason: Option<(String, String)>,
    extra: String,
    comment: String,
    booted: String,
    jobs: String,
    reservations: Vec<String>,
    /// What was asked, without the wrapper.
    asked: Vec<Vec<String>>,
    /// Before the nth request, a person drains.
    person_at: Option<usize>,
    /// The nth request, and whether it takes effect, gives no answer.
    silent_at: Option<(usize, bool)>,
    /// Given back, the node is silent.
    sleeps: bool,
    /// Before the nth request, the node is heard.
    heard_at: Option<usize>,
}

struct FakeRunner(Mutex<Fake>);

impl Fake {
    fn new(state: &str) -> Self {
        Self { state: state.into(), booted: "2026-11-21T09:00:00".into(), ..Self::default() }
    }

    fn drained_by(user: &str, reason: &str) -> Self {
        Self { reason: Some((reason.into(), user.into())), ..Self::new("IDLE+DRAIN") }
    }

    fn ours() -> Self {
        Self { extra: "gpufleet:R:N".into(), ..Self::drained_by("root", "gpufleet:R:N mig") }
    }

    fn line(&self) -> String {
        let mut line = format!("NodeName=gpu1 State={} BootTime={} AllocTRES=", self.state, self.booted);
        if let Some((reason, user)) = &self.reason {
            line += &format!(" Reason={reason} [{user}@2026-11-21T10:00:00]");
        }
        for (key, value) in [("Comment", &self.comment), ("Extra", &self.extra)] {
            if !value.is_empty() {
                line += &format!(" {key}={value}");
            }
        }
        line
    }

    fn answer(&mut self, argv: &[String]) -> (i32, String) {
        let value = |key: &str| {
            argv.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
        };
        let words: Vec<&str> = argv.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["scontrol", "show", "node", ..] | ["scontrol", "-a", "show", "node", ..] => (0, self.line()),
            ["squeue", ..] => (0, self.jobs.clone()),
            ["sinfo", ..] => (0, "gpu1\n".into()),
            ["scontrol", "-a", "show", "reservation", ..] if self.reservations.is_empty() => {
                (0, "No reservations in the system\n".into())
            }
            ["scontrol", "-a", "show", "reservation", ..] => (
                0,
                self.reservations
                    .iter()
                    .map(|name| format!("ReservationName={name} StartTime=x\n"))
                    .collect(),
            ),
            ["scontrol", "create", "reservation", ..] => {
                self.reservations.extend(value("reservationname"));
                (0, String::new())
            }
            ["scontrol", "delete", ..] => {
                let name = value("reservationname").unwrap();
                self.reservations.retain(|reservation| *reservation != name);
                (0, String::new())
            }
            ["scontrol", "update", "nodename=gpu1", rest @ ..] => {
                if let Some(extra) = value("extra") {
                    self.extra = extra;
                }
                if let Some(comment) = value("comment") {
                    self.comment = comment;
                }
                if rest.contains(&"state=drain") {
                    self.state = "IDLE+DRAIN".into();
                    self.reason = value("reason").map(|reason| (reason, "root".into()));
                } else if rest.contains(&"state=resume") {
                    self.state = if self.sleeps { "IDLE*" } else { "IDLE" }.into();
                    self.reason = None;
                }
                (0, String::new())
            }
            _ => (0, String::new()),
        }
    }
}

impl Runner for FakeRunner {
    fn place(&self) -> String {
        " on login1".into()
    }

    fn run(&self, call: Call) -> BoxFuture<'_, Result<Output, RunError>> {
        let mut fake = self.0.lock().unwrap();
        assert_eq!(call.argv[0], "timeout", "every program runs under timeout");
        let start = call.argv.iter().position(|word| word == "LC_ALL=C").unwrap() + 1;
        let argv = call.argv[start..].to_vec();
        let index = fake.asked.len();
        fake.asked.push(argv.clone());
        if fake.person_at == Some(index) {
            fake.state = "IDLE+DRAIN".into();
            fake.reason = Some(("bad DIMM".into(), "alice".into()));
        }
        if fake.heard_at == Some(index) {
            fake.state = "IDLE".into();
        }
        let silent = fake.silent_at.filter(|(at, _)| *at == index);
        if silent.is_none_or(|(_, effect)| effect) {
            let (status, stdout) = fake.answer(&argv);
            if silent.is_none() {
                let output = Output { status: Some(status), stdout: stdout.into_bytes(), stderr: Vec::new() };
                return async move { Ok(output) }.boxed();
            }
        }
        async { Ok(Output { status: Some(124), stdout: Vec::new(), stderr: Vec::new() }) }.boxed()
    }
}

fn with(fake: Fake) -> (SlurmDrainer, Arc<FakeRunner>) {
    let runner = Arc::new(FakeRunner(Mutex::new(fake)));
    let options = SlurmOptions { register_timeout: Duration::from_secs(20), ..SlurmOptions::default() };
    (SlurmDrainer::new(runner.clone(), options), runner)
}

fn target() -> Target {
    Target { host: "h1".into(), node: "gpu1".into() }
}

fn own() -> Marker {
    Marker { run: "R".into(), nonce: "N".into() }
}

fn updates(runner: &FakeRunner) -> usize {
    runner.0.lock().unwrap().asked.iter().filter(|argv| argv.contains(&"update".to_owned())).count()
}

#[tokio::test]
async fn a_free_node_is_drained_with_both_marks_in_one_request() {
    let (drainer, runner) = with(Fake::new("MIXED"));
    let cordon = drainer.cordon(&target(), &own(), "mig\nlayout").await.unwrap();
    assert!(matches!(cordon, Cordon::Ours { .. }), "{cordon:?}");
    assert_eq!(updates(&runner), 1);
    assert!(runner.0.lock().unwrap().asked.iter().any(|argv| {
        argv == &[
            "scontrol",
            "update",
            "nodename=gpu1",
            "state=drain",
            "reason=gpufleet:R:N mig layout",
            "extra=gpufleet:R:N",
        ]
    }));
    assert!(matches!(drainer.cordon(&target(), &own(), "x").await, Ok(Cordon::Ours { .. })));
    assert_eq!(updates(&runner), 1, "what is ours already is not drained again");
}

#[tokio::test]
async fn what_others_hold_is_refused_untouched() {
    for (fake, by) in [
        (Fake::drained_by("alice", "bad DIMM"), "drained by alice: bad DIMM"),
        (
            Fake { state: "MIXED+DRAIN".into(), ..Fake::drained_by("al", "x | y = z") },
            "drained by al: x | y = z",
        ),
        (Fake { state: "IDLE".into(), ..Fake::drained_by("al", "look") }, "marked by al: look"),
        (Fake::new("DOWN"), "down"),
        (Fake::new("FAIL"), "fail"),
        (Fake::new("IDLE+MAINTENANCE+RESERVED"), "maintenance"),
        (Fake::new("IDLE+REBOOT_REQUESTED"), "reboot requested"),
        (Fake::new("IDLE+POWERED_DOWN"), "powered down"),
        (
            Fake::drained_by("root", "gpufleet:OTHER:N mig"),
            "drained by gpufleet run OTHER: gpufleet:OTHER:N mig",
        ),
        (Fake::drained_by("root", "gpufleet:R:OTHER mig"), "drained by gpufleet run R: gpufleet:R:OTHER mig"),
    ] {
        let (drainer, runner) = with(fake);
        assert_eq!(drainer.cordon(&target(), &own(), "x").await, Ok(Cordon::HeldByOthers { by: by.into() }));
        assert_eq!(updates(&runner), 0, "{by}");
    }
}

#[tokio::test]
async fn a_race_is_lost_at_the_read_back() {
    let (drainer, _) = with(Fake { person_at: Some(2), ..Fake::new("IDLE") });
    let cordon = drainer.cordon(&target(), &own(), "x").await;
    assert_eq!(cordon, Ok(Cordon::HeldByOthers { by: "drained by alice: bad DIMM".into() }));
}

#[tokio::test(start_paused = true)]
async fn who_overwrites_our_drain_at_any_moment_keeps_it() {
    // Request 0 reads and 1 resumes; a person at 1 falls into the one window that Slurm leaves open.
    for at in [0, 2] {
        let (drainer, runner) = with(Fake { person_at: Some(at), ..Fake::ours() });
        let result = drainer.resume(&target(), &own(), None).await;
        assert_eq!(result, Ok(Ownership::Theirs { by: "drained by alice: bad DIMM".into() }), "{at}");
        assert!(runner.0.lock().unwrap().state.contains("DRAIN"));
    }
    // While it waits for the boot, at any reading.
    let reboot = Some("2026-11-21T12:00:00Z".parse().unwrap());
    for at in 0..6 {
        let (drainer, runner) = with(Fake { person_at: Some(at), ..Fake::ours() });
        let result = drainer.resume(&target(), &own(), reboot).await;
        assert_eq!(result, Ok(Ownership::Theirs { by: "drained by alice: bad DIMM".into() }), "{at}");
        assert_eq!(updates(&runner), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn resume_waits_for_the_newer_boot_and_gives_up_in_time() {
    let reboot = |text: &str| Some(text.parse().unwrap());
    let (drainer, runner) = with(Fake::ours());
    let error = drainer.resume(&target(), &own(), reboot("2026-11-21T09:00:00Z")).await.unwrap_err();
    assert!(error.to_string().contains("has not registered since its reboot"), "{error}");
    assert_eq!(updates(&runner), 0);
    for state in ["DOWN+DRAIN+NOT_RESPONDING", "UNKNOWN+DRAIN", "DOWN+DRAIN+REBOOT_ISSUED"] {
        let (drainer, runner) = with(Fake { state: state.into(), ..Fake::ours() });
        assert!(drainer.resume(&target(), &own(), None).await.is_err(), "{state}");
        assert_eq!(updates(&runner), 0);
    }
    for state in ["DOWN+DRAIN", "IDLE+DRAIN"] {
        let (drainer, runner) = with(Fake { state: state.into(), ..Fake::ours() });
        let result = drainer.resume(&target(), &own(), reboot("2026-11-21T08:59:59Z")).await;
        assert_eq!(result, Ok(Ownership::NotDrained));
        assert_eq!(runner.0.lock().unwrap().extra, "");
    }
}

#[tokio::test]
async fn ownership_needs_both_marks_and_tolerates_what_slurm_appends() {
    let appended = Fake {
        state: "DOWN".into(),
        extra: "gpufleet:R:N".into(),
        ..Fake::drained_by("root", "gpufleet:R:N mig : reboot issued : reboot complete")
    };
    let elsewhere = Fake { extra: "{\"a\": 1}".into(), comment: "gpufleet:R:N".into(), ..Fake::ours() };
    let nowhere = Fake { extra: "{}".into(), comment: "rack 7".into(), ..Fake::ours() };
    for fake in [Fake::ours(), appended, elsewhere, nowhere] {
        let (drainer, _) = with(fake);
        assert_eq!(drainer.ownership(&target(), &own()).await, Ok(Ownership::Ours));
    }
    let cleared = Fake { extra: String::new(), ..Fake::ours() };
    let other = Fake { extra: "gpufleet:R:OTHER".into(), ..Fake::ours() };
    let failing = Fake { state: "IDLE+DRAIN+FAIL".into(), ..Fake::ours() };
    for fake in [cleared, other, failing, Fake { state: "IDLE".into(), ..Fake::ours() }] {
        let (drainer, _) = with(fake);
        let owner = drainer.ownership(&target(), &own()).await;
        assert!(matches!(owner, Ok(Ownership::Theirs { .. })), "{owner:?}");
    }
    let (drainer, _) = with(Fake { extra: "gpufleet:R:N".into(), ..Fake::new("IDLE") });
    assert_eq!(drainer.ownership(&target(), &own()).await, Ok(Ownership::NotDrained));
}

#[tokio::test]
async fn silence_is_unknown_and_never_no() {
    let (drainer, _) = with(Fake { silent_at: Some((0, false)), ..Fake::ours() });
    let error = drainer.ownership(&target(), &own()).await.unwrap_err();
    assert!(
        error.to_string().starts_with("`scontrol show node -o gpu1` on login1 gave no answer within 20 s"),
        "{error}"
    );
    let (drainer, _) = with(Fake { silent_at: Some((1, false)), ..Fake::ours() });
    assert!(drainer.activity(&target()).await.is_err());
    // A drain whose answer was lost: what is read afterwards decides.
    let (drainer, _) = with(Fake { silent_at: Some((1, true)), ..Fake::new("IDLE") });
    assert!(matches!(drainer.cordon(&target(), &own(), "x").await, Ok(Cordon::Ours { .. })));
    let (drainer, _) = with(Fake { silent_at: Some((1, false)), ..Fake::new("IDLE") });
    assert!(drainer.cordon(&target(), &own(), "x").await.is_err());
}

#[tokio::test]
async fn a_node_is_idle_only_when_drained_and_without_jobs() {
    for (state, jobs, idle) in [
        ("IDLE+DRAIN", "", true),
        ("DOWN+DRAIN", "", true),
        ("IDLE+COMPLETING+DRAIN", "", false),
        ("IDLE+DRAIN", "7|al|COMPLETING|x", false),
        ("IDLE", "", false),
    ] {
        let (drainer, _) = with(Fake { state: state.into(), jobs: jobs.into(), ..Fake::ours() });
        assert_eq!(drainer.activity(&target()).await == Ok(Activity::Idle), idle, "{state} {jobs}");
    }
}

#[tokio::test]
async fn a_name_that_is_a_list_reaches_nobody() {
    for node in ["gpu[1-4]", "gpu1,gpu2", "ALL", "all", "", "-f", "gpu1 gpu2"] {
        let (drainer, runner) = with(Fake::new("IDLE"));
        let target = Target { host: "h".into(), node: node.into() };
        assert!(drainer.cordon(&target, &own(), "x").await.is_err(), "{node}");
        assert!(drainer.activity(&target).await.is_err());
        assert!(runner.0.lock().unwrap().asked.is_empty());
    }
    let (drainer, runner) = with(Fake::new("IDLE"));
    let marker = Marker { run: "a b".into(), nonce: "n".into() };
    assert!(drainer.cordon(&target(), &marker, "x").await.is_err());
    assert!(drainer.lock("a b").await.is_err());
    assert!(!runner.0.lock().unwrap().asked.iter().any(|argv| argv.contains(&"create".to_owned())));
}

#[tokio::test]
async fn the_lock_is_one_runs() {
    let (drainer, runner) = with(Fake::new("IDLE"));
    assert_eq!(drainer.lock("A").await, Ok(None));
    assert_eq!(drainer.lock("A").await, Ok(None));
    assert_eq!(drainer.lock("B").await, Ok(Some("A".into())));
    assert_eq!(drainer.locked("A").await, Ok(true));
    drainer.unlock("A").await.unwrap();
    assert!(runner.0.lock().unwrap().reservations.is_empty());
    assert_eq!(drainer.locked("A").await, Ok(false));
}

#[tokio::test]
async fn a_reboot_is_refused_unless_the_node_is_ours_and_drained() {
    for fake in
        [Fake::new("IDLE"), Fake::drained_by("al", "x"), Fake { state: "MIXED+DRAIN".into(), ..Fake::ours() }]
    {
        let (drainer, runner) = with(fake);
        let order = drainer.reboot_via(&target(), &own()).await.unwrap();
        assert!(matches!(order, RebootOrder::Refused(_)), "{order:?}");
        assert!(!runner.0.lock().unwrap().asked.iter().any(|argv| argv.contains(&"reboot".to_owned())));
    }
    let (drainer, _) = with(Fake::ours());
    assert_eq!(drainer.reboot_via(&target(), &own()).await, Ok(RebootOrder::Taken));
    assert_eq!(drainer.reboot_is_queued(&target()).await, Ok(false));
    let (drainer, _) = with(Fake { state: "IDLE+DRAIN+REBOOT_REQUESTED".into(), ..Fake::ours() });
    assert_eq!(drainer.reboot_is_queued(&target()).await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn only_lasting_silence_is_an_outage() {
    for state in ["IDLE*", "UNKNOWN", "IDLE+NOT_RESPONDING"] {
        let (drainer, runner) = with(Fake { heard_at: Some(2), ..Fake::new(state) });
        assert_eq!(drainer.survey(&[target()]).await, Ok(vec![]), "{state}");
        assert_eq!(runner.0.lock().unwrap().asked.len(), 3, "asked until it was heard: {state}");

        let (drainer, runner) = with(Fake::new(state));
        let out = drainer.survey(&[target()]).await.unwrap();
        assert_eq!(out[0].node, "gpu1", "{state}");
        let asked = runner.0.lock().unwrap().asked.len();
        assert_eq!(drainer.survey(&[target()]).await.unwrap().len(), 1);
        assert_eq!(runner.0.lock().unwrap().asked.len(), asked + 1, "what is known delays nobody: {state}");
    }
    let (drainer, runner) = with(Fake::new("DOWN*"));
    assert_eq!(drainer.survey(&[target()]).await.unwrap().len(), 1);
    assert_eq!(runner.0.lock().unwrap().asked.len(), 1, "down is out at once");
}

#[tokio::test(start_paused = true)]
async fn a_state_that_slurm_does_not_know_is_neither_idle_nor_busy() {
    let (drainer, runner) = with(Fake { heard_at: Some(2), ..Fake::new("UNKNOWN+DRAIN") });
    // Heard, it is IDLE without a drain: not idle for us.
    assert!(matches!(drainer.activity(&target()).await, Ok(Activity::Busy { .. })));
    assert_eq!(runner.0.lock().unwrap().asked.len(), 4, "three readings, then the jobs");
    let (drainer, _) = with(Fake::new("UNKNOWN+DRAIN"));
    assert!(drainer.activity(&target()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_node_is_given_back_when_it_answers() {
    let (drainer, runner) = with(Fake { sleeps: true, heard_at: Some(6), ..Fake::ours() });
    assert_eq!(drainer.resume(&target(), &own(), None).await, Ok(Ownership::NotDrained));
    assert_eq!(runner.0.lock().unwrap().state, "IDLE");
    // Who never answers is not drained all the same.
    let (drainer, _) = with(Fake { sleeps: true, ..Fake::ours() });
    assert_eq!(drainer.resume(&target(), &own(), None).await, Ok(Ownership::NotDrained));
}

#[tokio::test]
async fn tells_which_runs_hold_the_lock() {
    let reservations = ["gpufleet_B", "maintenance", "gpufleet_A"].map(str::to_owned).to_vec();
    let (drainer, _) = with(Fake { reservations, ..Fake::new("IDLE") });
    assert_eq!(drainer.holders().await, Ok(vec!["A".to_owned(), "B".to_owned()]));
    let (drainer, _) = with(Fake { silent_at: Some((0, false)), ..Fake::new("IDLE") });
    assert!(drainer.holders().await.is_err());
}

#[tokio::test]
async fn a_note_on_a_working_node_is_no_outage() {
    let (drainer, _) = with(Fake { state: "IDLE".into(), ..Fake::drained_by("al", "look") });
    assert_eq!(drainer.survey(&[target()]).await, Ok(vec![]));
    let (drainer, _) = with(Fake::ours());
    assert_eq!(drainer.survey(&[target()]).await.unwrap()[0].marker, Some(own()));
}
