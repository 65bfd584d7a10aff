//! The guide as `doc` shows it: its pages by their names, and what its tables and sections say of one word.
//!
//! The pages are those of docs/guide, as they are: no text is written twice.

use gpufleet::visible::command_line;

/// Name and text of each page.
macro_rules! pages {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../docs/guide/", $name, ".md")))),*]
    };
}

/// By what a person looks for first: a word is explained by the first pages that have it.
const PAGES: [(&str, &str); 35] = pages![
    "night" "rollout" "getting-started" "reports-and-exit-codes" "drains" "reboots" "resume" "keep" "kubernetes"
    "troubleshooting" "health" "status" "topology" "history" "watch" "serve" "playbooks" "inventory" "kinds" "checking"
    "from-ansible" "mig" "driver" "kernel" "processors" "container-stack" "services-and-limits" "network-and-fabric"
    "storage-time-and-crash" "schedulers-on-nodes" "vault" "connecting" "configuration" "command-line"
    "lab"
];

/// How many places of the guide explain one word at most.
const MOST: usize = 4;

/// Names and titles of the pages.
pub fn pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.into_iter().map(|(name, text)| {
        (name, text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default())
    })
}

/// A whole page.
pub fn page(name: &str) -> Option<&'static str> {
    PAGES.into_iter().find(|(page, _)| page.eq_ignore_ascii_case(name)).map(|(_, text)| text)
}

/// One row of a table: what it stands below, the names of its columns, and its cells.
struct Row<'a> {
    page: &'a str,
    section: &'a str,
    columns: Vec<&'a str>,
    cells: Vec<&'a str>,
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

fn rows() -> impl Iterator<Item = Row<'static>> {
    PAGES.into_iter().flat_map(|(page, text)| {
        let (mut section, mut columns, mut code) = ("", Vec::new(), false);
        let mut rows = Vec::new();
        for line in text.lines() {
            code ^= line.trim_start().starts_with("```");
            if let (Some(title), false) = (line.strip_prefix('#'), code) {
                section = title.trim_start_matches('#').trim();
            }
            match cells(line).filter(|_| !code) {
                None => columns = Vec::new(),
                Some(cells) if columns.is_empty() => columns = cells,
                Some(cells) if cells.iter().all(|cell| cell.chars().all(|c| c == '-')) => {}
                Some(cells) => rows.push(Row { page, section, columns: columns.clone(), cells }),
            }
        }
        rows
    })
}

/// The words that a first cell explains: ``wait_for`, `pause``, or a plain word.
fn words(cell: &str) -> impl Iterator<Item = &str> {
    cell.split(", ")
        .map(|word| word.trim_matches('`'))
        .filter(|word| !word.is_empty() && !word.contains(['`', '[', ' ']))
}

/// The words that tables of the guide explain.
pub fn explained() -> impl Iterator<Item = &'static str> {
    rows().flat_map(|row| words(row.cells.first().copied().unwrap_or_default()).collect::<Vec<_>>())
}

/// Markdown's links as what they show.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, shown, after)) = link(rest) {
        out.push_str(before);
        out.push_str(shown);
        rest = after;
    }
    out.push_str(rest);
    out
}

/// What stands before the first link, what it shows, and what follows.
fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('[')?;
    let (shown, rest) = rest.split_once("](")?;
    let (_, after) = rest.split_once(')')?;
    Some((before, shown, after))
}

/// The section of its page that a row leads to: `[size of each wave](#waves)`.
fn section_of(row: &Row<'_>) -> Option<&'static str> {
    let anchor = row.cells.iter().find_map(|cell| cell.split_once("](#")?.1.split(')').next())?;
    let text = page(row.page)?;
    let slug = |title: &str| -> String {
        let kept = title.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
    };
    let is_it = |line: &str| line.starts_with('#') && slug(line.trim_start_matches('#').trim()) == anchor;
    let start = text.lines().position(is_it)?;
    let level = |line: &str| line.chars().take_while(|c| *c == '#').count();
    let mut offset = 0;
    let mut from = (0, 0);
    let mut code = false;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        code ^= line.trim_start().starts_with("```");
        if number == start {
            from = (offset, level(line));
        } else if number > start && !code && (1..=from.1).contains(&level(line)) {
            return text.get(from.0..offset);
        }
        offset += line.len();
    }
    text.get(from.0..)
}

