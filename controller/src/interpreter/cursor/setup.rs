//! What a cursor is given once, and what follows from that alone.

use std::sync::Arc;

use gpufleet_protocol::tasks::Class;

use super::{HostContext, for_all};
use crate::event::TaskStatus as Status;
use crate::index::PlayIndex;
use crate::interpreter::action::{Mode, OpId, Phase};
use crate::interpreter::files::Files;
use crate::interpreter::guard::{self, Doer};
use crate::interpreter::prepare::Surroundings;
use crate::inventory::Inventory;
use crate::playbook::{Item, Play, Program, Role, Strategy, TagFilter, Task};
use crate::template::{self, Dict, Scope, Truth, Value};

use super::task::Raw;

/// The play, the host and the way the play is gone through. Nothing here changes after the first step.
pub(super) struct Setup {
    pub program: Arc<Program>,
    pub play: Arc<Play>,
    /// The play's index in the program.
    pub index: PlayIndex,
    pub host: Arc<HostContext>,
    pub mode: Mode,
    pub tags: Arc<TagFilter>,
    pub files: Arc<dyn Files>,
    pub switches: Switches,
}

/// What the command line and the forecast switch on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Switches {
    /// GPU groups leave their activation to a reboot that the play makes anyway.
    pub defer_to_reboot: bool,
    /// A person is asked before each task.
    pub stepping: bool,
    /// A prediction runs commands that say `check_mode: false`.
    pub runs_commands: bool,
}

impl Setup {
    pub(super) fn is_linear(&self) -> bool {
        self.play.strategy == Strategy::Linear
    }

    /// Variables that the run sets: check mode, names of the play.
    pub(super) fn run_vars(&self) -> Dict {
        let mut vars = for_all(&self.play, self.mode, &self.tags, &*self.files);
        vars.insert("ansible_play_name", Value::str(&self.play.name));
        vars.insert("ansible_verbosity", Value::Int(self.host.verbosity.into()));
        vars.insert("inventory_hostname", Value::str(&self.host.host));
        let roles = |keep: fn(&Role) -> bool| {
            let names = self.play.roles.iter().filter(|role| keep(role)).map(|role| Value::str(&role.name));
            Value::list(names.collect())
        };
        vars.insert("ansible_play_role_names", roles(|role| !role.is_dependency()));
        vars.insert("role_names", roles(|role| !role.is_dependency()));
        vars.insert("ansible_dependent_role_names", roles(Role::is_dependency));
        vars.insert("ansible_role_names", roles(|_| true));
        vars
    }

    /// Variables that hold where nothing else says anything.
    pub(super) fn floor(&self) -> Dict {
        // Why: as in Ansible, facts that were not read are no mistake to look for.
        let mut floor: Dict =
            [("ansible_facts", Value::Map(Arc::default())), ("ansible_host", Value::str(&self.host.host))]
                .into_iter()
                .collect();
        floor.extend(&self.host.reached);
        let of_play =
            [("ansible_connection", &self.play.connection), ("ansible_user", &self.play.remote_user)];
        for (name, value) in of_play {
            if let Some(value) = value {
                floor.insert(name, value.clone());
            }
        }
        floor
    }

    pub(super) fn op_id(&self, task: &str, item: Option<u32>, phase: Phase, round: u32) -> OpId {
        OpId {
            play: self.index,
            task: Arc::from(task),
            item,
            phase,
            round,
            retry: 0,
            host: Arc::clone(&self.host.host),
        }
    }

