//! A client that sends exactly what it is told.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::made_up::Certificates;

const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub bytes: Vec<u8>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn parse(all: &[u8]) -> Option<Self> {
        let end = all.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&all[..end]).into_owned();
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let bytes = all[end + 4..].to_vec();
        Some(Self { status, headers, body: String::from_utf8_lossy(&bytes).into_owned(), bytes })
    }
}

pub struct Client {
    address: SocketAddr,
    host: String,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, host: "localhost".to_owned() }
    }

    pub fn host(mut self, host: &str) -> Self {
        self.host = host.to_owned();
        self
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, headers, "").await
    }

    pub async fn post(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let length = body.len().to_string();
        let form = [("Content-Type", "application/x-www-form-urlencoded"), ("Content-Length", &length)];
        self.ask("POST", path, &[&form, headers].concat(), body).await
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\r\n{body}",
            self.host
        );
        raw(self.address, request.as_bytes()).await
    }
}

pub async fn get(address: SocketAddr, path: &str) -> Answer {
    Client::new(address).get(path, &[]).await
}

pub async fn raw(address: SocketAddr, request: &[u8]) -> Answer {
    try_raw(address, request).await.expect("an answer")
}

pub async fn try_raw(address: SocketAddr, request: &[u8]) -> Option<Answer> {
    let mut stream = open(address, request).await;
    read(&mut stream).await
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Answer> {
    let mut all = Vec::new();
    // Why no error: a server that refuses a request need not read all of it.
    let _ = timeout(LIMIT, stream.read_to_end(&mut all)).await.expect("an answer in time");
    Answer::parse(&all)
}

pub async fn open(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Why no error: a server that refuses a request may close before it has all of it.
    let _ = stream.write_all(bytes).await;
    stream
}

/// A stream of server-sent events.
pub struct Events(BufReader<TcpStream>);

impl Events {
    /// Returns the data of the next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            let read = timeout(LIMIT, self.0.read_line(&mut line)).await.expect("an event in time");
            // The last chunk has no bytes.
            if read.unwrap_or(0) == 0 || line == "0\r\n" {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }
}

pub async fn events(address: SocketAddr, path: &str) -> Events {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let stream = open(address, request.as_bytes()).await;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).await.unwrap();
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    Events(reader)
}

/// Asks for the fleet over TLS, with the client's certificate or without; `None` where the server refuses.
pub async fn over_tls(address: SocketAddr, files: &Certificates, known: bool) -> Option<Answer> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.path("ca.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = if known {
        let chain = vec![CertificateDer::from_pem_file(files.path("client.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(files.path("client.key")).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: fleet.example\r\nConnection: close\r\n\r\n").await.ok()?;
    read(&mut stream).await
}
