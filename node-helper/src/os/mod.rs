//! The operating system beneath the kinds: users, files, and where the node's trees are.

pub mod users;
