//! Writes YAML text as libyaml writes it for PyYAML, which Ansible prints with.
//!
//! Owns when and how a string is quoted, and where long ones are folded. Must not know what the values mean.
//! Invariant: both this crate's reader and PyYAML read the text back as the value it was made from.

use serde_json::Value as Json;

use super::node::{Value, float_text};
use super::scalar;

/// How YAML text is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Blanks for each level.
    pub indent: usize,
    /// Column after which text is folded at the next blank.
    pub width: usize,
    /// Whether keys are sorted.
    pub sort: bool,
    pub flow: Flow,
}

/// Which collections are written on one line, in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Only empty ones.
    Never,
    /// Those that hold no other collection.
    Leaves,
    Always,
}

impl Default for Layout {
    fn default() -> Self {
        Self { indent: 2, width: 80, sort: true, flow: Flow::Never }
    }
}

/// Line breaks in YAML 1.1.
const BREAKS: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
/// Longest key in bytes that is written without a `?`.
const MAX_SIMPLE_KEY: usize = 128;

/// Returns block style with sorted keys, as `yaml.dump(value, default_flow_style=False, allow_unicode=True)` writes
/// it; ends with a line break. `{"__ansible_vault": text}` becomes `!vault`, `{"__ansible_unsafe": text}` its text.
pub fn block_text(value: &Json) -> String {
    text_with(value, &Layout::default())
}

/// Returns [`block_text`] with a given layout.
pub fn text_with(value: &Json, layout: &Layout) -> String {
    let mut writer = Writer { out: String::new(), column: 0, layout: *layout };
    match writer.is_block(value) {
        true => writer.block(value, 0),
        false => writer.scalar(value, 0, false),
    }
    if !writer.out.ends_with('\n') {
        writer.push("\n");
    }
    writer.out
}

/// `Some` for a collection that needs lines of its own.
fn collection(value: &Json) -> Option<()> {
    match value {
        Json::Array(items) if !items.is_empty() => Some(()),
        Json::Object(map) if !map.is_empty() && marked(value).is_none() => Some(()),
        _ => None,
    }
}

/// Whether a value is a mapping, empty or not, that does not mark a text.
fn is_open_map(value: &Json) -> bool {
    value.is_object() && marked(value).is_none()
}

/// Returns the text of an object that only marks a string, and whether it is encrypted.
fn marked(value: &Json) -> Option<(&str, bool)> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    let text = |key: &str| map.get(key).and_then(Json::as_str);
    text("__ansible_vault").map(|text| (text, true)).or_else(|| Some((text("__ansible_unsafe")?, false)))
}

struct Writer {
    out: String,
    column: usize,
    layout: Layout,
}

