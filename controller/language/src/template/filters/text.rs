//! Filters for text.

use regex::Regex;
use std::sync::LazyLock;

use super::sequences::python_text;
use super::{Call, Filter};
use crate::template::{bounds, inert, value::Value};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("string", |call| Ok(python_text(call.value()).into())),
    ("lower", |call| Ok(call.python_text().to_lowercase().into())),
    ("upper", |call| Ok(call.python_text().to_uppercase().into())),
    ("capitalize", |call| Ok(capitalized(&call.python_text()).into())),
    ("title", title),
    ("trim", |call| {
        let text = call.python_text();
        Ok(match call.get(0, "chars") {
            None | Some(Value::Null) => text.trim().into(),
            Some(letters) => {
                let letters = letters.to_text();
                text.trim_matches(|c| letters.contains(c)).into()
            }
        })
    }),
    ("replace", |call| {
        let (text, old, new) = (call.python_text(), call.text_arg(0, "old")?, call.text_arg(1, "new")?);
        bounds::product(text.matches(&*old).count(), new.len(), text.len())?;
        Ok(match call.size(2, "count")? {
            Some(count) => text.replacen(&old, &new, count).into(),
            None => text.replace(&old, &new).into(),
        })
    }),
    ("center", |call| {
        let (text, width) = (call.text()?, call.size(0, "width")?.unwrap_or(80).min(MAX_WIDTH));
        let pad = width.saturating_sub(text.chars().count());
        let left = pad / 2 + (pad & width & 1);
        Ok(format!("{}{text}{}", " ".repeat(left), " ".repeat(pad - left)).into())
    }),
    ("wordcount", |call| {
        let count = WORDS.find_iter(&call.text()?).count();
        Ok(Value::Int(i64::try_from(count).unwrap_or(i64::MAX)))
    }),
    ("truncate", truncate),
    ("wordwrap", wordwrap),
    ("indent", indent),
    ("format", |call| {
        super::printf::format(&call.text()?, call.args.get(1..).unwrap_or_default(), &call.named)
            .map(Value::from)
    }),
    ("escape", escape),
    ("e", escape),
    ("forceescape", escape),
    ("striptags", |call| {
        let text = call.text()?;
        let bare = TAGS.replace_all(&text, "");
        Ok(bare.split_whitespace().collect::<Vec<_>>().join(" ").into())
    }),
    ("xmlattr", xmlattr),
    ("split", split),
    ("quote", |call| Ok(quote(&call.text()?).into())),
    ("comment", comment),
];

/// Largest width; larger ones are a mistake.
const MAX_WIDTH: usize = 100_000;

static WORDS: LazyLock<Regex> = LazyLock::new(|| pattern(r"\w+"));
static TAGS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?s)<!--.*?-->|<[^>]*>"));

#[expect(clippy::expect_used, reason = "the patterns are constants, and tests use them")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a regular expression")
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars.as_str().to_lowercase().chars()).collect(),
        None => String::new(),
    }
}

fn title(call: &Call) -> Result<Value, String> {
    let mut out = String::new();
    let mut start = true;
    for c in call.python_text().chars() {
        if start {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        start = c.is_whitespace() || "-({[<".contains(c);
    }
    Ok(out.into())
}

fn truncate(call: &Call) -> Result<Value, String> {
    let text = call.text()?;
    let length = call.size(0, "length")?.unwrap_or(255);
    let end = call.get(2, "end").map_or_else(|| "...".to_owned(), Value::to_text);
    let leeway = call.size(3, "leeway")?.unwrap_or(5);
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= length.saturating_add(leeway) {
        return Ok(text.into());
    }
    let room = length
        .checked_sub(end.chars().count())
        .ok_or("the length has to be at least that of the end (`...`)")?;
    let kept: String = chars.iter().take(room).collect();
    if call.flag(1, "killwords") {
        return Ok((kept + &end).into());
    }
    let words = kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words);
    Ok(format!("{words}{end}").into())
}

fn indent(call: &Call) -> Result<Value, String> {
    let text = call.text()?;
    let pad = match call.get(0, "width") {
        None => " ".repeat(4),
        Some(Value::Str(pad)) => pad.to_string(),
        Some(_) => " ".repeat(call.size(0, "width")?.unwrap_or(4).min(MAX_WIDTH)),
    };
    let (first, blank) = (call.flag(1, "first"), call.flag(2, "blank"));
    bounds::product(lines(&text).count().saturating_add(1), pad.len(), text.len())?;
    let mut out = String::new();
    // As in Jinja, a text that ends with a line break keeps it, hence the additional one.
    for (index, line) in lines(&format!("{text}\n")).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    Ok(out.into())
}

