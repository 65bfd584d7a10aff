//! `<`, `<=`, `>` and `>=` of values without an order between them, which Python refuses and the engine answers.
//!
//! Owns the filters that [`super::rewrite`] puts behind the operands of a comparison, and the tests of the same
//! meaning. Invariant: a comparison of unlike types never becomes a condition that is silently false.

use std::cell::RefCell;
use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind};

use super::filters::compare;
use super::frame;
use super::value::Value;

type Engine = minijinja::Value;

/// Filters for the left operand, which is remembered, and for the right one, which is compared with it.
pub(super) const LEFT: &str = "__ordered";
pub(super) const RIGHT: &str = "__against";

thread_local! {
    /// Left operands of comparisons that are open, each with the number of its comparison in the text.
    static LEFTS: RefCell<Vec<(u32, Engine)>> = const { RefCell::new(Vec::new()) };
}

/// The names of a test, and its sign.
const TESTS: [(&[&str], &str); 4] = [
    (&["lt", "lessthan", "<"], "<"),
    (&["le", "<="], "<="),
    (&["gt", "greaterthan", ">"], ">"),
    (&["ge", ">="], ">="),
];

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(LEFT, |value: &Engine, number: u32| {
        LEFTS.with_borrow_mut(|lefts| lefts.push((number, value.clone())));
        value.clone()
    });
    environment.add_filter(RIGHT, |value: &Engine, number: u32, sign: &str| -> Result<Engine, Error> {
        // What lies above was left by chains that ended early.
        let left = LEFTS.with_borrow_mut(|lefts| {
            let at = lefts.iter().rposition(|(known, _)| *known == number)?;
            lefts.drain(at..).next().map(|(_, left)| left)
        });
        if let Some(left) = left {
            order(&left, value, sign)?;
        }
        Ok(value.clone())
    });
    for (names, sign) in TESTS {
        for name in names {
            environment.add_test(*name, move |left: &Engine, right: &Engine| -> Result<bool, Error> {
                let order = order(left, right, sign)?.unwrap_or_else(|| left.cmp(right));
                Ok(match sign {
                    "<" => order.is_lt(),
                    "<=" => order.is_le(),
                    ">" => order.is_gt(),
                    _ => order.is_ge(),
                })
            });
        }
    }
}

/// Forgets what evaluations before left behind.
pub(super) fn begin(depth: usize) {
    if depth <= 1 {
        LEFTS.with_borrow_mut(Vec::clear);
    }
}

/// Compares two values; `None` where the engine does it, or one of them is not known.
///
/// # Errors
/// If Python has no order between them.
fn order(left: &Engine, right: &Engine, sign: &str) -> Result<Option<Ordering>, Error> {
    let plain = |value: &Engine| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if plain(left) && plain(right) || left.as_str().is_some() && right.as_str().is_some() {
        return Ok(None);
    }
    if left.is_undefined() || right.is_undefined() {
        return Ok(None);
    }
    let (Ok(left), Ok(right)) = (frame::collect(left), frame::collect(right)) else { return Ok(None) };
    if left.has_unknown() || right.has_unknown() {
        return Ok(None);
    }
    let refused = || {
        let (left, right) = (python_type(&left), python_type(&right));
        let message = format!("'{sign}' not supported between instances of '{left}' and '{right}'");
        Error::new(ErrorKind::InvalidOperation, message)
    };
    match (&left, &right) {
        (Value::Map(_) | Value::Null, _) | (_, Value::Map(_) | Value::Null) => Err(refused()),
        _ => compare(&left, &right).map(Some).map_err(|_| refused()),
    }
}

