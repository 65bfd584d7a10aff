//! Jobs that outlive the helper.

use std::os::unix::fs::MetadataExt;

use gpufleet_protocol::{
    op::{JobStart, JobStatus, Staying},
    tasks::File,
};

use super::*;

fn job(op: NodeOp, limit_s: u64) -> NodeOp {
    NodeOp::JobStart(JobStart { op: Box::new(op), limit_s })
}

impl Helper {
    fn begin_job(&mut self, line: &str, limit_s: u64, op_id: &str) -> OpOutcome {
        let id = self.run_as_op(job(shell(line), limit_s), op_id, |_| {});
        self.outcome(id)
    }

    fn look(&mut self, jid: &str, wait_s: u64) -> OpOutcome {
        let ask = JobStatus { jid: jid.to_owned(), forget: false, wait_s };
        let id = self.send(Request::Op(Box::new(request(NodeOp::JobStatus(ask), Mode::Apply, wait_s + 20))));
        self.outcome(id)
    }

    fn forget(&mut self, jid: &str) -> OpOutcome {
        let ask = JobStatus { jid: jid.to_owned(), forget: true, wait_s: 0 };
        self.run(NodeOp::JobStatus(ask), Mode::Apply)
    }
}

fn jid(outcome: &OpOutcome) -> String {
    outcome.data["ansible_job_id"].as_str().unwrap().to_owned()
}

fn finished(outcome: &OpOutcome) -> bool {
    outcome.data["finished"].as_bool().unwrap()
}

#[test]
fn a_job_outlives_the_helper_and_is_found_again() {
    let place = Place::new();
    let (flag, ran) = (place.path("go"), place.path("ran"));
    let line = format!(
        "echo x >> {}; while [ ! -e {} ]; do sleep 0.05; done; echo out",
        ran.display(),
        flag.display()
    );
    let mut first = Helper::opened(&place.state(), "run", 1);
    let begun = first.begin_job(&line, 60, "op");
    assert_eq!(begun.status, OpStatus::Changed);
    assert!(!finished(&begun) && begun.data["started"] == true, "{begun:?}");
    let jid = jid(&begun);
    first.kill();

    let mut second = Helper::opened(&place.state(), "run", 2);
    assert!(!finished(&second.look(&jid, 0)));
    let again = second.begin_job(&line, 60, "op");
    assert_eq!(again.data, begun.data, "the same job");
    std::fs::write(&flag, "").unwrap();
    let done = second.look(&jid, 20);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(finished(&done));
    assert_eq!((&done.data["stdout"], &done.data["rc"]), (&"out".into(), &0.into()));
    assert!(finished(&second.look(&jid, 0)), "and again");
    second.begin_job(&line, 60, "op");
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "x\n", "it ran once");

    let results = PathBuf::from(done.data["results_file"].as_str().unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(
        (mode(&results), mode(results.parent().unwrap()), mode(&place.state())),
        (0o600, 0o700, 0o700)
    );
    assert!(!results.with_file_name("order.json").exists(), "the command line is nobody's any more");

    assert_eq!(second.forget(&jid).status, OpStatus::Ok);
    let OpStatus::Failed { message, .. } = second.look(&jid, 0).status else { panic!() };
    assert_eq!(message, "could not find job");
    let OpStatus::Failed { message, .. } = second.begin_job(&line, 60, "op").status else { panic!() };
    assert!(message.ends_with("it is not begun again"), "{message}");
    assert_eq!(second.begin_job("true", 60, "other op").status, OpStatus::Changed);
}

#[test]
fn a_job_that_takes_too_long_is_killed_with_its_children() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let marker = format!("gpufleet-long-job-{}", std::process::id());
    let (said, line) = (place.path("said"), format!("(exec -a {marker} sleep 300) & echo before; touch"));
    // Long enough for a busy machine to start it.
    let begun = helper.begin_job(&format!("{line} {}; wait", said.display()), 6, "op");
    let id = jid(&begun);
    wait_for("its begin", || said.exists() && alive(&marker) == 1);
    drop(helper);
    wait_for("its end", || alive(&marker) == 0);
    let mut helper = Helper::opened(&place.state(), "next", 1);
    let done = helper.look(&id, 10);
    let OpStatus::Failed { kind: FailureKind::TimedOut, message } = &done.status else { panic!("{done:?}") };
    assert_eq!(message, "Timeout exceeded");
    assert_eq!(done.data["stdout"], "before");
}

