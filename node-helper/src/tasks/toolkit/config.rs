//! `config.toml` of the toolkit: settings by their names, and everything else as it was. Pure.

use serde_json::Value;
use toml_edit::{Array, DocumentMut, Item, Table, Value as Toml};

/// A setting that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub name: String,
    pub from: Option<Value>,
    pub to: Value,
}

/// Returns the new text of the file, and what differs.
///
/// # Errors
/// If the text is no TOML, or a table stands where a setting is declared; in words that follow the file's name.
pub fn edited(text: &str, settings: &[(String, Value)]) -> Result<(String, Vec<Difference>), String> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        let line = error.span().map(|span| text.get(..span.start).unwrap_or_default().lines().count().max(1));
        let at = line.map(|line| format!(" at line {line}")).unwrap_or_default();
        format!("it is no valid TOML: {}{at}", error.message().lines().next().unwrap_or_default())
    })?;
    let mut differences = Vec::new();
    for (name, wanted) in settings {
        let keys: Vec<&str> = name.split('.').collect();
        let Some((last, way)) = keys.split_last() else { continue };
        let mut table = document.as_table_mut();
        for key in way {
            let next = table.entry(key).or_insert_with(|| {
                let mut new = Table::new();
                // Without a heading of its own, unless it gets settings.
                new.set_implicit(true);
                Item::Table(new)
            });
            table = next.as_table_mut().ok_or_else(|| format!("`{key}` of `{name}` is no table there"))?;
        }
        let found = table.get(last);
        if found.is_some_and(|item| !item.is_value()) {
            return Err(format!("`{name}` is a table there, and not a setting"));
        }
        let from = found.and_then(Item::as_value).and_then(json);
        if from.as_ref() == Some(wanted) {
            continue;
        }
        let mut new = toml(wanted);
        match table.get_mut(last).and_then(Item::as_value_mut) {
            Some(old) => {
                // The comment behind a value belongs to its line.
                *new.decor_mut() = old.decor().clone();
                *old = new;
            }
            None => {
                table.insert(last, Item::Value(new));
            }
        }
        differences.push(Difference { name: name.clone(), from, to: wanted.clone() });
    }
    Ok((document.to_string(), differences))
}

fn toml(value: &Value) -> Toml {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| number.as_f64().unwrap_or_default().into(), Into::into)
        }
        Value::Array(all) => all.iter().map(toml).collect::<Array>().into(),
        Value::String(text) => text.into(),
        other => other.to_string().into(),
    }
}

/// Returns a value as parameters have it; `None` for a date or an inline table.
fn json(value: &Toml) -> Option<Value> {
    Some(match value {
        Toml::String(text) => text.value().clone().into(),
        Toml::Integer(number) => (*number.value()).into(),
        Toml::Float(number) => (*number.value()).into(),
        Toml::Boolean(value) => (*value.value()).into(),
        Toml::Array(all) => all.iter().map(json).collect::<Option<Vec<_>>>()?.into(),
        Toml::Datetime(_) | Toml::InlineTable(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As the package writes it, shortened.
    const FILE: &str = "#accept-nvidia-visible-devices-as-volume-mounts = false\ndisable-require = false\n\n[nvidia-container-cli]\n#debug = \"/var/log/x.log\"\nload-kmods = true # needed\n\n[nvidia-container-runtime.modes.cdi]\nannotation-prefixes = [\"cdi.k8s.io/\"]\n";

    fn set(settings: Value) -> (String, Vec<Difference>) {
        let settings: Vec<_> =
            settings.as_object().unwrap().iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        edited(FILE, &settings).unwrap()
    }

    #[test]
    fn comments_and_order_stay() {
        let (text, differences) = set(json!({
            "accept-nvidia-visible-devices-envvar-when-unprivileged": false,
            "nvidia-container-cli.load-kmods": false,
            "nvidia-container-cli.no-cgroups": true,
            "nvidia-container-runtime.modes.cdi.annotation-prefixes": ["cdi.k8s.io/"],
            "features.x": 3,
        }));
        assert_eq!(
            text,
            "#accept-nvidia-visible-devices-as-volume-mounts = false\ndisable-require = false\naccept-nvidia-visible-devices-envvar-when-unprivileged = false\n\n[nvidia-container-cli]\n#debug = \"/var/log/x.log\"\nload-kmods = false # needed\nno-cgroups = true\n\n[nvidia-container-runtime.modes.cdi]\nannotation-prefixes = [\"cdi.k8s.io/\"]\n\n[features]\nx = 3\n"
        );
        assert_eq!(differences.len(), 4);
        assert_eq!(differences[1].from, Some(json!(true)));
        let settings = [("nvidia-container-cli.no-cgroups".to_owned(), json!(true))];
        assert_eq!(edited(&text, &settings).unwrap(), (text.clone(), Vec::new()));
    }

    #[test]
    fn mistakes_are_named() {
        let one = |text: &str, name: &str| edited(text, &[(name.to_owned(), json!(1))]).unwrap_err();
        assert_eq!(one("[a]\nb = = 1\n", "c").split(':').next(), Some("it is no valid TOML"));
        assert!(one("[a]\nb = = 1\n", "c").ends_with("at line 2"), "{}", one("[a]\nb = = 1\n", "c"));
        assert_eq!(one("[a]\n", "a"), "`a` is a table there, and not a setting");
        assert_eq!(one("a = 1\n", "a.b"), "`a` of `a.b` is no table there");
    }
}
