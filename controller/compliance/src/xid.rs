//! Error codes of the driver (Xid) by what they ask of a node, as rules name them.
//!
//! The kinds are those of the checks of group `err`. What asks for a reset or a reboot, and what the driver's own words make of
//! a line, is the protocol's table, which the health gate reads too; this one adds what that table does not tell apart.

use gpufleet_protocol::xid::{Asks, Said, asks, is_nvlink, said};

/// What a code is a sign of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A GPU that only a reset brings back.
    Reset,
    /// A GPU that only a new boot brings back.
    Reboot,
    /// A memory error, to be read with remapping and the recovery action.
    Memory,
    /// A program's own error, or what follows from one.
    App,
    /// NVLink of Blackwell: the sub-code decides, and so does the recovery action.
    Nvlink,
    /// One of these that the driver calls fatal.
    NvlinkFatal,
    /// A part of the machine, such as a power connector.
    Hardware,
    /// The driver or what runs beside it.
    Software,
    /// What tells something without asking for anything.
    Information,
    /// A code that NVIDIA's catalogue leaves to people, or that is not in it.
    Investigate,
}

/// The kinds by the names that rules give them.
pub(crate) const KINDS: [(&str, Kind); 10] = [
    ("reset", Kind::Reset),
    ("reboot", Kind::Reboot),
    ("memory", Kind::Memory),
    ("app", Kind::App),
    ("nvlink", Kind::Nvlink),
    ("nvlink_fatal", Kind::NvlinkFatal),
    ("hardware", Kind::Hardware),
    ("software", Kind::Software),
    ("information", Kind::Information),
    ("investigate", Kind::Investigate),
];

impl Kind {
    /// Whether a line with this code and text is of this kind. The driver's own words come before the table: what it
    /// calls caused by an earlier error, or an NVLink code that it calls not fatal, asks for nothing by itself.
    pub fn takes(self, code: u32, text: &str) -> bool {
        let said = said(code, text);
        let is = match said {
            Said::Follows | Said::Nonfatal => Self::Information,
            Said::Fatal | Said::Nothing => Self::of(code),
        };
        is == self || self == Self::NvlinkFatal && said == Said::Fatal
    }

    /// Returns the kind of a code.
    pub const fn of(code: u32) -> Self {
        match code {
            48 | 63 | 64 | 94 | 95 => Self::Memory,
            54 | 142 => Self::Hardware,
            78 => Self::Software,
            // IGNORE of the catalogue. 154 is the recovery action, which is read by itself; 171 and 172 only tell
            // where a 48 was; 160 is memory marked for repair, which has its own check; 162 to 165 concern circuits
            // for power smoothing.
            14
            | 37
            | 38
            | 44
            | 66
            | 67
            | 92
            | 93
            | 106..=108
            | 121
            | 137
            | 141
            | 152..=154
            | 157
            | 160..=165
            | 171
            | 172 => Self::Information,
            _ if is_nvlink(code) => Self::Nvlink,
            _ => match asks(code) {
                Asks::Reset => Self::Reset,
                Asks::Reboot => Self::Reboot,
                // A program's error, or what follows from one: 43 and 45.
                Asks::Nothing => Self::App,
                Asks::Driver | Asks::Investigate => Self::Investigate,
            },
        }
    }

    /// Returns the name that rules give it.
    pub fn word(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("investigate", |(word, _)| word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_codes_and_a_name() {
        for (name, kind) in KINDS {
            assert!((0..400).any(|code| kind.takes(code, "NETIR_LINK_EVT Fatal XC0")), "{name}");
        }
    }

    #[test]
    fn codes_of_programs_never_count_against_the_node() {
        for code in [13, 31, 43, 45, 68, 69, 80] {
            assert_eq!(Kind::of(code), Kind::App, "{code}");
        }
        for code in [79, 119, 999] {
            assert!(!matches!(Kind::of(code), Kind::App | Kind::Information), "{code}");
        }
    }
}
