//! Sockets, TLS, and what connections may cost.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{error::Elapsed, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    error::ServeError,
    places::{Place, Places},
    routes::Site,
};

/// How long a TLS handshake, or the head of a request, may take; an idle connection ends after it too.
const HEAD: Duration = Duration::from_secs(15);
/// How long a connection lives: one who reads slowly must not keep it for ever. Pages under way load it again.
const LIFE: Duration = Duration::from_secs(600);
/// How long answers under way may go on when the server or a connection ends.
const GRACE: Duration = Duration::from_secs(10);
/// Bytes of the head of a request, and its headers.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;

/// Files for TLS, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authority of client certificates; without it no client needs one.
    pub client_ca: Option<PathBuf>,
}

/// A bound server.
pub struct Server {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Server {
    /// Binds an address. `has_token` says whether readers need one; `insecure` allows it to travel without TLS.
    ///
    /// # Errors
    /// The address can be reached from other machines and nothing says who may read, the files of TLS cannot be used, or
    /// the address cannot be bound.
    pub async fn bind(
        address: SocketAddr,
        tls: Option<&TlsFiles>,
        has_token: bool,
        insecure: bool,
    ) -> Result<Self, ServeError> {
        let has_certificates = tls.is_some_and(|tls| tls.client_ca.is_some());
        if !address.ip().is_loopback() {
            if !has_token && !has_certificates {
                return Err(ServeError::Open { address });
            }
            if tls.is_none() && !insecure {
                return Err(ServeError::Readable { address });
            }
        }
        let tls = tls.map(acceptor).transpose()?;
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|cause| ServeError::Listen { address, cause })?;
        Ok(Self { listener, tls })
    }

    /// Returns the address with its port, also where any was asked for.
    ///
    /// # Errors
    /// The operating system does not tell it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is ready and the answers under way are sent, or ten seconds later.
    pub async fn run(self, site: Site, stop: impl Future<Output = ()>) {
        let site = Arc::new(site);
        let router = site.router();
        let places = Arc::new(Places::default());
        let (end, ends) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = accept(&self.listener, &places) => accepted,
                Some(_) = connections.join_next() => continue,
                () = &mut stop => break,
            };
            let (stream, peer, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Such as too many open files: others may close some.
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (router, tls, ends) = (router.clone(), self.tls.clone(), ends.clone());
            connections.spawn(async move {
                // Why no error: without it answers are only a little later.
                let _ = stream.set_nodelay(true);
                match tls {
                    None => serve(stream, router, ends, &place).await,
                    Some(tls) => match shaken(timeout(HEAD, tls.accept(stream)), &place).await {
                        Ok(Ok(stream)) => serve(stream, router, ends, &place).await,
                        Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS"),
                        Err(_) => tracing::debug!(%peer, "no TLS in time"),
                    },
                }
            });
        }
        drop(self.listener);
        site.stop();
        end.send_replace(true);
        let rest = async { while connections.join_next().await.is_some() {} };
        // Dropping what is left ends it.
        let _ = timeout(GRACE, rest).await;
    }
}

type Accepted = (TcpStream, SocketAddr, Place);

/// Accepts a connection that there is a place for.
async fn accept(listener: &TcpListener, places: &Arc<Places>) -> io::Result<Accepted> {
    loop {
        let (stream, peer) = listener.accept().await?;
        match places.take(peer.ip()).await {
            Some(place) => return Ok((stream, peer, place)),
            None => tracing::debug!(%peer, "too many connections of this address are at work"),
        }
    }
}

/// Waits for a handshake, which ends as if in time where another connection needs its place.
async fn shaken<T>(
    handshake: impl Future<Output = Result<T, Elapsed>>,
    place: &Place,
) -> Result<T, Option<Elapsed>> {
    tokio::select! {
        done = handshake => done.map_err(Some),
        () = place.lost() => Err(None),
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut ends: watch::Receiver<bool>,
    place: &Place,
) {
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let work = place.begin();
        let answer = hyper::service::Service::call(&service, request.map(Body::new));
        async move { answer.await.map(|answer| answer.map(|body| work.until_sent(body))) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES).max_headers(HEADERS);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let over = tokio::select! {
        served = connection.as_mut() => Some(served),
        _ = ends.wait_for(|end| *end) => None,
        () = sleep(LIFE) => None,
        () = place.lost() => return,
    };
    let served = match over {
        Some(served) => Ok(served),
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(GRACE, connection).await
        }
    };
    if let Ok(Err(error)) = served {
        tracing::debug!(%error, "a connection ended");
    }
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServeError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| ServeError::Tls(error.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("the authority of clients", path)? {
                roots.add(certificate).map_err(|error| ServeError::Tls(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| ServeError::Tls(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates("the certificate", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| pem("the key", &files.key, &error))?;
    let mut config =
        builder.with_single_cert(chain, key).map_err(|error| ServeError::Tls(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => {
            let cause = "there is no certificate in it".to_owned();
            Err(ServeError::Pem { what, path: path.to_owned(), cause })
        }
        read => read.map_err(|error| pem(what, path, &error)),
    }
}

fn pem(what: &'static str, path: &Path, error: &rustls::pki_types::pem::Error) -> ServeError {
    ServeError::Pem { what, path: path.to_owned(), cause: error.to_string() }
}
