//! What `ethtool` tells of a card, and what it sets.
//!
//! Why the program and not the ioctl: newer settings exist in netlink only, the program knows both, and the node has it
//! wherever somebody looks after such cards.

use std::path::PathBuf;

use crate::{
    declare::{Node, Trouble},
    tasks::tool,
};

/// Largest answer, in bytes.
const LARGEST: usize = 64 * 1024;

/// A number of now, and the largest that the card takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounded {
    pub now: u32,
    pub most: Option<u32>,
}

pub struct Ethtool(PathBuf);

/// Returns a number below a heading such as `Current hardware settings:`; none if it is `n/a` or not there.
fn below(text: &str, heading: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != heading).skip(1);
    let line = lines.by_ref().take_while(|line| !line.ends_with(':')).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found == name).then_some(value)
    })?;
    line.trim().parse().ok()
}

fn bounded(text: &str, name: &str) -> Option<Bounded> {
    let now = below(text, "Current hardware settings:", name)?;
    Some(Bounded { now, most: below(text, "Pre-set maximums:", name) })
}

/// Returns a line of `ethtool -a`.
fn flag(text: &str, name: &str) -> Option<bool> {
    let of = |line: &str| {
        let (found, value) = line.trim().split_once(':')?;
        (found == name).then(|| value.trim() == "on")
    };
    text.lines().find_map(of)
}

fn pause(text: &str) -> Option<Pause> {
    let (rx, tx) = flag(text, "RX").zip(flag(text, "TX"))?;
    let negotiated = flag(text, "Autonegotiate").unwrap_or_default();
    let agreed = flag(text, "RX negotiated").zip(flag(text, "TX negotiated"));
    Some(Pause { negotiated, rx, tx, agreed })
}

/// Reads `Configured FEC encodings: Auto`, since ethtool 5.13 `Supported/Configured FEC encodings:`. What is active counts
/// for nothing here: it is what both ends agreed on.
fn fec(text: &str) -> Option<String> {
    let (_, words) = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.ends_with("Configured FEC encodings"))?;
    let words: Vec<String> = words.split_whitespace().map(str::to_ascii_lowercase).collect();
    match words.as_slice() {
        [] => None,
        // The kernel lists what is left to choose from beside it.
        words if words.iter().any(|word| word == "auto") => Some("auto".to_owned()),
        words => Some(words.join("+")).filter(|text| text != "none"),
    }
}

/// Pause frames as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub negotiated: bool,
    pub rx: bool,
    pub tx: bool,
    /// What both sides agreed on, in the two directions; none without negotiation.
    pub agreed: Option<(bool, bool)>,
}

impl Pause {
    /// Returns what counts, in a word: `on`, `off`, `rx` or `tx`. With negotiation, `rx` and `tx` are only what is offered;
    /// nothing is agreed on without a link.
    pub const fn word(self, has_link: bool) -> &'static str {
        let counts = match self.agreed {
            Some(agreed) if has_link && self.negotiated => agreed,
            _ => (self.rx, self.tx),
        };
        match counts {
            (true, true) => "on",
            (false, false) => "off",
            (true, false) => "rx",
            (false, true) => "tx",
        }
    }
}

impl Ethtool {
    /// # Errors
    /// If the node does not have it.
    pub fn find(node: &Node<'_>) -> Result<Self, Trouble> {
        tool::find(node, "ethtool", "`package: {name: ethtool}` installs it").map(Self)
    }

    /// Asks; none if the driver does not have these settings.
    fn ask(&self, node: &Node<'_>, option: &str, interface: &str) -> Result<Option<String>, Trouble> {
        let done = tool::ask(node, &tool::run(node, &self.0).args([option, interface]).limit(LARGEST))?;
        if done.exit.success() {
            return Ok(Some(done.stdout()));
        }
        match done.stderr().contains("not supported") {
            true => Ok(None),
            false => Err(Trouble::io(done.complaint(&format!("ethtool {option} {interface}")))),
        }
    }

