//! The variables that a place of the template sees.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::value::Value;

/// Variables of one block; what it lacks, its parent may have.
pub struct Scope {
    vars: RefCell<Vec<(Arc<str>, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub fn root() -> Rc<Scope> {
        Rc::new(Scope { vars: RefCell::default(), parent: None })
    }

    pub fn inner(parent: &Rc<Scope>) -> Rc<Scope> {
        Rc::new(Scope { vars: RefCell::default(), parent: Some(Rc::clone(parent)) })
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some((_, value)) = scope.vars.borrow().iter().find(|(have, _)| &**have == name) {
                return Some(value.clone());
            }
            scope = scope.parent.as_deref()?;
        }
    }

    pub fn set(&self, name: &Arc<str>, value: Value) {
        let mut vars = self.vars.borrow_mut();
        // The old value goes after the borrow: dropping may run long, but never comes back here.
        match vars.iter_mut().find(|(have, _)| have == name) {
            Some((_, old)) => *old = value,
            None => vars.push((Arc::clone(name), value)),
        }
    }

    /// Drops all variables, so that a macro that its own scope holds is freed.
    pub fn clear(&self) {
        let vars = std::mem::take(&mut *self.vars.borrow_mut());
        drop(vars);
    }
}
