//! Hosts, their groups and their variables.
//!
//! Owns inventory sources (INI, YAML, JSON, scripts, lists of hosts), `group_vars/` and `host_vars/`, the order in
//! which variables win, constructed groups, and host patterns. Must not know playbooks or connections; values stay as
//! written, and only constructed groups evaluate them. Invariants: a source that is not understood is an error with
//! its place, never a warning; a pattern that matches nothing is an error; the same sources always give the same
//! order of hosts.
//!
//! Semantics are those of ansible-core 2.19, except where it ignores mistakes silently; docs/design/0002-inventory.md
//! lists the differences.

mod address;
mod constructed;
mod draft;
mod ini;
mod literal;
mod load;
mod model;
mod name_regex;
mod pattern;
mod print;
mod python;
mod range;
mod script;
mod suspects;
mod tree;
mod var_files;
mod words;

pub use load::LoadOptions;
pub use model::{HostName, HostVars, Inventory};
pub use var_files::{given_vars, read_vars};

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
