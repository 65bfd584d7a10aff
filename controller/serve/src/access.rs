//! Who may read.
//!
//! Owns the token, the cookie of a login and the check of host names. Invariants: the token is compared in constant
//! time, is in no log and no cookie; a cookie is worth nothing after its time or after a restart.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::{
    HeaderMap,
    header::{AUTHORIZATION, COOKIE, HOST},
};
use base64ct::{Base64UrlUnpadded, Encoding as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::error::ServeError;

/// The shortest token, in bytes: nobody guesses 20 random characters.
const SHORTEST: usize = 20;
/// The longest token, in bytes.
const LONGEST: usize = 1024;
/// How long a login lasts.
pub(crate) const LOGIN: Duration = Duration::from_secs(12 * 60 * 60);
/// What the name of the cookie of a login begins with.
const NAME: &str = "gpufleet_login";

/// What is wrong with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the token has fewer than {SHORTEST} characters")]
    Short,
    #[error("the token has more than {LONGEST} characters")]
    Long,
    #[error("the token has characters that a header cannot hold: only visible ASCII is allowed")]
    Characters,
}

/// Who may read.
pub struct Access {
    /// Of this process alone.
    key: [u8; 64],
    /// A keyed digest of the token; `None` where no token is asked for.
    token: Option<[u8; 32]>,
    /// Whether requests must name this machine as `localhost` or by a loopback address.
    loopback_names: bool,
    /// Whether cookies travel through TLS alone.
    pub(crate) tls: bool,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("token", &self.token.is_some()).finish_non_exhaustive()
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It names another host: what a page of another site does with a name that points here.
    Host,
    /// It has neither the token nor a login.
    Unknown,
}

impl Access {
    /// Lets everyone in who reaches the socket, or only those with the token. A token is taken without blanks around it.
    ///
    /// # Errors
    /// The token cannot be one, or there are no random numbers.
    pub fn new(token: Option<&str>, tls: bool) -> Result<Self, ServeError> {
        let mut key = [0; 64];
        getrandom::fill(&mut key).map_err(|error| ServeError::Random(error.to_string()))?;
        let token = token.map(check_token).transpose()?;
        let token = token.map(|token| sign(&key, b"token", token.as_bytes()));
        Ok(Self { key, loopback_names: token.is_none(), token, tls })
    }

    /// Where client certificates say who may read, the name of the host does not matter.
    #[must_use]
    pub fn with_any_host(mut self) -> Self {
        self.loopback_names = false;
        self
    }

    /// Whether a token is asked for.
    pub const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Judges a request by its headers.
    pub(crate) fn judge(&self, headers: &HeaderMap, now: SystemTime) -> Result<(), Refused> {
        if self.loopback_names && !names_loopback(headers) {
            return Err(Refused::Host);
        }
        let known = self.token.is_none() || self.has_bearer(headers) || self.has_login(headers, now);
        if known { Ok(()) } else { Err(Refused::Unknown) }
    }

    /// Whether this is the token.
    pub(crate) fn is_token(&self, given: &str) -> bool {
        let Some(token) = &self.token else { return false };
        // Why over digests of equal length: the time tells nothing of the token, not even its length.
        mac(&self.key, b"token", given.trim().as_bytes()).verify_slice(token).is_ok()
    }

