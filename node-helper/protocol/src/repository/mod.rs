//! The files that say where packages come from, and the keys that sign them. Pure: text and bytes in, typed values out.
//!
//! The controller checks what a task declares with the readers that the helper uses on the node's files.

pub mod deb822;
pub mod openpgp;
pub mod repo_file;
pub mod sources;
