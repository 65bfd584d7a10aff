//! Texts about task kinds; parameters and their words come from the types that parse them.

use std::fmt::Write as _;

use gpufleet_protocol::tasks::{Class, KINDS, KindInfo, find};
use serde_json::{Map, Value};

/// One parameter of a kind.
struct Parameter {
    name: String,
    required: bool,
    kind: String,
    default: Option<String>,
    /// The version of Ansible that introduced it; `None` if Ansible always or never had it.
    since: Option<String>,
    docs: String,
}

const fn class_words(class: Class) -> &'static str {
    match class {
        Class::Node => "declarative: planned, applied, verified on the node",
        Class::Command => "a command: its effect cannot be planned",
        Class::Control => "runs in the controller, touches no node",
        Class::Session => "acts on the connection or the life of the node",
    }
}

/// Returns the manual of one kind, for a terminal; `None` for an unknown name. Accepts aliases.
pub fn kind_text(name: &str) -> Option<String> {
    let kind = find(name)?;
    let mut out = format!("{}\n\n  {}\n\n", kind.name, kind.summary);
    let _ = writeln!(out, "class       {}", class_words(kind.class));
    let _ = writeln!(out, "disruption  {}", disruption_words(kind));
    if !kind.aliases.is_empty() {
        let _ = writeln!(out, "also        {}", kind.aliases.join(", "));
    }
    if let Some(parameter) = kind.free_form {
        let _ = writeln!(out, "free form   `{}: text` gives `{parameter}`", kind.name);
    }
    out.push_str("\nparameters\n");
    for parameter in parameters(kind) {
        let _ = writeln!(out, "  {}  ({})", parameter.name, brief(&parameter));
        let _ = writeln!(out, "      {}", parameter.docs);
    }
    if kind.open_keys {
        out.push_str("  any name  (any value)\n      Each key is a variable.\n");
    }
    if !kind.ignored.is_empty() {
        let _ = writeln!(out, "\nof Ansible's, these change nothing here\n  {}", kind.ignored.join(", "));
    }
    if !kind.refused.is_empty() {
        out.push_str("\nof Ansible's, these are refused\n");
    }
    for (name, instead) in kind.refused {
        let _ = writeln!(out, "  {name}\n      {instead}");
    }
    out.push_str(&super::gpu::hardware_text(kind));
    out.push_str(&super::ground::ground_text(kind));
    let _ = write!(out, "\nexample\n  - {}\n", kind.example);
    Some(out)
}

/// Returns the reference of all kinds, the content of docs/reference/kinds.md.
pub fn kinds_markdown() -> String {
    let mut out = String::from(
        "# Task kinds\n\n\
         Made from the registry by `gpufleet doc --all`; a test keeps this file true (`UPDATE=1 cargo test -p gpufleet \
         reference` rewrites it).\n\nA task is one of these kinds with its parameters. A value may be a template. Unknown \
         parameters are refused before any node is contacted.\n\n| kind | what it does | disturbs at most |\n|---|---|---|\n",
    );
    for kind in KINDS {
        let _ =
            writeln!(out, "| [`{0}`](#{0}) | {1} | {2} |", kind.name, kind.summary, disruption_words(kind));
    }
    for kind in KINDS {
        let _ = write!(out, "\n## {}\n\n{}\n\n", kind.name, kind.summary);
        let _ = writeln!(out, "* Class: {}.", class_words(kind.class));
        let _ = writeln!(out, "* Disturbs at most: {}.", disruption_words(kind));
        if !kind.aliases.is_empty() {
            let names: Vec<String> = kind.aliases.iter().map(|name| format!("`{name}`")).collect();
            let _ = writeln!(out, "* Also written: {}.", names.join(", "));
        }
        if let Some(parameter) = kind.free_form {
            let _ = writeln!(out, "* Free form: `{}: text` gives `{parameter}`.", kind.name);
        }
        let _ = write!(out, "\n```yaml\n- {}\n```\n", kind.example);
        let parameters = parameters(kind);
        if kind.open_keys {
            out.push_str("\nEach key is a variable of the host, with any value.\n");
        } else if !parameters.is_empty() {
            out.push_str("\n| parameter | value | meaning |\n|---|---|---|\n");
            for parameter in parameters {
                let docs = parameter.docs.replace('|', "\\|");
                let _ = writeln!(out, "| `{}` | {} | {docs} |", parameter.name, brief(&parameter));
            }
        }
        if !kind.ignored.is_empty() {
            let names: Vec<String> = kind.ignored.iter().map(|name| format!("`{name}`")).collect();
            let _ =
                writeln!(out, "\nOf Ansible's parameters these change nothing here: {}.", names.join(", "));
        }
        if !kind.refused.is_empty() {
            out.push_str("\n| refused parameter of Ansible | instead |\n|---|---|\n");
        }
        for (name, instead) in kind.refused {
            let _ = writeln!(out, "| `{name}` | {} |", instead.replace('|', "\\|"));
        }
        out.push_str(&super::ground::ground_markdown(kind));
    }
    out
}

