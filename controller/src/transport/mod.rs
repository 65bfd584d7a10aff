//! Transport to a node: a byte channel to one command that runs there.
//!
//! Owns connection variables, `ssh_config` resolution, host keys, authentication, jump hosts and the three
//! transports: SSH in this process (russh), an OpenSSH subprocess, and the controller itself. Must not know what runs
//! on the channel; reads no environment variable and prints nothing. Invariants: every await has a deadline; a slow
//! or dead node holds no other node's permit; no secret is in a `Debug` or `Display` text; nothing but a [`HostName`]
//! or [`UserName`] is expanded into a command.

mod arguments;
mod authentication;
mod bastion;
mod channel;
mod classes;
mod connector;
mod environment;
mod error;
mod first_bytes;
mod handshake;
mod host_key;
mod identities;
mod known_hosts;
mod line;
mod names;
mod proxy_command;
mod settings;
mod short_scalar;
mod signing;
mod ssh_config;
mod subprocess;
mod target;

pub use arguments::{ArgumentError, SshOverrides};
pub use channel::{ByteChannel, ChannelEvent, ChannelReader, ChannelWriter, ExitStatus};
pub use connector::{Connector, ConnectorOptions, Deadlines, Route};
pub use environment::{Environment, NoPrompt, Prompt, PromptError, PromptRequest};
pub(crate) use error::printable;
pub use error::{ConnectError, Phase};
pub use host_key::{HostKeyError, HostKeyPolicy};
pub use line::{Line, LineError};
pub use names::{HostName, NameError, UserName};
pub use signing::SigningKey;
pub use target::{Become, Connection, SshTarget, Target, TargetDefaults, TargetError, Transport};
