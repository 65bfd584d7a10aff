//! `command`, `shell`, `script` and `raw`: processes with effects that cannot be predicted.

use std::path::{Path, PathBuf};

use gpufleet_protocol::{
    Disruption, FailureKind, OpOutcome, OpStatus,
    disturbing::Disturbance,
    message::Mode,
    message::streams,
    op::{Blob, Exec, Program},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{
    declare::{Gate, Node, Trouble},
    os::{
        civil,
        files::{self, Fresh, Ownership},
        paths::expanded,
        tree::{self, Dir, Spot},
    },
    process::{Captured, Finished, OUTPUT_LIMIT, Output, ProcessError, Run},
};

/// Predicts or runs a command.
///
/// # Errors
/// If it cannot be started, at its deadline, or if it is a command that no permit makes safe.
pub fn run(
    exec: &Exec,
    node: &Node<'_>,
    mode: Mode,
    state_dir: Option<&Path>,
    allowed: Disruption,
    gate: Gate<'_>,
) -> Result<OpOutcome, Trouble> {
    if let Some(outcome) = skipped(exec, node) {
        return Ok(outcome);
    }
    let disturbance = exec.disturbance();
    if let Some(refusal) = disturbance.as_ref().and_then(Disturbance::refusal) {
        return Err(Trouble::failed(FailureKind::Refused, refusal));
    }
    let class = disturbance.as_ref().map_or(Disruption::Live, Disturbance::class);
    let asks = |status| {
        let mut outcome = OpOutcome::new(status);
        outcome.changes = disturbance.iter().map(Disturbance::change).collect();
        outcome
    };
    if mode == Mode::Predict {
        return Ok(asks(OpStatus::Possible));
    }
    if class > allowed {
        return Ok(asks(OpStatus::NeedsPermit { class }));
    }
    // Held, because another user may put a link to a folder of root's there at any moment.
    let held = exec.chdir.as_ref().map(|path| place(node, None, path)).map(|path| {
        tree::dir(&path).map_err(|error| ProcessError::WorkingDirectory {
            path: path.display().to_string(),
            source: error.source,
        })
    });
    let (held, refused) = match held.transpose() {
        Ok(held) => (held, None),
        Err(error) => (None, Some(error)),
    };
    let directory = match &held {
        Some(held) => Some(held.held_path()),
        None => node.user.as_ref().map(|user| user.home.clone()).filter(|home| home.is_dir()),
    };
    let pushed = match (&exec.run, &exec.script) {
        (Program::Script { .. }, Some(blob)) => Some(Pushed::fetch(node, blob, state_dir)?),
        (Program::Script { .. }, None) => return Err(Trouble::invalid("the script's content was not named")),
        _ => None,
    };
    let (shown, mut run) = program(exec, node, pushed.as_ref())?;
    let shown = exec.shown.clone().unwrap_or(shown);
    run = run.user(node.user.clone()).limit(OUTPUT_LIMIT);
    for (name, value) in node.environment.iter().chain(&exec.environment) {
        run = run.env(name, value);
    }
    if let Some(text) = &exec.stdin {
        run = run.stdin(text.as_bytes());
    }
    if let Some(directory) = directory {
        run = run.directory(directory);
    }
    // Last, because everything before only prepared, and a command that begins counts as run.
    gate(class)?;
    match refused.map_or_else(|| run.finish(node.deadline), Err) {
        Ok(done) => {
            let mut outcome = finished(exec, shown, &done);
            // Whatever its exit code: a part of it may have been done.
            outcome.activated = disturbance.as_ref().and_then(Disturbance::activates);
            Ok(outcome)
        }
        Err(ProcessError::Stopped { program, stop, after, output }) => {
            let error = ProcessError::Stopped { program, stop, after, output: Box::default() };
            let mut outcome = Trouble::from(error).outcome();
            said(exec, &mut outcome, &output);
            outcome.data.insert("cmd".to_owned(), shown);
            Ok(outcome)
        }
        Err(error) => {
            let why = error.to_string();
            let mut outcome = Trouble::from(error).outcome();
            outcome.data = empty(shown, 2, "");
            outcome.data.insert("msg".to_owned(), json!(format!("Error executing command: {why}")));
            Ok(outcome)
        }
    }
}

/// Resolves a path of a task; relative paths start from its working directory.
fn place(node: &Node<'_>, chdir: Option<&str>, path: &str) -> PathBuf {
    let path = match path.strip_prefix("~/") {
        Some(rest) => {
            let home = node.user.as_ref().map(|user| user.home.clone());
            home.or_else(|| std::env::var_os("HOME").map(PathBuf::from))
                .unwrap_or_else(|| "/".into())
                .join(rest)
        }
        None => PathBuf::from(path),
    };
    match chdir {
        Some(folder) if path.is_relative() => node.roots.path(Path::new(folder).join(path)),
        // Explicit, because a glob starts from the root of all paths.
        None if path.is_relative() && node.roots.is_real() => {
            let home = node.user.as_ref().map(|user| user.home.clone()).filter(|home| home.is_dir());
            home.or_else(|| std::env::current_dir().ok()).unwrap_or_default().join(path)
        }
        _ => node.roots.path(path),
    }
}

fn skipped(exec: &Exec, node: &Node<'_>) -> Option<OpOutcome> {
    let there = |pattern: &String| node.world.any_match(&place(node, exec.chdir.as_deref(), pattern));
    let reason = match (&exec.creates, &exec.removes) {
        (Some(path), _) if there(path) => (path, "exists"),
        (_, Some(path)) if !there(path) => (path, "does not exist"),
        _ => return None,
    };
    let (path, state) = reason;
    let reason = format!("{path} {state}");
    let shown = match &exec.run {
        Program::Argv(argv) => json!(argv),
        Program::Shell { line, .. } => json!(line),
        Program::Script { arguments, .. } => json!(arguments),
    };
    let shown = exec.shown.clone().unwrap_or(shown);
    // As in Ansible, a script is skipped, and a command is ok.
    let status = match &exec.run {
        Program::Script { .. } => OpStatus::Skipped { reason: reason.clone() },
        _ => OpStatus::Ok,
    };
    let mut outcome = OpOutcome::new(status);
    outcome.data = empty(shown, 0, &format!("skipped, since {reason}"));
    outcome.data.insert("msg".to_owned(), json!(format!("Did not run command since '{path}' {state}")));
    for name in ["start", "end", "delta"] {
        outcome.data.insert(name.to_owned(), Value::Null);
    }
    Some(outcome)
}

fn program(exec: &Exec, node: &Node<'_>, pushed: Option<&Pushed>) -> Result<(Value, Run), Trouble> {
    match &exec.run {
        Program::Argv(argv) => {
            let get = |name: &str| {
                let declared = node.environment.iter().chain(&exec.environment).rev();
                let found = declared.clone().find(|(known, _)| known == name).map(|(_, value)| value.clone());
                let home = || node.user.as_ref().map(|user| user.home.display().to_string());
                found
                    .or_else(|| if name == "HOME" { home() } else { None })
                    .or_else(|| std::env::var(name).ok())
            };
            let word = |word: &String| if exec.expand { expanded(word, &get) } else { word.clone() };
            let (first, rest) =
                argv.split_first().ok_or_else(|| Trouble::invalid("a command needs at least a program"))?;
            Ok((json!(argv), Run::new(word(first)).args(rest.iter().map(word))))
        }
        Program::Shell { line, executable } => Ok((json!(line), Run::new(executable).arg("-c").arg(line))),
        Program::Script { arguments, executable } => {
            let pushed = pushed.ok_or_else(|| Trouble::invalid("the script's content was not named"))?;
            let path = pushed.path.to_string_lossy().into_owned();
            let interpreter = match executable {
                Some(line) => Some(line.split_whitespace().map(str::to_owned).collect()),
                None => pushed.interpreter.clone(),
            };
            // With the interpreter, so that the script also runs from file systems mounted noexec.
            let mut argv: Vec<String> = interpreter.unwrap_or_default();
            argv.push(path);
            argv.extend(arguments.iter().cloned());
            let (first, rest) = argv.split_first().ok_or_else(|| Trouble::invalid("the script is empty"))?;
            let run = Run::new(first).args(rest);
            Ok((json!(argv), run))
        }
    }
}

fn empty(shown: Value, rc: i32, stdout: &str) -> Map<String, Value> {
    let mut data = Map::new();
    data.insert("cmd".to_owned(), shown);
    data.insert("rc".to_owned(), json!(rc));
    data.extend(streams(stdout, ""));
    data
}

/// Returns output without its last line break, as Ansible does.
fn shown(text: &str, keeps_ends: bool) -> &str {
    if keeps_ends { text } else { text.trim_end_matches(['\r', '\n']) }
}

fn said(exec: &Exec, outcome: &mut OpOutcome, output: &Output) {
    let (stdout, stderr) = (output.stdout.text(), output.stderr.text());
    let keeps_ends = exec.verbatim || exec.keep_ends;
    outcome.data.extend(streams(shown(&stdout, keeps_ends), shown(&stderr, keeps_ends)));
    let mut note = |name: &str, captured: &Captured| {
        if captured.lost > 0 {
            outcome.warnings.push(format!(
                "{name} was cut after {} bytes; {} more were thrown away",
                captured.bytes.len(),
                captured.lost
            ));
        }
    };
    note("stdout", &output.stdout);
    note("stderr", &output.stderr);
}

fn finished(exec: &Exec, shown: Value, done: &Finished) -> OpOutcome {
    let status = if done.exit.success() {
        OpStatus::Changed
    } else {
        OpStatus::Failed { kind: FailureKind::Exit, message: done.exit.to_string() }
    };
    let mut outcome = OpOutcome::new(status);
    outcome.data.insert("rc".to_owned(), json!(done.exit.shell_code()));
    said(exec, &mut outcome, &done.output);
    let data = &mut outcome.data;
    if !done.exit.success() {
        data.insert("msg".to_owned(), json!("non-zero return code"));
    } else if !exec.verbatim {
        data.insert("msg".to_owned(), json!(""));
    }
    if !done.exit.success() {
        // As in Ansible, a command that ran counts as changed, however it ended.
        data.insert("changed".to_owned(), json!(true));
    }
    if exec.verbatim {
        return outcome;
    }
    data.insert("cmd".to_owned(), shown);
    data.insert("start".to_owned(), json!(civil::timestamp(done.started)));
    data.insert("end".to_owned(), json!(civil::timestamp(done.started + done.took)));
    data.insert("delta".to_owned(), json!(civil::delta(done.took)));
    outcome
}

/// A script of the controller in a folder of its own, which is removed on drop.
struct Pushed {
    folder: Spot,
    path: PathBuf,
    /// The words of the `#!` line.
    interpreter: Option<Vec<String>>,
}

impl Drop for Pushed {
    fn drop(&mut self) {
        let _ = self.folder.remove_all(&|| true);
    }
}

impl Pushed {
    fn fetch(node: &Node<'_>, blob: &Blob, state_dir: Option<&Path>) -> Result<Self, Trouble> {
        let (spot, folder) = Self::folder(node, state_dir)?;
        let script = folder.spot("script");
        let mut pushed = Self { folder: spot, path: script.path(), interpreter: None };
        let mut fresh = Fresh::at(script)?;
        let (mut digest, mut size, mut head) = (Sha256::new(), 0u64, Vec::new());
        node.fetch.fetch(blob, node.deadline, &mut |piece| {
            digest.update(piece);
            size += piece.len() as u64;
            if size > blob.size {
                return Err(Trouble::io("the script is longer than announced"));
            }
            head.extend(piece.iter().take(256usize.saturating_sub(head.len())));
            Ok(fresh.write_all(piece)?)
        })?;
        let got = files::hex(digest.finalize());
        if got != blob.sha256 {
            return Err(Trouble::io(format!("the script has SHA-256 {got} instead of {}", blob.sha256)));
        }
        let user = node.user.as_ref();
        fresh.own(Ownership { uid: user.map(|u| u.uid), gid: user.map(|u| u.gid), mode: Some(0o500) })?;
        fresh.place()?;
        pushed.interpreter = interpreter(&head);
        Ok(pushed)
    }

    /// Creates a folder that only the task's user can enter.
    fn folder(node: &Node<'_>, state_dir: Option<&Path>) -> Result<(Spot, Dir), Trouble> {
        let mut places: Vec<PathBuf> = Vec::new();
        if node.user.is_none() {
            places.extend(state_dir.map(Path::to_owned));
        }
        places.extend(["/var/tmp", "/tmp"].map(PathBuf::from));
        let mut last = None;
        for place in places {
            match tree::dir(&place).and_then(|place| place.private("gpufleet-script")) {
                Ok((spot, folder)) => {
                    if let Some(user) = &node.user {
                        let owner = Ownership { uid: Some(user.uid), gid: Some(user.gid), mode: Some(0o700) };
                        if let Err(error) = spot.own_as(true, false, owner) {
                            let _ = spot.remove_dir();
                            return Err(error.into());
                        }
                    }
                    return Ok((spot, folder));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(|| Trouble::io("there is no place for the script"), Trouble::from))
    }
}

/// Parses a `#!` line: the interpreter and at most one argument, as the kernel reads it.
fn interpreter(head: &[u8]) -> Option<Vec<String>> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.trim();
    let words: Vec<String> = line
        .splitn(2, [' ', '\t'])
        .map(|word| word.trim().to_owned())
        .filter(|word| !word.is_empty())
        .collect();
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        deadline::Deadline,
        tasks::testing::{Bench, failure},
    };

    fn shell(line: &str) -> Exec {
        Exec { run: Program::Shell { line: line.into(), executable: "/bin/sh".into() }, ..Exec::default() }
    }

    fn outcome(bench: &Bench, exec: &Exec, mode: Mode) -> OpOutcome {
        permitted(bench, exec, mode, Disruption::Live)
    }

    fn permitted(bench: &Bench, exec: &Exec, mode: Mode, allowed: Disruption) -> OpOutcome {
        bench.node(|node| run(exec, node, mode, None, allowed, &|_| Ok(())).unwrap_or_else(Trouble::outcome))
    }

    #[test]
    fn a_command_that_disturbs_needs_a_permit_and_one_that_reboots_is_refused() {
        let bench = Bench::new();
        let reset = shell("touch /tmp/gpufleet-not-run; nvidia-smi --gpu-reset");
        let asked = outcome(&bench, &reset, Mode::Apply);
        assert_eq!(asked.status, OpStatus::NeedsPermit { class: Disruption::GpuReset });
        let predicted = outcome(&bench, &reset, Mode::Predict);
        assert_eq!((predicted.status, &predicted.changes), (OpStatus::Possible, &asked.changes));
        for mode in [Mode::Predict, Mode::Apply] {
            let refused = outcome(&bench, &shell("touch /tmp/gpufleet-not-run; reboot"), mode);
            let OpStatus::Failed { kind: FailureKind::Refused, message } = refused.status else {
                panic!("{refused:?}")
            };
            assert!(message.contains("write `reboot:`"), "{message}");
        }
        assert!(!std::path::Path::new("/tmp/gpufleet-not-run").exists());
    }

    #[test]
    fn a_command_that_resets_gpus_tells_that_it_may_have() {
        let bench = Bench::new();
        let run = |line: &str| permitted(&bench, &shell(line), Mode::Apply, Disruption::GpuReset).activated;
        assert_eq!(run("true || nvidia-smi --gpu-reset"), Some(Disruption::GpuReset));
        assert_eq!(run("false && nvidia-smi --gpu-reset"), Some(Disruption::GpuReset), "it failed");
        assert_eq!(run("true || nvidia-smi -mig 1"), None);
    }

    #[test]
    fn a_command_gives_ansibles_names() {
        let bench = Bench::new();
        let done = outcome(&bench, &shell("printf 'a\\nb\\n'; echo e >&2"), Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed);
        assert_eq!(done.data["rc"], 0);
        assert_eq!(done.data["stdout"], "a\nb");
        assert_eq!(done.data["stdout_lines"], json!(["a", "b"]));
        assert_eq!(done.data["stderr_lines"], json!(["e"]));
        for name in ["cmd", "start", "end", "delta"] {
            assert!(done.data.contains_key(name), "{name}");
        }
    }

    #[test]
    fn another_exit_status_fails_and_keeps_the_output() {
        let done = outcome(&Bench::new(), &shell("echo out; exit 7"), Mode::Apply);
        assert_eq!(
            done.status,
            OpStatus::Failed { kind: FailureKind::Exit, message: "exit status 7".into() }
        );
        assert_eq!((&done.data["rc"], &done.data["stdout"]), (&json!(7), &json!("out")));
    }

    #[test]
    fn a_prediction_runs_nothing() {
        let bench = Bench::new();
        let marker = bench.path("marker");
        let exec = shell(&format!("touch {}", marker.display()));
        assert_eq!(outcome(&bench, &exec, Mode::Predict).status, OpStatus::Possible);
        assert!(!marker.exists());
    }

    #[test]
    fn creates_and_removes_skip() {
        let bench = Bench::new();
        bench.write("srv/done.txt", "");
        let creates = Exec { creates: Some("/srv/*.txt".into()), ..shell("exit 1") };
        let skipped = outcome(&bench, &creates, Mode::Predict);
        assert_eq!(skipped.status, OpStatus::Ok);
        assert_eq!(skipped.data["msg"], "Did not run command since '/srv/*.txt' exists");
        assert_eq!(skipped.data["stdout"], "skipped, since /srv/*.txt exists");
        let removes = Exec { removes: Some("/srv/none".into()), ..shell("exit 1") };
        let skipped = outcome(&bench, &removes, Mode::Apply);
        assert_eq!(skipped.status, OpStatus::Ok);
        assert_eq!(skipped.data["msg"], "Did not run command since '/srv/none' does not exist");
    }

    #[test]
    fn stdin_chdir_and_environment_arrive() {
        let bench = Bench::new();
        let exec = Exec {
            chdir: Some("/etc".into()),
            stdin: Some("in".into()),
            environment: vec![("X".into(), "y".into())],
            ..shell("cat; echo; pwd; echo $X")
        };
        let done = outcome(&bench, &exec, Mode::Apply);
        let lines = done.data["stdout_lines"].as_array().unwrap();
        assert_eq!((lines[0].as_str(), lines[2].as_str()), (Some("in"), Some("y")));
        assert!(lines[1].as_str().unwrap().ends_with("/etc"));
    }

    /// Root would work where that user sends it.
    #[test]
    fn the_link_of_another_user_is_no_working_directory() {
        let bench = Bench::new();
        for folder in ["root/victim", "home/ops/own"] {
            std::fs::create_dir_all(bench.path(folder)).unwrap();
        }
        let (ops, root) = (Some(4711), bench.path("root/victim"));
        for owned in ["home/ops", "home/ops/own"] {
            std::os::unix::fs::chown(bench.path(owned), ops, ops).unwrap();
        }
        for (name, target) in [("app", root.clone()), ("mine", bench.path("home/ops/own"))] {
            std::os::unix::fs::symlink(target, bench.path("home/ops").join(name)).unwrap();
            std::os::unix::fs::lchown(bench.path("home/ops").join(name), ops, ops).unwrap();
        }
        let within = |path: &str| Exec { chdir: Some(path.into()), ..shell("touch here") };
        let refused = outcome(&bench, &within("/home/ops/app"), Mode::Apply);
        assert!(failure(&refused).contains("/home/ops/app` cannot be used"), "{refused:?}");
        assert!(!root.join("here").exists());
        let done = outcome(&bench, &within("/home/ops/mine"), Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert!(bench.path("home/ops/own/here").exists());
    }

    #[test]
    fn scripts_run_through_their_interpreter_and_leave_nothing() {
        let mut bench = Bench::new();
        let blob = bench.put("#!/bin/sh -e\necho \"$1 $(dirname $0)\"\n");
        let exec = Exec {
            run: Program::Script { arguments: vec!["arg".into()], executable: None },
            script: Some(blob),
            ..Exec::default()
        };
        let done = outcome(&bench, &exec, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        let said = done.data["stdout"].as_str().unwrap();
        let folder = said.strip_prefix("arg ").unwrap();
        assert!(!Path::new(folder).exists());
    }

    #[test]
    fn what_cannot_start_is_a_failure_with_its_name() {
        let exec = Exec { run: Program::Argv(vec!["no-such-tool".into()]), ..Exec::default() };
        let done = outcome(&Bench::new(), &exec, Mode::Apply);
        let OpStatus::Failed { message, .. } = &done.status else { panic!("{done:?}") };
        assert_eq!(message, "there is no program `no-such-tool` on this node");
    }

    #[test]
    fn a_timeout_says_so_and_keeps_the_output() {
        let bench = Bench::new();
        // Long enough for a busy machine to start the shell.
        let deadline = Deadline::after(Duration::from_secs(5));
        let done = bench.node(|node| {
            let node = Node {
                deadline: &deadline,
                user: None,
                world: node.world.clone(),
                downloads: crate::tasks::download::Downloads::default(),
                ..*node
            };
            run(&shell("echo before; sleep 60"), &node, Mode::Apply, None, Disruption::Live, &|_| Ok(()))
                .unwrap_or_else(Trouble::outcome)
        });
        let OpStatus::Failed { kind: FailureKind::TimedOut, .. } = done.status else { panic!("{done:?}") };
        assert_eq!(done.data["stdout"], "before");
    }

    #[test]
    fn long_output_is_cut_with_a_note() {
        let done = outcome(&Bench::new(), &shell("head -c 1500000 /dev/zero | tr '\\0' x"), Mode::Apply);
        assert_eq!(done.data["stdout"].as_str().unwrap().len(), OUTPUT_LIMIT);
        assert_eq!(done.warnings, ["stdout was cut after 1048576 bytes; 451424 more were thrown away"]);
    }

    #[test]
    fn raw_output_comes_as_it_is() {
        let exec = Exec { verbatim: true, ..shell("printf 'a\\n\\n'; exit 3") };
        let done = outcome(&Bench::new(), &exec, Mode::Apply);
        assert_eq!((&done.data["stdout"], &done.data["rc"]), (&json!("a\n\n"), &json!(3)));
        assert_eq!(done.data["msg"], "non-zero return code");
        assert!(!done.data.contains_key("cmd") && !done.data.contains_key("start"));
    }

    #[test]
    fn arguments_take_variables_as_ansible_expands_them() {
        let get = |name: &str| (name == "A").then(|| "x y".to_owned());
        for (text, wanted) in
            [("$A", "x y"), ("${A}b", "x yb"), ("$B $", "$B $"), ("a$A.c", "ax y.c"), ("${A", "${A")]
        {
            assert_eq!(expanded(text, &get), wanted);
        }
        let exec = Exec {
            run: Program::Argv(vec!["echo".into(), "$X".into()]),
            environment: vec![("X".into(), "y".into())],
            expand: true,
            ..Exec::default()
        };
        assert_eq!(outcome(&Bench::new(), &exec, Mode::Apply).data["stdout"], "y");
    }

    #[test]
    fn interpreters_are_read_as_the_kernel_does() {
        assert_eq!(interpreter(b"#!/usr/bin/env python3\nx").unwrap(), ["/usr/bin/env", "python3"]);
        assert_eq!(interpreter(b"#! /bin/sh  -e x\n").unwrap(), ["/bin/sh", "-e x"]);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }
}
