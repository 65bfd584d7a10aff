//! The parts of a template's statements and expressions, and the names that these set and use.
//!
//! Must not know values or source text.

use std::collections::HashSet;

use minijinja::machinery::ast;

/// The parts of a statement.
#[derive(Default)]
pub(super) struct Parts<'n, 's> {
    pub(super) targets: Vec<&'n ast::Expr<'s>>,
    pub(super) expressions: Vec<&'n ast::Expr<'s>>,
    pub(super) call: Option<&'n ast::Call<'s>>,
    pub(super) bodies: Vec<&'n [ast::Stmt<'s>]>,
}

pub(super) fn parts<'n, 's>(statement: &'n ast::Stmt<'s>) -> Parts<'n, 's> {
    let mut found = Parts::default();
    match statement {
        ast::Stmt::Template(it) => found.bodies.push(&it.children),
        ast::Stmt::EmitExpr(it) => found.expressions.push(&it.expr),
        ast::Stmt::ForLoop(it) => {
            found.targets.push(&it.target);
            found.expressions.push(&it.iter);
            found.expressions.extend(&it.filter_expr);
            found.bodies.extend([it.body.as_slice(), &it.else_body]);
        }
        ast::Stmt::IfCond(it) => {
            found.expressions.push(&it.expr);
            found.bodies.extend([it.true_body.as_slice(), &it.false_body]);
        }
        ast::Stmt::WithBlock(it) => {
            found.targets.extend(it.assignments.iter().map(|(target, _)| target));
            found.expressions.extend(it.assignments.iter().map(|(_, value)| value));
            found.bodies.push(&it.body);
        }
        ast::Stmt::Set(it) => {
            found.targets.push(&it.target);
            found.expressions.push(&it.expr);
        }
        ast::Stmt::SetBlock(it) => {
            found.targets.push(&it.target);
            found.expressions.extend(&it.filter);
            found.bodies.push(&it.body);
        }
        ast::Stmt::AutoEscape(it) => found.bodies.push(&it.body),
        ast::Stmt::FilterBlock(it) => {
            found.expressions.push(&it.filter);
            found.bodies.push(&it.body);
        }
        ast::Stmt::Block(it) => found.bodies.push(&it.body),
        ast::Stmt::Import(it) => {
            found.targets.push(&it.name);
            found.expressions.push(&it.expr);
        }
        ast::Stmt::FromImport(it) => {
            found.targets.extend(it.names.iter().map(|(name, alias)| alias.as_ref().unwrap_or(name)));
            found.expressions.push(&it.expr);
        }
        ast::Stmt::Extends(it) => found.expressions.push(&it.name),
        ast::Stmt::Include(it) => found.expressions.push(&it.name),
        ast::Stmt::Macro(it) => {
            found.targets.extend(&it.args);
            found.expressions.extend(&it.defaults);
            found.bodies.push(&it.body);
        }
        ast::Stmt::CallBlock(it) => {
            found.targets.extend(&it.macro_decl.args);
            found.expressions.extend(&it.macro_decl.defaults);
            found.call = Some(&it.call);
            found.bodies.push(&it.macro_decl.body);
        }
        ast::Stmt::Do(it) => found.call = Some(&it.call),
        ast::Stmt::EmitRaw(_) | ast::Stmt::Continue(_) | ast::Stmt::Break(_) => {}
    }
    found
}

/// Adds the names that a statement, and those inside of it, set.
pub(super) fn targets(statement: &ast::Stmt<'_>, into: &mut HashSet<String>) {
    let parts = parts(statement);
    if let ast::Stmt::Macro(it) = statement {
        into.insert(it.name.to_owned());
    }
    named(parts.targets, into);
    for statement in parts.bodies.into_iter().flatten() {
        targets(statement, into);
    }
}

/// Adds the names on the left of an assignment.
fn named(mut targets: Vec<&ast::Expr<'_>>, into: &mut HashSet<String>) {
    while let Some(target) = targets.pop() {
        match target {
            ast::Expr::Var(it) => _ = into.insert(it.id.to_owned()),
            ast::Expr::List(it) => targets.extend(&it.items),
            ast::Expr::Tuple(it) => targets.extend(&it.items),
            _ => {}
        }
    }
}

/// Whether names set inside of a statement end with it, as in Jinja.
fn is_scope(statement: &ast::Stmt<'_>) -> bool {
    use ast::Stmt::{Block, CallBlock, ForLoop, Macro, WithBlock};
    matches!(statement, ForLoop(_) | Macro(_) | CallBlock(_) | WithBlock(_) | Block(_))
}

/// The names that may be set at the place of a statement.
pub(super) struct Reach<'r> {
    names: HashSet<String>,
    around: Option<&'r Reach<'r>>,
}

