//! The tree of a rule, and how it is printed.

use std::fmt;

use serde_json::Value;

/// An expression and where it stands. Two expressions are equal if they say the same, wherever they stand.
#[derive(Clone, Debug)]
pub struct Expr {
    pub kind: ExprKind,
    /// In characters from 0.
    pub at: usize,
    pub length: usize,
}

impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// What an expression is.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    /// Numbers, texts and booleans.
    List(Vec<Value>),
    /// The name of a signal, `declared.X`, or `p.X`.
    Name(Name),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    Call {
        function: String,
        args: Vec<Expr>,
        named: Vec<(String, Expr)>,
    },
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Signal(String),
    Declared(String),
    Param(String),
}

/// What stands between two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Or,
    And,
    Equal,
    Differ,
    Less,
    AtMost,
    More,
    AtLeast,
    In,
    NotIn,
    Add,
    Subtract,
    Multiply,
    Divide,
}

impl Operator {
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Or => "or",
            Self::And => "and",
            Self::Equal => "==",
            Self::Differ => "!=",
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::More => ">",
            Self::AtLeast => ">=",
            Self::In => "in",
            Self::NotIn => "not in",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(name) => f.write_str(name),
            Self::Declared(name) => write!(f, "declared.{name}"),
            Self::Param(name) => write!(f, "p.{name}"),
        }
    }
}

/// Prints text that [`super::parse`] reads back as the same tree.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ExprKind::Null => f.write_str("null"),
            ExprKind::Bool(value) => write!(f, "{value}"),
            ExprKind::Number(value) => number(f, *value),
            ExprKind::Text(text) => quoted(f, text),
            ExprKind::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    match item {
                        Value::String(text) => quoted(f, text)?,
                        Value::Number(value) => number(f, value.as_f64().unwrap_or_default())?,
                        other => write!(f, "{other}")?,
                    }
                }
                f.write_str("]")
            }
            ExprKind::Name(name) => name.fmt(f),
            ExprKind::Not(inner) => write!(f, "not {}", Operand(inner)),
            ExprKind::Negative(inner) => write!(f, "-({inner})"),
            ExprKind::Binary(operator, left, right) => {
                write!(f, "{} {} {}", Operand(left), operator.sign(), Operand(right))
            }
            ExprKind::Call { function, args, named } => {
                write!(f, "{function}(")?;
                for (index, arg) in args.iter().enumerate() {
                    write!(f, "{}{arg}", if index == 0 { "" } else { ", " })?;
                }
                for (index, (name, arg)) in named.iter().enumerate() {
                    write!(f, "{}{name}={arg}", if index + args.len() == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
        }
    }
}

/// An operand, in parentheses where it is not one word.
struct Operand<'a>(&'a Expr);

impl fmt::Display for Operand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.kind {
            ExprKind::Binary(..) | ExprKind::Not(_) | ExprKind::Negative(_) => write!(f, "({})", self.0),
            _ => self.0.fmt(f),
        }
    }
}

fn number(f: &mut fmt::Formatter<'_>, value: f64) -> fmt::Result {
    // Why `Debug`: it writes very large and very small numbers with an exponent.
    let text = format!("{value:?}");
    f.write_str(text.strip_suffix(".0").unwrap_or(&text))
}

fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    write!(f, "\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
