//! What an interface of Ethernet makes of priorities (data center bridging): which of them it pauses one by one (PFC),
//! and by what it tells them apart (trust).
//!
//! Read and set with `dcb` of iproute2. Trust has three ways: a file of NVIDIA's drivers outside the kernel, `dcb
//! apptrust` of newer drivers, and for mlx5_core of the kernel the entries of DSCP themselves.

use std::path::PathBuf;

use super::{knobs, tool};
use crate::declare::{Node, Trouble};

/// Largest answer of `dcb`, in bytes.
const LARGEST: usize = 64 * 1024;
/// The driver whose first entry of DSCP makes it trust DSCP, and whose last one that goes makes it trust PCP again.
/// Source: kernel, mellanox/mlx5/core/en_dcbnl.c, `mlx5e_dcbnl_ieee_setapp` and `mlx5e_dcbnl_ieee_delapp`.
const BY_ENTRIES: &str = "mlx5_core";

/// By what a driver is told what to trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustBy {
    /// `qos/trust` of the interface in sysfs (MLNX_OFED, DOCA).
    File,
    AppTrust,
    /// Entries of DSCP.
    Entries,
}

/// Returns the file of sysfs with what an interface trusts.
pub fn trust_file(interface: &str) -> String {
    format!("/sys/class/net/{interface}/qos/trust")
}

/// Reads `prio-pfc 0:off 1:off 2:off 3:on …`. Source: iproute2, dcb/dcb_pfc.c.
fn priorities(text: &str) -> Option<Vec<u8>> {
    let mut words = text.split_whitespace().skip_while(|word| *word != "prio-pfc").skip(1);
    let mut found = Vec::new();
    let mut count = 0;
    while let Some((number, state)) = words.next().and_then(|word| word.split_once(':')) {
        let (Ok(number), "on" | "off") = (number.parse::<u8>(), state) else { break };
        count += 1;
        if state == "on" {
            found.push(number);
        }
    }
    (count > 0).then_some(found)
}

/// The program `dcb`.
pub struct Dcb(PathBuf);

impl Dcb {
    /// # Errors
    /// If the node does not have it.
    pub fn find(node: &Node<'_>) -> Result<Self, Trouble> {
        tool::find(node, "dcb", "iproute2 5.11 and later bring it").map(Self)
    }

    pub fn program(&self) -> &std::path::Path {
        &self.0
    }

    /// Asks; none if the driver has no DCB, or the program is too old for the question.
    fn ask(&self, node: &Node<'_>, arguments: &[&str]) -> Result<Option<String>, Trouble> {
        let done = tool::ask(node, &tool::run(node, &self.0).args(arguments).limit(LARGEST))?;
        if done.exit.success() {
            return Ok(Some(done.stdout()));
        }
        let said = done.stderr();
        // Source: iproute2, dcb/dcb.c, `__dcb_get_attribute` and `dcb_help`. Of an answer without the attribute it says
        // `Attribute not found: ` and what an earlier call failed with.
        match ["not supported", "Attribute not found", "is unknown"].iter().any(|text| said.contains(text)) {
            true => Ok(None),
            false => Err(Trouble::io(done.complaint(&format!("dcb {}", arguments.join(" "))))),
        }
    }

    /// Returns the priorities that are paused one by one, sorted; none where the driver has no DCB.
    ///
    /// # Errors
    /// If the answer cannot be read.
    pub fn pfc(&self, node: &Node<'_>, interface: &str) -> Result<Option<Vec<u8>>, Trouble> {
        let Some(text) = self.ask(node, &["pfc", "show", "dev", interface])? else { return Ok(None) };
        let untold = || Trouble::io(format!("dcb pfc show dev {interface} tells no priorities"));
        priorities(&text).map(Some).ok_or_else(untold)
    }

    /// # Errors
    /// If the driver does not take it.
    pub fn set(&self, node: &Node<'_>, arguments: &[String]) -> Result<(), Trouble> {
        let what = format!("dcb {}", arguments.join(" "));
        tool::act(node, &tool::run(node, &self.0).args(arguments), &what).map(drop)
    }
}

/// Returns what an interface trusts, `dscp` or `pcp`, and what tells it so; none where its driver has no such setting.
///
/// # Errors
/// If it cannot be read.
pub fn trust(
    node: &Node<'_>,
    interface: &str,
    driver: Option<&str>,
) -> Result<Option<(String, TrustBy)>, Trouble> {
    let path = trust_file(interface);
    match knobs::value(node, &path)? {
        Some(word) if matches!(word.as_str(), "pcp" | "dscp") => return Ok(Some((word, TrustBy::File))),
        Some(_) => return Err(Trouble::io(format!("{path} holds something else than pcp or dscp"))),
        None => {}
    }
    let dcb = Dcb::find(node)?;
    if let Some(text) = dcb.ask(node, &["apptrust", "show", "dev", interface])? {
        // `order: dscp pcp`: the first one counts where both are there.
        let first = text.split_whitespace().find(|word| matches!(*word, "dscp" | "pcp"));
        let word = first.unwrap_or("none").to_owned();
        return Ok(Some((word, TrustBy::AppTrust)));
    }
    if driver != Some(BY_ENTRIES) {
        return Ok(None);
    }
    let entries = dcb.ask(node, &["-N", "app", "show", "dev", interface, "dscp-prio"])?;
    Ok(entries.map(|text| {
        let has_any = text.split_whitespace().any(|word| word.contains(':'));
        (if has_any { "dscp" } else { "pcp" }.to_owned(), TrustBy::Entries)
    }))
}