impl<'r> Reach<'r> {
    /// Returns the names set by these statements, with those of the statements around them.
    pub(super) fn of(statements: &[&ast::Stmt<'_>], around: Option<&'r Self>) -> Self {
        let mut names = HashSet::new();
        let mut open = statements.to_vec();
        while let Some(statement) = open.pop() {
            if let ast::Stmt::Macro(it) = statement {
                names.insert(it.name.to_owned());
            }
            if !is_scope(statement) {
                let parts = parts(statement);
                named(parts.targets, &mut names);
                open.extend(parts.bodies.into_iter().flatten());
            }
        }
        Self { names, around }
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.around.is_some_and(|around| around.has(name))
    }

    /// Adds the names that a statement uses where nothing in the template sets them.
    pub(super) fn free(&self, statement: &ast::Stmt<'_>, into: &mut HashSet<String>) {
        let parts = parts(statement);
        let inner = is_scope(statement).then(|| {
            let mut inner =
                Reach::of(&parts.bodies.iter().copied().flatten().collect::<Vec<_>>(), Some(self));
            named(parts.targets.clone(), &mut inner.names);
            inner
        });
        let within = inner.as_ref().unwrap_or(self);
        let called = parts.call.into_iter();
        let mut open: Vec<(&Reach<'_>, &ast::Expr<'_>)> = called
            .flat_map(|call| std::iter::once(&call.expr).chain(call.args.iter().map(argument)))
            .map(|it| (self, it))
            .collect();
        // The filter of a loop and the defaults of parameters see the names of the loop and the macro.
        let sees_own = |it: &ast::Expr<'_>| match statement {
            ast::Stmt::ForLoop(looped) => !std::ptr::eq(it, &looped.iter),
            ast::Stmt::Macro(_) | ast::Stmt::CallBlock(_) => true,
            _ => false,
        };
        open.extend(parts.expressions.into_iter().map(|it| (if sees_own(it) { within } else { self }, it)));
        while let Some((reach, expression)) = open.pop() {
            match expression {
                ast::Expr::Var(it) if !reach.has(it.id) => _ = into.insert(it.id.to_owned()),
                other => open.extend(children(other).into_iter().map(|child| (reach, child))),
            }
        }
        for statement in parts.bodies.into_iter().flatten() {
            within.free(statement, into);
        }
    }
}

/// Returns the parts of an expression.
pub(super) fn children<'n, 's>(expression: &'n ast::Expr<'s>) -> Vec<&'n ast::Expr<'s>> {
    let with = |first: Option<&'n ast::Expr<'s>>, args: &'n [ast::CallArg<'s>]| {
        first.into_iter().chain(args.iter().map(argument)).collect()
    };
    match expression {
        ast::Expr::Var(_) | ast::Expr::Const(_) => Vec::new(),
        ast::Expr::Slice(it) => [Some(&it.expr), it.start.as_ref(), it.stop.as_ref(), it.step.as_ref()]
            .into_iter()
            .flatten()
            .collect(),
        ast::Expr::UnaryOp(it) => vec![&it.expr],
        ast::Expr::BinOp(it) => vec![&it.left, &it.right],
        ast::Expr::Compare(it) => std::iter::once(&it.expr).chain(it.ops.iter().map(|op| &op.expr)).collect(),
        ast::Expr::IfExpr(it) => {
            [Some(&it.true_expr), Some(&it.test_expr), it.false_expr.as_ref()].into_iter().flatten().collect()
        }
        ast::Expr::Filter(it) => with(it.expr.as_ref(), &it.args),
        ast::Expr::Test(it) => with(Some(&it.expr), &it.args),
        ast::Expr::GetAttr(it) => vec![&it.expr],
        ast::Expr::GetItem(it) => vec![&it.expr, &it.subscript_expr],
        ast::Expr::Call(it) => with(Some(&it.expr), &it.args),
        ast::Expr::List(it) => it.items.iter().collect(),
        ast::Expr::Tuple(it) => it.items.iter().collect(),
        ast::Expr::Map(it) => it.keys.iter().chain(&it.values).collect(),
    }
}

pub(super) fn argument<'n, 's>(argument: &'n ast::CallArg<'s>) -> &'n ast::Expr<'s> {
    match argument {
        ast::CallArg::Pos(it)
        | ast::CallArg::Kwarg(_, it)
        | ast::CallArg::PosSplat(it)
        | ast::CallArg::KwargSplat(it) => it,
    }
}

/// Whether a macro itself, not one inside of it, uses a name.
pub(super) fn uses(statement: &ast::Stmt<'_>, name: &str) -> bool {
    fn named(expression: &ast::Expr<'_>, name: &str) -> bool {
        matches!(expression, ast::Expr::Var(it) if it.id == name)
            || children(expression).into_iter().any(|child| named(child, name))
    }
    let parts = parts(statement);
    let called = parts.call.is_some_and(|call| {
        named(&call.expr, name) || call.args.iter().any(|given| named(argument(given), name))
    });
    called
        || parts.expressions.iter().any(|expression| named(expression, name))
        || parts
            .bodies
            .into_iter()
            .flatten()
            .any(|inner| !matches!(inner, ast::Stmt::Macro(_)) && uses(inner, name))
}
