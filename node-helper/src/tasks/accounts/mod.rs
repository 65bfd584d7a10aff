//! `user` and `group`: what /etc/passwd, /etc/group and /etc/shadow say, changed by the distribution's own tools.
//!
//! The files are read as they are; a prediction leaves its own version of them to the tasks behind it.

mod database;
mod group;
#[cfg(test)]
mod tests;
mod user;
