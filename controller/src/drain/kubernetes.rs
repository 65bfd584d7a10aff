//! Kubernetes, through its API: cordon, evictions, and back.
//!
//! Owns the order in which the API is asked; what an object, a pod or an answer means is judged in the modules below, which
//! send nothing. Must not know the engine, nor how requests travel ([`Api`]). Invariants:
//! * the marker stands in an annotation, the cordon and the marker come and go in one patch, and every patch tests the
//!   object that was judged: nothing is written over somebody else's word;
//! * before anything is changed the lock is this run's, if this process took one;
//! * an eviction names the pod's uid, and a pod counts as gone only when it is not listed on the node any more;
//! * what was stopped for the change is brought back on every way out, and the node says itself what that is.

mod api;
#[cfg(feature = "kubernetes")]
mod client;
mod cluster;
mod drainer;
mod eviction;
mod kubectl;
mod lock;
mod notice;
mod objects;
mod operands;
#[cfg(feature = "kubernetes")]
mod plugin;
mod pods;
mod standing;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

pub use self::api::{Api, Method, Reply, Request, Unanswered};
#[cfg(feature = "kubernetes")]
pub use self::client::{ApiClient, Credentials};
pub use self::kubectl::KubectlApi;
pub use self::pods::PodPolicy;
use self::{
    cluster::{Cluster, Got},
    eviction::Evicted,
    lock::Held,
    objects::{DaemonSet, Node, Pod},
    operands::{MigManager as Layout, Order},
    pods::{Daemons, Part, daemon, named, part},
    standing::{evidence, held_by, outage, silence, standing},
};
use super::{Activity, Cordon, DrainError, GpuOffer, Marker, Outage, Ownership, Target};

/// Evictions under way at once on one node.
const AT_ONCE: usize = 16;
/// How often an object that changes under us is judged anew before that is an error.
const RACES: usize = 8;
/// How long a DaemonSet that was read counts.
const DAEMONS: Duration = Duration::from_secs(60);
/// After an answer that the server has too much to do and no word on when to ask again.
const OVERLOAD: Duration = Duration::from_secs(5);
/// How often one eviction is tried out on a server that has too much to do.
const REHEARSALS: u32 = 4;
/// How long what a node offers must stay the same where nobody can tell what that should be.
///
/// Why: the device plugin registers one kind of instance after the other.
const SETTLE: Duration = Duration::from_secs(5);
/// How much of a reason's text is kept, in characters.
const WHY_LENGTH: usize = 300;

/// The Lease that one run at a time holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    pub namespace: String,
    pub name: String,
}

impl Default for Lock {
    fn default() -> Self {
        Self { namespace: "default".to_owned(), name: "gpufleet".to_owned() }
    }
}

/// What is done where the operator's mig-manager holds a node to its own layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MigManager {
    /// Such a node is not drained for a change of its MIG.
    #[default]
    Refuse,
    /// mig-manager is taken off such a node for good.
    Takeover,
    /// mig-manager is told to lay out this configuration of its own.
    Label(String),
}

/// How Kubernetes is used.
#[derive(Clone, Debug)]
pub struct KubernetesOptions {
    pub pods: PodPolicy,
    /// Instead of each pod's own.
    pub grace_period: Option<Duration>,
    /// How long pods are told before they are evicted; none are where there is none.
    pub notice: Option<Duration>,
    /// How long `resume` waits for a node to be ready and to offer its GPUs.
    pub ready_timeout: Duration,
    /// Between two readings while waiting.
    pub poll: Duration,
    pub lock: Lock,
    /// Whether what the operator runs for GPUs is stopped once the pods are gone.
    pub pauses_operands: bool,
    pub mig_manager: MigManager,
    /// Whether the play lays out MIG.
    pub lays_out_mig: bool,
    /// A person wants the nodes also where something cannot be taken off them (`--force`).
    pub forced: bool,
}

impl Default for KubernetesOptions {
    fn default() -> Self {
        Self {
            pods: PodPolicy::default(),
            grace_period: None,
            notice: None,
            ready_timeout: Duration::from_secs(600),
            poll: Duration::from_secs(2),
            lock: Lock::default(),
            pauses_operands: true,
            mig_manager: MigManager::default(),
            lays_out_mig: false,
            forced: false,
        }
    }
}

