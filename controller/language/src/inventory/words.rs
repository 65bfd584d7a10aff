//! Splits a host line of an INI inventory into words, as Python's `shlex` does in POSIX mode with comments.

/// A word and its first character's offset, in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub text: String,
    pub start: usize,
    /// Length in the source in characters, quotes included.
    pub length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WordError {
    #[error("a quote is opened and never closed")]
    Quote,
    #[error("a backslash at the end of the line escapes nothing")]
    Escape,
}

/// Returns the words of `line`; a `#` outside of quotes begins a comment.
pub(super) fn split(line: &str) -> Result<Vec<Word>, (WordError, usize)> {
    let chars: Vec<char> = line.chars().collect();
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut index = 0;
    while let Some(&c) = chars.get(index) {
        match c {
            '#' => break,
            ' ' | '\t' | '\r' | '\n' => finish(&mut words, word.take(), index),
            '\'' | '"' => {
                let text = &mut begin(&mut word, index).text;
                let open = index;
                index += 1;
                loop {
                    match chars.get(index) {
                        None => return Err((WordError::Quote, open)),
                        Some(&close) if close == c => break,
                        Some('\\') if c == '"' => {
                            index += 1;
                            match chars.get(index) {
                                None => return Err((WordError::Quote, open)),
                                Some(&escaped) => {
                                    if escaped != '"' && escaped != '\\' {
                                        text.push('\\');
                                    }
                                    text.push(escaped);
                                }
                            }
                        }
                        Some(&inner) => text.push(inner),
                    }
                    index += 1;
                }
            }
            '\\' => {
                let Some(&escaped) = chars.get(index + 1) else { return Err((WordError::Escape, index)) };
                begin(&mut word, index).text.push(escaped);
                index += 1;
            }
            c => begin(&mut word, index).text.push(c),
        }
        index += 1;
    }
    finish(&mut words, word, index);
    Ok(words)
}

fn begin(word: &mut Option<Word>, start: usize) -> &mut Word {
    word.get_or_insert_with(|| Word { text: String::new(), start, length: 0 })
}

fn finish(words: &mut Vec<Word>, word: Option<Word>, end: usize) {
    if let Some(mut word) = word {
        word.length = end - word.start;
        words.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        split(line).unwrap().into_iter().map(|word| word.text).collect()
    }

    #[test]
    fn words_are_split_as_shlex_splits_them() {
        assert_eq!(texts("gpu1 a=1  b='x y' # c"), ["gpu1", "a=1", "b=x y"]);
        assert_eq!(texts(r#"h a="x \"q\" \n \\" b='\n' c=\n"#), ["h", r#"a=x "q" \n \"#, r"b=\n", "c=n"]);
        assert_eq!(texts("h a=b#c d"), ["h", "a=b"]);
        assert_eq!(texts("h a='' ''"), ["h", "a=", ""]);
        assert_eq!(texts("h a='#' b"), ["h", "a=#", "b"]);
        let words = split("h  a='x y'").unwrap();
        assert_eq!((words[1].start, words[1].length), (3, 7));
    }

    #[test]
    fn open_ends_are_errors() {
        assert_eq!(split("h a='x"), Err((WordError::Quote, 4)));
        assert_eq!(split("h a=\"x\\"), Err((WordError::Quote, 4)));
        assert_eq!(split("h a\\"), Err((WordError::Escape, 3)));
    }
}
