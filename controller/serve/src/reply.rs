//! Answers: their headers, ETag and compression.

use std::io::Write as _;

use axum::{
    body::Body,
    http::{
        HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
        header::{
            ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
            IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
        },
    },
};
use base64ct::{Base64UrlUnpadded, Encoding as _};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

/// What pages may load and do: scripts, styles and data of this server alone.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                                 img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Bodies below this many bytes are not compressed.
const SMALL: usize = 1400;

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Html,
    Json,
    Style,
    Script,
    Icon,
    Text,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Json => "application/json",
            Self::Style => "text/css; charset=utf-8",
            Self::Script => "text/javascript; charset=utf-8",
            Self::Icon => "image/svg+xml",
            Self::Text => "text/plain; charset=utf-8",
        }
    }
}

/// An answer with a body that is known as a whole.
#[derive(Debug)]
pub(crate) struct Reply {
    status: StatusCode,
    kind: Kind,
    body: String,
    policy: Option<String>,
}

impl Reply {
    pub(crate) const fn new(status: StatusCode, kind: Kind, body: String) -> Self {
        Self { status, kind, body, policy: None }
    }

    pub(crate) const fn ok(kind: Kind, body: String) -> Self {
        Self::new(StatusCode::OK, kind, body)
    }

    /// Sets another content security policy.
    #[must_use]
    pub(crate) fn with_policy(mut self, policy: String) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Returns the answer to a request with these headers.
    pub(crate) fn answer(self, request: &HeaderMap) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding, Cookie, Authorization"));
        if let Some(policy) = self.policy.as_deref().and_then(|policy| HeaderValue::from_str(policy).ok()) {
            headers.insert(CONTENT_SECURITY_POLICY, policy);
        }
        if self.status == StatusCode::OK {
            let digest = Base64UrlUnpadded::encode_string(&Sha256::digest(&self.body));
            // Weak, because the compressed body has the same one.
            let tag = format!("W/\"{}\"", digest.get(..22).unwrap_or(&digest));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
            let known = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
            let is_known = known.flat_map(|line| line.split(',')).any(|one| {
                let one = one.trim();
                one == tag || one == "*" || tag.strip_prefix("W/") == Some(one)
            });
            if let Ok(tag) = HeaderValue::from_str(&tag) {
                headers.insert(ETAG, tag);
            }
            if is_known {
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                return response;
            }
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind.word()));
        let packed = if self.body.len() > SMALL && takes_gzip(request) { pack(&self.body) } else { None };
        let body = match packed {
            Some(packed) => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                Body::from(packed)
            }
            None => Body::from(self.body),
        };
        *response.status_mut() = self.status;
        *response.body_mut() = body;
        response
    }
}

fn takes_gzip(request: &HeaderMap) -> bool {
    let values = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|line| line.split(',')).any(|one| {
        let mut parts = one.split(';').map(str::trim);
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"))
            && !parts
                .any(|part| part.replace(' ', "").trim_end_matches(['0', '.']).eq_ignore_ascii_case("q="))
    })
}

fn pack(body: &str) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    encoder.write_all(body.as_bytes()).ok()?;
    encoder.finish().ok()
}

/// Adds what every answer has.
pub(crate) fn secure(response: &mut Response<Body>, tls: bool) {
    let headers = response.headers_mut();
    let mut default = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    default(CONTENT_SECURITY_POLICY, POLICY);
    default(CACHE_CONTROL, "no-store");
    default(X_CONTENT_TYPE_OPTIONS, "nosniff");
    default(X_FRAME_OPTIONS, "DENY");
    default(REFERRER_POLICY, "no-referrer");
    default(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    default(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    if tls {
        default(HeaderName::from_static("strict-transport-security"), "max-age=31536000");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: HeaderName, value: &str) -> HeaderMap {
        [(name, HeaderValue::from_str(value).unwrap())].into_iter().collect()
    }

    #[test]
    fn an_unchanged_body_is_not_sent_again() {
        let reply = || Reply::ok(Kind::Html, "<p>".repeat(1000));
        let first = reply().answer(&HeaderMap::new());
        let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
        for known in [tag.clone(), format!("\"x\", {tag}"), tag.trim_start_matches("W/").to_owned()] {
            let again = reply().answer(&request(IF_NONE_MATCH, &known));
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{known}");
        }
        assert_eq!(reply().answer(&request(IF_NONE_MATCH, "\"x\"")).status(), StatusCode::OK);
        let missing = Reply::new(StatusCode::NOT_FOUND, Kind::Html, String::new());
        assert!(!missing.answer(&HeaderMap::new()).headers().contains_key(ETAG));
    }

    #[test]
    fn only_who_takes_gzip_gets_it() {
        for (word, wanted) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("identity", false),
            ("gzip;q=0", false),
            ("gzip; q=0.0", false),
            ("", false),
        ] {
            let reply = Reply::ok(Kind::Html, "<p>".repeat(1000));
            let answer = reply.answer(&request(ACCEPT_ENCODING, word));
            assert_eq!(answer.headers().contains_key(CONTENT_ENCODING), wanted, "{word}");
        }
        let small = Reply::ok(Kind::Text, "ok".to_owned()).answer(&request(ACCEPT_ENCODING, "gzip"));
        assert!(!small.headers().contains_key(CONTENT_ENCODING));
    }
}
