//! `resume` and `pause`: going on with a run, and asking one to stop.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use gpufleet::{
    event::What,
    journal::{JournalError, RunDir, RunSummary, list_runs, process_of, read_for_resume, resolve_run},
};
use serde::{Deserialize, Serialize};

use super::{
    args::{PauseArgs, ResumeArgs, RunArgs},
    engine::{self, TakenUp},
    environment::Environment,
    error::CommandError,
    output::Output,
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
    let runs = list_runs(&environment.state_dir);
    let found = match &args.run {
        Some(given) => {
            let wanted = resolve_run(&environment.state_dir, given)?;
            runs.into_iter().find(|run| run.run == wanted).ok_or(JournalError::NoSuchRun(given.clone()))?
        }
        None => match runs.into_iter().find(RunSummary::is_unfinished) {
            Some(run) => run,
            None => {
                output.status("no run is unfinished");
                return Ok(0);
            }
        },
    };
    if found.running {
        return Err(CommandError::stopped(format!("run {} is still at work", found.run))
            .hint(format!("`gpufleet pause {}` stops it at a safe point", found.run)));
    }
    if !found.is_unfinished() {
        output.status(&format!("run {} is finished; there is nothing to go on with", found.run));
        return Ok(0);
    }
    let dir = RunDir::new(&environment.state_dir, &found.run);
    let Inputs { directory, args: mut began } = inputs(&dir.inputs())?;
    std::env::set_current_dir(&directory)
        .map_err(|e| CommandError::user(format!("cannot go to {}: {e}", directory.display())))?;
    began.yes |= args.yes;
    began.format = args.format;
    let events = read_for_resume(&dir)?;
    let out = events.iter().filter(|event| matches!(event.what, What::RunResumed { .. })).count();
    tracing::info!(run = %found.run, events = events.len(), resumed = out, "taking up");
    output.status(&format!("run {} goes on", found.run));
    let taken_up = TakenUp { run: found.run, started: found.started, events };
    engine::go_on(&began, taken_up, environment, output)
}

pub fn pause(args: &PauseArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let run = resolve_run(&environment.state_dir, &args.run)?;
    let dir = RunDir::new(&environment.state_dir, &run);
    let Some(pid) = process_of(&dir) else {
        output.status(&format!("run {run} is not at work"));
        return Ok(0);
    };
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        .map_err(|e| CommandError::user(format!("cannot signal process {}: {e}", pid.as_raw_nonzero())))?;
    output.status(&format!(
        "run {run} starts no new node and stops when those under way are safe; `gpufleet resume {run}` goes on"
    ));
    Ok(0)
}
