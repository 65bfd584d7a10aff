//! Finds the commands that a shell would run in a text: those between operators, in substitutions, behind `sudo` and the like.
//!
//! It reads more than it understands: a branch counts as taken, and a function as called.

use super::{Disturbance, programs};

/// Stands for a word, or a part of one, that is not known.
pub(super) const ANY: char = '\u{fffd}';
/// How deep texts inside of texts are followed: `sudo sh -c "bash -c '…'"`.
const DEEPEST: usize = 8;

/// One command: its words, and what it writes to.
#[derive(Debug, Default)]
struct Simple {
    words: Vec<String>,
    /// Files behind `>` and `>>`.
    writes: Vec<String>,
    /// Text behind `<<` and `<<<`.
    input: Option<String>,
    /// Whether its input is the output of the one before.
    piped: bool,
}

/// Whether this is a shell by its name.
pub(super) fn is_shell(program: &str) -> bool {
    matches!(programs::base(program), "sh" | "bash" | "dash" | "ash" | "zsh" | "ksh" | "mksh")
}

/// Returns the worst that a text does.
pub(super) fn of_text(text: &str, depth: usize) -> Option<Disturbance> {
    if depth > DEEPEST {
        return None;
    }
    let (commands, inner) = Reader::new(text).commands();
    let mut worst = None;
    let mut said: Option<String> = None;
    for command in &commands {
        let input = command.input.clone().or_else(|| said.take().filter(|_| command.piped));
        worst = Disturbance::worse(worst, of_simple(command, input.as_deref(), depth));
        said = programs::echoed(&command.words).or_else(|| {
            command.input.clone().filter(|_| command.words.len() == 1 && command.words[0] == "cat")
        });
    }
    inner.iter().fold(worst, |worst, text| Disturbance::worse(worst, of_text(text, depth + 1)))
}

/// As [`of_text`], for words that no shell reads.
pub(super) fn of_words(words: &[String], stdin: Option<&str>) -> Option<Disturbance> {
    of_command(words, stdin, 0)
}

fn of_simple(command: &Simple, input: Option<&str>, depth: usize) -> Option<Disturbance> {
    let said = programs::echoed(&command.words).or_else(|| input.map(ToOwned::to_owned));
    let written = command.writes.iter().filter_map(|path| {
        let act = programs::written(path, said.as_deref())?;
        let mut words = command.words.clone();
        words.extend([">".to_owned(), path.clone()]);
        Some(Disturbance::of(act, &words))
    });
    written
        .fold(of_command(&command.words, input, depth), |worst, found| Disturbance::worse(worst, Some(found)))
}

/// What the words of one command do, whatever starts it.
fn of_command(words: &[String], input: Option<&str>, depth: usize) -> Option<Disturbance> {
    if depth > DEEPEST {
        return None;
    }
    let words = match words.iter().position(|word| !is_prefix(word)) {
        Some(at) => words.get(at..)?,
        None => return None,
    };
    let (first, arguments) = words.split_first()?;
    let name = programs::base(first);
    if is_shell(first)
        || matches!(name, "su" | "runuser")
        || name == "busybox" && arguments.first().is_some_and(|one| is_shell(one))
    {
        return of_shell_call(arguments, input, depth);
    }
    match name {
        "eval" => return of_text(&arguments.join(" "), depth + 1),
        "trap" => return arguments.first().and_then(|text| of_text(text, depth + 1)),
        "at" | "batch" => return input.and_then(|text| of_text(text, depth + 1)),
        "busybox" | "kmod" => return of_command(arguments, input, depth + 1),
        "function" => return of_command(arguments.get(1..)?, input, depth + 1),
        "find" => {
            let runs = |word: &String| matches!(word.as_str(), "-exec" | "-execdir" | "-ok" | "-okdir");
            let at = arguments.iter().position(runs)?;
            return of_command(arguments.get(at + 1..)?, None, depth + 1);
        }
        _ => {}
    }
    if let Some(wrapper) = programs::wrapper(name) {
        let inner = wrapper.inner(arguments)?;
        return match wrapper.takes_text() && inner.len() == 1 {
            true => of_text(inner.first()?, depth + 1),
            false => of_command(inner, input, depth + 1),
        };
    }
    if name.starts_with("python") || matches!(name, "perl" | "ruby") {
        let code = arguments.iter().position(|word| matches!(word.as_str(), "-c" | "-e"));
        return code.and_then(|at| arguments.get(at + 1)).and_then(|text| of_other_language(text));
    }
    let act = programs::act(first, arguments, input)?;
    Some(Disturbance::of(act, words))
}

