//! `network_interface`: MTU, rings, channels, pause frames, priorities and error correction of network cards, now and
//! whenever the card appears.
//!
//! The running card first: a setting that it does not take must not be in the file of the boot. A lost connection ends
//! with the next boot then.

mod ethtool;
mod link;
mod link_file;
mod management;
pub mod owners;
mod rules;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Layer, Property, Subject, change::Value as Typed,
    tasks::NetworkInterface,
};
use serde_json::{Map, Value, json};

pub use self::link_file::FOLDERS;
use self::{
    ethtool::{Bounded, Ethtool},
    link::{Told, Touched},
    link_file::{Known, LinkFile},
    management::Way,
    owners::Claim,
    rules::Rules,
};
use super::{
    dcb::{self, Dcb, TrustBy},
    edits,
    knobs::{self, link_name},
    sysctl::owners::{Profile, starts},
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::Ownership,
    world::Effect,
};

const NET: &str = "/sys/class/net";
/// The type of an interface of IPoIB. Source: kernel, `uapi/linux/if_arp.h`.
const INFINIBAND: &str = "32";

/// A setting of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Channels,
    RingRx,
    RingTx,
    Pause,
    Mtu,
    Fec,
    /// After the pause frames of the whole link, which exclude it.
    Pfc,
    Trust,
}

impl Key {
    const ALL: [Self; 8] = [
        Self::Channels,
        Self::RingRx,
        Self::RingTx,
        Self::Pause,
        Self::Mtu,
        Self::Fec,
        Self::Pfc,
        Self::Trust,
    ];

    /// Whether a .link file can set it.
    const fn in_link_file(self) -> bool {
        !matches!(self, Self::Fec | Self::Pfc | Self::Trust)
    }

    /// Returns its name in changes and messages.
    const fn shown(self) -> &'static str {
        match self {
            Self::Channels => "channels",
            Self::RingRx => "ring rx",
            Self::RingTx => "ring tx",
            Self::Pause => "pause",
            Self::Mtu => "mtu",
            Self::Fec => "fec",
            Self::Pfc => "pfc",
            Self::Trust => "trust",
        }
    }
}

#[derive(Debug)]
struct Setting {
    key: Key,
    wanted: String,
    /// None if it is known only after an assumed boot.
    now: Option<String>,
    least: Option<u32>,
    most: Option<u32>,
}

#[derive(Debug)]
struct Card {
    name: String,
    /// Whether it is in use, so that a loss of the link hurts somebody.
    up: bool,
    settings: Vec<Setting>,
    /// What is declared and not to be had of it, with why.
    lacks: Vec<(Key, String)>,
    /// Whether pause frames are negotiated, which has to end before they can be set.
    negotiated: bool,
    claims: Vec<Claim>,
    /// Why it carries the connection.
    management: Option<String>,
    boot: Option<LinkFile>,
    /// The rule with what a .link file does not know.
    rules: Option<Rules>,
    /// By what its driver is told what to trust.
    trust: Option<TrustBy>,
    /// What tuned or lldpad sets of it, and by which file.
    late: Vec<(Key, String)>,
}

#[derive(Debug)]
pub struct State {
    cards: Vec<Card>,
    /// Why nobody tells which interface carries the connection.
    untold: Option<String>,
}

#[derive(Clone, Debug)]
pub enum Step {
    Mtu { name: String, bytes: String },
    Ethtool { name: String, arguments: Vec<String> },
    Dcb { name: String, arguments: Vec<String> },
    Trust { name: String, word: String },
    File(edits::Step),
}

impl Step {
    /// Returns the card that it touches; a file touches none.
    fn card(&self) -> Option<&str> {
        match self {
            Self::Mtu { name, .. }
            | Self::Ethtool { name, .. }
            | Self::Dcb { name, .. }
            | Self::Trust { name, .. } => Some(name),
            Self::File(_) => None,
        }
    }
}

fn file(name: &str, file: &str) -> String {
    format!("{NET}/{name}/{file}")
}

