//! What a service tells systemd: that it is ready, what it does, and that it is alive (`sd_notify(3)`).

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// The socket of the service manager, if there is one.
#[derive(Debug)]
pub struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

/// The variables that systemd sets for a service.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// `NOTIFY_SOCKET`.
    pub socket: Option<OsString>,
    /// `WATCHDOG_USEC`.
    pub watchdog_usec: Option<String>,
    /// `WATCHDOG_PID`.
    pub watchdog_pid: Option<String>,
}

impl Systemd {
    /// Opens the socket that the variables name; without one, everything told is dropped.
    ///
    /// # Errors
    /// A socket that cannot be reached.
    pub fn open(variables: &Variables, pid: u32) -> io::Result<Self> {
        let socket = match variables.socket.as_deref().filter(|name| !name.is_empty()) {
            None => None,
            Some(name) => {
                let socket = UnixDatagram::unbound()?;
                // A service manager that does not read must not hold up the watcher.
                socket.set_nonblocking(true)?;
                Some((socket, address(name)?))
            }
        };
        let ours = variables.watchdog_pid.as_ref().is_none_or(|text| text.parse() == Ok(pid));
        let watchdog = variables.watchdog_usec.as_ref().filter(|_| ours && socket.is_some());
        let watchdog = watchdog.and_then(|text| text.parse().ok()).filter(|usec| *usec > 0);
        Ok(Self { socket, watchdog: watchdog.map(Duration::from_micros) })
    }

    /// How often [`Self::alive`] has to be called at least; `None` if nobody waits for it.
    pub fn beat(&self) -> Option<Duration> {
        self.watchdog.map(|time| time / 3)
    }

    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    pub fn status(&self, status: &str) {
        self.tell(&format!("STATUS={}", one_line(status)));
    }

    /// The configuration is being read again; [`Self::ready`] says that this is over.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stopping");
    }

    pub fn alive(&self) {
        if self.watchdog.is_some() {
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            // There is no one to tell that systemd cannot be told.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

/// A path, or the name of an abstract socket behind `@`.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "NOTIFY_SOCKET is neither a path nor abstract")),
    }
}

/// A status must not hold a further assignment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut buffer = [0; 1000];
        let count = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    }

    #[test]
    fn it_is_told_over_paths_and_abstract_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("gpufleet-watch-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&abstract_address).unwrap();
        for (socket, variable) in [(by_path, path.into_os_string()), (by_name, format!("@{name}").into())] {
            let variables = Variables {
                socket: Some(variable),
                watchdog_usec: Some("30000000".into()),
                watchdog_pid: Some("7".into()),
            };
            let systemd = Systemd::open(&variables, 7).unwrap();
            assert_eq!(systemd.beat(), Some(Duration::from_secs(10)));
            systemd.ready("2 schedules\nREADY=0");
            assert_eq!(received(&socket), "READY=1\nSTATUS=2 schedules READY=0");
            systemd.alive();
            assert_eq!(received(&socket), "WATCHDOG=1");
            systemd.reloading();
            assert!(received(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
            systemd.stopping();
            assert!(received(&socket).starts_with("STOPPING=1\n"));
        }
    }

    #[test]
    fn without_systemd_nothing_is_told_and_a_watchdog_of_another_process_is_not_ours() {
        let systemd = Systemd::open(&Variables::default(), 7).unwrap();
        systemd.ready("nobody hears");
        assert_eq!(systemd.beat(), None);
        let variables = Variables {
            socket: Some("@gpufleet-nobody".into()),
            watchdog_usec: Some("1000".into()),
            watchdog_pid: Some("8".into()),
        };
        assert_eq!(Systemd::open(&variables, 7).unwrap().beat(), None);
        let wrong = Variables { socket: Some("vsock:2:1".into()), ..Variables::default() };
        assert!(Systemd::open(&wrong, 7).is_err());
    }
}
