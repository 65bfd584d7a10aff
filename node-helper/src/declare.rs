//! The interface of declarative kinds, and the driver that predicts and applies them.
//!
//! A kind reads ([`NodeKind::observe`]), compares ([`NodeKind::plan`], pure), predicts the effects
//! ([`NodeKind::after`], pure) and does exactly the planned steps ([`NodeKind::apply`]). The driver decides whether
//! steps are allowed, observes again after them, and builds the outcome; if differences are left, the kind failed to
//! converge. A prediction writes nothing.

use std::{io::ErrorKind, path::PathBuf};

use gpufleet_protocol::{
    Awaiting, Blocker, Certainty, Change, Disruption, FailureKind, OpOutcome, OpStatus, message::Mode,
    op::Blob,
};
use serde_json::{Map, Value};

use crate::{
    deadline::{Deadline, Stop},
    gpu,
    os::{
        attributes,
        files::{self, FileError},
        reload::{self, Refusal},
        roots::Roots,
        users::{Identity, UserError, Users},
    },
    process::ProcessError,
    tasks::download::Downloads,
    world::{Effect, Overlay, ReadError, World},
};

/// Why an operation ends without a result.
#[derive(Debug)]
pub enum Trouble {
    Failed {
        kind: FailureKind,
        message: String,
    },
    /// Something that the declaration needs is missing; a package that an earlier task installs may bring it.
    Missing(String),
    /// What is declared does not exist on this node, and need not.
    NotApplicable(String),
    /// Known only in the run, because an earlier task creates what this one reads.
    Possible,
    /// The same, with what is not known, and why.
    PossibleBecause(String),
}

impl Trouble {
    pub fn failed(kind: FailureKind, message: impl Into<String>) -> Self {
        Self::Failed { kind, message: message.into() }
    }

    /// Creates the error for a declaration that this node cannot satisfy.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::failed(FailureKind::Invalid, message)
    }

    /// Creates the error for something that the declaration needs and the node lacks.
    pub fn missing(message: impl Into<String>) -> Self {
        Self::Missing(message.into())
    }

    pub fn io(message: impl Into<String>) -> Self {
        Self::failed(FailureKind::Io, message)
    }

    pub fn stopped(stop: Stop) -> Self {
        match stop {
            Stop::TimedOut => {
                Self::failed(FailureKind::TimedOut, "it did not end within the time that it has")
            }
            Stop::Cancelled => Self::failed(FailureKind::Cancelled, "it was cancelled"),
        }
    }

    /// Returns what it says, for a message that says more.
    pub fn text(&self) -> String {
        match self {
            Self::Failed { message, .. }
            | Self::Missing(message)
            | Self::NotApplicable(message)
            | Self::PossibleBecause(message) => message.clone(),
            Self::Possible => "only the run can tell".to_owned(),
        }
    }

    /// Converts it to an outcome.
    pub fn outcome(self) -> OpOutcome {
        OpOutcome::new(match self {
            Self::Failed { kind, message } => OpStatus::Failed { kind, message },
            Self::Missing(message) => OpStatus::Failed { kind: FailureKind::Missing, message },
            Self::NotApplicable(reason) => OpStatus::NotApplicable { reason },
            Self::Possible => OpStatus::Possible,
            Self::PossibleBecause(why) => return OpOutcome::possible(why),
        })
    }

    /// As [`Trouble::outcome`], for a prediction, in which a failed reading means an unknown state.
    fn predicted(self, world: &World) -> OpOutcome {
        match self {
            Self::Missing(lacks) if world.brings_packages() => OpOutcome::possible(format!(
                "an earlier task installs packages, which may bring what is missing now ({lacks}); the run looks again then, and \
                 fails where it is still missing"
            )),
            Self::Failed { kind: FailureKind::Io | FailureKind::Exit | FailureKind::TimedOut, message } => {
                OpOutcome::new(OpStatus::Unknown { reason: message })
            }
            other => other.outcome(),
        }
    }
}

impl From<FileError> for Trouble {
    fn from(error: FileError) -> Self {
        // An error with a number comes from the kernel, for example from a network file system.
        let ours = error.source.kind() == ErrorKind::TimedOut && error.source.raw_os_error().is_none();
        let kind = if ours { FailureKind::TimedOut } else { FailureKind::Io };
        Self::failed(kind, error.to_string())
    }
}

impl From<ReadError> for Trouble {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::File(error) => error.into(),
            ReadError::Foreseen(_) => {
                Self::PossibleBecause(format!("{error}, because an earlier task writes it"))
            }
        }
    }
}

