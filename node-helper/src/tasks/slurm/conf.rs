//! Slurm's configuration files: lines of `Key=value`, in which a backslash joins lines and `#` begins a comment. Pure.

use std::ops::Range;

use crate::os::lines::{self, Edit};

/// More joined lines than any file has.
const MOST_JOINED: usize = 256;

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub key: String,
    /// Without its quotes.
    pub value: String,
    /// Where it stands in its line, for lines that are not joined.
    pub at: Range<usize>,
}

/// A line with something on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The first of the file's lines that it is made of, from 0, and the one after its last.
    pub lines: Range<usize>,
    pub words: Vec<Word>,
    pub comment: Option<String>,
}

impl Line {
    /// Returns the value of a key; Slurm does not tell large letters from small ones.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.words.iter().find(|word| word.key.eq_ignore_ascii_case(key)).map(|word| word.value.as_str())
    }

    /// Returns its number as people count.
    pub fn number(&self) -> usize {
        self.lines.start + 1
    }
}

/// Returns the lines with something on them.
pub fn lines(text: &str) -> Vec<Line> {
    let all: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut next = 0;
    while let Some(first) = all.get(next) {
        let begin = next;
        let (mut content, mut comment) = split_comment(first);
        let mut joined = content.to_owned();
        while content.trim_end().ends_with('\\') && next - begin < MOST_JOINED {
            joined.truncate(joined.trim_end().len() - 1);
            next += 1;
            let Some(more) = all.get(next) else { break };
            (content, comment) = split_comment(more);
            joined.push(' ');
            joined.push_str(content);
        }
        next = (next + 1).min(all.len());
        let words = words(&joined);
        if !words.is_empty() {
            found.push(Line { lines: begin..next, words, comment: comment.map(str::to_owned) });
        }
    }
    found
}

/// Splits a comment off, which a backslash prevents.
fn split_comment(line: &str) -> (&str, Option<&str>) {
    let at =
        line.char_indices().find(|(at, c)| *c == '#' && !line.get(..*at).is_some_and(|l| l.ends_with('\\')));
    match at {
        Some((at, _)) => (line.get(..at).unwrap_or_default(), line.get(at..).map(str::trim_end)),
        None => (line, None),
    }
}

/// Returns the words of a line. `Include FILE` is one with this key.
fn words(line: &str) -> Vec<Word> {
    let mut all = Vec::new();
    let (mut start, mut quoted) = (None, false);
    let mut ends: Vec<Range<usize>> = Vec::new();
    for (at, c) in line.char_indices() {
        match (start, c) {
            (None, c) if c.is_whitespace() => {}
            (None, _) => {
                start = Some(at);
                quoted = c == '"';
            }
            (Some(from), c) if c.is_whitespace() && !quoted => {
                ends.push(from..at);
                start = None;
            }
            (Some(_), '"') => quoted = !quoted,
            _ => {}
        }
    }
    ends.extend(start.map(|from| from..line.len()));
    let mut ends = ends.into_iter();
    while let Some(at) = ends.next() {
        let text = line.get(at.clone()).unwrap_or_default();
        let (key, value, at) = match text.split_once('=') {
            Some((key, value)) => (key, value.to_owned(), at),
            None if text.eq_ignore_ascii_case("include") => match ends.next() {
                Some(rest) => {
                    (text, line.get(rest.clone()).unwrap_or_default().to_owned(), at.start..rest.end)
                }
                None => (text, String::new(), at),
            },
            None => (text, String::new(), at),
        };
        all.push(Word { key: key.to_owned(), value: value.trim_matches('"').to_owned(), at });
    }
    all
}

/// Whether a list of hosts such as `gpu[001-064,070],login` has this one.
pub fn covers(list: &str, host: &str) -> bool {
    items(list).any(|item| matches(item, host, 8))
}

/// Whether a list is this host alone.
pub fn is_alone(list: &str, host: &str) -> bool {
    list == host
}