fn disruption_words(kind: &KindInfo) -> String {
    match kind.class {
        Class::Command => "unknown".to_owned(),
        Class::Control => "nothing".to_owned(),
        Class::Node | Class::Session => kind.disruption.to_string(),
    }
}

/// Formats a parameter as `text, required` or `number in s, default 10, since Ansible 2.12`.
fn brief(parameter: &Parameter) -> String {
    let mut text = match (&parameter.default, parameter.required) {
        (_, true) => format!("{}, required", parameter.kind),
        (Some(default), false) => format!("{}, default `{default}`", parameter.kind),
        (None, false) => parameter.kind.clone(),
    };
    if let Some(since) = &parameter.since {
        let _ = write!(text, ", since {since}");
    }
    text
}

/// Returns the parameters in the JSON schema of their type, required ones first.
fn parameters(kind: &KindInfo) -> Vec<Parameter> {
    let schema = kind.schema();
    if kind.open_keys {
        return Vec::new();
    }
    let empty = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut all: Vec<Parameter> = schema
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&empty)
        .iter()
        .map(|(name, property)| Parameter {
            name: name.clone(),
            required: required.contains(&name.as_str()),
            kind: value_words(property, definitions, 0),
            default: default_words(property.get("default")),
            since: kind.since(name),
            docs: docs(property),
        })
        .collect();
    all.sort_by_key(|parameter| !parameter.required);
    all
}

fn docs(property: &Value) -> String {
    let text = property.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn default_words(default: Option<&Value>) -> Option<String> {
    match default? {
        Value::Null => None,
        Value::String(text) => Some(on_one_line(text)),
        Value::Bool(flag) => Some(if *flag { "true" } else { "false" }.to_owned()),
        Value::Array(list) if list.is_empty() => None,
        other => Some(other.to_string()),
    }
}

/// Writes line breaks and the like as `\n`, because a row of a table is one line.
fn on_one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => out.extend(letter.escape_default()),
            false => out.push(letter),
        }
    }
    out
}

/// Describes the possible values.
fn value_words(schema: &Value, definitions: &Map<String, Value>, depth: usize) -> String {
    // A limit, because a type that refers to itself would never end.
    if depth > 6 {
        return "value".to_owned();
    }
    let words = |inner: &Value| value_words(inner, definitions, depth + 1);
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let name = name.rsplit('/').next().unwrap_or(name);
        return definitions.get(name).map_or_else(|| "value".to_owned(), words);
    }
    if let Some(constant) = schema.get("const").and_then(Value::as_str) {
        return format!("`{}`", on_one_line(constant));
    }
    if let Some(names) = list("enum") {
        let names: Vec<String> =
            names.iter().filter_map(Value::as_str).map(|name| format!("`{}`", on_one_line(name))).collect();
        return names.join(", ");
    }
    if let Some(choices) = list("oneOf").or_else(|| list("anyOf")) {
        let mut parts: Vec<String> = Vec::new();
        for choice in
            choices.iter().filter(|choice| choice.get("type").and_then(Value::as_str) != Some("null"))
        {
            let text = words(choice);
            if !parts.contains(&text) {
                parts.push(text);
            }
        }
        let literals = parts.iter().all(|part| part.starts_with('`'));
        return parts.join(if literals { ", " } else { " or " });
    }
    let kind = match schema.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(Value::Array(kinds)) => {
            kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("")
        }
        _ => "",
    };
    match kind {
        "string" => "text".to_owned(),
        "integer" | "number" => number_words(schema),
        "boolean" => "yes or no".to_owned(),
        "array" => schema.get("items").map_or_else(
            || "list".to_owned(),
            |items| {
                let inner = words(items);
                if inner.contains(' ') { format!("list of ({inner})") } else { format!("list of {inner}") }
            },
        ),
        "object" => match schema.get("properties").and_then(Value::as_object) {
            Some(properties) => {
                let keys: Vec<&str> = properties.keys().map(String::as_str).collect();
                format!("mapping of {}", keys.join(", "))
            }
            None => "mapping".to_owned(),
        },
        _ => "any value".to_owned(),
    }
}