impl From<UserError> for Trouble {
    fn from(error: UserError) -> Self {
        let kind = match error {
            UserError::NoUser(_) | UserError::NoGroup(_) => return Self::Missing(error.to_string()),
            UserError::NotRoot(_) => FailureKind::Refused,
            UserError::Read { .. } | UserError::Switch { .. } => FailureKind::Io,
        };
        Self::failed(kind, error.to_string())
    }
}

impl From<Refusal> for Trouble {
    fn from(error: Refusal) -> Self {
        Self::failed(FailureKind::Busy, error.to_string())
    }
}

impl From<ProcessError> for Trouble {
    fn from(error: ProcessError) -> Self {
        let kind = match &error {
            ProcessError::Stopped { stop: Stop::TimedOut, .. } => FailureKind::TimedOut,
            ProcessError::Stopped { stop: Stop::Cancelled, .. } => FailureKind::Cancelled,
            ProcessError::Watch { .. } => FailureKind::Io,
            _ => FailureKind::Invalid,
        };
        Self::failed(kind, error.to_string())
    }
}

/// Fetches content from the controller.
pub trait Fetch: Sync {
    /// Passes the content piece by piece to `sink`; returns once it is complete and its digest is right.
    ///
    /// # Errors
    /// If the controller has no such content or sends different content, or at the deadline.
    fn fetch(
        &self,
        blob: &Blob,
        deadline: &Deadline,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Trouble>,
    ) -> Result<(), Trouble>;
}

/// What kinds have access to.
pub struct Node<'a> {
    pub roots: &'a Roots,
    pub users: &'a Users,
    pub world: World,
    /// The user that processes run as; `None` is the helper's own.
    pub user: Option<Identity>,
    pub environment: &'a [(String, String)],
    pub deadline: &'a Deadline,
    pub fetch: &'a dyn Fetch,
    pub progress: &'a (dyn Fn(String) + Sync),
    /// What this operation has downloaded.
    pub downloads: Downloads,
}

impl Node<'_> {
    /// Returns the same node with another deadline, for a way back that must not end with the task's time.
    pub fn until<'n>(&'n self, deadline: &'n Deadline) -> Node<'n> {
        Node {
            roots: self.roots,
            users: self.users,
            world: self.world.clone(),
            user: self.user.clone(),
            environment: self.environment,
            deadline,
            fetch: self.fetch,
            progress: self.progress,
            downloads: Downloads::default(),
        }
    }

    /// # Errors
    /// If it is time to stop.
    pub fn check_time(&self) -> Result<(), Trouble> {
        self.deadline.stop().map_or(Ok(()), |stop| Err(Trouble::stopped(stop)))
    }
}

/// The steps of a kind, and what they change.
#[derive(Debug)]
pub struct Plan<S> {
    pub steps: Vec<S>,
    pub changes: Vec<Change>,
    pub awaiting: Vec<Awaiting>,
    /// As [`OpOutcome::for_next_boot`].
    pub for_next_boot: Vec<String>,
    pub warnings: Vec<String>,
    /// The disruption that the steps cause at once.
    pub needs: Disruption,
    /// What `register` gets of the plan itself, such as a message.
    pub data: Map<String, Value>,
    /// As [`OpOutcome::act`].
    pub act: bool,
}

impl<S> Default for Plan<S> {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            changes: Vec::new(),
            awaiting: Vec::new(),
            for_next_boot: Vec::new(),
            warnings: Vec::new(),
            needs: Disruption::Live,
            data: Map::new(),
            act: false,
        }
    }
}

impl<S> Plan<S> {
    pub fn push(&mut self, step: S, change: Change) {
        self.steps.push(step);
        self.changes.push(change);
    }

    /// Moves what another plan tells into this one; its steps stay.
    pub fn take<O>(&mut self, from: &mut Plan<O>) {
        self.changes.append(&mut from.changes);
        self.awaiting.append(&mut from.awaiting);
        self.for_next_boot.append(&mut from.for_next_boot);
        self.warnings.append(&mut from.warnings);
        self.needs = self.needs.max(from.needs);
    }
}

/// A declarative kind.
pub trait NodeKind: Sync {
    type State: Send;
    type Step: Send;

    /// Whether data such as package lists must be refreshed before a plan is valid.
    fn is_stale(&self, _state: &Self::State) -> bool {
        false
    }

    /// Refreshes that data, and changes nothing that is declared; returns what `register` gets. Called at most once,
    /// only before an apply, and followed by another observation.
    ///
    /// # Errors
    /// If it cannot be refreshed.
    fn refresh(&self, _node: &Node<'_>, _state: &Self::State) -> Result<Map<String, Value>, Trouble> {
        Ok(Map::new())
    }

