//! Builds the tree of a rule.

use serde_json::Value;

use super::ast::{Expr, ExprKind, Name, Operator};
use super::lexer::{Placed, Token, tokens};
use super::{MAX_DEPTH, MAX_LENGTH, RuleError};

/// Reads a rule. Names, functions and types are not checked here; see [`super::compile`].
///
/// # Errors
/// If the text is no expression, is longer than [`MAX_LENGTH`] or nests deeper than [`MAX_DEPTH`].
pub fn parse(text: &str) -> Result<Expr, RuleError> {
    let length = text.chars().take(MAX_LENGTH + 1).count();
    if length > MAX_LENGTH {
        return Err(RuleError::new(format!("a rule has at most {MAX_LENGTH} characters"), MAX_LENGTH, 1));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0, end: length };
    let (expr, _) = parser.or()?;
    match parser.peek() {
        None => Ok(expr),
        Some(placed) => Err(RuleError::new(
            format!("{} is not expected here", described(&placed.token)),
            placed.at,
            placed.length,
        )
        .help("operators are `and`, `or`, `not`, `in`, ==, !=, <, <=, >, >=, +, -, *, /")),
    }
}

struct Parser {
    tokens: Vec<Placed>,
    next: usize,
    /// Nesting of what is being read.
    depth: usize,
    /// Where the text ends, in characters.
    end: usize,
}

/// An expression and the height of its tree. The height is bounded too, as a chain of operators is a deep tree
/// without any nesting in the text.
type Tall = (Expr, usize);

const KEYWORDS: [&str; 7] = ["and", "or", "not", "in", "true", "false", "null"];

