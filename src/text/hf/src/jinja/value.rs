//! The values of a rendering: Python's, as far as a sandboxed template can make them.
//!
//! 1. Lists, tuples and dicts never change after they are made: the sandbox refuses all methods
//!    that would. Only namespaces, iterators, cyclers and loops hold state.
//! 2. Whatever holds values (containers, iterators, joiners, loops) knows how deep they nest and
//!    refuses more than MAX_DEPTH levels, so each recursive walk fits the stack, dropping included.
//!    A namespace, and what a loop remembers, may hold itself; interp::render empties both.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::ToPrimitive;

use super::ast::MacroDef;
use super::error::{charge_read, charge_work, fail, limit, Error, Kind, Res};
use super::looping::Loop;
use super::scope::Scope;

/// Levels of nested lists and dicts.
pub const MAX_DEPTH: u32 = 1000;

#[derive(Clone)]
pub enum Value {
    /// The message of the error that using it causes.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i64),
    /// Outside of i64.
    Big(Rc<BigInt>),
    Float(f64),
    Str(Text),
    List(Rc<List>),
    Tuple(Rc<List>),
    Dict(Rc<Dict>),
    Range(Rc<Range>),
    View(Rc<View>),
    Iter(Rc<Iter>),
    Func(Func),
    Method(Rc<Method>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Loop(Rc<Loop>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
}

/// A string; `safe`: markupsafe's Markup, which escapes what is added to it.
#[derive(Clone)]
pub struct Text {
    pub text: Rc<str>,
    pub safe: bool,
}

pub struct List {
    pub items: Vec<Value>,
    depth: u32,
    /// A pair of groupby, with the attributes grouper and list.
    pub is_group: bool,
}

pub struct Dict {
    pub entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    depth: u32,
}

pub struct Range {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ViewKind {
    Keys,
    Values,
    Items,
}

/// The result of dict.keys(), values() and items().
pub struct View {
    pub dict: Rc<Dict>,
    pub kind: ViewKind,
}

/// A generator or another iterator that is used up once.
pub struct Iter {
    pub items: RefCell<std::vec::IntoIter<Value>>,
    /// Why there is no item after these; a lazy filter fails when that item is asked for.
    pub failure: RefCell<Option<Box<Error>>>,
    depth: u32,
    /// Python's name of the type.
    pub type_name: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Func {
    Range,
    Dict,
    DictFromKeys,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

/// A method of a value.
pub struct Method {
    pub object: Value,
    pub name: &'static str,
}

#[derive(Default)]
pub struct Namespace {
    pub vars: RefCell<Vec<(Rc<str>, Value)>>,
}

pub struct Macro {
    pub def: Arc<MacroDef>,
    pub scope: Rc<Scope>,
}

pub struct Cycler {
    pub items: Vec<Value>,
    depth: u32,
    pub at: Cell<usize>,
}

pub struct Joiner {
    pub separator: Value,
    depth: u32,
    pub used: Cell<bool>,
}

/// A key as a dict or a set compares it: 1, 1.0 and True are one key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Key {
    None,
    Int(i64),
    Big(BigInt),
    Float(u64),
    Str(Rc<str>),
    Tuple(Vec<Key>),
    Object(usize),
}

impl Text {
    pub fn new(text: impl Into<Rc<str>>) -> Text {
        Text { text: text.into(), safe: false }
    }
}

impl Value {
    pub fn str(text: impl Into<Rc<str>>) -> Value {
        Value::Str(Text::new(text))
    }

    /// A string that is Markup where `like` is.
    pub fn str_like(text: impl Into<Rc<str>>, like: &Text) -> Value {
        Value::Str(Text { text: text.into(), safe: like.safe })
    }

    pub fn big(value: BigInt) -> Value {
        match value.to_i64() {
            Some(small) => Value::Int(small),
            None => Value::Big(Rc::new(value)),
        }
    }

    pub fn undefined(message: impl Into<Rc<str>>) -> Value {
        Value::Undefined(message.into())
    }

    pub fn list(items: Vec<Value>) -> Res<Value> {
        Ok(Value::List(Rc::new(List::new(items, false)?)))
    }

    pub fn tuple(items: Vec<Value>) -> Res<Value> {
        Ok(Value::Tuple(Rc::new(List::new(items, false)?)))
    }

    pub fn group(key: Value, items: Vec<Value>) -> Res<Value> {
        let pair = vec![key, Value::list(items)?];
        Ok(Value::Tuple(Rc::new(List::new(pair, true)?)))
    }

    pub fn dict(entries: Vec<(Value, Value)>) -> Res<Value> {
        Ok(Value::Dict(Rc::new(Dict::new(entries)?)))
    }

    pub fn iter(items: Vec<Value>, type_name: &'static str) -> Res<Value> {
        Value::iter_until(items, None, type_name)
    }

    /// An iterator that fails after its items, unless a limit was met: that fails at once.
    pub fn iter_until(
        items: Vec<Value>,
        failure: Option<Box<Error>>,
        type_name: &'static str,
    ) -> Res<Value> {
        charge_work(items.len())?;
        let failure = match failure {
            Some(error) if error.kind == Kind::Limit => return Err(error),
            failure => RefCell::new(failure),
        };
        let depth = depth_of(items.iter())?;
        let items = RefCell::new(items.into_iter());
        Ok(Value::Iter(Rc::new(Iter { items, failure, depth, type_name })))
    }

    pub fn cycler(items: Vec<Value>) -> Res<Value> {
        charge_work(items.len())?;
        let depth = depth_of(items.iter())?;
        Ok(Value::Cycler(Rc::new(Cycler { items, depth, at: Cell::new(0) })))
    }

    pub fn joiner(separator: Value) -> Res<Value> {
        let depth = depth_of(std::iter::once(&separator))?;
        Ok(Value::Joiner(Rc::new(Joiner { separator, depth, used: Cell::new(false) })))
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(&text.text),
            _ => None,
        }
    }

    /// Python's bool().
    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => !text.text.is_empty(),
            Value::List(list) | Value::Tuple(list) => !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            Value::View(view) => !view.dict.entries.is_empty(),
            Value::Range(range) => range.len() > 0,
            _ => true,
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Big(_) => "int",
            Value::Float(_) => "float",
            Value::Str(text) if text.safe => "Markup",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Range(_) => "range",
            Value::View(view) => match view.kind {
                ViewKind::Keys => "dict_keys",
                ViewKind::Values => "dict_values",
                ViewKind::Items => "dict_items",
            },
            Value::Iter(iter) => iter.type_name,
            Value::Func(Func::Dict) => "TemplateDict",
            Value::Func(_) => "function",
            Value::Method(_) => "builtin_function_or_method",
            Value::Namespace(_) => "TemplateNamespace",
            Value::Macro(_) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }

    /// Python's len().
    pub fn len(&self) -> Res<usize> {
        match self {
            Value::Undefined(_) => Ok(0),
            Value::Str(text) => {
                charge_work(text.text.len())?;
                Ok(text.text.chars().count())
            }
            Value::List(list) | Value::Tuple(list) => Ok(list.items.len()),
            Value::Dict(dict) => Ok(dict.entries.len()),
            Value::View(view) => Ok(view.dict.entries.len()),
            Value::Range(range) => Ok(range.len()),
            Value::Loop(state) => Ok(state.len()),
            other => fail(format!("object of type '{}' has no len()", other.type_name())),
        }
    }

    /// The items, and why there are no more: for what may stop before it has seen all.
    pub fn iterate_lazily(&self) -> Res<(Vec<Value>, Option<Box<Error>>)> {
        let failure = match self {
            Value::Iter(iter) => iter.failure.take(),
            _ => None,
        };
        Ok((self.iterate()?, failure))
    }

    /// The items that iterating gives; an iterator is used up.
    pub fn iterate(&self) -> Res<Vec<Value>> {
        let items = match self {
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) => {
                charge_work(text.text.len().saturating_mul(size_of::<Value>()))?;
                let one = |c: char| Value::str_like(&*c.encode_utf8(&mut [0; 4]), text);
                text.text.chars().map(one).collect()
            }
            Value::List(list) | Value::Tuple(list) => {
                charge_work(list.items.len().saturating_mul(size_of::<Value>()))?;
                list.items.clone()
            }
            Value::Dict(dict) => {
                charge_work(dict.entries.len().saturating_mul(size_of::<Value>()))?;
                dict.entries.iter().map(|(key, _)| key.clone()).collect()
            }
            Value::View(view) => view.iterate()?,
            Value::Range(range) => {
                let len = range.len();
                charge_work(len.saturating_mul(size_of::<Value>()))?;
                (0..len).map(|i| Value::Int(range.at(i))).collect()
            }
            Value::Iter(iter) => {
                let items = std::mem::take(&mut *iter.items.borrow_mut()).collect();
                if let Some(failure) = iter.failure.take() {
                    return Err(failure);
                }
                items
            }
            Value::Loop(state) => state.rest()?,
            other => return fail(format!("'{}' object is not iterable", other.type_name())),
        };
        charge_work(items.len())?;
        Ok(items)
    }

    pub fn is_iterable(&self) -> bool {
        matches!(
            self,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::View(_)
                | Value::Range(_)
                | Value::Iter(_)
                | Value::Loop(_)
        )
    }

    pub fn is_callable(&self) -> bool {
        matches!(self, Value::Func(_) | Value::Method(_) | Value::Macro(_) | Value::Joiner(_))
            || matches!(self, Value::Loop(_) | Value::Undefined(_))
    }

    fn depth(&self) -> u32 {
        match self {
            Value::List(list) | Value::Tuple(list) => list.depth,
            Value::Dict(dict) => dict.depth,
            Value::View(view) => view.dict.depth,
            Value::Iter(iter) => iter.depth,
            Value::Cycler(cycler) => cycler.depth,
            Value::Method(method) => method.object.depth() + 1,
            Value::Joiner(joiner) => joiner.depth,
            Value::Loop(state) => state.depth,
            _ => 0,
        }
    }

    /// The key of a dict or set.
    pub fn key(&self) -> Res<Key> {
        fn object<T: ?Sized>(rc: &Rc<T>) -> Key {
            Key::Object(Rc::as_ptr(rc).cast::<()>() as usize)
        }
        Ok(match self {
            Value::None => Key::None,
            Value::Bool(value) => Key::Int(i64::from(*value)),
            Value::Int(value) => Key::Int(*value),
            Value::Big(value) => Key::Big((**value).clone()),
            Value::Float(value) => float_key(*value),
            Value::Str(text) => {
                charge_read(text.text.len())?;
                Key::Str(Rc::clone(&text.text))
            }
            Value::Tuple(list) => {
                charge_work(list.items.len())?;
                Key::Tuple(list.items.iter().map(Value::key).collect::<Res<_>>()?)
            }
            Value::Undefined(_) => Key::Object(0),
            Value::Func(func) => Key::Object(1 + *func as usize),
            Value::Macro(rc) => object(rc),
            Value::Namespace(rc) => object(rc),
            Value::Range(rc) => object(rc),
            Value::Iter(rc) => object(rc),
            Value::Method(rc) => object(rc),
            Value::Loop(rc) => object(rc),
            Value::Cycler(rc) => object(rc),
            Value::Joiner(rc) => object(rc),
            other => return fail(format!("unhashable type: '{}'", other.type_name())),
        })
    }
}

fn float_key(value: f64) -> Key {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Key::Int(value as i64);
    }
    Key::Float(value.to_bits())
}

