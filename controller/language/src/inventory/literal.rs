//! Values in INI inventories: what Python's `ast.literal_eval` makes of a text, or else the text itself.
//!
//! Owns the subset of Python's expression grammar that a literal may use. Invariant: any text has a value.

use serde_json::{Map, Value, json};

/// Deepest nesting that is read as a literal.
const MAX_DEPTH: usize = 64;

/// Returns the value of `text`: `1` is a number, `True` a boolean, `[1, 'a']` a list, and anything else a string.
pub(super) fn value_of(text: &str) -> Value {
    let starts = text.trim_start_matches([' ', '\t']).chars().next();
    // Nearly all values are plain words or addresses; only these characters can begin a literal.
    let possible = starts.is_some_and(|c| c.is_ascii_digit() || "+-.([{'\"TFNrRbBuUs".contains(c));
    if !possible {
        return Value::String(text.to_owned());
    }
    let mut reader = Reader { chars: text.chars().collect(), at: 0, depth: 0 };
    match reader.whole() {
        Some(literal) => literal.into_json(),
        None => Value::String(text.to_owned()),
    }
}

/// A literal before its conversion to JSON; keys of dictionaries and members of sets must be comparable.
#[derive(Clone, Debug, PartialEq)]
enum Literal {
    Json(Value),
    /// An imaginary number, as Python prints it.
    Imaginary(String),
    List(Vec<Literal>),
    Dict(Vec<(Literal, Literal)>),
}

impl Literal {
    fn into_json(self) -> Value {
        match self {
            Literal::Json(value) => value,
            Literal::Imaginary(text) => Value::String(text),
            Literal::List(items) => Value::Array(items.into_iter().map(Literal::into_json).collect()),
            Literal::Dict(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(key_text(key.into_json()), value.into_json());
                }
                Value::Object(map)
            }
        }
    }
}