    fn has_bearer(&self, headers: &HeaderMap) -> bool {
        let word = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = word.and_then(|word| {
            let (scheme, token) = word.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token)
        });
        token.is_some_and(|token| self.is_token(token))
    }

    fn has_login(&self, headers: &HeaderMap, now: SystemTime) -> bool {
        let wanted = self.cookie_name(headers);
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut values = cookies.flat_map(|line| line.split(';')).filter_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == wanted).then_some(value)
        });
        // Why only a few: each costs a digest.
        values.by_ref().take(4).any(|value| self.is_login(value, now))
    }

    fn is_login(&self, value: &str, now: SystemTime) -> bool {
        let Some((until, signature)) = value.split_once('.') else { return false };
        let Ok(signature) = Base64UrlUnpadded::decode_vec(signature) else { return false };
        let signed = mac(&self.key, b"login", until.as_bytes()).verify_slice(&signature).is_ok();
        signed && until.parse::<u64>().is_ok_and(|until| seconds(now) < until)
    }

    /// Returns the `Set-Cookie` of a login that begins now.
    pub(crate) fn login_cookie(&self, headers: &HeaderMap, now: SystemTime) -> String {
        let until = seconds(now).saturating_add(LOGIN.as_secs()).to_string();
        let signature = Base64UrlUnpadded::encode_string(&sign(&self.key, b"login", until.as_bytes()));
        self.cookie(headers, &format!("{until}.{signature}"), LOGIN.as_secs())
    }

    /// Returns the `Set-Cookie` that ends a login in the browser.
    pub(crate) fn logout_cookie(&self, headers: &HeaderMap) -> String {
        self.cookie(headers, "", 0)
    }

    /// Returns the name of the cookie, with the port that the reader asked: browsers send a cookie to all ports of a host, so
    /// that two servers with one name would end each other's logins.
    fn cookie_name(&self, headers: &HeaderMap) -> String {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        // With this prefix a browser takes it from this host alone, and through TLS.
        let prefix = if self.tls { "__Host-" } else { "" };
        match port {
            Some(port) => format!("{prefix}{NAME}_{port}"),
            None => format!("{prefix}{NAME}"),
        }
    }

    fn cookie(&self, headers: &HeaderMap, value: &str, seconds: u64) -> String {
        let name = self.cookie_name(headers);
        let secure = if self.tls { "; Secure" } else { "" };
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }
}

fn check_token(token: &str) -> Result<&str, TokenError> {
    let token = token.trim();
    match token.len() {
        length if length < SHORTEST => Err(TokenError::Short),
        length if length > LONGEST => Err(TokenError::Long),
        _ if !token.bytes().all(|byte| byte.is_ascii_graphic()) => Err(TokenError::Characters),
        _ => Ok(token),
    }
}

/// A digest of a text for one purpose.
fn mac(key: &[u8; 64], purpose: &[u8], text: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new(key.into());
    mac.update(purpose);
    mac.update(&[0]);
    mac.update(text);
    mac
}

fn sign(key: &[u8; 64], purpose: &[u8], text: &[u8]) -> [u8; 32] {
    mac(key, purpose, text).finalize().into_bytes().into()
}

fn seconds(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs())
}

