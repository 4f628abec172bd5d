//! Expressions of a rendering.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::{CallArgs, Const, Expr, ExprKind};
use super::attr;
use super::call::Args;
use super::calls;
use super::error::{at, charge, charge_work, fail, Kind, Res};
use super::filters;
use super::interp::Interp;
use super::ops;
use super::repr;
use super::scope::Scope;
use super::tests;
use super::value::Value;

impl Interp {
    pub fn look_up(&self, name: &str, scope: &Rc<Scope>) -> Value {
        if let Some(value) = scope.get(name) {
            return value;
        }
        if let Some(func) = calls::global(name, self.now_unix_s.is_some()) {
            return Value::Func(func);
        }
        Value::undefined(format!("'{name}' is undefined"))
    }

    pub fn eval(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Res<Value> {
        charge(1)?;
        at(self.eval_kind(expr, scope), expr.line)
    }

    fn eval_kind(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Res<Value> {
        match &expr.kind {
            ExprKind::Const(value) => Ok(constant(value)),
            ExprKind::Name(name) => Ok(self.look_up(name, scope)),
            ExprKind::Attr(object, name) => attr::get_attr(&self.eval(object, scope)?, name),
            ExprKind::Item(object, key) => self.item(object, key, scope),
            ExprKind::Call(callee, args) => {
                let callee = self.eval(callee, scope)?;
                let args = self.args(args, scope)?;
                self.call(&callee, args)
            }
            ExprKind::Filter(Some(value), name, args) => {
                let value = self.eval(value, scope)?;
                let args = self.args(args, scope)?;
                filters::apply(self, name, value, args)
            }
            ExprKind::Filter(None, name, _) => fail(format!("the filter '{name}' has no value")),
            ExprKind::Test(value, name, args) => {
                let value = self.eval(value, scope)?;
                let args = self.args(args, scope)?;
                Ok(Value::Bool(tests::check(self, name, &value, args)?))
            }
            ExprKind::Not(value) => Ok(Value::Bool(!self.eval(value, scope)?.is_true())),
            ExprKind::And(left, right) => {
                let left = self.eval(left, scope)?;
                if left.is_true() {
                    self.eval(right, scope)
                } else {
                    Ok(left)
                }
            }
            ExprKind::Or(left, right) => {
                let left = self.eval(left, scope)?;
                if left.is_true() {
                    Ok(left)
                } else {
                    self.eval(right, scope)
                }
            }
            ExprKind::Cond(test, value, other) => {
                if self.eval(test, scope)?.is_true() {
                    return self.eval(value, scope);
                }
                match other {
                    Some(other) => self.eval(other, scope),
                    None => Ok(Value::undefined(format!(
                        "the inline if-expression on line {} evaluated to false and no else \
                         section was defined.",
                        expr.line
                    ))),
                }
            }
            _ => self.eval_rest(expr, scope),
        }
    }

    /// The kinds that need more stack.
    #[inline(never)]
    fn eval_rest(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Res<Value> {
        match &expr.kind {
            ExprKind::List(items) => Value::list(self.eval_all(items, scope)?),
            ExprKind::Tuple(items) => Value::tuple(self.eval_all(items, scope)?),
            ExprKind::Dict(pairs) => {
                let mut entries = Vec::with_capacity(pairs.len());
                for (key, value) in pairs {
                    entries.push((self.eval(key, scope)?, self.eval(value, scope)?));
                }
                Value::dict(entries)
            }
            ExprKind::Neg(value) => ops::negate(&self.eval(value, scope)?, false),
            ExprKind::Pos(value) => ops::negate(&self.eval(value, scope)?, true),
            ExprKind::Binary(op, left, right) => {
                let left = self.eval(left, scope)?;
                let right = self.eval(right, scope)?;
                ops::binary(*op, &left, &right)
            }
            ExprKind::Concat(items) => {
                let mut out = String::new();
                for item in items {
                    let value = self.eval(item, scope)?;
                    charge_work(out.len() / 64)?;
                    repr::push_str(&value, &mut out)?;
                }
                Ok(Value::str(out))
            }
            ExprKind::Compare(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (op, right) in rest {
                    let right = self.eval(right, scope)?;
                    if !ops::compare(*op, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            _ => fail("a slice stands alone"),
        }
    }

    fn eval_all(&mut self, items: &[Expr], scope: &Rc<Scope>) -> Res<Vec<Value>> {
        items.iter().map(|item| self.eval(item, scope)).collect()
    }

    fn item(&mut self, object: &Expr, key: &Expr, scope: &Rc<Scope>) -> Res<Value> {
        let is_literal = matches!(object.kind, ExprKind::Const(_));
        let object = self.eval(object, scope)?;
        let ExprKind::Slice(begin, end, step) = &key.kind else {
            let key = self.eval(key, scope)?;
            return attr::get_item(&object, &key);
        };
        let mut bounds = [Value::None, Value::None, Value::None];
        for (slot, bound) in bounds.iter_mut().zip([begin, end, step]) {
            if let Some(bound) = bound {
                *slot = self.eval(bound, scope)?;
            }
        }
        match attr::cut(&object, &bounds) {
            // jinja2 folds a slice of a literal, where a wrong type is only undefined.
            Err(error) if is_literal && error.kind == Kind::Value => {
                Ok(Value::undefined(error.message))
            }
            done => done,
        }
    }

    pub fn args(&mut self, args: &CallArgs, scope: &Rc<Scope>) -> Res<Args> {
        let mut out =
            Args { positional: self.eval_all(&args.positional, scope)?, keywords: Vec::new() };
        if let Some(star) = &args.star {
            out.positional.extend(self.eval(star, scope)?.iterate()?);
        }
        for (name, value) in &args.keywords {
            out.keywords.push((Arc::clone(name), self.eval(value, scope)?));
        }
        if let Some(more) = &args.star_star {
            let Value::Dict(dict) = self.eval(more, scope)? else {
                return fail("argument after ** must be a mapping");
            };
            // The keys of a dict differ from each other.
            let num_named = out.keywords.len();
            for (key, value) in &dict.entries {
                let Some(key) = key.as_str() else { return fail("keywords must be strings") };
                charge_work(key.len() + (1 + num_named) * size_of::<(Arc<str>, Value)>())?;
                if out.keywords[..num_named].iter().any(|(have, _)| &**have == key) {
                    return fail(format!("got multiple values for keyword argument '{key}'"));
                }
                out.keywords.push((Arc::from(key), value.clone()));
            }
        }
        Ok(out)
    }

    /// Filters behind a filter or set block, whose text is `value`.
    pub fn filter_chain(&mut self, expr: &Expr, value: Value, scope: &Rc<Scope>) -> Res<Value> {
        let ExprKind::Filter(inner, name, args) = &expr.kind else {
            return fail("expected a filter");
        };
        let value = match inner {
            Some(inner) => self.filter_chain(inner, value, scope)?,
            None => value,
        };
        let args = self.args(args, scope)?;
        at(filters::apply(self, name, value, args), expr.line)
    }

    pub fn call_with_caller(
        &mut self,
        call: &Expr,
        caller: Value,
        scope: &Rc<Scope>,
    ) -> Res<Value> {
        let ExprKind::Call(callee, args) = &call.kind else { return fail("expected call") };
        let callee = self.eval(callee, scope)?;
        let mut args = self.args(args, scope)?;
        args.keywords.push((Arc::from("caller"), caller));
        at(self.call(&callee, args), call.line)
    }
}

fn constant(value: &Const) -> Value {
    match value {
        Const::None => Value::None,
        Const::Bool(value) => Value::Bool(*value),
        Const::Int(value) => Value::Int(*value),
        Const::Big(value) => Value::big(value.clone()),
        Const::Float(value) => Value::Float(*value),
        Const::Str(text) => Value::str(&**text),
    }
}