/// Drains through the API of a Kubernetes cluster.
pub struct KubernetesDrainer {
    cluster: Cluster,
    options: KubernetesOptions,
    held: Held,
    /// Pods that are not asked again before, by uid, and what the server said.
    later: Mutex<HashMap<String, (Instant, Evicted)>>,
    daemons: Mutex<KnownDaemons>,
    /// What the GPUs of nodes are that are given back, by node.
    offers: Mutex<HashMap<String, GpuOffer>>,
    /// The boots that hosts are in, by node.
    boots: Mutex<HashMap<String, String>>,
    /// What is stopped on nodes, as it was last seen, or as it may be since; by node.
    stopped: Mutex<HashMap<String, operands::Paused>>,
}

/// DaemonSets by namespace and name, with when each was read; `None` for one that was not there.
type KnownDaemons = HashMap<(String, String), (Instant, Option<DaemonSet>)>;

/// What is on a node.
struct Look {
    node: Node,
    /// Pods that have to go, to be asked.
    evict: Vec<Pod>,
    /// What is left besides them, ready to show.
    left: Vec<String>,
    /// What nobody may take, ready to show.
    refused: Vec<String>,
    stays: Vec<Pod>,
    daemons: Daemons,
}

/// How far giving a node back is.
enum Back {
    Done(Ownership),
    Waits(String),
}

impl KubernetesDrainer {
    pub fn new(api: Arc<dyn Api>, options: KubernetesOptions) -> Self {
        Self {
            cluster: Cluster::new(api),
            options,
            held: Held::default(),
            later: Mutex::default(),
            daemons: Mutex::default(),
            offers: Mutex::default(),
            boots: Mutex::default(),
            stopped: Mutex::default(),
        }
    }

