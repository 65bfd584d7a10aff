//! Tests the real binary over pipes, as a controller uses it.

mod jobs;
mod racing;

use std::{
    collections::VecDeque,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    Disruption, Envelope, FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus, PROTOCOL_VERSION, Permit,
    Reply, Request, RunEpoch,
    frame::{Decoder, Frame, Preamble},
    health::{HealthCheck, HealthRequest},
    message::{Hello, Mode, Open, Spooled},
    op::{Blob, Exec, FactsRequest, Program, PutFile, Reboot, Staying},
    signal::Signals,
    tasks::HealthInfo,
};
use sha2::{Digest, Sha256};

const PATIENCE: Duration = Duration::from_secs(30);

struct Helper {
    child: Child,
    stdin: Option<ChildStdin>,
    replies: Receiver<Envelope<Reply>>,
    aside: VecDeque<Envelope<Reply>>,
    next: u64,
}

fn command(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufleet-node"));
    command.arg("serve").arg("--state-dir").arg(state);
    command
}

impl Helper {
    fn start(mut command: Command) -> (Self, Hello) {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            let (mut preamble, mut decoder, mut started) = (Preamble::default(), Decoder::default(), false);
            let mut buffer = [0u8; 65536];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                if started {
                    decoder.feed(&buffer[..count]);
                } else if let Some(rest) = preamble.feed(&buffer[..count]).unwrap() {
                    started = true;
                    decoder.feed(&rest);
                }
                while let Some(frame) = decoder.next_frame().unwrap() {
                    if sender.send(frame.decode().unwrap().unwrap()).is_err() {
                        return;
                    }
                }
            }
        });
        let stdin = child.stdin.take();
        let mut helper = Self { child, stdin, replies, aside: VecDeque::new(), next: 1 };
        let first = helper.replies.recv_timeout(PATIENCE).unwrap();
        let Reply::Hello(hello) = first.body else { panic!("{first:?}") };
        helper.next = 1;
        (helper, hello)
    }

    fn opened(state: &Path, run: &str, epoch: u64) -> Self {
        let (mut helper, _) = Self::start(command(state));
        let reply = helper.open(run, epoch, true);
        assert!(matches!(reply, Reply::Opened(_)), "{reply:?}");
        helper
    }

    fn raw(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    fn send(&mut self, body: Request) -> u64 {
        let id = self.next;
        self.next += 1;
        self.raw(&Frame::message(&Envelope { id, body }).unwrap().encode().unwrap());
        id
    }

    fn reply(&mut self, id: u64) -> Reply {
        if let Some(at) = self.aside.iter().position(|reply| reply.id == id) {
            return self.aside.remove(at).unwrap().body;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let reply = self.replies.recv_timeout(until - Instant::now()).unwrap();
            if reply.id == id {
                return reply.body;
            }
            self.aside.push_back(reply);
        }
    }

    fn ask(&mut self, body: Request) -> Reply {
        let id = self.send(body);
        self.reply(id)
    }

    fn open(&mut self, run: &str, epoch: u64, writes: bool) -> Reply {
        let holder = RunEpoch { run: run.into(), epoch };
        self.ask(Request::Open(Open {
            holder,
            who: format!("{run}@test"),
            writes,
            guest: false,
            commands: false,
            own_commands: false,
            login_uid: None,
        }))
    }

    fn begin(&mut self, op: NodeOp, mode: Mode, timeout_s: u64) -> u64 {
        self.send(Request::Op(Box::new(request(op, mode, timeout_s))))
    }

    fn outcome(&mut self, id: u64) -> OpOutcome {
        match self.reply(id) {
            Reply::Outcome(outcome) => *outcome,
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, op: NodeOp, mode: Mode) -> OpOutcome {
        let id = self.begin(op, mode, 20);
        self.outcome(id)
    }

    fn ends(&mut self) -> i32 {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < until, "the helper did not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(op: NodeOp, mode: Mode, timeout_s: u64) -> OpRequest {
    OpRequest {
        op,
        mode,
        permit: None,
        run_as: None,
        timeout_s,
        op_id: "op".into(),
        secret: false,
        environment: Vec::new(),
    }
}

fn shell(line: &str) -> NodeOp {
    let run = Program::Shell { line: line.into(), executable: "/bin/bash".into() };
    NodeOp::Exec(Exec { run, ..Exec::default() })
}

fn blob(bytes: &[u8]) -> Blob {
    let sha256 = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Blob { sha256, size: bytes.len() as u64 }
}

fn put(dest: &Path, bytes: &[u8]) -> NodeOp {
    NodeOp::PutFile(PutFile {
        dest: dest.display().to_string(),
        name: "name".into(),
        blob: Some(blob(bytes)),
        remote_src: None,
        preview: None,
        owner: None,
        group: None,
        mode: None,
        backup: false,
        force: true,
        validate: None,
        secret: false,
        follow: false,
        checksum: None,
        directory_mode: None,
        source: None,
        tells_diff: false,
    })
}

/// Sends content in pieces of this size, and a final empty piece.
fn stream(helper: &mut Helper, stream: u32, bytes: &[u8], piece: usize) {
    helper.send(Request::Blob { stream, sha256: String::new() });
    for bytes in bytes.chunks(piece).chain([&[][..]]) {
        helper.raw(&Frame::Data { stream, bytes: bytes.to_vec() }.encode().unwrap());
    }
}

fn alive(marker: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| {
            std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).split('\0').next() == Some(marker))
        })
        .count()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[test]
