//! An sshd on loopback, and its clients.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, Instant},
};

use gpufleet::transport::{
    ChannelEvent, ConnectError, Connector, ConnectorOptions, Deadlines, Environment, Prompt, PromptError,
    PromptRequest, Target, TargetDefaults,
};
use gpufleet_ports::Ports;
use secrecy::SecretString;
use serde_json::{Map, Value, json};

/// Returns deadlines that no peer reaches, however busy the machine is; tests of silent peers have their own.
pub fn deadlines() -> Deadlines {
    let deadline = Duration::from_secs(60);
    Deadlines { connect: deadline, handshake: deadline, authentication: deadline, channel: deadline }
}

pub fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| {
        panic!("{shown}: {error}; install it: apt-get install openssh-server openssh-client sudo")
    });
    assert!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Generates a key with a comment; returns its path.
pub fn keygen(dir: &Path, name: &str, kind: &str, passphrase: &str) -> PathBuf {
    let path = dir.join(name);
    let mut command = Command::new("ssh-keygen");
    // One round, because the tests run a debug build.
    command.args(["-q", "-t", kind, "-a", "1", "-N", passphrase, "-C", name, "-f"]).arg(&path);
    if kind == "rsa" {
        command.args(["-b", "2048"]);
    }
    run(&mut command);
    path
}

pub fn public(key: &Path) -> String {
    fs::read_to_string(format!("{}.pub", key.display())).unwrap().trim().to_owned()
}

/// Returns an unused port, reserved for this process.
pub fn free_port() -> u16 {
    static PORTS: LazyLock<Mutex<Ports>> = LazyLock::new(Mutex::default);
    let reserved = PORTS.lock().unwrap().reserve().unwrap();
    let number = reserved.number();
    // Kept for ever, because a server may still use the port after its test has ended.
    std::mem::forget(reserved);
    number
}

/// The configuration of a node.
pub struct Setup {
    pub host_keys: Vec<&'static str>,
    pub config: Vec<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { host_keys: vec!["ed25519"], config: Vec::new() }
    }
}

impl Setup {
    pub fn with(lines: &[&str]) -> Self {
        Self { config: lines.iter().map(|line| (*line).to_owned()).collect(), ..Self::default() }
    }
}

