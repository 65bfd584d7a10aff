//! Units and ranges of parameters that are numbers.

use std::fmt;

use serde_json::Value;

use super::{Accepted, ParamError};
use crate::{Unit, lenient};

/// The unit and range of one or more numbers in a kind's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// The parameter. Numbers inside of it have their keys appended, with `*` for any key: `khugepaged.pages_to_scan`,
    /// `layout.*`.
    pub path: &'static str,
    /// `None` for a bare count: tries, pages, a port, a user's number.
    pub unit: Option<Unit>,
    /// `None` if only the parameter's type is a bound.
    pub least: Option<i64>,
    pub most: Option<i64>,
}

impl Number {
    /// Accepts any number.
    pub const fn any(path: &'static str, unit: Option<Unit>) -> Self {
        Self { path, unit, least: None, most: None }
    }

    /// Accepts numbers from `least` on.
    pub const fn from(path: &'static str, unit: Option<Unit>, least: i64) -> Self {
        Self { path, unit, least: Some(least), most: None }
    }

    /// Accepts numbers from `least` to `most`.
    pub const fn within(path: &'static str, unit: Option<Unit>, least: i64, most: i64) -> Self {
        Self { path, unit, least: Some(least), most: Some(most) }
    }

    /// Returns the parameter that holds the number.
    pub fn parameter(&self) -> &'static str {
        self.path.split('.').next().unwrap_or(self.path)
    }

    /// Writes unit and range into the JSON schema of the kind.
    #[cfg(feature = "schema")]
    pub(super) fn annotate(&self, schema: &mut Value) {
        let mut places = Vec::new();
        places_in(schema, String::new(), self.path, &mut places);
        for place in places {
            let Some(found) = schema.pointer_mut(&place).and_then(Value::as_object_mut) else { continue };
            found.insert("x-unit".to_owned(), self.unit.map_or("1", Unit::symbol).into());
            for (name, bound) in [("minimum", self.least), ("maximum", self.most)] {
                found.remove(name);
                found.extend(bound.map(|bound| (name.to_owned(), bound.into())));
            }
        }
    }

    /// Refuses numbers out of range.
    ///
    /// # Errors
    /// If one of the numbers is out of range.
    pub(super) fn check(&'static self, parameters: &Value) -> Result<(), ParamError> {
        let mut found = Vec::new();
        numbers(parameters, self.path, &mut Vec::new(), &mut found);
        let outside = |number: f64| {
            self.least.is_some_and(|least| number < least as f64)
                || self.most.is_some_and(|most| number > most as f64)
        };
        let Some((place, number)) = found.into_iter().find(|(_, number)| outside(*number)) else {
            return Ok(());
        };
        let wanted = Accepted::Number { whole: false, range: Some(self) };
        Err(ParamError { place, value: Some(number.to_string()), ..ParamError::wants(wanted) })
    }

    /// Whether the number stands at this place: a parameter and the keys inside of it.
    pub(super) fn is_at(&self, place: &[String]) -> bool {
        let mut path = self.path.split('.');
        place.iter().all(|key| path.next().is_some_and(|part| part == "*" || part == key))
            && path.next().is_none()
    }

    /// Writes for example `a percentage from 1 to 200`, or `a whole percentage from 1 to 200`.
    pub(super) fn describe(&self, whole: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.unit.map_or(lenient::NUMBER, Unit::counted);
        match counted.strip_prefix("a ") {
            Some(counted) if whole => write!(f, "a whole {counted}")?,
            _ => f.write_str(counted)?,
        }
        if let Some(least) = self.least {
            write!(f, " from {least}")?;
        }
        match self.most {
            Some(most) => write!(f, " to {most}"),
            None => Ok(()),
        }
    }
}

/// Finds the numbers at the end of a path, each with its place. A list on the way means each of its items.
fn numbers(value: &Value, path: &str, place: &mut Vec<String>, found: &mut Vec<(Vec<String>, f64)>) {
    if let Some(items) = value.as_array() {
        return items.iter().for_each(|item| numbers(item, path, place, found));
    }
    if path.is_empty() {
        return found.extend(value.as_f64().map(|number| (place.clone(), number)));
    }
    let (key, rest) = path.split_once('.').unwrap_or((path, ""));
    let Some(map) = value.as_object() else { return };
    for (name, inner) in map.iter().filter(|(name, _)| key == "*" || *name == key) {
        place.push(name.clone());
        numbers(inner, rest, place, found);
        place.pop();
    }
}