fn hello_tells_who_answers() {
    let place = Place::new();
    let (mut helper, hello) = Helper::start(command(&place.state()));
    let file = std::fs::read(env!("CARGO_BIN_EXE_gpufleet-node")).unwrap();
    assert_eq!(hello.protocol, PROTOCOL_VERSION);
    assert_eq!(hello.digest, blob(&file).sha256);
    assert_eq!((hello.pid, hello.arch.as_str()), (helper.child.id(), std::env::consts::ARCH));
    assert!(hello.boot_id.is_some());
    let refused = helper.ask(Request::Op(Box::new(request(shell("true"), Mode::Apply, 5))));
    assert_eq!(refused, Reply::Error { message: "the session is not open".into() });
    assert!(!place.state().exists(), "nothing is made before a writer opens");
}

#[test]
fn commands_run_several_at_once_and_leave_their_result() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let slow = helper.begin(shell("sleep 0.5; echo slow"), Mode::Apply, 20);
    let fast = helper.begin(shell("echo fast; echo $LANG $LD_PRELOAD; umask"), Mode::Apply, 20);
    let done = helper.outcome(fast);
    assert_eq!(
        (done.status, &done.data["stdout_lines"]),
        (OpStatus::Changed, &serde_json::json!(["fast", "C.UTF-8", "0022"]))
    );
    assert_eq!(helper.outcome(slow).data["stdout"], "slow");
    let spooled: Vec<_> = std::fs::read_dir(place.state().join("spool")).unwrap().flatten().collect();
    assert_eq!(spooled.len(), 1);
    assert!(std::fs::read_to_string(spooled[0].path()).unwrap().contains("\"op_id\":\"op\""));
    assert_eq!(helper.run(shell("false"), Mode::Predict).status, OpStatus::Possible);
}

#[test]
fn a_timeout_kills_grandchildren() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let marker = format!("gpufleet-serve-timeout-{}", std::process::id());
    let line = format!(
        "echo begun; bash -c 'exec -a {marker} sleep 600' & setsid bash -c 'exec -a {marker} sleep 600' & wait"
    );
    // Long enough for a busy machine to start both.
    let id = helper.begin(shell(&line), Mode::Apply, 6);
    wait_for("both run", || alive(&marker) == 2);
    let done = helper.outcome(id);
    assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::TimedOut, .. }), "{done:?}");
    assert_eq!(done.data["stdout"], "begun");
    // On a busy machine, a killed process that left the group takes a moment to disappear.
    wait_for("both are killed", || alive(&marker) == 0);
}

#[test]
fn cancel_stops_a_command() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let id = helper.begin(shell("sleep 600"), Mode::Apply, 600);
    std::thread::sleep(Duration::from_millis(200));
    helper.send(Request::Cancel { id });
    let done = helper.outcome(id);
    assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::Cancelled, .. }), "{done:?}");
    helper.send(Request::Cancel { id: 4711 });
    assert_eq!(helper.run(shell("true"), Mode::Apply).status, OpStatus::Changed);
}

