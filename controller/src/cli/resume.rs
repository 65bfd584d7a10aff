//! `resume`, `pause` and `abort`: going on with a run, asking one to stop, and ending one for good.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use gpufleet::journal::{
    self, JournalError, RunDir, RunId, RunSummary, Runs, list_runs, newest_runs, process_of, read_for_resume,
    resolve_run,
};
use gpufleet::{display, visible::command_line};
use serde::{Deserialize, Serialize};

use super::{
    args::{AbortArgs, PauseArgs, ResumeArgs, RunArgs},
    engine::{self, TakenUp},
    environment::Environment,
    error::CommandError,
    output::Output,
    trust,
};

/// What a run was started with. It lies beside the journal, for its owner alone, until the run is over.
#[derive(Debug, Serialize, Deserialize)]
struct Inputs {
    directory: PathBuf,
    args: RunArgs,
}

/// Keeps what a resume needs to load the same again.
pub fn remember(dir: &RunDir, args: &RunArgs) -> Result<(), CommandError> {
    let failed =
        |e: std::io::Error| CommandError::user(format!("cannot write {}: {e}", dir.inputs().display()));
    let inputs = Inputs { directory: std::env::current_dir().map_err(failed)?, args: args.clone() };
    let text = serde_json::to_vec(&inputs).map_err(CommandError::internal)?;
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.inputs()).map_err(failed)?;
    file.write_all(&text).and_then(|()| file.sync_data()).map_err(failed)
}

/// Removes what only a resume needs: variables and sealed results are not kept longer than that.
pub fn forget(dir: &RunDir) {
    for path in [dir.inputs(), dir.sealed()] {
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot be removed");
        }
    }
    let copies = dir.included();
    if let Err(error) = fs::remove_dir_all(&copies)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %copies.display(), %error, "cannot be removed");
    }
}

/// Does the same for every run that is over and could not do it itself: it was killed right after its last event, or it
/// only read and was cut off.
pub fn forget_what_is_over(state_dir: &Path) {
    for run in newest_runs(state_dir) {
        let dir = RunDir::new(state_dir, &run);
        let keeps = [dir.inputs(), dir.sealed(), dir.included()].iter().any(|path| path.exists());
        if keeps && journal::is_over(&dir) {
            forget(&dir);
        }
    }
}

fn inputs(path: &Path) -> Result<Inputs, CommandError> {
    let bytes = fs::read(path).map_err(|e| {
        CommandError::user(format!("cannot read {}: {e}", path.display()))
            .hint("without it nobody knows what the run was started with; begin a new run")
    })?;
    serde_json::from_slice(&bytes).map_err(|e| {
        CommandError::user(format!("{}: written by another gpufleet: {e}", path.display()))
            .hint("resume with the gpufleet that began the run, or begin a new run")
    })
}

pub fn resume(args: &ResumeArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    trust::demand_state_dir(&environment.state_dir)?;
    let runs = runs_at_rest(&environment.state_dir);
    let found = match &args.run {
        Some(given) => one_of(runs, resolve_run(&environment.state_dir, given)?)?,
        None => match unfinished(runs, output)? {
            Some(run) => run,
            None => {
                output.status("no run is unfinished");
                return Ok(0);
            }
        },
    };
    if found.running {
        return Err(still_at_work(&found.run));
    }
    if !found.is_unfinished() {
        output.status(&format!("{}; there is nothing to go on with", how_it_ended(&found)));
        return Ok(0);
    }
    let goes_on = format!("{} goes on", described(&found));
    let (mut began, taken_up) = take_up(found, environment)?;
    began.yes |= args.yes;
    began.overruling.force |= args.overruling.force;
    began.overruling.steal |= args.overruling.steal;
    began.documents.format = Some(args.format);
    output.status(&goes_on);
    engine::go_on(&began, taken_up, engine::Ahead::On, environment, output)
}

