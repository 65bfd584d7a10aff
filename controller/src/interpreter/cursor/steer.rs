//! What steers a host beside its tasks: where and how a task is done, what it includes, `meta`.

use std::sync::Arc;

use gpufleet_protocol::tasks::MetaAction;
use serde_json::{Map, Value as Json};

use gpufleet_protocol::tasks::Class;

use super::Cursor;
use super::state::{Brought, Frame, PlayStage};
use super::task::Raw;
use crate::event::TaskStatus as Status;
use crate::interpreter::action::{Mode, RunAs, Work};
use crate::playbook::{Task, Wanted};
use crate::template::{self, Scope, Truth, Value, normal_path};

impl Cursor {
    /// `check_mode` makes a task predict in a run, and a command run in a check that a person asked for so.
    pub(super) fn mode_of(&self, task: &Task, scope: &Arc<Scope>) -> Result<Mode, String> {
        let Some(flag) = &task.check_mode else { return Ok(self.mode) };
        match flag.holds(scope) {
            Ok(Truth::True) => Ok(Mode::Predict),
            // Why not otherwise: a plan and an audit touch nothing, whatever a playbook says, and a check declares nothing.
            Ok(Truth::False)
                if self.runs_commands
                    && task.kind.class == Class::Command
                    && task.job.is_none()
                    // Why: a check tries once, and that says nothing of what a later try would find.
                    && task.retry.is_none()
                    // Why: in a check no host tells another what such a task gave, so that each would run it.
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
    pub(super) fn delegate(&self, task: &Task, scope: &Arc<Scope>) -> Result<Option<String>, String> {
        let Some(host) = &task.delegate_to else { return Ok(None) };
        match template::resolve(host, scope).map_err(|error| format!("`delegate_to`: {error}"))? {
            Value::Omit | Value::Null => Ok(None),
            host if host.has_unknown() => Err("`delegate_to` hangs on the result of another task".to_owned()),
            host => {
                let host = host.to_text();
                Ok(Some(host).filter(|host| !host.is_empty() && **host != *self.host.host))
            }
        }
    }

    /// Whether a prediction cannot tell which host does the task.
    pub(super) fn is_anybodys(task: &Task, scope: &Arc<Scope>) -> bool {
        let host = task.delegate_to.as_ref().map(|host| template::resolve(host, scope));
        matches!(host, Some(Ok(host)) if host.has_unknown())
    }

    pub(super) fn throttle(task: &Task, scope: &Arc<Scope>) -> Result<Option<u32>, String> {
        let Some(value) = &task.throttle else { return Ok(None) };
        let value = template::resolve(value, scope).map_err(|error| format!("`throttle`: {error}"))?;
        match value.to_text().trim().parse::<u32>() {
            Ok(0) => Ok(None),
            Ok(most) => Ok(Some(most)),
            Err(_) => Err(format!("`throttle` wants a number, got {}", value.kind())),
        }
    }

    /// Puts the tasks of another file before whatever comes next.
    pub(super) fn include(&mut self, task: &Arc<Task>, wanted: &Wanted, scope: &Arc<Scope>) {
        let Some(Frame::Task(active)) = self.frames.last() else { return };
        let (turn, value) =
            (active.next, active.items.as_ref().and_then(|items| items.get(active.next)).cloned());
        let layer = match (&task.looped, &value) {
            (Some(looped), Some(value)) => {
                Some(Self::item_layer(looped, turn, value, active.items.as_deref()))
            }
            _ => None,
        };
        let Some(site) = &task.site else {
            return self.item_done(Raw::because(Status::Failed, "nothing can be included from here"));
        };
        let known = self.as_read(wanted);
        let included = match site.open(&self.program.library, known.as_ref().unwrap_or(wanted), turn) {
            Ok(included) => included,
            Err(why) => return self.item_done(Raw::because(Status::Failed, why)),
        };
        let known = |new: &Arc<Task>, known: &[Arc<Task>]| known.iter().any(|old| Arc::ptr_eq(old, new));
        for handler in &included.handlers {
            if !known(handler, &self.handlers) {
                self.handlers.push(Arc::clone(handler));
            }
        }
        self.roles.extend(included.role.iter().cloned());
        let label = value.map(|value| format!(" (item={})", Self::item_label(task, &value, scope)));
        let message = format!("included: {}{}", included.name, label.unwrap_or_default());
        let mut data = Map::new();
        data.insert("include".to_owned(), Json::String(included.name.clone()));
        let role = matches!(wanted, Wanted::Role(_));
        if let Some(Frame::Task(active)) = self.frames.last_mut() {
            active.included.push(Brought { layer, role, turn, items: included.items });
        }
        self.item_done(Raw { message: Some(message), data, ..Raw::of(Status::Ok) });
    }

    /// A file that is named from the root, as it was named when it was read.
    ///
    /// Why: `playbook_dir`, `role_path` and what lookups find begin at the root, and files were read from where the command
    /// was started.
    fn as_read(&self, wanted: &Wanted) -> Option<Wanted> {
        let Wanted::Tasks { file } = wanted else { return None };
        if !file.starts_with('/') {
            return None;
        }
        let meant = normal_path(file);
        let found = self.program.library.file_where(|path| self.files.playbook_dir(path) == meant);
        found.map(|file| Wanted::Tasks { file })
    }

    pub(super) fn meta(
        &mut self,
        action: MetaAction,
        task: &Arc<Task>,
        scope: &Arc<Scope>,
        round: u32,
    ) -> Option<Raw> {
        match action {
            MetaAction::Noop | MetaAction::RefreshInventory => {}
            MetaAction::ClearHostErrors => self.cleared_errors = true,
            MetaAction::ClearFacts => self.vars.facts = Arc::default(),
            MetaAction::EndRole => {
                while let Some(frame) = self.frames.pop() {
                    match frame {
                        Frame::Include { role: true, .. } => break,
                        Frame::Block { block, .. } if block.is_role => break,
                        _ => {}
                    }
                }
                return None;
            }
            MetaAction::FlushHandlers => {
                self.frames.pop();
                self.flush_handlers();
                return None;
            }
            MetaAction::EndHost | MetaAction::EndPlay | MetaAction::EndBatch => {
                self.end_play |= action == MetaAction::EndPlay;
                self.end_batch |= action == MetaAction::EndBatch;
                if let (MetaAction::EndHost, Some(snapshots)) = (action, &self.snapshots) {
                    // Why: as in Ansible, it is not among `ansible_play_hosts` from here on.
                    snapshots.lose(&self.host.host);
                }
                self.end_here();
                return None;
            }
            MetaAction::ResetConnection => {
                if self.mode == Mode::Apply {
                    self.ask(task, scope, Work::ResetConnection, RunAs::Login, Vec::new(), round, None);
                    return None;
                }
            }
        }
        // Why: as in Ansible, steering the play counts nowhere.
        self.frames.pop();
        None
    }

    /// The play is over for this host, after the proof of what it declared.
    pub(super) fn end_here(&mut self) {
        self.frames.clear();
        self.waiting.clear();
        self.notified.clear();
        self.stage = match self.stage {
            PlayStage::Tasks(section) | PlayStage::Handlers(section) => PlayStage::VerifyStart(section),
            other => other,
        };
        self.ending = true;
    }
}