    fn offers(&self) -> MutexGuard<'_, HashMap<String, GpuOffer>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn boots(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.boots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> MutexGuard<'_, HashMap<String, operands::Paused>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self, target: &Target) -> Result<Node, DrainError> {
        match self.cluster.node(&target.node).await? {
            Got::Here(node) => {
                self.stopped().insert(target.node.clone(), operands::stopped(&node));
                Ok(node)
            }
            Got::Missing | Got::Raced => Err(DrainError(format!(
                "the cluster{} has no node `{}`; check the name that Kubernetes has for the host `{}` (`kubectl get nodes`)",
                self.cluster.place(),
                target.node,
                target.host
            ))),
        }
    }

    /// Whether this process may still change something.
    async fn proof(&self) -> Result<(), DrainError> {
        self.held.proof(&self.cluster, &self.options.lock).await
    }

    /// Whether the pods of a node that is ours may be asked to go.
    async fn may_disturb(&self, target: &Target, node: &Node) -> Result<(), DrainError> {
        self.proof().await?;
        // Why an error: a kubelet that starts after a reboot tells its boot in a while.
        self.stranger(target, node)
            .map_or(Ok(()), |why| Err(DrainError(format!("nobody was evicted: {why}"))))
    }

    /// Why the cluster's node is not proven to be the host; `None` where it is, or where nobody knows the host's boot.
    fn stranger(&self, target: &Target, node: &Node) -> Option<String> {
        standing::stranger(target, node, self.boots().get(&target.node)?)
    }

    async fn take(&self, target: &Target, marker: &Marker, why: &str) -> Result<Cordon, DrainError> {
        if !marker.is_writable() {
            return Err(DrainError(format!("`{marker}` cannot be read back; nothing was changed")));
        }
        for _ in 0..RACES {
            let node = self.read(target).await?;
            match standing(&node, marker) {
                Ownership::Ours => return Ok(Cordon::Ours { evidence: evidence(&node) }),
                Ownership::Theirs { by } => return Ok(Cordon::HeldByOthers { by }),
                Ownership::NotDrained => {}
            }
            if let Some(by) = silence(&node) {
                return Ok(Cordon::HeldByOthers { by });
            }
            if let Some(why) = self.stranger(target, &node) {
                return Ok(Cordon::Refused { why });
            }
            let mut patch = standing::cordon(&node, marker, &line(why));
            match operands::mig_manager(&node) {
                Layout::Works(state) => {
                    return Ok(Cordon::HeldByOthers {
                        by: format!("mig-manager lays out its MIG now ({state})"),
                    });
                }
                Layout::Owns(config) if self.options.lays_out_mig => match &self.options.mig_manager {
                    MigManager::Refuse => {
                        return Ok(Cordon::Refused {
                            why: format!(
                                "mig-manager holds its MIG to nvidia.com/mig.config={config} and would undo the play's layout; \
                                 write `mig_manager: {{label: CONFIG}}` to have it change that, or `mig_manager: takeover`"
                            ),
                        });
                    }
                    MigManager::Takeover => patch.push(operands::dismiss_mig_manager()),
                    MigManager::Label(_) => {}
                },
                Layout::Owns(_) | Layout::Absent => {}
            }
            self.proof().await?;
            match self.cluster.patch_node(&target.node, patch).await {
                // Why not this answer's word: the next reading judges it like any other.
                Ok(_) => {}
                Err(error) => match self.read(target).await {
                    Ok(after) if matches!(standing(&after, marker), Ownership::Ours) => {}
                    _ => return Err(error),
                },
            }
        }
        Err(self.restless(target))
    }

    fn restless(&self, target: &Target) -> DrainError {
        DrainError(format!(
            "the node {} changes faster than it can be patched{}; see who writes to it (`kubectl get node {} -o yaml --show-managed-fields`)",
            target.node,
            self.cluster.place(),
            target.node
        ))
    }

    /// Reads the node and its pods, and judges them.
    async fn look(&self, target: &Target) -> Result<Look, DrainError> {
        let node = self.read(target).await?;
        let pods = self.cluster.pods_on(&target.node).await?;
        let daemons = self.daemons_of(&pods).await?;
        let silent = silence(&node).is_some();
        let mut look = Look {
            evict: Vec::new(),
            left: Vec::new(),
            refused: Vec::new(),
            stays: Vec::new(),
            daemons: Daemons::new(),
            node,
        };
        let now = Timestamp::now();
        for pod in pods {
            let labels = &look.node.metadata.labels;
            match part(&pod, &self.options.pods, &daemons, labels, silent, now) {
                Part::Stays => look.stays.push(pod),
                Part::Leaves => look.left.push(format!("{} (stopped for the change)", named(&pod))),
                Part::Ends(how) => look.left.push(format!("{} ({how})", named(&pod))),
                Part::Evict => look.evict.push(pod),
                Part::Refused(why) => look.refused.push(format!("{}: {why}", named(&pod))),
            }
        }
        look.daemons = daemons;
        Ok(look)
    }

    async fn daemons_of(&self, pods: &[Pod]) -> Result<Daemons, DrainError> {
        let mut found = Daemons::new();
        for key in pods.iter().filter_map(daemon) {
            if found.contains_key(&key) {
                continue;
            }
            let known = {
                let known = self.daemons.lock().unwrap_or_else(PoisonError::into_inner);
                known.get(&key).filter(|(read, _)| read.elapsed() < DAEMONS).map(|(_, daemon)| daemon.clone())
            };
            let set = match known {
                Some(set) => set,
                None => {
                    let set = self.cluster.daemon(&key.0, &key.1).await?;
                    let mut known = self.daemons.lock().unwrap_or_else(PoisonError::into_inner);
                    known.insert(key.clone(), (Instant::now(), set.clone()));
                    set
                }
            };
            found.insert(key, set);
        }
        Ok(found)
    }

    /// Asks the pods to go that have to, and says what is left.
    async fn push(&self, target: &Target, marker: &Marker) -> Result<Activity, DrainError> {
        let look = self.look(target).await?;
        if !matches!(standing(&look.node, marker), Ownership::Ours) {
            return Err(DrainError(format!(
                "the node {} is not this run's; nobody was evicted",
                target.node
            )));
        }
        // Why not where a person overrules it: pods that could go in order would be killed with those that cannot.
        if !look.refused.is_empty() && !self.options.forced {
            return Ok(Activity::Stuck { why: look.refused });
        }
        let told = self.give_notice(target, marker, &look).await?;
        if !told.is_empty() {
            return Ok(Activity::Busy { work: told.into_iter().chain(look.left).collect() });
        }
        if !look.evict.is_empty() {
            self.may_disturb(target, &look.node).await?;
        }
        let asked: Vec<_> = look.evict.iter().map(|pod| self.evict(pod)).collect();
        let answers: Vec<(&Pod, Evicted)> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
        let (mut left, mut never) = (look.left, look.refused);
        for (pod, answer) in answers {
            match &answer {
                Evicted::Never(why) => never.push(format!("{}: {why}", named(pod))),
                answer => left.extend(what_is_left(pod, answer)),
            }
        }
        never.sort();
        if !never.is_empty() && !self.options.forced {
            return Ok(Activity::Stuck { why: never });
        }
        if left.is_empty()
            && self.options.lays_out_mig
            && let MigManager::Label(config) = &self.options.mig_manager
        {
            match operands::order(&look.node, config) {
                Order::None | Order::Done => {}
                Order::Failed => {
                    never.push(format!(
                        "mig-manager could not lay out its MIG as {config}: see its log, then set the label nvidia.com/mig.config anew"
                    ));
                }
                Order::UnderWay(state) => {
                    left.push(format!("mig-manager, which lays out its MIG as {config} ({state})"));
                }
                Order::ToGive(changes) => {
                    self.proof().await?;
                    let mut patch = vec![standing::same(&look.node), standing::owned(marker)];
                    patch.extend(changes);
                    self.cluster.patch_node(&target.node, patch).await?;
                    left.push(format!("mig-manager (it is told to lay out its MIG as {config})"));
                }
            }
        }
        // Why at once where a person overrules: the drain may end with pods that never went.
        if (left.is_empty() || self.options.forced)
            && self.options.pauses_operands
            && !operands::running(&look.node).is_empty()
        {
            left.push(self.pause(target, marker, &look.node, &look.stays, &look.daemons).await?);
        }
        left.sort();
        Ok(match (left.is_empty(), never.is_empty()) {
            (true, true) => Activity::Idle,
            (true, false) => Activity::Stuck { why: never },
            (false, _) => Activity::Busy { work: left.into_iter().chain(never).collect() },
        })
    }

    /// Asks one pod to go, unless the server said to ask later.
    async fn evict<'a>(&self, pod: &'a Pod) -> (&'a Pod, Evicted) {
        let known = {
            let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
            later.retain(|_, (at, _)| *at > Instant::now());
            later.get(&pod.metadata.uid).map(|(_, said)| said.clone())
        };
        if let Some(said) = known {
            return (pod, said);
        }
        let reply = self.cluster.send(eviction::eviction(pod, self.options.grace_period, false)).await;
        let answer = reply.map_or_else(|error| Evicted::NotNow(error.0), |reply| eviction::read(&reply));
        let again = match &answer {
            Evicted::Budget { again, .. } => *again,
            Evicted::Overload { again } => Some(again.unwrap_or(OVERLOAD)),
            _ => None,
        };
        if let Some(again) = again {
            let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
            later.insert(pod.metadata.uid.clone(), (Instant::now() + again, answer.clone()));
        }
        (pod, answer)
    }

    /// Whether this pod would go now. A server that has too much to do is asked again a few times.
    async fn rehearse<'a>(&self, pod: &'a Pod) -> Result<(&'a Pod, Evicted), DrainError> {
        let mut tries = REHEARSALS;
        loop {
            let reply = self.cluster.send(eviction::eviction(pod, self.options.grace_period, true)).await?;
            tries -= 1;
            match eviction::read(&reply) {
                Evicted::Overload { again } if tries > 0 => sleep(again.unwrap_or(OVERLOAD)).await,
                answer => return Ok((pod, answer)),
            }
        }
    }

    async fn pause(
        &self,
        target: &Target,
        marker: &Marker,
        node: &Node,
        stays: &[Pod],
        daemons: &Daemons,
    ) -> Result<String, DrainError> {
        self.proof().await?;
        // Why only those: what was not ready before may never be.
        let there = stays.iter().filter(|pod| pod.is_ready()).filter_map(daemon).filter(|key| {
            let set = daemons.get(key).and_then(Option::as_ref);
            set.is_some_and(|set| operands::selects(&set.spec.template.spec.node_selector))
        });
        let there = there.map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        let record = operands::to_pause(node, &marker.to_string(), there);
        let mut patch = vec![standing::same(node), standing::owned(marker)];
        patch.extend(operands::pause(node, &record));
        self.stopped().insert(target.node.clone(), record);
        self.cluster.patch_node(&target.node, patch).await?;
        Ok("what the GPU operator runs there (it is being stopped)".to_owned())
    }

    /// What would keep a drain from passing now.
    async fn try_out(&self, target: &Target) -> Result<Vec<String>, DrainError> {
        let look = self.look(target).await?;
        let mut said = Vec::new();
        said.extend(outage(&look.node));
        if let (Layout::Owns(config), true, MigManager::Refuse) =
            (operands::mig_manager(&look.node), self.options.lays_out_mig, &self.options.mig_manager)
        {
            said.push(format!("mig-manager holds its MIG to nvidia.com/mig.config={config}"));
        }
        said.extend(look.refused);
        let asked: Vec<_> = look.evict.iter().map(|pod| self.rehearse(pod)).collect();
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut blocked = Vec::new();
        // Why not all of them first: each of a server that is silent takes its whole time.
        while let Some(answer) = answers.next().await {
            let (pod, answer) = answer?;
            if !matches!(answer, Evicted::Asked) {
                blocked.extend(what_is_left(pod, &answer));
            }
        }
        blocked.sort();
        said.extend(blocked);
        Ok(said)
    }

    async fn give_back(
        &self,
        target: &Target,
        marker: &Marker,
        rebooted_after: Option<Timestamp>,
    ) -> Result<Ownership, DrainError> {
        let deadline = Instant::now() + self.options.ready_timeout;
        let mut settled = None;
        loop {
            let waits = match self.step_back(target, marker, rebooted_after, &mut settled).await {
                Ok(Back::Done(ownership)) => return Ok(ownership),
                Ok(Back::Waits(why)) => Ok(why),
                Err(error) => Err(error),
            };
            if Instant::now() + self.options.poll > deadline {
                return Err(waits.map_or_else(
                    |error| error,
                    |why| {
                        DrainError(format!(
                            "{} stays cordoned: {why}, {} s long (`kubectl describe node {}`); correct that, then resume the run",
                            target.node,
                            self.options.ready_timeout.as_secs(),
                            target.node
                        ))
                    },
                ));
            }
            sleep(self.options.poll).await;
        }
    }

    async fn step_back(
        &self,
        target: &Target,
        marker: &Marker,
        rebooted_after: Option<Timestamp>,
        settled: &mut Option<(BTreeMap<String, u64>, Instant)>,
    ) -> Result<Back, DrainError> {
        let node = self.read(target).await?;
        let own = marker.to_string();
        let restore = operands::restore(&node, &own);
        let record = operands::paused(&node).filter(|record| record.by == own);
        let raced = || Back::Waits("it changed at the same moment".to_owned());
        if !self.take_notices_back(target, marker).await? {
            return Ok(raced());
        }
        let verdict = match standing(&node, marker) {
            Ownership::Ours => None,
            other => Some(other),
        };
        if let Some(verdict) = verdict {
            return Ok(match self.abandon(target, &node, marker).await? {
                true => Back::Done(verdict),
                false => raced(),
            });
        }
        self.proof().await?;
        if !restore.is_empty() {
            let mut patch = vec![standing::same(&node), standing::owned(marker)];
            patch.extend(restore);
            self.cluster.patch_node(&target.node, patch).await?;
            return Ok(Back::Waits("what the GPU operator runs there starts again".to_owned()));
        }
        if let Some(why) = self.not_yet(target, &node, rebooted_after, record.as_ref(), settled).await? {
            return Ok(Back::Waits(why));
        }
        Ok(match self.cluster.patch_node(&target.node, standing::uncordon(&node, marker)).await? {
            Got::Here(_) => Back::Done(Ownership::NotDrained),
            Got::Missing | Got::Raced => raced(),
        })
    }

    /// Brings back what this drain stopped on a node that is not ours, and takes our marks off; the cordon is left as it is.
    /// Whether nobody came in between.
    ///
    /// Why no word of the lock: what this run stopped is this run's to bring back, whoever has the node.
    async fn abandon(&self, target: &Target, node: &Node, marker: &Marker) -> Result<bool, DrainError> {
        let patch = standing::abandon(node, marker);
        if patch.is_empty() {
            return Ok(true);
        }
        Ok(!matches!(self.cluster.patch_node(&target.node, patch).await?, Got::Raced))
    }

    async fn let_go_of(&self, target: &Target, marker: &Marker) -> Result<(), DrainError> {
        for _ in 0..RACES {
            let node = self.read(target).await?;
            if matches!(standing(&node, marker), Ownership::Ours)
                || (self.take_notices_back(target, marker).await?
                    && self.abandon(target, &node, marker).await?)
            {
                return Ok(());
            }
        }
        Err(self.restless(target))
    }

    /// Why a node that is ours must not be given back yet.
    async fn not_yet(
        &self,
        target: &Target,
        node: &Node,
        rebooted_after: Option<Timestamp>,
        record: Option<&operands::Paused>,
        settled: &mut Option<(BTreeMap<String, u64>, Instant)>,
    ) -> Result<Option<String>, DrainError> {
        if let Some(silence) = silence(node) {
            return Ok(Some(format!("it is {silence}")));
        }
        if let Layout::Works(state) = operands::mig_manager(node) {
            return Ok(Some(format!("mig-manager lays out its MIG now ({state})")));
        }
        let before = standing::before(node);
        if let Some(stranger) = self.stranger(target, node) {
            return Ok(Some(stranger));
        }
        // Why not where the host's own boot is known: then the kubelet has told that one.
        if let Some(after) = rebooted_after
            && !self.boots().contains_key(&target.node)
            && !has_booted(node, &before.boot_id, after)
        {
            return Ok(Some(format!(
                "its kubelet has not registered since its reboot at {after} (bootID {})",
                node.status.node_info.boot_id
            )));
        }
        if let Some(record) = record.filter(|record| !record.daemons.is_empty()) {
            let pods = self.cluster.pods_on(&node.metadata.name).await?;
            for name in &record.daemons {
                let Some((namespace, set)) = name.split_once('/') else { continue };
                let runs = pods.iter().any(|pod| {
                    daemon(pod).is_some_and(|key| key.0 == namespace && key.1 == set)
                        && pod.is_ready()
                        && pod.metadata.deletion_timestamp.is_none()
                });
                if runs {
                    continue;
                }
                if let Some(set) = self.cluster.daemon(namespace, set).await? {
                    let wanted = &set.spec.template.spec.node_selector;
                    // Why: somebody may have taken its label off since.
                    if wanted.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value)) {
                        return Ok(Some(format!("the pod of {name} is not ready there")));
                    }
                }
            }
        }
        let now = operands::advertised(node);
        let offer = self.offers().get(&node.metadata.name).cloned();
        // Why only there: elsewhere nothing was laid out unless the node told of it.
        let by_manager =
            self.options.lays_out_mig && matches!(self.options.mig_manager, MigManager::Label(_));
        let offers = !before.gpus.is_empty() || before.stopped;
        let missing = match &offer {
            _ if !offers => None,
            Some(offer) => operands::wrong(offer, &now, &node.metadata.labels),
            None if before.gpus.is_empty() => now.is_empty().then(|| {
                "it advertises no GPUs, and what offers them there was stopped already when this drain began".to_owned()
            }),
            None if by_manager => now.is_empty().then(|| operands::missing(&before.gpus, &now)).flatten(),
            None => operands::missing(&before.gpus, &now),
        };
        if missing.is_some() {
            return Ok(missing);
        }
        let unknown = by_manager || before.gpus.is_empty() || offer.is_some_and(|offer| offer.more);
        if offers && unknown {
            match settled {
                Some((same, since)) if *same == now && since.elapsed() >= SETTLE => {}
                Some((same, _)) if *same == now => {
                    return Ok(Some("what it advertises changed just now".to_owned()));
                }
                _ => {
                    *settled = Some((now, Instant::now()));
                    return Ok(Some("what it advertises changed just now".to_owned()));
                }
            }
        }
        Ok(None)
    }

    async fn leave_word(&self, target: &Target, marker: &Marker, why: &str) -> Result<(), DrainError> {
        for _ in 0..RACES {
            let node = self.read(target).await?;
            if !matches!(standing(&node, marker), Ownership::Ours) {
                return Ok(());
            }
            let mut patch = vec![standing::same(&node), standing::owned(marker)];
            patch.push(standing::annotate(standing::WHY, &line(why)));
            // Why here: a node that stays out must not stay without its metrics for that, nor with a forgotten pause.
            patch.extend(operands::restore(&node, &marker.to_string()));
            if matches!(self.cluster.patch_node(&target.node, patch).await?, Got::Here(_)) {
                return Ok(());
            }
        }
        Err(self.restless(target))
    }

    /// An error that leaves a node as it is, with what is stopped there.
    fn with_what_is_stopped(&self, error: DrainError, target: &Target, marker: &Marker) -> DrainError {
        let known = self.stopped().get(&target.node).cloned();
        let left = match known {
            Some(record) if record.by == marker.to_string() => {
                operands::how_to_restore(&target.node, &record)
            }
            None if self.options.pauses_operands => Some(operands::how_to_look(&target.node)),
            Some(_) | None => None,
        };
        DrainError(left.map_or_else(|| error.to_string(), |left| format!("{error}; {left}")))
    }

    async fn everybody(&self, targets: &[Target]) -> Result<Vec<Outage>, DrainError> {
        let nodes: HashMap<String, Node> =
            self.cluster.nodes().await?.into_iter().map(|node| (node.metadata.name.clone(), node)).collect();
        let outages = targets.iter().filter_map(|target| {
            let node = nodes.get(&target.node);
            let (why, marker) = match node {
                None => ("not known to Kubernetes".to_owned(), None),
                Some(node) => (outage(node)?, held_by(node)),
            };
            Some(Outage { node: target.node.clone(), why, marker, known: node.is_some() })
        });
        Ok(outages.collect())
    }
}

