//! Runs declarative kinds, and other work, with the rights of a task's user.

use gpufleet_protocol::{Disruption, OpOutcome, message::Mode, op::PutTree};

use crate::{
    declare::{Gate, Node, NodeKind, Trouble, drive},
    tasks::puttree,
    world::Overlay,
};

/// Runs declarative kinds with the rights of the task's user.
pub(super) struct Declared<'a> {
    pub overlay: &'a Overlay,
    pub node: &'a Node<'a>,
    pub mode: Mode,
    pub allowed: Disruption,
    pub gate: Gate<'a>,
}

impl Declared<'_> {
    /// # Errors
    /// As for [`puttree::run`].
    pub fn tree(&self, tree: &PutTree) -> Result<OpOutcome, Trouble> {
        puttree::run(tree, self.node, |part| match part {
            puttree::Part::Directory(file) => self.run(&**file),
            puttree::Part::File(file) => self.run(&**file),
        })
    }

    /// Runs `work`, which is no declarative kind, with the rights of the task's user.
    ///
    /// # Errors
    /// Those of `work`, and if the user's rights cannot be taken.
    pub fn act(
        &self,
        work: impl FnOnce() -> Result<OpOutcome, Trouble> + Send,
    ) -> Result<OpOutcome, Trouble> {
        match &self.node.user {
            Some(user) => user.with_rights(work)?,
            None => work(),
        }
    }

    /// # Errors
    /// If the user's rights cannot be taken.
    pub fn run<D: NodeKind>(&self, declaration: &D) -> Result<OpOutcome, Trouble> {
        let work = || drive(declaration, self.node, self.mode, self.overlay, self.allowed, self.gate);
        match &self.node.user {
            Some(user) => Ok(user.with_rights(work)?),
            None => Ok(work()),
        }
    }
}
