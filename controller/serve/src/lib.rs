//! `gpufleet serve`: read-only web pages over the history of audits and the records of runs.
//!
//! | module | owns | must not know |
//! |---|---|---|
//! | `listener` | sockets, TLS, limits of connections, the end | what is served |
//! | `access` | who may read: host names, token, cookie | pages |
//! | `reply` | headers of every answer, ETag, compression | what it is about |
//! | `routes` | addresses, and what answers them | how it looks |
//! | `view` | what pages show, computed from rows: pure | HTTP, templates |
//! | `pages` | templates; all text in them is escaped | HTTP |
//! | `live` | runs under way, followed once for all who watch | how a journal is read |
//!
//! The crate reads: it has no way to change the history, a run or a node. What it shows of runs comes through [`Runs`],
//! because journals belong to `gpufleet`.

mod access;
mod error;
mod fleet_cache;
mod listener;
mod live;
mod pages;
mod places;
mod reply;
mod routes;
mod runs;
mod view;

pub use access::{Access, TokenError};
pub use error::ServeError;
pub use listener::{Server, TlsFiles};
pub use routes::Site;
pub use runs::{Follow, LiveNode, LiveRun, Mood, RunLine, RunStanding, Runs, RunsError};
