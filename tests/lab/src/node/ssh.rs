//! The lab's own SSH server: one process in each node, serving that node only.
//!
//! Owns logins, channels and the processes behind them; must not know GPUs. It is real SSH with a real key exchange,
//! without features that no test of a fleet tool needs (X11, agent forwarding, remote forwarding).

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nvml_sim::fault::Effect;
use russh::keys::{PrivateKey, PublicKey};
use russh::server::{Auth, ChannelOpenHandle, Handle, Handler, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, MethodKind, MethodSet, Sig};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::first::PATH;
use crate::spec::NodeSpec;

/// The server's settings, which it reads from its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub port: u16,
    pub host_key: String,
    pub authorized_key: String,
    /// Text before authentication.
    pub banner: Option<String>,
    /// Text before the output of every command.
    pub noise: Option<String>,
    pub hang: bool,
    pub refuse_keys: bool,
    /// Serve as the user who runs this process, whatever name the client sends.
    pub as_invoking_user: bool,
}

impl Settings {
    pub fn of_node(spec: &NodeSpec, faults: &[Effect]) -> Self {
        let text = |find: fn(&Effect) -> Option<&String>| faults.iter().find_map(find).cloned();
        Self {
            port: spec.port,
            host_key: spec.host_key.clone(),
            authorized_key: spec.authorized_key.clone(),
            banner: text(|fault| if let Effect::SshBanner(text) = fault { Some(text) } else { None }),
            noise: text(|fault| if let Effect::RcNoise(text) = fault { Some(text) } else { None }),
            hang: faults.contains(&Effect::HangHandshake),
            refuse_keys: faults.contains(&Effect::AuthRefused),
            as_invoking_user: false,
        }
    }
}

/// Serves until the process is killed.
pub fn serve(settings: Settings) -> Result<(), Box<dyn std::error::Error>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(accept(settings))
}

/// Reads the settings from standard input and serves.
pub fn serve_from_stdin() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    serve(serde_json::from_str(&text)?)
}

async fn accept(settings: Settings) -> Result<(), Box<dyn std::error::Error>> {
    let key = PrivateKey::from_openssh(&settings.host_key)?;
    let authorized = PublicKey::from_openssh(&settings.authorized_key)?;
    let config = Arc::new(russh::server::Config {
        keys: vec![key],
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        auth_rejection_time: Duration::from_millis(50),
        auth_rejection_time_initial: Some(Duration::ZERO),
        inactivity_timeout: None,
        nodelay: true,
        ..Default::default()
    });
    let listener = listen(settings.port)?;
    let settings = Arc::new(settings);
    let mut silent = Vec::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if settings.hang {
            silent.push(stream);
            continue;
        }
        let _ = stream.set_nodelay(true);
        let (config, authorized, settings) = (Arc::clone(&config), authorized.clone(), Arc::clone(&settings));
        tokio::spawn(async move {
            let login = Login { settings, authorized, user: None, channels: HashMap::new() };
            if let Ok(session) = russh::server::run_stream(config, stream, login).await {
                let _ = session.await;
            }
        });
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
    socket.listen(1024)
}

/// An account of the node.
#[derive(Clone, Debug)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
    shell: String,
}

impl Account {
    fn find(name: &str) -> Option<Self> {
        Self::from_passwd(|fields| fields.first() == Some(&name))
    }

    fn invoking() -> Option<Self> {
        let uid = rustix::process::getuid().as_raw().to_string();
        Self::from_passwd(|fields| fields.get(2) == Some(&uid.as_str()))
    }

    fn from_passwd(wanted: impl Fn(&[&str]) -> bool) -> Option<Self> {
        let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
        passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| wanted(fields)).and_then(
            |fields| match fields.as_slice() {
                [name, _, uid, gid, _, home, shell, ..] => Some(Self {
                    name: (*name).to_owned(),
                    uid: uid.parse().ok()?,
                    gid: gid.parse().ok()?,
                    home: home.into(),
                    shell: if shell.is_empty() { "/bin/sh".to_owned() } else { (*shell).to_owned() },
                }),
                _ => None,
            },
        )
    }
}

