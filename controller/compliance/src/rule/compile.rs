//! Checks the names and types of a rule, and makes of it what can be evaluated quickly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_protocol::glob::Glob;
use gpufleet_protocol::signal::RecordSort;
use gpufleet_protocol::tasks::{Form, OwnReading};
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::RuleError;
use super::ast::{Expr, ExprKind, Name, Operator};
use super::history::{self, History};
use super::records::{Codes, Filter};
use crate::declared;
use crate::verdict::Scope;
use crate::vocabulary::{self, Kind};
use crate::xid;

/// What a rule may name.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// What the check judges. A check of the node cannot use signals of a GPU. `None`: any, and [`Code::scope`] tells.
    pub scope: Option<Scope>,
    pub params: &'a BTreeMap<String, Value>,
    /// The ids of the checks that `verdict_of` and `any_not_ok` may name.
    pub checks: &'a BTreeSet<String>,
    /// What the check itself reads, as `value` and `exit_code`.
    pub own: Option<&'a OwnReading>,
}

impl Context<'_> {
    /// Returns the reading of the check itself that a rule calls by this name.
    fn own_signal(&self, name: &str) -> Option<(String, Kind)> {
        let own = self.own?;
        match name {
            VALUE => {
                let kind = match own.form {
                    Form::Text => Kind::Text,
                    Form::Number => Kind::Number,
                };
                Some((own.id.clone(), kind))
            }
            EXIT_CODE if own.file.is_none() => Some((OwnReading::exit_code(&own.id), Kind::Number)),
            _ => None,
        }
    }
}

/// What rules call the reading of their own check.
const VALUE: &str = "value";
/// What rules call the way in which the command of their own check ended.
const EXIT_CODE: &str = "exit_code";

/// A rule that can be evaluated.
#[derive(Debug)]
pub struct Code {
    pub(super) root: Op,
    /// The signals that it reads, each once, in their order in the text.
    pub signals: Vec<(Scope, Arc<str>)>,
    /// The signals of ports that `count_ports` reads.
    pub of_ports: Vec<(Scope, Arc<str>)>,
    /// The declared values that it reads.
    pub declared: Vec<Arc<str>>,
    /// The parameters that it reads.
    pub params: Vec<Arc<str>>,
    /// The checks whose verdicts it reads.
    pub checks: Vec<Arc<str>>,
    /// Whether it counts Xids, which may be those of a GPU that no longer answers.
    pub counts_xids: bool,
    /// Whether it reads the kernel's log.
    pub reads_log: bool,
    /// Whether it compares with earlier audits.
    pub looks_back: bool,
    /// Whether it watches a condition from audit to audit.
    pub watches: bool,
}

impl Code {
    const fn blank() -> Self {
        Self {
            root: Op::Null,
            signals: Vec::new(),
            of_ports: Vec::new(),
            declared: Vec::new(),
            params: Vec::new(),
            checks: Vec::new(),
            counts_xids: false,
            reads_log: false,
            looks_back: false,
            watches: false,
        }
    }

    /// Returns the narrowest scope of its signals.
    pub fn scope(&self) -> Scope {
        self.signals
            .iter()
            .map(|(scope, _)| *scope)
            .find(|scope| *scope != Scope::Node)
            .unwrap_or(Scope::Node)
    }
}

#[derive(Debug)]
pub(super) enum Op {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Signal(Scope, Arc<str>),
    Declared(Arc<str>),
    Param(Arc<str>),
    Not(Box<Op>),
    Negative(Box<Op>),
    And(Box<Op>, Box<Op>),
    Or(Box<Op>, Box<Op>),
    /// Whether a value is null, or is not.
    IsNull(Box<Op>, bool),
    Compare(Operator, Box<Op>, Box<Op>),
    Member(Box<Op>, Box<Op>, bool),
    Arithmetic(Operator, Box<Op>, Box<Op>),
    Bit(Box<Op>, Box<Op>),
    Mask(Box<Op>, Box<Op>, Box<Op>),
    First(Vec<Op>),
    Abs(Box<Op>),
    Count(Box<Filter>),
    Distinct(Arc<str>),
    /// Of how many ports a condition holds.
    CountPorts(Box<Op>),
    /// How many elements of a list another one lacks.
    Missing(Box<Op>, Box<Op>),
    VersionMatches(Box<Op>, Box<Op>),
    Matches(Box<Op>, Regex),
    VerdictOf(Arc<str>),
    AnyNotOk(Vec<Arc<str>>),
    History(Box<History>),
}

