//! Insertions into a text that the engine can parse.
//!
//! * `a[k].b`: the engine refuses to look inside a missing value, even if a `default` follows. `a[k]` is passed to a
//!   filter that returns a missing value which allows it.
//! * `a < b`: the engine orders values of unlike types, Python refuses to. The comparison becomes a filter.
//! * `'%02d' % n`: the engine divides numbers only. After a text literal, `%` becomes the filter `format`.
//! * Variables that a macro reads and the text does not set: Ansible looks them up when the macro runs, the engine
//!   when it is defined.
//! * `a ~ b`, `a + b`, `a * b`: the operands are passed to filters that limit the size of the result ([`bounds`]).
//! * Macros that use `varargs` and `kwargs` get parameters of these names, and are called through [`variadic`].

use std::collections::HashSet;

use minijinja::Environment;
use minijinja::machinery::{ast, parse, parse_expr};
use minijinja::syntax::SyntaxConfig;

use super::Rewritten;
use super::variadic::{self, FILTER as VARIADIC};
use crate::template::parts::{Reach, argument, children, parts, targets, uses};
use crate::template::{Syntax, bounds, engine, frame, scan};

type Engine = minijinja::Value;

/// The filter that allows looking inside a missing value.
const BELOW: &str = "__below";
/// The filter that compares; its arguments are an operator and a value, again and again.
pub(in crate::template) const ORDER: &str = "__order";
/// The name of all variables as a whole.
pub(in crate::template) const SCOPE: &str = "__scope";
/// A loop whose rounds write less text than this is not limited.
const LONG_TEXT: usize = 128;
/// Longest expression that a message quotes.
const LONGEST_NAME: usize = 80;

/// Rewrites a bare expression.
pub(in crate::template) fn expression(source: &str) -> Rewritten {
    let parsed = parse_expr(source).ok();
    let nothing = HashSet::new();
    let mut walk = Walk::new(source, &nothing, ["", ""]);
    if let Some(parsed) = &parsed {
        walk.expression(parsed);
    }
    checked(walk, |text| parse_expr(text).is_ok())
}

/// A rewritten template with statements.
pub(in crate::template) struct Document {
    pub(in crate::template) text: Rewritten,
    /// Names that it sets somewhere.
    pub(in crate::template) sets: HashSet<String>,
    /// Names that it uses where nothing in it can have set them.
    pub(in crate::template) free: HashSet<String>,
    /// Variables that only its macros read.
    pub(in crate::template) late: Vec<String>,
}

/// Rewrites a template with statements; `outside` are names that templates including it set.
pub(in crate::template) fn document(
    source: &str,
    syntax: &Syntax,
    marks: &SyntaxConfig,
    outside: &HashSet<String>,
) -> Document {
    let Ok(parsed) = parse(source, "", marks.clone()) else {
        return Document {
            text: Rewritten::of(source, Vec::new()),
            sets: HashSet::new(),
            free: HashSet::new(),
            late: Vec::new(),
        };
    };
    let mut sets = HashSet::new();
    targets(&parsed, &mut sets);
    let mut free = HashSet::new();
    Reach::of(&[&parsed], None).free(&parsed, &mut free);
    let known = sets.union(outside).cloned().collect();
    let [start, end] = syntax.block_marks();
    let mut walk = Walk::new(source, &known, [&start, &end]);
    walk.statement(&parsed);
    let late = std::mem::take(&mut walk.late);
    let text = checked(walk, |text| parse(text, "", marks.clone()).is_ok());
    Document { text, sets, free, late }
}

/// Applies the insertions, unless the engine cannot parse the result: then the text stays as it is.
fn checked(walk: Walk<'_>, is_right: impl Fn(&str) -> bool) -> Rewritten {
    if walk.inserts.is_empty() {
        return Rewritten::of(walk.source, Vec::new());
    }
    let mut text = walk.source.to_owned();
    for at in walk.blanked {
        text.replace_range(at..=at, " ");
    }
    let inserted = Rewritten::of(&text, walk.inserts);
    match is_right(&inserted.text) {
        true => inserted,
        false => Rewritten::of(walk.source, Vec::new()),
    }
}

