//! The link of an interface: what `ip` tells of it, and waiting until it is back after a change.

use std::{
    fs,
    time::{Duration, Instant},
};

use gpufleet_protocol::FailureKind;
use serde_json::Value;

use super::file;
use crate::{
    declare::{Node, Trouble},
    tasks::{knobs, tool},
};

/// Time for a link to come back.
const LINK: Duration = if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(60) };
/// So long it has to stay: a driver may take it down only after it has taken the setting.
const STEADY: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(2) };
const LARGEST: usize = 256 * 1024;

/// What `ip -d link` tells of an interface.
#[derive(Debug, Default)]
pub struct Told {
    /// Least and largest MTU, in bytes.
    pub least: Option<u32>,
    pub most: Option<u32>,
    /// The address that the card was made with, if it differs from the one that it has.
    pub permanent: Option<String>,
    /// The sort of a virtual interface, such as `openvswitch`.
    pub sort: Option<String>,
    /// The sort of what it is a member of, such as `team`.
    pub member_of: Option<String>,
}

impl Told {
    /// Asks; empty where there is no `ip`, or it tells nothing.
    ///
    /// # Errors
    /// If it does not answer in time.
    pub fn read(node: &Node<'_>, name: &str) -> Result<Self, Trouble> {
        let Some(program) = node.roots.tool("ip") else { return Ok(Self::default()) };
        let run = tool::run(node, program).args(["-d", "-j", "link", "show", "dev", name]).limit(LARGEST);
        let done = tool::ask(node, &run)?;
        let read: Value = serde_json::from_str(&done.stdout()).unwrap_or_default();
        let of = |path: &str| read.pointer(&format!("/0/{path}"));
        let number = |path: &str| {
            let number = of(path)?.as_u64().filter(|number| *number > 0)?;
            u32::try_from(number).ok()
        };
        let word = |path: &str| of(path)?.as_str().map(str::to_owned);
        Ok(Self {
            least: number("min_mtu"),
            most: number("max_mtu"),
            permanent: word("permaddr"),
            sort: word("linkinfo/info_kind"),
            member_of: word("linkinfo/info_slave_kind"),
        })
    }
}

impl Told {
    /// Whether an MTU is above the largest.
    pub fn is_above(&self, bytes: &str) -> bool {
        self.most.zip(bytes.parse::<u32>().ok()).is_some_and(|(most, bytes)| bytes > most)
    }
}

/// Whether an interface has a link; not if it is down, where the kernel does not tell (EINVAL).
pub fn has_carrier(node: &Node<'_>, name: &str) -> bool {
    let read = fs::read_to_string(node.roots.path(file(name, "carrier")));
    read.is_ok_and(|text| text.trim() == "1")
}

fn is_up(node: &Node<'_>, name: &str) -> Result<bool, Trouble> {
    Ok(knobs::value(node, &file(name, "operstate"))?.as_deref() == Some("up"))
}

/// A card whose settings are being changed, and its link before that.
pub struct Touched {
    pub name: String,
    had_carrier: bool,
    was_up: bool,
}

impl Touched {
    /// # Errors
    /// If its state cannot be read.
    pub fn before(node: &Node<'_>, name: &str) -> Result<Self, Trouble> {
        let (had_carrier, was_up) = (has_carrier(node, name), is_up(node, name)?);
        Ok(Self { name: name.to_owned(), had_carrier, was_up })
    }

    fn is_back(&self, node: &Node<'_>) -> Result<bool, Trouble> {
        Ok(has_carrier(node, &self.name) && (!self.was_up || is_up(node, &self.name)?))
    }

    /// Waits until a link that was there is there again, and stays.
    ///
    /// # Errors
    /// If it does not come back in time.
    pub fn wait(&self, node: &Node<'_>) -> Result<(), Trouble> {
        if !self.had_carrier {
            return Ok(());
        }
        let began = Instant::now();
        let mut since = None;
        loop {
            node.check_time()?;
            match self.is_back(node)? {
                true if since.get_or_insert_with(Instant::now).elapsed() >= STEADY => return Ok(()),
                true => {}
                false => since = None,
            }
            // Only a link that is gone is late.
            if since.is_none() && began.elapsed() > LINK {
                let message = format!(
                    "{} was set, and its link, which was up before, is not {} s later; no other interface was set after it, \
                     and a reboot brings the settings of before back; look at the cable and the switch's port",
                    self.name,
                    LINK.as_secs()
                );
                return Err(Trouble::failed(FailureKind::Unconverged, message));
            }
            std::thread::sleep(Duration::from_millis(if cfg!(test) { 20 } else { 200 }));
        }
    }
}