fn exists(node: &Node<'_>, path: &str) -> bool {
    node.roots.path(path).exists()
}

fn effect_name(interface: &str, key: Key) -> String {
    format!("net/{interface}/{}", key.shown())
}

trait Selected {
    fn selected(&self, node: &Node<'_>) -> Result<Vec<String>, Trouble>;
    fn wanted(&self) -> BTreeMap<Key, String>;
    fn card(&self, node: &Node<'_>, name: &str, around: &Around<'_>) -> Result<Card, Trouble>;
}

/// What all cards have in common.
struct Around<'a> {
    way: &'a Way,
    profile: Option<&'a Profile>,
    /// Whether lldpad starts at boot.
    lldpad: bool,
    wanted: BTreeMap<Key, String>,
}

impl Selected for NetworkInterface {
    /// Returns the interfaces, sorted.
    fn selected(&self, node: &Node<'_>) -> Result<Vec<String>, Trouble> {
        let folder = node.roots.path(NET);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => return Err(crate::os::files::FileError::new("list", folder, error).into()),
        };
        let all: BTreeSet<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        for name in &self.name {
            if !all.contains(name) {
                let names: Vec<&str> = all.iter().map(String::as_str).take(16).collect();
                return Err(Trouble::missing(format!(
                    "there is no interface {name} here; there are {}",
                    names.join(", ")
                )));
            }
            if !exists(node, &file(name, "device")) {
                return Err(Trouble::invalid(format!(
                    "{name} is no interface of a card: who makes it (a bond, a bridge, a VLAN) sets it too"
                )));
            }
        }
        let fits = |name: &&String| {
            let driver = link_name(node, &file(name, "device/driver"));
            let is_rdma = exists(node, &file(name, "device/infiniband"));
            let asked = match self.name.is_empty() {
                true => {
                    exists(node, &file(name, "device"))
                        && !exists(node, &file(name, "device/physfn"))
                        && !is_representor(node, name)
                }
                false => self.name.contains(name),
            };
            asked
                && self.driver.as_ref().is_none_or(|wanted| driver.as_ref() == Some(wanted))
                && self.rdma.is_none_or(|wanted| is_rdma == wanted)
        };
        let found: Vec<String> = all.iter().filter(fits).cloned().collect();
        if found.is_empty() {
            let message = "no interface of a card is of the declared driver and sort".to_owned();
            return Err(Trouble::NotApplicable(message));
        }
        Ok(found)
    }

    fn wanted(&self) -> BTreeMap<Key, String> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        [
            (Key::Mtu, number(self.mtu)),
            (Key::RingRx, number(self.ring_rx)),
            (Key::RingTx, number(self.ring_tx)),
            (Key::Channels, number(self.channels)),
            (Key::Pause, self.pause.map(|pause| pause.as_str().to_owned())),
            (Key::Fec, self.fec.map(|fec| fec.as_str().to_owned())),
            (Key::Pfc, self.pfc_text()),
            (Key::Trust, self.trust.map(|trust| trust.as_str().to_owned())),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
    }

    fn card(&self, node: &Node<'_>, name: &str, around: &Around<'_>) -> Result<Card, Trouble> {
        let read = |below: &str| knobs::value(node, &file(name, below));
        let index = read("ifindex")?.unwrap_or_default();
        let mut claims = owners::claims(node, name, &index)?;
        let told = Told::read(node, name)?;
        let group = group(node, name, &told);
        // Source: kernel, networking/bonding: the MTU of a bond is set on all that it is made of. That of a team too.
        if let Some((sort, group)) = &group {
            claims.push(Claim {
                key: Key::Mtu,
                value: knobs::value(node, &file(group, "mtu"))?.unwrap_or_default(),
                by: format!("the {sort} {group}"),
                instead: format!("the MTU of {group}, where that is declared"),
            });
        }
        claims.retain(|claim| around.wanted.contains_key(&claim.key));
        let mut seen = Seen { node, name, told: &told, negotiated: false, trust: None, ethtool: None };
        let (mut settings, mut lacks) = (Vec::new(), Vec::new());
        let is_infiniband = read("type")?.as_deref() == Some(INFINIBAND);
        for (key, wanted) in &around.wanted {
            // Pause frames are of Ethernet; another MTU is wanted of it than of IPoIB.
            let why = match key {
                Key::Pause if is_infiniband => "there are no pause frames with InfiniBand".to_owned(),
                Key::Pfc | Key::Trust if is_infiniband => "priorities are of Ethernet".to_owned(),
                Key::Mtu if is_infiniband && self.name.is_empty() && told.is_above(wanted) => {
                    format!("its MTU with InfiniBand is {} at most", told.most.unwrap_or_default())
                }
                _ => match seen.setting(*key, wanted)? {
                    Some(setting) => {
                        settings.push(setting);
                        continue;
                    }
                    None => format!("the driver has no setting `{}`", key.shown()),
                },
            };
            if !self.name.is_empty() {
                return Err(Trouble::invalid(format!(
                    "{} of {name} cannot be set: {why}; leave it out of the task that names {name}",
                    key.shown()
                )));
            }
            lacks.push((*key, why));
        }
        let (negotiated, trust) = (seen.negotiated, seen.trust);
        let sets: BTreeMap<Key, String> = settings
            .iter()
            .filter(|setting| !claims.iter().any(|claim| claim.key == setting.key))
            .map(|setting| (setting.key, setting.wanted.clone()))
            .collect();
        let late = late(around);
        let (boot, rules) = match sets.is_empty() {
            true => (None, None),
            false => {
                let neighbours = fs::read_dir(node.roots.path(file(name, "device/net")));
                let several = neighbours.is_ok_and(|names| names.flatten().count() > 1);
                let address = if several { permanent(node, name, &told, group.as_ref())? } else { None };
                let known = Known::read(node, &index)?;
                let (linked, ruled): (BTreeMap<Key, String>, BTreeMap<Key, String>) =
                    sets.into_iter().partition(|(key, _)| key.in_link_file());
                let address = address.as_deref();
                let boot = match linked.is_empty() {
                    true => None,
                    false => Some(LinkFile::read(node, name, &known, &linked, address)?),
                };
                let rules = match ruled.is_empty() {
                    true => None,
                    false => Some(Rules::read(node, name, &known, &ruled, trust, address)?),
                };
                (boot, rules)
            }
        };
        if node.world.rebooted() {
            for setting in settings.iter_mut().filter(|setting| setting.now.is_none()) {
                let claim = claims.iter().find(|claim| claim.key == setting.key);
                setting.now = match (claim, &boot) {
                    // It comes last, and nobody knows for which interfaces.
                    _ if late.iter().any(|(key, _)| *key == setting.key) => None,
                    (Some(claim), _) => Some(claim.value.clone()),
                    _ if !setting.key.in_link_file() => match &rules {
                        Some(rules) => rules::value_in(rules.file.text()?, setting.key),
                        None => None,
                    },
                    (None, Some(boot)) => link_file::value_in(boot.counts()?, setting.key),
                    (None, None) => None,
                };
            }
        }
        Ok(Card {
            up: read("flags")?
                .and_then(|flags| u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok())
                .is_none_or(|flags| flags & 1 == 1),
            name: name.to_owned(),
            settings,
            lacks,
            negotiated,
            claims,
            management: around.way.interfaces.get(name).cloned(),
            boot,
            rules,
            trust,
            late,
        })
    }
}

