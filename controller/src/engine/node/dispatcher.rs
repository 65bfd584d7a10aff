//! A node's side of what it and the dispatcher say to each other, and its place among the nodes worked on at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::{
    engine::node::{
        early_end::EarlyEnd,
        message::{FromNode, LatchValue, Pace, ToNode},
    },
    event::{NodeState, What},
    interpreter::{Fed, Position},
    journal::Entry,
    rollout::Input,
};

/// What a node's driver has of the dispatcher.
pub(crate) struct DispatcherHandle {
    /// The host's index in the play.
    pub(crate) host: usize,
    pub(crate) name: String,
    pub(crate) out: mpsc::Sender<FromNode>,
    pub(crate) answers: mpsc::Receiver<ToNode>,
    pub(crate) pace: watch::Receiver<Pace>,
    pub(crate) forks: Arc<Semaphore>,
    /// Its place among the nodes worked on at once; given up while it waits for a permit.
    pub(crate) place: Option<OwnedSemaphorePermit>,
}

impl DispatcherHandle {
    pub(crate) async fn emit(&self, entry: impl Into<Entry>) {
        // Why no error: a dispatcher that is gone has ended the run, and this task with it.
        let _ = self.out.send(FromNode::Record(entry.into())).await;
    }

    /// Tells the rollout what happened to the node.
    pub(crate) async fn tell(&self, input: Input) {
        let _ = self.out.send(FromNode::Tell(input)).await;
    }

    pub(crate) async fn durable(&self, what: What) -> Result<(), EarlyEnd> {
        let (done, written) = oneshot::channel();
        let _ = self.out.send(FromNode::Durable(what, done)).await;
        // Why on a thread in tests: their virtual time leaps while the runtime has nothing to do, and would while it waits.
        #[cfg(test)]
        let written = async { tokio::task::spawn_blocking(|| written.blocking_recv()).await.unwrap() };
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(EarlyEnd::Stopped),
        }
    }

    pub(crate) async fn state(&self, state: NodeState, detail: Option<String>) {
        self.emit(What::NodeState { host: self.name.clone(), state, detail }).await;
    }

    /// Ends when the run is told to stop.
    pub(crate) fn stops(&self) -> impl Future<Output = ()> + use<> {
        let mut pace = self.pace.clone();
        async move {
            // Why for ever after an error: who leads the play is gone, and says nothing more.
            if pace.wait_for(|pace| *pace == Pace::Stopping).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(crate) async fn take_place(&mut self) {
        if self.place.is_none() {
            self.place = Arc::clone(&self.forks).acquire_owned().await.ok();
        }
    }

    /// Does what only waits without the node's place among those that are worked on at once: others may need it.
    pub(crate) async fn aside<T>(&mut self, wait: impl Future<Output = T>) -> T {
        // Why remembered: who waits for a permit has no place, and must not wait for one.
        let had = self.place.take().is_some();
        let answer = wait.await;
        if had {
            self.take_place().await;
        }
        answer
    }

    /// Tells the others that a failure here is theirs too.
    pub(crate) async fn raise(&self, again: Option<Position>) {
        let _ = self.out.send(FromNode::Raised { host: self.host, again }).await;
    }

    /// What the others did to this node, if anything.
    pub(crate) async fn wait_for_others(
        &mut self,
        task: &Arc<str>,
        at: Position,
        is_out: bool,
    ) -> Result<Option<Fed>, EarlyEnd> {
        // Why its place goes: those it waits for may need one.
        drop(self.place.take());
        let task = Arc::clone(task);
        let _ = self.out.send(FromNode::Barrier { host: self.host, task, at, is_out }).await;
        let answer = self.answers.recv().await;
        self.take_place().await;
        match answer {
            None => Err(EarlyEnd::Stopped),
            Some(ToNode::Halt) => Ok(Some(Fed::Halted)),
            Some(ToNode::End) => Ok(Some(Fed::Ended)),
            Some(_) => Ok(None),
        }
    }

    /// `None`: the task runs here.
    pub(crate) async fn latch(&mut self, key: &Arc<str>) -> Result<Option<LatchValue>, EarlyEnd> {
        drop(self.place.take());
        let _ = self.out.send(FromNode::Latch { host: self.host, key: Arc::clone(key) }).await;
        let answer = self.answers.recv().await;
        self.take_place().await;
        match answer {
            Some(ToNode::LatchYours) => Ok(None),
            Some(ToNode::LatchValue(value)) => Ok(Some(*value)),
            Some(ToNode::Deny(why)) => Err(EarlyEnd::Held(why)),
            _ => Err(EarlyEnd::Stopped),
        }
    }
}