/// Names that the engine itself defines.
const OWN: [&str; 6] = ["loop", "self", "super", "caller", "varargs", "kwargs"];

/// What may stand between the values of a comparison; the longer first.
const OPERATORS: [&str; 8] = ["<=", ">=", "==", "!=", "<", ">", "in", "not in"];

fn is_order(operator: &ast::CompareOpKind) -> bool {
    use ast::CompareOpKind::{Gt, Gte, Lt, Lte};
    matches!(operator, Lt | Lte | Gt | Gte)
}

struct Walk<'t> {
    source: &'t str,
    /// Names that the template, or those including it, set.
    sets: &'t HashSet<String>,
    block_marks: [&'t str; 2],
    /// How many macros surround the current place.
    macros: usize,
    inserts: Vec<(usize, String)>,
    /// Where a `%` has become a filter.
    blanked: Vec<usize>,
    late: Vec<String>,
}

impl<'t> Walk<'t> {
    fn new(source: &'t str, sets: &'t HashSet<String>, block_marks: [&'t str; 2]) -> Self {
        Self {
            source,
            sets,
            block_marks,
            macros: 0,
            inserts: Vec::new(),
            blanked: Vec::new(),
            late: Vec::new(),
        }
    }

    fn statement(&mut self, statement: &ast::Stmt<'_>) {
        let is_macro = matches!(statement, ast::Stmt::Macro(_));
        self.macros += usize::from(is_macro);
        let parts = parts(statement);
        for expression in parts.expressions {
            self.expression(expression);
            match statement {
                ast::Stmt::ForLoop(it) if std::ptr::eq(expression, &it.iter) => self.looped(it),
                _ => {}
            }
        }
        if let Some(call) = parts.call {
            self.callee(&call.expr);
            for given in &call.args {
                self.expression(argument(given));
            }
        }
        for statement in parts.bodies.into_iter().flatten() {
            self.statement(statement);
        }
        self.macros -= usize::from(is_macro);
        if let ast::Stmt::Macro(it) = statement {
            self.variadic(statement, it);
        }
    }

    /// Limits the text that the rounds of a loop write.
    fn looped(&mut self, it: &ast::ForLoop<'_>) {
        fn raw(body: &[ast::Stmt<'_>]) -> usize {
            let of = |statement: &ast::Stmt<'_>| match statement {
                ast::Stmt::EmitRaw(it) => it.raw.len(),
                ast::Stmt::Include(_) => LONG_TEXT,
                ast::Stmt::ForLoop(_) | ast::Stmt::Macro(_) => 0,
                other => parts(other).bodies.into_iter().map(raw).sum(),
            };
            body.iter().map(of).sum()
        }
        let each = raw(&it.body);
        if each >= LONG_TEXT {
            self.inserts.push((it.iter.span().end_offset as usize, format!("|{}({each})", bounds::LOOPED)));
        }
    }

    /// Adds parameters for `varargs` and `kwargs` to a macro that uses them.
    fn variadic(&mut self, statement: &ast::Stmt<'_>, it: &ast::Spanned<ast::Macro<'_>>) {
        let named =
            |name: &str| it.args.iter().any(|arg| matches!(arg, ast::Expr::Var(var) if var.id == name));
        let extra: Vec<&str> =
            ["varargs", "kwargs"].into_iter().filter(|name| !named(name) && uses(statement, name)).collect();
        if extra.is_empty() {
            return;
        }
        let span = it.span();
        let found = || {
            let open =
                span.start_offset as usize + self.source.get(span.start_offset as usize..)?.find('(')?;
            let close = scan::bracket_end(self.source, open + 1)?;
            let end = span.end_offset as usize;
            let after = end + self.source.get(end..)?.find(self.block_marks[1])?;
            let comma = !self.source.get(open + 1..close)?.trim_end().is_empty();
            let sign = self.source.get(end..after)?.trim();
            Some((close, comma, after + self.block_marks[1].len(), sign.to_owned()))
        };
        let Some((close, comma, after, sign)) = found() else { return };
        let parameters: Vec<String> = extra.iter().map(|name| format!("{name}=none")).collect();
        self.inserts.push((close, format!("{}{}", if comma { ", " } else { "" }, parameters.join(", "))));
        let ([start, end], name) = (self.block_marks, it.name);
        self.inserts.push((after, format!("{start} set {name} = {name}|{VARIADIC} {sign}{end}")));
    }

    /// Walks through what is called; a plain name is a function and no variable.
    fn callee(&mut self, expression: &ast::Expr<'_>) {
        if !matches!(expression, ast::Expr::Var(_)) {
            self.expression(expression);
        }
    }

    fn expression(&mut self, expression: &ast::Expr<'_>) {
        match expression {
            ast::Expr::Var(it) if self.macros > 0 => {
                let name = it.id;
                let own = OWN.contains(&name) || name.starts_with("__") || engine::is_function(name);
                if !own && !self.sets.contains(name) {
                    self.inserts.push((it.span().start_offset as usize, format!("{SCOPE}.")));
                    self.late.push(name.to_owned());
                }
            }
            ast::Expr::Call(it) => {
                self.callee(&it.expr);
                for given in &it.args {
                    self.expression(argument(given));
                }
            }
            ast::Expr::BinOp(it)
                if matches!(it.op, ast::BinOpKind::Rem) && matches!(&it.left, ast::Expr::Const(_)) =>
            {
                self.formatted(&it.left, &it.right);
            }
            ast::Expr::BinOp(it) => match it.op {
                ast::BinOpKind::Concat => self.operands(it, bounds::WRITTEN),
                ast::BinOpKind::Add => self.operands(it, bounds::HELD),
                ast::BinOpKind::Mul => self.product(it, false),
                ast::BinOpKind::Lt | ast::BinOpKind::Lte | ast::BinOpKind::Gt | ast::BinOpKind::Gte => {
                    self.ordered(&it.left, &[&it.right]);
                }
                _ => children(expression).into_iter().for_each(|child| self.expression(child)),
            },
            ast::Expr::Compare(it) if it.ops.iter().any(|op| is_order(&op.op)) => {
                self.ordered(&it.expr, &it.ops.iter().map(|op| &op.expr).collect::<Vec<_>>());
            }
            ast::Expr::GetAttr(it) => self.looked_below(&it.expr),
            ast::Expr::GetItem(it) => {
                self.looked_below(&it.expr);
                self.expression(&it.subscript_expr);
            }
            other => children(other).into_iter().for_each(|child| self.expression(child)),
        }
    }

    /// Returns where the left and the right operand of an operator end, with the brackets around each.
    fn ends(&self, left: &ast::Expr<'_>, right: &ast::Expr<'_>, sign: char) -> Option<(usize, usize)> {
        let (end, at, _) = self.operator(left.span().end_offset as usize)?;
        self.source.get(at..)?.strip_prefix(sign)?;
        Some((end, self.closed(at + 1, right)?))
    }

    /// Returns the end of an operand with the brackets around it, where the operator behind it begins, and how many
    /// brackets these are.
    fn operator(&self, mut end: usize) -> Option<(usize, usize, usize)> {
        let mut brackets = 0;
        loop {
            let rest = self.source.get(end..)?;
            let next = end + rest.len() - rest.trim_start().len();
            match self.source.get(next..)?.strip_prefix(')') {
                Some(_) => (end, brackets) = (next + 1, brackets + 1),
                None => return Some((end, next, brackets)),
            }
        }
    }

    /// Rewrites `a < b`, or a chain such as `a < b <= c`, into `((a)|__order('<', (b), '<=', (c)))`.
    fn ordered(&mut self, first: &ast::Expr<'_>, others: &[&ast::Expr<'_>]) {
        let found = || {
            let (mut start, end) = self.place(first)?;
            let (end, mut at, brackets) = self.operator(end)?;
            for _ in 0..brackets {
                start = self.source.get(..start)?.trim_end().strip_suffix('(')?.len();
            }
            let mut steps = Vec::new();
            for other in others {
                let sign = OPERATORS
                    .iter()
                    .find(|sign| self.source.get(at..).is_some_and(|rest| rest.starts_with(**sign)))?;
                let close = self.closed(at + sign.len(), other)?;
                steps.push((at, *sign, close));
                at = close + self.source.get(close..)?.len() - self.source.get(close..)?.trim_start().len();
            }
            Some((start, end, steps))
        };
        let Some((start, end, steps)) = found() else {
            self.expression(first);
            return others.iter().for_each(|other| self.expression(other));
        };
        self.inserts.push((start, "((".to_owned()));
        self.expression(first);
        self.inserts.push((end, format!(")|{ORDER}(")));
        let last = steps.len();
        for (index, ((at, sign, close), other)) in steps.into_iter().zip(others).enumerate() {
            self.blanked.extend(at..at + sign.len());
            let comma = if index > 0 { ", " } else { "" };
            let word = if sign.ends_with("in") { "in" } else { sign };
            self.inserts.push((at + sign.len(), format!("{comma}'{word}', (")));
            self.expression(other);
            self.inserts.push((close, if index + 1 == last { ")))" } else { ")" }.to_owned()));
        }
    }