#[test]
fn the_end_of_the_channel_ends_helper_and_children() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let marker = format!("gpufleet-serve-eof-{}", std::process::id());
    helper.begin(shell(&format!("bash -c 'exec -a {marker} sleep 600' & wait")), Mode::Apply, 600);
    wait_for("it runs", || alive(&marker) == 1);
    drop(helper.stdin.take());
    assert_eq!(helper.ends(), 0);
    assert_eq!(alive(&marker), 0);
}

#[test]
fn silence_ends_helper_and_children_and_pings_prevent_it() {
    let place = Place::new();
    let mut command = command(&place.state());
    command.args(["--heartbeat-timeout-ms", "6000"]);
    let (mut helper, _) = Helper::start(command);
    assert!(matches!(helper.open("run", 1, true), Reply::Opened(_)));
    let marker = format!("gpufleet-serve-silence-{}", std::process::id());
    helper.begin(shell(&format!("exec -a {marker} sleep 600")), Mode::Apply, 600);
    for _ in 0..16 {
        std::thread::sleep(Duration::from_millis(500));
        helper.send(Request::Ping);
    }
    assert_eq!(alive(&marker), 1);
    assert_eq!(helper.ends(), 1);
    assert_eq!(alive(&marker), 0);
}

#[test]
fn garbage_ends_with_an_error() {
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 2, b'X', 0], &[0xff; 64]] {
        let place = Place::new();
        let (mut helper, _) = Helper::start(command(&place.state()));
        helper.raw(garbage);
        let Reply::Error { message } = helper.reply(0) else { panic!() };
        assert!(message.starts_with("what came is not the protocol"), "{message}");
        assert_eq!(helper.ends(), 1);
    }
}

#[test]
fn a_message_that_is_not_understood_is_answered_under_its_id() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    for (text, id) in [("{\"id\":77,\"body\":{\"request\":\"fly\"}}", 77), ("not json", 0)] {
        helper.raw(&Frame::Json(text.into()).encode().unwrap());
        let Reply::Error { message } = helper.reply(id) else { panic!() };
        assert!(message.starts_with("the request cannot be understood"), "{message}");
    }
    assert_eq!(helper.run(shell("true"), Mode::Apply).status, OpStatus::Changed);
}

#[test]
fn another_run_waits_and_a_newer_epoch_takes_over() {
    let place = Place::new();
    let mut first = Helper::opened(&place.state(), "a", 1);
    let (mut other, _) = Helper::start(command(&place.state()));
    let Reply::Locked(locked) = other.open("b", 1, true) else { panic!() };
    assert_eq!((locked.holder.run.as_str(), locked.who.as_str(), locked.fenced), ("a", "a@test", false));
    let marker = format!("gpufleet-serve-fence-{}", std::process::id());
    let running = first.begin(shell(&format!("exec -a {marker} sleep 600")), Mode::Apply, 600);
    wait_for("it runs", || alive(&marker) == 1);
    let mut newer = Helper::opened(&place.state(), "a", 2);
    assert_eq!(alive(&marker), 0, "the older helper stopped what it did before the newer one got the lock");
    let done = first.outcome(running);
    assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::Cancelled, .. }), "{done:?}");
    assert_eq!(first.ends(), 0);
    let (mut older, _) = Helper::start(command(&place.state()));
    let Reply::Locked(locked) = older.open("a", 1, true) else { panic!() };
    assert!(locked.fenced);
    assert_eq!(newer.ask(Request::Close), Reply::Done);
    assert_eq!(newer.ends(), 0);
    assert!(matches!(other.open("b", 1, true), Reply::Opened(_)));
}

#[test]
fn a_killed_holder_is_not_in_the_way() {
    let place = Place::new();
    let mut first = Helper::opened(&place.state(), "a", 1);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    Helper::opened(&place.state(), "b", 1);
}

#[test]
fn readers_change_nothing() {
    let place = Place::new();
    let (mut reader, _) = Helper::start(command(&place.state()));
    let Reply::Opened(opened) = reader.open("r", 1, false) else { panic!() };
    assert_eq!(opened.state_dir, "");
    let done = reader.run(shell("true"), Mode::Apply);
    assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::Refused, .. }), "{done:?}");
    let facts = reader.run(NodeOp::Facts(FactsRequest::default()), Mode::Apply).facts.unwrap();
    assert!(facts.memory_mib > 0 && !facts.hostname.is_empty());
    for (mode, deep) in [(Mode::Predict, false), (Mode::Apply, true)] {
        let done = reader.run(NodeOp::HealthInfo(HealthInfo { deep, ..HealthInfo::default() }), mode);
        assert_eq!((&done.status, &done.changes[..]), (&OpStatus::Ok, &[][..]));
        let signals: Signals = serde_json::from_value(done.data["signals"].clone()).unwrap();
        assert_eq!(signals.boot_id, facts.boot_id);
        assert_eq!(signals.node["kernel"], facts.kernel.as_str().into());
        assert_eq!(signals.node["cpus_online"], facts.cpus.into());
    }
    assert!(!place.state().exists());
}

