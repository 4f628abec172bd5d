//! One rendering: statements. eval.rs has the expressions, calls.rs what is called.

use std::rc::Rc;
use std::sync::Arc;

use crate::budget;

use super::ast::{ForLoop, MacroDef, Name, Stmt, StmtKind, Target};
use super::call::Args;
use super::error::{at, charge, charge_read, charge_work, fail, limit, Error, Res};
use super::looping::Loop;
use super::repr;
use super::scope::Scope;
use super::value::{Macro, Namespace, Value};

/// Calls of macros and recursive loops inside each other.
pub const MAX_RECURSION: u32 = 200;

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Next,
    Break,
    Continue,
}

pub struct Interp {
    pub now_unix_s: Option<i64>,
    max_output_bytes: u64,
    /// The output, and above it what is captured at present.
    out: Vec<String>,
    recursion: u32,
    /// Namespaces may hold themselves, so these are emptied at the end.
    namespaces: Vec<Rc<Namespace>>,
    captured: Vec<Rc<Scope>>,
    /// Loops that remember values, which may hold the loop itself.
    remembering: Vec<Rc<Loop>>,
}

/// Renders `body` with the variables of a dict.
pub fn render(
    body: &[Stmt],
    variables: &Value,
    now_unix_s: Option<i64>,
    max_output_bytes: u64,
) -> Res<String> {
    let scope = Scope::root();
    if let Value::Dict(dict) = variables {
        for (key, value) in &dict.entries {
            scope.set(&Arc::from(key.as_str().unwrap_or_default()), value.clone());
        }
    }
    let mut interp = Interp {
        now_unix_s,
        max_output_bytes,
        out: vec![String::new()],
        recursion: 0,
        namespaces: Vec::new(),
        captured: Vec::new(),
        remembering: Vec::new(),
    };
    // jinja2's `self` has the template's blocks, which are left out: all members are undefined.
    let blocks = Value::Namespace(interp.new_namespace());
    scope.set(&Arc::from("self"), blocks);
    // Assignments of the template stand in a scope of their own, as in jinja2.
    let top = Scope::inner(&scope);
    let ended = interp.exec(body, &top);
    for namespace in std::mem::take(&mut interp.namespaces) {
        let vars = std::mem::take(&mut *namespace.vars.borrow_mut());
        drop(vars);
    }
    for scope in std::mem::take(&mut interp.captured) {
        scope.clear();
    }
    for state in std::mem::take(&mut interp.remembering) {
        state.forget();
    }
    ended?;
    Ok(interp.out.swap_remove(0))
}

impl Interp {
    pub fn new_namespace(&mut self) -> Rc<Namespace> {
        let namespace = Rc::new(Namespace::default());
        self.namespaces.push(Rc::clone(&namespace));
        namespace
    }

    /// The loop is emptied of what it remembers when the rendering ends.
    pub fn remembers(&mut self, state: &Rc<Loop>) {
        self.remembering.push(Rc::clone(state));
    }

    fn new_macro(&mut self, def: &Arc<MacroDef>, scope: &Rc<Scope>) -> Value {
        self.captured.push(Rc::clone(scope));
        Value::Macro(Rc::new(Macro { def: Arc::clone(def), scope: Rc::clone(scope) }))
    }

    pub fn write(&mut self, text: &str) -> Res<()> {
        charge_work(text.len())?;
        let is_output = self.out.len() == 1;
        let max = self.max_output_bytes;
        let Some(out) = self.out.last_mut() else { return Ok(()) };
        if is_output && out.len() as u64 + text.len() as u64 > max {
            return limit(format!("wrote more than the allowed {max} bytes"));
        }
        out.push_str(text);
        Ok(())
    }

    /// Returns the text that `work` writes.
    pub fn capture(&mut self, work: impl FnOnce(&mut Interp) -> Res<()>) -> Res<String> {
        self.out.push(String::new());
        let done = work(self);
        let text = self.out.pop().unwrap_or_default();
        done.map(|()| text)
    }

    /// Counts calls inside each other.
    pub fn deeper<T>(&mut self, work: impl FnOnce(&mut Interp) -> Res<T>) -> Res<T> {
        if self.recursion >= MAX_RECURSION {
            return limit(format!("recursed deeper than {MAX_RECURSION}"));
        }
        if budget::stack_used() > budget::STACK_BYTES / 2 {
            return limit("recursed deeper than its stack allows");
        }
        self.recursion += 1;
        let done = work(self);
        self.recursion -= 1;
        done
    }