fn key_text(key: Value) -> String {
    match key {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn whole(&mut self) -> Option<Literal> {
        let first = self.tuple_or_expression(false)?;
        self.blanks(false);
        if self.peek() == Some('#') {
            return Some(first);
        }
        (self.at == self.chars.len()).then_some(first)
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn peek_at(&self, offset: usize) -> Option<char> {
        self.chars.get(self.at + offset).copied()
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += 1;
        }
        found
    }

    /// Skips blanks, and inside of brackets line breaks and comments too.
    fn blanks(&mut self, inside: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\u{c}' => self.at += 1,
                '\n' | '\r' if inside => self.at += 1,
                '#' if inside => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                _ => break,
            }
        }
    }

    /// Parses `a`, or a tuple `a, b` without brackets.
    fn tuple_or_expression(&mut self, inside: bool) -> Option<Literal> {
        let first = self.expression(inside)?;
        self.blanks(inside);
        if self.peek() != Some(',') {
            return Some(first);
        }
        let mut items = vec![first];
        while self.take(',') {
            self.blanks(inside);
            if matches!(self.peek(), None | Some('#' | ')')) {
                break;
            }
            items.push(self.expression(inside)?);
            self.blanks(inside);
        }
        Some(Literal::List(items))
    }

    fn expression(&mut self, inside: bool) -> Option<Literal> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        self.blanks(inside);
        let result = self.signed(inside);
        self.depth -= 1;
        result
    }

    fn signed(&mut self, inside: bool) -> Option<Literal> {
        let negative = match self.peek()? {
            '-' => true,
            '+' => false,
            _ => return self.atom(inside),
        };
        self.at += 1;
        self.blanks(inside);
        match self.atom(inside)? {
            Literal::Json(Value::Number(number)) if !negative => Some(Literal::Json(Value::Number(number))),
            Literal::Json(Value::Number(number)) => negate(&number).map(Literal::Json),
            Literal::Imaginary(text) => {
                Some(Literal::Imaginary(if negative { format!("(-0-{text})") } else { text }))
            }
            // Numbers that JSON cannot hold are strings by now, and a sign only changes their text.
            Literal::Json(Value::String(text))
                if text.bytes().all(|b| b.is_ascii_digit()) || text == "inf" =>
            {
                Some(Literal::Json(Value::String(if negative { format!("-{text}") } else { text })))
            }
            _ => None,
        }
    }

    fn atom(&mut self, inside: bool) -> Option<Literal> {
        match self.peek()? {
            '(' => {
                self.at += 1;
                self.blanks(true);
                if self.take(')') {
                    return Some(Literal::List(Vec::new()));
                }
                let value = self.tuple_or_expression(true)?;
                self.blanks(true);
                self.take(')').then_some(value)
            }
            '[' => {
                self.at += 1;
                self.items(']').map(Literal::List)
            }
            '{' => {
                self.at += 1;
                self.braces()
            }
            '\'' | '"' => self.strings(inside),
            '.' if self.peek_at(1) == Some('.') && self.peek_at(2) == Some('.') => {
                self.at += 3;
                Some(Literal::Json("...".into()))
            }
            c if c.is_ascii_digit() || c == '.' => self.number(),
            _ => self.word(inside),
        }
    }

    fn items(&mut self, close: char) -> Option<Vec<Literal>> {
        let mut items = Vec::new();
        loop {
            self.blanks(true);
            if self.take(close) {
                return Some(items);
            }
            items.push(self.expression(true)?);
            self.blanks(true);
            if !self.take(',') {
                return self.take(close).then_some(items);
            }
        }
    }

    /// Parses a dictionary or a set.
    fn braces(&mut self) -> Option<Literal> {
        self.blanks(true);
        if self.take('}') {
            return Some(Literal::Dict(Vec::new()));
        }
        let first = self.expression(true)?;
        self.blanks(true);
        if self.peek() != Some(':') {
            let mut members = vec![first];
            if self.take(',') {
                for member in self.items('}')? {
                    if !members.contains(&member) {
                        members.push(member);
                    }
                }
            } else if !self.take('}') {
                return None;
            }
            return members.iter().all(hashable).then_some(Literal::List(members));
        }
        let mut entries = Vec::new();
        let mut key = first;
        loop {
            self.blanks(true);
            if !self.take(':') || !hashable(&key) {
                return None;
            }
            let value = self.expression(true)?;
            entries.push((key, value));
            self.blanks(true);
            let more = self.take(',');
            self.blanks(true);
            if self.take('}') {
                return Some(Literal::Dict(entries));
            }
            if !more {
                return None;
            }
            key = self.expression(true)?;
        }
    }

    /// Parses `True`, `False`, `None`, `set()`, or a string with a prefix.
    fn word(&mut self, inside: bool) -> Option<Literal> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            self.at += 1;
        }
        let word: String = self.chars.get(start..self.at)?.iter().collect();
        match word.as_str() {
            "True" => Some(Literal::Json(true.into())),
            "False" => Some(Literal::Json(false.into())),
            "None" => Some(Literal::Json(Value::Null)),
            "set" => {
                self.blanks(inside);
                let open = self.take('(');
                self.blanks(true);
                (open && self.take(')')).then_some(Literal::List(Vec::new()))
            }
            _ if matches!(self.peek(), Some('\'' | '"')) && is_prefix(&word) => {
                self.at = start;
                self.strings(inside)
            }
            _ => None,
        }
    }

    /// Parses one or more adjacent string literals.
    fn strings(&mut self, inside: bool) -> Option<Literal> {
        let mut text = String::new();
        let mut bytes = None;
        loop {
            let start = self.at;
            while self.peek().is_some_and(|c| c.is_ascii_alphabetic()) {
                self.at += 1;
            }
            let prefix: String = self.chars.get(start..self.at)?.iter().collect::<String>().to_lowercase();
            let quote = self.peek().filter(|c| matches!(c, '\'' | '"'));
            if quote.is_none() || !is_prefix(&prefix) {
                self.at = start;
                break;
            }
            let is_bytes = prefix.contains('b');
            if *bytes.get_or_insert(is_bytes) != is_bytes {
                return None;
            }
            text.push_str(&self.string(quote?, prefix.contains('r'), is_bytes)?);
            self.blanks(inside);
        }
        // Ansible treats bytes as foreign text, which is never a template.
        bytes.map(|is_bytes| {
            Literal::Json(if is_bytes { json!({ "__ansible_unsafe": text }) } else { Value::String(text) })
        })
    }

    fn string(&mut self, quote: char, raw: bool, bytes: bool) -> Option<String> {
        let long = self.peek_at(1) == Some(quote) && self.peek_at(2) == Some(quote);
        self.at += if long { 3 } else { 1 };
        let mut text = String::new();
        loop {
            let c = self.peek()?;
            self.at += 1;
            if c == quote {
                if !long {
                    return Some(text);
                }
                if self.peek() == Some(quote) && self.peek_at(1) == Some(quote) {
                    self.at += 2;
                    return Some(text);
                }
                text.push(c);
            } else if c == '\\' && raw {
                text.push(c);
                text.push(self.peek()?);
                self.at += 1;
            } else if c == '\\' {
                self.escape(&mut text, bytes)?;
            } else if c == '\n' && !long || bytes && !c.is_ascii() {
                return None;
            } else {
                text.push(c);
            }
        }
    }

    fn escape(&mut self, text: &mut String, bytes: bool) -> Option<()> {
        let c = self.peek()?;
        self.at += 1;
        let simple = match c {
            '\n' => return Some(()),
            '\\' | '\'' | '"' => c,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            '0'..='7' => {
                let mut code = c.to_digit(8)?;
                for _ in 0..2 {
                    if let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) {
                        code = code * 8 + digit;
                        self.at += 1;
                    }
                }
                char::from_u32(code)?
            }
            'x' => self.hex(2)?,
            'u' if !bytes => self.hex(4)?,
            'U' if !bytes => self.hex(8)?,
            'N' if !bytes => return None,
            other => {
                text.push('\\');
                other
            }
        };
        text.push(simple);
        Some(())
    }

    fn hex(&mut self, digits: usize) -> Option<char> {
        let mut code = 0u32;
        for _ in 0..digits {
            code = code.checked_mul(16)?.checked_add(self.peek()?.to_digit(16)?)?;
            self.at += 1;
        }
        char::from_u32(code)
    }

    fn number(&mut self) -> Option<Literal> {
        let start = self.at;
        let radix = match (self.peek(), self.peek_at(1)) {
            (Some('0'), Some('x' | 'X')) => Some(16),
            (Some('0'), Some('o' | 'O')) => Some(8),
            (Some('0'), Some('b' | 'B')) => Some(2),
            _ => None,
        };
        if let Some(radix) = radix {
            self.at += 2;
            self.take('_');
            let digits = self.digits(radix)?;
            return self.ends_number().then(|| integer(&digits, radix))?;
        }
        self.decimal(start)
    }

    fn decimal(&mut self, start: usize) -> Option<Literal> {
        let whole = if self.peek() == Some('.') { String::new() } else { self.digits(10)? };
        let mut float = false;
        if self.take('.') {
            float = true;
            if self.peek().is_some_and(|c| c.is_ascii_digit()) {
                self.digits(10)?;
            } else if whole.is_empty() {
                return None;
            }
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            float = true;
            self.at += 1;
            if matches!(self.peek(), Some('+' | '-')) {
                self.at += 1;
            }
            self.digits(10)?;
        }
        let text: String = self.chars.get(start..self.at)?.iter().filter(|c| **c != '_').collect();
        if matches!(self.peek(), Some('j' | 'J')) {
            self.at += 1;
            let value: f64 = text.parse().ok()?;
            return self.ends_number().then(|| Literal::Imaginary(format!("{value}j")));
        }
        if !self.ends_number() {
            return None;
        }
        if float {
            let value: f64 = text.parse().ok()?;
            return Some(Literal::Json(
                serde_json::Number::from_f64(value).map_or_else(|| "inf".into(), Value::Number),
            ));
        }
        // Python refuses leading zeros, which look octal, but accepts a number of zeros only.
        if whole.len() > 1 && whole.starts_with('0') && whole.bytes().any(|b| b != b'0') {
            return None;
        }
        integer(&whole, 10)
    }

    /// Reads digits, with single `_` between them.
    fn digits(&mut self, radix: u32) -> Option<String> {
        let mut digits = String::new();
        loop {
            let c = self.peek().filter(|c| c.is_digit(radix))?;
            digits.push(c);
            self.at += 1;
            while let Some(c) = self.peek().filter(|c| c.is_digit(radix)) {
                digits.push(c);
                self.at += 1;
            }
            if self.peek() != Some('_') {
                return Some(digits);
            }
            self.at += 1;
        }
    }

    fn ends_number(&self) -> bool {
        !self.peek().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '.')
    }
}

