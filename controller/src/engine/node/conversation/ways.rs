//! The ways to the nodes of a run, and which nodes are heard on them. That tells a silent node from a silent way.
//!
//! Owns a watch on every connection, and the questions that are asked when one is silent. What the answers mean is
//! judged in [`crate::rollout`], without any of this.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::OnceCell,
    task::AbortHandle,
    time::{Instant, timeout},
};

use crate::{
    engine::ports::link::{ConnectFailure, Connector, Link, Purpose, Way},
    report::fold_names,
    rollout::{Cycles, Evidence, Silence, Voices, WayWord, Witness},
};

/// How long a node, or a jump host, may take to answer.
const ANSWER: Duration = Duration::from_secs(60);
/// How many other nodes on a way are asked at once.
const ASKED: usize = 5;
/// How many of them may be nodes that fell silent at about the same time.
const LOST_ASKED: usize = 2;
/// How long an answer is used for the same question.
///
/// Why: many silent nodes ask every 20 s, and that load could itself make the way silent.
const VALID: Duration = Duration::from_secs(20);
/// How long it is known how a host is reached. Why not without end: what cannot be told now may be told later.
const ROUTED: Duration = Duration::from_secs(600);
/// The name of what nodes without a jump host share.
const OWN_NETWORK: &str = "the network of the machine that gpufleet runs on";
/// The name of a way of which a part of the nodes is silent.
const PART: &str = "this looks like a switch or a rack that the silent ones share";

/// What is silent, with a sentence for people.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) whose: Silence,
    /// What the nodes share that may be silent.
    pub(crate) shared: String,
    pub(crate) why: String,
}

pub(crate) struct Ways {
    connector: Arc<dyn Connector>,
    hosts: Vec<String>,
    index: HashMap<String, usize>,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    voices: Voices,
    cycles: Cycles,
    watches: HashMap<usize, AbortHandle>,
    hosts_asked: Answers<(usize, Purpose), bool>,
    ways_asked: Answers<(Way, Purpose), (WayWord, String)>,
    routes: Answers<(usize, Purpose), Way>,
    /// What was reported to people and is not over.
    told: HashSet<String>,
}

/// Questions, each asked once at a time, and their answers as long as they are valid.
struct Answers<K, T>(HashMap<K, Arc<OnceCell<(Instant, T)>>>);

impl<K, T> Default for Answers<K, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, T> Answers<K, T> {
    fn cell(&mut self, question: K, valid: Duration) -> Arc<OnceCell<(Instant, T)>> {
        self.0.retain(|_, cell| cell.get().is_none_or(|(at, _)| at.elapsed() < valid));
        Arc::clone(self.0.entry(question).or_default())
    }
}

impl std::fmt::Debug for Ways {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ways").field("hosts", &self.hosts.len()).finish_non_exhaustive()
    }
}

impl Drop for Ways {
    fn drop(&mut self) {
        self.state().watches.values().for_each(AbortHandle::abort);
    }
}

