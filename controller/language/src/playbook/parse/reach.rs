//! How plays and tasks connect to nodes, and which user they become there.

use super::Parser;
use crate::diagnostic::Diagnostic;
use crate::playbook::program::Privilege;
use crate::template::Value;
use crate::yaml::Node;

/// A play's settings for connections to its nodes.
#[derive(Clone, Debug, Default)]
pub(in crate::playbook) struct LogsIn {
    pub user: Option<Value>,
    pub connection: Option<Value>,
    pub port: Option<Value>,
}

/// What `become_flags` may say: it is the default here, or a password is passed in another way.
const SUDO_FLAGS: [&str; 5] = ["-H", "-S", "-n", "-i", "--login"];
/// Those flags that read the user's profile first.
const LOGIN: [&str; 2] = ["-i", "--login"];

impl Parser<'_> {
    /// Parses `remote_user`, if given.
    pub(super) fn remote_user(&mut self, node: &Node) -> Option<Value> {
        let user = node.get("remote_user").filter(|user| !user.is_null())?;
        if user.as_map().is_some() || user.as_seq().is_some() {
            self.error(user.wrong_type("`remote_user`", "the name of a user"));
            return None;
        }
        Some(self.value(user))
    }

    /// Parses `port`, if given.
    pub(super) fn port(&mut self, node: &Node) -> Option<Value> {
        let port = node.get("port").filter(|port| !port.is_null())?;
        let value = self.value(port);
        let number = value.to_text().trim().parse::<u16>().is_ok_and(|port| port > 0);
        if value.is_settled() && !number {
            self.error(port.wrong_type("`port`", "a number from 1 to 65535"));
            return None;
        }
        Some(value)
    }

    /// Checks that a task connects as its play does.
    ///
    /// A node has one connection, with one helper behind it that holds the node's lock. Another login would be a
    /// second one.
    pub(super) fn reached_as_the_play(&mut self, node: &Node) {
        // With a local connection there is no login.
        let here = node.get("connection").and_then(Node::as_str).map(plain) == Some("local");
        if let Some(user) = self.remote_user(node).filter(|_| !here)
            && self.logs_in.user.as_ref() != Some(&user)
            && let Some(value) = node.get("remote_user")
        {
            self.error(
                Diagnostic::error("a task logs in as its play does")
                    .at(&value.span)
                    .label("another user than the play's")
                    .help("say `remote_user` for the whole play, put the tasks into a play of their own, or have them become that user: `become: true` and `become_user`"),
            );
        }
        if let Some(port) = self.port(node).filter(|_| !here)
            && self.logs_in.port.as_ref() != Some(&port)
            && let Some(value) = node.get("port")
        {
            self.error(
                Diagnostic::error("a task logs in as its play does")
                    .at(&value.span)
                    .label("another port than the play's")
                    .help("say `port` for the whole play, or set `ansible_port` in the inventory"),
            );
        }
        let Some(value) = node.get("connection").filter(|value| !value.is_null()) else { return };
        let Some(wanted) = self.connection(value) else { return };
        let local = |value: &Value| value.as_str().map(|text| plain(text) == "local");
        match local(&wanted) {
            Some(true) => {}
            Some(false) if self.logs_in.connection.as_ref().is_none_or(|play| local(play) == Some(false)) => {
            }
            _ => self.error(
                Diagnostic::error("a task is done where its play is, or on this machine")
                    .at(&value.span)
                    .label("`local`, or what the play says")
                    .help("put the task into a play of its own"),
            ),
        }
    }

    pub(super) fn privilege(&mut self, node: &Node) -> Privilege {
        if let Some(method) = node.get("become_method")
            && !matches!(method.as_str(), Some("sudo" | "ansible.builtin.sudo"))
        {
            self.error(
                Diagnostic::error("`become_method` is `sudo` here; others are not available yet")
                    .at(&method.span),
            );
        }
        let unheard = |word: &&str| !SUDO_FLAGS.contains(word);
        if let Some(flags) = node.get("become_flags").filter(|flags| !flags.is_null())
            && flags.as_str().is_none_or(|flags| flags.split_whitespace().any(|word| unheard(&word)))
        {
            self.error(
                Diagnostic::error("sudo is called with `-H -S -n` here; it takes no other `become_flags`")
                    .at(&flags.span)
                    .help("say it in the nodes' sudoers, or call `sudo` in a command"),
            );
        }
        if let Some(flags) = node.get("become_flags")
            && flags.as_str().is_some_and(|flags| flags.split_whitespace().any(|word| LOGIN.contains(&word)))
        {
            self.warnings.push(
                Diagnostic::warning("no profile of the user is read here")
                    .at(&flags.span)
                    .label("`HOME` is the user's, the path is the node's")
                    .help("say with `environment` what a command needs, or write `bash -lc '…'`"),
            );
        }
        if let Some(program) = node.get("become_exe").filter(|program| !program.is_null())
            && program.as_str() != Some("sudo")
        {
            self.error(
                Diagnostic::error("`become_exe` is `sudo` here, looked for on the node's path")
                    .at(&program.span),
            );
        }
        if let Some(when) = node.get("debugger")
            && when.as_str() != Some("never")
        {
            self.error(
                Diagnostic::error("there is no `debugger` here; only `never` is understood")
                    .at(&when.span)
                    .help("`gpufleet run --step` asks before each task"),
            );
        }
        Privilege {
            escalate: node.get("become").map(|value| self.flag("become", value)),
            user: node.get("become_user").map(|value| self.value(value)),
        }
    }
}

/// Returns a name without Ansible's collection.
pub(super) fn plain(key: &str) -> &str {
    key.strip_prefix("ansible.builtin.").or_else(|| key.strip_prefix("ansible.legacy.")).unwrap_or(key)
}
