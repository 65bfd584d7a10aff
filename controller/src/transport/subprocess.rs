//! Channels over local processes: the OpenSSH client, and the controller's own shell.

use std::path::Path;

use tokio::process::Command;

use super::{
    channel::ByteChannel, connector::Deadlines, environment::Environment, error::ConnectError,
    host_key::HostKeyPolicy, target::SshTarget,
};

/// Runs a command on the controller.
pub(crate) fn local(node: &str, command: &str) -> Result<ByteChannel, ConnectError> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command);
    start(node, "/bin/sh", shell)
}

/// Runs a command through the OpenSSH client.
pub(crate) fn openssh(
    node: &str,
    target: &SshTarget,
    command: &str,
    environment: &Environment,
    deadlines: &Deadlines,
) -> Result<ByteChannel, ConnectError> {
    let mut ssh = Command::new(&environment.ssh_program);
    ssh.args(arguments(target, command, environment.ssh_config.as_deref(), deadlines));
    start(node, &environment.ssh_program.to_string_lossy(), ssh)
}

fn start(node: &str, program: &str, command: Command) -> Result<ByteChannel, ConnectError> {
    ByteChannel::spawn(command).map_err(|source| ConnectError::Spawn {
        node: node.to_owned(),
        program: program.to_owned(),
        source,
    })
}

/// Returns the arguments of `ssh`. The user's come first, because the first value of an option wins.
fn arguments(target: &SshTarget, command: &str, config: Option<&Path>, deadlines: &Deadlines) -> Vec<String> {
    let mut out = Vec::new();
    let mut option = |text: String| out.extend(["-o".to_owned(), text]);
    let given = &target.overrides;
    if let Some(port) = given.port {
        option(format!("Port={port}"));
    }
    for file in &given.identity_files {
        option(format!("IdentityFile=\"{file}\""));
    }
    if given.host_key_policy == Some(HostKeyPolicy::AcceptNew) {
        option("StrictHostKeyChecking=accept-new".to_owned());
    }
    // Not `-o User`, which is parsed like a line of a configuration file.
    out.extend(given.user.iter().flat_map(|user| ["-l".to_owned(), user.to_string()]));
    let timeout = given.connect_timeout.unwrap_or(deadlines.connect);
    let mut late = Vec::new();
    // `ControlMaster=no` without a control path: a master that the user opened is used, and none is left behind.
    for text in [
        "BatchMode=yes".to_owned(),
        "ControlMaster=no".to_owned(),
        format!("ConnectTimeout={}", timeout.as_secs().max(1)),
        "ServerAliveInterval=15".to_owned(),
        "ServerAliveCountMax=3".to_owned(),
        "ForwardX11=no".to_owned(),
        "RequestTTY=no".to_owned(),
    ] {
        late.extend(["-o".to_owned(), text]);
    }
    if let Some(config) = config
        && !target.arguments.iter().any(|argument| argument.starts_with("-F"))
    {
        out.extend(["-F".to_owned(), config.to_string_lossy().into_owned()]);
    }
    out.extend(target.arguments.iter().cloned());
    out.extend(late);
    out.extend(["-T".to_owned(), "--".to_owned(), target.host.to_string(), command.to_owned()]);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::transport::{Connection, Target, TargetDefaults, Transport};

    #[test]
    fn the_users_arguments_come_before_ours() {
        let serde_json::Value::Object(variables) = json!({
            "ansible_host": "10.0.0.1", "ansible_port": 22, "ansible_user": "root",
            "ansible_ssh_private_key_file": "/k", "ansible_ssh_common_args": "-o ConnectTimeout=3 -J b",
        }) else {
            panic!()
        };
        let defaults = TargetDefaults { transport: Transport::OpenSsh, ..TargetDefaults::default() };
        let Connection::Ssh(ssh) = Target::from_variables("n", &variables, &defaults).unwrap().connection
        else {
            panic!()
        };
        let got = arguments(&ssh, "exec true", Some(Path::new("/c")), &Deadlines::default()).join(" ");
        insta::assert_snapshot!(got, @r#"-o Port=22 -o IdentityFile="/k" -l root -F /c -o ConnectTimeout=3 -J b -o BatchMode=yes -o ControlMaster=no -o ConnectTimeout=3 -o ServerAliveInterval=15 -o ServerAliveCountMax=3 -o ForwardX11=no -o RequestTTY=no -T -- 10.0.0.1 exec true"#);
    }
}
