//! The template engine: compiles, caches and evaluates.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, RwLock};

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Expression, UndefinedBehavior};

use super::includes::{self, Shelves, TakenIn};
use super::inert::{self, Guard};
use super::rewrite::{self, Rewritten};
use super::scan::{self, Piece};
use super::value::Value;
use super::{Scope, Syntax, Teller, TemplateError, Truth, bounds, filters, frame, lookups, mutable};
use crate::diagnostic::suggest;

/// Largest number of steps of one evaluation; a loop over a million items is a mistake.
const FUEL: u64 = 2_000_000;
/// Largest number of tokens without a comma or colon between them.
const MOST_LINKS: usize = 1_000;
/// Number of compiled templates in the cache, which is emptied when it is full.
const CACHE_ENTRIES: usize = 20_000;

/// Ansible's settings: the line break after a statement is removed, the last one of a file is kept.
static SYNTAX: LazyLock<SyntaxConfig> = LazyLock::new(|| {
    SyntaxConfig::builder().trim_blocks(true).keep_trailing_newline(true).build().unwrap_or_default()
});

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_syntax(SYNTAX.clone());
    // With debug on, an error would look up every visible variable, which counts as use and collects secrets.
    environment.set_debug(false);
    bounds::register(&mut environment);
    mutable::register(&mut environment);
    rewrite::register(&mut environment);
    environment.set_formatter(|out, state, value| {
        // `x if y` without `else` gives nothing, which is no mistake inside of a text.
        if value.is_undefined() {
            return minijinja::escape_formatter(out, state, value);
        }
        let value = match value.as_str() {
            Some(text) => Value::str(text),
            None => within_text(value).map_err(|error| error.into_engine())?,
        };
        bounds::spend(value.weight()).map_err(bounds::refused)?;
        frame::written(&value);
        Ok(out.write_str(&value.to_text())?)
    });
    filters::register(&mut environment);
    lookups::register(&mut environment);
    environment.add_function("undef", |kwargs: Kwargs| -> Result<minijinja::Value, minijinja::Error> {
        let hint: Option<String> = kwargs.get("hint")?;
        kwargs.assert_all_used()?;
        Ok(frame::missing(hint.map_or_else(|| "undef()".to_owned(), |hint| format!("undef(hint='{hint}')"))))
    });
    // `debug` prints every visible variable, secrets included.
    environment.remove_global("debug");
    environment
});

struct Compiled {
    code: Code,
    /// Whether it changes lists or mappings.
    changes: bool,
}

enum Code {
    Expression(Coded),
    /// Text and expressions, each expression with its offset in the source.
    Pieces(Vec<Part>),
    /// A template with statements, which the engine renders as a whole.
    Document(Document),
}

pub(super) struct Document {
    written: rewrite::Document,
    literals: Option<Rewritten>,
}

impl Document {
    /// Rewrites a template. `changes` says that it, or one that includes it, may change lists and mappings; `outside`
    /// are the names that the others set.
    pub(super) fn of(
        source: &str,
        syntax: &Syntax,
        marks: &SyntaxConfig,
        changes: bool,
        outside: &HashSet<String>,
    ) -> Self {
        let own_marks = syntax.has_own_marks();
        let text =
            if own_marks { Cow::Owned(rewrite::dotted_template(source)) } else { Cow::Borrowed(source) };
        let written = rewrite::document(&text, syntax, marks, outside);
        let literals = (own_marks && changes).then(|| rewrite::with_literals_in(&written.text.text));
        Self { written, literals }
    }

    pub(super) fn text(&self) -> &str {
        &self.literals.as_ref().unwrap_or(&self.written.text).text
    }

    /// Returns the names that it sets.
    pub(super) fn sets(&self) -> impl Iterator<Item = &String> {
        self.written.sets.iter()
    }

    /// Converts an error of the engine to one with its place in the source.
    pub(super) fn error(&self, error: &minijinja::Error) -> TemplateError {
        let error = TemplateError::from_engine(error, self.text());
        error.moved(|at| {
            let at = self.literals.as_ref().map_or(at, |literals| literals.back(at));
            self.written.text.back(at)
        })
    }
}

