//! Tests with fake workers: shell scripts that send canned frames.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn frame(json: &str) -> String {
    let length = json.len() + 1;
    format!("printf '\\0\\0\\0\\{length:o}J%s' '{json}'\n")
}

fn hello() -> String {
    frame(r#"{"id":0,"answer":{"answer":"hello","with":{"pid":1}}}"#)
}

fn worker(folder: &Path, script: &str) -> Worker {
    let path = folder.join("worker");
    fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    Worker::new(WorkerFile::Path(path), folder.to_owned())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

#[test]
fn a_worker_that_never_answers_is_killed_and_asked_only_once_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = worker(folder.path(), &format!("{}exec sleep 600\n", hello()));
    worker = worker.answer_within(Duration::from_millis(100));
    for _ in 0..2 {
        // Not its deadline, which would be a stop.
        let error = worker.snapshot(&soon()).unwrap_err();
        assert!(
            matches!(&error, NvmlError::Hung { detail } if detail.contains("worker killed")),
            "{error:?}"
        );
        assert_eq!(worker.pid(), None);
    }
    let error = worker.snapshot(&soon()).unwrap_err();
    assert!(matches!(&error, NvmlError::Hung { detail } if detail.contains("2 times")), "{error:?}");
    assert!(worker.pids().is_empty(), "a process that could be killed is collected");
}

#[test]
fn a_crash_is_named_by_its_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = worker(folder.path(), &format!("{}head -c 80 >/dev/null\nkill -SEGV $$\n", hello()));
    let error = worker.snapshot(&soon()).unwrap_err();
    assert_eq!(
        error,
        NvmlError::Crashed { detail: "the NVML worker crashed: killed by signal 11".to_owned() }
    );
}

#[test]
fn a_cancelled_operation_does_not_wait_for_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let asked = folder.path().join("asked");
    // Both requests, of which the second is ours, are longer than this.
    let script = format!("{}head -c 80 >/dev/null\n: >{}\nexec sleep 600\n", hello(), asked.display());
    let mut worker = worker(folder.path(), &script).answer_within(Duration::from_secs(60));
    let deadline = Deadline::after(Duration::from_secs(60));
    let flag = deadline.canceller();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !asked.exists() && deadline.stop().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        worker.snapshot(&deadline).unwrap_err()
    });
    assert_eq!(error, NvmlError::Stopped(Stop::Cancelled));
}

#[test]
fn missing_libraries_of_the_worker_are_told_from_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = worker(folder.path(), "exit 127\n");
    let error = worker.snapshot(&soon()).unwrap_err();
    assert!(matches!(&error, NvmlError::NoWorker { detail } if detail.contains("too old")), "{error:?}");
}

#[test]
fn a_missing_interpreter_is_a_missing_glibc() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = worker(folder.path(), "");
    fs::write(folder.path().join("worker"), "#!/no/such/loader\n").unwrap();
    let error = worker.snapshot(&soon()).unwrap_err();
    assert!(matches!(&error, NvmlError::NoWorker { detail } if detail.contains("glibc")), "{error:?}");
}

#[test]
fn no_driver_and_a_mismatch_are_states_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let answer = |json: &str| format!("{}{}exec sleep 60\n", hello(), frame(json));
    // Id 1, because ids begin with the first request after hello.
    let script = answer(r#"{"id":1,"answer":{"answer":"init_failed","with":{"code":18}}}"#);
    let error = worker(folder.path(), &script).snapshot(&soon()).unwrap_err();
    assert!(matches!(error.state(), GpuSystemState::VersionMismatch { .. }), "{error:?}");
    let script = answer(r#"{"id":1,"answer":{"answer":"no_library","with":{"detail":"gone"}}}"#);
    let error = worker(folder.path(), &script).snapshot(&soon()).unwrap_err();
    assert_eq!(error, NvmlError::NoDriver { detail: "gone".to_owned() });
}

#[test]
fn an_audit_learns_what_became_of_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let answer = |json: &str| format!("{}{}exec sleep 60\n", hello(), frame(json));
    let script = answer(r#"{"id":1,"answer":{"answer":"init_failed","with":{"code":18,"library":"580.1"}}}"#);
    let why = worker(folder.path(), &script).health(Ask::Health { deep: false }, &soon()).unwrap_err();
    assert!(matches!(why.error, NvmlError::VersionMismatch { .. }), "{why:?}");
    assert_eq!((why.init, why.library.as_deref()), (Some(Code::VERSION_MISMATCH), Some("580.1")));
    let script = answer(r#"{"id":1,"answer":{"answer":"no_library","with":{"detail":"gone"}}}"#);
    let why = worker(folder.path(), &script).health(Ask::Health { deep: false }, &soon()).unwrap_err();
    assert_eq!((why.init, why.library), (Some(Code::LIBRARY_NOT_FOUND), None));
    let silent = worker(folder.path(), &format!("{}exec sleep 600\n", hello()));
    let why = silent
        .answer_within(Duration::from_millis(100))
        .health(Ask::Health { deep: true }, &soon())
        .unwrap_err();
    assert!(matches!(why.error, NvmlError::Hung { .. }), "{why:?}");
    assert_eq!(why.init, None);
}

#[test]
fn an_appended_worker_is_found_and_a_bare_file_carries_none() {
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("node");
    let body = b"#!/bin/sh\nexit 3\n";
    let mut bytes = b"\x7fELF supervisor".to_vec();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(MAGIC);
    fs::write(&node, &bytes).unwrap();
    assert_eq!(embedded(&node).unwrap(), body);
    bytes.pop();
    fs::write(&node, &bytes).unwrap();
    assert!(matches!(embedded(&node), Err(StartError::NotEmbedded)));
    fs::write(&node, b"tiny").unwrap();
    assert!(matches!(embedded(&node), Err(StartError::NotEmbedded)));
    let mut lying = vec![0u8; 32];
    lying.extend_from_slice(&u64::MAX.to_le_bytes());
    lying.extend_from_slice(MAGIC);
    fs::write(&node, &lying).unwrap();
    assert!(matches!(embedded(&node), Err(StartError::NotEmbedded)));
}

#[test]
fn the_file_on_disk_is_private_and_reused() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let first = in_folder(b"#!/bin/sh\n", &state).unwrap();
    let Launch::File(path) = &first else { panic!("not a file") };
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(in_folder(b"#!/bin/sh\n", &state).unwrap().place(), first.place());
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
}

#[test]
fn a_program_that_runs_from_memory_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    // An ELF file, because the kernel cannot pass a script in memory to its interpreter.
    let echo = fs::read("/bin/true").unwrap();
    let mut worker = Worker::new(WorkerFile::Embedded, state.clone());
    let error = worker.start_first(&[Way::Memory], &echo, &soon()).unwrap_err();
    assert!(
        matches!(&error, NvmlError::NoWorker { detail } if detail.contains("exit status 0")),
        "{error:?}"
    );
    assert!(!state.exists());
}