/// Whether an interface stands for a function of a card in its switch, and is no port. Source: kernel,
/// networking/representors and `devlink_port_phys_port_name_get`: `pf0`, `pf0vf1`, `pf0sf88`, on the card's own processor
/// with `c1` before.
fn is_representor(node: &Node<'_>, name: &str) -> bool {
    // Most drivers have none: EOPNOTSUPP.
    let read = fs::read_to_string(node.roots.path(file(name, "phys_port_name"))).unwrap_or_default();
    let port = read.trim();
    let port = numbered(port, "c").unwrap_or(port);
    let Some(function) = numbered(port, "pf") else { return false };
    function.is_empty() || ["vf", "sf"].iter().any(|word| numbered(function, word) == Some(""))
}

/// Returns what comes after a word and a number.
fn numbered<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let number = text.strip_prefix(word)?;
    let rest = number.trim_start_matches(|digit: char| digit.is_ascii_digit());
    (rest.len() < number.len()).then_some(rest)
}

/// Returns the bond or team that an interface is a member of: its sort and name.
fn group(node: &Node<'_>, name: &str, told: &Told) -> Option<(&'static str, String)> {
    let master = link_name(node, &file(name, "master"))?;
    if exists(node, &file(&master, "bonding")) {
        return Some(("bond", master));
    }
    let is_team =
        told.member_of.as_deref() == Some("team") || exists(node, &format!("/run/teamd/{master}.pid"));
    is_team.then_some(("team", master))
}

