//! What pages show, computed from rows of the history. Pure: the time comes from the caller.

mod axis;
mod chart;
mod check;
mod fleet;
mod next;
mod node;
mod open;
mod order;
mod timeline;

pub(crate) use axis::Axis;
pub(crate) use check::{CheckView, check_lines};
pub(crate) use fleet::{Asked, FleetView, Order};
pub(crate) use node::NodeView;

use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;

/// A moment for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Moment {
    /// RFC 3339.
    iso: String,
    text: String,
}

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        let text = at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M UTC").to_string();
        Self { iso: at.to_string(), text }
    }
}

/// Returns the address of something by its name.
pub(crate) fn address(folder: &str, name: &str) -> String {
    let mut out = format!("/{folder}/");
    for byte in name.bytes() {
        // Why dots too where there is nothing else: browsers take `..` for the folder above.
        let dots = byte == b'.' && name.bytes().all(|byte| byte == b'.');
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(byte)),
            b'.' if !dots => out.push('.'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Returns the beginning of a text, of at most this many characters.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_addresses_stay_in_their_place() {
        assert_eq!(address("nodes", "gpu001.rack3"), "/nodes/gpu001.rack3");
        assert_eq!(address("nodes", "a/../b"), "/nodes/a%2F..%2Fb");
        assert_eq!(address("nodes", ".."), "/nodes/%2E%2E");
        assert_eq!(address("checks", "site.yaml:14:7?x#y"), "/checks/site.yaml%3A14%3A7%3Fx%23y");
        assert_eq!(address("nodes", "\"><é"), "/nodes/%22%3E%3C%C3%A9");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(beginning("äöü", 2), "äö…");
        assert_eq!(beginning("äöü", 3), "äöü");
    }
}