const FUNCTIONS: [(&str, &str); 14] = [
    ("bit", "bit(VALUE, MASK)"),
    ("mask", "mask(VALUE, SHIFT, MASK)"),
    ("first", "first(VALUE, …)"),
    ("abs", "abs(VALUE)"),
    ("count_xid", "count_xid([CODE, …]) or count_xid(kind=\"reset\"), with settled=false"),
    ("count_sxid", "count_sxid(fatal=true, settled=false)"),
    ("log_match", "log_match(\"REGEX\", sort=\"nvrm\", settled=false)"),
    ("distinct", "distinct(SIGNAL)"),
    ("matches", "matches(TEXT, \"REGEX\")"),
    ("count_ports", "count_ports(CONDITION)"),
    ("missing", "missing(WANTED, LIST)"),
    ("version_matches", "version_matches(VERSION, SPEC)"),
    ("verdict_of", "verdict_of(\"CHECK\")"),
    ("any_not_ok", "any_not_ok(\"CHECK or GLOB\", …)"),
];

/// Checks an expression and compiles it.
///
/// # Errors
/// If a name, a function or an argument is unknown, a type does not fit, or a regular expression is none; with the
/// place in the text.
pub fn compile(expr: &Expr, context: Context<'_>) -> Result<Code, RuleError> {
    let mut compiler = Compiler { context, code: Code::blank() };
    compiler.code.root = compiler.condition(expr)?;
    Ok(compiler.code)
}

pub(super) struct Compiler<'a> {
    context: Context<'a>,
    code: Code,
}

fn remember(list: &mut Vec<Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = list.iter().find(|known| &***known == name) {
        return Arc::clone(known);
    }
    let name: Arc<str> = name.into();
    list.push(Arc::clone(&name));
    name
}

pub(super) fn wrong(expr: &Expr, message: impl Into<String>) -> RuleError {
    RuleError::new(message, expr.at, expr.length)
}

