//! The session with one node: the helper that runs there, and the frames to and from it.
//!
//! Owns the bootstrap, the heartbeat and the pairing of requests with replies. Must not know playbooks or the meaning
//! of operations. Invariants: one connection and one helper process per node for the whole run; a result is complete
//! only when its reply frame arrived, never because the channel ended; every wait has a deadline.

mod actor;
mod blob;
mod bootstrap;
mod budget;
mod error;
mod fleet;
mod handle;
mod lists;
mod node_file;
mod opening;
mod weight;

pub use blob::{BlobContent, BlobSource, NoBlobs};
pub use budget::{LARGEST_ANSWER, LARGEST_RESULT, ResultBudget};
pub use error::{SessionError, StartError};
pub use fleet::Fleet;
pub use handle::{LockOutcome, NodeSession, SessionDeadlines, SessionOptions};
pub use node_file::{NodeFile, NodeFiles};
pub use opening::Stage;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use weight::weight;