impl Writer {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
        self.column = match text.rsplit_once('\n') {
            Some((_, last)) => last.chars().count(),
            None => self.column + text.chars().count(),
        };
    }

    /// Whether a value takes lines of its own.
    fn is_block(&self, value: &Json) -> bool {
        let inner = |item: &Json| collection(item).is_some() || item.is_array() || is_open_map(item);
        collection(value).is_some()
            && match (self.layout.flow, value) {
                (Flow::Never, _) => true,
                (Flow::Always, _) => false,
                (Flow::Leaves, Json::Array(items)) => items.iter().any(inner),
                (Flow::Leaves, Json::Object(map)) => map.values().any(inner),
                _ => false,
            }
    }

    fn entries<'v>(&self, map: &'v serde_json::Map<String, Json>) -> Vec<(&'v String, &'v Json)> {
        let mut entries: Vec<_> = map.iter().collect();
        if self.layout.sort {
            entries.sort_by(|a, b| a.0.cmp(b.0));
        }
        entries
    }

    /// Writes a collection in brackets.
    fn flow(&mut self, value: &Json, indent: usize) {
        let (open, close) = if value.is_array() { ("[", "]") } else { ("{", "}") };
        self.push(open);
        let entries: Vec<(Option<&String>, &Json)> = match value {
            Json::Array(items) => items.iter().map(|item| (None, item)).collect(),
            Json::Object(map) => self.entries(map).into_iter().map(|(key, item)| (Some(key), item)).collect(),
            _ => Vec::new(),
        };
        for (index, (key, item)) in entries.into_iter().enumerate() {
            if index > 0 {
                self.push(",");
            }
            if self.column > self.layout.width {
                self.line(indent);
            } else if index > 0 {
                self.push(" ");
            }
            if let Some(key) = key {
                self.text_in(key, indent, true, true);
                self.push(": ");
            }
            match item {
                Json::String(text) => self.text_in(text, indent + self.layout.indent, false, true),
                item => self.scalar(item, indent + self.layout.indent, false),
            }
        }
        self.push(close);
    }

    fn line(&mut self, indent: usize) {
        self.push("\n");
        self.push(&" ".repeat(indent));
    }

    /// Writes the entries of a collection, one on each line; the first begins where the output stands.
    fn block(&mut self, value: &Json, indent: usize) {
        match value {
            Json::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        self.line(indent);
                    }
                    self.push("-");
                    let step = if self.is_block(item) { self.layout.indent } else { 2 };
                    self.push(&" ".repeat(step - 1));
                    self.nested(item, indent + self.layout.indent);
                }
            }
            Json::Object(map) => {
                for (index, (key, item)) in self.entries(map).into_iter().enumerate() {
                    if index > 0 {
                        self.line(indent);
                    }
                    self.entry(key, item, indent);
                }
            }
            _ => {}
        }
    }

    fn nested(&mut self, item: &Json, indent: usize) {
        match self.is_block(item) {
            true => self.block(item, indent),
            false => self.scalar(item, indent, false),
        }
    }

    fn entry(&mut self, key: &str, item: &Json, indent: usize) {
        let inner = indent + self.layout.indent;
        let simple = key.len() <= MAX_SIMPLE_KEY && !key.contains(BREAKS);
        if simple {
            self.text(key, inner, true);
            self.push(":");
        } else {
            self.push("? ");
            self.text(key, inner, false);
            self.line(indent);
            self.push(":");
        }
        match (self.is_block(item), item) {
            // A list under a key is not indented further.
            (true, Json::Array(_)) if simple => {
                self.line(indent);
                self.block(item, indent);
            }
            (true, _) if simple => {
                self.line(inner);
                self.block(item, inner);
            }
            (true, _) => {
                self.push(" ");
                self.block(item, inner);
            }
            (false, _) => {
                self.push(" ");
                self.scalar(item, inner, false);
            }
        }
    }

    fn scalar(&mut self, value: &Json, indent: usize, key: bool) {
        match value {
            Json::Null => self.push("null"),
            Json::Bool(value) => self.push(if *value { "true" } else { "false" }),
            Json::Number(number) if number.is_f64() => {
                let text = float_text(number.as_f64().unwrap_or_default());
                // YAML 1.1 reads `1e+20` as a string.
                let text = if text.contains('.') { text } else { text.replacen('e', ".0e", 1) };
                self.push(&text);
            }
            Json::Number(number) => self.push(&number.to_string()),
            Json::String(text) => self.text(text, indent, key),
            Json::Array(_) => self.flow(value, indent),
            Json::Object(_) => match marked(value) {
                Some((text, true)) => self.vault(text, indent),
                Some((text, false)) => self.text(text, indent, key),
                None => self.flow(value, indent),
            },
        }
    }

    fn vault(&mut self, text: &str, indent: usize) {
        self.push(if text.ends_with('\n') { "!vault |" } else { "!vault |-" });
        for line in text.trim_end_matches('\n').lines() {
            self.line(indent);
            self.push(line);
        }
    }

    fn text(&mut self, text: &str, indent: usize, key: bool) {
        self.text_in(text, indent, key, false);
    }

    /// Writes a text; `flow` says that it is between brackets.
    fn text_in(&mut self, text: &str, indent: usize, key: bool, flow: bool) {
        let allowed = Allowed::of(text, flow);
        let string = matches!(scalar::resolve(text), Value::Str(_)) && !is_special(text);
        if allowed.plain && string && !(key && text.is_empty()) {
            self.plain(text, indent, !key);
        } else if allowed.single && !(key && text.contains('\n')) {
            self.single(text, indent, !key);
        } else {
            self.double(text, indent, !key);
        }
    }

    fn plain(&mut self, text: &str, indent: usize, fold: bool) {
        let chars: Vec<char> = text.chars().collect();
        let mut after_blank = false;
        for (index, &c) in chars.iter().enumerate() {
            let blank = c == ' ';
            let next_blank = chars.get(index + 1) == Some(&' ');
            if blank && fold && !after_blank && self.column > self.layout.width && !next_blank {
                self.line(indent);
            } else {
                self.push(c.encode_utf8(&mut [0; 4]));
            }
            after_blank = blank;
        }
    }

    fn single(&mut self, text: &str, indent: usize, fold: bool) {
        self.push("'");
        let chars: Vec<char> = text.chars().collect();
        let (mut after_blank, mut after_break) = (false, false);
        for (index, &c) in chars.iter().enumerate() {
            if c == '\n' {
                if !after_break {
                    self.push("\n");
                }
                self.push("\n");
            } else {
                if after_break {
                    self.push(&" ".repeat(indent));
                }
                let inner = index > 0 && index + 1 < chars.len();
                let next_blank = chars.get(index + 1) == Some(&' ');
                if c == ' ' && fold && !after_blank && self.column > self.layout.width && inner && !next_blank
                {
                    self.line(indent);
                } else {
                    if c == '\'' {
                        self.push("'");
                    }
                    self.push(c.encode_utf8(&mut [0; 4]));
                }
            }
            after_blank = c == ' ';
            after_break = c == '\n';
        }
        if after_break {
            self.push(&" ".repeat(indent));
        }
        self.push("'");
    }

    fn double(&mut self, text: &str, indent: usize, fold: bool) {
        self.push("\"");
        let chars: Vec<char> = text.chars().collect();
        let mut after_blank = false;
        for (index, &c) in chars.iter().enumerate() {
            let inner = index > 0 && index + 1 < chars.len();
            if c == ' ' && fold && !after_blank && self.column > self.layout.width && inner {
                self.line(indent);
                if chars.get(index + 1) == Some(&' ') {
                    self.push("\\");
                }
            } else {
                self.push(&escaped(c));
            }
            after_blank = c == ' ';
        }
        self.push("\"");
    }
}

