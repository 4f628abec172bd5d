//! Finds what is known of a template before any chat: names that no rendering could resolve, and
//! whether it reads the content of messages as a list of parts.

use std::collections::HashSet;

use crate::budget;

use super::ast::{walk, Const, Expr, ExprKind, MacroDef, Stmt, StmtKind, Target};
use super::error::Res;
use super::filters;
use super::lexer::syntax;
use super::tests;

/// Refuses a filter or test that does not exist. As in jinja2, one inside an `if` is an error only
/// when it is reached: templates ask whether a filter exists first.
pub fn names(body: &[Stmt]) -> Res<()> {
    check_body(body, false)
}

fn check_body(body: &[Stmt], soft: bool) -> Res<()> {
    for stmt in body {
        match &stmt.kind {
            StmtKind::Data(_) | StmtKind::Break | StmtKind::Continue => {}
            StmtKind::Print(e) | StmtKind::Set(_, e) => check_expr(e, soft)?,
            StmtKind::If(branches, else_body) => {
                for (test, body) in branches {
                    check_expr(test, true)?;
                    check_body(body, true)?;
                }
                check_body(else_body, soft)?;
            }
            StmtKind::For(node) => {
                check_expr(&node.iter, soft)?;
                node.test.iter().try_for_each(|e| check_expr(e, false))?;
                check_body(&node.body, false)?;
                check_body(&node.else_body, false)?;
            }
            StmtKind::SetBlock(_, filter, body) => {
                filter.iter().try_for_each(|e| check_expr(e, soft))?;
                check_body(body, false)?;
            }
            StmtKind::Macro(def) => check_macro(def)?,
            StmtKind::CallBlock(e, def) => {
                check_expr(e, soft)?;
                check_macro(def)?;
            }
            StmtKind::FilterBlock(e, body) => {
                check_expr(e, false)?;
                check_body(body, false)?;
            }
            StmtKind::With(pairs, body) => {
                pairs.iter().try_for_each(|(_, e)| check_expr(e, soft))?;
                check_body(body, false)?;
            }
            StmtKind::Scope(body) => check_body(body, false)?,
        }
    }
    Ok(())
}

fn check_macro(def: &MacroDef) -> Res<()> {
    def.defaults.iter().try_for_each(|e| check_expr(e, false))?;
    check_body(&def.body, false)
}

fn check_expr(expr: &Expr, soft: bool) -> Res<()> {
    let soft = soft || matches!(expr.kind, ExprKind::Cond(..));
    match &expr.kind {
        ExprKind::Filter(_, name, _) if filters::LEFT_OUT.contains(&&**name) => {
            return syntax(expr.line, format!("the filter '{name}' is not supported"));
        }
        ExprKind::Filter(_, name, _) if !soft && !filters::NAMES.contains(&&**name) => {
            return syntax(expr.line, format!("No filter named '{name}'."));
        }
        ExprKind::Test(_, name, _) if !soft && !tests::NAMES.contains(&&**name) => {
            return syntax(expr.line, format!("No test named '{name}'."));
        }
        _ => {}
    }
    let mut done = Ok(());
    expr.kind.children(&mut |child| {
        if done.is_ok() {
            done = check_expr(child, soft);
        }
    });
    done
}

/// How a template takes the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PartsUse {
    /// As a text.
    None = 0,
    /// As a text or a list of parts.
    Reads = 1,
    /// As a list of parts only.
    Needs = 2,
}

/// Names that may hold a thing, found by following assignments.
#[derive(Default)]
struct Holders<'a> {
    messages: HashSet<&'a str>,
    message: HashSet<&'a str>,
    content: HashSet<&'a str>,
}

/// Follows `messages` through assignments, loops and the parameters of macros, as vLLM does for the
/// first two: a template that loops over `message.content` reads parts.
pub fn parts_use(body: &[Stmt]) -> PartsUse {
    let mut held = Holders::default();
    held.messages.insert("messages");
    loop {
        let before = (held.messages.len(), held.message.len(), held.content.len());
        follow(body, &mut held);
        let is_same = before == (held.messages.len(), held.message.len(), held.content.len());
        // A source may need as many rounds as it has assignments; a caller that left needs none.
        if is_same || budget::is_abandoned() {
            break;
        }
    }
    let (mut loops, mut asks) = (false, false);
    walk(
        body,
        &mut |stmt| {
            if let StmtKind::For(node) = &stmt.kind {
                loops |= is_content(&node.iter, &held);
            }
        },
        &mut |expr| {
            if let ExprKind::Test(value, name, _) = &expr.kind {
                asks |= matches!(&**name, "string" | "iterable" | "sequence" | "mapping")
                    && is_content(value, &held);
            }
        },
    );
    match (loops, asks) {
        (false, _) => PartsUse::None,
        (true, true) => PartsUse::Reads,
        (true, false) => PartsUse::Needs,
    }
}

fn follow<'a>(body: &'a [Stmt], held: &mut Holders<'a>) {
    let mut macros: Vec<&'a MacroDef> = Vec::new();
    let mut calls: Vec<(&'a str, &'a [Expr])> = Vec::new();
    let mut assigned: Vec<(&'a str, &'a Expr)> = Vec::new();
    let mut looped: Vec<(&'a str, &'a Expr)> = Vec::new();
    walk(
        body,
        &mut |stmt| match &stmt.kind {
            StmtKind::Macro(def) => macros.push(def),
            StmtKind::Set(Target::Name(name), value) => assigned.push((name, value)),
            StmtKind::For(node) => {
                if let Target::Name(name) = &node.target {
                    looped.push((name, &node.iter));
                }
            }
            _ => {}
        },
        &mut |expr| {
            if let ExprKind::Call(callee, args) = &expr.kind {
                if let ExprKind::Name(name) = &callee.kind {
                    calls.push((name, &args.positional));
                }
            }
        },
    );
    for (name, args) in calls {
        for def in macros.iter().filter(|def| def.name.as_deref() == Some(name)) {
            assigned.extend(def.params.iter().map(|param| &**param).zip(args));
        }
    }
    for (name, value) in assigned {
        if is_messages(value, held) {
            held.messages.insert(name);
        } else if is_message(value, held) {
            held.message.insert(name);
        } else if is_content(value, held) {
            held.content.insert(name);
        }
    }
    for (name, iter) in looped {
        if is_messages(iter, held) {
            held.message.insert(name);
        }
    }
}

/// The value below filters, slices and the branches of an inline if.
fn base(expr: &Expr) -> &Expr {
    match &expr.kind {
        ExprKind::Filter(Some(inner), ..) => base(inner),
        ExprKind::Item(inner, key) if matches!(key.kind, ExprKind::Slice(..)) => base(inner),
        _ => expr,
    }
}

fn is_messages(expr: &Expr, held: &Holders) -> bool {
    matches!(&base(expr).kind, ExprKind::Name(name) if held.messages.contains(&**name))
}

fn is_message(expr: &Expr, held: &Holders) -> bool {
    match &base(expr).kind {
        ExprKind::Name(name) => held.message.contains(&**name),
        ExprKind::Item(inner, _) => is_messages(inner, held),
        _ => false,
    }
}

fn is_content(expr: &Expr, held: &Holders) -> bool {
    match &base(expr).kind {
        ExprKind::Name(name) => held.content.contains(&**name),
        ExprKind::Attr(inner, name) => &**name == "content" && is_message(inner, held),
        ExprKind::Item(inner, key) => {
            matches!(&key.kind, ExprKind::Const(Const::Str(name)) if &**name == "content")
                && is_message(inner, held)
        }
        _ => false,
    }
}
