//! `user` and `group`: the entries of /etc/passwd, /etc/group and /etc/shadow, changed by the distribution's own tools.
//!
//! The files are read directly; a prediction passes its own version of them to later tasks.

mod database;
mod group;
#[cfg(test)]
mod tests;
mod user;