/// What of a pod is still there after this answer, ready to show.
fn what_is_left(pod: &Pod, answer: &Evicted) -> Option<String> {
    let why = match answer {
        Evicted::Gone => return None,
        Evicted::Asked => "was asked to end".to_owned(),
        Evicted::Changed => "changed at the same moment".to_owned(),
        Evicted::Budget { says, .. } if !pod.is_ready() => {
            format!(
                "{says}; the pod is not ready itself, and `unhealthyPodEvictionPolicy: AlwaysAllow` would let it go"
            )
        }
        Evicted::Budget { says, .. } => says.clone(),
        Evicted::Overload { .. } => "the API server has too much to do".to_owned(),
        Evicted::NamespaceEnds => "its namespace is being deleted".to_owned(),
        Evicted::NotNow(why) | Evicted::Never(why) => why.clone(),
    };
    Some(format!("{} ({why})", named(pod)))
}

/// Whether a node's kubelet was heard in another boot than before.
fn has_booted(node: &Node, before: &str, after: Timestamp) -> bool {
    let now = &node.status.node_info.boot_id;
    if !before.is_empty() && !now.is_empty() {
        return now != before;
    }
    // Why only then: a heartbeat from the seconds before the machine went down looks the same.
    node.ready().and_then(|ready| ready.last_transition_time).is_some_and(|time| time > after)
}