    /// Returns receive and send ring; none where the driver has none.
    ///
    /// # Errors
    /// If the answer cannot be read.
    pub fn rings(
        &self,
        node: &Node<'_>,
        interface: &str,
    ) -> Result<(Option<Bounded>, Option<Bounded>), Trouble> {
        let text = self.ask(node, "-g", interface)?.unwrap_or_default();
        Ok((bounded(&text, "RX"), bounded(&text, "TX")))
    }

    /// Returns the combined channels; none where the driver has none.
    ///
    /// # Errors
    /// If the answer cannot be read.
    pub fn channels(&self, node: &Node<'_>, interface: &str) -> Result<Option<Bounded>, Trouble> {
        let text = self.ask(node, "-l", interface)?.unwrap_or_default();
        Ok(bounded(&text, "Combined"))
    }

    /// Returns the pause frames; none where the driver has none.
    ///
    /// # Errors
    /// If the answer cannot be read.
    pub fn pause(&self, node: &Node<'_>, interface: &str) -> Result<Option<Pause>, Trouble> {
        let text = self.ask(node, "-a", interface)?.unwrap_or_default();
        Ok(pause(&text))
    }

    /// Returns the error correction that is set, in the words of `--set-fec`; none where the driver has none.
    ///
    /// # Errors
    /// If the answer cannot be read.
    pub fn fec(&self, node: &Node<'_>, interface: &str) -> Result<Option<String>, Trouble> {
        let text = self.ask(node, "--show-fec", interface)?.unwrap_or_default();
        Ok(fec(&text))
    }

    pub fn program(&self) -> &std::path::Path {
        &self.0
    }

    /// Sets something: an option, the interface, names and values.
    ///
    /// # Errors
    /// If the driver does not take it.
    pub fn set(&self, node: &Node<'_>, arguments: &[String]) -> Result<(), Trouble> {
        let what = format!("ethtool {}", arguments.join(" "));
        tool::act(node, &tool::run(node, &self.0).args(arguments), &what).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_by_their_headings() {
        let text = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t8192\nRX Mini:\tn/a\nTX:\t\t4096\n\
                    Current hardware settings:\nRX:\t\t1024\nRX Mini:\tn/a\nTX:\t\t512\n";
        assert_eq!(bounded(text, "RX"), Some(Bounded { now: 1024, most: Some(8192) }));
        assert_eq!(bounded(text, "TX"), Some(Bounded { now: 512, most: Some(4096) }));
        assert_eq!(bounded(text, "RX Mini"), None);
        assert_eq!(bounded("", "RX"), None);
        let pause =
            "Pause parameters for eth0:\nAutonegotiate:\ton\nRX:\t\toff\nTX:\t\ton\nRX negotiated:\ton\n";
        assert_eq!((flag(pause, "RX"), flag(pause, "TX")), (Some(false), Some(true)));
    }

    #[test]
    fn error_correction_is_what_is_set_and_not_what_is_active() {
        let of =
            |words: &str| fec(&format!("FEC parameters for eth0:\n{words}\nActive FEC encoding: BaseR\n"));
        assert_eq!(of("Configured FEC encodings: RS").as_deref(), Some("rs"));
        assert_eq!(of("Supported/Configured FEC encodings: Auto RS").as_deref(), Some("auto"));
        assert_eq!(of("Configured FEC encodings: RS BaseR").as_deref(), Some("rs+baser"));
        assert_eq!(of("Configured FEC encodings: None"), None);
        assert_eq!(fec(""), None);
    }

    #[test]
    fn what_both_sides_agreed_on_counts() {
        let word = |text: &str, has_link| pause(text).unwrap().word(has_link);
        let agreed = "Autonegotiate:\ton\nRX:\t\ton\nTX:\t\ton\nRX negotiated:\toff\nTX negotiated:\toff\n";
        assert_eq!((word(agreed, true), word(agreed, false)), ("off", "on"));
        assert_eq!(word("Autonegotiate:\ton\nRX:\t\ton\nTX:\t\ton\n", true), "on");
    }
}