/// Returns the lines of a text as Python's `splitlines` does.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((line, after)) = rest.split_once(ends) else { return Some(std::mem::take(&mut rest)) };
        let crlf = rest.get(line.len()..).is_some_and(|end| end.starts_with("\r\n"));
        rest = if crlf { after.strip_prefix('\n').unwrap_or(after) } else { after };
        Some(line)
    })
}

fn wordwrap(call: &Call) -> Result<Value, String> {
    let text = call.text()?;
    let width = call.size(0, "width")?.unwrap_or(79).clamp(1, MAX_WIDTH);
    let on = |index, name: &str| call.get(index, name).is_none_or(Value::truthy);
    let (break_words, hyphens) = (on(1, "break_long_words"), on(3, "break_on_hyphens"));
    let between = match call.get(2, "wrapstring") {
        None | Some(Value::Null) => "\n".to_owned(),
        Some(between) => between.to_text(),
    };
    bounds::product(text.len(), between.len().saturating_add(1), 0)?;
    let lines: Vec<String> =
        text.lines().map(|line| wrapped(line, width, break_words, hyphens).join(&between)).collect();
    Ok(lines.join(&between).into())
}

/// Wraps a line as Python's `textwrap.wrap` does.
fn wrapped(line: &str, width: usize, break_words: bool, hyphens: bool) -> Vec<String> {
    let mut chunks: std::collections::VecDeque<Vec<char>> = chunks(line, hyphens).into();
    let blank = |chunk: &Vec<char>| chunk.iter().all(|c| c.is_whitespace());
    let mut lines = Vec::new();
    while !chunks.is_empty() {
        let mut row: Vec<Vec<char>> = Vec::new();
        let mut length = 0;
        if !lines.is_empty() && chunks.front().is_some_and(blank) {
            chunks.pop_front();
        }
        while let Some(chunk) = chunks.pop_front_if(|chunk| length + chunk.len() <= width) {
            length += chunk.len();
            row.push(chunk);
        }
        if let Some(mut long) = chunks.pop_front_if(|chunk| chunk.len() > width) {
            let room = width - length;
            if break_words && room > 0 {
                let mut end = room;
                if hyphens {
                    let dash = long.iter().take(room).rposition(|c| *c == '-').filter(|dash| *dash > 0);
                    if let Some(dash) = dash.filter(|dash| long.iter().take(*dash).any(|c| *c != '-')) {
                        end = dash + 1;
                    }
                }
                let rest = long.split_off(end);
                row.push(long);
                chunks.push_front(rest);
            } else if row.is_empty() {
                row.push(long);
            } else {
                chunks.push_front(long);
            }
        }
        if row.last().is_some_and(blank) {
            row.pop();
        }
        if !row.is_empty() {
            lines.push(row.into_iter().flatten().collect());
        }
    }
    lines
}

/// Splits a line into blanks and words, and words behind hyphens between letters.
fn chunks(line: &str, hyphens: bool) -> Vec<Vec<char>> {
    let chars: Vec<char> = line.chars().collect();
    let letter = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(|c| c.is_alphabetic());
    let word = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(|c| c.is_alphanumeric());
    let mut out: Vec<Vec<char>> = Vec::new();
    for (at, &c) in chars.iter().enumerate() {
        let before = at.checked_sub(1);
        let dash = hyphens
            && before.and_then(|at| chars.get(at)) == Some(&'-')
            && letter(at.checked_sub(2))
            && word(at.checked_sub(3))
            && word(Some(at))
            && letter(Some(at + 1));
        let same =
            before.and_then(|at| chars.get(at)).is_some_and(|b| b.is_whitespace() == c.is_whitespace());
        match out.last_mut() {
            Some(chunk) if same && !dash => chunk.push(c),
            _ => out.push(vec![c]),
        }
    }
    out
}

fn escape(call: &Call) -> Result<Value, String> {
    Ok(escaped(&call.python_text()).into())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&#34;")
}

