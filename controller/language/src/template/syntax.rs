//! The syntax of a template file: its marks and how blanks are treated.

use std::borrow::Cow;
use std::ops::Range;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// The syntax of a template file; a mark that is not set is Jinja's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syntax {
    /// Whether the line break after a statement is removed.
    pub trim_blocks: bool,
    /// Whether blanks before a statement are removed.
    pub lstrip_blocks: bool,
    pub block: (Option<String>, Option<String>),
    pub variable: (Option<String>, Option<String>),
    pub comment: (Option<String>, Option<String>),
    /// The line breaks of the result, in place of those of the template's own text.
    pub line_end: &'static str,
}

impl Default for Syntax {
    /// Ansible's settings.
    fn default() -> Self {
        Self {
            trim_blocks: true,
            lstrip_blocks: false,
            block: (None, None),
            variable: (None, None),
            comment: (None, None),
            line_end: "\n",
        }
    }
}

fn mark(given: &Option<String>, own: &'static str) -> Cow<'static, str> {
    given.clone().map_or(Cow::Borrowed(own), Cow::Owned)
}

fn marks(
    given: &(Option<String>, Option<String>),
    begin: &'static str,
    end: &'static str,
) -> [Cow<'static, str>; 2] {
    [mark(&given.0, begin), mark(&given.1, end)]
}

impl Syntax {
    /// Whether the marks are Jinja's own.
    pub fn has_own_marks(&self) -> bool {
        [&self.block, &self.variable, &self.comment].iter().all(|pair| **pair == (None, None))
    }

    /// Returns the marks around a statement.
    pub(super) fn block_marks(&self) -> [Cow<'static, str>; 2] {
        marks(&self.block, "{%", "%}")
    }

    /// Returns the engine's configuration.
    ///
    /// # Errors
    /// If the marks cannot be told apart.
    pub(super) fn config(&self) -> Result<SyntaxConfig, String> {
        let [block, block_end] = self.block_marks();
        let [variable, variable_end] = marks(&self.variable, "{{", "}}");
        let [comment, comment_end] = marks(&self.comment, "{#", "#}");
        SyntaxConfig::builder()
            .trim_blocks(self.trim_blocks)
            .lstrip_blocks(self.lstrip_blocks)
            .keep_trailing_newline(true)
            .block_delimiters(block, block_end)
            .variable_delimiters(variable, variable_end)
            .comment_delimiters(comment, comment_end)
            .build()
            .map_err(|error| error.to_string())
    }

    /// Converts the line breaks of a text for the engine. Returns what was removed too: each offset in the new text,
    /// and the length.
    pub(super) fn lines<'a>(&self, text: &'a str) -> (Cow<'a, str>, Vec<(usize, usize)>) {
        let mut removed = Vec::new();
        if self.line_end == "\n" {
            return (Cow::Borrowed(text), removed);
        }
        let mut kept = String::new();
        let mut copied = 0;
        // The engine does not take a lone `\r` for the end of a line.
        if self.lstrip_blocks && self.line_end == "\r" {
            for blanks in self.blanks_before_statements(text) {
                kept.push_str(text.get(copied..blanks.start).unwrap_or_default());
                removed.push((kept.len(), blanks.len()));
                copied = blanks.end;
            }
        }
        kept.push_str(text.get(copied..).unwrap_or_default());
        (Cow::Owned(kept.replace('\n', self.line_end)), removed)
    }

    fn blanks_before_statements(&self, text: &str) -> Vec<Range<usize>> {
        let Ok(marks) = Self { lstrip_blocks: false, ..self.clone() }.config() else { return Vec::new() };
        let starts = [mark(&self.block.0, "{%"), mark(&self.comment.0, "{#")];
        let data = tokenize(text, false, marks).map_while(Result::ok);
        let ends = data.filter_map(|(token, span)| {
            matches!(token, Token::TemplateData(_)).then_some(span.end_offset as usize)
        });
        let blanks = ends.filter_map(|end| {
            let (before, after) = text.split_at_checked(end)?;
            let rest = starts.iter().find_map(|start| after.strip_prefix(&**start))?;
            let line = before.rsplit('\n').next()?;
            let only_blanks = line.chars().all(char::is_whitespace) && !line.is_empty();
            (only_blanks && !rest.starts_with('+')).then_some(end - line.len()..end)
        });
        blanks.collect()
    }

    /// Applies the settings of a first line `#jinja2: name: value, …`, and returns the text after that line.
    ///
    /// # Errors
    /// If a setting is unknown.
    pub fn from_header(mut self, text: &str) -> Result<(Self, &str), String> {
        let Some(rest) = text.strip_prefix("#jinja2:") else { return Ok((self, text)) };
        let (line, body) = rest.split_once('\n').unwrap_or((rest, ""));
        for setting in line.split(',').filter(|setting| !setting.trim().is_empty()) {
            let (name, value) =
                setting.split_once(':').ok_or_else(|| format!("`{}` is no setting", setting.trim()))?;
            let value = value.trim().trim_matches(['\'', '"']);
            let flag = matches!(value.to_ascii_lowercase().as_str(), "true" | "yes" | "on" | "1");
            let mark = Some(value.to_owned());
            match name.trim() {
                "trim_blocks" => self.trim_blocks = flag,
                "lstrip_blocks" => self.lstrip_blocks = flag,
                "block_start_string" => self.block.0 = mark,
                "block_end_string" => self.block.1 = mark,
                "variable_start_string" => self.variable.0 = mark,
                "variable_end_string" => self.variable.1 = mark,
                "comment_start_string" => self.comment.0 = mark,
                "comment_end_string" => self.comment.1 = mark,
                other => return Err(format!("`{other}` is not a setting of templates that gpufleet knows")),
            }
        }
        Ok((self, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_sets_marks() {
        let text =
            "#jinja2: variable_start_string: '[%' , variable_end_string: '%]', trim_blocks: False\nx\n";
        let (syntax, body) = Syntax::default().from_header(text).unwrap();
        assert_eq!(
            (syntax.variable, syntax.trim_blocks, body),
            ((Some("[%".into()), Some("%]".into())), false, "x\n")
        );
        assert_eq!(Syntax::default().from_header("# plain\n").unwrap(), (Syntax::default(), "# plain\n"));
        assert!(Syntax::default().from_header("#jinja2: nonsense: 1\n").is_err());
    }
}
