//! Units of numbers: those of parameters and those of changes.

use serde::{Deserialize, Serialize};

macro_rules! units {
    ($($unit:ident: $symbol:literal, $counted:literal;)+) => {
        /// What a number counts; documents write its symbol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum Unit { $(#[serde(rename = $symbol)] $unit),+ }

        impl Unit {
            pub const fn symbol(self) -> &'static str {
                match self { $(Self::$unit => $symbol),+ }
            }

            /// What a number of it is called in a message, such as `a number of watts`.
            pub const fn counted(self) -> &'static str {
                match self { $(Self::$unit => $counted),+ }
            }
        }
    };
}

units! {
    Watts: "W", "a number of watts";
    Megahertz: "MHz", "a number of megahertz";
    Percent: "%", "a percentage";
    Bytes: "B", "a number of bytes";
    Kilohertz: "kHz", "a number of kilohertz";
    Microseconds: "µs", "a number of microseconds";
    Mebibytes: "MiB", "a number of mebibytes";
    Milliseconds: "ms", "a number of milliseconds";
    Seconds: "s", "a number of seconds";
    Minutes: "min", "a number of minutes";
    Days: "d", "a number of days";
}
