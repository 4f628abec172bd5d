//! The things that a template can call: its macros, the functions of its environment, and methods.

use std::rc::Rc;

use num_bigint::BigInt;
use num_traits::FromPrimitive;

use super::call::{text_of, Args};
use super::error::{charge_work, fail, Error, Kind, Res};
use super::interp::{set_in_namespace, Interp};
use super::ops::{self, small, undefined};
use super::repr;
use super::strings;
use super::value::{Dict, Func, List, Method, Range, Value, View, ViewKind};
use crate::strftime::strftime;

/// The most items that jinja2's sandbox lets range() have.
const MAX_RANGE: usize = 100_000;

/// The function of that name.
pub fn global(name: &str, has_clock: bool) -> Option<Func> {
    Some(match name {
        "range" => Func::Range,
        "dict" => Func::Dict,
        "namespace" => Func::Namespace,
        "cycler" => Func::Cycler,
        "joiner" => Func::Joiner,
        "raise_exception" => Func::RaiseException,
        "strftime_now" if has_clock => Func::StrftimeNow,
        _ => return None,
    })
}

impl Interp {
    pub fn call(&mut self, callee: &Value, args: Args) -> Res<Value> {
        match callee {
            Value::Func(func) => self.function(*func, args),
            Value::Method(method) => {
                if let (Value::Loop(state), "changed") = (&method.object, method.name) {
                    if !state.remembers() {
                        self.remembers(state);
                    }
                }
                method_call(method, args)
            }
            Value::Macro(callee) => self.call_macro(callee, args),
            Value::Loop(state) => {
                let mut bound = args.bind("loop", &["iterable"])?;
                let items = bound.take(0)?.iterate()?;
                let Some((node, scope)) = &state.recurse else {
                    return fail(
                        "The loop must have the 'recursive' marker to be called recursively.",
                    );
                };
                let depth0 = state.depth0() + 1;
                let text = self.deeper(|interp| {
                    interp.capture(|interp| {
                        interp.for_loop(node, items, None, depth0, scope).map(|_| ())
                    })
                })?;
                Ok(Value::str(text))
            }
            Value::Joiner(joiner) => {
                args.bind("joiner", &[])?;
                if joiner.used.replace(true) {
                    return Ok(joiner.separator.clone());
                }
                Ok(Value::str(""))
            }
            Value::Undefined(why) => undefined(why),
            other => fail(format!("'{}' object is not callable", other.type_name())),
        }
    }

    fn function(&mut self, func: Func, args: Args) -> Res<Value> {
        match func {
            Func::Range => range(args),
            Func::Dict => Value::dict(dict_entries(args)?),
            Func::DictFromKeys => {
                let mut bound = args.bind("fromkeys", &["iterable", "value"])?;
                let keys = bound.take(0)?.iterate()?;
                let value = bound.take(1).unwrap_or(Value::None);
                Value::dict(keys.into_iter().map(|key| (key, value.clone())).collect())
            }
            Func::Namespace => {
                let namespace = self.new_namespace();
                for (key, value) in dict_entries(args)? {
                    let Some(key) = key.as_str() else {
                        return fail("a namespace's names must be strings");
                    };
                    set_in_namespace(&namespace, key, value)?;
                }
                Ok(Value::Namespace(namespace))
            }
            Func::Cycler => {
                let items = args.plain("cycler", usize::MAX)?;
                if items.is_empty() {
                    return fail("at least one item has to be provided");
                }
                Value::cycler(items)
            }
            Func::Joiner => {
                let mut bound = args.bind("joiner", &["sep"])?;
                Value::joiner(bound.take(0).unwrap_or_else(|_| Value::str(", ")))
            }
            Func::RaiseException => {
                let mut bound = args.bind("raise_exception", &["message"])?;
                Err(Error::boxed(Kind::Raised, repr::str(&bound.take(0)?)?))
            }
            Func::StrftimeNow => {
                let mut bound = args.bind("strftime_now", &["format"])?;
                let format = bound.take(0)?;
                let format = text_of(&format, "strftime_now")?;
                charge_work(format.len().saturating_mul(16))?;
                Ok(Value::str(strftime(format, self.now_unix_s.unwrap_or(0))))
            }
        }
    }
}

fn range(args: Args) -> Res<Value> {
    let given = args.plain("range", 3)?;
    let bounds = given.iter().map(small).collect::<Res<Vec<i64>>>()?;
    let (start, stop, step) = match bounds[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] => (start, stop, step),
        _ => return fail("range expected at least 1 argument, got 0"),
    };
    if step == 0 {
        return fail("range() arg 3 must not be zero");
    }
    let range = Range { start, stop, step };
    if range.len() > MAX_RANGE {
        return fail(format!(
            "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE})."
        ));
    }
    Ok(Value::Range(Rc::new(range)))
}

