//! The operating system beneath the kinds: users, files, and where the node's trees are.

pub mod attributes;
pub mod checksum;
pub mod civil;
pub mod diff;
pub mod dumps;
pub mod environment;
pub mod files;
pub mod glob;
pub mod mode;
pub mod paths;
pub mod roots;
pub mod trail;
pub mod tree;
pub mod users;