#[test]
fn a_job_whose_process_is_killed_is_lost_and_never_done() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let marker = format!("gpufleet-lost-job-{}", std::process::id());
    let id = jid(&helper.begin_job(&format!("exec -a {marker} sleep 300"), 600, "op"));
    wait_for("its begin", || alive(&marker) == 1);
    let began = std::fs::read(place.state().join("jobs").join(&id).join("began.json")).unwrap();
    let began: serde_json::Value = serde_json::from_slice(&began).unwrap();
    let pid = i32::try_from(began["pid"].as_i64().unwrap()).unwrap();
    let OpStatus::Failed { message, .. } = helper.forget(&id).status else { panic!() };
    assert!(message.contains("still runs"), "{message}");
    let Reply::Error { message } = helper.ask(Request::Clean) else { panic!() };
    assert!(message.contains(&id), "{message}");
    let mut helper = Helper::opened(&place.state(), "run", 2);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    wait_for("what it ran dies with it", || alive(&marker) == 0);
    let lost = helper.look(&id, 0);
    let OpStatus::Failed { message, .. } = &lost.status else { panic!("{lost:?}") };
    assert!(message.starts_with("the job was killed") && finished(&lost), "{message}");
    assert_eq!(helper.forget(&id).status, OpStatus::Ok);
}

#[test]
fn other_kinds_go_on_by_themselves_and_some_may_not() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let folder = place.path("folder");
    let file: File =
        serde_json::from_value(serde_json::json!({"path": folder, "state": "directory"})).unwrap();
    let id = helper.run_as_op(job(NodeOp::File(file), 60), "op", |_| {});
    let begun = helper.outcome(id);
    let done = helper.look(&jid(&begun), 20);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(folder.is_dir() && done.data["state"] == "directory" && done.data["stdout"] == "");
    for op in [put(&place.path("x"), b"x"), NodeOp::Reboot(Reboot::Orderly), NodeOp::Idle(Staying::default())]
    {
        let id = helper.run_as_op(job(op, 60), "other", |_| {});
        let OpStatus::Failed { message, .. } = helper.outcome(id).status else { panic!() };
        assert_eq!(message, "this operation cannot go on by itself");
    }
    let unknown = helper.look("../../etc", 0);
    assert!(matches!(unknown.status, OpStatus::Failed { kind: FailureKind::Missing, .. }), "{unknown:?}");
}

#[test]
fn what_a_secret_job_said_does_not_stay_on_the_disk() {
    let place = Place::new();
    let mut helper = Helper::opened(&place.state(), "run", 1);
    let begin = |helper: &mut Helper, op_id: &str| {
        let op = job(shell("echo hunter2; exit 3"), 60);
        let id = helper.run_as_op(op, op_id, |request| request.secret = true);
        jid(&helper.outcome(id))
    };
    let on_disk = || {
        let mut folders = vec![place.state()];
        let mut text = String::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => text += &String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()),
                }
            }
        }
        text.contains("hunter2")
    };
    let asked = begin(&mut helper, "asked");
    let done = helper.look(&asked, 20);
    assert_eq!((&done.data["stdout"], &done.data["rc"]), (&"hunter2".into(), &3.into()));
    let again = helper.look(&asked, 0);
    assert_eq!(again.data, done.data, "the first answer may not have arrived");
    helper.kill();
    let mut helper = Helper::opened(&place.state(), "run", 2);
    assert_eq!(helper.look(&asked, 0).data, done.data, "nor the second one");
    let next = helper.run_as_op(shell("true"), "next", |_| {});
    helper.outcome(next);
    assert!(!on_disk(), "the next task comes when the controller has heard");
    let again = helper.look(&asked, 0);
    assert_eq!((&again.data["rc"], finished(&again)), (&3.into(), true), "how it ended stays");

    let other = begin(&mut helper, "other");
    let results = place.state().join("jobs").join(&other).join("result.json");
    wait_for("its end", || results.exists());
    assert!(on_disk());
    assert_eq!(helper.ask(Request::Close), Reply::Done);
    assert!(!on_disk(), "the run is over");

    let mut helper = Helper::opened(&place.state(), "run", 3);
    let third = begin(&mut helper, "third");
    wait_for("its end", || results.with_file_name("..").join(&third).join("result.json").exists());
    helper.kill();
    let helper = Helper::opened(&place.state(), "run", 4);
    assert!(on_disk(), "the same run may still ask");
    helper.kill();
    drop(Helper::opened(&place.state(), "next", 1));
    assert!(!on_disk(), "nobody asks any more");
}
