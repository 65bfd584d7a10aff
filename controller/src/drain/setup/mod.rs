//! From a play's `drain` to its scheduler.
//!
//! Owns the rendering of a drainer's templates for each host of a play, and a file for each drainer that makes it from its
//! declaration. Must not know how a node is drained. Invariant: everything is rendered before anything is contacted, and one
//! template that fails stops all of it.

mod command;
mod kubectl;
mod kubernetes;
mod logins;
mod slurm;
mod templates;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

pub use self::logins::{LoginError, Logins};
use self::templates::Rendering;
use super::{Drainer, Scheduler};
use crate::{
    diagnostic::Diagnostics,
    hosts::Contexts,
    playbook::{Drain, NoDrain, Program},
};

/// Hosts of each play.
#[derive(Clone, Copy)]
pub struct PlayHosts<'a> {
    pub taking_part: &'a [Vec<String>],
    /// Those that a limit leaves out.
    pub beside: &'a [Vec<String>],
}

/// What a drainer may know of this machine and of the command line.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    pub home: Option<&'a Path>,
    /// The environment variables that are text.
    pub variables: &'a [(String, String)],
    /// A person overrules what cannot be drained (`--force`).
    pub forced: bool,
}

#[cfg(feature = "kubernetes")]
impl Surroundings<'_> {
    /// The value of an environment variable.
    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find_map(|(key, value)| (key == name).then_some(value.as_str()))
    }
}

/// The scheduler of each play; `None` for a play that does not drain.
pub type Schedulers = Vec<Option<Arc<Scheduler>>>;

/// Why plays have no schedulers.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// What is wrong with their declarations, with places.
    #[error("{0}")]
    Input(Diagnostics),
    #[error(transparent)]
    Login(#[from] LoginError),
}

/// Makes a scheduler; still nothing is contacted.
type Prepared<'a> = Box<dyn FnOnce(&mut Logins<'_>) -> Result<Scheduler, LoginError> + 'a>;

/// A drainer as a play declares it.
trait Declared {
    /// Renders what has to be rendered; `None` if nothing is drained, or if something is wrong, which was reported.
    fn prepare<'a>(&'a self, rendering: &mut Rendering<'a>, said: &mut Diagnostics) -> Option<Prepared<'a>>;
}

/// The registry: which file makes which drainer.
const fn declared(drain: &Drain) -> &dyn Declared {
    match drain {
        Drain::None(none) => none,
        Drain::Slurm(slurm) => slurm,
        Drain::Kubernetes(kubernetes) => kubernetes,
        Drain::Kubectl(kubectl) => kubectl,
        Drain::Command(command) => command,
    }
}

impl Declared for NoDrain {
    fn prepare<'a>(&'a self, _: &mut Rendering<'a>, _: &mut Diagnostics) -> Option<Prepared<'a>> {
        None
    }
}

/// Makes the scheduler of each play. Nothing is contacted yet. The diagnostics are warnings.
///
/// # Errors
/// Templates that fail for a host, two hosts under one name at a scheduler, and login hosts that cannot be used.
pub fn schedulers(
    program: &Program,
    hosts: PlayHosts<'_>,
    contexts: &[Arc<Contexts>],
    surroundings: &Surroundings<'_>,
    logins: &mut Logins<'_>,
) -> Result<(Schedulers, Diagnostics), SetupError> {
    let mut said = Diagnostics::new();
    let mut prepared = Vec::with_capacity(program.plays.len());
    let plays = program.plays.iter().zip(contexts);
    for (((play, contexts), taking_part), beside) in plays.zip(hosts.taking_part).zip(hosts.beside) {
        let mut rendering =
            Rendering { play, hosts: taking_part, beside, contexts, surroundings, failures: Vec::new() };
        rendering.login(&mut said);
        prepared.push(declared(&play.policy.drain).prepare(&mut rendering, &mut said));
        rendering.report(&mut said);
    }
    if said.has_errors() {
        return Err(SetupError::Input(said));
    }
    let made = prepared.into_iter().map(|prepared| match prepared {
        Some(prepared) => Ok(Some(Arc::new(prepared(logins)?))),
        None => Ok(None),
    });
    Ok((made.collect::<Result<_, LoginError>>()?, said))
}

/// A scheduler with names of its own that can tell who is out.
fn surveyed(drainer: Arc<dyn Drainer>, timeout_s: u64, nodes: HashMap<String, String>) -> Scheduler {
    let mut scheduler = Scheduler::new(drainer, Duration::from_secs(timeout_s));
    scheduler.nodes = nodes;
    scheduler.surveys = true;
    scheduler
}
