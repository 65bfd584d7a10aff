//! `ProxyCommand`: a process whose standard streams are the connection to the node.

use std::{
    io,
    pin::Pin,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::watch,
    time::timeout,
};

const KEPT: usize = 2048;

pub(crate) struct ProxyProcess {
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// Killed when the connection is dropped.
    _child: Child,
}

/// How long a failed process may take to print a reason.
const SAYING: Duration = Duration::from_secs(1);

/// The last output of a process.
#[derive(Clone, Debug)]
pub(crate) struct LastWords {
    said: Arc<Mutex<Vec<u8>>>,
    /// Closed once there is no more output.
    open: watch::Receiver<()>,
}

impl LastWords {
    /// Returns all of it: a connection may break before it was read.
    pub(crate) async fn get(&self) -> String {
        let mut open = self.open.clone();
        let _ = timeout(SAYING, async { while open.changed().await.is_ok() {} }).await;
        super::error::printable(&self.said.lock().unwrap_or_else(PoisonError::into_inner), 300)
    }
}

/// Starts the command through `sh`, as OpenSSH does.
pub(crate) fn start(command: &str) -> io::Result<(ProxyProcess, LastWords)> {
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(format!("exec {command}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let missing = || io::Error::other("a standard stream is missing");
    let stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    let mut stderr = child.stderr.take().ok_or_else(missing)?;
    let (speaking, open) = watch::channel(());
    let words = LastWords { said: Arc::default(), open };
    let kept = Arc::clone(&words.said);
    tokio::spawn(async move {
        let mut buffer = [0u8; 512];
        while let Ok(count) = stderr.read(&mut buffer).await {
            if count == 0 {
                break;
            }
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
            let excess = kept.len().saturating_sub(KEPT);
            kept.drain(..excess);
        }
        drop(speaking);
    });
    Ok((ProxyProcess { stdin, stdout, _child: child }, words))
}

impl AsyncRead for ProxyProcess {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdout).poll_read(cx, buf)
    }
}

impl AsyncWrite for ProxyProcess {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stdin).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdin).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdin).poll_shutdown(cx)
    }
}