fn is_prefix(prefix: &str) -> bool {
    matches!(prefix.to_lowercase().as_str(), "" | "r" | "u" | "b" | "br" | "rb")
}

fn hashable(literal: &Literal) -> bool {
    matches!(literal, Literal::Json(_) | Literal::Imaginary(_))
}

fn integer(digits: &str, radix: u32) -> Option<Literal> {
    if let Ok(value) = u64::from_str_radix(digits, radix) {
        return Some(Literal::Json(value.into()));
    }
    // JSON integers here have 64 bits; longer ones are kept as text.
    let text =
        i128::from_str_radix(digits, radix).map_or_else(|_| digits.to_owned(), |value| value.to_string());
    Some(Literal::Json(Value::String(text)))
}

fn negate(number: &serde_json::Number) -> Option<Value> {
    if let Some(value) = number.as_u64() {
        return match i64::try_from(-i128::from(value)) {
            Ok(value) => Some(value.into()),
            Err(_) => Some(Value::String(format!("-{value}"))),
        };
    }
    number.as_f64().map(|value| (-value).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_become_values() {
        for (text, value) in [
            ("1", json!(1)),
            ("-1", json!(-1)),
            ("+7", json!(7)),
            ("0x1f", json!(31)),
            ("0o17", json!(15)),
            ("0b11", json!(3)),
            ("1_000", json!(1000)),
            ("00", json!(0)),
            ("1.5", json!(1.5)),
            ("1.", json!(1.0)),
            (".5", json!(0.5)),
            ("1e3", json!(1000.0)),
            ("True", json!(true)),
            ("False", json!(false)),
            ("None", json!(null)),
            ("'a' \"b\"", json!("ab")),
            ("r'\\n'", json!("\\n")),
            ("b'x'", json!({"__ansible_unsafe": "x"})),
            ("'\\x41\\u00e4\\101\\q\\n'", json!("AäA\\q\n")),
            ("[1, 'a', [True]]", json!([1, "a", [true]])),
            ("(1, 2)", json!([1, 2])),
            ("(1)", json!(1)),
            ("()", json!([])),
            ("1, 2", json!([1, 2])),
            ("1,", json!([1])),
            ("{1, 2, 1}", json!([1, 2])),
            ("{}", json!({})),
            ("{'a': 1, 'b': {'c': None}, 3: 4,}", json!({"a": 1, "b": {"c": null}, "3": 4})),
            ("5 # five", json!(5)),
            ("[1, # one", json!("[1, # one")),
            ("...", json!("...")),
            ("1j", json!("1j")),
            ("set()", json!([])),
            ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
            ("- 3", json!(-3)),
            ("'''a'b'''", json!("a'b")),
        ] {
            assert_eq!(value_of(text), value, "{text}");
        }
    }

    #[test]
    fn everything_else_is_text() {
        for text in [
            "",
            "a",
            "true",
            "yes",
            "none",
            "0644",
            "0777",
            "1__0",
            "1_",
            "_1",
            "1.2.3",
            "10.0.0.1",
            "1a",
            "0x",
            "1+2",
            "'a",
            "[1",
            "{1: }",
            "{[1]: 2}",
            "--1",
            "a b",
            "'a' b",
            "f'x'",
            "True1",
            "not True",
            "1 2",
            "{{ x }}",
            "(1",
            "sett()",
            "'\\N{DASH}'",
            "1 if 2 else 3",
            "-'a'",
            "12:30",
            "2026-01-02",
            "..",
            "[,]",
            "b'ä'",
            "e5",
        ] {
            assert_eq!(value_of(text), json!(text), "{text}");
        }
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        assert_eq!(value_of(&deep), json!(deep));
    }

    proptest! {
        #[test]
        fn any_text_has_a_value(text in "[-+0-9a-z'\"\\[\\]{}(),:.# _\\\\TFrxe]{0,30}") {
            value_of(&text);
        }

        #[test]
        fn numbers_and_strings_are_read_back(number: i64, text in "[ -~ä]{0,20}") {
            prop_assert_eq!(value_of(&number.to_string()), json!(number));
            let quoted = format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
            prop_assert_eq!(value_of(&quoted), json!(text));
        }
    }
}
