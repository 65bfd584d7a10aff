//! What the helper leaves on a node: the state directory with lock, spool and record.

pub mod record;

pub use record::Record;