/// Returns the address that a card was made with: a member of a bond has that of the bond.
fn permanent(
    node: &Node<'_>,
    name: &str,
    told: &Told,
    group: Option<&(&'static str, String)>,
) -> Result<Option<String>, Trouble> {
    let of_bond = knobs::value(node, &file(name, "bonding_slave/perm_hwaddr"))?;
    match (of_bond.or_else(|| told.permanent.clone()), group) {
        (Some(address), _) => Ok(Some(address)),
        (None, Some((sort, group))) => Err(Trouble::invalid(format!(
            "{name} has the address of the {sort} {group} now, and neither the kernel nor `ip` tells its own, by which alone a              file can name it at boot among the ports of its card; set it where {group} is declared"
        ))),
        (None, None) => knobs::value(node, &file(name, "address")),
    }
}

/// Returns what tuned and lldpad set of the same settings after the boot. Source: tuned, plugins/plugin_net.py; lldpad(8).
fn late(around: &Around<'_>) -> Vec<(Key, String)> {
    let mut found: Vec<(Key, String)> = Vec::new();
    if around.lldpad {
        let keys = [Key::Pfc, Key::Trust].into_iter().filter(|key| around.wanted.contains_key(key));
        let text = "lldpad.service starts at boot, sets PFC and priorities by what the switch tells (DCBX), and wins";
        found.extend(keys.map(|key| (key, text.to_owned())));
    }
    let Some(profile) = around.profile else { return found };
    let names = [
        (Key::Mtu, "mtu"),
        (Key::RingRx, "ring"),
        (Key::RingTx, "ring"),
        (Key::Channels, "channels"),
        (Key::Pause, "pause"),
    ];
    let of = |(key, name): &(Key, &str)| {
        let declared = around.wanted.contains_key(key);
        let (path, value) = profile.sets("net", name).filter(|_| declared)?;
        let text =
            format!("tuned's profile {} sets {name}={value} ({path}) after the boot, and wins", profile.name);
        Some((*key, text))
    };
    found.extend(names.iter().filter_map(of));
    found
}

/// Reads the settings of one interface.
struct Seen<'a> {
    node: &'a Node<'a>,
    name: &'a str,
    told: &'a Told,
    negotiated: bool,
    trust: Option<TrustBy>,
    ethtool: Option<Ethtool>,
}