/// One connection.
struct Login {
    settings: Arc<Settings>,
    authorized: PublicKey,
    user: Option<Account>,
    channels: HashMap<ChannelId, Open>,
}

/// One channel: what was requested before its command, and the queue to the command once it runs.
#[derive(Default)]
struct Open {
    environment: Vec<(String, String)>,
    terminal: Option<Terminal>,
    input: Option<mpsc::Sender<Input>>,
}

#[derive(Clone, Debug)]
struct Terminal {
    name: String,
    columns: u32,
    rows: u32,
}

enum Input {
    Data(Vec<u8>),
    Eof,
    Signal(Signal),
    Resize(u32, u32),
}

impl Handler for Login {
    type Error = russh::Error;

    async fn authentication_banner(&mut self) -> Result<Option<String>, Self::Error> {
        Ok(self.settings.banner.clone())
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        let account = if self.settings.as_invoking_user { Account::invoking() } else { Account::find(user) };
        let known = key.public_key.key_data() == self.authorized.key_data() && !self.settings.refuse_keys;
        match account {
            Some(account) if known => {
                self.user = Some(account);
                Ok(Auth::Accept)
            }
            _ => Ok(Auth::reject()),
        }
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.channels.insert(channel.id(), Open::default());
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        let Ok(port) = u16::try_from(port) else { return Ok(()) };
        if let Ok(mut target) = tokio::net::TcpStream::connect((host, port)).await {
            let _ = target.set_nodelay(true);
            reply.accept().await;
            tokio::spawn(async move {
                let mut stream = channel.into_stream();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut target).await;
            });
        }
        Ok(())
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        if let Some(open) = self.channels.get_mut(&channel)
            && (name == "LANG" || name.starts_with("LC_"))
        {
            open.environment.push((name.to_owned(), value.to_owned()));
            session.channel_success(channel)
        } else {
            session.channel_failure(channel)
        }
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        term: &str,
        columns: u32,
        rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(russh::Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        if let Some(open) = self.channels.get_mut(&channel) {
            open.terminal = Some(Terminal { name: term.to_owned(), columns, rows });
        }
        session.channel_success(channel)
    }

    async fn window_change_request(
        &mut self,
        channel: ChannelId,
        columns: u32,
        rows: u32,
        _width: u32,
        _height: u32,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.pass(channel, Input::Resize(columns, rows)).await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let command = String::from_utf8_lossy(command).into_owned();
        self.start(channel, &["-c", &command], session)
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        self.start(channel, &["-l"], session)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let server =
            ["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server"]
                .into_iter()
                .find(|path| std::path::Path::new(path).exists());
        match server {
            Some(server) if name == "sftp" => self.start(channel, &["-c", server], session),
            _ => session.channel_failure(channel),
        }
    }

    async fn data(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.pass(channel, Input::Data(data.to_vec())).await;
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.pass(channel, Input::Eof).await;
        Ok(())
    }

    async fn signal(
        &mut self,
        channel: ChannelId,
        signal: Sig,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        let signal = match signal {
            Sig::INT => Signal::INT,
            Sig::KILL => Signal::KILL,
            Sig::HUP => Signal::HUP,
            Sig::QUIT => Signal::QUIT,
            Sig::USR1 => Signal::USR1,
            _ => Signal::TERM,
        };
        self.pass(channel, Input::Signal(signal)).await;
        Ok(())
    }

    async fn channel_close(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        self.channels.remove(&channel);
        Ok(())
    }
}

impl Login {
    /// Passes input to the command of a channel. Waits while its queue is full, which slows the client down.
    async fn pass(&self, channel: ChannelId, input: Input) {
        if let Some(sender) = self.channels.get(&channel).and_then(|open| open.input.as_ref()) {
            let _ = sender.send(input).await;
        }
    }