    pub(super) fn surroundings(&self, task: &Task, scope: &Arc<Scope>) -> Surroundings<'_> {
        Surroundings {
            search: Arc::clone(&task.search),
            play: &self.play,
            files: &*self.files,
            verbosity: self.host.verbosity,
            become_default: self.host.become_default,
            become_user: self.host.become_user.as_deref(),
            doer: self.doer(task, scope),
        }
    }

    /// Whether a task, or a variable that it may use, asks for variables of other hosts.
    pub(super) fn looks_at_others(&self, task: &Task) -> bool {
        task.asks_for_others || self.play.vars_ask_for_others()
    }

    /// The barrier before a section's handlers. There is one in a linear play if a failure of another host would keep the
    /// handlers from running.
    pub(super) fn barrier_before_handlers(&self, section: usize) -> Option<Arc<str>> {
        let section = self.play.sections.get(section)?;
        let bounded = self.play.max_fail_percentage.is_some() || self.play.max_failures.is_some();
        let waits = self.is_linear() && (bounded || section.items.iter().any(Item::may_be_fatal));
        waits.then(|| format!("{}.handlers", section.name).into())
    }

    /// In which mode a task is done. `check_mode: true` makes a task predict in a run; `check_mode: false` runs a command
    /// in a check, if a person asked for that.
    ///
    /// # Errors
    /// Why `check_mode` has no value.
    pub(super) fn mode_of(&self, task: &Task, scope: &Arc<Scope>) -> Result<Mode, String> {
        let Some(flag) = &task.check_mode else { return Ok(self.mode) };
        match flag.holds(scope) {
            Ok(Truth::True) => Ok(Mode::Predict),
            // Why only then: a plan and an audit touch nothing, whatever a playbook says, and a check declares nothing.
            Ok(Truth::False)
                if self.switches.runs_commands
                    && task.kind.class == Class::Command
                    && task.job.is_none()
                    // Why: a check tries once, which does not show what a later try would find.
                    && task.retry.is_none()
                    // Why: in a check hosts do not share the result of such a task, so each of them would run it.
                    && !task.run_once
                    && task.once_when.is_none() =>
            {
                Ok(Mode::Apply)
            }
            Ok(_) => Ok(self.mode),
            Err(error) => Err(format!("`check_mode`: {error}")),
        }
    }

    /// The host that does the task, if it is another one.
    ///
    /// # Errors
    /// Why `delegate_to` has no value.
    pub(super) fn delegate(&self, task: &Task, scope: &Arc<Scope>) -> Result<Option<String>, String> {
        let Some(host) = &task.delegate_to else { return Ok(None) };
        match template::resolve(host, scope).map_err(|error| format!("`delegate_to`: {error}"))? {
            Value::Omit | Value::Null => Ok(None),
            resolved if resolved.has_unknown() => {
                Err("`delegate_to` hangs on the result of another task".to_owned())
            }
            resolved => {
                let name = resolved.to_text();
                if Inventory::is_this_machine(&name) {
                    guard::not_said(host, scope).map_err(|why| format!("`delegate_to`: {why}"))?;
                }
                Ok(Some(name).filter(|name| !name.is_empty() && **name != *self.host.host))
            }
        }
    }

    /// Who does a command; of other kinds nothing hangs on that.
    fn doer(&self, task: &Task, scope: &Arc<Scope>) -> Doer {
        if task.kind.class != Class::Command {
            return Doer::Host;
        }
        match self.delegate(task, scope) {
            Ok(None) => {}
            // Why here too: what fails is told by whoever asks for the host itself.
            Ok(Some(_)) | Err(_) => return Doer::Delegate,
        }
        let connection = scope.get("ansible_connection").map(|value| template::resolve(value, scope));
        match connection {
            Some(Ok(connection)) if connection.to_text().rsplit('.').next() == Some("local") => {
                Doer::Controller
            }
            _ => Doer::Host,
        }
    }

    /// What becomes of a task that depends on something unknown: possible in a prediction. In a run it is a bug of ours,
    /// and fails, because it must not pass for a result.
    pub(super) fn undecided(&self, reason: String) -> Raw {
        match self.mode {
            Mode::Predict => Raw::because(Status::Possible, reason),
            Mode::Apply => Raw::because(Status::Failed, format!("cannot be decided: it {reason}")),
        }
    }

    /// What becomes of a command that is not run.
    pub(super) fn not_run(&self) -> Raw {
        match self.mode {
            Mode::Predict => Raw::because(Status::Possible, "only a run executes it"),
            Mode::Apply => Raw::because(Status::Skipped, "`check_mode: true`: only a run executes it"),
        }
    }
}