/// The entries of dict(*args, **kwargs).
fn dict_entries(args: Args) -> Res<Vec<(Value, Value)>> {
    let mut entries = Vec::new();
    if args.positional.len() > 1 {
        return fail(format!("dict expected at most 1 argument, got {}", args.positional.len()));
    }
    match args.positional.first() {
        None => {}
        Some(Value::Dict(dict)) => {
            charge_work(dict.entries.len().saturating_mul(size_of::<(Value, Value)>()))?;
            entries = dict.entries.clone();
        }
        Some(Value::Namespace(namespace)) => {
            let vars = namespace.vars.borrow();
            charge_work(vars.len().saturating_mul(size_of::<(Value, Value)>()))?;
            entries
                .extend(vars.iter().map(|(key, value)| (Value::str(key.clone()), value.clone())));
        }
        Some(other) => {
            for pair in other.iterate()? {
                let pair = pair.iterate()?;
                let [key, value] = &pair[..] else {
                    return fail(format!(
                        "dictionary update sequence element has length {}; 2 is required",
                        pair.len()
                    ));
                };
                entries.push((key.clone(), value.clone()));
            }
        }
    }
    entries.extend(args.keywords.into_iter().map(|(key, value)| (Value::str(&*key), value)));
    Ok(entries)
}

fn method_call(method: &Rc<Method>, args: Args) -> Res<Value> {
    let name = method.name;
    match &method.object {
        Value::Str(text) => strings::call(text, name, args),
        Value::Dict(dict) => dict_method(dict, name, args),
        Value::List(list) | Value::Tuple(list) => list_method(&method.object, list, name, args),
        Value::Range(_) => {
            let items = List::plain(method.object.iterate()?)?;
            list_method(&method.object, &items, name, args)
        }
        Value::Loop(state) => {
            let items = args.plain(name, usize::MAX)?;
            if name == "cycle" {
                state.cycle(&items)
            } else {
                state.changed(items)
            }
        }
        Value::Cycler(cycler) => {
            args.bind(name, &[])?;
            if name == "reset" {
                cycler.at.set(0);
                return Ok(Value::None);
            }
            let at = cycler.at.get();
            cycler.at.set((at + 1) % cycler.items.len());
            Ok(cycler.items[at].clone())
        }
        other => number_method(other, name, args),
    }
}

fn dict_method(dict: &Rc<Dict>, name: &'static str, args: Args) -> Res<Value> {
    let view = |kind| Ok(Value::View(Rc::new(View { dict: Rc::clone(dict), kind })));
    match name {
        "get" => {
            let mut given = args.plain(name, 2)?.into_iter();
            let Some(key) = given.next() else { return fail("get expected at least 1 argument") };
            let found = dict.get(&key)?.cloned();
            Ok(found.or_else(|| given.next()).unwrap_or(Value::None))
        }
        "items" | "keys" | "values" | "copy" => {
            args.plain(name, 0)?;
            match name {
                "items" => view(ViewKind::Items),
                "keys" => view(ViewKind::Keys),
                "values" => view(ViewKind::Values),
                _ => Ok(Value::Dict(Rc::clone(dict))),
            }
        }
        _ => {
            let mut given = args.plain(name, 2)?.into_iter();
            let Some(keys) = given.next() else { return fail("fromkeys expected 1 argument") };
            let value = given.next().unwrap_or(Value::None);
            Value::dict(keys.iterate()?.into_iter().map(|key| (key, value.clone())).collect())
        }
    }
}

fn list_method(object: &Value, list: &List, name: &'static str, args: Args) -> Res<Value> {
    let given = args.plain(name, 3)?;
    if name == "copy" {
        return Ok(object.clone());
    }
    let Some(wanted) = given.first() else {
        return fail(format!("{name} expected at least 1 argument, got 0"));
    };
    if name == "count" {
        let mut count = 0;
        for item in &list.items {
            count += i64::from(ops::equal(item, wanted)?);
        }
        return Ok(Value::Int(count));
    }
    let len = list.items.len() as i64;
    let place = |value: Option<&Value>, default: i64| -> Res<usize> {
        let at = value.map_or(Ok(default), small)?;
        let at = if at < 0 { at.saturating_add(len).max(0) } else { at.min(len) };
        Ok(at as usize)
    };
    let (begin, end) = (place(given.get(1), 0)?, place(given.get(2), len)?);
    for at in begin..end {
        if ops::equal(&list.items[at], wanted)? {
            return Ok(Value::Int(at as i64));
        }
    }
    fail(format!("{} is not in {}", repr::repr(wanted)?, object.type_name()))
}

fn number_method(object: &Value, name: &'static str, args: Args) -> Res<Value> {
    args.plain(name, 0)?;
    match (object, name) {
        (Value::Float(value), "is_integer") => Ok(Value::Bool(value.fract() == 0.0)),
        (Value::Float(_), "conjugate") => Ok(object.clone()),
        (_, "conjugate") => ops::negate(object, true),
        (_, "bit_length" | "bit_count" | "as_integer_ratio") => {
            let number = match ops::number(object) {
                Some(ops::Number::Int(number)) => number,
                Some(ops::Number::Float(number)) if number.fract() == 0.0 => {
                    BigInt::from_f64(number).unwrap_or_default()
                }
                _ => return fail(format!("{name} is not supported for this number")),
            };
            match name {
                "bit_length" => Ok(Value::Int(number.bits() as i64)),
                "bit_count" => {
                    let (_, digits) = number.to_u64_digits();
                    Ok(Value::Int(digits.iter().map(|d| i64::from(d.count_ones())).sum()))
                }
                _ => Value::tuple(vec![Value::big(number), Value::Int(1)]),
            }
        }
        _ => fail(format!("{}.{name} is not supported in chat templates", object.type_name())),
    }
}