    /// Reads what the plan compares; writes nothing.
    ///
    /// # Errors
    /// If something cannot be read; such a state never counts as the declared one.
    fn observe(&self, node: &Node<'_>) -> Result<Self::State, Trouble>;

    /// Returns what differs, and the steps to change it. Pure.
    ///
    /// # Errors
    /// If this state cannot be brought to the declared one.
    fn plan(&self, state: &Self::State) -> Result<Plan<Self::Step>, Trouble>;

    /// Returns the effects of the plan. Pure.
    fn after(&self, state: &Self::State, plan: &Plan<Self::Step>) -> Vec<Effect>;

    /// Does the steps of the plan and nothing else; returns what `register` gets.
    ///
    /// # Errors
    /// If a step fails; the steps before it are done.
    fn apply(
        &self,
        node: &Node<'_>,
        state: &Self::State,
        plan: &Plan<Self::Step>,
    ) -> Result<Map<String, Value>, Trouble>;

    /// Returns what still differs after the steps of `done`. Kinds with steps that are done every time leave those out.
    ///
    /// # Errors
    /// As [`NodeKind::plan`].
    fn left(&self, state: &Self::State, _done: &Plan<Self::Step>) -> Result<Plan<Self::Step>, Trouble> {
        self.plan(state)
    }

    /// Returns values that two tasks of a run must not declare differently, because each would undo the other at every run;
    /// by a name for messages, such as `mtu of eth1`.
    fn declares(&self, _state: &Self::State) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns the path whose owner, mode and size `register` gets; links are not followed.
    fn subject(&self, _state: &Self::State) -> Option<PathBuf> {
        None
    }

    /// Returns what `register` gets whether anything changed or not.
    fn data(&self, _state: &Self::State) -> Map<String, Value> {
        Map::new()
    }
}

/// Checks that steps of a disruption are allowed; called right before them.
pub type Gate<'a> = &'a (dyn Fn(Disruption) -> Result<(), Trouble> + Sync);

/// Predicts or applies a declaration.
pub fn drive<D: NodeKind>(
    declaration: &D,
    node: &Node<'_>,
    mode: Mode,
    overlay: &Overlay,
    allowed: Disruption,
    gate: Gate<'_>,
) -> OpOutcome {
    let world = match mode {
        Mode::Predict => World::overlaid(overlay),
        Mode::Apply => World::real(),
    };
    let users = node.users.seen_in(&world);
    let node = Node {
        roots: node.roots,
        users: &users,
        world,
        user: node.user.clone(),
        environment: node.environment,
        deadline: node.deadline,
        fetch: node.fetch,
        progress: node.progress,
        downloads: Downloads::default(),
    };
    match mode {
        Mode::Predict => {
            predict(declaration, &node, overlay).unwrap_or_else(|trouble| trouble.predicted(&node.world))
        }
        Mode::Apply => apply(declaration, &node, overlay, allowed, gate).unwrap_or_else(Trouble::outcome),
    }
}

fn outcome<S>(plan: &Plan<S>, data: Map<String, Value>) -> OpOutcome {
    let idle = plan.steps.is_empty() && plan.changes.is_empty();
    let open = plan.steps.is_empty() && plan.changes.iter().all(|c| c.certainty == Certainty::Possible);
    let status = match (idle, open) {
        (true, _) => OpStatus::Ok,
        (false, true) => OpStatus::Possible,
        (false, false) => OpStatus::Changed,
    };
    let mut outcome = OpOutcome::new(status);
    outcome.changes.clone_from(&plan.changes);
    outcome.awaiting.clone_from(&plan.awaiting);
    outcome.for_next_boot.clone_from(&plan.for_next_boot);
    outcome.warnings.clone_from(&plan.warnings);
    outcome.act = plan.act;
    outcome.data = data;
    outcome.data.extend(plan.data.clone());
    outcome
}

/// Returns what `register` gets of a state.
fn told<D: NodeKind>(declaration: &D, node: &Node<'_>, state: &D::State) -> Map<String, Value> {
    let mut data = match declaration.subject(state) {
        Some(path) => attributes::of(&path, &node.world, node.users),
        None => Map::new(),
    };
    data.extend(declaration.data(state));
    data
}

fn agreed(overlay: &Overlay, mode: Mode, values: &[(String, String)]) -> Result<(), Trouble> {
    let Some((name, other)) = overlay.contradicted(mode, values) else { return Ok(()) };
    let own = values.iter().find(|(own, _)| *own == name).map_or("", |(_, value)| value);
    Err(Trouble::invalid(format!(
        "an earlier task of this run declares {name} as {other}, and this one as {own}: the two would undo each other at \
         every run; declare it in one of them only"
    )))
}

fn predict<D: NodeKind>(declaration: &D, node: &Node<'_>, overlay: &Overlay) -> Result<OpOutcome, Trouble> {
    let state = declaration.observe(node)?;
    let plan = declaration.plan(&state)?;
    let declares = declaration.declares(&state);
    agreed(overlay, Mode::Predict, &declares)?;
    overlay.declare(Mode::Predict, declares);
    let effects = declaration.after(&state, &plan);
    // Not after a reboot of this prediction, which may mount anew.
    let closed = match node.world.rebooted() {
        true => Vec::new(),
        false => closed(&effects),
    };
    let reloads = effects.iter().find_map(|effect| match effect {
        Effect::UnitFilesRead(verb) => Some(*verb),
        _ => None,
    });
    overlay.assume(effects);
    let mut answer = outcome(&plan, told(declaration, node, &state));
    answer.blockers = in_the_way(node, plan.needs);
    answer.blockers.extend(closed);
    // No failure, because a task before this one may drain the node. Not after a reboot, which ends all containers.
    if let Some(verb) = reloads.filter(|_| !node.world.rebooted())
        && let Some(refusal) = overlay.reload_refused(|| reload::foreseen(node.roots).err())
    {
        let text = refusal.to(verb).to_string();
        let (what, next) = text.rsplit_once("; ").unwrap_or((&text, "drain the node first"));
        answer.blockers.push(Blocker::new(what, next));
    }
    Ok(answer)
}

/// Returns what keeps the run from changing the paths that it would change.
fn closed(effects: &[Effect]) -> Vec<Blocker> {
    let mut found: Vec<Blocker> = Vec::new();
    for effect in effects {
        let Effect::Path { path, .. } = effect else { continue };
        let Some(obstacle) = files::obstacle(path) else { continue };
        let blocker = Blocker::new(obstacle.what, obstacle.next);
        if !found.contains(&blocker) {
            found.push(blocker);
        }
    }
    found
}

/// Returns who holds GPUs, where steps need them gone.
fn in_the_way(node: &Node<'_>, needs: Disruption) -> Vec<Blocker> {
    // Not where a reboot of this prediction has ended them.
    match needs >= Disruption::Clients && !node.world.rebooted() {
        true => gpu::holders(node.roots),
        false => Vec::new(),
    }
}

fn apply<D: NodeKind>(
    declaration: &D,
    node: &Node<'_>,
    overlay: &Overlay,
    allowed: Disruption,
    gate: Gate<'_>,
) -> Result<OpOutcome, Trouble> {
    let mut before = declaration.observe(node)?;
    let mut renewed = Map::new();
    if declaration.is_stale(&before) {
        node.check_time()?;
        gate(Disruption::Live)?;
        renewed = declaration.refresh(node, &before)?;
        before = declaration.observe(node)?;
    }
    let plan = declaration.plan(&before)?;
    let declares = declaration.declares(&before);
    agreed(overlay, Mode::Apply, &declares)?;
    if plan.steps.is_empty() {
        overlay.declare(Mode::Apply, declares);
        let mut answer = outcome(&plan, told(declaration, node, &before));
        answer.data.extend(renewed);
        return Ok(answer);
    }
    if plan.needs > allowed {
        let mut answer = OpOutcome::new(OpStatus::NeedsPermit { class: plan.needs });
        // Whoever decides on the permit learns who would be disturbed.
        answer.blockers = in_the_way(node, plan.needs);
        answer.changes = plan.changes;
        answer.awaiting = plan.awaiting;
        return Ok(answer);
    }
    node.check_time()?;
    gate(plan.needs)?;
    let done = declaration.apply(node, &before, &plan)?;
    let now = declaration.observe(node)?;
    let left = declaration.left(&now, &plan)?;
    if let Some(change) = left.changes.first() {
        let (what, wanted) = (change.what(), change.to_text());
        let found = change.from_text().unwrap_or_else(|| "nothing".to_owned());
        return Err(Trouble::failed(
            FailureKind::Unconverged,
            format!("{what} was set to {wanted}, but reads {found} afterwards"),
        ));
    }
    // Not before: a task that mends what failed may declare another value.
    overlay.declare(Mode::Apply, declares);
    let mut answer = outcome(&plan, told(declaration, node, &now));
    answer.awaiting = left.awaiting;
    answer.data.extend(renewed);
    answer.data.extend(done);
    Ok(answer)
}
