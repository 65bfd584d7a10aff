//! The sign that we leave at a scheduler.
//!
//! Owns its one spelling. Invariant: what is displayed is parsed back to the same, and nothing else is taken for a marker.

use std::fmt;

use serde::Serialize;

const PREFIX: &str = "gpufleet:";

/// Whose drain it is: a run and one drain of it. Shown as `gpufleet:RUN:NONCE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Marker {
    pub run: String,
    pub nonce: String,
}

impl Marker {
    /// Finds a marker at the start of a text; blanks or the end of the text must follow it.
    pub fn parse(text: &str) -> Option<Self> {
        let token = text.strip_prefix(PREFIX)?.split_whitespace().next()?;
        // Why: `split_whitespace` skips leading blanks, which no marker has.
        if !text.strip_prefix(PREFIX)?.starts_with(token) {
            return None;
        }
        let (run, nonce) = token.split_once(':')?;
        (is_word(run) && is_word(nonce)).then(|| Self { run: run.to_owned(), nonce: nonce.to_owned() })
    }

    /// Finds a marker that is a word of a text, such as `drained by root: gpufleet:RUN:NONCE mig layout`.
    pub fn find(text: &str) -> Option<Self> {
        text.split_whitespace()
            .find_map(|word| Self::parse(word.trim_matches([',', ';', '"', '\'', '(', ')'])))
    }

    /// Whether this marker can be written at a scheduler and read back as the same.
    pub fn is_writable(&self) -> bool {
        is_word(&self.run) && is_word(&self.nonce)
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{}:{}", self.run, self.nonce)
    }
}

/// Letters, digits, `.`, `_` and `-` only: nothing that a shell or a scheduler reads as its own.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_whole_marker_at_the_start_counts() {
        let marker = Marker { run: "01J".into(), nonce: "a-1".into() };
        for text in ["gpufleet:01J:a-1", "gpufleet:01J:a-1 mig layout", "gpufleet:01J:a-1 : reboot issued"] {
            assert_eq!(Marker::parse(text), Some(marker.clone()), "{text}");
        }
        for text in [
            "",
            "gpufleet",
            "gpufleet:",
            "gpufleet:01J",
            "gpufleet:01J:",
            "gpufleet::a",
            "gpufleet: 01J:a",
            "gpufleet:01J:a:b",
            "gpufleet:01J:a|b",
            "bad DIMM gpufleet:01J:a-1",
            " gpufleet:01J:a-1",
        ] {
            assert_eq!(Marker::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_marker_is_found_within_a_sentence() {
        let marker = Marker { run: "01J".into(), nonce: "a-1".into() };
        for text in ["gpufleet:01J:a-1", "held by gpufleet:01J:a-1", "drained by root (gpufleet:01J:a-1) mig"]
        {
            assert_eq!(Marker::find(text), Some(marker.clone()), "{text}");
        }
        for text in ["", "alice: bad DIMM", "xgpufleet:01J:a-1", "gpufleet: 01J:a"] {
            assert_eq!(Marker::find(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(run in "[A-Za-z0-9._-]{1,40}", nonce in "[A-Za-z0-9._-]{1,40}", rest in "( .*)?") {
            let marker = Marker { run, nonce };
            prop_assert!(marker.is_writable());
            prop_assert_eq!(Marker::parse(&format!("{marker}{rest}")), Some(marker));
        }

        #[test]
        fn no_text_panics(text in "(gpufleet:)?\\PC*") {
            if let Some(marker) = Marker::parse(&text) {
                prop_assert!(text.starts_with(&marker.to_string()));
            }
        }
    }
}
