//! A plain HTTPS client for the tests: one connection per request.

use std::sync::Arc;

use futures::StreamExt as _;
use gpufleet_k8s_api::kubeconfig::Login;
use gpufleet_k8s_api::server::Server;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;

/// A response.
#[derive(Debug, Clone)]
pub struct Answer {
    pub code: u16,
    pub headers: Vec<(String, String)>,
    pub body: Value,
    pub text: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

pub struct Client {
    tls: Arc<rustls::ClientConfig>,
    address: std::net::SocketAddr,
    token: Option<String>,
    runtime: tokio::runtime::Runtime,
    pub agent: String,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Client {
    /// Creates a client that logs in with a certificate for `user`.
    pub fn certified(server: &Server, user: &str) -> Self {
        Self::new(server, &server.certificate(user).expect("a certificate"))
    }

    pub fn new(server: &Server, login: &Login) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(server.authority().roots().expect("roots"));
        let (tls, token) = match login {
            Login::Certificate { certificate, key } => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                (builder.with_client_auth_cert(chain, key).expect("a pair"), None)
            }
            Login::Token(token) => (builder.with_no_client_auth(), Some(token.clone())),
            _ => (builder.with_no_client_auth(), None),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self {
            tls: Arc::new(tls),
            address: server.address(),
            token,
            runtime,
            agent: "curl/8.14.1".to_owned(),
        }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: Vec<u8>,
    ) -> Result<hyper::Response<hyper::body::Incoming>, Failure> {
        let stream = tokio::net::TcpStream::connect(self.address).await?;
        let name = ServerName::from(self.address.ip());
        let stream = tokio_rustls::TlsConnector::from(self.tls.clone()).connect(name, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("Host", "kubernetes")
            .header("User-Agent", &self.agent)
            .header("Content-Type", kind);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        Ok(sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?)
    }

    /// Sends one request; an error if the connection ended.
    pub fn ask(&self, method: &str, path: &str, kind: &str, body: Vec<u8>) -> Result<Answer, Failure> {
        self.runtime.block_on(async {
            let response = self.send(method, path, kind, body).await?;
            let code = response.status().as_u16();
            let headers = response
                .headers()
                .iter()
                .map(|(n, v)| (n.to_string(), v.to_str().unwrap_or_default().to_owned()))
                .collect();
            let text = String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?;
            Ok(Answer { code, headers, body: serde_json::from_str(&text).unwrap_or_default(), text })
        })
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "application/json", Vec::new()).expect("an answer")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, "application/json", body.to_string().into_bytes()).expect("an answer")
    }

    pub fn put(&self, path: &str, body: &Value) -> Answer {
        self.ask("PUT", path, "application/json", body.to_string().into_bytes()).expect("an answer")
    }

    pub fn patch(&self, kind: &str, path: &str, body: &Value) -> Answer {
        let kind = format!("application/{kind}-patch+json");
        self.ask("PATCH", path, &kind, body.to_string().into_bytes()).expect("an answer")
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, "application/json", Vec::new()).expect("an answer")
    }

    /// Reads a watch until `enough` holds or it ends. Returns true if it broke.
    pub fn watch(&self, path: &str, mut enough: impl FnMut(&[Value]) -> bool) -> (Vec<Value>, bool) {
        self.runtime.block_on(async {
            let response = self.send("GET", path, "application/json", Vec::new()).await.expect("an answer");
            assert_eq!(response.status().as_u16(), 200);
            let mut body = response.into_body().into_data_stream();
            let (mut text, mut events) = (String::new(), Vec::new());
            while !enough(&events) {
                match body.next().await {
                    None => return (events, false),
                    Some(Err(_)) => return (events, true),
                    Some(Ok(bytes)) => text.push_str(&String::from_utf8_lossy(&bytes)),
                }
                while let Some(end) = text.find('\n') {
                    events.push(serde_json::from_str(&text[..end]).expect("an event is JSON"));
                    text.drain(..=end);
                }
            }
            (events, false)
        })
    }
}
