//! Includes, `meta`, and the keys of a task that decide where it is done.

use std::sync::Arc;

use gpufleet_protocol::tasks::MetaAction;
use serde_json::{Map, Value as Json};

use super::Cursor;
use super::looping::item_layer;
use super::state::Included;
use super::task::Raw;
use super::titles::item_label;
use crate::event::TaskStatus as Status;
use crate::interpreter::action::{Mode, RunAs, Work};
use crate::playbook::{Task, Wanted};
use crate::template::{self, Scope, normal_path};

impl Cursor {
    /// Puts the tasks of another file before whatever comes next.
    pub(super) fn include(&mut self, task: &Arc<Task>, wanted: &Wanted, scope: &Arc<Scope>) {
        let Some(active) = self.frames.task() else { return };
        let (turn, value) =
            (active.next, active.items.as_ref().and_then(|items| items.get(active.next)).cloned());
        let layer = match (&task.looped, &value) {
            (Some(looped), Some(value)) => Some(item_layer(looped, turn, value, active.items.as_deref())),
            _ => None,
        };
        let Some(site) = &task.site else {
            return self.item_done(Raw::because(Status::Failed, "nothing can be included from here"));
        };
        let known = self.as_read(wanted);
        let included = match site.open(&self.setup.program.library, known.as_ref().unwrap_or(wanted), turn) {
            Ok(included) => included,
            Err(why) => return self.item_done(Raw::because(Status::Failed, why)),
        };
        self.handlers.add(&included.handlers);
        self.variables.add_role(included.role);
        let label = value.map(|value| format!(" (item={})", item_label(task, &value, scope)));
        let message = format!("included: {}{}", included.name, label.unwrap_or_default());
        let mut data = Map::new();
        data.insert("include".to_owned(), Json::String(included.name.clone()));
        let role = matches!(wanted, Wanted::Role(_));
        if let Some(active) = self.frames.task_mut() {
            active.included.push(Included { layer, role, turn, items: included.items });
        }
        self.item_done(Raw { message: Some(message), data, ..Raw::of(Status::Ok) });
    }

    /// The name under which a file with an absolute path was read.
    ///
    /// Why: `playbook_dir`, `role_path` and lookups give absolute paths, but playbooks may be named by relative ones.
    fn as_read(&self, wanted: &Wanted) -> Option<Wanted> {
        let Wanted::Tasks { file } = wanted else { return None };
        if !file.starts_with('/') {
            return None;
        }
        let meant = normal_path(file);
        let found =
            self.setup.program.library.file_where(|path| self.setup.files.playbook_dir(path) == meant);
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
            MetaAction::ClearHostErrors => self.ending.clear_errors(),
            MetaAction::ClearFacts => self.variables.clear_facts(),
            MetaAction::EndRole => {
                self.frames.leave_role();
                return None;
            }
            MetaAction::FlushHandlers => {
                self.frames.pop();
                self.flush_handlers();
                return None;
            }
            MetaAction::EndHost | MetaAction::EndPlay | MetaAction::EndBatch => {
                match action {
                    MetaAction::EndPlay => self.ending.end_play(),
                    MetaAction::EndBatch => self.ending.end_batch(),
                    // Why: as in Ansible, it is not among `ansible_play_hosts` from here on.
                    _ => self.others.leave_play(),
                }
                self.end_here();
                return None;
            }
            MetaAction::ResetConnection => {
                if self.setup.mode == Mode::Apply {
                    self.ask(task, scope, Work::ResetConnection, RunAs::Login, Vec::new(), round, None);
                    return None;
                }
            }
        }
        // Why: as in Ansible, `meta` is not counted.
        self.frames.pop();
        None
    }

    /// The play is over for this host, after the proof of what it declared.
    pub(super) fn end_here(&mut self) {
        self.frames.leave_section();
        self.handlers.forget_notified();
        self.ending.end_after_section();
    }
}

/// Whether a prediction cannot tell which host does the task.
pub(super) fn has_unknown_host(task: &Task, scope: &Arc<Scope>) -> bool {
    let host = task.delegate_to.as_ref().map(|host| template::resolve(host, scope));
    matches!(host, Some(Ok(host)) if host.has_unknown())
}

/// On how many hosts the task may be done at once.
///
/// # Errors
/// Why `throttle` has no value.
pub(super) fn throttle(task: &Task, scope: &Arc<Scope>) -> Result<Option<u32>, String> {
    let Some(value) = &task.throttle else { return Ok(None) };
    let value = template::resolve(value, scope).map_err(|error| format!("`throttle`: {error}"))?;
    match value.to_text().trim().parse::<u32>() {
        Ok(0) => Ok(None),
        Ok(most) => Ok(Some(most)),
        Err(_) => Err(format!("`throttle` wants a number, got {}", value.kind())),
    }
}