/// Formats a number's type, for example `number in % from 1 to 200`. That it is not negative is left out.
fn number_words(schema: &Value) -> String {
    let bound = |name: &str| schema.get(name).and_then(Value::as_i64);
    let mut text = "number".to_owned();
    if let Some(unit) = schema.get("x-unit").and_then(Value::as_str).filter(|unit| *unit != "1") {
        let _ = write!(text, " in {unit}");
    }
    let (least, most) = (bound("minimum"), bound("maximum"));
    if let Some(least) = least.filter(|least| *least != 0 || most.is_some()) {
        let _ = write!(text, " from {least}");
    }
    if let Some(most) = most {
        let _ = write!(text, " to {most}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_parses() {
        for kind in KINDS {
            let task: Value = serde_saphyr::from_str(kind.example).expect(kind.name);
            let (name, value) = task.as_object().and_then(|task| task.iter().next()).expect(kind.name);
            assert_eq!(name, kind.name);
            let parameters = match (kind.free_form, value) {
                (Some(parameter), Value::String(text)) => serde_json::json!({ parameter: text }),
                _ => value.clone(),
            };
            assert!(kind.parse(parameters).is_ok(), "{}: {}", kind.name, kind.example);
        }
    }

    #[test]
    fn every_parameter_is_explained() {
        for kind in KINDS {
            assert!(kind.summary.ends_with('.'), "{}", kind.name);
            for parameter in parameters(kind) {
                assert!(!parameter.docs.is_empty(), "{}.{}", kind.name, parameter.name);
            }
        }
    }

    #[test]
    fn the_reference_file_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/kinds.md");
        let wanted = kinds_markdown();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == wanted, "docs/reference/kinds.md is out of date: run this test with UPDATE=1");
    }

    #[test]
    fn a_row_of_a_table_is_one_line() {
        let page = kinds_markdown();
        for line in page.lines().filter(|line| line.starts_with('|')) {
            assert!(line.ends_with('|'), "{line}");
        }
        let sequence = page.lines().find(|line| line.starts_with("| `newline_sequence`")).unwrap();
        assert!(sequence.contains(r"`\n`, `\r\n`, `\r`, default `\n`"), "{sequence}");
    }

    #[test]
    fn a_kind_reads_like_a_manual() {
        assert_eq!(kind_text("ansible.posix.sysctl"), kind_text("sysctl"));
        assert_eq!(kind_text("gpu_powr"), None);
        insta::assert_snapshot!(kind_text("gpu_power").unwrap(), @r"
        gpu_power

          Sets the power limit of GPUs.

        class       declarative: planned, applied, verified on the node
        disruption  live

        parameters
          limit_watts  (number in W from 1)
              Limit in watts.
          limit_percent  (number in % from 1 to 200)
              Limit in percent of the default limit of the GPU or the module.
          scope  (`gpu`, `module`, default `gpu`)
              What is limited: `gpu`, or `module`, which is GPU and CPU of a Grace board together.
          gpus  (list of (number or text))
              GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.

        hardware
          reads                 nvmlDeviceGetPowerManagementLimit, nvmlDeviceGetPowerManagementLimitConstraints, nvmlDeviceGetPowerManagementDefaultLimit, nvmlDeviceGetEnforcedPowerLimit, nvmlDeviceGetFieldValues 187 to 189 and 192, within the scope of the module
          writes                nvmlDeviceSetPowerManagementLimit, nvmlDeviceSetPowerManagementLimit_v2, with NVML_POWER_SCOPE_MODULE
          takes effect          at once
          survives a reset      not documented, set again
          survives last client  no
          survives a reload     no
          survives a reboot     no
          architectures         GPU: all with power management; module: Grace Hopper and Grace Blackwell
          source                nvml.h 13; nvidia-smi documentation, `--scope`

        widely believed, and not so
          a power limit stays until it is set anew
              without persistence the driver takes the default again when the last client ends
          on a Grace board the limit of the GPU is the limit of the module
              each has its own: with a limit of the module, the CPU's power comes out of what the GPU may draw
          the limit that was asked for is the one that counts
              the enforced limit is the smallest of all limiters, and may be below it

        example
          - gpu_power: {limit_watts: 600}
        ");
    }
}