/// One level more than the deepest of the items, where that is allowed.
pub fn depth_of<'a>(items: impl Iterator<Item = &'a Value>) -> Res<u32> {
    let depth = items.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > MAX_DEPTH {
        return limit(format!("values nest deeper than {MAX_DEPTH} levels"));
    }
    Ok(depth)
}

impl List {
    pub fn plain(items: Vec<Value>) -> Res<List> {
        List::new(items, false)
    }

    fn new(items: Vec<Value>, is_group: bool) -> Res<List> {
        charge_work(items.len())?;
        let depth = depth_of(items.iter())?;
        Ok(List { items, depth, is_group })
    }
}

/// Below this many entries a dict is searched from the front.
const INDEX_FROM: usize = 8;

impl Dict {
    /// When keys are equal, the last value stands at the first place, as in Python.
    pub fn new(pairs: Vec<(Value, Value)>) -> Res<Dict> {
        // Entries and an index of the keys: about 128 bytes a pair.
        charge_work(pairs.len().saturating_mul(128))?;
        let depth = depth_of(pairs.iter().flat_map(|(key, value)| [key, value]))?;
        let mut index: HashMap<Key, usize> = HashMap::with_capacity(pairs.len());
        let mut entries: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            match index.entry(key.key()?) {
                std::collections::hash_map::Entry::Occupied(at) => entries[*at.get()].1 = value,
                std::collections::hash_map::Entry::Vacant(slot) => {
                    slot.insert(entries.len());
                    entries.push((key, value));
                }
            }
        }
        if entries.len() < INDEX_FROM {
            index = HashMap::new();
        }
        Ok(Dict { entries, index, depth })
    }

    pub fn get_str(&self, name: &str) -> Res<Option<&Value>> {
        charge_read(name.len().saturating_mul(INDEX_FROM))?;
        if self.index.is_empty() {
            let is_it = |key: &Value| key.as_str() == Some(name);
            return Ok(self.entries.iter().find(|(key, _)| is_it(key)).map(|(_, value)| value));
        }
        Ok(self.index.get(&Key::Str(name.into())).map(|at| &self.entries[*at].1))
    }

    pub fn get(&self, key: &Value) -> Res<Option<&Value>> {
        if let Some(name) = key.as_str() {
            return self.get_str(name);
        }
        let wanted = key.key()?;
        if !self.index.is_empty() {
            return Ok(self.index.get(&wanted).map(|at| &self.entries[*at].1));
        }
        for (key, value) in &self.entries {
            if key.key()? == wanted {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

impl Range {
    pub fn len(&self) -> usize {
        let (start, stop, step) =
            (i128::from(self.start), i128::from(self.stop), i128::from(self.step));
        let span = if step > 0 { stop - start + step - 1 } else { start - stop - step - 1 };
        usize::try_from((span / step.abs()).max(0)).unwrap_or(usize::MAX)
    }

    pub fn at(&self, i: usize) -> i64 {
        self.start.wrapping_add(self.step.wrapping_mul(i as i64))
    }
}

impl View {
    pub fn iterate(&self) -> Res<Vec<Value>> {
        charge_work(self.dict.entries.len().saturating_mul(size_of::<Value>()))?;
        let entries = self.dict.entries.iter();
        Ok(match self.kind {
            ViewKind::Keys => entries.map(|(key, _)| key.clone()).collect(),
            ViewKind::Values => entries.map(|(_, value)| value.clone()).collect(),
            ViewKind::Items => entries
                .map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()]))
                .collect::<Res<_>>()?,
        })
    }
}

impl Namespace {
    /// Charges for what a walk over all variables reads, the name of each included.
    fn charge_walk(&self, name: &str) -> Res<()> {
        let bytes = size_of::<(Rc<str>, Value)>().saturating_add(name.len());
        charge_read(self.vars.borrow().len().saturating_mul(bytes))
    }

    pub fn get(&self, name: &str) -> Res<Option<Value>> {
        self.charge_walk(name)?;
        let vars = self.vars.borrow();
        Ok(vars.iter().find(|(have, _)| &**have == name).map(|(_, value)| value.clone()))
    }

    pub fn set(&self, name: &str, value: Value) -> Res<()> {
        self.charge_walk(name)?;
        charge_read(name.len())?;
        let mut vars = self.vars.borrow_mut();
        match vars.iter_mut().find(|(have, _)| &**have == name) {
            Some((_, old)) => *old = value,
            None => vars.push((name.into(), value)),
        }
        Ok(())
    }
}
