//! The rule of udev that sets what a .link file does not know: priorities (PFC, trust) and error correction.
//!
//! A reload of the driver loses them, and udev sees the card appear then as at boot. What tasks have set stands in lines of
//! its own before the rule, because the rule has commands only.

use std::collections::BTreeMap;

use gpufleet_protocol::tasks::NetworkInterface;

use super::{Key, ethtool::Ethtool, link_file::Known};
use crate::{
    declare::{Node, Trouble},
    tasks::{
        dcb::{self, Dcb, TrustBy},
        edits::Present,
    },
};

const OWN: &str = "# Sets ";
/// What udev notes of an interface that the rule has set up, in its database, until the interface goes.
const DONE: &str = "GPUFLEET_NET";

/// The file of an interface, as it is and as it is to be.
#[derive(Debug)]
pub struct Rules {
    pub file: Present,
    pub text: String,
}

/// Returns what a text sets a key to, in the words of the task.
pub fn value_in(text: &str, key: Key) -> Option<String> {
    let value =
        |line: &str| line.strip_prefix(OWN)?.strip_prefix(key.shown())?.strip_prefix(' ').map(str::to_owned);
    text.lines().find_map(value)
}

impl Rules {
    /// Reads the file of an interface, and what it is to be: `sets`, and what earlier tasks put there.
    ///
    /// # Errors
    /// If it cannot be read, no rule can name the interface, or a program is missing.
    pub fn read(
        node: &Node<'_>,
        interface: &str,
        known: &Known,
        sets: &BTreeMap<Key, String>,
        trust: Option<TrustBy>,
        address: Option<&str>,
    ) -> Result<Self, Trouble> {
        let file = Present::read(
            node,
            &format!("{}/{}", NetworkInterface::RULES, NetworkInterface::rules_of(interface)),
        )?;
        let now = file.text()?;
        let mut all: BTreeMap<Key, String> = Key::ALL
            .into_iter()
            .filter(|key| !key.in_link_file())
            .filter_map(|key| Some((key, value_in(now, key)?)))
            .collect();
        all.extend(sets.clone());
        let path = known.path(interface)?;
        let mut matches = vec![("ENV{ID_PATH}", path)];
        matches.extend(known.driver().map(|driver| ("ENV{ID_NET_DRIVER}", driver)));
        matches.extend(address.map(|address| ("ATTR{address}", address)));
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"*?[|$%\\".contains(&byte);
        if let Some((name, value)) = matches.iter().find(|(_, value)| !value.bytes().all(plain)) {
            return Err(Trouble::invalid(format!(
                "{name} of {interface} is `{value}`, by which no rule of udev can name it"
            )));
        }
        let mut text = "# Written by gpufleet.\n".to_owned();
        let mut rule: Vec<String> = ["ACTION==\"add\"", "SUBSYSTEM==\"net\""].map(str::to_owned).into();
        rule.extend(matches.iter().map(|(name, value)| format!("{name}==\"{value}\"")));
        // `udevadm trigger --action=add` is no new card, and mlx5_core takes the link down for the same error correction too
        // (kernel, mellanox/mlx5/core/en_ethtool.c, `mlx5e_set_fecparam`).
        rule.push(format!("ENV{{{DONE}}}!=\"1\", ENV{{{DONE}}}=\"1\""));
        let own = |key: &Key, value: &str| format!("{OWN}{} {value}\n", key.shown());
        for (key, value) in &all {
            let (program, arguments) = match key {
                Key::Fec => (Ethtool::find(node)?.program().to_owned(), fec_arguments("$name", value)),
                Key::Pfc => (Dcb::find(node)?.program().to_owned(), dcb::pfc_arguments("$name", value)),
                Key::Trust => {
                    // An earlier task set it, and this one does not ask by what.
                    let by = match trust {
                        Some(by) => Some(by),
                        None => dcb::trust(node, interface, known.driver())?.map(|(_, by)| by),
                    };
                    match by.map(|by| dcb::trust_arguments("$name", value, by)) {
                        Some(Some(arguments)) => (Dcb::find(node)?.program().to_owned(), arguments),
                        Some(None) => {
                            text.push_str(&own(key, value));
                            rule.push(format!("ATTR{{qos/trust}}=\"{value}\""));
                            continue;
                        }
                        // The driver of now knows none.
                        None => continue,
                    }
                }
                _ => continue,
            };
            text.push_str(&own(key, value));
            rule.push(format!("RUN+=\"{} {}\"", program.display(), arguments.join(" ")));
        }
        // An event leaves in the database what it sets, and no more, so that each one takes it over. A line of its own,
        // because an import of nothing is no match (udev(7)).
        text.push_str(&format!("SUBSYSTEM==\"net\", IMPORT{{db}}=\"{DONE}\"\n"));
        text.push_str(&rule.join(", "));
        text.push('\n');
        Ok(Self { file, text })
    }
}

/// Returns the arguments of ethtool that set the error correction.
pub fn fec_arguments(interface: &str, wanted: &str) -> Vec<String> {
    ["--set-fec", interface, "encoding", wanted].map(str::to_owned).into()
}
