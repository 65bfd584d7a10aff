//! Why a node could not be reached: messages that name the node, the cause and the next step.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::host_key::HostKeyError;

/// The part of a connection that was in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Resolve,
    Tcp,
    Handshake,
    Authentication,
    Channel,
    Bootstrap,
    Sudo,
    Push,
    Hello,
    Lock,
    Operation,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolving the name",
            Self::Tcp => "connecting",
            Self::Handshake => "the SSH handshake",
            Self::Authentication => "authentication",
            Self::Channel => "opening a channel",
            Self::Bootstrap => "starting the helper",
            Self::Sudo => "sudo",
            Self::Push => "sending the helper",
            Self::Hello => "waiting for the helper",
            Self::Lock => "taking the node's lock",
            Self::Operation => "an operation",
        })
    }
}

/// Why there is no connection. Every message begins with the node's name.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{node}: its address{} cannot be resolved ({source}); check `ansible_host` or DNS", if host == node { String::new() } else { format!(" `{host}`") })]
    Resolve { node: String, host: String, source: std::io::Error },
    #[error("{node}: {address} refuses the connection; {}", refusal_hint(node))]
    Refused { node: String, address: String },
    #[error("{node}: {address} cannot be reached ({source}); check the network, the address and firewalls")]
    Unreachable { node: String, address: String, source: std::io::Error },
    #[error("{node}: {phase} with {address} took longer than {} s; {}", after.as_secs(), timeout_hint(*phase))]
    Timeout { node: String, address: String, phase: Phase, after: Duration },
    #[error("{node}: {address} does not speak SSH, it sent {received}; check the port")]
    NotSsh { node: String, address: String, received: String },
    #[error("{node}: {address} closed the connection during {phase}{}{}", detail_text(detail), closed_hint(*phase))]
    Closed { node: String, address: String, phase: Phase, detail: String },
    #[error("{node}: no common {what} with {address}: it offers {theirs}; try `--transport ssh`")]
    Negotiation { node: String, address: String, what: String, theirs: String },
    #[error("{node}: {source}")]
    HostKey {
        node: String,
        #[source]
        source: Box<HostKeyError>,
    },
    #[error(
        "{node}: user `{user}` was not let in; tried {tried}; the node takes {accepted}{}",
        notes_text(notes)
    )]
    Authentication { node: String, user: String, tried: String, accepted: String, notes: Vec<String> },
    #[error("{node}: the key {} cannot be used: {reason}", path.display())]
    Key { node: String, path: PathBuf, reason: String },
    #[error("{node}: the jump host {via} cannot be used: {source}")]
    Jump {
        node: String,
        via: String,
        #[source]
        source: Arc<ConnectError>,
    },
    #[error("{node}: the jump host {via} cannot reach {address}: {reason}")]
    JumpRefused {
        node: String,
        via: String,
        address: String,
        reason: String,
        /// Whether the jump host tried to connect and the node did not answer.
        tried: bool,
    },
    #[error("{node}: the proxy command `{command}` failed: {reason}")]
    ProxyCommand { node: String, command: String, reason: String },
    #[error("{node}: the SSH configuration cannot be used: {reason}")]
    Configuration { node: String, reason: String },
    #[error("{node}: the node opens no session: {reason}")]
    ChannelRefused { node: String, reason: String },
    #[error("{node}: `{program}` cannot be started: {source}")]
    Spawn { node: String, program: String, source: std::io::Error },
    #[error("{node}: SSH failed during {phase}: {reason}")]
    Protocol { node: String, phase: Phase, reason: String },
}

impl ConnectError {
    /// Whether a retry after a pause may help: sshd drops connections at random if many start at once.
    pub(crate) const fn is_start_limit(&self) -> bool {
        matches!(self, Self::Closed { phase: Phase::Handshake, .. })
    }

    /// Returns the node that could not be reached.
    pub fn node(&self) -> &str {
        match self {
            Self::Resolve { node, .. }
            | Self::Refused { node, .. }
            | Self::Unreachable { node, .. }
            | Self::Timeout { node, .. }
            | Self::NotSsh { node, .. }
            | Self::Closed { node, .. }
            | Self::Negotiation { node, .. }
            | Self::HostKey { node, .. }
            | Self::Authentication { node, .. }
            | Self::Key { node, .. }
            | Self::Jump { node, .. }
            | Self::JumpRefused { node, .. }
            | Self::ProxyCommand { node, .. }
            | Self::Configuration { node, .. }
            | Self::ChannelRefused { node, .. }
            | Self::Spawn { node, .. }
            | Self::Protocol { node, .. } => node,
        }
    }
}

fn refusal_hint(node: &str) -> &'static str {
    match node {
        "localhost" | "127.0.0.1" | "::1" => {
            "`-c local`, or `ansible_connection: local` in the inventory, works on this machine without SSH"
        }
        _ => "is sshd running there, and is the port right?",
    }
}

const fn timeout_hint(phase: Phase) -> &'static str {
    match phase {
        Phase::Tcp => "the node is down, or a firewall drops packets",
        Phase::Handshake => "something accepts connections there but does not answer: the node may hang",
        Phase::Authentication => "directory services or PAM on the node may hang",
        _ => "the node may be overloaded or hang",
    }
}

const fn closed_hint(phase: Phase) -> &'static str {
    match phase {
        Phase::Handshake => {
            "; sshd may limit new connections (MaxStartups, PerSourcePenalties, tcp wrappers)"
        }
        _ => "",
    }
}

fn detail_text(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}

fn notes_text(notes: &[String]) -> String {
    notes.iter().map(|note| format!("; {note}")).collect()
}

/// Returns what a peer sent, shortened and without control characters, for a one-line message.
pub(crate) fn printable(bytes: &[u8], limit: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
        if out.chars().count() > limit {
            return out.chars().take(limit).chain("...".chars()).collect();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_without_ssh_is_told_how_it_works_without() {
        let refused =
            |node: &str| ConnectError::Refused { node: node.to_owned(), address: "127.0.0.1:22".to_owned() };
        assert_eq!(
            refused("localhost").to_string(),
            "localhost: 127.0.0.1:22 refuses the connection; `-c local`, or `ansible_connection: local` in the \
             inventory, works on this machine without SSH"
        );
        assert!(refused("n1").to_string().ends_with("is sshd running there, and is the port right?"));
    }
}