    fn start(
        &mut self,
        channel: ChannelId,
        arguments: &[&str],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let (Some(user), Some(open)) = (self.user.clone(), self.channels.get_mut(&channel)) else {
            return session.channel_failure(channel);
        };
        let (sender, inputs) = mpsc::channel(64);
        open.input = Some(sender);
        let launch = Launch {
            user,
            arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
            environment: std::mem::take(&mut open.environment),
            terminal: open.terminal.clone(),
            noise: self.settings.noise.clone(),
            port: self.settings.port,
            change_user: !self.settings.as_invoking_user,
        };
        session.channel_success(channel)?;
        let handle = session.handle();
        tokio::spawn(async move {
            let code = match launch.run(channel, &handle, inputs).await {
                Ok(code) => code,
                Err(error) => {
                    let _ =
                        handle.extended_data(channel, 1, format!("lab sshd: {error}\n").into_bytes()).await;
                    127
                }
            };
            let _ = handle.exit_status_request(channel, code).await;
            let _ = handle.eof(channel).await;
            let _ = handle.close(channel).await;
        });
        Ok(())
    }
}

/// A command that is to be run on a channel.
struct Launch {
    user: Account,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    terminal: Option<Terminal>,
    noise: Option<String>,
    port: u16,
    change_user: bool,
}

