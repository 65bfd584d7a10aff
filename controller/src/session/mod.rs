//! One node's session: the helper that runs there, and the frames to and from it.
//!
//! Owns the bootstrap, the heartbeat and the pairing of requests with replies. It knows neither playbooks nor what an
//! operation means. Invariants: one connection and one helper process a node for the whole run; a result is complete
//! only when its reply frame arrived, never because the channel ended; every wait has a deadline.

mod actor;
mod blob;
mod bootstrap;
mod error;
mod handle;
mod node_file;
mod opening;

pub use blob::{BlobContent, BlobSource, NoBlobs};
pub use error::{SessionError, StartError};
pub use handle::{LockOutcome, NodeSession, SessionDeadlines, SessionOptions};
pub use node_file::{NodeFile, NodeFiles};
pub use opening::Stage;