    /// Returns where an operand that begins behind `from` ends. Its span does not include brackets around it.
    fn closed(&self, from: usize, operand: &ast::Expr<'_>) -> Option<usize> {
        let mut close = operand.span().end_offset as usize;
        let mut depth = scan::open_brackets(self.source.get(from..close)?);
        while depth > 0 {
            let rest = self.source.get(close..)?;
            close += rest.len() - rest.trim_start().len();
            self.source.get(close..)?.strip_prefix(')')?;
            (close, depth) = (close + 1, depth - 1);
        }
        Some(close)
    }

    /// Passes both operands to a filter. What binds less than a filter is itself a sum or a product, whose operands
    /// are passed.
    fn operands(&mut self, it: &ast::BinOp<'_>, filter: &str) {
        let sign = if matches!(it.op, ast::BinOpKind::Concat) { '~' } else { '+' };
        let places = self.ends(&it.left, &it.right, sign);
        self.expression(&it.left);
        if let Some((left, _)) = places {
            self.inserts.push((left, format!("|{filter}")));
        }
        self.expression(&it.right);
        if let Some((_, right)) = places {
            self.inserts.push((right, format!("|{filter}")));
        }
    }

    /// Rewrites a product; `again` says that the result is multiplied again, without brackets between.
    fn product(&mut self, it: &ast::BinOp<'_>, again: bool) {
        let places = self.ends(&it.left, &it.right, '*');
        let chained = match (&it.left, places) {
            (ast::Expr::BinOp(inner), Some((end, _))) if matches!(inner.op, ast::BinOpKind::Mul) => {
                // With brackets around it, the left operand is one value.
                end == self.closed(inner.left.span().end_offset as usize, &inner.right).unwrap_or_default()
            }
            _ => false,
        };
        match (&it.left, chained) {
            (ast::Expr::BinOp(inner), true) => self.product(inner, true),
            (left, _) => self.expression(left),
        }
        if let Some((left, _)) = places.filter(|_| !chained) {
            self.inserts.push((left, format!("|{}", bounds::TIMES)));
        }
        self.expression(&it.right);
        if let Some((_, right)) = places {
            self.inserts.push((right, format!("|{}{}", bounds::BY, if again { "(true)" } else { "" })));
        }
    }

