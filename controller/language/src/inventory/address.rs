//! Host identifiers with an optional port, by the rules of Ansible's `parse_address`.
//!
//! Owns the grammar of names, IPv4 and IPv6 addresses, all with ranges in them. Ansible takes any other text for a
//! host name without a port; callers decide what to do with it.

use std::sync::LazyLock;

use regex::Regex;

/// A host identifier, with its ranges unexpanded, and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address<'a> {
    pub host: &'a str,
    pub port: Option<u32>,
}

const NUMERIC_RANGE: &str = r"\[[0-9]+:[0-9]+(?::[0-9]+)?\]";
const HEXADECIMAL_RANGE: &str = r"\[[0-9a-f]+:[0-9a-f]+(?::[0-9]+)?\]";
const ANY_RANGE: &str = r"\[(?:[a-z]:[a-z]|[0-9]+:[0-9]+)(?::[0-9]+)?\]";

static IPV4: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let part = format!("(?:[01]?[0-9]{{1,2}}|2[0-4][0-9]|25[0-5]|{NUMERIC_RANGE})");
    Regex::new(&format!(r"(?i)^(?:{part}\.){{3}}{part}$")).ok()
});

static IPV6: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let part = format!("(?:[0-9a-f]{{1,4}}|{HEXADECIMAL_RANGE})");
    let pattern = r"(?i)^(?:(?:P:){7}P|(?:P:){1,6}:|(?:P:)(?::P){1,6}|(?:P:){2}(?::P){1,5}|(?:P:){3}(?::P){1,4}|(?:P:){4}(?::P){1,3}|(?:P:){5}(?::P){1,2}|(?:P:){6}(?::P)|:(?::P){1,6}|P?::|(?:0:){6}(?:P\.){3}P|::(?:ffff:)?(?:P\.){3}P|(?:0:){5}ffff:(?:P\.){3}P)$";
    Regex::new(&pattern.replace('P', &part)).ok()
});

static HOSTNAME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let label = format!(r"(?:(?:\w|{ANY_RANGE})(?:[\w-]|{ANY_RANGE})*)?(?:[^\W_]|{ANY_RANGE})");
    Regex::new(&format!(r"(?i)^{label}(?:\.{label})*$")).ok()
});

fn matches(regex: &LazyLock<Option<Regex>>, text: &str) -> bool {
    regex.as_ref().is_some_and(|regex| regex.is_match(text))
}

/// Parses `host`, `host:port` or `[host]:port`; `None` if the text is no host identifier.
pub(super) fn parse_address(text: &str) -> Option<Address<'_>> {
    let mut host = text;
    let mut port = None;
    if let Some((inner, number)) = bracketed_port(host) {
        (host, port) = (inner, Some(number));
    }
    if let Some((inner, number)) = plain_port(host) {
        (host, port) = (inner, Some(number));
    }
    let known = !host.is_empty() && (matches(&HOSTNAME, host) || matches(&IPV4, host) || is_ipv6(host));
    known.then_some(Address { host, port })
}

/// Whether a text is an IPv4 or IPv6 address, which may have ranges.
pub(super) fn is_ip(text: &str) -> bool {
    matches(&IPV4, text) || is_ipv6(text)
}

fn is_ipv6(text: &str) -> bool {
    text.contains(':') && matches(&IPV6, text)
}

/// Parses `[host]:port`.
fn bracketed_port(text: &str) -> Option<(&str, u32)> {
    let (inner, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
    (!inner.is_empty()).then_some((inner, number(port)?))
}

/// Parses `host:port`. Any other `:` must be inside of `[…]`.
fn plain_port(text: &str) -> Option<(&str, u32)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = number(port)?;
    let mut inside = false;
    for c in host.chars() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            ':' | ']' if !inside => return None,
            _ => {}
        }
    }
    (!inside).then_some((host, port))
}

fn number(text: &str) -> Option<u32> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patterns_compile() {
        assert!(IPV4.is_some() && IPV6.is_some() && HOSTNAME.is_some());
    }

    #[test]
    fn identifiers_are_read_as_ansible_reads_them() {
        for (text, host, port) in [
            ("gpu1", "gpu1", None),
            ("gpu1.example.com:2222", "gpu1.example.com", Some(2222)),
            ("gpu[001:128]", "gpu[001:128]", None),
            ("gpu[001:128]:22", "gpu[001:128]", Some(22)),
            ("10.0.0.[1:9:2]:22", "10.0.0.[1:9:2]", Some(22)),
            ("fe80::1", "fe80::1", None),
            ("[fe80::1]:2222", "fe80::1", Some(2222)),
            ("::1", "::1", None),
            ("2001:db8::[a:f]", "2001:db8::[a:f]", None),
            ("_a", "_a", None),
            ("ñandú", "ñandú", None),
        ] {
            assert_eq!(parse_address(text), Some(Address { host, port }), "{text}");
        }
        for text in
            ["", "a_:22", "-a", "a:b", "all:!rack1", "a b", "gpu*", "[fe80::1]", "gpu[1-4]", "a..b", "~x"]
        {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }
}
