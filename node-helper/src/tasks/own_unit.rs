//! A systemd service of ours that sets something at every boot, with the shell script that it runs.
//!
//! The script is a file of its own, because quoting in unit files differs from that of shells. A service is stopped before
//! one of its files changes, so that a run that is killed leaves no service with the old setting beside the new files.

use std::{path::PathBuf, time::Duration};

use gpufleet_protocol::{Change, Disruption, FailureKind, Layer, Property, Subject, change::Value as Typed};

use super::{knobs, started, tool};
use crate::{
    declare::{Node, Plan, Trouble},
    os::{reload, tree, units},
    world::{BootView, Content, Effect, Entry, Owned, UnitView},
};

const UNITS: &str = "/etc/systemd/system";
const SCRIPTS: &str = "/etc/gpufleet";
/// Time limit for a start or stop.
const START: Duration = Duration::from_secs(60);

/// What the service is to be; without `script`, it is not to be there.
#[derive(Clone, Debug)]
pub struct OwnUnit {
    /// Without `.service`.
    pub name: &'static str,
    /// What it does, in one line, as changes show it.
    pub about: String,
    pub script: Option<String>,
    /// Whether the script goes on for as long as the setting counts.
    pub stays: bool,
    /// Units that it starts after.
    pub after: &'static str,
    /// A unit that it needs, and starts after too.
    pub requires: Option<&'static str>,
}

#[derive(Debug)]
pub struct State {
    wanted: OwnUnit,
    unit: (PathBuf, Option<String>),
    script: (PathBuf, Option<String>),
    active: bool,
    /// Whether it has run since before one of its files was written.
    older: bool,
    enabled: bool,
    systemctl: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Stop,
    Write { path: PathBuf, text: String },
    Start,
    Remove,
}

fn described(unit: &str) -> Option<&str> {
    unit.lines().find_map(|line| line.strip_prefix("Description=gpufleet: "))
}

/// Returns what a service of ours that is there does; `name` is without `.service`.
///
/// # Errors
/// If its file cannot be read.
pub fn about(node: &Node<'_>, name: &str) -> Result<Option<String>, Trouble> {
    let bytes = node.world.read(&node.roots.path(UNITS).join(format!("{name}.service")))?;
    Ok(bytes.and_then(|bytes| described(&String::from_utf8_lossy(&bytes)).map(str::to_owned)))
}

impl OwnUnit {
    fn unit_name(&self) -> String {
        format!("{}.service", self.name)
    }

    fn text(&self) -> String {
        let requires = self.requires.map_or(String::new(), |unit| format!("Requires={unit}\nAfter={unit}\n"));
        let kind = if self.stays { "Type=simple" } else { "Type=oneshot\nRemainAfterExit=yes" };
        format!(
            "# Written by gpufleet.\n\
             [Unit]\n\
             Description=gpufleet: {}\n\
             After={}\n\
             {requires}\n\
             [Service]\n\
             {kind}\n\
             ExecStart=/bin/sh {SCRIPTS}/{}.sh\n\
             \n\
             [Install]\n\
             WantedBy=multi-user.target\n",
            self.about, self.after, self.name
        )
    }

    /// # Errors
    /// If there is no systemd, or something cannot be read.
    pub fn observe(self, node: &Node<'_>) -> Result<State, Trouble> {
        let systemctl = tool::find(node, "systemctl", "does systemd run this node?")?;
        let name = self.unit_name();
        let read = |path: PathBuf| -> Result<(PathBuf, Option<String>), Trouble> {
            let bytes = node.world.read(&path)?;
            Ok((path, bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())))
        };
        let unit = read(node.roots.path(UNITS).join(&name))?;
        let script = read(node.roots.path(SCRIPTS).join(format!("{}.sh", self.name)))?;
        let (mut active, mut enabled, mut older) = (false, false, false);
        if let Some(view) = node.world.unit(&name) {
            (active, enabled) = (view.active == Some(true), view.file_state == "enabled");
        } else if unit.1.is_some() {
            let found = units::show(&systemctl, &[&name], node.deadline)?;
            let status = found.get(&name).cloned().unwrap_or_default();
            // A start that ran once leaves a service active; one that failed left the setting as it was.
            (active, enabled) = (status.runs(), status.enabled);
            if node.world.rebooted() {
                active = enabled;
            } else {
                let paths = [unit.0.clone(), script.0.clone()];
                older = active && started::unit_before(node, status.entered_us, &paths)?;
            }
        }
        Ok(State { wanted: self, unit, script, active, older, enabled, systemctl })
    }
}

impl State {
    /// Whether the service is there and does what is declared.
    pub fn runs(&self) -> bool {
        self.active
    }