/// A compiled expression, with the rewrites that its text went through.
struct Coded {
    code: Expression<'static, 'static>,
    text: Rewritten,
    literals: Option<Rewritten>,
}

impl Coded {
    fn eval(&self, root: minijinja::Value) -> Result<minijinja::Value, TemplateError> {
        self.code.eval(root).map_err(|error| coded_error(&error, &self.text, self.literals.as_ref()))
    }
}

fn coded_error(error: &minijinja::Error, text: &Rewritten, literals: Option<&Rewritten>) -> TemplateError {
    TemplateError::from_engine(error, &literals.unwrap_or(text).text)
        .moved(|at| text.back(literals.map_or(at, |literals| literals.back(at))))
}

enum Part {
    Text(Box<str>),
    Expression { code: Box<Coded>, start: usize },
}

type Cache = RwLock<HashMap<Box<str>, Arc<Compiled>>>;
static EXPRESSIONS: LazyLock<Cache> = LazyLock::new(Cache::default);
static TEMPLATES: LazyLock<Cache> = LazyLock::new(Cache::default);

fn cached(
    cache: &Cache,
    source: &str,
    compile: impl FnOnce() -> Result<Compiled, TemplateError>,
) -> Result<Arc<Compiled>, TemplateError> {
    if let Some(found) = cache.read().ok().and_then(|cache| cache.get(source).cloned()) {
        return Ok(found);
    }
    let fresh = Arc::new(compile()?);
    if let Ok(mut cache) = cache.write() {
        if cache.len() >= CACHE_ENTRIES {
            cache.clear();
        }
        cache.insert(source.into(), Arc::clone(&fresh));
    }
    Ok(fresh)
}

fn compile_expression(source: &str) -> Result<Coded, TemplateError> {
    bounded(source, true, &SYNTAX).map_err(|error| TemplateError::from_engine(&error, source))?;
    let unqualified = rewrite::unqualified(source);
    let dotted = rewrite::dotted(&unqualified);
    let text = rewrite::expression(&rewrite::with_minus(&dotted));
    let literals = rewrite::changes_values(source).then(|| rewrite::with_literals(&text.text));
    let final_text = &literals.as_ref().unwrap_or(&text).text;
    let compiled = ENVIRONMENT
        .compile_expression_owned(final_text.clone())
        .and_then(|code| whole(final_text, true, &SYNTAX).map(|()| code));
    match compiled {
        Ok(code) => Ok(Coded { code, text, literals }),
        Err(error) => Err(coded_error(&error, &text, literals.as_ref())),
    }
}

/// Checks that no expression is longer than the engine follows, whose parser and compiler call themselves once an operator.
pub(super) fn bounded(
    text: &str,
    is_expression: bool,
    syntax: &SyntaxConfig,
) -> Result<(), minijinja::Error> {
    let mut links = 0;
    // An invalid token is told by `whole`, and ends what the parser reads.
    for (token, _) in tokenize(text, is_expression, syntax.clone()).map_while(Result::ok) {
        links = match token {
            Token::Comma
            | Token::Colon
            | Token::VariableStart
            | Token::BlockStart
            | Token::TemplateData(_) => 0,
            _ => links + 1,
        };
        if links > MOST_LINKS {
            let message = format!("an expression has more than {MOST_LINKS} words and operators in a row");
            return Err(minijinja::Error::new(minijinja::ErrorKind::SyntaxError, message));
        }
    }
    Ok(())
}

/// Checks that all of a text can be split into tokens.
///
/// The parser of minijinja 3.0.5 takes an invalid token right behind a string for the end of the text, so that
/// `a == 'b' && c` would be `a == 'b'`.
pub(super) fn whole(text: &str, is_expression: bool, syntax: &SyntaxConfig) -> Result<(), minijinja::Error> {
    tokenize(text, is_expression, syntax.clone()).try_for_each(|token| token.map(|_| ()))
}

