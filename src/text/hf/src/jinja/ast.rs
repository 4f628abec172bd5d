//! The tree of a template. Immutable and shared between threads.

use std::collections::HashSet;
use std::sync::Arc;

use num_bigint::BigInt;

pub type Name = Arc<str>;

#[derive(Debug)]
pub enum Const {
    None,
    Bool(bool),
    Int(i64),
    Big(BigInt),
    Float(f64),
    Str(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// The arguments of a call.
#[derive(Debug, Default)]
pub struct CallArgs {
    pub positional: Vec<Expr>,
    pub keywords: Vec<(Name, Expr)>,
    pub star: Option<Box<Expr>>,
    pub star_star: Option<Box<Expr>>,
}

#[derive(Debug)]
pub enum ExprKind {
    Const(Const),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attr(Box<Expr>, Name),
    Item(Box<Expr>, Box<Expr>),
    Slice(Option<Box<Expr>>, Option<Box<Expr>>, Option<Box<Expr>>),
    Call(Box<Expr>, CallArgs),
    /// None: the value is that of a filter block.
    Filter(Option<Box<Expr>>, Name, CallArgs),
    Test(Box<Expr>, Name, CallArgs),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Binary(BinOp, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(CmpOp, Expr)>),
    /// test, value, else
    Cond(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
}

#[derive(Debug)]
pub struct Expr {
    pub kind: ExprKind,
    pub line: u32,
    /// Levels below and with this one.
    pub depth: u16,
}

/// The target of an assignment.
#[derive(Debug)]
pub enum Target {
    Name(Name),
    Attr(Name, Name),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub struct ForLoop {
    pub target: Target,
    pub iter: Expr,
    pub test: Option<Expr>,
    pub recursive: bool,
    pub body: Vec<Stmt>,
    pub body_reads_loop: bool,
    pub else_body: Vec<Stmt>,
    pub line: u32,
}

/// A macro, or the body of a call block.
#[derive(Debug)]
pub struct MacroDef {
    /// None for the macro of a call block.
    pub name: Option<Name>,
    pub params: Vec<Name>,
    /// The default values, which belong to the last parameters.
    pub defaults: Vec<Expr>,
    pub body: Vec<Stmt>,
    /// The body reads `caller`, `kwargs`, `varargs`.
    pub uses_caller: bool,
    pub uses_kwargs: bool,
    pub uses_varargs: bool,
}

#[derive(Debug)]
pub enum StmtKind {
    Data(Arc<str>),
    Print(Expr),
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    For(Arc<ForLoop>),
    Set(Target, Expr),
    SetBlock(Target, Option<Expr>, Vec<Stmt>),
    Macro(Arc<MacroDef>),
    CallBlock(Expr, Arc<MacroDef>),
    FilterBlock(Expr, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    /// A block or generation block: a scope of its own.
    Scope(Vec<Stmt>),
    Break,
    Continue,
}

#[derive(Debug)]
pub struct Stmt {
    pub kind: StmtKind,
    pub line: u32,
}

impl ExprKind {
    /// Calls `visit` with each expression directly below.
    pub fn children<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match self {
            ExprKind::Const(_) | ExprKind::Name(_) => {}
            ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Concat(items) => {
                items.iter().for_each(visit)
            }
            ExprKind::Dict(pairs) => pairs.iter().for_each(|(key, value)| {
                visit(key);
                visit(value);
            }),
            ExprKind::Attr(e, _) | ExprKind::Not(e) | ExprKind::Neg(e) | ExprKind::Pos(e) => {
                visit(e)
            }
            ExprKind::Item(a, b)
            | ExprKind::And(a, b)
            | ExprKind::Or(a, b)
            | ExprKind::Binary(_, a, b) => {
                visit(a);
                visit(b);
            }
            ExprKind::Slice(a, b, c) => [a, b, c].into_iter().flatten().for_each(|e| visit(e)),
            ExprKind::Call(e, args) | ExprKind::Test(e, _, args) => {
                visit(e);
                args.children(visit);
            }
            ExprKind::Filter(e, _, args) => {
                e.iter().for_each(|e| visit(e));
                args.children(visit);
            }
            ExprKind::Compare(e, rest) => {
                visit(e);
                rest.iter().for_each(|(_, e)| visit(e));
            }
            ExprKind::Cond(a, b, c) => {
                visit(a);
                visit(b);
                c.iter().for_each(|e| visit(e));
            }
        }
    }
}

impl CallArgs {
    pub fn children<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        self.positional.iter().for_each(&mut *visit);
        self.keywords.iter().for_each(|(_, e)| visit(e));
        self.star.iter().for_each(|e| visit(e));
        self.star_star.iter().for_each(|e| visit(e));
    }
}

/// Calls `on_expr` with every expression of `body` and `on_stmt` with every statement.
pub fn walk<'a>(
    body: &'a [Stmt],
    on_stmt: &mut dyn FnMut(&'a Stmt),
    on_expr: &mut dyn FnMut(&'a Expr),
) {
    for stmt in body {
        on_stmt(stmt);
        match &stmt.kind {
            StmtKind::Data(_) | StmtKind::Break | StmtKind::Continue => {}
            StmtKind::Print(e) | StmtKind::Set(_, e) => walk_expr(e, on_expr),
            StmtKind::If(branches, else_body) => {
                for (test, body) in branches {
                    walk_expr(test, on_expr);
                    walk(body, on_stmt, on_expr);
                }
                walk(else_body, on_stmt, on_expr);
            }
            StmtKind::For(node) => {
                walk_expr(&node.iter, on_expr);
                node.test.iter().for_each(|e| walk_expr(e, on_expr));
                walk(&node.body, on_stmt, on_expr);
                walk(&node.else_body, on_stmt, on_expr);
            }
            StmtKind::SetBlock(_, filter, body) => {
                filter.iter().for_each(|e| walk_expr(e, on_expr));
                walk(body, on_stmt, on_expr);
            }
            StmtKind::Macro(node) => walk_macro(node, on_stmt, on_expr),
            StmtKind::CallBlock(e, node) => {
                walk_expr(e, on_expr);
                walk_macro(node, on_stmt, on_expr);
            }
            StmtKind::FilterBlock(e, body) => {
                walk_expr(e, on_expr);
                walk(body, on_stmt, on_expr);
            }
            StmtKind::With(pairs, body) => {
                pairs.iter().for_each(|(_, e)| walk_expr(e, on_expr));
                walk(body, on_stmt, on_expr);
            }
            StmtKind::Scope(body) => walk(body, on_stmt, on_expr),
        }
    }
}

fn walk_macro<'a>(
    node: &'a MacroDef,
    on_stmt: &mut dyn FnMut(&'a Stmt),
    on_expr: &mut dyn FnMut(&'a Expr),
) {
    node.defaults.iter().for_each(|e| walk_expr(e, on_expr));
    walk(&node.body, on_stmt, on_expr);
}

pub fn walk_expr<'a>(expr: &'a Expr, on_expr: &mut dyn FnMut(&'a Expr)) {
    on_expr(expr);
    expr.kind.children(&mut |child| walk_expr(child, on_expr));
}

/// True if the statements read `name`.
pub fn reads(body: &[Stmt], name: &str) -> bool {
    let mut found = false;
    walk(body, &mut |_| {}, &mut |expr| {
        found |= matches!(&expr.kind, ExprKind::Name(have) if &**have == name);
    });
    found
}

/// The names that expressions of the statements read.
pub fn names_read(body: &[Stmt]) -> HashSet<Name> {
    let mut names = HashSet::new();
    walk(body, &mut |_| {}, &mut |expr| {
        if let ExprKind::Name(name) = &expr.kind {
            names.insert(name.clone());
        }
    });
    names
}
