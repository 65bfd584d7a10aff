//! Loopback ports for servers that tests start, below the range that the kernel assigns.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt::set_socket_reuseaddr};

const LOW: u16 = 12_000;
const HIGH: u16 = 32_000;

/// All ports are taken.
#[derive(Debug, thiserror::Error)]
#[error("no free port between {LOW} and {HIGH} on 127.0.0.1")]
pub struct NoPort;

/// A port that is reserved as long as this value lives, even while its server is down.
///
/// The socket is bound but does not listen. Clients are refused, and other searches find the port taken, but the
/// server can still bind it, because it sets address reuse as every SSH server does.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    _socket: OwnedFd,
}

impl ReservedPort {
    /// Reserves one port.
    ///
    /// # Errors
    /// If it is taken.
    pub fn take(number: u16) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, number))?;
        set_socket_reuseaddr(&socket, true)?;
        Ok(Self { number, _socket: socket })
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// A search for ports, which starts at a different port in each process.
#[derive(Debug)]
pub struct Ports {
    next: u16,
    left: u16,
}

impl Default for Ports {
    fn default() -> Self {
        let span = HIGH - LOW;
        let offset = (std::process::id() as u16).wrapping_mul(97) % span;
        Self { next: LOW + offset, left: span }
    }
}

impl Ports {
    /// Reserves the next free port.
    ///
    /// # Errors
    /// If all ports are taken.
    pub fn reserve(&mut self) -> Result<ReservedPort, NoPort> {
        while self.left > 0 {
            let port = self.next;
            self.left -= 1;
            self.next = if port + 1 >= HIGH { LOW } else { port + 1 };
            if let Ok(reserved) = ReservedPort::take(port) {
                return Ok(reserved);
            }
        }
        Err(NoPort)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reserved_port_is_nobody_elses_and_its_server_may_come_and_go() {
        let port = Ports::default().reserve().unwrap();
        let address = ("127.0.0.1", port.number());
        ReservedPort::take(port.number()).unwrap_err();
        TcpStream::connect(address).unwrap_err();
        let server = TcpListener::bind(address).unwrap();
        TcpStream::connect(address).unwrap();
        ReservedPort::take(port.number()).unwrap_err();
        drop(server);
        ReservedPort::take(port.number()).unwrap_err();
        drop(port);
    }

    #[test]
    fn a_search_ends() {
        Ports { next: LOW, left: 0 }.reserve().unwrap_err();
    }
}
