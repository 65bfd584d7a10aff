//! Where the programs of schedulers run: here, or on hosts of the inventory.

use std::{collections::HashMap, sync::Arc};

use crate::{
    drain::{LocalRunner, LoginRunner, Runner},
    playbook::Login,
    transport::{Connection, Connector, Target},
};

/// Why a host cannot run a scheduler's programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    #[error("the inventory has no host `{host}`")]
    Unknown { host: String },
    #[error("{host}: `sudo` with a password is not possible for a scheduler's programs")]
    SudoPassword { host: String },
}

impl LoginError {
    /// What may help.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unknown { .. } => None,
            Self::SudoPassword { .. } => {
                Some("let its user be a Slurm operator, or let sudo ask for no password there")
            }
        }
    }
}

/// Runs programs on login hosts; each host is logged in to once, however many plays name it.
pub struct Logins<'a> {
    open: Box<Open<'a>>,
    runners: HashMap<String, Arc<dyn Runner>>,
}

type Open<'a> = dyn Fn(&str) -> Result<Arc<dyn Runner>, LoginError> + 'a;

impl<'a> Logins<'a> {
    /// Over the ways on which `target` says that hosts are reached; nothing is contacted yet.
    pub fn new(connector: &'a Arc<Connector>, target: impl Fn(&str) -> Option<&'a Target> + 'a) -> Self {
        Self::opened_by(move |host| {
            let known = target(host).ok_or_else(|| LoginError::Unknown { host: host.to_owned() })?;
            runner(connector, known)
        })
    }

    pub(super) fn opened_by(open: impl Fn(&str) -> Result<Arc<dyn Runner>, LoginError> + 'a) -> Self {
        Self { open: Box::new(open), runners: HashMap::new() }
    }

    pub(super) fn runner_for(&mut self, login: Option<&Login>) -> Result<Arc<dyn Runner>, LoginError> {
        let Some(Login { host, .. }) = login else { return Ok(Arc::new(LocalRunner)) };
        if let Some(runner) = self.runners.get(host) {
            return Ok(Arc::clone(runner));
        }
        let runner = (self.open)(host)?;
        self.runners.insert(host.clone(), Arc::clone(&runner));
        Ok(runner)
    }
}

fn runner(connector: &Arc<Connector>, target: &Target) -> Result<Arc<dyn Runner>, LoginError> {
    let sudo = target.privilege.as_ref();
    if sudo.is_some_and(|sudo| sudo.password.is_some()) {
        return Err(LoginError::SudoPassword { host: target.name.clone() });
    }
    if sudo.is_none() && matches!(target.connection, Connection::Local) {
        return Ok(Arc::new(LocalRunner));
    }
    Ok(Arc::new(LoginRunner::new(Arc::clone(connector), target.clone())))
}
