//! Real OpenSSH daemons on loopback, each with its own HOME, configuration and keys.
//!
//! Needs `sshd`, `ssh-keygen`, `ssh-agent` and `sudo`: `apt-get install openssh-server openssh-client sudo`. Tests of
//! passwords and sudo create a system user with a random name and password and delete it again; they fail with a
//! message unless root runs them.

mod authentication;
mod bad_nodes;
mod fake_helper;
mod host_keys;
mod login;
mod node;
mod real_helper;
mod routes;
mod sessions;
mod shells;
mod simulated;
mod users;