fn expression(source: &str) -> Result<Arc<Compiled>, TemplateError> {
    cached(&EXPRESSIONS, source, || {
        let code = compile_expression(source).map(Code::Expression)?;
        Ok(Compiled { code, changes: rewrite::changes_values(source) })
    })
}

/// Whether an expression may be an `x if y` without `else`, which gives nothing if `y` is false.
fn ends_open(expression: &str) -> bool {
    expression.contains(" if ") && !expression.contains(" else ")
}

fn template(source: &str) -> Result<Arc<Compiled>, TemplateError> {
    cached(&TEMPLATES, source, || {
        let several = |pieces: &Vec<Piece>| {
            let open = pieces.iter().any(|piece| match piece {
                Piece::Expression(range) => ends_open(source.get(range.clone()).unwrap_or_default()),
                Piece::Text(_) => false,
            });
            !(open && pieces.len() > 1)
        };
        let Some(pieces) = scan::pieces(source).filter(several) else {
            bounded(source, false, &SYNTAX).map_err(|error| TemplateError::from_engine(&error, source))?;
            let changes = rewrite::changes_values(source);
            let document = Document::of(source, &Syntax::default(), &SYNTAX, changes, &HashSet::new());
            ENVIRONMENT
                .template_from_str(document.text())
                .and_then(|_| whole(document.text(), false, &SYNTAX))
                .map_err(|error| document.error(&error))?;
            return Ok(Compiled { changes: document.literals.is_some(), code: Code::Document(document) });
        };
        let mut parts = Vec::new();
        for piece in pieces {
            parts.push(match piece {
                Piece::Text(range) => Part::Text(source.get(range).unwrap_or_default().into()),
                Piece::Expression(range) => {
                    let start = range.start;
                    let text = rewrite::doubled_backslashes(source.get(range).unwrap_or_default());
                    let code = compile_expression(&text).map_err(|error| error.shifted(start))?;
                    Part::Expression { code: Box::new(code), start }
                }
            });
        }
        Ok(Compiled { code: Code::Pieces(parts), changes: rewrite::changes_values(source) })
    })
}

/// Runs one evaluation of this source.
///
/// A template that may run a shell, or look at files, is evaluated with masked variables first, because only a comparison
/// tells which characters of a line or path come from a node.
fn evaluated(
    source: &str,
    scope: &Arc<Scope>,
    run: impl Fn(minijinja::Value) -> Result<Value, TemplateError>,
) -> Result<Value, TemplateError> {
    let asked = |guard: Guard, tellers: &[Teller]| {
        let masked = scope.masked(guard, tellers)?;
        let mut asked = Vec::new();
        // An error here occurs again below, or leaves out what is asked for, which is refused then.
        let _ = inert::masked_text(guard, || {
            frame::evaluate(&masked, |root| {
                let value = run(root);
                asked = frame::take_asked();
                value
            })
        });
        Some(asked)
    };
    let may = |may: fn(&str) -> bool| !inert::is_masked() && may(source);
    let lines = may(lookups::may_run_a_shell).then(|| asked(Guard::Shell, &Teller::ALL)).flatten();
    let paths = may(lookups::may_look_at_files).then(|| asked(Guard::Path, &Teller::OF_NODES)).flatten();
    let runs_lines = lines.is_some();
    let evaluate = || {
        frame::evaluate(scope, |root| {
            frame::expect(lines, paths);
            run(root)
        })
    };
    if runs_lines { inert::line(evaluate) } else { evaluate() }
}

/// Returns the value of a bare expression, as in `when`.
///
/// # Errors
/// Syntax errors, undefined variables, wrong types. Their places are in bytes of `source`.
pub fn evaluate(source: &str, scope: &Arc<Scope>) -> Result<Value, TemplateError> {
    let compiled = expression(source)?;
    let Code::Expression(code) = &compiled.code else { return Ok(Value::Null) };
    evaluated(source, scope, |root| {
        if compiled.changes {
            frame::allow_changes();
        }
        frame::collect(&code.eval(root)?)
    })
    .map_err(|error| error.located(source))
}