#[test]
fn content_streams_to_disk_and_is_checked() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let dest = place.path("file");
    let id = helper.begin(put(&dest, &content), Mode::Apply, 20);
    let Reply::NeedBlob { stream: number, blob: asked } = helper.reply(id) else { panic!() };
    assert_eq!(asked, blob(&content));
    stream(&mut helper, number, &content, 100_000);
    assert_eq!(helper.outcome(id).status, OpStatus::Changed);
    assert_eq!(std::fs::read(&dest).unwrap(), content);
    assert_eq!(helper.run(put(&dest, &content), Mode::Apply).status, OpStatus::Ok, "asked for nothing");

    let id = helper.begin(put(&dest, b"declared"), Mode::Apply, 20);
    let Reply::NeedBlob { stream: number, .. } = helper.reply(id) else { panic!() };
    stream(&mut helper, number, b"tampered", 3);
    let OpStatus::Failed { message, .. } = helper.outcome(id).status else { panic!() };
    assert!(message.contains("instead of 8 bytes"), "{message}");

    let id = helper.begin(put(&dest, b"other"), Mode::Apply, 20);
    let Reply::NeedBlob { stream: number, .. } = helper.reply(id) else { panic!() };
    helper.send(Request::NoBlob { stream: number, reason: "the file vanished".into() });
    let OpStatus::Failed { message, .. } = helper.outcome(id).status else { panic!() };
    assert_eq!(message, "the controller does not have the content: the file vanished");

    let id = helper.begin(put(&dest, b"never sent"), Mode::Apply, 1);
    let Reply::NeedBlob { .. } = helper.reply(id) else { panic!() };
    let done = helper.outcome(id);
    assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::TimedOut, .. }), "{done:?}");

    assert_eq!(std::fs::read(&dest).unwrap(), content);
    let left: Vec<_> =
        std::fs::read_dir(place.dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn predictions_add_up_until_they_are_forgotten() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let (first, folder) = (place.path("new/sub"), place.path("new"));
    let directory = serde_json::json!({"path": folder, "state": "directory"});
    let directory = NodeOp::File(serde_json::from_value(directory).unwrap());
    let before = helper.run(put(&first, b"x"), Mode::Predict);
    assert!(matches!(before.status, OpStatus::Failed { kind: FailureKind::Invalid, .. }), "{before:?}");
    assert_eq!(helper.run(directory.clone(), Mode::Predict).status, OpStatus::Changed);
    assert_eq!(helper.run(put(&first, b"x"), Mode::Predict).status, OpStatus::Changed);
    assert_eq!(helper.run(put(&first, b"x"), Mode::Predict).status, OpStatus::Ok);
    assert!(!folder.exists());
    assert_eq!(helper.ask(Request::ForgetPredictions), Reply::Done);
    assert_eq!(helper.run(directory, Mode::Predict).status, OpStatus::Changed);
    assert_eq!(helper.ask(Request::AssumeActivation { class: Disruption::Reboot }), Reply::Done);
}

