//! Whether a daemon may be restarted.

use super::words::words;

words! { #[derive(Default)] DaemonRestart {
    #[default] IfNeeded: "if_needed",
    Never: "never",
} }