/// `sh -c TEXT`, `bash <<EOF`, `su - -c TEXT`.
fn of_shell_call(arguments: &[String], input: Option<&str>, depth: usize) -> Option<Disturbance> {
    let takes_text = |word: &String| {
        word == "--command" || word.starts_with('-') && !word.starts_with("--") && word.contains('c')
    };
    match arguments.iter().position(takes_text) {
        Some(at) => {
            let text = arguments.iter().skip(at + 1).find(|word| !word.starts_with('-'))?;
            of_text(text, depth + 1)
        }
        None => match arguments.iter().position(|word| !word.starts_with('-')) {
            Some(script) => of_command(arguments.get(script..)?, None, depth + 1),
            None => input.and_then(|text| of_text(text, depth + 1)),
        },
    }
}

/// Words before a command that are no part of it.
fn is_prefix(word: &str) -> bool {
    let is_assignment = word.split_once('=').is_some_and(|(name, _)| {
        let name = name.strip_suffix('+').unwrap_or(name);
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !name.as_bytes().first().is_some_and(u8::is_ascii_digit)
    });
    is_assignment
        || matches!(
            word,
            "if" | "then" | "elif" | "else" | "while" | "until" | "do" | "!" | "{" | "}" | "time" | "coproc"
        )
}

/// What a text of another language does: the literals in lines that start processes, read as words and as lines of a shell.
pub(super) fn of_other_language(text: &str) -> Option<Disturbance> {
    const STARTS: [&str; 8] =
        ["system", "subprocess", "Popen", "popen", "check_call", "check_output", "exec", "spawn"];
    let mut worst = None;
    for line in text.lines().filter(|line| STARTS.iter().any(|start| line.contains(start))) {
        let literals = literals(line);
        for literal in &literals {
            worst = Disturbance::worse(worst, of_text(literal, 1));
        }
        worst = Disturbance::worse(worst, of_command(&literals, None, 1));
    }
    worst
}

/// Texts in quotes of a line.
fn literals(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<(char, String)> = None;
    for c in line.chars() {
        match &mut open {
            Some((quote, _)) if *quote == c => found.extend(open.take().map(|(_, text)| text)),
            Some((_, text)) => text.push(c),
            None if matches!(c, '\'' | '"' | '`') => open = Some((c, String::new())),
            None => {}
        }
    }
    found
}

/// Splits a command line into words as `command` does; an open quote ends with the text.
pub(super) fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().extend(characters.next()),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Reads a text once from front to back.
struct Reader<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    commands: Vec<Simple>,
    now: Simple,
    word: Option<String>,
    /// What the next word is, if it is none of the command's.
    awaits: Option<Awaits>,
    /// Marks of here-documents that begin behind this line, and the command each is the input of.
    here: Vec<(String, usize)>,
    inner: Vec<String>,
}

#[derive(Clone, Copy)]
enum Awaits {
    Written,
    Read,
    Mark,
    Text,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Self {
        Self {
            rest: text.chars().peekable(),
            commands: Vec::new(),
            now: Simple::default(),
            word: None,
            awaits: None,
            here: Vec::new(),
            inner: Vec::new(),
        }
    }