/// What the guide says of a word; empty where no table explains it.
pub fn about(word: &str) -> String {
    let explains = |row: &Row<'_>| {
        words(row.cells.first().copied().unwrap_or_default()).any(|known| known.eq_ignore_ascii_case(word))
    };
    let mut out = String::new();
    let mut sections: Vec<&str> = Vec::new();
    for row in rows().filter(explains).take(MOST) {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&format!(
            "{word}  ({}; `{}`)\n\n",
            row.section,
            command_line(["gpufleet", "doc", row.page])
        ));
        for (column, cell) in row.columns.iter().zip(&row.cells).skip(1).filter(|(_, cell)| !cell.is_empty())
        {
            let label = if column.is_empty() { String::new() } else { format!("{column}: ") };
            out.push_str(&format!("  {label}{}\n", plain(cell)));
        }
        sections.extend(section_of(&row));
    }
    sections.dedup();
    for section in sections {
        out.push_str(&format!("\n{section}"));
    }
    out
}

/// The pages whose text has a word, which no table explains.
pub fn mention(word: &str) -> Vec<&'static str> {
    let wanted = word.to_lowercase();
    let has = |text: &str| {
        text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-' && c != '.')
            .any(|known| known.trim_matches('.').to_lowercase() == wanted)
    };
    PAGES.into_iter().filter(|(_, text)| has(text)).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_page_of_the_guide_is_one_of_doc() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
        let there: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".md").map(str::to_owned))
            .collect();
        let known: BTreeSet<String> = pages().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(known, there);
        assert!(pages().all(|(_, title)| !title.is_empty()));
    }

    /// The command lines of gpufleet in the code of a page: behind a prompt, or in backquotes where `inline`.
    fn commands(text: &str, inline: bool) -> Vec<String> {
        let joined = text.replace("\\\n", " ");
        let typed = joined.lines().filter_map(|line| line.strip_prefix("$ "));
        let quoted = joined.lines().filter(|_| inline).flat_map(|line| line.split('`').skip(1).step_by(2));
        let is_one = |line: &&str| line.starts_with("gpufleet ") && !line.contains('…');
        typed.chain(quoted).filter(is_one).map(str::to_owned).collect()
    }

    #[test]
    fn every_command_line_of_the_guide_is_understood() {
        let mut seen = 0;
        for (name, text) in PAGES {
            // Elsewhere text also names commands by halves.
            for line in commands(text, name == "night") {
                let words = shell_words::split(line.split(" #").next().unwrap()).unwrap();
                let words =
                    words.into_iter().take_while(|word| !["|", ">", "&&", ";"].contains(&word.as_str()));
                if let Err(error) = super::super::groups::command_line().try_get_matches_from(words) {
                    panic!("{name}.md: {line}: {error}");
                }
                seen += 1;
            }
        }
        assert!(seen > 60, "{seen}");
        let night = commands(page("night").unwrap(), true);
        for verb in
            ["runs", "locks", "report", "plan", "resume", "abort", "adopt", "pause", "run", "exec", "status"]
        {
            assert!(night.iter().any(|line| line.starts_with(&format!("gpufleet {verb}"))), "{verb}");
        }
    }

    #[test]
    fn a_word_has_its_row_and_the_section_that_it_leads_to() {
        let window = about("window");
        assert!(window.contains("meaning: when nodes may be disturbed\n"), "{window}");
        assert!(
            window.contains("### Maintenance windows\nExamples: `Sat 02:00-06:00 Europe/Berlin`"),
            "{window}"
        );
        assert!(!window.contains("### How long a node needs"), "{window}");
        assert_eq!(plain("a [b](#c) and [d](e.md)"), "a b and d");
        assert_eq!(about("no such word"), "");
    }
}
