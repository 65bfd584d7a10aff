//! `daemon.json`: what it holds, what is declared of it, and where the two differ. Pure.

use gpufleet_protocol::{
    change::Value as Typed,
    looks_secret,
    tasks::{DockerDaemon, dotted},
};
use serde::Serialize as _;
use serde_json::{Map, Value, ser::PrettyFormatter};

/// Longest value that a change shows, in characters.
const SHOWN: usize = 200;

/// A setting that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The keys on the way to it.
    pub keys: Vec<String>,
    pub from: Option<Value>,
    pub to: Option<Value>,
}

impl Difference {
    /// The setting as people write it.
    pub fn name(&self) -> String {
        self.keys.join(".")
    }

    /// The key of the file, which decides whether the daemon reloads it.
    pub fn top(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    /// Whether the file no longer has the key itself.
    pub fn removes_top(&self) -> bool {
        self.keys.len() == 1 && self.to.is_none()
    }
}

/// Reads the file's text.
///
/// # Errors
/// If it is no JSON, or no mapping; with its line.
pub fn parse(text: &[u8]) -> Result<Map<String, Value>, String> {
    // As dockerd does. Source: moby, `daemon/config/config.go`, `getConflictFreeConfiguration`.
    if text.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("it is JSON, but no mapping of settings".to_owned()),
        Err(error) => Err(format!("it is no valid JSON: {error}")),
    }
}

/// Returns the text of a file with these settings, as Docker's own tools write it.
pub fn print(settings: &Map<String, Value>) -> Vec<u8> {
    let mut text = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
    // It cannot fail: the keys are texts, and the writer is memory.
    let _ = settings.serialize(&mut serializer);
    text.push(b'\n');
    text
}

/// Returns the driver of control groups that settings name.
pub fn cgroup_driver(settings: &Map<String, Value>) -> Option<&str> {
    let options = settings.get("exec-opts")?.as_array()?;
    options.iter().filter_map(Value::as_str).find_map(|option| option.strip_prefix("native.cgroupdriver="))
}

/// Returns the settings that the file is to have.
pub fn declared(task: &DockerDaemon, found: &Map<String, Value>) -> Map<String, Value> {
    let mut wanted = found.clone();
    for key in &task.remove {
        if let Some(keys) = dotted::find(&wanted, key) {
            dotted::remove(&mut wanted, &keys);
        }
    }
    dotted::merge(&mut wanted, &task.settings);
    wanted
}

/// Returns the settings that differ, in the order of the new file, and then what is gone.
pub fn differences(from: &Map<String, Value>, to: &Map<String, Value>) -> Vec<Difference> {
    let mut all = Vec::new();
    compare(from, to, &mut Vec::new(), &mut all);
    all
}

fn compare(
    from: &Map<String, Value>,
    to: &Map<String, Value>,
    way: &mut Vec<String>,
    all: &mut Vec<Difference>,
) {
    for (key, new) in to {
        let old = from.get(key);
        if old == Some(new) {
            continue;
        }
        way.push(key.clone());
        match (old, new) {
            (Some(Value::Object(old)), Value::Object(new)) => compare(old, new, way, all),
            (None, Value::Object(new)) if !new.is_empty() => compare(&Map::new(), new, way, all),
            _ => all.push(Difference { keys: way.clone(), from: old.cloned(), to: Some(new.clone()) }),
        }
        way.pop();
    }
    for (key, old) in from.iter().filter(|(key, _)| !to.contains_key(*key)) {
        let mut keys = way.clone();
        keys.push(key.clone());
        all.push(Difference { keys, from: Some(old.clone()), to: None });
    }
}

/// Returns a setting as a change shows it. Credentials are not shown.
pub fn shown(name: &str, value: Option<&Value>) -> Typed {
    let Some(value) = value else { return Typed::Absent };
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let has_credentials = text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    if has_credentials || looks_secret(name) {
        return Typed::Secret;
    }
    match value {
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| Typed::text(number.to_string()), Typed::number)
        }
        _ if text.chars().count() > SHOWN => {
            Typed::text(text.chars().take(SHOWN).chain(['…']).collect::<String>())
        }
        _ => Typed::text(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(value: Value) -> DockerDaemon {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn unknown_keys_and_their_order_stay() {
        let found = parse(br#"{"zeta": {"deep": [1, 2.50, null]}, "log-opts": {"max-size": "10m", "tag": "x"}, "alpha": 1}"#).unwrap();
        let wanted = declared(
            &task(
                json!({"settings": {"log-opts": {"max-size": "100m"}, "live-restore": true}, "remove": ["alpha"]}),
            ),
            &found,
        );
        assert_eq!(
            String::from_utf8(print(&wanted)).unwrap(),
            "{\n    \"zeta\": {\n        \"deep\": [\n            1,\n            2.5,\n            null\n        ]\n    },\n    \
             \"log-opts\": {\n        \"max-size\": \"100m\",\n        \"tag\": \"x\"\n    },\n    \"live-restore\": true\n}\n"
        );
        let named: Vec<_> = differences(&found, &wanted).iter().map(Difference::name).collect();
        assert_eq!(named, ["log-opts.max-size", "live-restore", "alpha"]);
    }

    #[test]
    fn broken_files_are_named_by_line() {
        let why = parse(b"{\n  \"a\": 1,\n}\n").unwrap_err();
        assert_eq!(why, "it is no valid JSON: trailing comma at line 3 column 1");
        assert_eq!(parse(b"[]").unwrap_err(), "it is JSON, but no mapping of settings");
        assert_eq!(parse(b" \n").unwrap(), Map::new());
    }

    #[test]
    fn credentials_are_not_shown() {
        let proxy = json!("http://ana:hunter2@proxy:3128");
        assert_eq!(shown("http-proxy", Some(&proxy)), Typed::Secret);
        assert_eq!(shown("registry-mirrors", Some(&json!(["https://u:p@m"]))), Typed::Secret);
        assert_eq!(shown("registry-mirrors", Some(&json!(["https://m"]))), Typed::text(r#"["https://m"]"#));
        assert_eq!(shown("mtu", Some(&json!(9000))), Typed::number(9000));
    }
}
