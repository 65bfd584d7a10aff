//! Telling pods that they are about to be evicted, by an annotation that they and their owners can read.
//!
//! Owns the annotation and the time that it gives. Must not know evictions. Invariants: only a notice of this very drain
//! counts, so that one that an earlier drain left gives nobody less time; a pod is named by its uid and version, so that
//! another one of its name is never told; what is told and still there when its drain ends is told no more.

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::{DrainError, Marker, Ownership, Target};
use super::{
    AT_ONCE, KubernetesDrainer, Look,
    cluster::Got,
    objects::Pod,
    pods::named,
    standing::{WHY, annotate, pointer, standing},
};

/// From when on a pod is evicted, by which drain, and why.
pub(super) const NOTICE: &str = "gpufleet.io/drain-notice";

/// When this drain may evict a pod, as it was told; `None` for one that was not.
fn told(pod: &Pod, marker: &Marker) -> Option<Timestamp> {
    let text = pod.metadata.annotations.get(NOTICE)?;
    let (from, by) = text.strip_prefix("evicted from ")?.split_once(" by ")?;
    by.strip_prefix(marker.to_string().as_str()).filter(|rest| rest.starts_with(": "))?;
    from.parse().ok()
}

/// The object is the one that was judged.
fn same(pod: &Pod) -> Vec<Value> {
    let test = |field: &str, value: &str| json!({"op": "test", "path": format!("/metadata/{field}"), "value": value});
    vec![test("uid", &pod.metadata.uid), test("resourceVersion", &pod.metadata.resource_version)]
}

impl KubernetesDrainer {
    /// Tells the pods of a node that is ours that they have to go.
    pub(super) async fn tell(&self, target: &Target, marker: &Marker) -> Result<Vec<String>, DrainError> {
        let look = self.look(target).await?;
        let ours = matches!(standing(&look.node, marker), Ownership::Ours);
        // Why none if one may not go: then none is evicted either.
        if !ours || (!look.refused.is_empty() && !self.options.forced) {
            return Ok(Vec::new());
        }
        let trial = self.tried_out(&look.evict).await?;
        if !trial.never.is_empty() {
            return Ok(Vec::new());
        }
        // Why an error: a pod that is told to go may have to stay, so this is asked again first.
        if !trial.unknown.is_empty() {
            return Err(DrainError::LeftAlone { what: "told to go yet", why: trial.unknown.join(", ") });
        }
        self.give_notice(target, marker, &look).await
    }

    /// Tells those that have to go and were not told; answers who still has time, ready to show.
    pub(super) async fn give_notice(
        &self,
        target: &Target,
        marker: &Marker,
        look: &Look,
    ) -> Result<Vec<String>, DrainError> {
        let Some(notice) = self.options.notice.filter(|_| !look.evict.is_empty()) else {
            return Ok(Vec::new());
        };
        self.may_disturb(target, &look.node).await?;
        let now = Timestamp::now();
        let seconds = i64::try_from(notice.as_secs()).unwrap_or_default();
        let unheard = || {
            let why = "the notice has no end that can be told".to_owned();
            DrainError::LeftAlone { what: "told to go yet", why }
        };
        let end = Timestamp::from_second(now.as_second().saturating_add(seconds)).map_err(|_| unheard())?;
        let text =
            format!("evicted from {end} by {marker}: {}", look.node.annotation(WHY).unwrap_or_default());
        let untold = look.evict.iter().filter(|pod| told(pod, marker).is_none());
        let asked: Vec<_> = untold
            .map(|pod| {
                let mut patch = same(pod);
                if pod.metadata.annotations.is_empty() {
                    patch.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
                }
                patch.push(annotate(NOTICE, &text));
                self.cluster.patch_pod(&pod.metadata, patch)
            })
            .collect();
        let answers: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
        // Why no look at what raced: the next step sees that it was not told.
        answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        let waits = look.evict.iter().filter_map(|pod| {
            let from = told(pod, marker).unwrap_or(end);
            (from > now).then(|| format!("{} (has until {from})", named(pod)))
        });
        Ok(waits.collect())
    }

    /// Takes this drain's notices off the pods that are still there. Whether nobody came in between.
    pub(super) async fn take_notices_back(
        &self,
        target: &Target,
        marker: &Marker,
    ) -> Result<bool, DrainError> {
        if self.options.notice.is_none() {
            return Ok(true);
        }
        let mut alone = true;
        for pod in self.cluster.pods_on(&target.node).await? {
            if told(&pod, marker).is_none() || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let mut patch = same(&pod);
            patch.push(json!({"op": "remove", "path": pointer("annotations", NOTICE)}));
            alone &= !matches!(self.cluster.patch_pod(&pod.metadata, patch).await?, Got::Raced);
        }
        Ok(alone)
    }
}
