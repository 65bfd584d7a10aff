//! The rows of the fleet and its pages, made once for all who look at them.
//!
//! Why: at 5,000 nodes the rows cost more than the page, and they change only when an audit ends.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex as StdMutex, PoisonError},
    time::{Duration, Instant},
};

use gpufleet_history::{AuditRow, NodeRow, OpenFinding, Store, StoreError};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;

use crate::view::Asked;

/// How far back the trend goes.
const TREND: SignedDuration = SignedDuration::from_hours(24 * 366);
/// How long rows are shown without a new audit: a waiver may have changed, or old audits may have been removed.
const LONGEST: Duration = Duration::from_secs(60);
/// How long rows are shown without asking for a new audit: many who look at once cost one question.
const UNASKED: Duration = Duration::from_secs(1);

/// What the history says of the fleet at one moment.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// The newest first.
    pub audits: Vec<AuditRow>,
    /// Those that the verdicts of nodes are of, the newest first.
    pub counted: Vec<AuditRow>,
    /// The others: trials, the newest first.
    pub trials: Vec<AuditRow>,
    pub nodes: Vec<NodeRow>,
    pub findings: Vec<OpenFinding>,
    /// Pages of it that were rendered, the newest first.
    pages: PageCache,
}

/// Pages and what was asked for.
type PageCache = StdMutex<Vec<(Asked, Arc<str>)>>;

/// Pages that are kept.
const PAGES: usize = 8;

impl Fleet {
    /// Returns the page that was rendered for this, if it is kept.
    pub(crate) fn page(&self, asked: &Asked) -> Option<Arc<str>> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.iter().find(|(known, _)| known == asked).map(|(_, page)| Arc::clone(page))
    }

    /// Keeps a page.
    pub(crate) fn keep(&self, asked: Asked, page: Arc<str>) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(known, _)| *known != asked);
        pages.insert(0, (asked, page));
        pages.truncate(PAGES);
    }
}

/// Trials that are left out; with more of them none is.
const TRIALS: usize = 100;

/// Returns trials and the other audits. A trial is the only audit of its playbooks and baselines where others come again: a
/// stricter baseline that somebody tried once must not say how the fleet is.
fn trials(audits: &[AuditRow]) -> (Vec<AuditRow>, Vec<AuditRow>) {
    let series = |audit: &AuditRow| {
        let mut names = [audit.playbooks.clone(), audit.baselines.clone()];
        names.iter_mut().for_each(|names| names.sort_unstable());
        names
    };
    let mut counts: BTreeMap<[Vec<String>; 2], usize> = BTreeMap::new();
    for audit in audits {
        *counts.entry(series(audit)).or_default() += 1;
    }
    let once = counts.values().filter(|audits| **audits == 1).count();
    if once == counts.len() || once > TRIALS {
        return (Vec::new(), audits.to_vec());
    }
    audits.iter().cloned().partition(|audit| counts.get(&series(audit)) == Some(&1))
}

#[derive(Debug, Default)]
pub(crate) struct FleetCache {
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    fleet: Arc<Fleet>,
    read: Instant,
    asked: Instant,
}

impl FleetCache {
    /// Returns the fleet; reads it where an audit ended since the last time.
    ///
    /// # Errors
    /// The history cannot be read.
    pub(crate) async fn get(&self, history: &Store) -> Result<Arc<Fleet>, StoreError> {
        // Why held while reading: others wait for the same rows.
        let mut known = self.known.lock().await;
        let now = Instant::now();
        if let Some(known) = known.as_mut()
            && now.duration_since(known.read) < LONGEST
        {
            if now.duration_since(known.asked) < UNASKED {
                return Ok(Arc::clone(&known.fleet));
            }
            let last = known.fleet.audits.iter().max_by_key(|audit| audit.started);
            let newer = history.audits(last.map(|last| last.started)).await?;
            if newer.iter().all(|audit| last.is_some_and(|last| last.run == audit.run)) {
                known.asked = now;
                return Ok(Arc::clone(&known.fleet));
            }
        }
        let mut audits = history.audits(Timestamp::now().checked_sub(TREND).ok()).await?;
        if audits.is_empty() {
            // Nobody audited for a year: how long ago it was is what matters.
            audits = history.audits(None).await?;
        }
        audits.sort_by_key(|audit| std::cmp::Reverse(audit.finished));
        let (trials, counted) = trials(&audits);
        let (mut nodes, findings) = if trials.is_empty() {
            (history.nodes().await?, history.open_findings().await?)
        } else {
            let runs: Vec<String> = trials.iter().map(|trial| trial.run.clone()).collect();
            history.without(&runs).await?
        };
        NodeRow::put_open(&mut nodes, &findings);
        let fleet = Fleet { audits, counted, trials, nodes, findings, pages: PageCache::default() };
        let fleet = Arc::new(fleet);
        *known = Some(Known { fleet: Arc::clone(&fleet), read: now, asked: now });
        Ok(fleet)
    }
}
