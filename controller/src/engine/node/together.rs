//! What a node says to the others of its wave, and hears from them.

use std::sync::Arc;

use crate::{
    engine::node::{
        cut::Cut,
        driver::NodeTask,
        message::{FromNode, LatchValue, ToNode},
    },
    interpreter::{Fed, Position},
};

impl NodeTask {
    /// Tells the others that a failure here is theirs too.
    pub(crate) async fn raise(&self, again: Option<Position>) {
        let _ = self.out.send(FromNode::Raised { host: self.host, again }).await;
    }

    /// What the others did to this node, if anything.
    pub(crate) async fn wait_for_others(
        &mut self,
        task: &Arc<str>,
        at: Position,
    ) -> Result<Option<Fed>, Cut> {
        // Why its place goes: those it waits for may need one.
        drop(self.place.take());
        let (task, is_out) = (Arc::clone(task), self.is_out());
        let _ = self.out.send(FromNode::Barrier { host: self.host, task, at, is_out }).await;
        let answer = self.answers.recv().await;
        self.take_place().await;
        match answer {
            None => Err(Cut::Stopped),
            Some(ToNode::Halt) => Ok(Some(Fed::Halted)),
            Some(ToNode::End) => Ok(Some(Fed::Ended)),
            Some(_) => Ok(None),
        }
    }

    /// `None`: the task runs here.
    pub(crate) async fn latch(&mut self, key: &Arc<str>) -> Result<Option<LatchValue>, Cut> {
        drop(self.place.take());
        let _ = self.out.send(FromNode::Latch { host: self.host, key: Arc::clone(key) }).await;
        let answer = self.answers.recv().await;
        self.take_place().await;
        match answer {
            Some(ToNode::LatchYours) => Ok(None),
            Some(ToNode::LatchValue(value)) => Ok(Some(*value)),
            Some(ToNode::Deny(why)) => Err(Cut::Held(why)),
            _ => Err(Cut::Stopped),
        }
    }
}