/// A running sshd. Its client side has its own HOME with known_hosts, an `id_ed25519` that the node accepts, and no
/// `ssh_config`.
pub struct Node {
    pub dir: tempfile::TempDir,
    pub port: u16,
    child: Child,
    pub prompt: Arc<ScriptedPrompt>,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Node {
    pub fn start() -> Self {
        Self::start_with(&Setup::default())
    }

    pub fn start_with(setup: &Setup) -> Self {
        let dir = tempfile::Builder::new().prefix("gpufleet-sshd-").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = dir.path().to_owned();
        for folder in ["home", "client/.ssh", "etc"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let port = free_port();
        // These first, because the first value of an option wins.
        let mut config = String::new();
        let mut has_environment = false;
        for line in &setup.config {
            has_environment |= line.starts_with("SetEnv");
            config.push_str(&line.replace("@DIR@", &root.display().to_string()));
            config.push('\n');
        }
        if !has_environment {
            config.push_str(&format!("SetEnv HOME={}/home\n", root.display()));
        }
        config.push_str(&format!(
            "Port {port}\nListenAddress 127.0.0.1\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\nAuthorizedKeysFile {0}/etc/authorized_keys\n\
             MaxStartups 200\n",
            root.display()
        ));
        for kind in &setup.host_keys {
            let key = keygen(&root.join("etc"), &format!("host_{kind}"), kind, "");
            config.push_str(&format!("HostKey {}\n", key.display()));
        }
        let config_path = root.join("etc/sshd_config");
        fs::write(&config_path, config).unwrap();
        fs::write(root.join("etc/authorized_keys"), "").unwrap();
        let key = keygen(&root.join("client/.ssh"), "id_ed25519", "ed25519", "");
        let mut node = Self {
            child: spawn(&config_path, &root),
            dir,
            port,
            prompt: Arc::new(ScriptedPrompt::default()),
        };
        node.authorize(&public(&key));
        let host_key = node.host_key(setup.host_keys[0]);
        node.know(&format!("[127.0.0.1]:{port} {host_key}"));
        node.wait();
        node
    }

    fn wait(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                let log = fs::read_to_string(self.dir.path().join("etc/log")).unwrap_or_default();
                panic!("sshd ended with {status}: {log}");
            }
            assert!(Instant::now() < end, "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the login user's home on the node.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    pub fn ssh_dir(&self) -> PathBuf {
        self.path("client/.ssh")
    }

    pub fn client_key(&self) -> PathBuf {
        self.ssh_dir().join("id_ed25519")
    }

    /// Returns a host key as `type base64`.
    pub fn host_key(&self, kind: &str) -> String {
        let text = public(&self.path(&format!("etc/host_{kind}")));
        text.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    /// Replaces the authorized keys.
    pub fn authorize(&self, lines: &str) {
        fs::write(self.path("etc/authorized_keys"), format!("{lines}\n")).unwrap();
    }

    /// Replaces known_hosts.
    pub fn know(&self, lines: &str) {
        fs::write(self.ssh_dir().join("known_hosts"), format!("{lines}\n")).unwrap();
    }

    pub fn environment(&self) -> Environment {
        Environment {
            home: Some(self.path("client")),
            user: "root".to_owned(),
            uid: uid(),
            hostname: "controller".to_owned(),
            ssh_auth_sock: None,
            ssh_config: Some("none".into()),
            ssh_program: "ssh".into(),
            prompt: Arc::<ScriptedPrompt>::clone(&self.prompt),
        }
    }

    pub fn connector(&self) -> Arc<Connector> {
        connector(self.environment())
    }

    pub fn target(&self) -> Target {
        self.target_with(json!({}))
    }

    pub fn target_with(&self, extra: Value) -> Target {
        self.target_from(extra, &TargetDefaults::default())
    }

    pub fn target_from(&self, extra: Value, defaults: &TargetDefaults) -> Target {
        let mut variables = Map::new();
        variables.insert("ansible_host".to_owned(), json!("127.0.0.1"));
        variables.insert("ansible_port".to_owned(), json!(self.port));
        let Value::Object(extra) = extra else { panic!("a mapping") };
        variables.extend(extra);
        Target::from_variables("gpu001", &variables, defaults).unwrap()
    }

    /// Runs a command with the default connector and target.
    pub async fn exec(&self, command: &str) -> Result<Output, ConnectError> {
        exec(&self.connector(), &self.target(), command).await
    }
}

pub fn connector(environment: Environment) -> Arc<Connector> {
    Connector::new(environment, ConnectorOptions { handshakes: 64, deadlines: deadlines() })
}

pub fn uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid()
}

fn spawn(config: &Path, root: &Path) -> Child {
    if uid() == 0 {
        fs::create_dir_all("/run/sshd").unwrap();
    }
    let log = fs::File::create(root.join("etc/log")).unwrap();
    // The full path, because sshd executes itself again and requires it.
    let program = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"]
        .into_iter()
        .find(|p| Path::new(p).exists());
    let program = program.expect("sshd is missing: apt-get install openssh-server");
    Command::new(program)
        .args(["-D", "-e", "-f"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// The output of a command, and how it ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
    pub exit: Option<String>,
}

pub async fn exec(connector: &Connector, target: &Target, command: &str) -> Result<Output, ConnectError> {
    let mut channel = connector.exec(target, command).await?;
    channel.writer.finish().await;
    let mut output = Output::default();
    while let Some(event) = channel.reader.next().await {
        match event {
            ChannelEvent::Stdout(bytes) => output.stdout.push_str(&String::from_utf8_lossy(&bytes)),
            ChannelEvent::Stderr(bytes) => output.stderr.push_str(&String::from_utf8_lossy(&bytes)),
            ChannelEvent::Exit(status) => output.exit = Some(status.to_string()),
        }
    }
    Ok(output)
}

/// Answers prompts from a list, and records them.
#[derive(Debug, Default)]
pub struct ScriptedPrompt {
    pub answers: Mutex<Vec<String>>,
    pub asked: Mutex<Vec<PromptRequest>>,
}

impl Prompt for ScriptedPrompt {
    fn ask(&self, request: &PromptRequest) -> Result<SecretString, PromptError> {
        self.asked.lock().unwrap().push(request.clone());
        let mut answers = self.answers.lock().unwrap();
        if answers.is_empty() {
            Err(PromptError::NoTerminal)
        } else {
            Ok(SecretString::from(answers.remove(0)))
        }
    }
}

/// An SSH agent that ends with the test.
pub struct Agent {
    child: Child,
    pub socket: PathBuf,
}

impl Agent {
    pub fn start(dir: &Path) -> Self {
        let socket = dir.join("agent.sock");
        let child = Command::new("ssh-agent")
            .arg("-D")
            .arg("-a")
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ssh-agent is missing: apt-get install openssh-client");
        let end = Instant::now() + Duration::from_secs(60);
        // Not its file, which exists a moment before the agent listens.
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < end, "ssh-agent does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, socket }
    }

    pub fn add(&self, key: &Path) {
        run(Command::new("ssh-add").arg("-q").arg(key).env("SSH_AUTH_SOCK", &self.socket));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