fn escaped(c: char) -> String {
    match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\0' => "\\0".to_owned(),
        '\u{7}' => "\\a".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\t' => "\\t".to_owned(),
        '\n' => "\\n".to_owned(),
        '\u{b}' => "\\v".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        '\r' => "\\r".to_owned(),
        '\u{1b}' => "\\e".to_owned(),
        '\u{85}' => "\\N".to_owned(),
        '\u{2028}' => "\\L".to_owned(),
        '\u{2029}' => "\\P".to_owned(),
        c if is_printable(c) => c.to_string(),
        c if u32::from(c) <= 0xff => format!("\\x{:02X}", u32::from(c)),
        c if u32::from(c) <= 0xffff => format!("\\u{:04X}", u32::from(c)),
        c => format!("\\U{:08X}", u32::from(c)),
    }
}

fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
        && !matches!(c, '\u{2028}' | '\u{2029}')
}

/// Whether PyYAML reads a word as something other than a string.
fn is_special(text: &str) -> bool {
    matches!(text, "=" | "<<") || is_date(text)
}

/// Whether a text is a YAML 1.1 timestamp.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| {
        bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    if bytes.len() < 8 || !digits(0..4) || bytes.get(4) != Some(&b'-') {
        return false;
    }
    if bytes.len() == 10 && digits(5..7) && bytes.get(7) == Some(&b'-') && digits(8..10) {
        return true;
    }
    // Also true for invalid times: quotes more than needed do no harm.
    bytes.iter().filter(|byte| **byte == b':').count() >= 2
        && bytes.iter().all(|byte| byte.is_ascii_digit() || b"-:TtZ+. \t".contains(byte))
}

/// Which styles can hold a text, by the rules of libyaml's `yaml_emitter_analyze_scalar`.
struct Allowed {
    plain: bool,
    single: bool,
}

