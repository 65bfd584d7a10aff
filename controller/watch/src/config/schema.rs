//! The JSON schema of `watch.yaml`, for editors.

use gpufleet_compliance::{Severity, Verdict};
use serde_json::{Value, json};

use super::{MOST_AUDITS, MOST_CHANNELS};

/// Returns the schema of `watch.yaml`.
pub fn schema() -> Value {
    let text = |about: &str| json!({"type": "string", "minLength": 1, "description": about});
    let texts = |about: &str| {
        let one = json!({"type": "string", "minLength": 1});
        json!({"anyOf": [one, {"type": "array", "items": one}], "description": about})
    };
    let flag = |about: &str| json!({"type": "boolean", "description": about});
    let time = |about: &str| {
        json!({"anyOf": [
            {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? *[a-zA-Z]*$"},
            {"type": "integer", "minimum": 1},
        ], "description": about})
    };
    let name =
        |about: &str| json!({"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$", "description": about});
    let days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let severities: Vec<&str> = Severity::ALL.iter().map(|it| it.word()).collect();
    let verdicts: Vec<&str> = Verdict::ALL.iter().filter(|it| it.is_not_ok()).map(|it| it.word()).collect();
    let clock = json!({"type": "string", "pattern": "^[0-9]{1,2}:[0-9]{1,2}$"});
    let audit = json!({
        "type": "object",
        "additionalProperties": false,
        "oneOf": [{"required": ["every"]}, {"required": ["at"]}],
        "anyOf": [{"required": ["health"]}, {"required": ["baselines"]}, {"required": ["playbooks"]}],
        "properties": {
            "name": name("Name of the schedule: the label `schedule` of metrics."),
            "inventory": texts("Inventories, as `-i` takes them; without it that of the settings."),
            "limit": text("Only hosts that this pattern selects, as `--limit` takes it."),
            "health": flag("Judges nodes by the baseline `core`."),
            "baselines": texts("Judges nodes by these baselines: names or files."),
            "playbooks": texts("Compares nodes with these playbooks."),
            "waivers": text("File of waivers."),
            "deep": flag("Also reads what takes long."),
            "every": time("An audit each time this duration has passed, such as `6h`."),
            "at": {
                "anyOf": [clock, {"type": "array", "minItems": 1, "items": clock}],
                "description": "An audit at these times of day, such as `\"02:00\"`.",
            },
            "days": {"type": "array", "items": {"type": "string", "examples": days}, "description": "With `at`: only on these days of the week, such as `mon`."},
            "timezone": text("With `at`: the time zone, such as Europe/Berlin."),
            "jitter": time("An audit begins up to this much later; how much differs by schedule, day and machine."),
            "timeout": time("How long the audit may take; 1 hour unless given."),
        },
    });
    let channel = json!({
        "type": "object",
        "additionalProperties": false,
        "oneOf": [{"required": ["webhook"]}, {"required": ["url_file"]}, {"required": ["command"]}],
        "properties": {
            "name": name("Name of the channel: the label `channel` of metrics."),
            "webhook": {"type": "string", "pattern": "^https?://", "description": "URL that notifications are posted to."},
            "url_file": text("File with that URL, where it is a secret."),
            "secret_file": text("File with the secret that signs notifications."),
            "token_file": text("File with a token that is sent as `Authorization: Bearer`."),
            "ca_file": text("Certificates in PEM that are trusted in place of the public authorities."),
            "proxy": text("HTTP proxy; none unless given, whatever the environment says."),
            "command": {"type": "array", "minItems": 1, "items": {"type": "string"}, "description": "Program with its arguments; it reads the notification from standard input."},
            "timeout": time("How long one delivery may take; 10 seconds unless given."),
            "verdicts": {"type": "array", "items": {"enum": verdicts}, "description": "Verdicts that are told; fail, unknown and drift unless given."},
            "severity": {"enum": severities, "description": "The least severity that is told; all of them unless given."},
            "audits": texts("Audits that are told; all of them unless given."),
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://gpufleet.invalid/schema/watch.schema.json",
        "title": "watch.yaml of gpufleet watch",
        "type": "object",
        "additionalProperties": false,
        "required": ["audits"],
        "properties": {
            "listen": text("Address of /metrics, such as 127.0.0.1:9464; none unless given."),
            "token_file": text("File with the token that readers of /metrics must send; needed beyond the machine itself."),
            "timezone": text("Time zone of all audits with `at`; the machine's unless given."),
            "reminder": time("After which time an unchanged finding is told again; never unless given."),
            "audits": {"type": "array", "minItems": 1, "maxItems": MOST_AUDITS, "items": audit, "description": "What is audited, and when."},
            "notifications": {"type": "array", "maxItems": MOST_CHANNELS, "items": channel, "description": "Who is told of changes."},
        },
    })
}