/// The newest run that can be gone on with.
///
/// # Errors
/// There is none, or one is at work, or one cannot be read and may be unfinished.
fn unfinished(mut runs: Runs, output: &Output) -> Result<Option<RunSummary>, CommandError> {
    let place = runs.readable.iter().position(RunSummary::is_unfinished);
    // Why one at work before an older one: who does not name a run means the newest.
    let newer = runs.readable.iter().take(place.unwrap_or(usize::MAX));
    if let Some(run) = newer.into_iter().find(|run| run.running && run.started.verb.writes()) {
        let error = still_at_work(&run.run);
        return Err(match place.and_then(|place| runs.readable.get(place)) {
            Some(older) => {
                error.hint(format!("`gpufleet resume {}` goes on with {}", older.run, described(older)))
            }
            None => error,
        });
    }
    if let Some(place) = place {
        name_unreadable(&runs, output);
        return Ok(Some(runs.readable.swap_remove(place)));
    }
    match runs.unreadable.into_iter().next() {
        Some((run, error)) => Err(unreadable(&run, &error)),
        None => Ok(None),
    }
}

/// `run RUN of 2026-11-28 10:29 UTC (gpufleet run night.yaml)`.
fn described(run: &RunSummary) -> String {
    let at = display::moment(run.started_at, &jiff::tz::TimeZone::system());
    match run.started.command_line.as_slice() {
        [] => format!("run {} of {at}", run.run),
        words => format!("run {} of {at} ({})", run.run, command_line(words)),
    }
}

/// Tells of runs that are not in a list because their journals cannot be read.
pub fn name_unreadable(runs: &Runs, output: &Output) {
    for (run, error) in &runs.unreadable {
        output.status(&format!("run {run} is left out: {error}"));
    }
}

fn unreadable(run: &RunId, error: &JournalError) -> CommandError {
    CommandError::user(format!("run {run} cannot be read, so nobody can tell whether it is finished: {error}")).hint(
        format!(
            "nodes may be out of service through it: `gpufleet adopt PLAYBOOK --run {run}` takes over what it left drained; \
             move its folder away once its nodes are looked after"
        ),
    )
}

/// One run of those on this machine.
fn one_of(runs: Runs, wanted: RunId) -> Result<RunSummary, CommandError> {
    if let Some((run, error)) = runs.unreadable.iter().find(|(run, _)| *run == wanted) {
        return Err(unreadable(run, error));
    }
    let found = runs.readable.into_iter().find(|run| run.run == wanted);
    Ok(found.ok_or_else(|| JournalError::NoSuchRun { given: wanted.to_string() })?)
}

/// Of a run that nothing can go on with.
fn how_it_ended(found: &RunSummary) -> String {
    let RunSummary { run, started, .. } = found;
    match found.finished {
        Some(_) => format!("run {run} is finished"),
        None => format!("run {run} was cut off and only read: begin the {} anew", started.verb.as_str()),
    }
}

fn still_at_work(run: &RunId) -> CommandError {
    CommandError::stopped(format!("run {run} is still at work"))
        .hint(format!("`gpufleet pause {run}` stops it at a safe point"))
}

/// The runs of this machine, once no journal is held by what a process that is gone left behind for a moment.
fn runs_at_rest(state_dir: &Path) -> Runs {
    let until = Instant::now() + PARTING;
    loop {
        let runs = list_runs(state_dir);
        let lives = |run: &RunSummary| {
            let process = process_of(&RunDir::new(state_dir, &run.run));
            process.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
        };
        if Instant::now() >= until || !runs.readable.iter().any(|run| run.running && !lives(run)) {
            return runs;
        }
        std::thread::sleep(LOOK);
    }
}

/// What a run was started with, and what its journal says. The current directory is the one that it was started in.
fn take_up(found: RunSummary, environment: &Environment) -> Result<(RunArgs, TakenUp), CommandError> {
    let dir = RunDir::new(&environment.state_dir, &found.run);
    let Inputs { directory, args } = inputs(&dir.inputs())?;
    std::env::set_current_dir(&directory)
        .map_err(|e| CommandError::user(format!("cannot go to {}: {e}", directory.display())))?;
    let records = read_for_resume(&dir)?;
    Ok((args, TakenUp { run: found.run, started: found.started, records }))
}

/// How long the journal of a process that was killed may stay locked: a program that it was just starting shares the lock
/// until it has begun.
const PARTING: Duration = Duration::from_secs(5);
/// How long a run that is asked to stop is waited for between two looks.
const LOOK: Duration = Duration::from_millis(200);