/// Returns whether a condition holds.
///
/// # Errors
/// As [`evaluate`], and for a value that is neither true nor false.
pub fn condition(source: &str, scope: &Arc<Scope>) -> Result<Truth, TemplateError> {
    let source = condition_text(source)?;
    match evaluate(source, scope)? {
        Value::Bool(true) => Ok(Truth::True),
        Value::Bool(false) => Ok(Truth::False),
        Value::Unknown => Ok(Truth::Unknown),
        other => Err(TemplateError::new(format!(
            "a condition must be true or false, this one gives {}; use `| bool`, `| length > 0` or a comparison",
            other.kind()
        ))),
    }
}

/// Strips `{{ }}` around a whole condition.
pub(super) fn condition_text(source: &str) -> Result<&str, TemplateError> {
    if !scan::is_template(source) {
        return Ok(source);
    }
    match scan::pieces(source.trim()).as_deref() {
        Some([Piece::Expression(range)]) => Ok(source.trim().get(range.clone()).unwrap_or_default()),
        _ => Err(TemplateError::new("a condition is an expression already: write it without `{{ }}`")),
    }
}

/// Returns the value of a template; text that is exactly one `{{ … }}` keeps the type of its value.
///
/// # Errors
/// As [`evaluate`].
pub fn render(source: &str, scope: &Arc<Scope>) -> Result<Value, TemplateError> {
    // As in Ansible, the last line break is kept only if the result is text, and a statement before it does not
    // remove it.
    let wanted = breaks(source);
    let source = &*line_breaks(source);
    let Some(line) = source.strip_suffix('\n') else { return render_line(source, scope) };
    Ok(match render_line(line, scope)? {
        Value::Str(text) => {
            let missing = wanted.saturating_sub(breaks(&text));
            Value::from(format!("{text}{}", "\n".repeat(missing)))
        }
        other => other,
    })
}

fn render_line(source: &str, scope: &Arc<Scope>) -> Result<Value, TemplateError> {
    let compiled = template(source)?;
    evaluated(source, scope, |root| {
        if compiled.changes {
            frame::allow_changes();
        }
        match &compiled.code {
            Code::Pieces(parts) => match parts.as_slice() {
                [Part::Expression { code, start }] => frame::collect(&run_part(code, *start, root)?),
                parts => {
                    // As in Ansible, null values leave no trace, and a single remaining value keeps its type.
                    let mut values = Vec::with_capacity(parts.len());
                    for part in parts {
                        values.push(match part {
                            Part::Text(text) => Value::str(text),
                            Part::Expression { code, start } => {
                                within_text(&run_part(code, *start, root.clone())?)?
                            }
                        });
                    }
                    let length = values.iter().fold(0_usize, |sum, value| sum.saturating_add(value.weight()));
                    bounds::room(length).map_err(TemplateError::new)?;
                    values.retain(|value| !matches!(value, Value::Null));
                    Ok(match values.len() {
                        0 => Value::Null,
                        1 => values.remove(0),
                        _ => Value::from(values.iter().map(Value::to_text).collect::<String>()),
                    })
                }
            },
            Code::Document(document) => {
                frame::note_macros(document.text());
                ENVIRONMENT
                    .render_str(document.text(), root)
                    .map(as_value)
                    .map_err(|error| document.error(&error))
            }
            Code::Expression(_) => Ok(Value::Null),
        }
    })
    .map_err(|error| error.located(source))
}

/// Returns a template file as text; `None` if it depends on an unknown value.
///
/// # Errors
/// As [`evaluate`].
#[cfg(test)]
pub(super) fn render_document(source: &str, scope: &Arc<Scope>) -> Result<Option<String>, TemplateError> {
    render_document_as(source, scope, &Syntax::default(), &Shelves::default())
}

/// Returns the number of line breaks at the end of a text.
fn breaks(text: &str) -> usize {
    text.len() - text.trim_end_matches('\n').len()
}

