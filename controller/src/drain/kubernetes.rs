//! Kubernetes, through its API: cordon, evictions, and back.
//!
//! Owns the order in which the API is asked; what an object, a pod or an answer means is judged in the modules below, which
//! send nothing. Must not know the engine, nor how requests travel ([`Api`]). Invariants:
//! * the marker stands in an annotation, the cordon and the marker come and go in one patch, and every patch tests the
//!   object that was judged: nothing that someone else wrote is overwritten;
//! * before anything is changed the lock is this run's, if this process took one;
//! * an eviction names the pod's uid, and a pod counts as gone only when it is not listed on the node any more;
//! * what was stopped for the change is brought back on every way out, and the node says itself what that is.

mod api;
#[cfg(feature = "kubernetes")]
mod client;
mod cluster;
mod declared;
mod drainer;
mod eviction;
mod giving;
mod kubectl;
mod lock;
mod node_object;
mod notice;
mod objects;
mod operands;
#[cfg(feature = "kubernetes")]
mod plugin;
mod pods;
mod standing;
#[cfg(test)]
mod tests;
mod trial;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::time::Instant;

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
/// How much of a reason's text is kept, in characters.
const WHY_LENGTH: usize = 1000;

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
    /// How long pods are told before they are evicted; without it they are not told.
    pub notice: Option<Duration>,
    /// How long `resume` waits for a node to be ready and to offer its GPUs, and for a server that does not answer.
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
    /// Pods whose eviction was tried out, by uid, and when.
    tried: Mutex<HashMap<String, Instant>>,
    /// What nodes wait for that are being given back, by node.
    waiting: Mutex<HashMap<String, String>>,
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
    /// What must not be taken, ready to show.
    refused: Vec<String>,
    stays: Vec<Pod>,
    daemons: Daemons,
}

impl KubernetesDrainer {
    pub fn new(api: Arc<dyn Api>, options: KubernetesOptions) -> Self {
        Self {
            cluster: Cluster::new(api),
            options,
            held: Held::default(),
            later: Mutex::default(),
            daemons: Mutex::default(),
            tried: Mutex::default(),
            waiting: Mutex::default(),
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

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
            Got::Missing | Got::Raced => Err(DrainError::Standing {
                what: format!("the cluster{} has no node `{}`", self.cluster.place(), target.node),
                next: format!(
                    "check the name that Kubernetes has for the host `{}` (`kubectl get nodes`)",
                    target.host
                ),
            }),
        }
    }

    /// Whether this process may still change something.
    async fn proof(&self) -> Result<(), DrainError> {
        self.held.proof(&self.cluster, &self.options.lock).await
    }

    /// That the lock is lost, in words.
    async fn has_lost_lock(&self) -> Result<Option<String>, DrainError> {
        self.held.lost(&self.cluster, &self.options.lock).await
    }

    /// Whether the pods of a node that is ours may be asked to go.
    async fn may_disturb(&self, target: &Target, node: &Node) -> Result<(), DrainError> {
        self.proof().await?;
        // Why an error: a kubelet that starts after a reboot tells its boot in a while.
        self.stranger(target, node).map_or(Ok(()), |why| Err(DrainError::LeftAlone { what: "evicted", why }))
    }

    /// Why the cluster's node is not proven to be the host; `None` if it is, or if the host's boot is not known.
    fn stranger(&self, target: &Target, node: &Node) -> Option<String> {
        standing::stranger(target, node, self.boots().get(&target.node)?)
    }

    async fn take(&self, target: &Target, marker: &Marker, why: &str) -> Result<Cordon, DrainError> {
        if !marker.is_writable() {
            return Err(DrainError::NotSent {
                why: format!("`{marker}` cannot be read back"),
                left: "changed",
            });
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
        DrainError::Standing {
            what: format!(
                "the node {} changes faster than it can be patched{}",
                target.node,
                self.cluster.place()
            ),
            next: format!(
                "see who writes to it (`kubectl get node {} -o yaml --show-managed-fields`)",
                target.node
            ),
        }
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
            return Err(DrainError::Standing {
                what: format!("the node {} is not this run's", target.node),
                next: "nobody was evicted".to_owned(),
            });
        }
        // Why not where a person overrules it: pods that could go in order would be killed with those that cannot.
        if !look.refused.is_empty() && !self.options.forced {
            return Ok(Activity::Stuck { why: look.refused });
        }
        // Why before the first of them: what the server never lets go is better known before any has gone.
        let trial = self.tried_out(&look.evict).await?;
        if !trial.never.is_empty() {
            return Ok(Activity::Stuck { why: trial.never });
        }
        if !trial.unknown.is_empty() {
            return Ok(Activity::Busy { work: trial.unknown.into_iter().chain(look.left).collect() });
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
        if let Some(said) = self.asked_later(pod) {
            return (pod, said);
        }
        let reply = self.cluster.send(eviction::eviction(pod, self.options.grace_period, false)).await;
        let answer =
            reply.map_or_else(|error| Evicted::Unanswered(error.to_string()), |reply| eviction::read(&reply));
        self.ask_later(pod, &answer);
        (pod, answer)
    }

    /// What the server said of a pod that is not to be asked again yet.
    fn asked_later(&self, pod: &Pod) -> Option<Evicted> {
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        later.retain(|_, (at, _)| *at > Instant::now());
        later.get(&pod.metadata.uid).map(|(_, said)| said.clone())
    }

    /// Keeps an answer that says when to ask again.
    fn ask_later(&self, pod: &Pod, answer: &Evicted) {
        let again = match answer {
            Evicted::Budget { again, .. } => *again,
            Evicted::Overload { again } => Some(again.unwrap_or(OVERLOAD)),
            _ => None,
        };
        if let Some(again) = again {
            let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
            later.insert(pod.metadata.uid.clone(), (Instant::now() + again, answer.clone()));
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
        Evicted::NotNow(why) | Evicted::Unanswered(why) | Evicted::Never(why) => why.clone(),
    };
    Some(format!("{} ({why})", named(pod)))
}

/// One line of bounded length.
fn line(text: &str) -> String {
    eviction::shortened(text, WHY_LENGTH)
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
        let _ = part(
            &pod,
            &PodPolicy::default(),
            &Daemons::new(),
            &Default::default(),
            true,
            Timestamp::UNIX_EPOCH,
        );
        let _ = eviction::eviction(&pod, Some(Duration::ZERO), true);
    }
    let _ = eviction::read(&Reply { status: 500, retry_after: None, body: bytes.to_vec() });
}