fn xmlattr(call: &Call) -> Result<Value, String> {
    let Value::Map(dict) = call.value() else {
        return Err(format!("a mapping is needed, this is {}", call.value().kind()));
    };
    let mut attributes = Vec::new();
    for (name, value) in dict.iter().filter(|(_, value)| !matches!(value, Value::Null)) {
        if name.contains(|c: char| c.is_whitespace() || "/>=".contains(c)) {
            return Err("the name of an attribute has a blank, `/`, `>` or `=`".to_owned());
        }
        attributes.push(format!("{}=\"{}\"", escaped(name), escaped(&python_text(value))));
    }
    let space =
        if call.get(0, "autospace").is_none_or(Value::truthy) && !attributes.is_empty() { " " } else { "" };
    Ok(format!("{space}{}", attributes.join(" ")).into())
}

fn split(call: &Call) -> Result<Value, String> {
    let text = call.text()?;
    let most = match call.get(1, "maxsplit") {
        Some(Value::Int(most)) => usize::try_from(*most).ok(),
        _ => None,
    };
    let pieces: Vec<Value> = match call.get(0, "sep").filter(|by| !matches!(by, Value::Null)) {
        Some(by) => {
            let by = by.to_text();
            if by.is_empty() {
                return Err("the separator is empty".to_owned());
            }
            bounds::product(text.matches(&*by).count(), 4 * bounds::ITEM, text.len())?;
            match most {
                Some(most) => text.splitn(most.saturating_add(1), &*by).map(Value::str).collect(),
                None => text.split(&*by).map(Value::str).collect(),
            }
        }
        None => {
            let mut rest = text.trim_start();
            let mut pieces = Vec::new();
            while !rest.is_empty() {
                let end =
                    rest.find(char::is_whitespace).filter(|_| most.is_none_or(|most| pieces.len() < most));
                let (piece, left) = rest.split_at(end.unwrap_or(rest.len()));
                pieces.push(Value::str(piece));
                rest = left.trim_start();
            }
            pieces
        }
    };
    Ok(Value::list(pieces))
}

/// Quotes a text for a POSIX shell, as Python's `shlex.quote` does.
fn quote(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    let wants = inert::wants_quotes(text).unwrap_or_else(|| text.is_empty() || !text.chars().all(safe));
    if !wants {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\"'\"'"))
}

fn comment(call: &Call) -> Result<Value, String> {
    let text = call.text()?;
    let (beginning, decoration, end) =
        match call.get(0, "style").map_or_else(|| "plain".to_owned(), Value::to_text).as_str() {
            "plain" => ("", "# ", ""),
            "erlang" => ("", "% ", ""),
            "c" => ("", "// ", ""),
            "cblock" => ("/*", " * ", " */"),
            "xml" => ("<!--", " - ", "-->"),
            other => {
                return Err(format!("there is no style `{other}`; there are plain, erlang, c, cblock, xml"));
            }
        };
    let given = |name: &str, or: &str| call.named(name).map_or_else(|| or.to_owned(), Value::to_text);
    let decoration = given("decoration", decoration);
    let line = given("newline", "\n");
    let parts = decoration.len().saturating_add(line.len());
    bounds::product(text.matches(&*line).count().saturating_add(1), parts, text.len())?;
    let edge = decoration.trim_end().to_owned();
    let count = |name: &str| match call.named(name) {
        Some(Value::Int(count)) => usize::try_from(*count).unwrap_or(0).min(1_000),
        _ => 1,
    };
    let (beginning, end) = (given("beginning", beginning), given("end", end));
    let (prefix, postfix) = (given("prefix", &edge), given("postfix", &edge));
    let mut out = String::new();
    if !beginning.is_empty() {
        out.push_str(&beginning);
        out.push_str(&line);
    }
    if prefix == line {
        out.push_str(&line.repeat(count("prefix_count")));
    } else if !prefix.is_empty() {
        out.push_str(&format!("{prefix}{line}").repeat(count("prefix_count")));
    }
    let body = format!("{decoration}{}", text.replace(&line, &format!("{line}{decoration}")));
    out.push_str(&body.replace(&format!("{decoration}{line}"), &format!("{edge}{line}")));
    out.push_str(&format!("{line}{postfix}").repeat(count("postfix_count")));
    if !end.is_empty() {
        out.push_str(&line);
        out.push_str(&end);
    }
    Ok(out.into())
}