/// Returns the value of a rendered text with statements: a single value in it keeps its type.
fn as_value(text: String) -> Value {
    match frame::only_written() {
        Some(None) if text.is_empty() => Value::Null,
        Some(Some(only)) if only.to_text() == text => only,
        _ => Value::from(text),
    }
}

/// Replaces `\r\n` and `\r` by `\n`, as Jinja does.
pub(super) fn line_breaks(text: &str) -> Cow<'_, str> {
    match text.contains('\r') {
        true => Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n")),
        false => Cow::Borrowed(text),
    }
}

/// Converts an offset in a text from [`Syntax::lines`] to one in the original text.
fn in_source(text: &str, removed: &[(usize, usize)], line_end: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or(text);
    let gone: usize = removed.iter().take_while(|(place, _)| *place <= at).map(|(_, length)| length).sum();
    at + gone - before.matches(line_end).count() * (line_end.len() - 1)
}

/// Renders a template file with a given syntax, which may include templates from `shelves`; `None` if it depends on
/// an unknown value.
///
/// # Errors
/// As [`evaluate`]; marks that cannot be told apart; included templates that do not exist.
pub fn render_document_as(
    source: &str,
    scope: &Arc<Scope>,
    syntax: &Syntax,
    shelves: &Shelves,
) -> Result<Option<String>, TemplateError> {
    let own_marks = syntax.has_own_marks();
    if own_marks && !scan::is_template(source) {
        return Ok(Some(source.to_owned()));
    }
    // As in Ansible, a statement before the last line break does not remove it, so missing ones are added again.
    let wanted = breaks(source);
    let source = &*line_breaks(source);
    let line_end = syntax.line_end;
    let (body, removed) = syntax.lines(source.strip_suffix('\n').unwrap_or(source));
    let body = &*body;
    let takes_in = includes::takes_in(body);
    let marks = match *syntax == Syntax::default() {
        true => SYNTAX.clone(),
        false => syntax.config().map_err(TemplateError::new)?,
    };
    bounded(body, false, &marks).map_err(|error| TemplateError::from_engine(&error, body))?;
    let document =
        Document::of(body, syntax, &marks, takes_in || rewrite::changes_values(body), &HashSet::new());
    let taken = TakenIn::of(&document);
    let rendered = evaluated(body, scope, |root| {
        // A new environment each time: it keeps included templates, whose macros belong to one evaluation.
        let mut environment = Cow::Borrowed(&*ENVIRONMENT);
        if takes_in || *syntax != Syntax::default() {
            let own = environment.to_mut();
            own.set_syntax(marks.clone());
            if let Some(outside) = scope.outside() {
                taken.open(own, outside, shelves, syntax, &marks);
            }
        }
        if document.literals.is_some() {
            frame::allow_changes();
        }
        frame::note_macros(document.text());
        environment
            .render_str(document.text(), root)
            .and_then(|rendered| whole(document.text(), false, &marks).map(|()| rendered))
            .map(as_value)
            .map_err(|error| taken.error(&error).unwrap_or_else(|| document.error(&error)))
    });
    let located = |error: TemplateError| {
        taken.located(error.located(body)).moved(|at| in_source(body, &removed, line_end, at))
    };
    match rendered.map_err(located)? {
        Value::Unknown => Ok(None),
        Value::Str(text) => {
            let missing = wanted.saturating_sub(breaks(&text));
            Ok(Some(format!("{text}{}", line_end.repeat(missing))))
        }
        other => Ok(Some(other.to_text())),
    }
}

/// Renders a template file for the lookup `template`: one that is exactly one expression keeps the type of its value.
pub(super) fn render_file(
    source: &str,
    scope: &Arc<Scope>,
    syntax: &Syntax,
    shelves: &Shelves,
) -> Result<Value, TemplateError> {
    let document = || {
        let text = render_document_as(source, scope, syntax, shelves)?;
        Ok(text.map_or(Value::Unknown, Value::from))
    };
    if *syntax != Syntax::default() {
        return document();
    }
    let wanted = breaks(source);
    let source = &*line_breaks(source);
    let bare = source.strip_suffix('\n').unwrap_or(source);
    match scan::pieces(bare).as_deref() {
        Some([Piece::Expression(range)]) => {
            let start = range.start;
            let inner = bare.get(range.clone()).unwrap_or_default();
            let value = evaluate(inner, scope).map_err(|error| error.shifted(start))?;
            Ok(match value.as_str() {
                Some(text) => {
                    let missing = wanted.saturating_sub(breaks(text));
                    Value::from(format!("{text}{}", "\n".repeat(missing)))
                }
                None => value,
            })
        }
        _ => document(),
    }
}