impl Seen<'_> {
    fn ethtool(&mut self) -> Result<&Ethtool, Trouble> {
        if self.ethtool.is_none() {
            self.ethtool = Some(Ethtool::find(self.node)?);
        }
        self.ethtool.as_ref().ok_or_else(|| Trouble::missing("there is no ethtool"))
    }

    /// Returns a setting; none where the driver does not have it.
    fn setting(&mut self, key: Key, wanted: &str) -> Result<Option<Setting>, Trouble> {
        let (node, name) = (self.node, self.name);
        let of = |found: Bounded| (found.now.to_string(), None, found.most);
        let found = match key {
            Key::Mtu => {
                knobs::value(node, &file(name, "mtu"))?.map(|now| (now, self.told.least, self.told.most))
            }
            Key::RingRx => self.ethtool()?.rings(node, name)?.0.map(of),
            Key::RingTx => self.ethtool()?.rings(node, name)?.1.map(of),
            Key::Channels => self.ethtool()?.channels(node, name)?.map(of),
            Key::Pause => self.ethtool()?.pause(node, name)?.map(|pause| {
                self.negotiated = pause.negotiated;
                (pause.word(link::has_carrier(node, name)).to_owned(), None, None)
            }),
            Key::Fec => self.ethtool()?.fec(node, name)?.map(|now| (now, None, None)),
            Key::Pfc => Dcb::find(node)?.pfc(node, name)?.map(|on| (dcb::word(&on), None, None)),
            Key::Trust => {
                let driver = link_name(node, &file(name, "device/driver"));
                dcb::trust(node, name, driver.as_deref())?.map(|(word, by)| {
                    self.trust = Some(by);
                    (word, None, None)
                })
            }
        };
        let Some((now, least, most)) = found else { return Ok(None) };
        let now = match node.world.parameter(&effect_name(name, key)) {
            Some(assumed) => Some(assumed),
            None if node.world.rebooted() => None,
            None => Some(now),
        };
        Ok(Some(Setting { key, wanted: wanted.to_owned(), now, least, most }))
    }
}

impl State {
    /// Returns what some cards lack and why, with the names of those cards.
    fn lacking(&self) -> BTreeMap<(Key, &str), Vec<&str>> {
        let mut all: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for card in &self.cards {
            for (key, why) in &card.lacks {
                all.entry((*key, why.as_str())).or_default().push(&card.name);
            }
        }
        all
    }
}

impl NodeKind for NetworkInterface {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let way = management::way(node)?;
        let profile = Profile::read(node)?;
        let lldpad = starts(node, "lldpad.service")?;
        let around = Around { way: &way, profile: profile.as_ref(), lldpad, wanted: self.wanted() };
        let mut cards = Vec::new();
        for name in self.selected(node)? {
            node.check_time()?;
            cards.push(self.card(node, &name, &around)?);
        }
        Ok(State { cards, untold: way.untold })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        if state.cards.iter().all(|card| card.settings.is_empty()) {
            let lacks = state.lacking();
            let why: Vec<String> =
                lacks.iter().map(|((_, why), names)| format!("{}: {why}", names.join(", "))).collect();
            return Err(Trouble::NotApplicable(why.join("; ")));
        }
        plan.warnings.extend(state.lacking().into_iter().map(|((key, why), names)| {
            format!("{} is not applicable to {}: {why}", key.shown(), names.join(", "))
        }));
        state.cards.iter().try_for_each(Card::judge)?;
        for card in &state.cards {
            let before = plan.changes.len();
            card.plan(&mut plan)?;
            match card.management.as_ref().or(state.untold.as_ref()) {
                Some(why) if plan.changes.len() > before && !self.allow_management => {
                    return Err(Trouble::failed(
                        FailureKind::Refused,
                        format!(
                            "{} is not touched: {why}, and its link may go down for seconds, or for good; \
                             `allow_management: true` allows it",
                            card.name
                        ),
                    ));
                }
                _ => {}
            }
        }
        plan.warnings.sort();
        plan.warnings.dedup();
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let files = plan.steps.iter().filter_map(|step| match step {
            Step::File(step) => Some(step.effect()),
            Step::Mtu { .. } | Step::Ethtool { .. } | Step::Dcb { .. } | Step::Trust { .. } => None,
        });
        let live = state.cards.iter().flat_map(|card| {
            let known = card.settings.iter().filter(|setting| setting.now.is_some());
            known.map(|setting| Effect::Parameter {
                name: effect_name(&card.name, setting.key),
                value: setting.wanted.clone(),
            })
        });
        files.chain(live).collect()
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        let mut touched: Option<Touched> = None;
        for step in &plan.steps {
            let name = step.card();
            // Before the file for the boot, and before the next card: one after the other keeps the others' links.
            if let Some(before) = touched.take_if(|before| name != Some(before.name.as_str())) {
                before.wait(node)?;
            }
            if let (None, Some(name)) = (&touched, name) {
                touched = Some(Touched::before(node, name)?);
            }
            match step {
                Step::Mtu { name, bytes } => knobs::write(node, &file(name, "mtu"), bytes)?,
                Step::Ethtool { arguments, .. } => Ethtool::find(node)?.set(node, arguments)?,
                Step::Dcb { arguments, .. } => Dcb::find(node)?.set(node, arguments)?,
                Step::Trust { name, word } => knobs::write(node, &dcb::trust_file(name), word)?,
                Step::File(step) => step.apply()?,
            }
        }
        touched.map_or(Ok(()), |before| before.wait(node))?;
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let names: Vec<&str> = state.cards.iter().map(|card| card.name.as_str()).collect();
        let mut data = Map::from_iter([("interfaces".to_owned(), json!(names))]);
        let lacks: Vec<String> = (state.lacking().into_iter())
            .flat_map(|((key, _), names)| {
                names.into_iter().map(move |name| format!("{name} {}", key.shown()))
            })
            .collect();
        if !lacks.is_empty() {
            data.insert("not_applicable".to_owned(), lacks.into());
        }
        data
    }

    fn declares(&self, state: &State) -> Vec<(String, String)> {
        let of = |card: &Card| {
            let value = |set: &Setting| (format!("{} of {}", set.key.shown(), card.name), set.wanted.clone());
            card.settings.iter().map(value).collect::<Vec<_>>()
        };
        state.cards.iter().flat_map(of).collect()
    }
}

