//! `drain` and `reboot` of a `rollout`, from the registry of drainers.

use serde_json::{Map, Value as Json, json};

use super::{boolean, duration, one_or_many};
use crate::playbook::{DRAINERS, DrainerInfo, SettingInfo, Shape};

/// The value of `drain`: a drainer's word, or a mapping of it to its settings.
pub(super) fn drain() -> Json {
    let bare = DRAINERS.iter().filter(|info| info.stands_alone()).map(|info| word(info.word, info.summary));
    let blocks: Map<String, Json> =
        DRAINERS.iter().map(|info| (info.word.to_owned(), settings_of(info))).collect();
    let mut forms: Vec<Json> = bare.collect();
    forms.push(json!({
        "type": "object",
        "properties": blocks,
        "additionalProperties": false,
        "minProperties": 1,
        "maxProperties": 1,
    }));
    json!({"anyOf": forms})
}

/// The value of `reboot`.
pub(super) fn reboot() -> Json {
    let drainers = DRAINERS.iter().filter(|info| info.reboots).map(|info| info.word);
    let ways: Vec<&str> = std::iter::once("ssh").chain(drainers).collect();
    json!({
        "type": "object",
        "properties": {
            "timeout": described(duration(), "How long a reboot may take."),
            "via": described(json!({"enum": ways}), "Who reboots nodes; a scheduler only those that it drained."),
        },
        "additionalProperties": false,
    })
}

fn settings_of(info: &DrainerInfo) -> Json {
    let about = format!("{}\n\nExample: {}", info.summary, info.example);
    let mut schema = mapping(&info.settings());
    schema["type"] = match info.stands_alone() {
        true => json!(["object", "null"]),
        false => json!("object"),
    };
    described(schema, &about)
}

fn mapping(settings: &[SettingInfo]) -> Json {
    let properties: Map<String, Json> =
        settings.iter().map(|setting| (setting.name.to_owned(), setting_schema(setting))).collect();
    let required: Vec<&str> =
        settings.iter().filter(|setting| setting.required).map(|setting| setting.name).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn setting_schema(setting: &SettingInfo) -> Json {
    let mut schema = described(shape(&setting.shape), setting.about);
    if let Some(default) = &setting.default {
        schema["default"] = match setting.shape {
            Shape::Flag => json!(default == "true"),
            _ => json!(default),
        };
    }
    schema
}

fn shape(shape: &Shape) -> Json {
    match shape {
        Shape::Duration { .. } => duration(),
        Shape::Flag => boolean(),
        Shape::Template | Shape::Text => json!({"type": "string", "minLength": 1}),
        Shape::Words(words) => json!({"enum": words}),
        // Why both: editors offer the words of an `enum`.
        Shape::Spellings { prefix, words } => {
            json!({"anyOf": [{"enum": words}, {"type": "string", "pattern": spellings(prefix, words)}]})
        }
        Shape::Names => one_or_many(json!({"type": "string"})),
        Shape::Mapping(settings) => mapping(settings),
        Shape::AnyOf(shapes) => json!({"anyOf": shapes.iter().map(self::shape).collect::<Vec<_>>()}),
    }
}

/// A pattern, because a JSON schema cannot ignore case.
fn spellings(prefix: &str, words: &[&str]) -> String {
    let letter = |letter: char| match letter.is_ascii_alphabetic() {
        true => format!("[{}{}]", letter.to_ascii_uppercase(), letter.to_ascii_lowercase()),
        false => letter.to_string(),
    };
    let any_case = |word: &str| word.chars().map(letter).collect::<String>();
    let words: Vec<String> = words.iter().map(|word| any_case(word)).collect();
    format!("^({})?({})$", any_case(prefix), words.join("|"))
}

fn word(word: &str, about: &str) -> Json {
    described(json!({"const": word}), about)
}

fn described(mut schema: Json, about: &str) -> Json {
    schema["description"] = json!(about);
    schema
}