fn run_part(code: &Coded, start: usize, root: minijinja::Value) -> Result<minijinja::Value, TemplateError> {
    code.eval(root).map_err(|error| error.shifted(start))
}

/// Returns what a text shows for a value.
fn within_text(value: &minijinja::Value) -> Result<Value, TemplateError> {
    match filters::dates::written(value) {
        Some(text) => Ok(Value::from(text)),
        None => frame::collect(value),
    }
}

/// Returns the value with every template in it rendered.
///
/// # Errors
/// As [`evaluate`].
pub fn resolve(value: &Value, scope: &Arc<Scope>) -> Result<Value, TemplateError> {
    match value {
        value if value.is_settled() => Ok(value.clone()),
        Value::Template(source) => render(source, scope),
        Value::Secret(inner) => {
            frame::met_secret();
            resolve(inner, scope)
        }
        Value::List(list) => {
            let items: Result<Vec<_>, _> = list.items().iter().map(|item| resolve(item, scope)).collect();
            Ok(Value::list(items?))
        }
        Value::Map(dict) => {
            let mut fresh = super::Dict::default();
            for (key, value) in dict.iter() {
                let key = if scan::is_template(key) {
                    Arc::from(render(key, scope)?.to_text())
                } else {
                    Arc::clone(key)
                };
                fresh.insert(key, resolve(value, scope)?);
            }
            Ok(Value::Map(Arc::new(fresh)))
        }
        other => Ok(other.clone()),
    }
}

/// The variables that an expression or template reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Names of variables, without attributes.
    pub names: Vec<String>,
    /// Those of `names` that may be missing, because of `default` or `is defined`.
    pub guarded: Vec<String>,
}

fn references(
    source: &str,
    undeclared: impl IntoIterator<Item = String>,
    looked_up: Vec<(String, bool)>,
) -> Result<References, TemplateError> {
    let macros = scan::macros(source);
    let called = |name: &str, at: usize| {
        source.get(at + name.len()..).is_some_and(|rest| rest.trim_start().starts_with('('))
    };
    let is_own = |name: &String| {
        // Jinja has no value `undefined`, but templates use it as if it had.
        ["omit", "undefined", rewrite::SCOPE].contains(&name.as_str())
            // A variable may have the name of a function, so it is one only if it is called.
            || is_function(name) && scan::find_variable(source, name).is_none_or(|at| called(name, at))
            || macros.contains(name)
    };
    let mut names: Vec<String> = undeclared.into_iter().filter(|name| !is_own(name)).collect();
    names.sort_unstable_by_key(|name| scan::find_variable(source, name));
    names.dedup();
    for name in &names {
        let Some(at) = scan::find_variable(source, name) else { continue };
        if !called(name, at) {
            continue;
        }
        let error = match name.as_str() {
            "now" => TemplateError::new(
                "`now` would give another time when a run is resumed; use `ansible_date_time` of the facts",
            ),
            _ => TemplateError::new(format!("unknown function `{name}`"))
                .with_suggestion(suggest(name, FUNCTIONS.iter().copied()).map(ToOwned::to_owned)),
        };
        return Err(error.with_range(at..at + name.len()));
    }
    let mut guarded = scan::guarded(source, names.iter().cloned());
    for (name, provided) in looked_up {
        if is_own(&name) {
            continue;
        }
        let known = names.contains(&name);
        if provided && !known {
            guarded.push(name.clone());
        } else if !provided {
            guarded.retain(|guarded| *guarded != name);
        }
        if !known {
            names.push(name);
        }
    }
    Ok(References { names, guarded })
}

