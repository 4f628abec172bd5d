//! Attributes and items, by the rules of the sandbox.

use std::rc::Rc;

use super::error::{charge_read, charge_work, fail, need_room, Res};
use super::ops::{slice_indices, small, undefined};
use super::repr;
use super::strings;
use super::value::{Func, Method, Value};

const DICT_METHODS: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
const DICT_MUTATORS: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const LIST_METHODS: &[&str] = &["copy", "count", "index"];
const LIST_MUTATORS: &[&str] =
    &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const TUPLE_METHODS: &[&str] = &["count", "index"];
const INT_METHODS: &[&str] =
    &["as_integer_ratio", "bit_count", "bit_length", "conjugate", "from_bytes", "to_bytes"];
const FLOAT_METHODS: &[&str] = &["as_integer_ratio", "conjugate", "fromhex", "hex", "is_integer"];
const LOOP_METHODS: &[&str] = &["changed", "cycle"];
const CYCLER_METHODS: &[&str] = &["next", "reset"];

/// The result of looking up an attribute.
enum Found {
    Value(Value),
    Method(&'static str),
    /// The sandbox hides it.
    Unsafe,
    Nothing,
}

fn method_in(lists: &[&'static [&'static str]], name: &str) -> Found {
    let found = lists.iter().flat_map(|list| list.iter()).find(|have| **have == name);
    found.map_or(Found::Nothing, |name| Found::Method(name))
}

fn has_python_attribute(name: &str) -> bool {
    name.len() > 4 && name.starts_with("__") && name.ends_with("__")
}

/// The attribute itself, without the step to an item of that name.
fn find(object: &Value, name: &str) -> Res<Found> {
    charge_read(name.len())?;
    if has_python_attribute(name) && !matches!(object, Value::Namespace(_)) {
        let known = ["class", "init", "doc", "len", "str", "repr", "eq", "hash", "dir", "new"];
        let inner = &name[2..name.len() - 2];
        if known.contains(&inner) || inner.ends_with("attr__") || inner.ends_with("item") {
            return Ok(Found::Unsafe);
        }
    }
    Ok(match object {
        Value::Str(_) => method_in(&[strings::METHODS], name),
        Value::Dict(_) if DICT_MUTATORS.contains(&name) => Found::Unsafe,
        Value::Dict(_) => method_in(&[DICT_METHODS], name),
        Value::List(_) if LIST_MUTATORS.contains(&name) => Found::Unsafe,
        Value::List(_) => method_in(&[LIST_METHODS], name),
        Value::Tuple(list) => match name {
            "grouper" if list.is_group => Found::Value(list.items[0].clone()),
            "list" if list.is_group => Found::Value(list.items[1].clone()),
            _ => method_in(&[TUPLE_METHODS], name),
        },
        Value::Bool(_) | Value::Int(_) | Value::Big(_) => match name {
            "real" | "numerator" => {
                Found::Value(super::ops::negate(object, true).unwrap_or(Value::None))
            }
            "imag" => Found::Value(Value::Int(0)),
            "denominator" => Found::Value(Value::Int(1)),
            _ => method_in(&[INT_METHODS], name),
        },
        Value::Float(value) => match name {
            "real" => Found::Value(Value::Float(*value)),
            "imag" => Found::Value(Value::Float(0.0)),
            _ => method_in(&[FLOAT_METHODS], name),
        },
        Value::Range(range) => match name {
            "start" => Found::Value(Value::Int(range.start)),
            "stop" => Found::Value(Value::Int(range.stop)),
            "step" => Found::Value(Value::Int(range.step)),
            _ => method_in(&[TUPLE_METHODS], name),
        },
        Value::Namespace(namespace) => namespace.get(name)?.map_or(Found::Nothing, Found::Value),
        Value::Loop(state) => {
            state.get(name).map_or_else(|| method_in(&[LOOP_METHODS], name), Found::Value)
        }
        Value::Cycler(cycler) => match name {
            "current" => Found::Value(cycler.items[cycler.at.get()].clone()),
            _ => method_in(&[CYCLER_METHODS], name),
        },
        Value::Macro(def) => match name {
            "name" => Found::Value(def.def.name.as_deref().map_or(Value::None, Value::str)),
            "caller" => Found::Value(Value::Bool(def.def.uses_caller)),
            "catch_kwargs" => Found::Value(Value::Bool(def.def.uses_kwargs)),
            "catch_varargs" => Found::Value(Value::Bool(def.def.uses_varargs)),
            "arguments" => {
                let names = def.def.params.iter().map(|name| Value::str(&**name)).collect();
                Value::tuple(names).map_or(Found::Nothing, Found::Value)
            }
            _ => Found::Nothing,
        },
        Value::Func(Func::Dict) if name == "fromkeys" => {
            Found::Value(Value::Func(Func::DictFromKeys))
        }
        _ => Found::Nothing,
    })
}

fn describe(object: &Value) -> String {
    match object {
        Value::None => "None".to_string(),
        Value::Namespace(_) => {
            "'transformers.utils.chat_template_utils.TemplateNamespace object'".into()
        }
        other => format!("'{} object'", other.type_name()),
    }
}

