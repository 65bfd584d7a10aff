//! Limits on how much one evaluation may produce, so that a wrong template is an error and does not exhaust the
//! machine.
//!
//! Owns the two limits, and the filters that [`super::rewrite`] puts around the operands of `~`, `+` and `*`, for
//! which the engine itself has no limit. Invariant: nothing is produced before it is known to fit; an exceeded limit
//! is reported at its place, even if a filter or `default` would have hidden it.

use std::cell::{Cell, RefCell};

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind};

use super::{TemplateError, frame};

type Engine = minijinja::Value;

/// Largest size of one value, in bytes. Tests use less, because they reach it many times in a debug build.
pub(super) const MAX_VALUE: usize = if cfg!(test) { 4 << 20 } else { 64 << 20 };
/// Largest total size of all values that one evaluation produces, in bytes.
const MAX_WORK: usize = 8 * MAX_VALUE;
/// Largest number of items in a list that a template produces.
pub(super) const MAX_ITEMS: usize = 1_000_000;
/// Size of a value beside its text, in bytes.
pub(super) const ITEM: usize = 16;
/// Memory for an item during evaluation, in bytes.
pub(super) const CELL: usize = 96;
/// Largest width or precision; larger ones are a mistake.
pub(super) const MAX_WIDTH: usize = 10_000;

/// Filters for operands that become one text, for those of sums, for the two of a product, and for what is looped
/// over.
pub(super) const WRITTEN: &str = "__written";
pub(super) const HELD: &str = "__held";
pub(super) const TIMES: &str = "__times";
pub(super) const BY: &str = "__by";
pub(super) const LOOPED: &str = "__looped";

thread_local! {
    static SPENT: Cell<usize> = const { Cell::new(0) };
    static PASSED: Cell<bool> = const { Cell::new(false) };
    static FACTORS: RefCell<Vec<Size>> = const { RefCell::new(Vec::new()) };
}

/// The size of a value as a factor of a product.
#[derive(Clone, Copy)]
enum Size {
    Text(usize),
    Items(usize),
    Count(usize),
    Other,
}

impl Size {
    fn of(value: &Engine) -> Self {
        if let Some(text) = value.as_str() {
            return Self::Text(text.len());
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => Self::Items(value.len().unwrap_or_default()),
            _ if value.is_integer() => value.as_usize().map_or(Self::Other, Self::Count),
            _ => Self::Other,
        }
    }

    fn times(self, other: Self) -> Self {
        match (self, other) {
            (Self::Text(length), Self::Count(count)) | (Self::Count(count), Self::Text(length)) => {
                Self::Text(length.saturating_mul(count))
            }
            (Self::Items(length), Self::Count(count)) | (Self::Count(count), Self::Items(length)) => {
                Self::Items(length.saturating_mul(count))
            }
            (Self::Count(one), Self::Count(other)) => Self::Count(one.saturating_mul(other)),
            _ => Self::Other,
        }
    }

    /// Takes the room for a value of this size.
    fn take(self) -> Result<(), String> {
        match self {
            Self::Text(length) => spend(length),
            Self::Items(length) if length > MAX_ITEMS => Err(too_long(length)),
            Self::Items(length) => spend(length.saturating_mul(ITEM)),
            Self::Count(_) | Self::Other => Ok(()),
        }
    }
}

fn too_long(length: usize) -> String {
    PASSED.set(true);
    format!("this would be a list of {length} items; {MAX_ITEMS} are the most")
}