    /// Rewrites `'text' % values`.
    fn formatted(&mut self, text: &ast::Expr<'_>, values: &ast::Expr<'_>) {
        let found = || {
            let ast::Expr::Const(it) = text else { return None };
            it.value.as_str()?;
            let end = text.span().end_offset as usize;
            let between = self.source.get(end..)?;
            let sign = end + between.len() - between.trim_start().len();
            self.source.get(sign..)?.strip_prefix('%')?;
            Some((end, sign, self.closed(sign + 1, values)?))
        };
        let Some((end, sign, close)) = found() else {
            self.expression(text);
            return self.expression(values);
        };
        let splat = match values {
            ast::Expr::Tuple(_) => "*",
            ast::Expr::Map(_) => "**",
            _ => "",
        };
        self.inserts.push((end, "|format(".to_owned()));
        self.blanked.push(sign);
        self.inserts.push((sign + 1, splat.to_owned()));
        self.expression(values);
        self.inserts.push((close, ")".to_owned()));
    }

    fn looked_below(&mut self, base: &ast::Expr<'_>) {
        let may_be_nothing = match base {
            ast::Expr::Var(it) => self.sets.contains(it.id) && !OWN.contains(&it.id),
            ast::Expr::GetAttr(_) | ast::Expr::GetItem(_) | ast::Expr::Filter(_) | ast::Expr::Call(_) => true,
            _ => false,
        };
        let Some((start, end)) = may_be_nothing.then(|| self.place(base)).flatten() else {
            return self.expression(base);
        };
        self.inserts.push((start, "((".to_owned()));
        self.expression(base);
        self.inserts.push((end, format!(")|{BELOW}{})", self.name(start, end))));
    }

