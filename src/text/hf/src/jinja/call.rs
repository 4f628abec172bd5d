//! Arguments of calls.

use std::sync::Arc;

use super::error::{charge_read, fail, Res};
use super::ops::{self, undefined};
use super::value::Value;

#[derive(Default)]
pub struct Args {
    pub positional: Vec<Value>,
    pub keywords: Vec<(Arc<str>, Value)>,
}

/// The arguments of one call by the names of its parameters.
pub struct Bound {
    name: &'static str,
    params: &'static [&'static str],
    values: Vec<Option<Value>>,
}

impl Args {
    pub fn of(positional: Vec<Value>) -> Args {
        Args { positional, keywords: Vec::new() }
    }

    /// For the next of many calls with the same arguments.
    pub fn copy(&self) -> Res<Args> {
        let count = self.positional.len() + self.keywords.len();
        charge_read(count.saturating_mul(size_of::<(Arc<str>, Value)>()))?;
        Ok(Args { positional: self.positional.clone(), keywords: self.keywords.clone() })
    }

    pub fn bind(self, name: &'static str, params: &'static [&'static str]) -> Res<Bound> {
        if self.positional.len() > params.len() {
            return fail(format!(
                "{name}() takes at most {} arguments ({} given)",
                params.len(),
                self.positional.len()
            ));
        }
        let mut values: Vec<Option<Value>> = self.positional.into_iter().map(Some).collect();
        values.resize_with(params.len(), || None);
        for (key, value) in self.keywords {
            let Some(at) = params.iter().position(|param| **param == *key) else {
                return fail(format!("{name}() got an unexpected keyword argument '{key}'"));
            };
            if values[at].is_some() {
                return fail(format!("{name}() got multiple values for argument '{key}'"));
            }
            values[at] = Some(value);
        }
        Ok(Bound { name, params, values })
    }

    /// For methods that take no keywords.
    pub fn plain(self, name: &'static str, most: usize) -> Res<Vec<Value>> {
        if !self.keywords.is_empty() {
            return fail(format!("{name}() takes no keyword arguments"));
        }
        if self.positional.len() > most {
            return fail(format!(
                "{name}() takes at most {most} arguments ({} given)",
                self.positional.len()
            ));
        }
        Ok(self.positional)
    }
}

impl Bound {
    pub fn get(&self, at: usize) -> Option<&Value> {
        self.values[at].as_ref()
    }

    /// An argument that is None counts as absent.
    pub fn given(&self, at: usize) -> Option<&Value> {
        self.get(at).filter(|value| !matches!(value, Value::None))
    }

    pub fn take(&mut self, at: usize) -> Res<Value> {
        match self.values[at].take() {
            Some(value) => Ok(value),
            None => fail(format!(
                "{}() missing 1 required positional argument: '{}'",
                self.name, self.params[at]
            )),
        }
    }

    pub fn is_true(&self, at: usize, default: bool) -> bool {
        self.get(at).map_or(default, Value::is_true)
    }

    pub fn integer(&self, at: usize, default: i64) -> Res<i64> {
        self.get(at).map_or(Ok(default), ops::small)
    }

    pub fn text(&self, at: usize) -> Res<Option<&str>> {
        match self.get(at) {
            None | Some(Value::None) => Ok(None),
            Some(value) => text_of(value, self.name).map(Some),
        }
    }
}

/// The string that a function asks for.
pub fn text_of<'a>(value: &'a Value, name: &str) -> Res<&'a str> {
    match value {
        Value::Str(text) => Ok(&text.text),
        Value::Undefined(why) => undefined(why),
        other => fail(format!("{name}: a str is required, not {}", other.type_name())),
    }
}