/// Returns priorities in the words of a task.
pub fn word(priorities: &[u8]) -> String {
    match priorities {
        [] => "none".to_owned(),
        list => list.iter().map(u8::to_string).collect::<Vec<_>>().join(","),
    }
}

/// Returns the arguments of `dcb` that pause these priorities, such as `3,4` or `none`, and no others.
pub fn pfc_arguments(interface: &str, wanted: &str) -> Vec<String> {
    let fixed = ["pfc", "set", "dev", interface, "prio-pfc", "all:off"].map(str::to_owned);
    let on = wanted.split(',').filter(|word| *word != "none").map(|priority| format!("{priority}:on"));
    fixed.into_iter().chain(on).collect()
}

/// Returns the arguments of `dcb` that let an interface trust this; none where a file does it.
pub fn trust_arguments(interface: &str, wanted: &str, by: TrustBy) -> Option<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match (by, wanted) {
        (TrustBy::File, _) => None,
        (TrustBy::AppTrust, _) => Some(words(&["apptrust", "set", "dev", interface, "order", wanted])),
        (TrustBy::Entries, "dscp") => {
            // The upper three bits of DSCP are the priority, as the card has it by itself (RFC 2474, class selectors).
            let entries = (0..64).map(|dscp| format!("{dscp}:{}", dscp >> 3));
            Some(
                words(&["app", "replace", "dev", interface, "dscp-prio"])
                    .into_iter()
                    .chain(entries)
                    .collect(),
            )
        }
        (TrustBy::Entries, _) => Some(words(&["app", "flush", "dev", interface, "dscp-prio"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn priorities_are_read_as_dcb_writes_them() {
        let text =
            "pfc-cap 8 macsec-bypass off delay 0 \nprio-pfc 0:off 1:off 2:off 3:on 4:on 5:off 6:off 7:off \n";
        assert_eq!(priorities(text), Some(vec![3, 4]));
        assert_eq!(priorities("prio-pfc 0:off 1:off"), Some(vec![]));
        assert_eq!(priorities("pfc-cap 8"), None);
        assert_eq!(pfc_arguments("eth0", "3,4").join(" "), "pfc set dev eth0 prio-pfc all:off 3:on 4:on");
        assert_eq!(pfc_arguments("eth0", "none").join(" "), "pfc set dev eth0 prio-pfc all:off");
    }

    #[test]
    fn trust_is_read_in_three_ways() {
        let bench = Bench::new();
        let read = |driver| bench.node(|node| trust(node, "eth0", driver));
        // As iproute2 6.1 with a driver that has no DCB, measured on lo.
        bench.script(
            "usr/sbin/dcb",
            "#!/bin/sh\ncase $1 in apptrust) echo 'Object \"apptrust\" is unknown' >&2;; \
             *) echo 'Attribute read: Operation not supported' >&2;; esac\nexit 1\n",
        );
        assert_eq!(read(Some("igb")).unwrap(), None);
        assert_eq!(read(Some("mlx5_core")).unwrap(), None);
        // A driver with DCB answers without what it does not know.
        let lacking = "#!/bin/sh\necho 'Attribute not found: Success' >&2\nexit 1\n";
        bench.script("usr/sbin/dcb", lacking);
        assert_eq!(read(Some("bnxt_en")).unwrap(), None);
        assert_eq!(bench.node(|node| Dcb::find(node).unwrap().pfc(node, "eth0")).unwrap(), None);
        bench.script(
            "usr/sbin/dcb",
            "#!/bin/sh\ncase $* in apptrust*) echo 'Attribute not found: No such file or directory' >&2; exit 1;; \
             '-N app show dev eth0 dscp-prio') cat $(dirname $0)/../../apps;; esac\n",
        );
        bench.write("apps", "");
        assert_eq!(read(Some("mlx5_core")).unwrap(), Some(("pcp".to_owned(), TrustBy::Entries)));
        bench.write("apps", "dscp-prio 0:0 26:3 \n");
        assert_eq!(read(Some("mlx5_core")).unwrap(), Some(("dscp".to_owned(), TrustBy::Entries)));
        bench.script("usr/sbin/dcb", "#!/bin/sh\nprintf 'order: pcp dscp \\n\\n'\n");
        assert_eq!(read(Some("igb")).unwrap(), Some(("pcp".to_owned(), TrustBy::AppTrust)));
        bench.write("sys/class/net/eth0/qos/trust", "dscp\n");
        assert_eq!(read(None).unwrap(), Some(("dscp".to_owned(), TrustBy::File)));
        let entries = trust_arguments("eth0", "dscp", TrustBy::Entries).unwrap().join(" ");
        assert!(entries.starts_with("app replace dev eth0 dscp-prio 0:0 1:0 "), "{entries}");
        assert!(entries.ends_with(" 26:3 27:3 28:3 29:3 30:3 31:3 32:4 33:4 34:4 35:4 36:4 37:4 38:4 39:4 40:5 41:5 42:5 43:5 44:5 45:5 46:5 47:5 48:6 49:6 50:6 51:6 52:6 53:6 54:6 55:6 56:7 57:7 58:7 59:7 60:7 61:7 62:7 63:7"));
    }
}