/// Checks the lookups of an expression. Returns the variables that `vars` reads, and whether they may be missing.
fn check_lookups(expression: &str) -> Result<Vec<(String, bool)>, TemplateError> {
    let mut variables = Vec::new();
    for call in lookups::calls(expression) {
        let Some((name, place)) = call.name else { continue };
        let lookup = lookups::find(name).map_err(|error| error.with_range(place))?;
        for (text, place) in call.texts {
            if scan::is_template(text) {
                return Err(TemplateError::new(
                    "this is an expression already: write the variable's name without quotes and `{{ }}`",
                )
                .with_range(place));
            }
            if lookup.name == "vars" {
                let after = scan::bracket_end(expression, place.end + 1)
                    .map_or("", |end| expression.get(end + 1..).unwrap_or_default().trim_start());
                let spared = ["|default", "|d(", "is defined", "is not defined", "is undefined"];
                let after: String = after.replace("| ", "|");
                let provided = call.has_default || spared.iter().any(|guard| after.starts_with(guard));
                variables.push((text.to_owned(), provided));
            }
        }
    }
    Ok(variables)
}

/// Returns the variables of an expression without evaluating it.
///
/// # Errors
/// Syntax errors, unknown filters and tests.
pub fn inspect_expression(source: &str) -> Result<References, TemplateError> {
    let source = condition_text(source)?;
    let compiled = expression(source)?;
    let Code::Expression(code) = &compiled.code else { return Ok(References::default()) };
    filters::check_names(source)?;
    references(source, code.code.undeclared_variables(false), check_lookups(source)?)
}

/// Returns the variables of a template without rendering it.
///
/// # Errors
/// Syntax errors, unknown filters and tests.
pub fn inspect_template(source: &str) -> Result<References, TemplateError> {
    let compiled = template(source)?;
    let mut names = Vec::new();
    let mut looked_up = Vec::new();
    match &compiled.code {
        Code::Pieces(parts) => {
            for part in parts {
                if let Part::Expression { code, start } = part {
                    names.extend(code.code.undeclared_variables(false));
                    let end = source.get(*start..).and_then(|rest| rest.find("}}")).unwrap_or(0) + start;
                    filters::check_names(source.get(*start..end).unwrap_or_default())
                        .map_err(|error| error.shifted(*start))?;
                }
            }
        }
        Code::Document(document) => {
            let parsed =
                ENVIRONMENT.template_from_str(document.text()).map_err(|error| document.error(&error))?;
            let written = &document.written;
            for name in parsed.undeclared_variables(false) {
                // Guarded, because the text sets it under a condition that only rendering can decide.
                match written.sets.contains(&name) && !written.free.contains(&name) {
                    true => looked_up.push((name, true)),
                    false => names.push(name),
                }
            }
            // Guarded, because the macro may never run.
            let late = document.written.late.iter().filter(|name| !names.contains(name)).cloned();
            looked_up.extend(late.map(|name| (name, true)));
        }
        Code::Expression(_) => {}
    }
    for range in scan::code(source) {
        let start = range.start;
        let found = check_lookups(source.get(range).unwrap_or_default());
        looked_up.extend(found.map_err(|error| error.shifted(start))?);
    }
    references(source, names, looked_up)
}

/// Returns the offset in bytes of a variable in an expression or template, or of its name as an argument of `vars`.
pub fn position_of(source: &str, name: &str) -> Option<usize> {
    let quoted = |quote: char| source.find(&format!("{quote}{name}{quote}")).map(|at| at + 1);
    scan::find_variable(source, name).or_else(|| quoted('\'')).or_else(|| quoted('"'))
}

const FUNCTIONS: &[&str] = &["range", "dict", "namespace", "lookup", "query", "q", "undef"];

/// Whether the engine has a function of this name.
pub(super) fn is_function(name: &str) -> bool {
    FUNCTIONS.contains(&name) || [rewrite::LIST, rewrite::DICT].contains(&name)
}