impl Launch {
    async fn run(
        self,
        channel: ChannelId,
        handle: &Handle,
        inputs: mpsc::Receiver<Input>,
    ) -> std::io::Result<u32> {
        if let Some(noise) = &self.noise {
            let _ = handle.data(channel, noise.clone().into_bytes()).await;
        }
        match &self.terminal {
            None => self.run_piped(channel, handle, inputs).await,
            Some(terminal) => self.run_in_terminal(terminal.clone(), channel, handle, inputs).await,
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .env("PATH", PATH)
            .env("HOME", &self.user.home)
            .env("USER", &self.user.name)
            .env("LOGNAME", &self.user.name)
            .env("SHELL", &self.user.shell)
            .env("SSH_CONNECTION", format!("127.0.0.1 0 127.0.0.1 {}", self.port))
            .env("SSH_CLIENT", format!("127.0.0.1 0 {}", self.port));
        if self.change_user && self.user.uid != rustix::process::getuid().as_raw() {
            command.uid(self.user.uid).gid(self.user.gid);
        }
        command.current_dir(if self.user.home.is_dir() { self.user.home.as_path() } else { "/".as_ref() });
        command
    }

    async fn run_piped(
        &self,
        channel: ChannelId,
        handle: &Handle,
        mut inputs: mpsc::Receiver<Input>,
    ) -> std::io::Result<u32> {
        let mut child = self
            .command(&self.user.shell)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = child.id();
        let feeder = tokio::spawn(async move {
            let mut stdin = stdin;
            while let Some(input) = inputs.recv().await {
                match input {
                    Input::Data(data) => {
                        if let Some(pipe) = stdin.as_mut()
                            && pipe.write_all(&data).await.is_err()
                        {
                            stdin = None;
                        }
                    }
                    Input::Eof => stdin = None,
                    Input::Signal(signal) => signal_group(pid, signal),
                    Input::Resize(..) => {}
                }
            }
        });
        let out = async {
            if let Some(mut pipe) = stdout {
                let mut buffer = vec![0; 32 * 1024];
                while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
                    let data = buffer.get(..count).unwrap_or_default().to_vec();
                    if handle.data(channel, data).await.is_err() {
                        break;
                    }
                }
            }
        };
        let errors = async {
            if let Some(mut pipe) = stderr {
                let mut buffer = vec![0; 8 * 1024];
                while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
                    let data = buffer.get(..count).unwrap_or_default().to_vec();
                    if handle.extended_data(channel, 1, data).await.is_err() {
                        break;
                    }
                }
            }
        };
        let code = finish(child, async { tokio::join!(out, errors) }).await?;
        feeder.abort();
        Ok(code)
    }

    async fn run_in_terminal(
        &self,
        terminal: Terminal,
        channel: ChannelId,
        handle: &Handle,
        mut inputs: mpsc::Receiver<Input>,
    ) -> std::io::Result<u32> {
        let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        let name = rustix::pty::ptsname(&master, Vec::new())?.to_string_lossy().into_owned();
        let resize = |columns: u32, rows: u32| {
            let size = rustix::termios::Winsize {
                ws_row: rows as u16,
                ws_col: columns as u16,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            let _ = rustix::termios::tcsetwinsize(&master, size);
        };
        resize(terminal.columns, terminal.rows);
        // A helper, because the new process itself must take the controlling terminal before it becomes the shell.
        let child = self
            .command("/proc/self/exe")
            .arg("__terminal")
            .arg(&name)
            .arg(&self.user.shell)
            .args(&self.arguments)
            .env("TERM", &terminal.name)
            .env("SSH_TTY", &name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = child.id();
        let mut writer = tokio::fs::File::from_std(File::from(master.try_clone()?));
        let reader_file = File::from(master.try_clone()?);
        let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(16);
        // A thread, because a terminal's master side blocks, and ends with an error when the last slave side closes.
        std::thread::spawn(move || {
            let mut file = reader_file;
            let mut buffer = vec![0; 8 * 1024];
            while let Ok(count @ 1..) = file.read(&mut buffer) {
                if sender.blocking_send(buffer.get(..count).unwrap_or_default().to_vec()).is_err() {
                    break;
                }
            }
        });
        let resize_master = master.try_clone()?;
        let feeder = tokio::spawn(async move {
            while let Some(input) = inputs.recv().await {
                match input {
                    Input::Data(data) => {
                        let _ = writer.write_all(&data).await;
                        let _ = writer.flush().await;
                    }
                    Input::Eof => {
                        let _ = writer.write_all(&[4]).await;
                        let _ = writer.flush().await;
                    }
                    Input::Signal(signal) => signal_group(pid, signal),
                    Input::Resize(columns, rows) => {
                        let size = rustix::termios::Winsize {
                            ws_row: rows as u16,
                            ws_col: columns as u16,
                            ws_xpixel: 0,
                            ws_ypixel: 0,
                        };
                        let _ = rustix::termios::tcsetwinsize(&resize_master, size);
                    }
                }
            }
            // The connection is gone: the session's processes get SIGHUP, as from a real terminal.
            signal_group(pid, Signal::HUP);
        });
        drop(master);
        let out = async {
            while let Some(data) = receiver.recv().await {
                if handle.data(channel, data).await.is_err() {
                    break;
                }
            }
        };
        let code = finish(child, out).await?;
        feeder.abort();
        Ok(code)
    }
}

/// Waits for a command and for its output; output that background processes keep open is dropped after a moment.
async fn finish<T>(mut child: Child, output: impl Future<Output = T>) -> std::io::Result<u32> {
    use std::os::unix::process::ExitStatusExt as _;
    tokio::pin!(output);
    let status = tokio::select! {
        _ = &mut output => child.wait().await?,
        status = child.wait() => {
            // OpenSSH waits for the end of output too, but a daemon that keeps the pipe would hold the channel
            // forever.
            let _ = tokio::time::timeout(Duration::from_secs(2), &mut output).await;
            status?
        }
    };
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) as u32)
}

fn signal_group(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// Runs a command on a terminal: new session, controlling terminal, then the shell.
pub fn become_on_terminal(arguments: &[String]) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    let [tty, shell, rest @ ..] = arguments else { return std::io::Error::other("__terminal TTY SHELL …") };
    let attach = || -> std::io::Result<File> {
        rustix::process::setsid()?;
        let tty = File::options().read(true).write(true).open(tty)?;
        rustix::process::ioctl_tiocsctty(&tty)?;
        Ok(tty)
    };
    let tty = match attach() {
        Ok(tty) => tty,
        Err(error) => return error,
    };
    let clone = || tty.try_clone().map_or_else(|_| Stdio::null(), Stdio::from);
    std::process::Command::new(shell).args(rest).stdin(clone()).stdout(clone()).stderr(clone()).exec()
}

/// Returns the name of the user who runs this process.
pub fn invoking_user() -> String {
    Account::invoking().map_or_else(|| "root".to_owned(), |account| account.name)
}