/// Finds the JSON pointers of the schemas for the numbers that [`numbers`] finds.
#[cfg(feature = "schema")]
fn places_in(schema: &Value, at: String, path: &str, found: &mut Vec<String>) {
    let Some(here) = schema.pointer(&at) else { return };
    if let Some(target) = here.get("$ref").and_then(Value::as_str) {
        return places_in(schema, target.trim_start_matches('#').to_owned(), path, found);
    }
    for form in ["anyOf", "oneOf", "allOf"] {
        let forms = here.get(form).and_then(Value::as_array).map_or(0, Vec::len);
        (0..forms).for_each(|form_at| places_in(schema, format!("{at}/{form}/{form_at}"), path, found));
    }
    places_in(schema, format!("{at}/items"), path, found);
    if path.is_empty() {
        return found.extend(is_number(here).then_some(at));
    }
    let (key, rest) = path.split_once('.').unwrap_or((path, ""));
    let inner =
        if key == "*" { format!("{at}/additionalProperties") } else { format!("{at}/properties/{key}") };
    places_in(schema, inner, rest, found);
}

#[cfg(feature = "schema")]
fn is_number(schema: &Value) -> bool {
    let is = |kind: &Value| kind == "integer" || kind == "number";
    match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is),
        Some(kind) => is(kind),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tasks::{Mistake, find};

    fn refused(kind: &str, parameters: Value) -> Option<(String, String)> {
        let error = find(kind).unwrap().parse(parameters).err()?;
        let Mistake::Value { wanted } = error.mistake else { panic!("{error:?}") };
        Some((error.place.join("."), wanted.to_string()))
    }

    #[test]
    fn numbers_are_in_their_range_wherever_they_stand() {
        let wants = |name: &str, wanted: &str| Some((name.to_owned(), wanted.to_owned()));
        for percent in [json!(0), json!(201), json!("0"), json!("250")] {
            let told = wants("limit_percent", "a percentage from 1 to 200");
            assert_eq!(refused("gpu_power", json!({"limit_percent": percent})), told);
        }
        let megahertz = wants("graphics_mhz", "a number of megahertz from 1");
        assert_eq!(refused("gpu_clocks", json!({"graphics_mhz": [0, 1980]})), megahertz);
        assert_eq!(refused("gpu_clocks", json!({"graphics_mhz": [1, 1980]})), None);
        let pages = wants("khugepaged.max_ptes_none", "a number from 0 to 8191");
        assert_eq!(refused("thp", json!({"khugepaged": {"max_ptes_none": 8192}})), pages);
        let counts = json!({"layout": {"1g.10gb": 1, "2g.20gb": -1}});
        assert_eq!(refused("gpu_mig", counts).map(|(place, _)| place), Some("layout".to_owned()));
        let whole = wants("khugepaged.max_ptes_none", "a whole number from 0 to 8191");
        assert_eq!(refused("thp", json!({"khugepaged": {"max_ptes_none": 1.5}})), whole);
        assert_eq!(refused("wait_for", json!({"port": 65_536})), wants("port", "a number from 1 to 65535"));
        for (name, number) in
            [("expires", -1), ("password_expire_max", -2), ("password_expire_warn", -99_999)]
        {
            assert_eq!(refused("user", json!({"name": "a", name: number})), None, "{name}");
        }
    }

    #[test]
    fn every_place_of_a_number_is_a_parameter() {
        for kind in crate::tasks::KINDS {
            for number in kind.numbers {
                assert!(kind.has(number.parameter()), "{}.{}", kind.name, number.path);
            }
            for (name, _) in kind.since {
                assert!(kind.has(name), "{}.{name}", kind.name);
            }
        }
    }

    /// Returns every number in the schema, and whether it has a unit.
    #[cfg(feature = "schema")]
    fn all_numbers(schema: &Value, at: &str, found: &mut Vec<(String, bool)>) {
        if is_number(schema) {
            found.push((at.to_owned(), schema.get("x-unit").is_some()));
        }
        let inner: Vec<(String, &Value)> = match schema {
            Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), value)).collect(),
            Value::Array(items) => {
                items.iter().enumerate().map(|(at, item)| (at.to_string(), item)).collect()
            }
            _ => Vec::new(),
        };
        inner.into_iter().for_each(|(name, value)| all_numbers(value, &format!("{at}/{name}"), found));
    }

    #[cfg(feature = "schema")]
    #[test]
    fn every_number_has_unit_and_range() {
        for kind in crate::tasks::KINDS {
            let mut found = Vec::new();
            all_numbers(&kind.schema(), "", &mut found);
            let bare: Vec<&String> = found.iter().filter(|(_, known)| !known).map(|(at, _)| at).collect();
            assert!(bare.is_empty(), "{}: give unit and range of {bare:?} in `numbers`", kind.name);
        }
    }
}