    pub fn plan<S>(&self, plan: &mut Plan<S>, step: impl Fn(Step) -> S) {
        let name = self.wanted.unit_name();
        let told = |text: &Option<String>| {
            let about =
                |text: &String| Typed::text(described(text).unwrap_or("another service of this name"));
            text.as_ref().map_or(Typed::Absent, about)
        };
        let change = |property: Property, from: Typed, to: Typed| {
            Change::new(Subject::unit(&name), property, from, to, Disruption::Live)
        };
        let Some(script) = &self.wanted.script else {
            if self.unit.1.is_some() || self.script.1.is_some() {
                plan.steps.push(step(Step::Remove));
                let gone = change(Property::CONTENT, told(&self.unit.1), Typed::Absent);
                plan.changes.push(gone.at(Layer::Boot));
            }
            return;
        };
        let text = self.wanted.text();
        let files = [(&self.script, script), (&self.unit, &text)];
        let changed = files.iter().any(|((_, now), wanted)| now.as_ref() != Some(*wanted));
        if changed && self.active {
            plan.steps.push(step(Step::Stop));
        }
        for ((path, now), wanted) in files {
            if now.as_ref() != Some(wanted) {
                plan.steps.push(step(Step::Write { path: path.clone(), text: wanted.clone() }));
            }
        }
        if changed {
            let change = change(Property::CONTENT, told(&self.unit.1), Typed::text(&self.wanted.about));
            plan.changes.push(change.at(Layer::Boot));
        } else if !self.enabled {
            plan.changes.push(change(Property::STATE, "disabled".into(), "enabled".into()).at(Layer::Boot));
        }
        if !self.active {
            plan.changes.push(change(Property::STATE, "stopped".into(), "started".into()));
        } else if self.older && !changed {
            let settings = Property::new("settings");
            plan.changes.push(change(settings, "older than its files".into(), "as in its files".into()));
        }
        if changed || !self.enabled || !self.active || self.older {
            plan.steps.push(step(Step::Start));
        }
    }

    pub fn after<'s>(&self, steps: impl IntoIterator<Item = &'s Step>) -> Vec<Effect> {
        let name = self.wanted.unit_name();
        let view = |active, state: &str| Effect::Unit {
            name: name.clone(),
            view: UnitView { active: Some(active), file_state: state.to_owned(), boot: BootView::default() },
        };
        let owned = Owned { uid: 0, gid: 0, mode: 0o644 };
        let effect = |step: &Step| match step {
            Step::Write { path, text } => vec![Effect::Path {
                path: path.clone(),
                entry: Entry::File { owned, content: Content::Known(text.as_bytes().into()) },
            }],
            // It is started again.
            Step::Stop => Vec::new(),
            Step::Start => vec![view(true, "enabled"), Effect::UnitFilesRead("daemon-reload")],
            Step::Remove => {
                let gone = |path: &PathBuf| Effect::Path { path: path.clone(), entry: Entry::Absent };
                let verb = if self.unit.1.is_some() { "disable" } else { "daemon-reload" };
                vec![gone(&self.unit.0), gone(&self.script.0), view(false, ""), Effect::UnitFilesRead(verb)]
            }
        };
        steps.into_iter().flat_map(effect).collect()
    }

    /// # Errors
    /// If a file cannot be written, or systemd does not start the service.
    pub fn apply(&self, node: &Node<'_>, step: &Step) -> Result<(), Trouble> {
        let name = self.wanted.unit_name();
        let systemctl = |arguments: &[&str]| {
            reload::before(arguments.first().copied().unwrap_or_default(), node.roots)?;
            let run = tool::run(node, &self.systemctl).arg("--no-ask-password").args(arguments);
            let what = format!("systemctl {}", arguments.join(" "));
            (node.progress)(what.clone());
            let done = run.finish(&node.deadline.within(START))?;
            if done.exit.success() {
                return Ok(());
            }
            Err(Trouble::failed(FailureKind::Exit, done.complaint(&what)))
        };
        match step {
            // Before anything is touched, because the start reloads.
            Step::Stop => {
                reload::before("daemon-reload", node.roots)?;
                systemctl(&["stop", &name])
            }
            Step::Write { path, text } => {
                reload::before("daemon-reload", node.roots)?;
                knobs::put(path, text)
            }
            Step::Start => {
                systemctl(&["daemon-reload"])?;
                systemctl(&["enable", &name])?;
                systemctl(&["restart", &name])
            }
            Step::Remove => {
                if self.unit.1.is_some() {
                    systemctl(&["disable", &name])?;
                    systemctl(&["stop", &name])?;
                }
                for (path, there) in [&self.unit, &self.script] {
                    if there.is_some() {
                        let spot = tree::spot(path)?;
                        spot.remove()
                            .map_err(|error| crate::os::files::FileError::new("remove", path, error))?;
                    }
                }
                systemctl(&["daemon-reload"])
            }
        }
    }
}
