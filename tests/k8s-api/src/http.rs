//! The network side: TLS connections, HTTP/1.1, and broken connections.
//!
//! Converts hyper's requests to [`Request`](crate::api::Request)s and replies to bodies. The cluster makes all
//! decisions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

use crate::api::watch::Cursor;
use crate::api::{Body, Delivery, Reply, Request};
use crate::faults::Reach;
use crate::server::Shared;

/// Longest body of a request in bytes, as in the real server.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// The connection must end without another byte.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut")]
pub struct Cut;

type Bytestream = UnsyncBoxBody<Bytes, Cut>;

/// Accepts connections until the server is told to stop.
pub(crate) async fn accept(
    shared: Arc<Shared>,
    listener: std::net::TcpListener,
    tls: Arc<rustls::ServerConfig>,
) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let mut listener = Some(TcpListener::from_std(listener)?);
    // A bound socket that does not listen refuses connections, and keeps others from the port.
    let mut reserved: Option<TcpSocket> = None;
    let acceptor = TlsAcceptor::from(tls);
    let mut changed = shared.changed.subscribe();
    loop {
        // Before the state is read: a change between the two would be lost, and with it the end of the server.
        changed.mark_unchanged();
        if shared.stopped() {
            return Ok(());
        }
        if shared.reach() == Reach::Refused {
            if listener.take().is_some() {
                reserved = Some(bind(address).await?);
            }
            let _ = changed.changed().await;
            continue;
        }
        let open = match listener.take() {
            Some(open) => open,
            None => match reserved.take() {
                Some(socket) => socket.listen(1024)?,
                None => bind(address).await?.listen(1024)?,
            },
        };
        tokio::select! {
            accepted = open.accept() => {
                if let Ok((stream, _)) = accepted {
                    tokio::spawn(connection(shared.clone(), acceptor.clone(), stream));
                }
            }
            _ = changed.changed() => {}
        }
        listener = Some(open);
    }
}

async fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let mut tries = 0;
    loop {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        match socket.bind(address) {
            Ok(()) => return Ok(socket),
            Err(error) if tries == 200 => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        tries += 1;
    }
}

/// Waits until connections must be closed.
async fn refused(shared: &Shared) {
    let mut changed = shared.changed.subscribe();
    loop {
        changed.mark_unchanged();
        if shared.stopped() || shared.reach() == Reach::Refused || changed.changed().await.is_err() {
            return;
        }
    }
}

/// Waits while connections must be silent.
async fn silent(shared: &Shared) {
    let mut changed = shared.changed.subscribe();
    loop {
        changed.mark_unchanged();
        if shared.reach() != Reach::Silent || changed.changed().await.is_err() {
            return;
        }
    }
}

async fn connection(shared: Arc<Shared>, acceptor: TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let served = async {
        silent(&shared).await;
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|c| c.to_vec());
        let service = service_fn(|request| answer(shared.clone(), certificate.clone(), request));
        // A client that hangs up and a connection that is cut end the same way here.
        let _ =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    };
    tokio::select! {
        () = served => {}
        () = refused(&shared) => {}
    }
}

async fn answer(
    shared: Arc<Shared>,
    certificate: Option<Vec<u8>>,
    request: hyper::Request<Incoming>,
) -> Result<Response<Bytestream>, Cut> {
    let mut asked = head(&request);
    asked.certificate = certificate;
    match Limited::new(request.into_body(), BODY_LIMIT).collect().await {
        Ok(body) => asked.body = body.to_bytes().to_vec(),
        Err(_) => return Err(Cut),
    }
    silent(&shared).await;
    // Before it is handled: who has seen its fault may move the clock before this goes on.
    let mut from_ms = shared.clock.now_ms();
    let mut reply = shared.with(|cluster| cluster.handle(&asked));
    if reply.delivery == Delivery::Again {
        shared.clock.sleep_until(from_ms + reply.after_ms).await;
        asked.met = true;
        from_ms = shared.clock.now_ms();
        reply = shared.with(|cluster| cluster.handle(&asked));
    }
    if reply.after_ms > 0 {
        shared.clock.sleep_until(from_ms + reply.after_ms).await;
    }
    silent(&shared).await;
    respond(shared, &asked, reply)
}