impl Card {
    /// Refuses what the card does not take, and what would lose at boot.
    fn judge(&self) -> Result<(), Trouble> {
        for Setting { key, wanted, now, least, most } in &self.settings {
            let (name, what) = (&self.name, key.shown());
            if let Ok(number) = wanted.parse::<u32>()
                && (most.is_some_and(|most| number > most) || least.is_some_and(|least| number < least))
            {
                let most = most.map_or_else(|| "more".to_owned(), |most| most.to_string());
                return Err(Trouble::invalid(format!(
                    "{what} of {name} is to be {wanted}, and its driver takes {} to {most}",
                    least.unwrap_or(1)
                )));
            }
            let claim = self.claims.iter().find(|claim| claim.key == *key && claim.value != *wanted);
            if let Some(claim) = claim {
                return Err(Trouble::invalid(format!(
                    "{} sets {what} of {name} to {}, and wins at boot; it is {} now; {} sets {wanted} for good",
                    claim.by,
                    claim.value,
                    now.as_deref().unwrap_or("unknown"),
                    claim.instead
                )));
            }
        }
        Ok(())
    }

    fn change(&self, key: Key, from: Typed, wanted: &str, class: Disruption) -> Change {
        let subject = Subject::kernel_setting(format!("{} {}", self.name, key.shown()));
        Change::new(subject, Property::VALUE, from, Typed::parsed(wanted), class)
    }

