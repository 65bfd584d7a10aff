//! IP addresses and networks: a part of `ansible.utils.ipaddr`, following the examples of its documentation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Call, Filter};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("ipaddr", |call| each(call, None)),
    ("ipv4", |call| each(call, Some(4))),
    ("ipv6", |call| each(call, Some(6))),
    ("ipwrap", |call| {
        let text = call.text()?;
        let (address, rest) = text.split_once('/').map_or((&*text, ""), |(address, rest)| (address, rest));
        let slash = if rest.is_empty() { "" } else { "/" };
        Ok(match address.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{address}]{slash}{rest}").into(),
            Err(_) => text.into(),
        })
    }),
];

/// Supported queries, for the message about an unknown one.
const QUESTIONS: &str = "address, network, prefix, netmask, hostmask, broadcast, host, subnet, net, size, version, \
                         private, public, loopback, a number, or a network";

#[derive(Clone, Copy)]
struct Block {
    ip: u128,
    prefix: u32,
    /// 32 or 128.
    bits: u32,
    /// Whether the text has a prefix.
    written: bool,
}

impl Block {
    fn read(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let (ip, bits) = match address.parse().ok()? {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
            IpAddr::V6(ip) => (u128::from(ip), 128),
        };
        let length = match prefix {
            None => bits,
            Some(prefix) => match (prefix.parse::<u32>(), prefix.parse::<Ipv4Addr>()) {
                (Ok(length), _) => length,
                (_, Ok(mask)) if bits == 32 => {
                    let mask = u32::from(mask);
                    Some(mask.leading_ones()).filter(|ones| mask.count_ones() == *ones)?
                }
                _ => return None,
            },
        };
        (length <= bits).then_some(Self { ip, prefix: length, bits, written: prefix.is_some() })
    }

    fn host_mask(self) -> u128 {
        let host_bits = self.bits - self.prefix;
        if host_bits >= 128 { u128::MAX } else { (1 << host_bits) - 1 }
    }

    fn all(self) -> u128 {
        if self.bits == 128 { u128::MAX } else { (1 << self.bits) - 1 }
    }

    fn network(self) -> u128 {
        self.ip & !self.host_mask()
    }

    fn single(self) -> bool {
        self.prefix == self.bits
    }

    fn write(self, ip: u128) -> String {
        if self.bits == 128 {
            return Ipv6Addr::from(ip).to_string();
        }
        Ipv4Addr::from(u32::try_from(ip).unwrap_or(u32::MAX)).to_string()
    }

    fn with_prefix(self, ip: u128) -> Value {
        format!("{}/{}", self.write(ip), self.prefix).into()
    }

    fn holds(self, other: Self) -> bool {
        self.bits == other.bits
            && other.prefix >= self.prefix
            && other.ip & !self.host_mask() == self.network()
    }

    fn is_private(self) -> bool {
        let blocks = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];
        blocks.iter().filter_map(|block| Self::read(block)).any(|block| block.holds(self))
    }

    fn is_special(self) -> bool {
        let blocks =
            ["127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "0.0.0.0/8", "::/127", "fe80::/10", "ff00::/8"];
        blocks.iter().filter_map(|block| Self::read(block)).any(|block| block.holds(self))
    }
}

/// Returns the items of a list that are addresses; for anything else the value itself, or false.
fn each(call: &Call, version: Option<u32>) -> Result<Value, String> {
    match call.value() {
        Value::List(list) => {
            let mut kept = Vec::new();
            for item in list.items() {
                match one(item, call.get(0, "query"), version)? {
                    Value::Bool(false) => {}
                    found => kept.push(found),
                }
            }
            Ok(Value::list(kept))
        }
        value => one(value, call.get(0, "query"), version),
    }
}

fn one(value: &Value, query: Option<&Value>, version: Option<u32>) -> Result<Value, String> {
    let no = Ok(Value::Bool(false));
    let text = value.to_text();
    let Some(block) = Block::read(text.trim()) else { return no };
    let own_version = if block.bits == 128 { 6 } else { 4 };
    if version.is_some_and(|version| version != own_version) {
        return no;
    }
    let when = |holds: bool| Ok(if holds { Value::str(text.trim()) } else { Value::Bool(false) });
    let number = |number: u128| i64::try_from(number).map_err(|_| "the number is too large".to_owned());
    let query = match query {
        None | Some(Value::Null) => return when(true),
        Some(Value::Int(index)) => {
            let host = if *index < 0 {
                block.host_mask().checked_sub(u128::from(index.unsigned_abs()) - 1)
            } else {
                Some(u128::from(index.unsigned_abs()))
            };
            return match host.filter(|host| *host <= block.host_mask()) {
                Some(host) => Ok(block.with_prefix(block.network() + host)),
                None => no,
            };
        }
        Some(query) => query.to_text(),
    };
    let is_network = block.written && !block.single() && block.ip == block.network();
    match query.as_str() {
        "" => when(true),
        "address" | "ip" if is_network => no,
        "address" | "ip" => Ok(block.write(block.ip).into()),
        "network" | "network_id" => Ok(block.write(block.network()).into()),
        "netmask" => Ok(block.write(block.all() & !block.host_mask()).into()),
        "hostmask" | "wildcard" => Ok(block.write(block.host_mask()).into()),
        "broadcast" if block.single() => no,
        "broadcast" => Ok(block.write(block.network() | block.host_mask()).into()),
        "prefix" => Ok(Value::Int(i64::from(block.prefix))),
        "size" => match block.host_mask().checked_add(1) {
            Some(size) => number(size).map(Value::Int),
            None => Err("the number is too large".to_owned()),
        },
        "host" | "host/prefix" | "ip/prefix" | "address/prefix" if is_network => no,
        "host" | "host/prefix" | "ip/prefix" | "address/prefix" => Ok(block.with_prefix(block.ip)),
        "subnet" | "network/prefix" => Ok(block.with_prefix(block.network())),
        "net" if is_network => Ok(block.with_prefix(block.network())),
        "net" => no,
        "version" => Ok(Value::Int(i64::from(own_version))),
        "private" => when(block.is_private()),
        "public" => when(!block.is_private() && !block.is_special()),
        "loopback" => when(
            ["127.0.0.0/8", "::1"].iter().filter_map(|text| Block::read(text)).any(|own| own.holds(block)),
        ),
        other => match Block::read(other) {
            Some(outer) => when(outer.holds(block)),
            None => Err(format!("`{other}` is not a question here; there are {QUESTIONS}")),
        },
    }
}
