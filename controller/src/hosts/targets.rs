//! By which ways hosts are logged in to.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::{Map, Value};

use super::{
    ReachError,
    variables::{connection_vars, misdirected},
};
use crate::{
    inventory::Inventory,
    playbook::Play,
    template::Outside,
    transport::{Target, TargetDefaults, TargetError},
};

/// A way to log in: what a play says of it beside the inventory.
pub struct Way<'a> {
    pub inventory: &'a Inventory,
    /// Hosts that have to be reached so; of others only those that can be.
    pub needed: BTreeSet<&'a str>,
    pub play: Option<&'a Play>,
}

impl<'a> Way<'a> {
    /// As the inventory says.
    pub fn plain(inventory: &'a Inventory, hosts: &'a [String]) -> Self {
        Self { inventory, needed: hosts.iter().map(String::as_str).collect(), play: None }
    }
}

/// The ways in which plays log in, the inventory's own first, and which is each play's.
///
/// `plays` are the plays, the inventory as each sees it, and its hosts.
pub fn ways<'a>(
    inventory: &'a Inventory,
    reached: &'a [String],
    plays: impl Iterator<Item = (&'a Play, &'a Inventory, &'a [String])>,
) -> (Vec<Way<'a>>, Vec<u16>) {
    let mut ways = vec![Way::plain(inventory, reached)];
    let mut logins = Vec::new();
    for (play, inventory, hosts) in plays {
        let own = play.says_how_to_connect().then_some(play);
        let same = |way: &Way<'_>| {
            std::ptr::eq(way.inventory, inventory)
                && match (way.play, own) {
                    (None, None) => true,
                    (Some(one), Some(other)) => one.connects_as(other),
                    _ => false,
                }
        };
        let number = ways.iter().position(same).unwrap_or_else(|| {
            ways.push(Way { inventory, needed: BTreeSet::new(), play: own });
            ways.len() - 1
        });
        if let Some(way) = ways.get_mut(number) {
            way.needed.extend(hosts.iter().map(String::as_str));
        }
        logins.push(u16::try_from(number).unwrap_or_default());
    }
    (ways, logins)
}

/// How each host is reached: by way to log in, without and with `become`.
#[derive(Debug, Default)]
pub struct Targets(HashMap<(String, u16), (Target, Target)>);

impl Targets {
    /// Reads how each host is reached by each way; nothing is contacted.
    ///
    /// # Errors
    /// Connection variables that cannot be understood.
    pub fn read(
        ways: &[Way<'_>],
        hosts: &[String],
        extra: &Map<String, Value>,
        defaults: &TargetDefaults,
        outside: &Arc<dyn Outside>,
    ) -> Result<Self, ReachError> {
        let reach = |way: &Way<'_>, host: &String| -> Result<(Target, Target), ReachError> {
            let (vars, user) = connection_vars(way, host, extra, outside)?;
            let defaults =
                TargetDefaults { user: user.or_else(|| defaults.user.clone()), ..defaults.clone() };
            let wrong = |error: TargetError| misdirected(way, host, extra, error);
            let plain = Target::from_variables(host, &vars, &defaults).map_err(wrong)?;
            let root = TargetDefaults { become_root: true, ..defaults };
            let root = Target::from_variables(host, &vars, &root).map_err(wrong)?;
            Ok((plain, root))
        };
        let mut targets = HashMap::new();
        for (way, number) in ways.iter().zip(0..) {
            for host in hosts {
                match reach(way, host) {
                    Ok(found) => _ = targets.insert((host.clone(), number), found),
                    // Why no error: a play that the host is not in says nothing of it.
                    Err(_) if number > 0 && !way.needed.contains(host.as_str()) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Self(targets))
    }

    /// How a host is reached by a way, `None` where it is not.
    pub fn of(&self, host: &str, way: u16, with_become: bool) -> Option<&Target> {
        let (plain, root) = self.0.get(&(host.to_owned(), way))?;
        Some(if with_become { root } else { plain })
    }
}
