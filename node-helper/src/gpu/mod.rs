//! The GPUs of a node: facts, plans, changes, and whether anybody uses them.

mod clients;
mod facts;
mod host;
mod idle;
mod machine;
mod mps;
mod state;
mod worker;