pub fn abort(args: &AbortArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    trust::demand_state_dir(&environment.state_dir)?;
    let run = resolve_run(&environment.state_dir, &args.run)?;
    let dir = RunDir::new(&environment.state_dir, &run);
    if let Some(pid) = process_of(&dir) {
        ask_to_stop(pid)?;
        output.status(&format!("waits for run {run}, which stops when the nodes under way are safe"));
        while process_of(&dir).is_some() {
            std::thread::sleep(LOOK);
        }
    }
    let found = one_of(list_runs(&environment.state_dir), run.clone())?;
    if !found.is_unfinished() {
        output.status(&format!("{}; there is nothing to abort", how_it_ended(&found)));
        return Ok(0);
    }
    let (mut began, taken_up) = take_up(found, environment)?;
    began.yes = true;
    began.documents.format = Some(args.format);
    engine::go_on(&began, taken_up, engine::Ahead::WindUp, environment, output)
}

fn ask_to_stop(pid: rustix::process::Pid) -> Result<(), CommandError> {
    rustix::process::kill_process(pid, rustix::process::Signal::USR1)
        .map_err(|e| CommandError::user(format!("cannot signal process {}: {e}", pid.as_raw_nonzero())))
}

pub fn pause(args: &PauseArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let run = resolve_run(&environment.state_dir, &args.run)?;
    let dir = RunDir::new(&environment.state_dir, &run);
    let Some(pid) = process_of(&dir) else {
        output.status(&format!("run {run} is not at work"));
        return Ok(0);
    };
    ask_to_stop(pid)?;
    output.status(&format!(
        "run {run} starts no new node and stops when those under way are safe; `gpufleet resume {run}` goes on"
    ));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use gpufleet::{
        event::{Event, RunStarted, Verb, What},
        journal::Journal,
    };

    use super::*;

    fn quiet() -> Output {
        let style = gpufleet::display::Style::default();
        Output { style, status_style: style, verbose: 0, on_terminal: false }
    }

    #[test]
    fn an_old_held_run_is_not_taken_while_the_newest_is_at_work() {
        let state = tempfile::tempdir().unwrap();
        let begin = |playbook: &str| {
            let run = RunId::generate();
            let started = RunStarted {
                playbooks: vec![playbook.to_owned()],
                hosts: vec!["gpu001".to_owned()],
                command_line: ["gpufleet", "run", playbook].map(str::to_owned).to_vec(),
                ..RunStarted::of(run.to_string(), Verb::Run)
            };
            let journal = Journal::create(&RunDir::new(state.path(), &run)).unwrap();
            let what = What::RunStarted(started);
            journal.append(&Event { seq: 0, at: jiff::Timestamp::UNIX_EPOCH, what }.into()).unwrap();
            journal.close().unwrap();
            run
        };
        let found = || unfinished(list_runs(state.path()), &quiet());
        let old = begin("old.yaml");
        assert_eq!(found().unwrap().unwrap().run, old);
        // Why waited for: ids of one millisecond have no order.
        std::thread::sleep(Duration::from_millis(5));
        let new = begin("new.yaml");
        let at_work = fs::File::open(RunDir::new(state.path(), &new).journal()).unwrap();
        at_work.lock().unwrap();
        let CommandError::Stopped { message, hints } = found().unwrap_err() else { panic!("another error") };
        let epoch = display::moment(jiff::Timestamp::UNIX_EPOCH, &jiff::tz::TimeZone::system());
        assert_eq!(message, format!("run {new} is still at work"));
        assert_eq!(
            hints,
            [
                format!("`gpufleet pause {new}` stops it at a safe point"),
                format!("`gpufleet resume {old}` goes on with run {old} of {epoch} (gpufleet run old.yaml)")
            ]
        );
        drop(at_work);
        assert_eq!(found().unwrap().unwrap().run, new);
    }

    #[test]
    fn a_run_that_cannot_be_read_is_not_passed_over() {
        let state = tempfile::tempdir().unwrap();
        let run = RunId::generate();
        let dir = RunDir::new(state.path(), &run);
        fs::create_dir_all(dir.path()).unwrap();
        fs::write(dir.journal(), "{broken\n").unwrap();
        for error in [
            unfinished(list_runs(state.path()), &quiet()).unwrap_err(),
            one_of(list_runs(state.path()), run.clone()).unwrap_err(),
        ] {
            let CommandError::User { message, .. } = &error else { panic!("{error:?}") };
            assert!(message.contains(run.as_str()) && message.contains("journal.jsonl:1"), "{message}");
            assert_eq!(error.exit_code(), 1);
        }
    }
}
