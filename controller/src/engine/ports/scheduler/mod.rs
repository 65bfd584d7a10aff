//! The seam between the engine and schedulers: what a scheduler can do with a node, and one play's scheduler.
//!
//! The drain module implements it for each scheduler; tests implement it with scripted ones. Invariants of every
//! implementation:
//! * Nothing is undone that we did not do: the marker `gpufleet:RUN:NONCE` at the scheduler is read again right before.
//! * What somebody else holds is refused, never overwritten.
//! * An error means *unknown*, never *no*: who asks treats the node as busy and not ours.

mod error;
mod left;
mod marker;
mod offer;
mod play;

use std::{collections::HashMap, time::Duration};

use futures::future::{BoxFuture, FutureExt as _, ready};
use gpufleet_protocol::{OpOutcome, message::Mode, tasks::KubernetesNode};
use jiff::Timestamp;
use serde::Serialize;

pub use self::error::{DrainError, Effect};
pub use self::left::{EarlierRuns, LeftBehind, VainReboot};
pub use self::marker::Marker;
pub(crate) use self::marker::is_word;
pub use self::offer::GpuOffer;
pub use self::play::{Labelled, NoticePlan, Scheduler};

/// A node under both of its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Target {
    /// Name in the inventory.
    pub host: String,
    /// Name at the scheduler.
    pub node: String,
}

/// What became of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cordon {
    /// No new work starts there, and the marker says that it was us.
    Ours {
        /// What the scheduler shows, for the journal.
        evidence: String,
    },
    /// Somebody else has it out, or was faster; nothing of theirs was changed.
    HeldByOthers {
        /// Ready to show: `drained by alice: bad DIMM`.
        by: String,
    },
    /// It is nobody's, and this run must not take it; nothing was changed.
    Refused {
        /// Ready to show, with what to do.
        why: String,
    },
}

/// Whether anything runs there, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    Idle,
    Busy {
        /// Ready to show: `job 88123 of alice`.
        work: Vec<String>,
    },
    /// Something is there that no waiting ends.
    Stuck {
        /// Ready to show, with what to do.
        why: Vec<String>,
    },
}

/// Who holds a node out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    Ours,
    /// Nobody: it takes work.
    NotDrained,
    Theirs {
        /// Ready to show: `drained by alice: bad DIMM`.
        by: String,
    },
}

/// What became of the order to reboot a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebootOrder {
    Taken,
    /// Nothing was changed, and nothing will happen; ready to show.
    Refused(String),
    /// This scheduler reboots nothing.
    Cannot,
}

/// A node that is out, whoever took it out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outage {
    /// Name at the scheduler.
    pub node: String,
    /// Ready to show.
    pub why: String,
    /// The run that holds it, if one of ours does.
    pub marker: Option<Marker>,
    /// Whether the scheduler has such a node at all.
    pub known: bool,
}

/// What a play declares of the scheduler's own object of a node.
#[derive(Clone, Debug)]
pub struct WantedObject {
    pub declared: KubernetesNode,
    /// Whether it is made so, or only compared.
    pub mode: Mode,
    /// The boot that the host itself is in, which proves that the object is that of the host; `None` if it did not tell.
    pub boot_id: Option<String>,
    /// The GPUs that the host reads, if that is asked for and it can.
    pub offer: Option<GpuOffer>,
}

/// One scheduler.
///
/// Every method may be called again after a crash: what is already as asked for counts as done.
pub trait Drainer: Send + Sync {
    /// How people call it: `slurm`, `kubernetes`, `command`, `none`.
    fn name(&self) -> &str;

    /// Stops new work from starting there and leaves the marker, unless somebody else has the node out.
    ///
    /// `why` is shown to the scheduler's users behind the marker.
    fn cordon<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Cordon, DrainError>>;

    /// Tells the work there that it should get ready to end; says what was told to whom.
    fn notify<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Vec<String>, DrainError>>;

    /// Whether the scheduler knows of anything that runs there.
    fn activity<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Activity, DrainError>>;

    /// The boot that the host itself is in, told before its node is taken, cleared and given back; `None` where it does not
    /// count. A scheduler that knows boots must know the same one: else it speaks of another machine, or of an earlier boot.
    fn tell_boot(&self, _target: &Target, _boot_id: Option<String>) {}

    /// One step towards an idle node that is ours: asks what still has to go there to go, where the scheduler wants to be
    /// asked, and says what is left. Asked again and again while a drain waits.
    fn clear<'a>(
        &'a self,
        target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Activity, DrainError>> {
        self.activity(target)
    }

    /// Pods that stay on a node that is drained, by their uids: they belong to the node, and are no work.
    fn staying<'a>(&'a self, _target: &'a Target) -> BoxFuture<'a, Result<Vec<String>, DrainError>> {
        ready(Ok(Vec::new())).boxed()
    }

    /// What would keep a drain of this node from passing now, ready to show; changes nothing.
    ///
    /// `None` where the scheduler cannot be asked that.
    fn preflight<'a>(
        &'a self,
        _target: &'a Target,
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, DrainError>> {
        ready(Ok(None)).boxed()
    }