    /// Returns where an expression begins and ends.
    ///
    /// The start of its span is no use: that of `a.b.c` begins at the last dot but one.
    fn place(&self, expression: &ast::Expr<'_>) -> Option<(usize, usize)> {
        let end = expression.span().end_offset as usize;
        let mut first = expression;
        let start = loop {
            first = match first {
                ast::Expr::Var(_)
                | ast::Expr::Const(_)
                | ast::Expr::List(_)
                | ast::Expr::Map(_)
                | ast::Expr::Tuple(_)
                | ast::Expr::UnaryOp(_) => break first.span().start_offset as usize,
                other => children(other).into_iter().next()?,
            }
        };
        // The first part may be in brackets that the whole is not in.
        let mut start = start;
        while let Some(close) = scan::bracket_end(self.source, start).filter(|close| *close < end) {
            let before = self.source.get(..start)?.trim_end();
            start = before.strip_suffix('(')?.len();
            debug_assert!(scan::bracket_end(self.source, start + 1) == Some(close));
        }
        Some((start, end))
    }

    /// Returns the argument of the filter that names an expression for messages.
    fn name(&self, start: usize, end: usize) -> String {
        let words = self.source.get(start..end).unwrap_or_default().split_whitespace();
        let text = words.collect::<Vec<_>>().join(" ").replace(" .", ".").replace(" [", "[");
        let strange = text.len() > LONGEST_NAME || text.contains(['\\', '{', '}', '%', '#']);
        match ['\'', '"'].into_iter().find(|quote| !text.contains(*quote)) {
            Some(quote) if !strange => format!("({quote}{text}{quote})"),
            _ => String::new(),
        }
    }
}

