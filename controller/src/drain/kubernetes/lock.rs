//! The one Lease that says which run may change a cluster's nodes.
//!
//! Owns who holds it, and that this process knows when it does not any more. Invariants: it is written only over the version
//! that was read; it is never taken because time passed, since a controller that is silent may be at work.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use super::{
    DrainError, Lock, RACES,
    cluster::{Cluster, Got},
    objects::Lease,
};

/// The run for which this process took the lock.
#[derive(Default)]
pub(super) struct Held(Mutex<Option<String>>);

impl Held {
    fn set(&self, run: Option<&str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = run.map(str::to_owned);
    }

    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this process may change something: it took no lock, or has it still.
    pub(super) async fn proof(&self, cluster: &Cluster, lock: &Lock) -> Result<(), DrainError> {
        self.lost(cluster, lock).await?.map_or(Ok(()), |why| Err(DrainError::Lock { why }))
    }

    /// That the lock which this process took is not its any more, in words; `None` where it took none, or has it still.
    pub(super) async fn lost(&self, cluster: &Cluster, lock: &Lock) -> Result<Option<String>, DrainError> {
        let Some(run) = self.get() else { return Ok(None) };
        Ok(match holder(cluster, lock).await? {
            Some(holder) if holder == run => None,
            Some(holder) => {
                Some(format!("{} is held by run {holder} now; nothing was changed", shown(cluster, lock)))
            }
            None => Some(format!("{} is nobody's any more; nothing was changed", shown(cluster, lock))),
        })
    }

    /// `None`: this run holds it; else the run that does.
    pub(super) async fn take(
        &self,
        cluster: &Cluster,
        lock: &Lock,
        run: &str,
    ) -> Result<Option<String>, DrainError> {
        for _ in 0..RACES {
            let old = match cluster.lease(lock).await? {
                Got::Here(lease) => Some(lease),
                Got::Missing | Got::Raced => None,
            };
            match old.as_ref().and_then(holds) {
                Some(holder) if holder == run => {
                    self.set(Some(run));
                    return Ok(None);
                }
                Some(holder) => return Ok(Some(holder.to_owned())),
                None => {}
            }
            match cluster.hold(lock, old.as_ref(), Some(run), Timestamp::now()).await? {
                // Why read again: the next reading says who has it, whatever this answer was.
                Got::Here(_) | Got::Raced => {}
                Got::Missing => {
                    let lease = shown(cluster, lock);
                    let why = format!("{lease} cannot be made: is there a namespace `{}`?", lock.namespace);
                    return Err(DrainError::Lock { why });
                }
            }
        }
        Err(DrainError::Lock { why: format!("{} changes faster than it can be taken", shown(cluster, lock)) })
    }

    pub(super) async fn release(&self, cluster: &Cluster, lock: &Lock, run: &str) -> Result<(), DrainError> {
        for _ in 0..RACES {
            let Got::Here(old) = cluster.lease(lock).await? else { break };
            if holds(&old) != Some(run) {
                break;
            }
            if matches!(cluster.hold(lock, Some(&old), None, Timestamp::now()).await?, Got::Here(_)) {
                break;
            }
        }
        if holder(cluster, lock).await?.as_deref() == Some(run) {
            return Err(DrainError::Lock {
                why: format!("{} is still held by run {run}", shown(cluster, lock)),
            });
        }
        if self.get().as_deref() == Some(run) {
            self.set(None);
        }
        Ok(())
    }
}

/// The run that holds it now.
pub(super) async fn holder(cluster: &Cluster, lock: &Lock) -> Result<Option<String>, DrainError> {
    Ok(match cluster.lease(lock).await? {
        Got::Here(lease) => holds(&lease).map(str::to_owned),
        Got::Missing | Got::Raced => None,
    })
}

fn holds(lease: &Lease) -> Option<&str> {
    lease.spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn shown(cluster: &Cluster, lock: &Lock) -> String {
    format!("the Lease {}/{}{}", lock.namespace, lock.name, cluster.place())
}
