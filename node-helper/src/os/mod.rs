//! The operating system below the kinds: users, files, and the roots of the node's trees.

pub mod attributes;
pub mod checksum;
pub mod civil;
pub mod diff;
pub mod dumps;
pub mod environment;
pub mod files;
pub mod glob;
pub mod lines;
pub mod mode;
pub mod paths;
pub mod reload;
pub mod roots;
pub mod trail;
pub mod tree;
pub mod units;
pub mod users;