pub(in crate::template) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(BELOW, |value: &Engine, name: Option<&str>| match value.is_undefined() {
        true => frame::missing(name.unwrap_or("…").to_owned()),
        false => value.clone(),
    });
    variadic::register(environment);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::sync::Arc;

    use crate::template::{Dict, Scope, inspect_template, render};

    fn shown(source: &str) -> String {
        let vars = json!({"d": {"a": 1, "b": {"c": [1]}, "x-y": {"z": 2}}, "k": "none", "l": [{"n": 1}]});
        let scope = Scope::new(vec![Arc::new(Dict::trusted(vars.as_object().unwrap()))]);
        match render(source, &scope) {
            Ok(value) => value.to_json().to_string(),
            Err(error) => {
                let place = error.range().and_then(|range| source.get(range)).unwrap_or("?");
                format!("error: {} at {place}", error.message())
            }
        }
    }

    #[test]
    fn what_is_not_there_may_be_looked_below() {
        for source in [
            "{{ d[k].x | default('q') }}",
            "{{ d[k]['x'].y | default('q') }}",
            "{{ d['no-ne'].x | default('q') }}",
            "{{ l[7].n | default('q') }}",
            "{{ l[0].n.o.p | default('q') }}",
            "{{ (l | selectattr('n', 'eq', 9) | first).n | default('q') }}",
            "{{ ((l) | last)[k].n | default('q') }}",
            "{{ [][0].x | default('q') }}",
            "{% for i in l %}{{ loop.previtem.n | default('q') }}{% endfor %}",
            "{% set x = {} %}{{ x[k].y | default('q') }}",
            "{% macro m(a) %}{{ a.b.c | default('q') }}{% endmacro %}{{ m() }}",
            "{{ 'w' if d[k].x is defined else 'q' }}",
        ] {
            assert_eq!(shown(source), "\"q\"", "{source}");
        }
        assert_eq!(shown("{{ d[k].x }}"), "error: `d[k].x` is undefined at d[k].x");
        assert_eq!(shown("{{ d['x-y'].z + l[0].n + d.b['c'][0] }}"), "4");
        assert_eq!(shown("{{ k in d }} {{ d[k] is defined }}"), "\"False False\"");
    }

    #[test]
    fn a_mistake_behind_something_inserted_has_its_place() {
        assert_eq!(shown("{{ d.b.c + l[0].n | nosuch }}"), "error: filter nosuch is unknown at nosuch");
        let source = "{% set y = d['b'].c[0] %}{{ d.b.c.remove(7) }}";
        assert_eq!(shown(source), "error: `remove`: the list does not have this value at .remove(7)");
    }

    #[test]
    fn a_text_is_formatted_by_a_sign() {
        for (source, expected) in [
            ("{{ 'gpu%02d' % 3 }}", "\"gpu03\""),
            ("{{ '%s-%s' % ('a', l[0].n) ~ '!' }}", "\"a-1!\""),
            ("{{ '%d%%' % ((1 + 2) * 10) }}", "\"30%\""),
            ("{{ '%(a)s' % {'a': 1} }}", "\"1\""),
            ("{{ '%s' % d[k].x | default('q') }}", "\"q\""),
            ("{{ ['%03d' % 7, 7 % 4] | join(' ') }}", "\"007 3\""),
            ("{% for i in [1, 2] %}{{ 'n%02d ' % i }}{% endfor %}", "\"n01 n02 \""),
        ] {
            assert_eq!(shown(source), expected, "{source}");
        }
    }

    /// An operand that the walk does not find would be compared by the engine, which orders everything.
    #[test]
    fn what_has_no_order_is_refused_however_it_is_written() {
        let numbers = [
            "5",
            "-5",
            "(5)",
            "( (5) )",
            "-(5)",
            "(-5)",
            "d.a",
            "(d.a)",
            "d['a']",
            "d[k].x | default(3)",
            "l[0].n",
            "l[0]['n'] * 2",
            "1 + 2",
            "(1 + 2) * 3",
            "2 * (1 + 2)",
            "(1) + (2)",
            "'7' | int",
            "('7') | int",
            "'7'|int(0)",
            "(l | length)",
            "l|length - 1",
            "(3 if d.a else 4)",
            "-d.a",
            "-d.a|abs",
            "2 ** 3",
            "7 // 2",
            "7 % 4",
            "(1 + 1)\n",
            "[3, 4][0]",
            "{'q': 1}.q",
            "{'q': 1}['q']",
            "'abc'.find('c')",
            "[1, 2]|max",
            "(1, 2)|first",
            "true",
            "1.5",
            "l[-1].n",
        ];
        let texts = [
            "'5.1'",
            "('5.1')",
            "\"a\" ~ 'b'",
            "k",
            "'%s' % 5",
            "d[k].x | default('q')",
            "('a' if d.a else 'b')",
        ];
        for (number, text) in numbers.iter().flat_map(|number| texts.iter().map(move |text| (number, text))) {
            for operator in ["<", "<=", ">", ">="] {
                for source in [
                    format!("{{{{ {number} {operator} {text} }}}}"),
                    format!("{{{{{text}{operator}{number}}}}}"),
                    format!("{{{{ d.a == 1 and (not ({number}){operator} ({text})) }}}}"),
                    format!("{{% if 0 < 1 < 2 and {number} {operator} ( {text} ) %}}x{{% endif %}}"),
                    format!("{{{{ -99 < 0 < 0.5 {operator} ({text}) or {number} {operator} {text} }}}}"),
                    format!(
                        "{{% macro m(a) %}}{{{{ a {operator} {text} }}}}{{% endmacro %}}{{{{ m({number}) }}}}"
                    ),
                ] {
                    assert!(shown(&source).contains("have no order"), "{source}: {}", shown(&source));
                }
            }
        }
        for source in
            numbers.iter().map(|number| format!("{{{{ -1000 < {number} <= 1000 > ({number}) != 'x' }}}}"))
        {
            assert_eq!(shown(&source), "true", "{source}");
        }
        assert_eq!(shown("{{ (1, 2) < (1, 3) }} {{ [1, 'a'] < [2, 3] }}"), "\"True True\"");
        assert_eq!(
            shown("{{ 1 < 'x' in l }}").split(';').next(),
            Some("error: `<`: a whole number and text have no order")
        );
        assert!(shown("{{ 1 < 2 in [2] }}").contains("write `a < b and b in c`"));
    }

    #[test]
    fn macros_take_more_than_they_name() {
        for (source, expected) in [
            (
                "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, 4, x=5) }}",
                "\"12[3, 4]{'x': 5}\"",
            ),
            (
                "{% macro m() %}{% for k, v in kwargs.items() %}{{ k }}={{ v }};{% endfor %}{% endmacro %}{{ m(b=1, a=2) }}",
                "\"b=1;a=2;\"",
            ),
            (
                "{% macro m(a=(1)) -%}\n {{ a }}{{ varargs | join }}\n{%- endmacro -%}\n {{ m(1, 2, 3) }}",
                "\"123\"",
            ),
            (
                "{% macro m() %}{{ caller(varargs[0]) }}{% endmacro %}{% call(i) m('x') %}<{{ i }}>{% endcall %}",
                "\"<x>\"",
            ),
            (
                "{% macro o() %}{% macro i() %}{{ varargs | sum }}{% endmacro %}{{ i(1, 2) }}{{ varargs }}{% endmacro %}{{ o(9) }}",
                "\"3[9]\"",
            ),
            (
                "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(1) }}",
                "error: the macro takes at most 0 arguments at m(1)",
            ),
            (
                "{% macro m() %}{{ varargs }}{% endmacro %}{{ m(x=1) }}",
                "error: unknown keyword argument `x` at m(x=1)",
            ),
        ] {
            assert_eq!(shown(source), expected, "{source}");
        }
        let asked = inspect_template("{% macro m() %}{{ varargs }}{% endmacro %}{{ m(1) }}").unwrap();
        assert_eq!(asked.names, Vec::<String>::new());
    }

    #[test]
    fn a_macro_asks_for_variables_when_it_runs() {
        let unused = "{% macro m(a) %}{{ gone.x }}{{ k }}{% endmacro %}ok";
        assert_eq!(shown(unused), "\"ok\"");
        let asked = inspect_template(unused).unwrap();
        assert_eq!(
            (asked.names.clone(), asked.guarded),
            (asked.names, vec!["gone".to_owned(), "k".to_owned()])
        );
        assert_eq!(
            shown("{% macro m(a) %}{% if a %}{{ gone }}{% endif %}{{ k }}{% endmacro %}{{ m(false) }}"),
            "\"none\""
        );
        assert_eq!(
            shown("{% macro m() %}{{ gone.x }}{% endmacro %}{{ m() }}"),
            "error: `gone.x` is undefined at gone.x"
        );
        assert_eq!(
            shown("{% macro m() %}{{ gone | default('q') }}{{ d.a }}{% endmacro %}{{ m() }}"),
            "\"q1\""
        );
        let later = "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}";
        assert_eq!(shown(later), "\"B\"");
        assert!(inspect_template(later).unwrap().names.is_empty());
        let sets = "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}!";
        assert_eq!(shown(sets), "\"2!\"");
    }
}