fn missing_attribute(object: &Value, name: &str) -> Res<Value> {
    // Its printed form; see repr.rs.
    need_room(name.len().saturating_mul(8))?;
    let mut message = describe(object);
    message.push_str(" has no attribute ");
    repr::push_quoted(name, &mut message);
    Ok(Value::undefined(message))
}

/// `obj[key]`; None: it has no such item (TypeError or LookupError in Python).
fn item(object: &Value, key: &Value) -> Res<Option<Value>> {
    Ok(match (object, key) {
        (Value::Undefined(why), _) => return undefined(why),
        (Value::Dict(dict), key) => {
            if matches!(key, Value::List(_) | Value::Dict(_)) {
                return Ok(None);
            }
            dict.get(key)?.cloned()
        }
        (_, Value::Undefined(_)) => None,
        (Value::Str(text), Value::Bool(_) | Value::Int(_)) => {
            charge_work(text.text.len())?;
            let len = text.text.chars().count();
            let at = place(small(key)?, len);
            let c = at.and_then(|at| match text.text.is_ascii() {
                true => text.text.as_bytes().get(at).map(|b| char::from(*b)),
                false => text.text.chars().nth(at),
            });
            c.map(|c| Value::str_like(&*c.encode_utf8(&mut [0; 4]), text))
        }
        (Value::List(list) | Value::Tuple(list), Value::Bool(_) | Value::Int(_)) => {
            place(small(key)?, list.items.len()).and_then(|at| list.items.get(at).cloned())
        }
        (Value::Range(range), Value::Bool(_) | Value::Int(_)) => {
            let at = place(small(key)?, range.len()).filter(|at| *at < range.len());
            at.map(|at| Value::Int(range.at(at)))
        }
        _ => None,
    })
}

fn place(at: i64, len: usize) -> Option<usize> {
    let at = if at < 0 { at.checked_add(len as i64)? } else { at };
    usize::try_from(at).ok()
}

/// `object[begin:end:step]`, which jinja2 leaves to Python.
pub fn cut(object: &Value, slice: &[Value; 3]) -> Res<Value> {
    match object {
        Value::Undefined(why) => undefined(why),
        Value::Str(text) => {
            charge_work(text.text.len().saturating_mul(4))?;
            if text.text.is_ascii() {
                let places = slice_indices(slice, text.text.len())?;
                let bytes = text.text.as_bytes();
                let out: String = places.iter().map(|at| char::from(bytes[*at])).collect();
                return Ok(Value::str_like(out, text));
            }
            let chars: Vec<char> = text.text.chars().collect();
            let places = slice_indices(slice, chars.len())?;
            let out: String = places.iter().map(|at| chars[*at]).collect();
            Ok(Value::str_like(out, text))
        }
        Value::Range(range) => {
            let places = slice_indices(slice, range.len())?;
            let step = range.step.saturating_mul(match &slice[2] {
                Value::None => 1,
                step => small(step)?,
            });
            let start = places.first().map_or(range.start, |at| range.at(*at));
            let stop = start.saturating_add(step.saturating_mul(places.len() as i64));
            Ok(Value::Range(Rc::new(super::value::Range { start, stop, step })))
        }
        Value::List(list) | Value::Tuple(list) => {
            charge_work(list.items.len().saturating_mul(size_of::<Value>()))?;
            let places = slice_indices(slice, list.items.len())?;
            let items = places.iter().map(|at| list.items[*at].clone()).collect();
            if matches!(object, Value::List(_)) {
                Value::list(items)
            } else {
                Value::tuple(items)
            }
        }
        other => fail(format!("'{}' object is not subscriptable", other.type_name())),
    }
}

fn of_attribute(object: &Value, name: &str, found: Found) -> Option<Value> {
    match found {
        Found::Value(value) => Some(value),
        Found::Method(name) => {
            Some(Value::Method(Rc::new(Method { object: object.clone(), name })))
        }
        Found::Unsafe => Some(Value::undefined(format!(
            "access to attribute '{name}' of '{}' object is unsafe.",
            object.type_name()
        ))),
        Found::Nothing => None,
    }
}

/// `object.name`
pub fn get_attr(object: &Value, name: &str) -> Res<Value> {
    if let Value::Undefined(why) = object {
        return undefined(why);
    }
    if let Some(value) = of_attribute(object, name, find(object, name)?) {
        return Ok(value);
    }
    if let Value::Dict(dict) = object {
        if let Some(value) = dict.get_str(name)? {
            return Ok(value.clone());
        }
    }
    missing_attribute(object, name)
}

/// `object.name` without the items.
pub fn own_attr(object: &Value, name: &str) -> Res<Value> {
    if let Value::Undefined(why) = object {
        return undefined(why);
    }
    match of_attribute(object, name, find(object, name)?) {
        Some(value) => Ok(value),
        None => missing_attribute(object, name),
    }
}

/// `object[key]`
pub fn get_item(object: &Value, key: &Value) -> Res<Value> {
    if let Some(value) = item(object, key)? {
        return Ok(value);
    }
    if let Some(name) = key.as_str() {
        if let Some(value) = of_attribute(object, name, find(object, name)?) {
            return Ok(value);
        }
        return missing_attribute(object, name);
    }
    let what = repr::repr(key)?;
    Ok(Value::undefined(format!("{} has no element {what}", describe(object))))
}