#[test]
fn disturbing_needs_a_permit_of_this_session() {
    let place = Place::new();
    let (mut helper, _) = Helper::start({
        let mut command = command(&place.state());
        command.env("GPUFLEET_ROOT", place.dir.path());
        command
    });
    assert!(matches!(helper.open("run", 3, true), Reply::Opened(_)));
    let reboot = || NodeOp::Reboot(Reboot::Orderly);
    assert_eq!(helper.run(reboot(), Mode::Apply).status, OpStatus::NeedsPermit { class: Disruption::Reboot });
    for (epoch, valid_for_s) in [(2, 60), (3, 0)] {
        let mut asked = request(reboot(), Mode::Apply, 5);
        let holder = RunEpoch { run: "run".into(), epoch };
        asked.permit = Some(Permit { class: Disruption::Reboot, holder, valid_for_s });
        std::fs::create_dir_all(place.path("sbin")).unwrap();
        std::fs::write(place.path("sbin/reboot"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(
            place.path("sbin/reboot"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let id = helper.send(Request::Op(Box::new(asked)));
        let done = helper.outcome(id);
        assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::Refused, .. }), "{done:?}");
    }
}

#[test]
fn clean_leaves_nothing() {
    let place = Place::new();
    let file = std::fs::read(env!("CARGO_BIN_EXE_gpufleet-node")).unwrap();
    let pushed = place.path("pushed").join(blob(&file).sha256);
    std::fs::create_dir(place.path("pushed")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_gpufleet-node"), &pushed).unwrap();
    let mut command = Command::new(&pushed);
    command.arg("serve").arg("--state-dir").arg(place.state());
    let (mut helper, _) = Helper::start(command);
    assert!(matches!(helper.ask(Request::Clean), Reply::Error { .. }));
    assert_eq!(helper.ends(), 0);
    let mut command = Command::new(&pushed);
    command.arg("serve").arg("--state-dir").arg(place.state());
    let (mut helper, _) = Helper::start(command);
    assert!(matches!(helper.open("run", 1, true), Reply::Opened(_)));
    assert_eq!(helper.run(shell("true"), Mode::Apply).status, OpStatus::Changed);
    assert_eq!(helper.ask(Request::Clean), Reply::Done);
    assert_eq!(helper.ends(), 0);
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0);
}

#[test]
fn a_state_directory_that_cannot_be_is_named() {
    let place = Place::new();
    std::fs::write(place.path("file"), "").unwrap();
    let (mut helper, _) = Helper::start(command(&place.path("file/state")));
    let Reply::Error { message } = helper.open("run", 1, true) else { panic!() };
    assert!(message.contains("file/state"), "{message}");
}

#[test]
fn other_users_are_acted_for_by_root_only() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let mut asked = request(shell("id -un; echo $HOME"), Mode::Apply, 10);
    asked.run_as = Some("nobody".into());
    let id = helper.send(Request::Op(Box::new(asked)));
    let done = helper.outcome(id);
    if rustix::process::geteuid().is_root() {
        assert_eq!(done.data["stdout_lines"][0], "nobody", "{done:?}");
        let secret = place.path("secret");
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(place.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .unwrap();
        let mut asked = request(put(&secret, b"y"), Mode::Apply, 10);
        asked.run_as = Some("nobody".into());
        let id = helper.send(Request::Op(Box::new(asked)));
        let done = helper.outcome(id);
        assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::Io, .. }), "{done:?}");
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "x");
        let open = place.path("open");
        std::fs::create_dir(&open).unwrap();
        for (path, mode) in [(place.dir.path(), 0o755), (open.as_path(), 0o777)] {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        let mut asked = request(put(&open.join("theirs"), b"y"), Mode::Apply, 10);
        asked.run_as = Some("nobody".into());
        asked.op_id = "theirs".into();
        let id = helper.send(Request::Op(Box::new(asked)));
        let Reply::NeedBlob { stream: number, .. } = helper.reply(id) else { panic!() };
        stream(&mut helper, number, b"y", 1);
        let done = helper.outcome(id);
        assert_eq!(done.status, OpStatus::Changed, "lock and spool are reached with the helper's own rights");
        assert!(matches!(helper.recall("theirs"), Spooled::Finished(_)));
    } else {
        assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::Refused, .. }), "{done:?}");
    }
    let mut asked = request(shell("true"), Mode::Apply, 10);
    asked.run_as = Some("no-such-user".into());
    let id = helper.send(Request::Op(Box::new(asked)));
    let OpStatus::Failed { message, .. } = helper.outcome(id).status else { panic!() };
    assert_eq!(message, "there is no user `no-such-user` on this node");
    assert!(matches!(
        helper.replies.recv_timeout(Duration::from_millis(100)),
        Err(RecvTimeoutError::Timeout)
    ));
}

impl Helper {
    fn run_as_op(&mut self, op: NodeOp, op_id: &str, edit: impl FnOnce(&mut OpRequest)) -> u64 {
        let mut asked = OpRequest { op_id: op_id.into(), ..request(op, Mode::Apply, 20) };
        edit(&mut asked);
        self.send(Request::Op(Box::new(asked)))
    }