    fn plan(&self, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let class = if self.up { Disruption::Clients } else { Disruption::Live };
        let mut rings = Vec::new();
        for Setting { key, wanted, now, .. } in &self.settings {
            let Some(now) = now else {
                let open = self.change(*key, Typed::Unknown, wanted, class);
                let note = match self.late.iter().any(|(of, _)| of == key) {
                    true => {
                        "another program sets it after the boot, so its value then is known only in the run"
                    }
                    false => "nothing sets it at boot, so its value then is known only in the run",
                };
                plan.changes.push(open.with_note(note).possible());
                continue;
            };
            if now == wanted {
                continue;
            }
            let change = self.change(*key, Typed::parsed(now), wanted, class);
            plan.changes.push(match self.up {
                true => change.with_note("many cards lose their link for seconds"),
                false => change.with_note("the interface is down, so that nobody notices"),
            });
            plan.needs = plan.needs.max(class);
            let name = self.name.clone();
            let of = |option: &str, values: &[&str]| {
                [option, self.name.as_str()].iter().chain(values).map(|word| (*word).to_owned()).collect()
            };
            match key {
                Key::Mtu => plan.steps.push(Step::Mtu { name, bytes: wanted.clone() }),
                Key::RingRx => rings.extend(["rx".to_owned(), wanted.clone()]),
                Key::RingTx => rings.extend(["tx".to_owned(), wanted.clone()]),
                Key::Channels => {
                    plan.steps.push(Step::Ethtool { name, arguments: of("-L", &["combined", wanted]) });
                }
                Key::Pause => {
                    let ends: &[&str] = if self.negotiated { &["autoneg", "off"] } else { &[] };
                    let values = [ends, &["rx", wanted, "tx", wanted]].concat();
                    plan.steps.push(Step::Ethtool { name, arguments: of("-A", &values) });
                }
                Key::Fec => {
                    plan.steps
                        .push(Step::Ethtool { name, arguments: rules::fec_arguments(&self.name, wanted) });
                }
                Key::Pfc => {
                    plan.steps.push(Step::Dcb { name, arguments: dcb::pfc_arguments(&self.name, wanted) });
                }
                Key::Trust => {
                    let arguments = self.trust.and_then(|by| dcb::trust_arguments(&self.name, wanted, by));
                    plan.steps.push(match arguments {
                        Some(arguments) => Step::Dcb { name, arguments },
                        None => Step::Trust { name, word: wanted.clone() },
                    });
                }
            }
        }
        if !rings.is_empty() {
            // Both in one call: each call brings the card down and up.
            let arguments = ["-G".to_owned(), self.name.clone()].into_iter().chain(rings).collect();
            plan.steps.push(Step::Ethtool { name: self.name.clone(), arguments });
        }
        plan.warnings.extend(self.late.iter().map(|(_, text)| text.clone()));
        self.plan_rules(plan)?;
        self.plan_boot(plan)
    }

    fn plan_rules(&self, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let Some(rules) = &self.rules else { return Ok(()) };
        let now = rules.file.text()?;
        if now == rules.text {
            return Ok(());
        }
        plan.steps.extend(rules.file.written(rules.text.clone(), Ownership::default()).map(Step::File));
        let ruled = self.settings.iter().filter(|setting| !setting.key.in_link_file());
        let before = plan.changes.len();
        for Setting { key, wanted, .. } in ruled {
            let from = rules::value_in(now, *key);
            if from.as_ref() != Some(wanted) {
                let from = from.map_or(Typed::Absent, |from| Typed::parsed(&from));
                plan.changes.push(self.change(*key, from, wanted, Disruption::Live).at(Layer::Boot));
            }
        }
        if plan.changes.len() == before {
            plan.changes.push(rules.file.change(Some(rules.text.as_bytes())).at(Layer::Boot));
        }
        Ok(())
    }

    fn plan_boot(&self, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let Some(boot) = &self.boot else { return Ok(()) };
        let now = boot.file.text()?;
        if let Some(path) = &boot.ignored {
            plan.warnings.push(format!(
                "{path} counted for {} when it appeared, although {} was there; does the initramfs hold an older copy? \
                 `initramfs` builds it again",
                self.name, boot.file.shown
            ));
        }
        if now == boot.text {
            return Ok(());
        }
        plan.steps.extend(boot.file.written(boot.text.clone(), Ownership::default()).map(Step::File));
        let mut said = false;
        for Setting { key, wanted, .. } in &self.settings {
            let from = link_file::value_in(now, *key);
            if from.as_ref() != Some(wanted) && link_file::value_in(&boot.text, *key).as_ref() == Some(wanted)
            {
                let from = from.map_or(Typed::Absent, |from| Typed::parsed(&from));
                plan.changes.push(self.change(*key, from, wanted, Disruption::Live).at(Layer::Boot));
                said = true;
            }
        }
        if !said {
            plan.changes.push(boot.file.change(Some(boot.text.as_bytes())).at(Layer::Boot));
        }
        if let Some(path) = &boot.shadows {
            plan.warnings.push(format!(
                "{} repeats what {path} says for {}, which no longer counts there",
                boot.file.shown, self.name
            ));
        }
        Ok(())
    }
}