impl Parser {
    fn peek(&self) -> Option<&Placed> {
        self.tokens.get(self.next)
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(Placed { token: Token::Sign(it), .. }) if *it == sign);
        self.next += usize::from(found);
        found
    }

    fn is_word(&self, ahead: usize, word: &str) -> bool {
        matches!(self.tokens.get(self.next + ahead), Some(Placed { token: Token::Word(it), .. }) if it == word)
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(0, word);
        self.next += usize::from(found);
        found
    }

    /// Returns the end of the last token taken.
    fn behind(&self) -> usize {
        self.next
            .checked_sub(1)
            .and_then(|last| self.tokens.get(last))
            .map_or(0, |last| last.at + last.length)
    }

    fn binary(&self, operator: Operator, left: Tall, right: Tall) -> Result<Tall, RuleError> {
        let (at, height) = (left.0.at, left.1.max(right.1) + 1);
        let kind = ExprKind::Binary(operator, Box::new(left.0), Box::new(right.0));
        self.grown(kind, at, height)
    }

    fn grown(&self, kind: ExprKind, at: usize, height: usize) -> Result<Tall, RuleError> {
        let length = self.behind().saturating_sub(at).max(1);
        if height > MAX_DEPTH {
            return Err(too_deep(at, length));
        }
        Ok((Expr { kind, at, length }, height))
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, RuleError>) -> Result<T, RuleError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(too_deep(self.peek().map_or(self.end, |placed| placed.at), 1));
        }
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn or(&mut self) -> Result<Tall, RuleError> {
        let mut left = self.and()?;
        while self.take_word("or") {
            let right = self.and()?;
            left = self.binary(Operator::Or, left, right)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Tall, RuleError> {
        let mut left = self.not()?;
        while self.take_word("and") {
            let right = self.not()?;
            left = self.binary(Operator::And, left, right)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Tall, RuleError> {
        let at = self.peek().map_or(self.end, |placed| placed.at);
        if self.take_word("not") {
            let (inner, height) = self.nested(Self::not)?;
            return self.grown(ExprKind::Not(Box::new(inner)), at, height + 1);
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Tall, RuleError> {
        let left = self.sum()?;
        let Some(operator) = self.take_comparison() else { return Ok(left) };
        let right = self.sum()?;
        let compared = self.binary(operator, left, right)?;
        let next = self.peek().map_or(self.end, |placed| placed.at);
        if self.take_comparison().is_some() {
            return Err(RuleError::new("a comparison has two sides", next, self.behind() - next)
                .help("join two comparisons with `and`"));
        }
        Ok(compared)
    }

    fn take_comparison(&mut self) -> Option<Operator> {
        let signs = [
            ("==", Operator::Equal),
            ("!=", Operator::Differ),
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("<", Operator::Less),
            (">", Operator::More),
        ];
        if let Some((_, operator)) = signs.into_iter().find(|(sign, _)| self.take_sign(sign)) {
            return Some(operator);
        }
        if self.is_word(0, "not") && self.is_word(1, "in") {
            self.next += 2;
            return Some(Operator::NotIn);
        }
        self.take_word("in").then_some(Operator::In)
    }

    fn sum(&mut self) -> Result<Tall, RuleError> {
        let mut left = self.product()?;
        loop {
            let operator = match () {
                () if self.take_sign("+") => Operator::Add,
                () if self.take_sign("-") => Operator::Subtract,
                () => return Ok(left),
            };
            let right = self.product()?;
            left = self.binary(operator, left, right)?;
        }
    }

    fn product(&mut self) -> Result<Tall, RuleError> {
        let mut left = self.unary()?;
        loop {
            let operator = match () {
                () if self.take_sign("*") => Operator::Multiply,
                () if self.take_sign("/") => Operator::Divide,
                () => return Ok(left),
            };
            let right = self.unary()?;
            left = self.binary(operator, left, right)?;
        }
    }

    fn unary(&mut self) -> Result<Tall, RuleError> {
        let at = self.peek().map_or(self.end, |placed| placed.at);
        if !self.take_sign("-") {
            return self.primary();
        }
        if let Some(Placed { token: Token::Number(number), .. }) = self.peek() {
            let number = -*number;
            self.next += 1;
            return self.grown(ExprKind::Number(number), at, 1);
        }
        let (inner, height) = self.nested(Self::unary)?;
        self.grown(ExprKind::Negative(Box::new(inner)), at, height + 1)
    }

    fn primary(&mut self) -> Result<Tall, RuleError> {
        let Some(placed) = self.peek().cloned() else {
            return Err(RuleError::new("the rule ends where a value is expected", self.end, 1));
        };
        self.next += 1;
        let kind = match placed.token.clone() {
            Token::Number(number) => ExprKind::Number(number),
            Token::Text(text) => ExprKind::Text(text),
            Token::Sign("(") => {
                let (inner, height) = self.nested(Self::or)?;
                self.close(")", placed.at)?;
                return Ok((inner, height));
            }
            Token::Sign("[") => ExprKind::List(self.list(placed.at)?),
            Token::Word(word) => match word.as_str() {
                "true" => ExprKind::Bool(true),
                "false" => ExprKind::Bool(false),
                "null" => ExprKind::Null,
                word if KEYWORDS.contains(&word) => {
                    let message = format!("`{word}` stands where a value is expected");
                    return Err(RuleError::new(message, placed.at, placed.length));
                }
                word if self.take_sign("(") => return self.call(word, placed.at),
                word => ExprKind::Name(name(word, &placed)?),
            },
            token @ Token::Sign(_) => {
                let message = format!("{} stands where a value is expected", described(&token));
                return Err(RuleError::new(message, placed.at, placed.length));
            }
        };
        self.grown(kind, placed.at, 1)
    }

    fn close(&mut self, sign: &str, opened: usize) -> Result<(), RuleError> {
        if self.take_sign(sign) {
            return Ok(());
        }
        let (at, length) = self.peek().map_or((self.end, 1), |placed| (placed.at, placed.length));
        Err(RuleError::new(format!("`{sign}` is missing"), at, length)
            .help(format!("what it closes begins in column {}", opened + 1)))
    }

    fn list(&mut self, opened: usize) -> Result<Vec<Value>, RuleError> {
        let mut items = Vec::new();
        while !self.take_sign("]") {
            if !items.is_empty() && !self.take_sign(",") {
                self.close("]", opened)?;
                break;
            }
            let (item, _) = self.unary()?;
            items.push(match item.kind {
                ExprKind::Number(number) => number.into(),
                ExprKind::Text(text) => text.into(),
                ExprKind::Bool(value) => value.into(),
                _ => {
                    return Err(RuleError::new(
                        "a list holds numbers, texts and booleans only",
                        item.at,
                        item.length,
                    ));
                }
            });
        }
        Ok(items)
    }

    fn call(&mut self, function: &str, at: usize) -> Result<Tall, RuleError> {
        let (mut args, mut named, mut height) = (Vec::new(), Vec::new(), 0);
        let mut first = true;
        while !self.take_sign(")") {
            if !first && !self.take_sign(",") {
                self.close(")", at + function.chars().count())?;
                break;
            }
            first = false;
            let name = match (self.peek(), self.tokens.get(self.next + 1)) {
                (
                    Some(Placed { token: Token::Word(word), .. }),
                    Some(Placed { token: Token::Sign("="), .. }),
                ) => Some(word.clone()),
                _ => None,
            };
            self.next += 2 * usize::from(name.is_some());
            let (value, tall) = self.nested(Self::or)?;
            height = height.max(tall);
            match name {
                Some(name) => named.push((name, value)),
                None if named.is_empty() => args.push(value),
                None => {
                    let message = "an argument without a name stands behind one with a name";
                    return Err(RuleError::new(message, value.at, value.length));
                }
            }
        }
        self.grown(ExprKind::Call { function: function.to_owned(), args, named }, at, height + 1)
    }
}

fn too_deep(at: usize, length: usize) -> RuleError {
    RuleError::new(format!("a rule nests at most {MAX_DEPTH} deep"), at, length)
        .help("use a list with `in`, or several rules")
}

fn name(word: &str, placed: &Placed) -> Result<Name, RuleError> {
    let simple = |word: &str| !word.is_empty() && !word.contains('.');
    match word.split_once('.') {
        None => Ok(Name::Signal(word.to_owned())),
        Some(("declared", name)) if simple(name) => Ok(Name::Declared(name.to_owned())),
        Some(("p", name)) if simple(name) => Ok(Name::Param(name.to_owned())),
        Some(_) => Err(RuleError::new(format!("`{word}` is not a name"), placed.at, placed.length)
            .help("a name is that of a signal, `declared.NAME`, or `p.PARAMETER`")),
    }
}

fn described(token: &Token) -> String {
    match token {
        Token::Number(number) => format!("the number {number}"),
        Token::Text(_) => "a text".to_owned(),
        Token::Word(word) => format!("`{word}`"),
        Token::Sign(sign) => format!("`{sign}`"),
    }
}