    fn recall(&mut self, op_id: &str) -> Spooled {
        match self.ask(Request::Spooled { op_id: op_id.into() }) {
            Reply::Spooled(spooled) => spooled,
            other => panic!("{other:?}"),
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_resumed_run_learns_what_became_of_each_operation() {
    let place = Place::new();
    let mut first = Helper::opened(&place.state(), "run", 1);
    let done = first.run_as_op(shell("echo out; exit 3"), "done", |_| {});
    first.outcome(done);
    let file = place.path("file");
    let id = first.run_as_op(put(&file, b"x"), "file", |_| {});
    let Reply::NeedBlob { stream: number, .. } = first.reply(id) else { panic!() };
    stream(&mut first, number, b"x", 1);
    assert_eq!(first.outcome(id).status, OpStatus::Changed);
    let id = first.run_as_op(NodeOp::Reboot(Reboot::Orderly), "refused", |_| {});
    assert!(matches!(first.outcome(id).status, OpStatus::NeedsPermit { .. }));
    let started = place.path("started");
    first.run_as_op(shell(&format!("touch {}; sleep 60", started.display())), "cut", |_| {});
    wait_for("the command did not start", || started.exists());
    first.kill();
    let mut second = Helper::opened(&place.state(), "run", 2);
    let Spooled::Finished(outcome) = second.recall("done") else { panic!() };
    assert_eq!((&outcome.data["rc"], &outcome.data["stdout"]), (&3.into(), &"out".into()));
    assert!(
        matches!(second.recall("file"), Spooled::Finished(outcome) if outcome.status == OpStatus::Changed)
    );
    assert_eq!(second.recall("cut"), Spooled::Started);
    assert_eq!(second.recall("refused"), Spooled::Nothing);
    assert_eq!(second.recall("never"), Spooled::Nothing);
    drop(second);
    let mut other = Helper::opened(&place.state(), "other", 1);
    assert_eq!(other.recall("done"), Spooled::Nothing, "another run's");
}

#[test]
fn nothing_of_a_secret_operation_is_kept_on_the_node() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let id =
        helper.run_as_op(shell("echo hunter2; echo hunter2 >&2; exit 4"), "s", |asked| asked.secret = true);
    assert_eq!(helper.outcome(id).data["stdout"], "hunter2", "the answer has it");
    let Spooled::Finished(kept) = helper.recall("s") else { panic!() };
    assert_eq!((&kept.data["rc"], &kept.data["withheld"]), (&4.into(), &true.into()));
    for entry in std::fs::read_dir(place.state().join("spool")).unwrap().flatten() {
        assert!(!std::fs::read_to_string(entry.path()).unwrap().contains("hunter2"));
    }
}

#[test]
fn a_command_that_cannot_be_marked_does_not_run() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    std::fs::write(place.state().join("spool"), "no folder").unwrap();
    let made = place.path("made");
    let outcome = helper.run(shell(&format!("touch {}", made.display())), Mode::Apply);
    let OpStatus::Failed { kind: FailureKind::Io, message } = outcome.status else { panic!("{outcome:?}") };
    assert!(message.starts_with("nothing was done, because a resumed run could not tell"), "{message}");
    assert!(!made.exists());
}

#[test]
fn readers_work_beside_a_run_and_ask_for_health_and_system() {
    let place = Place::new();
    let mut writer = Helper::opened(&place.state(), "run", 1);
    let (mut reader, _) = Helper::start(command(&place.state()));
    assert!(matches!(reader.open("plan", 1, false), Reply::Opened(_)));
    let outcome = reader.run(NodeOp::System(gpufleet_protocol::op::System), Mode::Apply);
    assert!(outcome.system.unwrap().boot_id.is_some());
    let asked =
        HealthRequest { checks: vec![HealthCheck::System, HealthCheck::GpuCount], ..Default::default() };
    let outcome = reader.run(NodeOp::Health(asked), Mode::Apply);
    let checks: Vec<_> = outcome.health.unwrap().results.into_iter().map(|result| result.check).collect();
    assert_eq!(checks, [HealthCheck::System, HealthCheck::GpuCount]);
    assert!(matches!(reader.run(shell("true"), Mode::Apply).status, OpStatus::Failed { .. }));
    assert_eq!(writer.run(shell("true"), Mode::Apply).status, OpStatus::Changed);
    drop(writer);
    Helper::opened(&place.state(), "next", 1);
}

#[test]
fn an_older_helper_acts_no_more_once_a_newer_epoch_has_opened_in_mid_run() {
    let place = Place::new();
    // A replaced root, because a failure of this test must not reboot the machine.
    std::fs::create_dir_all(place.path("sbin")).unwrap();
    std::fs::write(
        place.path("sbin/reboot"),
        format!("#!/bin/sh\ntouch {}\n", place.path("rebooted").display()),
    )
    .unwrap();
    std::fs::set_permissions(place.path("sbin/reboot"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let (mut old, _) = Helper::start({
        let mut command = command(&place.state());
        command.env("GPUFLEET_ROOT", place.dir.path());
        // So that it looks every ten seconds, and what is asked of it before comes to the gates of its operations.
        command.args(["--heartbeat-timeout-ms", "1200000"]);
        command
    });
    assert!(matches!(old.open("run", 1, true), Reply::Opened(_)));
    let holder = RunEpoch { run: "run".into(), epoch: 1 };
    let permit = Permit { class: Disruption::Reboot, holder, valid_for_s: 600 };
    // A newer controller's helper writes this first; the old one has not looked at it since it opened.
    let path = place.state().join("holder.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut newer: serde_json::Value = serde_json::from_str(&text).unwrap();
    newer["holder"]["epoch"] = 2.into();
    newer["token"] = "newer".into();
    std::fs::write(&path, newer.to_string()).unwrap();
    let made = place.path("made");
    let live = old.run_as_op(shell(&format!("touch {}", made.display())), "live", |_| {});
    let reboot = old.run_as_op(NodeOp::Reboot(Reboot::Forced), "reboot", |asked| asked.permit = Some(permit));
    for id in [live, reboot] {
        let outcome = old.outcome(id);
        assert!(matches!(outcome.status, OpStatus::Failed { kind: FailureKind::Refused, .. }), "{outcome:?}");
    }
    assert!(!made.exists());
    assert_eq!(old.ends(), 0);
    std::thread::sleep(Duration::from_millis(700));
    assert!(!place.path("rebooted").exists());
    let mut newer = Helper::opened(&place.state(), "run", 2);
    assert_eq!(newer.recall("live"), Spooled::Nothing);
}

#[test]
fn services_that_a_killed_helper_had_stopped_are_started_by_the_next_that_writes() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let (log, bin) = (place.path("log"), place.path("bin"));
    std::fs::create_dir(&bin).unwrap();
    let script = format!("#!/bin/sh\n[ \"$1\" = start ] && echo \"$2\" >> {}\nexit $RC\n", log.display());
    std::fs::write(bin.join("systemctl"), script).unwrap();
    std::fs::set_permissions(bin.join("systemctl"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let with = |rc: &str| {
        let mut command = command(&place.state());
        command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())).env("RC", rc);
        command
    };
    // The record of a helper that was killed right before its first stop of a service.
    let helper = Helper::opened(&place.state(), "run", 1);
    let record = r#"{"gpu/stopped-units":["nvidia-dcgm.service","nvsm.service"]}"#;
    std::fs::write(place.state().join("record.json"), record).unwrap();
    helper.kill();
    let (mut reader, _) = Helper::start(with("0"));
    assert!(matches!(reader.open("plan", 1, false), Reply::Opened(_)));
    reader.run(NodeOp::System(gpufleet_protocol::op::System), Mode::Apply);
    assert!(!log.exists(), "a reader changes nothing");
    drop(reader);
    let recorded = || std::fs::read_to_string(place.state().join("record.json")).unwrap();
    let (mut failing, _) = Helper::start(with("1"));
    assert!(matches!(failing.open("run", 2, true), Reply::Opened(_)));
    let told = failing.run(NodeOp::Idle(Staying::default()), Mode::Apply).warnings;
    assert!(told.iter().any(|text| text.starts_with("nvsm.service could not be started again")), "{told:?}");
    assert!(recorded().contains("nvsm.service"));
    drop(failing);
    std::fs::remove_file(&log).unwrap();
    let (mut next, _) = Helper::start(with("0"));
    assert!(matches!(next.open("run", 3, true), Reply::Opened(_)));
    assert_eq!(next.run(NodeOp::Idle(Staying::default()), Mode::Apply).warnings, Vec::<String>::new());
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "nvsm.service\nnvidia-dcgm.service\n");
    assert_eq!(recorded(), "{}");
}
