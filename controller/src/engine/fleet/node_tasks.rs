//! The tasks of a play's nodes: one for each node that something is done for now, and the hosts' states while there is none.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tokio::{
    sync::{Semaphore, mpsc, mpsc::error::TrySendError, watch},
    task::{JoinError, JoinSet},
};

use crate::engine::{
    error::EngineError,
    host::HostState,
    node::{
        dispatcher::DispatcherHandle,
        driver::NodeDriver,
        early_end::EarlyEnd,
        message::{FromNode, Pace, ToNode},
        settings::PlaySettings,
        turn::{MakeCursor, Turn},
    },
};

/// Messages from nodes that may wait for the dispatcher. Few, because the results of tasks are among them: what a node says
/// waits with the node rather than here, and `forks` bounds how many do. Progress that finds no place is lost.
const INBOX: usize = 64;
/// Answers that may wait for a node: more than are ever given before one is taken.
const ANSWERS: usize = 16;

/// How a node's task ended, with the host's index in the play.
pub(crate) type TaskEnd = (usize, HostState, Result<(), EarlyEnd>);

pub(crate) struct NodeTasks {
    /// By index in the play; none while a task has it.
    host_states: Vec<Option<HostState>>,
    running: HashMap<usize, Running>,
    tasks: JoinSet<TaskEnd>,
    sender: mpsc::Sender<FromNode>,
    forks: Arc<Semaphore>,
    pace: watch::Sender<Pace>,
    /// Hosts whose task looks at them after the soak.
    checked: HashSet<usize>,
    /// Hosts of the play by name.
    index: HashMap<String, usize>,
}

struct Running {
    answers: mpsc::Sender<ToNode>,
    connected: bool,
}

impl NodeTasks {
    /// `forks`: nodes worked on at once. Also gives where messages of the nodes arrive.
    pub(crate) fn new(
        names: &[String],
        host_states: Vec<HostState>,
        forks: usize,
    ) -> (Self, mpsc::Receiver<FromNode>) {
        let (sender, inbox) = mpsc::channel(INBOX);
        let (pace, _) = watch::channel(Pace::Going);
        let tasks = Self {
            host_states: host_states.into_iter().map(Some).collect(),
            running: HashMap::new(),
            tasks: JoinSet::new(),
            sender,
            forks: Arc::new(Semaphore::new(forks)),
            pace,
            checked: HashSet::new(),
            index: names.iter().cloned().zip(0..).collect(),
        };
        (tasks, inbox)
    }

    /// How many nodes a task works on.
    pub(crate) fn running_len(&self) -> usize {
        self.running.len()
    }

    pub(crate) const fn len(&self) -> usize {
        self.host_states.len()
    }

    /// The hosts of the play in order; none for those that a task has.
    pub(crate) fn states(&self) -> impl Iterator<Item = Option<&HostState>> {
        self.host_states.iter().map(Option::as_ref)
    }

    pub(crate) fn states_mut(&mut self) -> impl Iterator<Item = &mut HostState> {
        self.host_states.iter_mut().flatten()
    }

    pub(crate) fn state(&self, host: usize) -> Option<&HostState> {
        self.host_states.get(host)?.as_ref()
    }

    pub(crate) fn state_mut(&mut self, host: usize) -> Option<&mut HostState> {
        self.host_states.get_mut(host)?.as_mut()
    }

    /// Takes back what the task of a host had.
    pub(crate) fn put(&mut self, host: usize, state: HostState) {
        if let Some(place) = self.host_states.get_mut(host) {
            *place = Some(state);
        }
    }

    pub(crate) fn into_states(self) -> Vec<HostState> {
        self.host_states.into_iter().flatten().collect()
    }

    /// Starts the task of a host. One that is lost gets none.
    pub(crate) fn spawn(
        &mut self,
        host: usize,
        turn: Turn,
        settings: &Arc<PlaySettings>,
        cursors: &MakeCursor,
    ) {
        let Some(place) = self.host_states.get_mut(host) else { return };
        let Some(mut state) = place.take_if(|state| state.is_alive()) else { return };
        state.custody.serves &= turn == Turn::Gate;
        let (answers, from_us) = mpsc::channel(ANSWERS);
        let connected = state.link.is_some();
        let dispatcher = DispatcherHandle {
            host,
            name: state.name.clone(),
            out: self.sender.clone(),
            answers: from_us,
            pace: self.pace.subscribe(),
            forks: Arc::clone(&self.forks),
            place: None,
        };
        let driver = NodeDriver::new(Arc::clone(settings), dispatcher, state);
        if turn == Turn::Gate {
            self.checked.insert(host);
        }
        self.running.insert(host, Running { answers, connected });
        self.tasks.spawn(driver.take(turn, Arc::clone(cursors)));
    }

    /// The next task that ends, once [`Self::ended`] is called for it.
    pub(crate) async fn join_next(&mut self) -> Option<Result<TaskEnd, JoinError>> {
        self.tasks.join_next().await
    }

    /// The task of a host ended. Whether it was to look at the host after the soak.
    pub(crate) fn ended(&mut self, host: usize) -> bool {
        self.running.remove(&host);
        self.checked.remove(&host)
    }

    /// Ends all tasks where they are.
    pub(crate) fn abort(&mut self) {
        self.tasks.abort_all();
        self.running.clear();
    }

    pub(crate) fn set_pace(&self, pace: Pace) {
        self.pace.send_replace(pace);
    }

    /// Where others than nodes send their messages to the dispatcher.
    pub(crate) fn sender(&self) -> mpsc::Sender<FromNode> {
        self.sender.clone()
    }

    pub(crate) fn are_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Hosts whose task runs, each with whether it is connected.
    pub(crate) fn running(&self) -> impl Iterator<Item = (usize, bool)> + Clone {
        self.running.iter().map(|(host, running)| (*host, running.connected))
    }

    /// The task of a host is connected to it. Whether there is such a task.
    pub(crate) fn connected(&mut self, name: &str) -> bool {
        let running = self.index.get(name).and_then(|host| self.running.get_mut(host));
        running.is_some_and(|running| {
            running.connected = true;
            true
        })
    }

    /// Answers the task of a host.
    ///
    /// # Errors
    /// The task does not take its answers.
    pub(crate) fn answer(&self, host: usize, answer: ToNode) -> Result<(), EngineError> {
        let Some(running) = self.running.get(&host) else { return Ok(()) };
        match running.answers.try_send(answer) {
            // Why no error where it is closed: a task that ended meanwhile needs no answer.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            // Why an error: a node whose answer is lost would wait for it without end.
            Err(TrySendError::Full(_)) => {
                let name =
                    self.index.iter().find(|(_, index)| **index == host).map(|(name, _)| name.as_str());
                let host = name.unwrap_or_default().to_owned();
                Err(EngineError::AnswersNotTaken { host, answers: ANSWERS })
            }
        }
    }
}
