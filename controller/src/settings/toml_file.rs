//! Reads `gpufleet.toml`: keys and values at the top level, nothing else.

use std::{path::Path, sync::Arc};

use toml::{Spanned, de::DeTable, de::DeValue};

use super::{Given, KEYS, Key, Kind, Origin, Setting, Sources, located, span};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile};

pub(super) fn read(
    source: &Arc<SourceFile>,
    sources: &Sources<'_>,
    errors: &mut Diagnostics,
) -> Vec<(&'static str, Given)> {
    let table = match DeTable::parse(source.text()) {
        Ok(table) => table,
        Err(error) => {
            let message = error.message().lines().next().unwrap_or("not TOML").to_owned();
            let diagnostic = Diagnostic::error(message).help("write `name = value`, texts in double quotes");
            errors.push(match error.span() {
                Some(range) => diagnostic.at(&span(source, range)),
                None => diagnostic,
            });
            return Vec::new();
        }
    };
    let folder = Path::new(source.name()).parent().unwrap_or(Path::new(""));
    let mut given = Vec::new();
    for (name, value) in table.get_ref() {
        let place = span(source, name.span());
        let Some(key) = KEYS.iter().find(|key| key.name == name.get_ref().as_ref()) else {
            let error = Diagnostic::error(format!("unknown setting `{}`", name.get_ref()));
            let close = crate::diagnostic::suggest(name.get_ref(), KEYS.iter().map(|key| key.name));
            let error = match close {
                Some(close) => error.help(format!("did you mean `{close}`?")),
                None => error.help("`gpufleet config` lists all settings"),
            };
            errors.push(error.at(&place).label("no setting of this name"));
            continue;
        };
        match read_value(key, value) {
            Some(setting) => {
                let value = located(key, setting, folder, sources.home, sources.environment);
                let origin = Origin::File { path: source.name().to_owned(), line: place.line };
                given.push((key.name, Given { value, origin }));
            }
            None => errors.push(
                Diagnostic::error(format!("`{}` wants {}", key.name, key.kind.wanted()))
                    .at(&span(source, value.span()))
                    .help(format!("it is for: {}", key.about)),
            ),
        }
    }
    given
}

fn read_value(key: &Key, value: &Spanned<DeValue<'_>>) -> Option<Setting> {
    match (value.get_ref(), key.kind) {
        (DeValue::Boolean(flag), Kind::Flag) => Some(Setting::Flag(*flag)),
        // No numbers or booleans in quotes: TOML has types, and a slip must not pass.
        (DeValue::String(_), Kind::Flag | Kind::Count) => None,
        (DeValue::String(text), Kind::Paths) => Some(Setting::List(vec![text.to_string()])),
        (DeValue::String(text), _) => key.read_text(text).ok(),
        (DeValue::Integer(number), Kind::Count | Kind::Duration) => {
            key.read_text(&number.as_str().replace('_', "")).ok()
        }
        (DeValue::Array(items), Kind::Paths) => {
            let text = |item: &Spanned<DeValue<'_>>| item.get_ref().as_str().map(str::to_owned);
            items.iter().map(text).collect::<Option<Vec<_>>>().map(Setting::List)
        }
        _ => None,
    }
}
