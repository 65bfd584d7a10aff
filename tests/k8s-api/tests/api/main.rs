//! The server over real TLS: its replies, its cluster, its faults.

mod client;
mod cluster;
mod endings;
mod faults;
mod lab;
mod logins;
mod transcripts;
mod watches;
