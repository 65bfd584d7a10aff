//! What the helper leaves on a node: the state directory with lock, spool and record.

pub mod dir;
pub mod local;
pub mod lock;
pub mod record;
pub mod spool;

pub use record::Record;