impl Compiler<'_> {
    fn condition(&mut self, expr: &Expr) -> Result<Op, RuleError> {
        let (op, kind) = self.value(expr)?;
        if matches!(kind, Kind::Bool | Kind::Flag | Kind::Any) {
            return Ok(op);
        }
        Err(wrong(expr, format!("a condition is expected here, and this is {}", kind.article())))
    }

    pub(super) fn number(&mut self, expr: &Expr) -> Result<Op, RuleError> {
        let (op, kind) = self.value(expr)?;
        if matches!(kind, Kind::Number | Kind::Flag | Kind::Any) {
            return Ok(op);
        }
        let error = wrong(expr, format!("a number is expected here, and this is {}", kind.article()));
        let is_own = matches!(&expr.kind, ExprKind::Name(Name::Signal(name)) if name == VALUE);
        Err(if is_own { error.help("`read` with `as: number` reads a number") } else { error })
    }

    /// A condition that is watched from audit to audit. A rule has one, as the memory keeps one a check.
    pub(super) fn watched(&mut self, expr: &Expr) -> Result<Op, RuleError> {
        if std::mem::replace(&mut self.code.watches, true) {
            return Err(wrong(expr, "a rule can watch one condition only"));
        }
        self.condition(expr)
    }

    fn text(&mut self, expr: &Expr) -> Result<Box<Op>, RuleError> {
        match self.value(expr)? {
            (op, Kind::Text | Kind::Any) => Ok(Box::new(op)),
            (_, kind) => Err(wrong(expr, format!("a text is expected here, and this is {}", kind.article()))),
        }
    }

    fn boxed_number(&mut self, expr: &Expr) -> Result<Box<Op>, RuleError> {
        self.number(expr).map(Box::new)
    }

    pub(super) fn value(&mut self, expr: &Expr) -> Result<(Op, Kind), RuleError> {
        Ok(match &expr.kind {
            ExprKind::Null => return Err(wrong(expr, "`null` stands only beside `==` and `!=`")),
            ExprKind::Bool(value) => (Op::Bool(*value), Kind::Bool),
            ExprKind::Number(value) => (Op::Number(*value), Kind::Number),
            ExprKind::Text(text) => (Op::Text(text.clone()), Kind::Text),
            ExprKind::List(items) => (Op::List(items.clone()), Kind::List),
            ExprKind::Name(name) => self.name(name, expr)?,
            ExprKind::Not(inner) => (Op::Not(Box::new(self.condition(inner)?)), Kind::Bool),
            ExprKind::Negative(inner) => (Op::Negative(self.boxed_number(inner)?), Kind::Number),
            ExprKind::Binary(operator, left, right) => self.binary(*operator, left, right)?,
            ExprKind::Call { function, args, named } => self.call(expr, function, args, named)?,
        })
    }

    fn name(&mut self, name: &Name, expr: &Expr) -> Result<(Op, Kind), RuleError> {
        match name {
            Name::Signal(name) => {
                if let Some((id, kind)) = self.context.own_signal(name) {
                    return Ok((Op::Signal(Scope::Node, self.signal(Scope::Node, &id)), kind));
                }
                let Some((scope, kind)) = vocabulary::lookup(name) else {
                    let error = wrong(expr, format!("there is no signal `{name}`"));
                    return Err(match (name.as_str(), self.context.own) {
                        (VALUE | EXIT_CODE, None) => {
                            error.help("`read` says what a check reads beside the signals")
                        }
                        (EXIT_CODE, Some(_)) => error.help("a file has none; `read` with `command` has"),
                        _ => error.suggest(name, vocabulary::names()),
                    });
                };
                self.fits(scope, expr)?;
                Ok((Op::Signal(scope, self.signal(scope, name)), kind))
            }
            Name::Declared(name) => {
                let Some(known) = declared::lookup(name) else {
                    return Err(wrong(expr, format!("there is no declared value `{name}`"))
                        .suggest(name, declared::names()));
                };
                Ok((Op::Declared(remember(&mut self.code.declared, name)), known.kind))
            }
            Name::Param(name) => {
                let Some(default) = self.context.params.get(name) else {
                    return Err(wrong(expr, format!("this check has no parameter `{name}`"))
                        .suggest(name, self.context.params.keys().map(String::as_str)));
                };
                Ok((Op::Param(remember(&mut self.code.params, name)), Kind::of(default)))
            }
        }
    }

    /// Refuses a signal of another scope than the check's.
    fn fits(&mut self, scope: Scope, expr: &Expr) -> Result<(), RuleError> {
        if scope == Scope::Node {
            return Ok(());
        }
        let used = self.code.signals.iter().map(|(scope, _)| *scope).find(|scope| *scope != Scope::Node);
        let wanted = match (self.context.scope, used) {
            (Some(own), _) | (None, Some(own)) => own,
            (None, None) => return Ok(()),
        };
        if scope == wanted {
            return Ok(());
        }
        Err(wrong(expr, format!("this is a signal of each {scope}, and the rule is about each {wanted}"))
            .help("only signals of the node stand in every check; `distinct(SIGNAL)` counts the values of all GPUs"))
    }

    fn signal(&mut self, scope: Scope, name: &str) -> Arc<str> {
        if let Some((_, known)) = self.code.signals.iter().find(|(_, known)| &**known == name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.code.signals.push((scope, Arc::clone(&name)));
        name
    }

    fn binary(&mut self, operator: Operator, left: &Expr, right: &Expr) -> Result<(Op, Kind), RuleError> {
        use Operator as O;
        let op = match operator {
            O::And => Op::And(Box::new(self.condition(left)?), Box::new(self.condition(right)?)),
            O::Or => Op::Or(Box::new(self.condition(left)?), Box::new(self.condition(right)?)),
            O::Equal | O::Differ => match (&left.kind, &right.kind) {
                (_, ExprKind::Null) => Op::IsNull(Box::new(self.value(left)?.0), operator == O::Equal),
                (ExprKind::Null, _) => Op::IsNull(Box::new(self.value(right)?.0), operator == O::Equal),
                _ => {
                    let (a, a_kind) = self.value(left)?;
                    let (b, b_kind) = self.value(right)?;
                    if !a_kind.compares_with(b_kind) {
                        let (a, b) = (a_kind.article(), b_kind.article());
                        return Err(wrong(right, format!("{a} is never equal to {b}")));
                    }
                    Op::Compare(operator, Box::new(a), Box::new(b))
                }
            },
            O::Less | O::AtMost | O::More | O::AtLeast => {
                Op::Compare(operator, self.boxed_number(left)?, self.boxed_number(right)?)
            }
            O::In | O::NotIn => {
                let (needle, needle_kind) = self.value(left)?;
                let (list, kind) = self.value(right)?;
                if needle_kind == Kind::List {
                    return Err(wrong(left, "a list is not an element of a list"));
                }
                if !matches!(kind, Kind::List | Kind::Any) {
                    return Err(wrong(
                        right,
                        format!("a list is expected here, and this is {}", kind.article()),
                    ));
                }
                Op::Member(Box::new(needle), Box::new(list), operator == O::In)
            }
            O::Add | O::Subtract | O::Multiply | O::Divide => {
                let op = Op::Arithmetic(operator, self.boxed_number(left)?, self.boxed_number(right)?);
                return Ok((op, Kind::Number));
            }
        };
        Ok((op, Kind::Bool))
    }

    fn call(
        &mut self,
        expr: &Expr,
        function: &str,
        args: &[Expr],
        named: &[(String, Expr)],
    ) -> Result<(Op, Kind), RuleError> {
        let known = || FUNCTIONS.iter().chain(&history::FUNCTIONS);
        let Some((_, usage)) = known().find(|(name, _)| *name == function) else {
            let names: Vec<&str> = known().map(|(name, _)| *name).collect();
            return Err(RuleError::new(
                format!("there is no function `{function}`"),
                expr.at,
                function.chars().count(),
            )
            .help(format!("functions are {}", names.join(", ")))
            .suggest(function, names));
        };
        let misuse =
            || wrong(expr, format!("`{function}` has other arguments")).help(format!("write {usage}"));
        if history::FUNCTIONS.iter().any(|(name, _)| *name == function) {
            self.code.looks_back = true;
            return history::call(self, function, args, named, &misuse);
        }
        if !matches!(function, "count_xid" | "count_sxid" | "log_match") && !named.is_empty() {
            return Err(misuse());
        }
        Ok(match (function, args) {
            ("bit", [value, bits]) => {
                (Op::Bit(self.boxed_number(value)?, self.boxed_number(bits)?), Kind::Bool)
            }
            ("mask", [value, shift, mask]) => {
                let op =
                    Op::Mask(self.boxed_number(value)?, self.boxed_number(shift)?, self.boxed_number(mask)?);
                (op, Kind::Number)
            }
            ("abs", [value]) => (Op::Abs(self.boxed_number(value)?), Kind::Number),
            ("first", [_, ..]) => self.first(args)?,
            ("distinct", [signal]) => (self.distinct(signal)?, Kind::Number),
            ("count_ports", [condition]) => (self.count_ports(expr, condition)?, Kind::Number),
            ("missing", [wanted, list]) => {
                let wanted = self.listed(wanted, &[Kind::List, Kind::Any])?;
                let list = self.listed(list, &[Kind::List, Kind::Text, Kind::Any])?;
                (Op::Missing(wanted, list), Kind::Number)
            }
            ("version_matches", [version, spec]) => {
                (Op::VersionMatches(self.text(version)?, self.text(spec)?), Kind::Bool)
            }
            ("matches", [value, arg @ Expr { kind: ExprKind::Text(pattern), .. }]) => {
                let pattern = regex(pattern).map_err(|why| wrong(arg, why))?;
                (Op::Matches(self.text(value)?, pattern), Kind::Bool)
            }
            ("verdict_of", [check]) => (Op::VerdictOf(self.check(check)?), Kind::Text),
            ("any_not_ok", [_, ..]) => (Op::AnyNotOk(self.checks(args)?), Kind::Bool),
            ("count_xid" | "count_sxid" | "log_match", _) => {
                self.code.reads_log = true;
                self.code.counts_xids |= function == "count_xid";
                let filter = filter(function, args, named, &misuse)?;
                (Op::Count(Box::new(filter)), Kind::Number)
            }
            _ => return Err(misuse()),
        })
    }

    fn first(&mut self, args: &[Expr]) -> Result<(Op, Kind), RuleError> {
        let mut ops = Vec::with_capacity(args.len());
        let mut common = Kind::Any;
        for arg in args {
            let (op, kind) = self.value(arg)?;
            if !common.compares_with(kind) {
                return Err(wrong(arg, format!("{} stands beside {}", kind.article(), common.article())));
            }
            if common == Kind::Any {
                common = kind;
            }
            ops.push(op);
        }
        Ok((Op::First(ops), common))
    }

    fn distinct(&mut self, expr: &Expr) -> Result<Op, RuleError> {
        match &expr.kind {
            ExprKind::Name(Name::Signal(name))
                if matches!(vocabulary::lookup(name), Some((Scope::Gpu, _))) =>
            {
                Ok(Op::Distinct(name.as_str().into()))
            }
            _ => Err(wrong(expr, "`distinct` wants the name of a signal of GPUs")),
        }
    }

    /// Compiles a condition about each port, within a rule about the node.
    fn count_ports(&mut self, expr: &Expr, condition: &Expr) -> Result<Op, RuleError> {
        if self.context.scope.is_some_and(|scope| scope != Scope::Node) {
            return Err(wrong(expr, "`count_ports` stands only in checks of the node"));
        }
        // Why apart: the signals of ports are no signals of the rule, whose subject is the node.
        let mut of_ports =
            Compiler { context: Context { scope: Some(Scope::Port), ..self.context }, code: Code::blank() };
        let op = of_ports.condition(condition)?;
        let Code { signals, declared, params, checks, reads_log, looks_back, .. } = of_ports.code;
        if reads_log || looks_back || !checks.is_empty() {
            return Err(wrong(
                condition,
                "only what is read of ports, and what is declared, can be asked here",
            ));
        }
        for (scope, name) in signals {
            match scope {
                Scope::Node => {
                    self.signal(scope, &name);
                }
                _ if self.code.of_ports.iter().any(|(_, known)| *known == name) => {}
                _ => self.code.of_ports.push((scope, name)),
            }
        }
        for name in &declared {
            remember(&mut self.code.declared, name);
        }
        for name in &params {
            remember(&mut self.code.params, name);
        }
        self.signal(Scope::Node, "rdma_devices");
        Ok(Op::CountPorts(Box::new(op)))
    }

    fn listed(&mut self, expr: &Expr, kinds: &[Kind]) -> Result<Box<Op>, RuleError> {
        let (op, kind) = self.value(expr)?;
        if kinds.contains(&kind) {
            return Ok(Box::new(op));
        }
        Err(wrong(expr, format!("a list is expected here, and this is {}", kind.article())))
    }

    fn check(&mut self, expr: &Expr) -> Result<Arc<str>, RuleError> {
        let ExprKind::Text(id) = &expr.kind else {
            return Err(wrong(expr, "the id of a check is expected here, in quotes"));
        };
        if !self.context.checks.contains(id) {
            return Err(wrong(expr, format!("there is no check `{id}`"))
                .suggest(id, self.context.checks.iter().map(String::as_str)));
        }
        Ok(remember(&mut self.code.checks, id))
    }

    pub(super) fn checks(&mut self, args: &[Expr]) -> Result<Vec<Arc<str>>, RuleError> {
        let mut found = Vec::new();
        for arg in args {
            match &arg.kind {
                ExprKind::Text(text) if Glob::is_glob(text) => {
                    let glob = Glob::new(text);
                    let before = found.len();
                    for id in self.context.checks.iter().filter(|id| glob.matches(id)) {
                        found.push(remember(&mut self.code.checks, id));
                    }
                    if found.len() == before {
                        return Err(wrong(arg, format!("no check matches `{text}`")));
                    }
                }
                _ => found.push(self.check(arg)?),
            }
        }
        Ok(found)
    }
}