/// Whether a request names this machine in a way that no other site can: a name of another site that points to
/// 127.0.0.1 would let its pages read ours.
fn names_loopback(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) => (name, port),
            None => return false,
        },
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let port_is_one =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let is_here = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    port_is_one && is_here
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn access(token: Option<&str>) -> Access {
        Access::new(token, false).unwrap()
    }

    fn headers(all: &[(HeaderName, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn a_name_of_another_site_is_refused_on_loopback() {
        let access = access(None);
        let judge = |host: &str| access.judge(&headers(&[(HOST, host)]), SystemTime::now());
        for host in ["localhost", "LOCALHOST:7080", "127.0.0.1:7080", "127.9.9.9", "[::1]:7080", "[::1]"] {
            assert_eq!(judge(host), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7080",
            "10.0.0.1",
            "[::1",
            "[::2]",
            "localhost:x",
            "localhost:7080:1",
            "",
        ] {
            assert_eq!(judge(host), Err(Refused::Host), "{host}");
        }
        assert_eq!(access.judge(&HeaderMap::new(), SystemTime::now()), Err(Refused::Host));
        let two = headers(&[(HOST, "localhost")]);
        let mut two = two;
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert_eq!(access.judge(&two, SystemTime::now()), Err(Refused::Host));
    }

    #[test]
    fn only_the_token_itself_opens() {
        let access = access(Some(&format!(" {TOKEN}\n")));
        let bearer = |word: &str| {
            access.judge(&headers(&[(HOST, "fleet.example"), (AUTHORIZATION, word)]), SystemTime::now())
        };
        assert_eq!(bearer(&format!("Bearer {TOKEN}")), Ok(()));
        assert_eq!(bearer(&format!("bearer {TOKEN}")), Ok(()));
        for wrong in ["", "x", &TOKEN[1..], &format!("{TOKEN}0"), &TOKEN.to_uppercase()] {
            assert_eq!(bearer(&format!("Bearer {wrong}")), Err(Refused::Unknown), "{wrong}");
        }
        assert_eq!(bearer(TOKEN), Err(Refused::Unknown));
        assert_eq!(bearer(&format!("Basic {TOKEN}")), Err(Refused::Unknown));
        assert!(!format!("{access:?}").contains("0123"));
    }

    #[test]
    fn a_login_ends_and_cannot_be_made() {
        let (access, other) = (access(Some(TOKEN)), access(Some(TOKEN)));
        let now = SystemTime::now();
        let set = access.login_cookie(&HeaderMap::new(), now);
        assert!(set.contains("; HttpOnly; SameSite=Strict") && !set.contains(TOKEN), "{set}");
        let pair = set.split(';').next().unwrap().to_owned();
        let judge = |access: &Access, pair: &str, at| access.judge(&headers(&[(COOKIE, pair)]), at);
        assert_eq!(judge(&access, &pair, now), Ok(()));
        assert_eq!(judge(&access, &format!("theme=dark; {pair}"), now), Ok(()));
        assert_eq!(judge(&access, &pair, now + LOGIN), Err(Refused::Unknown), "over");
        assert_eq!(judge(&other, &pair, now), Err(Refused::Unknown), "after a restart");
        let later = pair.replacen("=1", "=9", 1);
        assert_eq!(judge(&access, &later, now), Err(Refused::Unknown), "made longer");
        for forged in [
            "gpufleet_login=",
            "gpufleet_login=.",
            "gpufleet_login=99999999999.",
            &format!("gpufleet_login={TOKEN}"),
        ] {
            assert_eq!(judge(&access, forged, now), Err(Refused::Unknown), "{forged}");
        }
        let tls = Access::new(Some(TOKEN), true).unwrap();
        let set = tls.login_cookie(&headers(&[(HOST, "fleet.example")]), now);
        assert!(set.starts_with("__Host-gpufleet_login=") && set.ends_with("; Secure"), "{set}");
    }

    #[test]
    fn a_login_is_of_one_port() {
        let access = access(Some(TOKEN));
        let now = SystemTime::now();
        let cookie = |host: &str| access.login_cookie(&headers(&[(HOST, host)]), now);
        let (one, other) = (cookie("localhost:7080"), cookie("[::1]:7081"));
        assert!(one.starts_with("gpufleet_login_7080=") && other.starts_with("gpufleet_login_7081="));
        let pair = one.split(';').next().unwrap();
        let judge = |host: &str| access.judge(&headers(&[(HOST, host), (COOKIE, pair)]), now);
        assert_eq!(judge("localhost:7080"), Ok(()));
        assert_eq!(judge("localhost:7081"), Err(Refused::Unknown));
    }

    #[test]
    fn weak_tokens_are_refused() {
        let of = |token: &str| check_token(token).map(|_| ());
        assert_eq!(of(""), Err(TokenError::Short));
        assert_eq!(of("secret"), Err(TokenError::Short));
        assert_eq!(of(&"x".repeat(1025)), Err(TokenError::Long));
        assert_eq!(of("two words are no token, line\nbreaks neither"), Err(TokenError::Characters));
        assert_eq!(of(TOKEN), Ok(()));
    }
}