/// Returns a list without one of its hosts: of `gpu[01-04],login` without `gpu03` it is `gpu[01-02,04],login`; `None` if nobody
/// else is left, and for items with two brackets.
pub fn without(list: &str, host: &str) -> Option<String> {
    let mut left = Vec::new();
    for item in items(list) {
        if !matches(item, host, 8) {
            left.push(item.to_owned());
            continue;
        }
        let Some((before, rest)) = item.split_once('[') else { continue };
        let (ranges, after) = rest.split_once(']').filter(|(_, after)| !after.contains('['))?;
        let digits = host.strip_prefix(before)?.strip_suffix(after)?;
        let number: u64 = digits.parse().ok()?;
        let mut kept = Vec::new();
        for range in ranges.split(',') {
            if !in_range(range, digits) {
                kept.push(range.to_owned());
                continue;
            }
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let (from, to) = (low.parse::<u64>().ok()?, high.parse::<u64>().ok()?);
            let width = low.len();
            let part = |from: u64, to: u64| match from == to {
                true => format!("{from:0width$}"),
                false => format!("{from:0width$}-{to:0width$}"),
            };
            kept.extend((from < number).then(|| part(from, number - 1)));
            kept.extend((number < to).then(|| part(number + 1, to)));
        }
        match kept.as_slice() {
            [] => {}
            [one] if !one.contains('-') => left.push(format!("{before}{one}{after}")),
            _ => left.push(format!("{before}[{}]{after}", kept.join(","))),
        }
    }
    (!left.is_empty()).then(|| left.join(","))
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    list.split(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .filter(|item| !item.is_empty())
}

fn matches(item: &str, host: &str, depth: usize) -> bool {
    let Some((before, rest)) = item.split_once('[') else { return item == host };
    let (Some(host), Some((ranges, after))) = (host.strip_prefix(before), rest.split_once(']')) else {
        return false;
    };
    let digits = host.bytes().take_while(u8::is_ascii_digit).count().min(18);
    depth > 0
        && (1..=digits).rev().any(|length| {
            let (Some(number), Some(left)) = (host.get(..length), host.get(length..)) else { return false };
            ranges.split(',').any(|range| in_range(range, number)) && matches(after, left, depth - 1)
        })
}

/// Whether digits are in a range, in which the first number says how many digits there are at least.
fn in_range(range: &str, digits: &str) -> bool {
    let (low, high) = range.split_once('-').unwrap_or((range, range));
    let (Ok(from), Ok(to), Ok(number)) = (low.parse::<u64>(), high.parse::<u64>(), digits.parse::<u64>())
    else {
        return false;
    };
    let width = low.len();
    (from..=to).contains(&number) && format!("{number:0width$}") == digits
}

/// Returns the text with other lines in the place of some; what has no line any more is taken out.
pub fn replaced(text: &str, edits: &[(Range<usize>, Vec<String>)], appended: &[String]) -> String {
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut new = lines::edited(text, |at, _| match edits.iter().find(|(range, _)| range.contains(&at)) {
        Some((range, lines)) if range.start == at && !lines.is_empty() => Edit::Set(lines.join(end)),
        found => Edit::remove_if(found.is_some()),
    });
    appended.iter().for_each(|line| lines::append(&mut new, line));
    new
}

/// Returns a line of the file with other values; keys that it lacks are put behind its words.
pub fn with_values(text: &str, line: &Line, values: &[(&str, String)]) -> String {
    let old = text.lines().nth(line.lines.start).unwrap_or_default();
    let mut new = old.to_owned();
    let mut missing = String::new();
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    for (key, value) in values {
        let names: &[&str] = if *key == "Features" { &["Features", "Feature"] } else { &[key] };
        match line.words.iter().find(|word| names.iter().any(|name| word.key.eq_ignore_ascii_case(name))) {
            Some(word) => edits.push((word.at.clone(), format!("{}={value}", word.key))),
            None => missing.push_str(&format!(" {key}={value}")),
        }
    }
    let end = line.words.iter().map(|word| word.at.end).max().unwrap_or_default();
    edits.push((end..end, missing));
    edits.sort_by_key(|(at, _)| std::cmp::Reverse(at.start));
    for (at, text) in edits {
        new.replace_range(at, &text);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_comments_kept_apart() {
        let text =
            "# all\nNodeName=a \\\n  Gres=gpu:h100:8 # ours\n\nInclude /etc/x.conf\nReason=\"a b\" x=1\n";
        let all = lines(text);
        assert_eq!(all.iter().map(Line::number).collect::<Vec<_>>(), [2, 5, 6]);
        assert_eq!((all[0].lines.clone(), all[0].get("gres")), (1..3, Some("gpu:h100:8")));
        assert_eq!(all[0].comment.as_deref(), Some("# ours"));
        assert_eq!(all[1].get("include"), Some("/etc/x.conf"));
        assert_eq!((all[2].get("reason"), all[2].get("X")), (Some("a b"), Some("1")));
        assert!(lines("a=1 \\").len() == 1 && lines("\\").is_empty());
    }

    #[test]
    fn lists_of_hosts_are_read_as_slurm_reads_them() {
        for (list, host, is) in [
            ("gpu1", "gpu1", true),
            ("gpu[1-8]", "gpu1", true),
            ("gpu[001-064,070],login", "gpu064", true),
            ("gpu[001-064,070],login", "gpu64", false),
            ("gpu[001-064,070],login", "gpu070", true),
            ("gpu[001-064,070],login", "login", true),
            ("gpu[8-12]", "gpu10", true),
            ("gpu[8-12]", "gpu010", false),
            ("r[1-2]n[01-16]", "r2n16", true),
            ("r[1-2]n[01-16]", "r3n16", false),
            ("gpu[1-", "gpu1", false),
        ] {
            assert_eq!(covers(list, host), is, "{list} {host}");
        }
    }

    #[test]
    fn a_host_is_taken_out_of_its_list() {
        for (list, host, left) in [
            ("gpu[001-064,070],login", "gpu010", Some("gpu[001-009,011-064,070],login")),
            ("gpu[01-04]", "gpu01", Some("gpu[02-04]")),
            ("gpu[01-04]", "gpu03", Some("gpu[01-02,04]")),
            ("gpu[1-2]", "gpu1", Some("gpu2")),
            ("gpu[8-12]x", "gpu10x", Some("gpu[8-9,11-12]x")),
            ("a,b,c", "b", Some("a,c")),
            ("gpu7", "gpu7", None),
            ("r[1-2]n[1-2]", "r1n1", None),
            ("a,r[1-2]n[1-2]", "a", Some("r[1-2]n[1-2]")),
        ] {
            assert_eq!(without(list, host).as_deref(), left, "{list} {host}");
        }
        // Every other host stays, and no other comes.
        for number in 1..=120 {
            let left = without("gpu[5-99,101,110-115]", &format!("gpu{number}"));
            let left = left.unwrap();
            for other in 1..=120 {
                let host = format!("gpu{other}");
                let was = covers("gpu[5-99,101,110-115]", &host);
                assert_eq!(covers(&left, &host), was && other != number, "{left} {host}");
            }
        }
    }

    #[test]
    fn values_change_in_their_place() {
        let text = "NodeName=g1  CPUs=4 Feature=old State=UNKNOWN # rack 3\n";
        let line = &lines(text)[0];
        assert_eq!(
            with_values(text, line, &[("RealMemory", "1000".to_owned()), ("Features", "a,b".to_owned())]),
            "NodeName=g1  CPUs=4 Feature=a,b State=UNKNOWN RealMemory=1000 # rack 3"
        );
        let edits = [(0..1, vec!["x".to_owned()])];
        assert_eq!(replaced("a\nb\n", &edits, &["c".to_owned()]), "x\nb\nc\n");
    }
}