/// Reads the arguments of the functions that count lines of the kernel's log.
fn filter(
    function: &str,
    args: &[Expr],
    named: &[(String, Expr)],
    misuse: &dyn Fn() -> RuleError,
) -> Result<Filter, RuleError> {
    let mut filter = Filter {
        sort: match function {
            "count_xid" => Some(RecordSort::Xid),
            "count_sxid" => Some(RecordSort::Sxid),
            _ => None,
        },
        codes: Codes::Any,
        text: None,
        fatal: None,
        settled: None,
    };
    match (function, args) {
        (_, []) => {}
        ("count_xid", [Expr { kind: ExprKind::List(items), .. }]) if !items.is_empty() => {
            filter.codes = Codes::Of(items.iter().map(code).collect::<Option<_>>().ok_or_else(misuse)?);
        }
        ("log_match", [arg @ Expr { kind: ExprKind::Text(pattern), .. }]) => {
            filter.text = Some(regex(pattern).map_err(|why| wrong(arg, why))?);
        }
        _ => return Err(misuse()),
    }
    for (name, value) in named {
        match (function, name.as_str(), &value.kind) {
            (_, "settled", ExprKind::Bool(settled)) => filter.settled = Some(*settled),
            ("count_sxid", "fatal", ExprKind::Bool(fatal)) => filter.fatal = Some(*fatal),
            ("count_xid", "kind", ExprKind::Text(kind)) => {
                let Some((_, kind)) = xid::KINDS.iter().find(|(name, _)| name == kind) else {
                    return Err(wrong(value, format!("there is no kind of Xid `{kind}`"))
                        .help(format!("kinds are {}", xid::KINDS.map(|(name, _)| name).join(", ")))
                        .suggest(kind, xid::KINDS.iter().map(|(name, _)| *name)));
                };
                if !matches!(filter.codes, Codes::Any) {
                    return Err(misuse());
                }
                filter.codes = Codes::Kind(*kind);
            }
            ("log_match", "sort", ExprKind::Text(sort)) => {
                let Some((_, sort)) = SORTS.iter().find(|(name, _)| name == sort) else {
                    return Err(wrong(value, format!("there is no sort of record `{sort}`"))
                        .help(format!("sorts are {}", SORTS.map(|(name, _)| name).join(", "))));
                };
                filter.sort = Some(*sort);
            }
            (_, name, _) => {
                return Err(wrong(value, format!("`{function}` has no argument `{name}` of this type"))
                    .help(misuse().help.unwrap_or_default()));
            }
        }
    }
    let everything = function == "log_match" && filter.text.is_none() && filter.sort.is_none();
    let any_code = function == "count_xid" && matches!(filter.codes, Codes::Any);
    if everything || any_code { Err(misuse()) } else { Ok(filter) }
}

const SORTS: [(&str, RecordSort); 7] = [
    ("xid", RecordSort::Xid),
    ("sxid", RecordSort::Sxid),
    ("nvrm", RecordSort::Nvrm),
    ("oom", RecordSort::Oom),
    ("hardware", RecordSort::Hardware),
    ("kernel", RecordSort::Kernel),
    ("disk", RecordSort::Disk),
];

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be whole and in range"
)]
fn code(item: &Value) -> Option<u32> {
    item.as_f64()
        .filter(|code| code.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(code))
        .map(|code| code as u32)
}

/// Why the bound: a pattern of a few characters can stand for an automaton of any size.
fn regex(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern).size_limit(1 << 18).build().map_err(|error| {
        let reason = error.to_string();
        let last = reason.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or(&reason);
        format!("this is not a regular expression: {last}")
    })
}