    /// Reads who holds the node now.
    fn ownership<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>>;

    /// Whether `ownership` is read at the scheduler; otherwise what was drained is taken for ours.
    fn knows_owner(&self, _target: &Target) -> bool {
        true
    }

    /// The runs of gpufleet that have these out, by the nodes' names at the scheduler.
    fn marked<'a>(
        &'a self,
        targets: &'a [Target],
    ) -> BoxFuture<'a, Result<Vec<(String, Marker)>, DrainError>> {
        async move {
            let outages = self.survey(targets).await?;
            Ok(outages.into_iter().filter_map(|outage| Some((outage.node, outage.marker?))).collect())
        }
        .boxed()
    }

    /// Gives the node back if it is still ours; `NotDrained` means done, everything else that it was left alone.
    ///
    /// With `rebooted_after` it first waits, up to a bound of the drainer's own, until the scheduler has heard from the
    /// node's boot after that instant: the moment in which the reboot was issued.
    fn resume<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        rebooted_after: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>>;

    /// What [`Drainer::resume`] waits for now, ready to show; nothing where it does not say.
    fn waits_for(&self, _target: &Target) -> Option<String> {
        None
    }

    /// How long [`Drainer::resume`] itself asks a scheduler that does not answer; nothing where who calls it asks again.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Who else lays out this node's MIG by our order, ready to show; a play must not change what they left.
    fn lays_out<'a>(&'a self, _target: &'a Target) -> BoxFuture<'a, Result<Option<String>, DrainError>> {
        ready(Ok(None)).boxed()
    }

    /// Whether `resume` has to know what the GPUs of a node are that was disturbed.
    fn wants_offer(&self) -> bool {
        false
    }

    /// What the GPUs of a node are now, told before `resume`: it is given back when the scheduler has seen the same.
    fn expect(&self, _target: &Target, _offer: Option<GpuOffer>) {}

    /// Puts back what a drain changed besides, on a node that is somebody else's now; the node itself is left as it is.
    fn let_go<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<(), DrainError>> {
        ready(Ok(())).boxed()
    }

    /// Shows the scheduler's users why a node that is ours stays out, and what to do.
    fn explain<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
        _why: &'a str,
    ) -> BoxFuture<'a, Result<(), DrainError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Which of these are out, for whatever reason, in one bulk read.
    fn survey<'a>(&'a self, targets: &'a [Target]) -> BoxFuture<'a, Result<Vec<Outage>, DrainError>>;

    /// What all nodes that have it say under a label, by their names at the scheduler; nothing where it knows no labels.
    fn labels<'a>(&'a self, _label: &'a str) -> BoxFuture<'a, Result<HashMap<String, String>, DrainError>> {
        ready(Ok(HashMap::new())).boxed()
    }

    /// Compares the scheduler's own object of a node with what is declared, and makes it so if that is wanted. Says what a
    /// helper says of a declared state.
    fn declare<'a>(
        &'a self,
        _target: &'a Target,
        _wanted: &'a WantedObject,
    ) -> BoxFuture<'a, Result<OpOutcome, DrainError>> {
        let why = format!("{} keeps no object of a node that a task could declare", self.name());
        ready(Err(DrainError::NotSent { why, left: "changed" })).boxed()
    }

    /// Takes the scheduler-wide lock; `None` means that this run holds it, or that there is no such lock, else the run that
    /// does.
    ///
    /// Never taken from another run by the passing of time.
    fn lock<'a>(&'a self, _run: &'a str) -> BoxFuture<'a, Result<Option<String>, DrainError>> {
        ready(Ok(None)).boxed()
    }

    /// Whether this run still holds the lock; for the moment before an act, since it changes nothing.
    fn locked<'a>(&'a self, _run: &'a str) -> BoxFuture<'a, Result<bool, DrainError>> {
        ready(Ok(true)).boxed()
    }

    /// Releases the lock of a run: our own, or with an explicit `--steal` another's. One that is not there is released.
    fn unlock<'a>(&'a self, _run: &'a str) -> BoxFuture<'a, Result<(), DrainError>> {
        ready(Ok(())).boxed()
    }

    /// The runs that hold the scheduler-wide lock now; none where there is no such lock.
    fn holders(&self) -> BoxFuture<'_, Result<Vec<String>, DrainError>> {
        ready(Ok(Vec::new())).boxed()
    }

    /// Has the scheduler reboot a node that we hold, where it can.
    fn reboot_via<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<RebootOrder, DrainError>> {
        ready(Ok(RebootOrder::Cannot)).boxed()
    }

    /// Whether a reboot that [`Drainer::reboot_via`] ordered may still come.
    fn reboot_is_queued<'a>(&'a self, _target: &'a Target) -> BoxFuture<'a, Result<bool, DrainError>> {
        ready(Ok(false)).boxed()
    }

    /// Whether a request that is dropped has no effect from then on; else it has to be waited for.
    fn may_be_cut(&self) -> bool {
        false
    }
}