/// Python's name of a value's type.
fn python_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Float(_) => "float",
        Value::List(_) => "list",
        Value::Map(_) => "dict",
        _ => "str",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{Dict, Scope, Truth, condition, render};

    fn scope() -> Arc<Scope> {
        let vars = json!({
            "n": 5, "t": "5.1", "f": 1.5, "b": true, "none": null, "l": [1, 2], "d": {"a": 1}, "r": {"stdout": "7"},
        });
        Scope::new(vec![Arc::new(Dict::trusted(vars.as_object().unwrap()))])
    }

    fn holds(text: &str) -> Result<bool, String> {
        condition(text, &scope())
            .map(|truth| truth == Truth::True)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn unlike_types_have_no_order() {
        for (text, sign, left, right) in [
            ("'5.4' | int >= '5.1'", ">=", "int", "str"),
            ("n < t", "<", "int", "str"),
            ("t < n", "<", "str", "int"),
            ("none < 3", "<", "NoneType", "int"),
            ("3 > none", ">", "int", "NoneType"),
            ("d < 3", "<", "dict", "int"),
            ("d < d", "<", "dict", "dict"),
            ("l <= n", "<=", "list", "int"),
            ("l < ['x']", "<", "list", "list"),
            ("r.stdout > 3", ">", "str", "int"),
            ("1 < 2 < t", "<", "int", "str"),
            ("(n + 1) * 2 >= t ~ 'x'", ">=", "int", "str"),
            ("'a' * 2 < n", "<", "str", "int"),
            ("-n < t", "<", "int", "str"),
            ("not n < t", "<", "int", "str"),
            ("[n, t] | select('lt', 3) | list", "<", "str", "int"),
            ("[{'x': t}] | selectattr('x', '>', 3) | list", ">", "str", "int"),
            ("n is ge(t)", ">=", "int", "str"),
            ("(n if true else t) < (t if true else n)", "<", "int", "str"),
        ] {
            let expected = format!("'{sign}' not supported between instances of '{left}' and '{right}'");
            let said = holds(text).expect_err(text);
            assert!(said.contains(&expected), "{text}: {said}");
        }
    }

    #[test]
    fn like_types_are_compared_as_in_python() {
        for (text, expected) in [
            ("n >= 5", true),
            ("n > f", true),
            ("b < 2", true),
            ("b == 1 and n < 6", true),
            ("t < '5.2'", true),
            ("'10.0' >= '5.1'", false),
            ("l < [1, 3]", true),
            ("l < [1, 2, 0]", true),
            ("n == t", false),
            ("n != t", true),
            ("1 < n < 9", true),
            ("1 < n > 9", false),
            ("9 < 1 < t", false),
            ("(9 < 1 < t) or n < 6", true),
            ("n < (1 if 9 < 1 < t else 6)", true),
            ("n - 1 < n + 1", true),
            ("n + (2) < l | length * 4", true),
            ("'a' * 2 < 'b'", true),
            ("-n < -1", true),
            ("(n) > (1)", true),
            ("n in l or n > 1", true),
            ("l | select('gt', 1) | list == [2]", true),
            ("n is lt 6", true),
            ("n is defined and n < 6", true),
            ("r.stdout | int > 3", true),
        ] {
            assert_eq!(holds(text), Ok(expected), "{text}");
        }
        assert!(holds("gone < 3").is_err());
        let shown = render("{% for i in [1, 2] if i < 2 %}{{ i < n }}{% endfor %}", &scope()).unwrap();
        assert_eq!(shown.to_text(), "True");
    }

    proptest! {
        /// Numbers of any shape are compared as they are: what was inserted changes no value.
        #[test]
        fn insertions_change_no_value(
            left in "(n|[0-9]|\\(n \\+ 1\\)|n \\* 2 - 1|-n|l\\[0\\]|l \\| length|\\(f\\)|r\\.stdout \\| int)",
            sign in "(<|<=|>|>=)",
            right in "(n|[0-9]|\\(n\\)|n \\+ \\(2\\)|-3|l\\[1\\]|d\\.a|\\(l\\) \\| length \\+ 1)",
        ) {
            let value = |text: &str| -> f64 {
                render(&format!("{{{{ {text} }}}}"), &scope()).unwrap().to_text().parse().unwrap()
            };
            let (a, b) = (value(&left), value(&right));
            let expected = match sign.as_str() { "<" => a < b, "<=" => a <= b, ">" => a > b, _ => a >= b };
            prop_assert_eq!(holds(&format!("{left} {sign} {right}")), Ok(expected));
        }
    }
}
