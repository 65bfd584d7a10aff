//! The trait by which the engine drains, over what the parent module does.

use std::{collections::HashMap, time::Duration};

use futures::future::{BoxFuture, FutureExt as _};
use gpufleet_protocol::OpOutcome;
use jiff::Timestamp;

use super::super::{
    Activity, Cordon, DrainError, Drainer, GpuOffer, Marker, Outage, Ownership, Target, WantedObject,
};
use super::objects::Node;
use super::operands::{self, Order};
use super::pods::named;
use super::standing::standing;
use super::{KubernetesDrainer, MigManager, lock};

impl Drainer for KubernetesDrainer {
    fn name(&self) -> &str {
        "kubernetes"
    }

    fn cordon<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Cordon, DrainError>> {
        self.take(target, marker, why).boxed()
    }

    fn notify<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Vec<String>, DrainError>> {
        self.tell(target, marker).boxed()
    }

    fn tell_boot(&self, target: &Target, boot_id: Option<String>) {
        let mut boots = self.boots();
        match boot_id {
            Some(boot_id) => _ = boots.insert(target.node.clone(), boot_id),
            None => _ = boots.remove(&target.node),
        }
    }

    fn activity<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Activity, DrainError>> {
        async move {
            let look = self.look(target).await?;
            let mut work = look.refused;
            work.extend(look.left);
            work.extend(look.evict.iter().map(named));
            Ok(if work.is_empty() { Activity::Idle } else { Activity::Busy { work } })
        }
        .boxed()
    }

    fn clear<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Activity, DrainError>> {
        self.push(target, marker).boxed()
    }

    fn staying<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Vec<String>, DrainError>> {
        async move {
            let look = self.look(target).await?;
            Ok(look.stays.into_iter().map(|pod| pod.metadata.uid).collect())
        }
        .boxed()
    }

    fn preflight<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Option<Vec<String>>, DrainError>> {
        async move { self.try_out(target).await.map(Some) }.boxed()
    }

    fn ownership<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        async move { Ok(standing(&self.read(target).await?, marker)) }.boxed()
    }

    fn resume<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        rebooted_after: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        self.give_back(target, marker, rebooted_after).boxed()
    }

    fn waits_for(&self, target: &Target) -> Option<String> {
        self.waiting().get(&target.node).cloned()
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.options.ready_timeout)
    }

    fn lays_out<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Option<String>, DrainError>> {
        async move {
            let MigManager::Label(config) = &self.options.mig_manager else { return Ok(None) };
            let ordered = operands::order(&self.read(target).await?, config) != Order::None;
            Ok(ordered.then(|| format!("mig-manager (nvidia.com/mig.config={config})")))
        }
        .boxed()
    }

    fn wants_offer(&self) -> bool {
        self.options.lays_out_mig
    }

    fn expect(&self, target: &Target, offer: Option<GpuOffer>) {
        let mut offers = self.offers();
        match offer {
            Some(offer) => _ = offers.insert(target.node.clone(), offer),
            None => _ = offers.remove(&target.node),
        }
    }

    fn let_go<'a>(&'a self, target: &'a Target, marker: &'a Marker) -> BoxFuture<'a, Result<(), DrainError>> {
        async move {
            let gone = self.let_go_of(target, marker).await;
            gone.map_err(|error| self.with_what_is_stopped(error, target, marker))
        }
        .boxed()
    }

    fn explain<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), DrainError>> {
        async move {
            let told = self.leave_word(target, marker, why).await;
            told.map_err(|error| self.with_what_is_stopped(error, target, marker))
        }
        .boxed()
    }

    fn survey<'a>(&'a self, targets: &'a [Target]) -> BoxFuture<'a, Result<Vec<Outage>, DrainError>> {
        self.everybody(targets).boxed()
    }

    fn labels<'a>(&'a self, label: &'a str) -> BoxFuture<'a, Result<HashMap<String, String>, DrainError>> {
        async move {
            let of = |node: Node| Some((node.metadata.name.clone(), node.label(label)?.to_owned()));
            Ok(self.cluster.nodes().await?.into_iter().filter_map(of).collect())
        }
        .boxed()
    }

    fn declare<'a>(
        &'a self,
        target: &'a Target,
        wanted: &'a WantedObject,
    ) -> BoxFuture<'a, Result<OpOutcome, DrainError>> {
        self.declare_object(target, wanted).boxed()
    }

    fn lock<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Option<String>, DrainError>> {
        self.held.take(&self.cluster, &self.options.lock, run).boxed()
    }

    fn locked<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<bool, DrainError>> {
        async move { Ok(lock::holder(&self.cluster, &self.options.lock).await?.as_deref() == Some(run)) }
            .boxed()
    }

    fn unlock<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<(), DrainError>> {
        self.held.release(&self.cluster, &self.options.lock, run).boxed()
    }

    fn holders(&self) -> BoxFuture<'_, Result<Vec<String>, DrainError>> {
        async move { Ok(lock::holder(&self.cluster, &self.options.lock).await?.into_iter().collect()) }
            .boxed()
    }
}
