//! Filters for types, encodings and digests.

use gpufleet_protocol::hex;
use sha2::Digest as _;

use super::{Call, Filter, Test};
use crate::template::{inert, value::Value};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("bool", |call| Ok(Value::Bool(boolean(call.value())))),
    ("type_debug", |call| {
        Ok(match call.value() {
            Value::Null => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::List(_) => "list",
            Value::Map(_) => "dict",
            _ => "str",
        }
        .into())
    }),
    ("b64encode", |call| {
        let coded = base64_encode(&encode(&call.text()?, call.get(0, "encoding"))?);
        Ok(if call.flag(1, "urlsafe") { coded.replace('+', "-").replace('/', "_") } else { coded }.into())
    }),
    ("b64decode", |call| {
        let mut text = call.text()?.trim().to_owned();
        if call.flag(1, "urlsafe") {
            text = text.replace('-', "+").replace('_', "/");
        }
        let plain = || {
            let bytes = base64_decode(&text).ok_or("it is not base64")?;
            decode(bytes, call.get(0, "encoding"))
        };
        inert::decoded(&text, plain).map(Value::from)
    }),
    ("hash", |call| {
        let name = call.get(0, "hashtype").map_or_else(|| "sha1".to_owned(), Value::to_text);
        digest(&call.text()?, &name)
    }),
    ("md5", |call| digest(&call.text()?, "md5")),
    ("sha1", |call| digest(&call.text()?, "sha1")),
    ("checksum", |call| digest(&call.text()?, "sha1")),
    ("to_uuid", to_uuid),
    ("password_hash", |_| {
        Err("its salt would be another one each time; write the hash itself, made with `openssl passwd -6`, \
             into the variable"
            .to_owned())
    }),
];

pub(super) const TESTS: &[(&str, Test)] = &[
    ("string", |call| Ok(matches!(call.value(), Value::Str(_) | Value::Template(_)))),
    ("number", |call| Ok(matches!(call.value(), Value::Int(_) | Value::Float(_) | Value::Bool(_)))),
    ("sequence", |call| Ok(matches!(call.value(), Value::Str(_) | Value::List(_) | Value::Map(_)))),
    ("iterable", |call| Ok(matches!(call.value(), Value::Str(_) | Value::List(_) | Value::Map(_)))),
];

/// Converts to a boolean as Ansible does: the true words of YAML 1.1 and 1 are true, anything else is false.
fn boolean(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::Int(value) => *value == 1,
        Value::Float(value) => (*value - 1.0).abs() < f64::EPSILON,
        Value::Str(text) => matches!(text.to_lowercase().as_str(), "yes" | "on" | "1" | "true"),
        _ => false,
    }
}

fn digest(text: &str, name: &str) -> Result<Value, String> {
    Ok(match name {
        "md5" => hex(md5::compute(text.as_bytes()).0),
        "sha1" => hex(sha1::Sha1::digest(text.as_bytes())),
        "sha224" => hex(sha2::Sha224::digest(text.as_bytes())),
        "sha256" => hex(sha2::Sha256::digest(text.as_bytes())),
        "sha384" => hex(sha2::Sha384::digest(text.as_bytes())),
        "sha512" => hex(sha2::Sha512::digest(text.as_bytes())),
        other => {
            return Err(format!(
                "the digest `{other}` is not here; there are md5, sha1, sha224, sha256, sha384, sha512"
            ));
        }
    }
    .into())
}

/// The namespace of Ansible's UUIDs.
const NAMESPACE: &str = "361E6D51-FAEC-444A-9079-341386DA8E2E";

/// Returns a UUID of version 5 (RFC 9562).
fn to_uuid(call: &Call) -> Result<Value, String> {
    let namespace = call.get(0, "namespace").map_or_else(|| NAMESPACE.to_owned(), Value::to_text);
    let namespace = uuid::Uuid::parse_str(&namespace).map_err(|_| "the name space is not a UUID")?;
    let mut hasher = sha1::Sha1::new();
    hasher.update(namespace.as_bytes());
    hasher.update(call.text()?.as_bytes());
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(hasher.finalize()) {
        *to = from;
    }
    Ok(uuid::Builder::from_sha1_bytes(bytes).into_uuid().to_string().into())
}

fn encoding(name: Option<&Value>) -> String {
    name.map_or_else(|| "utf-8".to_owned(), Value::to_text).to_ascii_lowercase().replace('_', "-")
}

fn unknown_encoding(name: &str) -> String {
    format!("the encoding `{name}` is not here; there are utf-8, ascii, latin-1, utf-16-le, utf-16-be")
}

fn encode(text: &str, name: Option<&Value>) -> Result<Vec<u8>, String> {
    let name = encoding(name);
    let bounded = |most: u32| {
        let byte = |c: char| u8::try_from(c).ok().filter(|_| u32::from(c) <= most);
        text.chars()
            .map(byte)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| format!("some letters are not in {name}"))
    };
    match name.as_str() {
        "utf-8" | "utf8" => Ok(text.as_bytes().to_vec()),
        "ascii" | "us-ascii" => bounded(0x7f),
        "latin-1" | "latin1" | "iso-8859-1" => bounded(0xff),
        "utf-16-le" => Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        "utf-16-be" => Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
        _ => Err(unknown_encoding(&name)),
    }
}

fn decode(bytes: Vec<u8>, name: Option<&Value>) -> Result<String, String> {
    let name = encoding(name);
    let wide = |word: fn([u8; 2]) -> u16| {
        let words = bytes.chunks(2).map(|pair| match pair {
            [a, b] => Ok(word([*a, *b])),
            _ => Err(()),
        });
        words.collect::<Result<Vec<_>, ()>>().ok().and_then(|words| String::from_utf16(&words).ok())
    };
    match name.as_str() {
        "utf-8" | "utf8" => String::from_utf8(bytes).ok(),
        "ascii" | "us-ascii" => String::from_utf8(bytes).ok().filter(|text| text.is_ascii()),
        "latin-1" | "latin1" | "iso-8859-1" => Some(bytes.into_iter().map(char::from).collect()),
        "utf-16-le" => wide(u16::from_le_bytes),
        "utf-16-be" => wide(u16::from_be_bytes),
        _ => return Err(unknown_encoding(&name)),
    }
    .ok_or_else(|| format!("the decoded bytes are not text in {name}"))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64_encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            if index <= chunk.len() {
                out.push(char::from(ALPHABET[(word >> (18 - 6 * index) & 63) as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

fn base64_decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut word, mut bits) = (0_u32, 0_u32);
    for byte in text.trim_end_matches('=').bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        let digit = ALPHABET.iter().position(|letter| *letter == byte)?;
        word = word << 6 | u32::try_from(digit).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((word >> bits & 0xff) as u8);
        }
    }
    (bits < 6).then_some(out)
}
