//! Expressions: one function a level of binding, loosest first.

use std::sync::Arc;

use num_traits::ToPrimitive;

use super::ast::{BinOp, CallArgs, CmpOp, Const, Expr, ExprKind};
use super::error::Res;
use super::lexer::{syntax, Tok};
use super::parser::Parser;

/// Levels of one expression. Python refuses more than 200 brackets, and jinja2 writes a bracket for
/// each operator.
const MAX_DEPTH: u16 = 250;

impl Parser {
    pub(super) fn node(&self, kind: ExprKind, line: u32) -> Res<Expr> {
        let mut below = 0;
        kind.children(&mut |child| below = below.max(child.depth));
        if below >= MAX_DEPTH {
            return syntax(line, format!("an expression nested deeper than {MAX_DEPTH} levels"));
        }
        Ok(Expr { kind, line, depth: below + 1 })
    }

    pub(super) fn expression(&mut self, with_cond: bool) -> Res<Expr> {
        self.enter()?;
        let value = if with_cond { self.cond() } else { self.or() };
        self.leave();
        value
    }

    fn cond(&mut self) -> Res<Expr> {
        let mut line = self.line();
        let mut value = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let other = if self.skip_name("else") {
                self.enter()?;
                let other = self.cond()?;
                self.leave();
                Some(Box::new(other))
            } else {
                None
            };
            let kind = ExprKind::Cond(Box::new(test), Box::new(value), other);
            value = self.node(kind, line)?;
            line = self.line();
        }
        Ok(value)
    }

    fn or(&mut self) -> Res<Expr> {
        let line = self.line();
        let mut left = self.and()?;
        while self.skip_name("or") {
            let right = self.and()?;
            left = self.node(ExprKind::Or(Box::new(left), Box::new(right)), line)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Res<Expr> {
        let line = self.line();
        let mut left = self.not()?;
        while self.skip_name("and") {
            let right = self.not()?;
            left = self.node(ExprKind::And(Box::new(left), Box::new(right)), line)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Res<Expr> {
        let line = self.line();
        if self.skip_name("not") {
            self.enter()?;
            let value = self.not()?;
            self.leave();
            return self.node(ExprKind::Not(Box::new(value)), line);
        }
        self.compare()
    }

    fn compare_op(&mut self) -> Option<CmpOp> {
        let op = match self.tok() {
            Tok::Op("==") => CmpOp::Eq,
            Tok::Op("!=") => CmpOp::Ne,
            Tok::Op("<") => CmpOp::Lt,
            Tok::Op("<=") => CmpOp::Le,
            Tok::Op(">") => CmpOp::Gt,
            Tok::Op(">=") => CmpOp::Ge,
            Tok::Name(name) if &**name == "in" => CmpOp::In,
            Tok::Name(name) if &**name == "not" => {
                if !matches!(self.look(), Tok::Name(name) if &**name == "in") {
                    return None;
                }
                self.next();
                CmpOp::NotIn
            }
            _ => return None,
        };
        self.next();
        Some(op)
    }

    fn compare(&mut self) -> Res<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(op) = self.compare_op() {
            rest.push((op, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        self.node(ExprKind::Compare(Box::new(first), rest), line)
    }

    fn binary(&mut self, op: BinOp, left: Expr, right: Expr, line: u32) -> Res<Expr> {
        self.node(ExprKind::Binary(op, Box::new(left), Box::new(right)), line)
    }

    fn sum(&mut self) -> Res<Expr> {
        let line = self.line();
        let mut left = self.concat()?;
        loop {
            let op = match self.tok() {
                Tok::Op("+") => BinOp::Add,
                Tok::Op("-") => BinOp::Sub,
                _ => return Ok(left),
            };
            self.next();
            let right = self.concat()?;
            left = self.binary(op, left, right, line)?;
        }
    }

    fn concat(&mut self) -> Res<Expr> {
        let line = self.line();
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_op("~") {
            items.push(self.product()?);
        }
        self.node(ExprKind::Concat(items), line)
    }

    fn product(&mut self) -> Res<Expr> {
        let line = self.line();
        let mut left = self.power()?;
        loop {
            let op = match self.tok() {
                Tok::Op("*") => BinOp::Mul,
                Tok::Op("/") => BinOp::Div,
                Tok::Op("//") => BinOp::FloorDiv,
                Tok::Op("%") => BinOp::Mod,
                _ => return Ok(left),
            };
            self.next();
            let right = self.power()?;
            left = self.binary(op, left, right, line)?;
        }
    }

    fn power(&mut self) -> Res<Expr> {
        let line = self.line();
        let mut left = self.unary(true)?;
        while self.skip_op("**") {
            let right = self.unary(true)?;
            left = self.binary(BinOp::Pow, left, right, line)?;
        }
        Ok(left)
    }

    fn unary(&mut self, with_filter: bool) -> Res<Expr> {
        let line = self.line();
        let is_minus = self.is_op("-");
        let value = if is_minus || self.is_op("+") {
            self.next();
            self.enter()?;
            let value = Box::new(self.unary(false)?);
            self.leave();
            self.node(if is_minus { ExprKind::Neg(value) } else { ExprKind::Pos(value) }, line)?
        } else {
            self.primary()?
        };
        let value = self.postfix(value)?;
        if with_filter {
            return self.filter_or_test(value);
        }
        Ok(value)
    }

    fn primary(&mut self) -> Res<Expr> {
        let line = self.line();
        let kind = match self.tok().clone() {
            Tok::Name(name) => {
                self.next();
                match &*name {
                    "true" | "True" => ExprKind::Const(Const::Bool(true)),
                    "false" | "False" => ExprKind::Const(Const::Bool(false)),
                    "none" | "None" => ExprKind::Const(Const::None),
                    _ => ExprKind::Name(Arc::from(&*name)),
                }
            }
            Tok::Str(first) => {
                let mut text = first.to_string();
                self.next();
                while let Tok::Str(more) = self.tok() {
                    text.push_str(more);
                    self.next();
                }
                ExprKind::Const(Const::Str(Arc::from(text)))
            }
            Tok::Int(value) => {
                self.next();
                ExprKind::Const(value.to_i64().map_or(Const::Big(value), Const::Int))
            }
            Tok::Float(value) => {
                self.next();
                ExprKind::Const(Const::Float(value))
            }
            Tok::Op("(") => {
                self.next();
                let value = self.tuple(true, &[], true)?;
                self.expect_op(")")?;
                return Ok(value);
            }
            Tok::Op("[") => self.list()?,
            Tok::Op("{") => self.dict()?,
            _ => return syntax(line, format!("unexpected {}", self.describe())),
        };
        self.node(kind, line)
    }

    /// An expression, or a tuple where a ',' follows.
    pub(super) fn tuple(
        &mut self,
        with_cond: bool,
        ends: &'static [&'static str],
        in_brackets: bool,
    ) -> Res<Expr> {
        let line = self.line();
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_tuple_end(ends) {
                break;
            }
            items.push(self.expression(with_cond)?);
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            if let Some(only) = items.pop() {
                return Ok(only);
            }
            if !in_brackets {
                return syntax(line, format!("Expected an expression, got {}", self.describe()));
            }
        }
        self.node(ExprKind::Tuple(items), line)
    }

    fn list(&mut self) -> Res<ExprKind> {
        self.expect_op("[")?;
        let mut items = Vec::new();
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_op("]") {
                break;
            }
            items.push(self.expression(true)?);
        }
        self.expect_op("]")?;
        Ok(ExprKind::List(items))
    }

    fn dict(&mut self) -> Res<ExprKind> {
        self.expect_op("{")?;
        let mut pairs = Vec::new();
        while !self.is_op("}") {
            if !pairs.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_op("}") {
                break;
            }
            let key = self.expression(true)?;
            self.expect_op(":")?;
            pairs.push((key, self.expression(true)?));
        }
        self.expect_op("}")?;
        Ok(ExprKind::Dict(pairs))
    }

    fn postfix(&mut self, value: Expr) -> Res<Expr> {
        let mut value = value;
        loop {
            let line = self.line();
            let kind = match self.tok() {
                Tok::Op(".") | Tok::Op("[") => self.subscript(value)?,
                Tok::Op("(") => ExprKind::Call(Box::new(value), self.call_args()?),
                _ => return Ok(value),
            };
            value = self.node(kind, line)?;
        }
    }

    fn filter_or_test(&mut self, value: Expr) -> Res<Expr> {
        let mut value = value;
        loop {
            let line = self.line();
            if self.is_op("|") {
                value = self.filters(Some(value), false)?;
            } else if self.is_name("is") {
                value = self.test(value)?;
            } else if self.is_op("(") {
                let args = self.call_args()?;
                value = self.node(ExprKind::Call(Box::new(value), args), line)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn subscript(&mut self, value: Expr) -> Res<ExprKind> {
        let line = self.line();
        if self.skip_op(".") {
            let kind = match self.tok().clone() {
                Tok::Name(name) => ExprKind::Attr(Box::new(value), Arc::from(&*name)),
                Tok::Int(number) => {
                    let number = ExprKind::Const(Const::Int(number.to_i64().unwrap_or(i64::MAX)));
                    let number = self.node(number, line)?;
                    ExprKind::Item(Box::new(value), Box::new(number))
                }
                _ => return syntax(self.line(), "expected name or number"),
            };
            self.next();
            return Ok(kind);
        }
        self.expect_op("[")?;
        let mut args = Vec::new();
        while !self.is_op("]") {
            if !args.is_empty() {
                self.expect_op(",")?;
            }
            args.push(self.subscribed()?);
        }
        self.expect_op("]")?;
        let arg = match args.len() {
            1 => args.remove(0),
            _ => self.node(ExprKind::Tuple(args), line)?,
        };
        Ok(ExprKind::Item(Box::new(value), Box::new(arg)))
    }

    /// An index or a slice.
    fn subscribed(&mut self) -> Res<Expr> {
        let line = self.line();
        let first = if self.is_op(":") { None } else { Some(self.expression(true)?) };
        if !self.skip_op(":") {
            return match first {
                Some(value) => Ok(value),
                None => syntax(line, "expected an index"),
            };
        }
        let mut bounds = [first.map(Box::new), None, None];
        if !self.is_op(":") && !self.is_op("]") && !self.is_op(",") {
            bounds[1] = Some(Box::new(self.expression(true)?));
        }
        if self.skip_op(":") && !self.is_op("]") && !self.is_op(",") {
            bounds[2] = Some(Box::new(self.expression(true)?));
        }
        let [begin, end, step] = bounds;
        self.node(ExprKind::Slice(begin, end, step), line)
    }

    pub(super) fn call_args(&mut self) -> Res<CallArgs> {
        let line = self.line();
        self.expect_op("(")?;
        let mut args = CallArgs::default();
        let mut is_first = true;
        while !self.is_op(")") {
            if !is_first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            is_first = false;
            let has_stars = args.star.is_some() || args.star_star.is_some();
            let is_keyword =
                matches!(self.tok(), Tok::Name(_)) && matches!(self.look(), Tok::Op("="));
            let fits = if self.is_op("*") {
                self.next();
                args.star = Some(Box::new(self.expression(true)?));
                !has_stars
            } else if self.is_op("**") {
                self.next();
                let was_given = args.star_star.is_some();
                args.star_star = Some(Box::new(self.expression(true)?));
                !was_given
            } else if is_keyword {
                let name = self.expect_name()?;
                self.next();
                args.keywords.push((name, self.expression(true)?));
                args.star_star.is_none()
            } else {
                args.positional.push(self.expression(true)?);
                !has_stars && args.keywords.is_empty()
            };
            if !fits {
                return syntax(line, "invalid syntax for function call expression");
            }
        }
        self.expect_op(")")?;
        Ok(args)
    }

    fn test(&mut self, value: Expr) -> Res<Expr> {
        let line = self.line();
        self.next();
        let is_negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let mut args = CallArgs::default();
        if self.is_op("(") {
            args = self.call_args()?;
        } else if self.begins_test_argument() {
            if self.is_name("is") {
                return syntax(self.line(), "You cannot chain multiple tests with is");
            }
            let arg = self.primary()?;
            args.positional.push(self.postfix(arg)?);
        }
        let test = self.node(ExprKind::Test(Box::new(value), name, args), line)?;
        if is_negated {
            return self.node(ExprKind::Not(Box::new(test)), line);
        }
        Ok(test)
    }

    fn begins_test_argument(&self) -> bool {
        match self.tok() {
            Tok::Name(name) => !matches!(&**name, "else" | "or" | "and"),
            Tok::Str(_) | Tok::Int(_) | Tok::Float(_) | Tok::Op("[") | Tok::Op("{") => true,
            _ => false,
        }
    }
}
