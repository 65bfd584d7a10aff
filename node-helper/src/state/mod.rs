//! What the helper keeps on a node: the state directory with lock, spool, record and jobs.

pub mod dir;
pub mod jobs;
pub mod local;
pub mod lock;
pub mod record;
pub mod spool;

pub use record::Record;
