//! The variable `loop` of a for loop.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::ast::ForLoop;
use super::error::{charge_work, fail, Res};
use super::ops;
use super::scope::Scope;
use super::value::{depth_of, Value};

pub struct Loop {
    items: Vec<Value>,
    at: Cell<usize>,
    depth0: i64,
    /// Levels of its items and its own.
    pub depth: u32,
    last_changed: RefCell<Option<Vec<Value>>>,
    /// A call of a recursive loop runs this node, in this scope.
    pub recurse: Option<(Arc<ForLoop>, Rc<Scope>)>,
}

impl Loop {
    pub fn new(
        items: Vec<Value>,
        depth0: i64,
        recurse: Option<(Arc<ForLoop>, Rc<Scope>)>,
    ) -> Res<Loop> {
        let depth = depth_of(items.iter())?;
        let last_changed = RefCell::new(None);
        Ok(Loop { items, at: Cell::new(0), depth0, depth, last_changed, recurse })
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn depth0(&self) -> i64 {
        self.depth0
    }

    /// The next item; None at the end.
    pub fn next(&self, i: usize) -> Option<Value> {
        self.at.set(i);
        self.items.get(i).cloned()
    }

    /// Items that follow the current one.
    pub fn rest(&self) -> Res<Vec<Value>> {
        let rest = self.items.get(self.at.get() + 1..).unwrap_or_default();
        charge_work(rest.len().saturating_mul(size_of::<Value>()))?;
        Ok(rest.to_vec())
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        let (at, len) = (self.at.get() as i64, self.items.len() as i64);
        let neighbour = |i: i64, what: &str| {
            let item = usize::try_from(i).ok().and_then(|i| self.items.get(i)).cloned();
            item.unwrap_or_else(|| Value::undefined(format!("there is no {what} item")))
        };
        Some(match name {
            "index" => Value::Int(at + 1),
            "index0" => Value::Int(at),
            "revindex" => Value::Int(len - at),
            "revindex0" => Value::Int(len - at - 1),
            "first" => Value::Bool(at == 0),
            "last" => Value::Bool(at + 1 == len),
            "length" => Value::Int(len),
            "depth" => Value::Int(self.depth0 + 1),
            "depth0" => Value::Int(self.depth0),
            "previtem" => neighbour(at - 1, "previous"),
            "nextitem" => neighbour(at + 1, "next"),
            _ => return None,
        })
    }

    pub fn cycle(&self, args: &[Value]) -> Res<Value> {
        if args.is_empty() {
            return fail("no items for cycling given");
        }
        Ok(args[self.at.get() % args.len()].clone())
    }

    pub fn changed(&self, args: Vec<Value>) -> Res<Value> {
        let mut last = self.last_changed.borrow_mut();
        if let Some(old) = &*last {
            let mut is_same = old.len() == args.len();
            for (a, b) in old.iter().zip(&args) {
                is_same = is_same && ops::equal(a, b)?;
            }
            if is_same {
                return Ok(Value::Bool(false));
            }
        }
        *last = Some(args);
        Ok(Value::Bool(true))
    }

    /// True once `changed` was called.
    pub fn remembers(&self) -> bool {
        self.last_changed.borrow().is_some()
    }

    /// Drops what `changed` remembers, which may be the loop itself.
    pub fn forget(&self) {
        let last = self.last_changed.take();
        drop(last);
    }

    pub fn describe(&self) -> String {
        format!("<LoopContext {}/{}>", self.at.get() + 1, self.items.len())
    }
}