    /// Returns the commands, and the texts of substitutions.
    fn commands(mut self) -> (Vec<Simple>, Vec<String>) {
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => {
                    // A line goes on behind a backslash at its end.
                    if let Some(next) = self.rest.next().filter(|next| *next != '\n') {
                        self.push(next);
                    }
                }
                '\'' => {
                    self.word.get_or_insert_default();
                    while let Some(c) = self.rest.next().filter(|c| *c != '\'') {
                        self.push(c);
                    }
                }
                '"' => self.double_quoted(),
                '`' => self.backticks(),
                '$' => self.dollar(),
                '#' if self.word.is_none() => while self.rest.next_if(|c| *c != '\n').is_some() {},
                '>' => self.writes(),
                '<' => self.reads(),
                '&' if self.rest.next_if_eq(&'>').is_some() => self.writes(),
                '|' => {
                    let or = self.rest.next_if_eq(&'|').is_some();
                    self.rest.next_if_eq(&'&');
                    self.end();
                    self.now.piped = !or;
                }
                ';' | '&' | '(' | ')' => self.end(),
                '\n' => {
                    self.end();
                    self.here_documents();
                }
                c if c.is_whitespace() => self.end_word(),
                c => self.push(c),
            }
        }
        self.end();
        self.here_documents();
        (self.commands, self.inner)
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match self.awaits.take() {
            None => self.now.words.push(word),
            Some(Awaits::Written) => self.now.writes.push(word),
            Some(Awaits::Read) => {}
            Some(Awaits::Mark) => self.here.push((word, self.commands.len())),
            Some(Awaits::Text) => self.now.input = Some(word),
        }
    }

    fn end(&mut self) {
        self.end_word();
        self.awaits = None;
        let now = std::mem::take(&mut self.now);
        if !now.words.is_empty() || !now.writes.is_empty() || now.input.is_some() {
            self.commands.push(now);
        } else if now.piped {
            self.now.piped = true;
        }
    }

    fn double_quoted(&mut self) {
        self.word.get_or_insert_default();
        while let Some(c) = self.rest.next().filter(|c| *c != '"') {
            match c {
                '\\' => {
                    if let Some(next) = self.rest.next().filter(|next| *next != '\n') {
                        self.push(next);
                    }
                }
                '$' => self.dollar(),
                '`' => self.backticks(),
                c => self.push(c),
            }
        }
    }

    fn backticks(&mut self) {
        let mut text = String::new();
        while let Some(c) = self.rest.next().filter(|c| *c != '`') {
            text.push(c);
        }
        self.substitution(text);
    }

    /// Takes what a command says in place of it, where that is plain.
    fn substitution(&mut self, text: String) {
        match programs::echoed(&split(&text)) {
            Some(said) => said.chars().for_each(|c| self.push(c)),
            None => self.push(ANY),
        }
        self.inner.push(text);
    }

    /// A variable, which may be anything, or a substitution.
    fn dollar(&mut self) {
        match self.rest.peek() {
            Some('(') => {
                self.rest.next();
                let text = self.until(')', '(');
                self.substitution(text);
            }
            Some('{') => {
                self.rest.next();
                // What stands for a variable that is not set may be what is run.
                match self.until('}', '{').split_once('-') {
                    Some((_, otherwise)) => otherwise.chars().for_each(|c| self.push(c)),
                    None => self.push(ANY),
                }
            }
            // The quotes of `$'…'` and `$"…"` follow.
            Some('\'' | '"') => {}
            Some(c) if c.is_ascii_alphanumeric() || matches!(c, '_' | '@' | '*' | '#' | '?') => {
                self.rest.next();
                while self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_').is_some() {}
                self.push(ANY);
            }
            _ => self.push('$'),
        }
    }

    /// The text up to where what was opened is closed.
    fn until(&mut self, close: char, open: char) -> String {
        let (mut text, mut deep) = (String::new(), 1_usize);
        for c in self.rest.by_ref() {
            if c == open {
                deep += 1;
            } else if c == close {
                deep -= 1;
                if deep == 0 {
                    break;
                }
            }
            text.push(c);
        }
        text
    }

    fn writes(&mut self) {
        // A number before it is a descriptor's.
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        self.rest.next_if_eq(&'>');
        self.rest.next_if_eq(&'|');
        if self.rest.next_if_eq(&'&').is_some() {
            while self.rest.next_if(|c| c.is_ascii_digit() || *c == '-').is_some() {}
            return;
        }
        self.awaits = Some(Awaits::Written);
    }

    fn reads(&mut self) {
        self.end_word();
        if self.rest.next_if_eq(&'<').is_none() {
            if self.rest.next_if_eq(&'(').is_some() {
                let text = self.until(')', '(');
                // A shell runs what it reads there.
                let runs = self
                    .now
                    .words
                    .last()
                    .is_some_and(|word| is_shell(word) || matches!(&**word, "." | "source"));
                self.inner.extend(programs::echoed(&split(&text)).filter(|_| runs));
                self.inner.push(text);
                self.push(ANY);
                return;
            }
            self.rest.next_if_eq(&'&');
            self.awaits = Some(Awaits::Read);
        } else if self.rest.next_if_eq(&'<').is_some() {
            self.awaits = Some(Awaits::Text);
        } else {
            self.rest.next_if_eq(&'-');
            self.awaits = Some(Awaits::Mark);
        }
    }

    /// Takes the lines of here-documents, which are input and no commands.
    fn here_documents(&mut self) {
        for (mark, command) in std::mem::take(&mut self.here) {
            let mut text = String::new();
            loop {
                let mut line = String::new();
                while let Some(c) = self.rest.next_if(|c| *c != '\n') {
                    line.push(c);
                }
                if line.trim_start_matches('\t') == mark {
                    self.rest.next();
                    break;
                }
                text.push_str(&line);
                if self.rest.next().is_none() {
                    break;
                }
                text.push('\n');
            }
            if let Some(command) = self.commands.get_mut(command) {
                command.input = Some(text);
            }
        }
    }
}

/// How a program that starts another one gives its words on.
pub(super) struct Wrapper {
    /// Options that are followed by a value of their own.
    pub(super) valued: &'static [&'static str],
    /// Words before the command that are neither option nor assignment.
    pub(super) positional: usize,
    pub(super) text: bool,
}

impl Wrapper {
    /// The words of the command that it starts.
    fn inner<'w>(&self, arguments: &'w [String]) -> Option<&'w [String]> {
        let (mut at, mut positional) = (0, self.positional);
        while let Some(word) = arguments.get(at) {
            if word == "--" {
                return arguments.get(at + 1 + positional..);
            }
            if word.starts_with('-') && word.len() > 1 {
                at += if self.valued.contains(&word.as_str()) { 2 } else { 1 };
            } else if is_prefix(word) {
                at += 1;
            } else if positional > 0 {
                positional -= 1;
                at += 1;
            } else {
                return arguments.get(at..);
            }
        }
        None
    }

    const fn takes_text(&self) -> bool {
        self.text
    }
}
