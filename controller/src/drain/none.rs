//! No scheduler.
//!
//! Owns nothing: every node is ours at once, and whether it is idle is what the helper proves from its GPUs alone.

use futures::future::{BoxFuture, FutureExt as _, ready};
use jiff::Timestamp;

use super::{Activity, Cordon, DrainError, Drainer, Marker, Outage, Ownership, Target};

/// For nodes that no scheduler gives work to.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDrainer;

impl Drainer for NoDrainer {
    fn name(&self) -> &str {
        "none"
    }

    fn cordon<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
        _why: &'a str,
    ) -> BoxFuture<'a, Result<Cordon, DrainError>> {
        ready(Ok(Cordon::Ours { evidence: "no scheduler".to_owned() })).boxed()
    }

    fn notify<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Vec<String>, DrainError>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn activity<'a>(&'a self, _target: &'a Target) -> BoxFuture<'a, Result<Activity, DrainError>> {
        ready(Ok(Activity::Idle)).boxed()
    }

    fn ownership<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        ready(Ok(Ownership::Ours)).boxed()
    }

    fn resume<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
        _rebooted_after: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        ready(Ok(Ownership::NotDrained)).boxed()
    }

    fn survey<'a>(&'a self, _targets: &'a [Target]) -> BoxFuture<'a, Result<Vec<Outage>, DrainError>> {
        ready(Ok(Vec::new())).boxed()
    }
}