impl Ways {
    /// `heard` are hosts that earlier processes of this run heard, `power_cycles` when these power cycled a node.
    pub(crate) fn new<'a>(
        connector: Arc<dyn Connector>,
        hosts: &[String],
        heard: impl Iterator<Item = &'a str>,
        power_cycles: Vec<jiff::Timestamp>,
    ) -> Arc<Self> {
        let index: HashMap<String, usize> = hosts.iter().cloned().zip(0..).collect();
        let mut state = State { cycles: Cycles::new(power_cycles), ..State::default() };
        heard.filter_map(|host| index.get(host)).for_each(|host| state.voices.heard_before(*host));
        Arc::new(Self {
            connector,
            hosts: hosts.to_vec(),
            index,
            begun: Instant::now(),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A host answered over this connection, which is watched from now on.
    pub(crate) fn connected(self: &Arc<Self>, host: &str, link: &Arc<dyn Link>) {
        let Some(host) = self.index.get(host).copied() else { return };
        let (link, ways) = (Arc::clone(link), Arc::downgrade(self));
        let watch = tokio::spawn(async move {
            link.closed().await;
            if let Some(ways) = ways.upgrade() {
                let now = ways.begun.elapsed();
                let mut state = ways.state();
                state.voices.lost(host, now);
                // Why: earlier answers of it are out of date.
                state.hosts_asked.0.retain(|(asked, _), cell| *asked != host || cell.get().is_none());
            }
        });
        let mut state = self.state();
        state.voices.heard(host);
        if let Some(before) = state.watches.insert(host, watch.abort_handle()) {
            before.abort();
        }
    }

    /// gpufleet itself closes the connection to a host.
    pub(crate) fn closes(&self, host: &str) {
        let watch = self.index.get(host).and_then(|host| self.state().watches.remove(host));
        if let Some(watch) = watch {
            watch.abort();
        }
    }

    /// A host was told to reboot: its silence is expected.
    pub(crate) fn expects(&self, host: &str) {
        self.closes(host);
        if let Some(host) = self.index.get(host) {
            let now = self.begun.elapsed();
            self.state().voices.expects(*host, now);
        }
    }

    /// Whether a host was heard by this process, and its connection was not closed on purpose since.
    pub(crate) fn is_missed(&self, host: &str) -> bool {
        self.index.get(host).is_some_and(|host| self.state().voices.is_missed(*host))
    }

    /// Whether people have to be told of something: once until it is over.
    pub(crate) fn is_news(&self, what: &str) -> bool {
        self.state().told.insert(what.to_owned())
    }

    /// Whether something that was reported to people is over.
    pub(crate) fn is_over(&self, what: &str) -> bool {
        self.state().told.remove(what)
    }

    /// Takes one of the power cycles that the last hour may have.
    ///
    /// # Errors
    /// How many it has.
    pub(crate) fn take_cycle(&self, an_hour: u32) -> Result<(), usize> {
        self.state().cycles.take(jiff::Timestamp::now(), an_hour)
    }

    /// The hosts that fell silent at once with most of the fleet; none if that is not so or is over, which some are asked for.
    pub(crate) async fn storm(&self, purpose: Purpose) -> Vec<String> {
        let lost = self.state().voices.storm();
        let asked = lost.iter().take(ASKED).map(|host| self.ask(*host, purpose));
        if futures::future::join_all(asked).await.contains(&true) {
            return Vec::new();
        }
        lost.iter().filter_map(|host| self.hosts.get(*host).cloned()).collect()
    }

    /// Whether a host answers now, over a connection of its own.
    async fn ask(&self, host: usize, purpose: Purpose) -> bool {
        let purpose = Purpose { writes: false, ..purpose };
        let cell = self.state().hosts_asked.cell((host, purpose), VALID);
        cell.get_or_init(|| async {
            let answers = self.connects(host, purpose).await;
            let now = self.begun.elapsed();
            let mut state = self.state();
            // Why not if its connection holds: it may only refuse a second one.
            let holds = state.watches.get(&host).is_some_and(|watch| !watch.is_finished());
            match answers {
                true => state.voices.heard(host),
                false if holds => {}
                false => state.voices.silent(host, now),
            }
            (Instant::now(), answers)
        })
        .await
        .1
    }

    async fn connects(&self, host: usize, purpose: Purpose) -> bool {
        let Some(name) = self.hosts.get(host) else { return false };
        match timeout(ANSWER, self.connector.connect(name, purpose)).await {
            Ok(Ok(link)) => {
                link.close().await;
                true
            }
            Ok(Err(ConnectFailure::Locked { .. } | ConnectFailure::Unfit { .. })) => true,
            // Why a refusal is no answer: a firewall may refuse for a whole rack.
            Ok(Err(
                ConnectFailure::Silent { .. }
                | ConnectFailure::Refused { .. }
                | ConnectFailure::Unreachable { .. }
                | ConnectFailure::Unknown,
            ))
            | Err(_) => false,
        }
    }

    /// What a host shares with others on the way to it.
    async fn route(&self, host: usize, purpose: Purpose) -> Way {
        let purpose = Purpose { writes: false, ..purpose };
        let Some(name) = self.hosts.get(host) else { return Way::Here };
        let cell = self.state().routes.cell((host, purpose), ROUTED);
        let route = || async { (Instant::now(), self.connector.way(name, purpose).await) };
        cell.get_or_init(route).await.1.clone()
    }

    /// What the last jump host of a way answers, asked with the settings of this host.
    async fn word_of(&self, way: &Way, host: &str, purpose: Purpose) -> (WayWord, String) {
        let purpose = Purpose { writes: false, ..purpose };
        let cell = self.state().ways_asked.cell((way.clone(), purpose), VALID);
        cell.get_or_init(|| async {
            let word = match timeout(ANSWER, self.connector.ask_way(host, purpose)).await {
                Ok(None) => (WayWord::Nothing, String::new()),
                Ok(Some(Ok(()))) => (WayWord::Works, String::new()),
                Ok(Some(Err(why))) => (WayWord::Silent, why),
                Err(_) => (WayWord::Silent, format!("no answer within {} s", ANSWER.as_secs())),
            };
            (Instant::now(), word)
        })
        .await
        .1
        .clone()
    }

    /// Finds out what is silent if a host does not answer. `hung`: its BMC says that the host hangs.
    pub(crate) async fn read(&self, host: &str, purpose: Purpose, refuses: bool, hung: bool) -> Reading {
        let Some(own) = self.index.get(host).copied() else {
            let why = format!("{host} is no host of this run");
            return Reading { whose: Silence::Unknown, shared: String::new(), why };
        };
        let way = self.route(own, purpose).await;
        let mut behind = Vec::new();
        for place in 0..self.hosts.len() {
            if way != Way::Here && place != own && self.route(place, purpose).await == way {
                behind.push(place);
            }
        }
        let asked = self.witnesses(own, &behind);
        let answers = futures::future::join_all(asked.iter().map(|(_, other)| self.ask(*other, purpose)));
        let (answers, (word, said)) = futures::join!(answers, self.word_of(&way, host, purpose));
        let others_answer = answers.iter().filter(|answer| **answer).count();
        let silent = asked
            .iter()
            .zip(&answers)
            .filter(|((witness, _), answer)| *witness != Witness::Stranger && !**answer);
        let silent: Vec<&str> =
            silent.filter_map(|((_, other), _)| self.hosts.get(*other)).map(String::as_str).collect();
        let others_silent = silent.len();
        let evidence = Evidence { way: word, refuses, others_answer, others_silent, hung };
        let nodes = behind.len() + 1;
        let names = fold_names(&silent);
        let (shared, why) = match (way, word) {
            (Way::Through(name), WayWord::Silent) => {
                let why = format!("{name} does not answer; {} behind it ({said})", nodes_are(nodes));
                (name, why)
            }
            (Way::Through(name), _) if others_silent > 0 && others_answer > 0 => (
                format!("the network behind {name}"),
                format!("{names} fell silent, too, while others behind {name} answer: {PART}"),
            ),
            (Way::Through(name), _) if others_silent > 0 => {
                let why = format!(
                    "{others_silent} of the {} behind {name} that answered before {} silent, too; {} behind it",
                    asked.len(),
                    if others_silent == 1 { "is" } else { "are" },
                    nodes_are(nodes)
                );
                (name, why)
            }
            (Way::Through(name), _) => {
                let why = format!("nothing shows that {name} works: none of the others behind it answers");
                (name, why)
            }
            (Way::Direct | Way::Here, _) if others_silent > 0 && others_answer > 0 => {
                let shared = "the network that the silent nodes share".to_owned();
                (shared, format!("{names} fell silent, too, while others answer: {PART}"))
            }
            (Way::Direct | Way::Here, _) if others_silent > 0 => {
                (OWN_NETWORK.to_owned(), format!("{names} fell silent, too: this looks like {OWN_NETWORK}"))
            }
            (Way::Direct | Way::Here, _) => {
                let why = "nothing shows that the way to it works: no other node answers that is reached in the same way";
                (OWN_NETWORK.to_owned(), why.to_owned())
            }
        };
        Reading { whose: evidence.judge(), shared, why }
    }

    /// The hosts on the same way that are asked, each with what its answer shows.
    fn witnesses(&self, own: usize, behind: &[usize]) -> Vec<(Witness, usize)> {
        let mut asked: Vec<(Witness, usize)> = {
            let state = self.state();
            let witness = |place: &usize| Some((state.voices.witness(*place, own)?, *place));
            behind.iter().filter_map(witness).collect()
        };
        // Why the nearest: neighbours in the inventory mostly share a switch too.
        asked.sort_by_key(|(witness, place)| (*witness, place.abs_diff(own)));
        let lost = asked.iter().take_while(|(witness, _)| *witness == Witness::Lost).count();
        let first = lost.min(LOST_ASKED);
        if let Some(rest) = asked.get_mut(first..) {
            rest.rotate_left(lost - first);
        }
        asked.truncate(ASKED);
        asked
    }
}

fn nodes_are(count: usize) -> String {
    if count == 1 { "one node is".to_owned() } else { format!("{count} nodes are") }
}