impl Allowed {
    fn of(text: &str, flow: bool) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let (Some(first), Some(last)) = (chars.first(), chars.last()) else {
            return Self { plain: false, single: true };
        };
        let blank = |c: Option<&char>| c.is_none_or(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
        let mut indicator = text.starts_with("---") || text.starts_with("...");
        let (mut special, mut breaks, mut blank_break, mut break_blank) = (false, false, false, false);
        for (index, &c) in chars.iter().enumerate() {
            let next = chars.get(index + 1);
            indicator |= match c {
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                | '`'
                    if index == 0 =>
                {
                    true
                }
                '?' if index == 0 => flow || blank(next),
                '-' if index == 0 => blank(next),
                '?' | ',' | '[' | ']' | '{' | '}' => flow,
                ':' => flow || blank(next),
                '#' => blank(chars.get(index - 1)),
                _ => false,
            };
            let previous = index.checked_sub(1).and_then(|index| chars.get(index));
            breaks |= c == '\n';
            special |= c != '\n' && !is_printable(c);
            blank_break |= c == '\n' && previous == Some(&' ');
            break_blank |= c == ' ' && previous == Some(&'\n');
        }
        let edges = [first, last].into_iter().any(|c| matches!(c, ' ' | '\n'));
        Self {
            plain: !(indicator || special || breaks || edges || blank_break || break_blank),
            single: !(special || blank_break || break_blank),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_are_quoted_as_libyaml_quotes_them() {
        for (text, wanted) in [
            ("abc", "abc"),
            ("1", "'1'"),
            ("0644", "'0644'"),
            ("1:30", "'1:30'"),
            ("1e3", "1e3"),
            ("1.5", "'1.5'"),
            ("yes", "'yes'"),
            ("y", "y"),
            ("~", "'~'"),
            ("", "''"),
            ("None", "None"),
            ("=", "'='"),
            ("2024-01-01", "'2024-01-01'"),
            ("2024-01-01T10:00:00Z", "'2024-01-01T10:00:00Z'"),
            ("a: b", "'a: b'"),
            ("a:", "'a:'"),
            ("a:b", "a:b"),
            (":x", ":x"),
            ("a #b", "'a #b'"),
            ("a#b", "a#b"),
            ("- x", "'- x'"),
            ("--", "--"),
            ("---", "'---'"),
            (" a", "' a'"),
            ("a\nb", "'a\n\n  b'"),
            ("a\n", "'a\n\n  '"),
            ("a\n b", "\"a\\n b\""),
            ("tab\tx", "\"tab\\tx\""),
            ("'q", "'''q'"),
            ("é", "é"),
            ("😀", "\"\\U0001F600\""),
            ("{{ x }}", "'{{ x }}'"),
        ] {
            assert_eq!(block_text(&json!({ "k": text })), format!("k: {wanted}\n"), "{text:?}");
        }
    }

    #[test]
    fn collections_and_numbers_are_written_as_pyyaml_writes_them() {
        let value = json!({
            "list": [[1, 2], [{"k": 1, "l": []}], {"m": [1], "n": {}}], "f": 1.0, "g": 1e20, "n": null,
            "1": true, "v": {"__ansible_vault": "$ANSIBLE_VAULT;1\n61\n"}, "u": {"__ansible_unsafe": "{{ x }}"},
        });
        insta::assert_snapshot!(block_text(&value), @r"
        '1': true
        f: 1.0
        g: 1.0e+20
        list:
        - - 1
          - 2
        - - k: 1
            l: []
        - m:
          - 1
          n: {}
        n: null
        u: '{{ x }}'
        v: !vault |
          $ANSIBLE_VAULT;1
          61
        ");
        assert_eq!(block_text(&json!({})), "{}\n");
        let long = json!({"a": format!("{} {} zz", "x".repeat(50), "y".repeat(50))});
        assert_eq!(
            block_text(&long),
            format!("a: {} {}\n  zz\n", "x".repeat(50), "y".repeat(50)),
            "folded behind column 80"
        );
    }

    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            (-1e9f64..1e9).prop_map(Json::from),
            "[-a-z0-9 :#'\"\\n\\t{}\\[\\]!&*?|>%@,.~=\\\\äé]{0,24}".prop_map(Json::from),
            "([a-z]{1,9} {1,2}){0,30}".prop_map(Json::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
                proptest::collection::btree_map("[-a-z0-9 :#'\\n]{0,8}", inner, 0..4)
                    .prop_map(|map| Json::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in any_json()) {
            let text = block_text(&value);
            let read = crate::yaml::parse("x", &text).map_err(|errors| TestCaseError::fail(format!("{errors}\n{text}")))?;
            prop_assert_eq!(read.to_json(), value, "{}", text);
        }
    }
}