    pub fn exec(&mut self, body: &[Stmt], scope: &Rc<Scope>) -> Res<Flow> {
        for stmt in body {
            charge(1)?;
            let flow = at(self.statement(stmt, scope), stmt.line)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, stmt: &Stmt, scope: &Rc<Scope>) -> Res<Flow> {
        match &stmt.kind {
            StmtKind::Data(text) => self.write(text)?,
            StmtKind::Print(expr) => {
                let value = self.eval(expr, scope)?;
                match &value {
                    Value::Str(text) => self.write(&text.text)?,
                    other => {
                        let text = repr::str(other)?;
                        self.write(&text)?;
                    }
                }
            }
            StmtKind::If(branches, else_body) => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.is_true() {
                        return self.exec(body, scope);
                    }
                }
                return self.exec(else_body, scope);
            }
            StmtKind::For(node) => {
                let items = self.eval(&node.iter, scope)?.iterate_lazily();
                let (items, failure) = at(items, node.line)?;
                return self.for_loop(node, items, failure, 0, scope);
            }
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::SetBlock(target, filter, body) => {
                let inner = Scope::inner(scope);
                let text = self.capture(|interp| interp.exec(body, &inner).map(|_| ()))?;
                let mut value = Value::str(text);
                if let Some(filter) = filter {
                    value = self.filter_chain(filter, value, scope)?;
                }
                self.assign(target, value, scope)?;
            }
            StmtKind::Macro(def) => {
                let value = self.new_macro(def, scope);
                if let Some(name) = &def.name {
                    scope.set(name, value);
                }
            }
            StmtKind::CallBlock(call, def) => {
                let caller = self.new_macro(def, scope);
                let value = self.call_with_caller(call, caller, scope)?;
                let text = repr::str(&value)?;
                self.write(&text)?;
            }
            StmtKind::FilterBlock(filter, body) => {
                let inner = Scope::inner(scope);
                let text = self.capture(|interp| interp.exec(body, &inner).map(|_| ()))?;
                let value = self.filter_chain(filter, Value::str(text), &inner)?;
                let text = repr::str(&value)?;
                self.write(&text)?;
            }
            StmtKind::With(pairs, body) => {
                let inner = Scope::inner(scope);
                for (target, expr) in pairs {
                    let value = self.eval(expr, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.exec(body, &inner);
            }
            StmtKind::Scope(body) => return self.exec(body, &Scope::inner(scope)),
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// Runs the body for each item, and fails after the last where `failure` says why it is the
    /// last.
    pub fn for_loop(
        &mut self,
        node: &Arc<ForLoop>,
        items: Vec<Value>,
        failure: Option<Box<Error>>,
        depth0: i64,
        scope: &Rc<Scope>,
    ) -> Res<Flow> {
        // jinja2 tests an item when its turn comes, which the body may have changed; only a body
        // that asks for `loop` must know the items before.
        let tests_late = node.test.is_some() && !node.body_reads_loop;
        let mut kept = items;
        if node.test.is_some() && !tests_late {
            let mut passed = Vec::new();
            for item in kept {
                if self.passes(node, &item, scope)? {
                    passed.push(item);
                }
            }
            kept = passed;
        }
        let recurse = node.recursive.then(|| (Arc::clone(node), Rc::clone(scope)));
        let state = Rc::new(Loop::new(kept, depth0, recurse)?);
        let loop_name: Name = Arc::from("loop");
        let mut ran = false;
        let mut i = 0;
        while let Some(item) = state.next(i) {
            i += 1;
            charge(1)?;
            if tests_late && !self.passes(node, &item, scope)? {
                continue;
            }
            ran = true;
            let inner = Scope::inner(scope);
            inner.set(&loop_name, Value::Loop(Rc::clone(&state)));
            self.assign(&node.target, item, &inner)?;
            if self.exec(&node.body, &inner)? == Flow::Break {
                return Ok(Flow::Next);
            }
        }
        if let Some(failure) = failure {
            return at(Err(failure), node.line);
        }
        if !ran && !node.else_body.is_empty() {
            return self.exec(&node.else_body, &Scope::inner(scope));
        }
        Ok(Flow::Next)
    }

    fn passes(&mut self, node: &ForLoop, item: &Value, scope: &Rc<Scope>) -> Res<bool> {
        let Some(test) = &node.test else { return Ok(true) };
        let inner = Scope::inner(scope);
        self.assign(&node.target, item.clone(), &inner)?;
        Ok(self.eval(test, &inner)?.is_true())
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Res<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Attr(object, name) => match self.look_up(object, scope) {
                Value::Namespace(namespace) => set_in_namespace(&namespace, name, value)?,
                _ => return fail("cannot assign attribute on non-namespace object"),
            },
            Target::Tuple(targets) => {
                if !value.is_iterable() {
                    return fail(format!(
                        "cannot unpack non-iterable {} object",
                        value.type_name()
                    ));
                }
                let items = value.iterate()?;
                if items.len() > targets.len() {
                    return fail(format!("too many values to unpack (expected {})", targets.len()));
                }
                if items.len() < targets.len() {
                    return fail(format!(
                        "not enough values to unpack (expected {}, got {})",
                        targets.len(),
                        items.len()
                    ));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, scope)?;
                }
            }
        }
        Ok(())
    }

    /// The text that a macro writes.
    pub fn call_macro(&mut self, callee: &Macro, args: Args) -> Res<Value> {
        let def = Arc::clone(&callee.def);
        let scope = Scope::inner(&callee.scope);
        let text = self.deeper(|interp| {
            interp.bind_macro(&def, args, &scope)?;
            interp.capture(|interp| interp.exec(&def.body, &scope).map(|_| ()))
        })?;
        Ok(Value::str(text))
    }

    fn bind_macro(&mut self, def: &MacroDef, args: Args, scope: &Rc<Scope>) -> Res<()> {
        let shown = def.name.as_deref().unwrap_or("None");
        let Args { mut positional, mut keywords } = args;
        let extra = positional.split_off(positional.len().min(def.params.len()));
        if def.uses_varargs {
            scope.set(&Arc::from("varargs"), Value::tuple(extra)?);
        } else if !extra.is_empty() {
            return fail(format!(
                "macro '{shown}' takes not more than {} argument(s)",
                def.params.len()
            ));
        }
        let num_given = positional.len();
        let num_plain = def.params.len() - def.defaults.len();
        let mut given = positional.into_iter();
        for (i, name) in def.params.iter().enumerate() {
            // The name is looked for among the keywords and the parameters that are set.
            charge(1)?;
            charge_read((keywords.len() + i).saturating_mul(size_of::<(Name, Value)>()))?;
            let keyword = keywords.iter().position(|(key, _)| key == name);
            let value = match (given.next(), keyword) {
                (Some(value), _) => value,
                (None, Some(at)) => keywords.remove(at).1,
                (None, None) if i >= num_plain => self.eval(&def.defaults[i - num_plain], scope)?,
                (None, None) => Value::undefined(format!("parameter '{name}' was not provided")),
            };
            scope.set(name, value);
        }
        if def.uses_caller && !def.params.iter().any(|name| &**name == "caller") {
            let at = keywords.iter().position(|(key, _)| &**key == "caller");
            let caller = match at {
                Some(at) => keywords.remove(at).1,
                None => Value::undefined("No caller defined"),
            };
            scope.set(&Arc::from("caller"), caller);
        }
        if def.uses_kwargs {
            let entries = keywords.into_iter().map(|(key, value)| (Value::str(&*key), value));
            scope.set(&Arc::from("kwargs"), Value::dict(entries.collect())?);
        } else if let Some((key, _)) = keywords.first() {
            let is_twice = def.params.iter().take(num_given).any(|name| name == key);
            return fail(if is_twice {
                format!("macro '{shown}' got multiple values for argument '{key}'")
            } else {
                format!("macro '{shown}' takes no keyword argument '{key}'")
            });
        }
        Ok(())
    }
}

/// transformers' namespaces refuse names with an underscore in front.
pub fn set_in_namespace(namespace: &Namespace, name: &str, value: Value) -> Res<()> {
    if name.starts_with('_') {
        return fail(format!(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got \
             '{name}'. Please rename the attribute."
        ));
    }
    namespace.set(name, value)
}