fn mebibytes(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// The number of open factors when an evaluation began; the outermost one resets all counters.
pub(super) struct Mark(usize);

pub(super) fn begin(depth: usize) -> Mark {
    if depth <= 1 {
        SPENT.set(0);
        PASSED.set(false);
        FACTORS.with_borrow_mut(Vec::clear);
    }
    Mark(FACTORS.with_borrow(Vec::len))
}

pub(super) fn end(mark: &Mark) {
    FACTORS.with_borrow_mut(|factors| factors.truncate(mark.0));
}

/// Whether a limit was exceeded since the outermost evaluation began.
pub(super) fn passed() -> bool {
    PASSED.get()
}

/// Checks that a value of this size may be produced.
///
/// # Errors
/// If it is too large, with a sentence that says so.
pub(super) fn room(bytes: usize) -> Result<(), String> {
    if bytes <= MAX_VALUE {
        return Ok(());
    }
    PASSED.set(true);
    Err(match bytes {
        usize::MAX => {
            format!("this would be more than anything can hold; {} MiB are the most", MAX_VALUE >> 20)
        }
        _ => format!("this would be {} MiB; {} MiB are the most", mebibytes(bytes), MAX_VALUE >> 20),
    })
}

/// Checks [`room`], and counts the bytes towards the total of the evaluation.
///
/// # Errors
/// As [`room`], and if the evaluation produces too much in total.
pub(super) fn spend(bytes: usize) -> Result<(), String> {
    room(bytes)?;
    let spent = SPENT.get().saturating_add(bytes);
    SPENT.set(spent);
    if spent <= MAX_WORK {
        return Ok(());
    }
    PASSED.set(true);
    Err(format!(
        "it makes more than {} MiB on its way; is there a loop that doubles something?",
        MAX_WORK >> 20
    ))
}

/// Checks [`room`] for a number of pieces of a size, and `beside` further bytes.
///
/// # Errors
/// As [`room`].
pub(super) fn product(pieces: usize, each: usize, beside: usize) -> Result<(), String> {
    room(pieces.saturating_mul(each).saturating_add(beside))
}

pub(super) fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// The fields that Python's `'…'.format(…)` fills in a text.
#[derive(Default)]
struct Fields<'t> {
    count: usize,
    /// The largest number behind a `:`.
    widest: usize,
    /// The names of fields inside of other fields, each with the index that it has if it is unnamed.
    nested: Vec<(&'t str, usize)>,
}

impl<'t> Fields<'t> {
    fn of(text: &'t str) -> Self {
        let mut found = Self::default();
        // For each open field where its name begins; `None` once the name has ended.
        let mut open: Vec<Option<usize>> = Vec::new();
        let (mut digits, mut unnamed, mut at) = (0_usize, 0, 0);
        let bytes = text.as_bytes();
        while let Some(&byte) = bytes.get(at) {
            let depth = open.len();
            let digit = usize::from(byte.wrapping_sub(b'0'));
            match (byte, open.last_mut()) {
                (b'{' | b'}', None) if bytes.get(at + 1) == Some(&byte) => at += 1,
                (b'{', _) => {
                    open.push(Some(at + 1));
                    found.count += 1;
                }
                // In Python, a name between brackets may hold any character.
                (b'[', Some(Some(_))) => {
                    let rest = text.get(at..).unwrap_or_default();
                    let end =
                        rest.find(['{', '}', ']']).filter(|end| rest.as_bytes().get(*end) == Some(&b']'));
                    at += end.unwrap_or_default();
                }
                (b':' | b'!' | b'}', Some(place @ Some(_))) => {
                    let name = place.take().and_then(|start| text.get(start..at)).unwrap_or_default();
                    if depth > 1 {
                        found.nested.push((name, unnamed));
                    }
                    unnamed += usize::from(name.is_empty() || name.starts_with(['.', '[']));
                    if byte == b'}' {
                        open.pop();
                    }
                }
                (b'}', Some(None)) => _ = open.pop(),
                (_, Some(None)) if digit < 10 => {
                    digits = digits.saturating_mul(10).saturating_add(digit);
                    found.widest = found.widest.max(digits);
                    at += 1;
                    continue;
                }
                _ => {}
            }
            digits = 0;
            at += 1;
        }
        found
    }

    /// Returns the largest width or precision that results from these arguments.
    fn widest_of(&self, args: &[Engine]) -> usize {
        let mut widest = self.widest;
        for (name, unnamed) in &self.nested {
            let named =
                || args.iter().filter_map(|arg| arg.get_attr(name).ok()).filter_map(|it| it.as_usize());
            let at = if name.is_empty() { Some(*unnamed) } else { name.parse().ok() };
            let of_one = match at {
                // The field reads a part of an argument, which could be any of its values.
                None if name.contains(['.', '[']) => values(args).iter().filter_map(Engine::as_usize).max(),
                None => named().max(),
                Some(at) => args.get(at).and_then(Engine::as_usize),
            };
            widest = widest.max(of_one.unwrap_or_default());
        }
        widest
    }
}

/// Returns the arguments, with mappings replaced by their values.
fn values(args: &[Engine]) -> Vec<Engine> {
    let of = |arg: &Engine| match arg.kind() {
        ValueKind::Map => arg
            .try_iter()
            .map(|keys| keys.filter_map(|key| arg.get_item(&key).ok()).collect())
            .unwrap_or_default(),
        _ => vec![arg.clone()],
    };
    args.iter().flat_map(of).collect()
}

/// Checks that Python's `'…'.format(…)` may fill in this text.
///
/// # Errors
/// If a width or precision is too large, or the result would be.
pub(super) fn formatted(text: &str, args: &[Engine]) -> Result<(), Error> {
    let fields = Fields::of(text);
    let widest = fields.widest_of(args);
    if widest > MAX_WIDTH {
        PASSED.set(true);
        return Err(refused(format!("`format`: a width is at most {MAX_WIDTH}")));
    }
    let longest = values(args).iter().filter_map(|arg| arg.as_str().map(str::len)).max().unwrap_or_default();
    product(fields.count, widest.max(longest), text.len()).map_err(refused)
}

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(HELD, |value: &Engine| -> Result<Engine, Error> {
        Size::of(value).take().map_err(refused)?;
        Ok(value.clone())
    });
    environment.add_filter(WRITTEN, |value: &Engine| -> Result<Engine, Error> {
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                // Only the size matters here; other errors are reported by the operator itself.
                let size = frame::collect(value).map_or(0, |value| value.weight());
                if passed() {
                    return Err(TemplateError::new(room(usize::MAX).err().unwrap_or_default()).into_engine());
                }
                spend(size).map_err(refused)?;
            }
            _ => Size::of(value).take().map_err(refused)?,
        }
        Ok(value.clone())
    });
    environment.add_filter(TIMES, |value: &Engine| {
        FACTORS.with_borrow_mut(|factors| factors.push(Size::of(value)));
        value.clone()
    });
    environment.add_filter(BY, |value: &Engine, again: Option<bool>| -> Result<Engine, Error> {
        let left = FACTORS.with_borrow_mut(Vec::pop).unwrap_or(Size::Other);
        let product = left.times(Size::of(value));
        product.take().map_err(refused)?;
        if again == Some(true) {
            FACTORS.with_borrow_mut(|factors| factors.push(product));
        }
        Ok(value.clone())
    });
    environment.add_filter(LOOPED, |value: &Engine, each: usize| -> Result<Engine, Error> {
        let rounds = value.len().unwrap_or(1);
        spend(rounds.saturating_mul(each)).map_err(refused)?;
        Ok(value.clone())
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{Dict, Scope, Value, condition, engine::render_document, render, resolve};
    use super::*;

    fn scope() -> Arc<Scope> {
        let vars = json!({"l": [1], "t": "x", "many": 1_000_000_000_000_i64, "d": {"a": 1}});
        Scope::new(vec![Arc::new(Dict::trusted(vars.as_object().unwrap()))])
    }

    /// Returns a template that applies `each` in a loop, to the result of the round before.
    fn again(first: &str, each: &str) -> String {
        format!(
            "{{% set ns = namespace(x={first}) %}}{{% for i in range(60) %}}{{% set ns.x = {each} %}}{{% endfor %}}{{{{ ns.x }}}}"
        )
    }

    #[test]
    fn what_would_be_too_large_is_not_made() {
        let too_large = "MiB are the most";
        let too_many = "are the most";
        let on_the_way = "MiB on its way";
        let cases = [
            ("{{ '{:1000000000000}'.format(1) }}".to_owned(), "a width is at most 10000"),
            ("{{ '{:.1000000000000f}'.format(1.5) }}".to_owned(), "a width is at most 10000"),
            ("{{ '{:{}}'.format(1, many) }}".to_owned(), "a width is at most 10000"),
            ("{{ '{:{w}}'.format(1, w=many) }}".to_owned(), "a width is at most 10000"),
            ("{{ '%1000000000000d' % 1 }}".to_owned(), "a width is at most 10000"),
            ("{{ '%1000000000000d' | format(1) }}".to_owned(), "a width is at most 10000"),
            ("{{ ('{0}' * 1000).format('x' * 1000000) }}".to_owned(), too_large),
            ("{{ 'x'.center(1000000000000) }}".to_owned(), "the width is too large"),
            ("{{ 'x'.ljust(many) }}".to_owned(), "the width is too large"),
            ("{{ 'x'.zfill(many) }}".to_owned(), "the width is too large"),
            ("{{ 'x' * 10000000000 }}".to_owned(), "MiB are the most"),
            ("{{ 10 * many * t }}".to_owned(), "MiB are the most"),
            ("{{ t * 1000 * 1000 * 1000 }}".to_owned(), "MiB are the most"),
            ("{{ (t * 1000) * (1000 * 1000) }}".to_owned(), "MiB are the most"),
            ("{{ [0] * 10000000000 }}".to_owned(), too_many),
            ("{{ l * many }}".to_owned(), too_many),
            ("{{ range(1000000000000) | list }}".to_owned(), "range has too many elements"),
            ("{{ 10 ** 10 ** 10 }}".to_owned(), "**"),
            (again("'ab'", "ns.x ~ ns.x"), too_large),
            (again("'ab'", "ns.x + ns.x"), too_large),
            (again("'ab'", "(ns.x if true else '') ~ (ns.x if true else '')"), too_large),
            (again("'ab'", "ns.x * 2"), too_large),
            (again("'ab'", "[ns.x, ns.x] | join"), too_large),
            (again("'ab'", "ns.x | replace('a', ns.x)"), too_large),
            (again("'ab'", "ns.x.replace('a', ns.x)"), too_large),
            (again("'ab'", "ns.x.join([ns.x, ns.x, 'a'])"), too_large),
            (again("'ab'", "ns.x | regex_replace('a', ns.x)"), too_large),
            ("{{ ('a\n' * 10000) | indent(100000) }}".to_owned(), too_large),
            (again("'ab'", "'%s%s' | format(ns.x, ns.x)"), too_large),
            (again("'ab'", "'{0}{0}'.format(ns.x)"), too_large),
            (again("'ab'", "ns.x | list | string"), on_the_way),
            (again("[1]", "ns.x + ns.x"), too_many),
            (again("[1]", "ns.x * 2"), too_many),
            (again("[1]", "[ns.x, ns.x]"), on_the_way),
            (again("[1]", "[ns.x, ns.x] | list ~ ''"), "MiB"),
            (again("{'a': 1}", "{'a': ns.x, 'b': ns.x}"), on_the_way),
            (
                "{% set x = [1] %}{% for i in range(60) %}{% set _ = x.extend(x) %}{% endfor %}".to_owned(),
                "at most 1000000 items",
            ),
            (
                format!(
                    "{{% set x %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}{{{{ x | length }}}}",
                    "raw ".repeat(2000)
                ),
                "MiB",
            ),
            ("{% for i in range(100000) %}{{ 'x' * 1000000 }}{% endfor %}".to_owned(), on_the_way),
        ];
        for (source, expected) in cases {
            let error = render(&source, &scope()).expect_err(&source);
            assert!(error.message().contains(expected), "{source}: {}", error.message());
            if source.len() < 60 {
                assert!(render_document(&format!("# first\n{source}\n"), &scope()).is_err(), "{source}");
            }
        }
    }

    #[test]
    fn only_what_is_a_width_is_bounded_as_one() {
        for (source, expected) in [
            ("{{ '{v20250101} {n:>3}'.format(v20250101='a', n='b') }}", "a   b"),
            ("{{ '{{20250101}} {}'.format('a') }}", "{20250101} a"),
        ] {
            let shown = render(source, &scope()).map(|value| value.to_text());
            assert_eq!(shown, Ok(expected.to_owned()), "{source}");
        }
        // Not rendered, because the engine has no fields inside of fields yet.
        let by_name = Engine::from_pairs([("w", 4), ("s", 20_250_101)]);
        let numbers =
            |numbers: &[i64]| numbers.iter().map(|number| Engine::from(*number)).collect::<Vec<_>>();
        for (text, args, fits) in [
            ("{:{w}d} {s}", vec![Engine::from(1), by_name.clone()], true),
            ("{:{s}d} {w}", vec![Engine::from(1), by_name], false),
            ("{:{}d} {}", numbers(&[1, 4, 20_250_101]), true),
            ("{:{}d} {:{}d}", numbers(&[1, 4, 2, 20_250_101]), false),
            ("{0:{1}d} {2}", numbers(&[1, 4, 20_250_101]), true),
            ("{0:{2}d} {1}", numbers(&[1, 4, 20_250_101]), false),
        ] {
            assert_eq!(formatted(text, &args).is_ok(), fits, "{text}");
        }
        let lists = Fields::of("{:{w[a:20250101]}}");
        assert_eq!((lists.count, lists.widest, lists.nested), (2, 0, vec![("w[a:20250101]", 1)]));
    }

    #[test]
    fn the_error_stands_at_its_place() {
        let source = "a {{ t }}\nb {{ t * many }}\n";
        let error = render(source, &scope()).unwrap_err();
        let place = error.range().expect("a place");
        assert!(place.start > source.find('\n').unwrap(), "{place:?}");
        // `default` replaces what is missing, not what is too large.
        assert!(render("{{ (t * many) | default('fine') }}", &scope()).is_err());
        assert!(condition("t * many == ''", &scope()).is_err());
    }

    #[test]
    fn the_next_evaluation_begins_with_nothing_spent() {
        for _ in 0..3 {
            assert!(render(&again("'ab'", "ns.x ~ ns.x"), &scope()).is_err());
            assert_eq!(render("{{ t * 3 ~ 'y' + 'z' }}", &scope()).unwrap().to_text(), "xxxyz");
            assert_eq!(render("{{ 2 * 3 * 4 + -1 * (2 + 3) }}", &scope()), Ok(Value::Int(19)));
        }
    }

    #[test]
    fn values_that_hold_another_twice_are_weighed_as_they_are_written() {
        let mut value = Value::str("x");
        for _ in 0..60 {
            value = Value::list(vec![value.clone(), value]);
        }
        let layer: Dict = [("deep", value.clone())].into_iter().collect();
        let scope = Scope::new(vec![Arc::new(layer)]);
        for source in
            ["{{ deep }}", "{{ deep }} ", "{{ deep | string }}", "{{ deep | to_json }}", "{{ deep ~ '' }}"]
        {
            assert!(render(source, &scope).is_err(), "{source}");
        }
        assert!(resolve(&Value::text("{{ deep[0][0] }}"), &scope).is_err());
        assert_eq!(render("{{ deep | length }}", &scope), Ok(Value::Int(2)));
    }

    fn operand() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("ns.x".to_owned()),
            Just("t".to_owned()),
            Just("l".to_owned()),
            Just("many".to_owned()),
            Just("'ab'".to_owned()),
            (0_u32..20).prop_map(|n| n.to_string()),
        ];
        leaf.prop_recursive(3, 12, 2, |inner| {
            prop_oneof![
                (inner.clone(), prop_oneof![Just("~"), Just("+"), Just("*")], inner.clone())
                    .prop_map(|(a, sign, b)| format!("{a} {sign} {b}")),
                (inner.clone(), prop_oneof![Just("~"), Just("+"), Just("*")], inner.clone())
                    .prop_map(|(a, sign, b)| format!("({a} {sign} ({b}))")),
                inner.clone().prop_map(|a| format!("({a} if true else '')")),
                inner.clone().prop_map(|a| format!("({a}) | string")),
                inner.clone().prop_map(|a| format!("[{a}, {a}]")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) | replace('a', {b})")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}] | join({b})")),
                inner.prop_map(|a| format!("'{{:{{}}}}'.format('a', {a})")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
        #[test]
        fn nothing_that_is_made_passes_the_bounds(each in operand()) {
            if let Ok(value) = render(&again("'ab'", &each), &scope()) {
                prop_assert!(value.weight() <= MAX_VALUE);
            }
            // Templates with statements and bare expressions take different paths.
            if let Ok(value) = render(&format!("{{{{ {} }}}}", each.replace("ns.x", "t")), &scope()) {
                prop_assert!(value.weight() <= MAX_VALUE);
            }
        }
    }
}