fn head(request: &hyper::Request<Incoming>) -> Request {
    let header =
        |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let bearer = header("authorization").strip_prefix("Bearer ").map(|t| t.trim().to_owned());
    let query = request.uri().query().unwrap_or_default();
    Request {
        method: request.method().as_str().to_owned(),
        path: decode(request.uri().path(), false),
        query: query
            .split('&')
            .filter(|p| !p.is_empty())
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(key, true), decode(value, true))
            })
            .collect(),
        content_type: header("content-type"),
        user_agent: header("user-agent"),
        bearer,
        ..Request::default()
    }
}

/// Decodes percent-encoding.
fn decode(text: &str, form: bool) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'%' => match after
                .get(..2)
                .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok())
            {
                Some(byte) => {
                    bytes.push(byte);
                    rest = &after[2..];
                }
                None => bytes.push(first),
            },
            b'+' if form => bytes.push(b' '),
            _ => bytes.push(first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Renders pretty JSON for people's programs: the real server indents for them, and the recordings were made with
/// curl.
fn render(asked: &Request, value: &Value) -> Vec<u8> {
    let people = ["curl", "Wget", "Mozilla/5.0"].iter().any(|p| asked.user_agent.starts_with(p));
    let pretty = asked.parameter("pretty").map_or(people, |p| matches!(p, "true" | "1"));
    let mut bytes =
        if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) }.unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

fn respond(shared: Arc<Shared>, asked: &Request, reply: Reply) -> Result<Response<Bytestream>, Cut> {
    if reply.delivery == Delivery::Cut {
        return Err(Cut);
    }
    let mut response = Response::builder()
        .status(StatusCode::from_u16(reply.code).map_err(|_| Cut)?)
        .header("Audit-Id", Uuid::new_v4().to_string())
        .header("Cache-Control", "no-cache, private")
        .header("X-Kubernetes-Pf-Flowschema-Uid", "7e1b7a3e-5a3b-4f41-9f0c-2f8c6b1c9d10")
        .header("X-Kubernetes-Pf-Prioritylevel-Uid", "9a6f1f0e-0f0e-4f0a-8c89-5d1c1f3f7a21");
    for (name, value) in &reply.headers {
        response = response.header(*name, value);
    }
    let (kind, body) = match reply.body {
        Body::Watch(cursor) => ("application/json", watch(shared, *cursor)),
        Body::Json(value) => ("application/json", whole(render(asked, &value), reply.delivery)),
        Body::Text(text) => ("text/plain; charset=utf-8", whole(text.into_bytes(), reply.delivery)),
    };
    response.header("Content-Type", kind).body(body).map_err(|_| Cut)
}

fn whole(bytes: Vec<u8>, delivery: Delivery) -> Bytestream {
    if delivery == Delivery::Half {
        let half = Bytes::copy_from_slice(&bytes[..bytes.len() / 2]);
        return StreamBody::new(futures::stream::iter([Ok(Frame::data(half)), Err(Cut)])).boxed_unsync();
    }
    Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync()
}

/// Returns the events of a watch, one in each line.
fn watch(shared: Arc<Shared>, cursor: Cursor) -> Bytestream {
    let changed = shared.changed.subscribe();
    let events = futures::stream::unfold(Some((shared, cursor, changed)), |state| async move {
        let (shared, mut cursor, mut changed) = state?;
        loop {
            changed.mark_unchanged();
            let news = shared.with(|cluster| cluster.news(&mut cursor));
            if !news.events.is_empty() {
                let mut lines = Vec::new();
                for event in &news.events {
                    lines.extend(serde_json::to_vec(event).unwrap_or_default());
                    lines.push(b'\n');
                }
                let next = if news.end { None } else { Some((shared, cursor, changed)) };
                return Some((Ok(Frame::data(Bytes::from(lines))), next));
            }
            // After the events, because a connection breaks between two of them.
            if news.broken {
                return Some((Err(Cut), None));
            }
            if news.end {
                return None;
            }
            tokio::select! {
                () = shared.clock.sleep_until(news.next_ms) => {}
                over = changed.changed() => over.ok()?,
            }
        }
    });
    StreamBody::new(events.boxed()).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        assert_eq!(decode("spec.nodeName%3Dn1+x", true), "spec.nodeName=n1 x");
        assert_eq!(decode("/a%2Fb+c%zz%", false), "/a/b+c%zz%");
    }
}