/// One line of bounded length.
fn line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(WHY_LENGTH).collect()
}

/// Whether Kubernetes takes a name for a node: a DNS subdomain (RFC 1123).
pub fn is_kubernetes_node_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let outer =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = name.as_bytes();
    name.len() <= 253 && bytes.iter().all(|byte| inner(*byte)) && outer(bytes.first()) && outer(bytes.last())
}

/// Reads bytes as each of the objects that a server sends, and judges them.
#[cfg(any(test, feature = "fuzzing"))]
pub fn read_foreign_object(bytes: &[u8]) {
    let marker = Marker { run: "R".to_owned(), nonce: "N".to_owned() };
    if let Ok(node) = serde_json::from_slice::<Node>(bytes) {
        let _ = (outage(&node), held_by(&node), evidence(&node), standing::before(&node));
        let _ = (
            operands::restore(&node, ""),
            operands::pause(&node, &operands::to_pause(&node, "", Vec::new())),
            operands::stopped(&node),
            operands::mig_manager(&node),
        );
        if let Ownership::NotDrained = standing(&node, &marker) {
            let _ = standing::cordon(&node, &marker, "");
        }
    }
    if let Ok(pod) = serde_json::from_slice::<Pod>(bytes) {
        let _ =
            part(&pod, &PodPolicy::default(), &Daemons::new(), &BTreeMap::new(), true, Timestamp::UNIX_EPOCH);
        let _ = eviction::eviction(&pod, Some(Duration::ZERO), true);
    }
    let _ = eviction::read(&Reply { status: 500, retry_after: None, body: bytes.to_vec() });
}
