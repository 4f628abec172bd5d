//! Filters of sequences and dicts.

use std::collections::HashSet;

use super::ast::BinOp;
use super::attr;
use super::call::{text_of, Args};
use super::error::{charge, charge_read, charge_work, fail, need_room, Res};
use super::filters;
use super::interp::Interp;
use super::ops;
use super::repr;
use super::sorting::sorted_places;
use super::tests;
use super::unicode;
use super::value::{Text, Value};

pub fn apply(interp: &mut Interp, name: &'static str, value: Value, args: Args) -> Res<Value> {
    match name {
        "first" => {
            args.bind(name, &[])?;
            first(&value)
        }
        "last" => {
            args.bind(name, &[])?;
            last(&value)
        }
        "list" => {
            args.bind(name, &[])?;
            Value::list(value.iterate()?)
        }
        "reverse" => {
            args.bind(name, &[])?;
            reverse(&value)
        }
        "items" => {
            args.bind(name, &[])?;
            match &value {
                Value::Undefined(_) => Value::iter(Vec::new(), "generator"),
                Value::Dict(dict) => {
                    let pair = |(key, value): &(Value, Value)| {
                        Value::tuple(vec![key.clone(), value.clone()])
                    };
                    let items = dict.entries.iter().map(pair).collect::<Res<_>>()?;
                    Value::iter(items, "generator")
                }
                _ => fail("Can only get item pairs from a mapping."),
            }
        }
        "join" => join(value, args),
        "batch" | "slice" => chunks(name, value, args),
        "dictsort" => dict_sort(&value, args),
        "sort" | "unique" | "min" | "max" | "groupby" | "sum" => keyed(name, value, args),
        "map" => map(interp, value, args),
        _ => select(interp, name, value, args),
    }
}

fn first(value: &Value) -> Res<Value> {
    let item = match value {
        Value::List(list) | Value::Tuple(list) => list.items.first().cloned(),
        Value::Iter(iter) => {
            let item = iter.items.borrow_mut().next();
            match (item, iter.failure.take()) {
                (None, Some(failure)) => return Err(failure),
                (item, failure) => {
                    iter.failure.replace(failure);
                    item
                }
            }
        }
        Value::Str(text) => {
            let first = text.text.chars().next();
            first.map(|c| Value::str_like(&*c.encode_utf8(&mut [0; 4]), text))
        }
        other => other.iterate()?.into_iter().next(),
    };
    Ok(item.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
}

fn last(value: &Value) -> Res<Value> {
    let item = match value {
        Value::List(list) | Value::Tuple(list) => list.items.last().cloned(),
        Value::Iter(_) | Value::Loop(_) => {
            return fail(format!("'{}' object is not reversible", value.type_name()))
        }
        Value::Undefined(why) => return ops::undefined(why),
        other => other.iterate()?.pop(),
    };
    Ok(item.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
}

fn reverse(value: &Value) -> Res<Value> {
    if let Value::Str(text) = value {
        charge_work(text.text.len())?;
        return Ok(Value::str_like(text.text.chars().rev().collect::<String>(), text));
    }
    let mut items = value.iterate()?;
    items.reverse();
    match value {
        Value::List(_) => Value::iter(items, "list_reverseiterator"),
        Value::Tuple(_) => Value::iter(items, "reversed"),
        Value::Range(_) => Value::iter(items, "range_iterator"),
        Value::Dict(_) => Value::iter(items, "dict_reversekeyiterator"),
        Value::View(_) => Value::iter(items, "dict_reverseitemiterator"),
        _ => Value::list(items),
    }
}

/// Charges for cutting the name of an attribute into values.
fn charge_attribute(text: &Text) -> Res<()> {
    need_room(text.text.len().saturating_mul(size_of::<Value>() * 2))?;
    charge_read(text.text.len().saturating_mul(size_of::<Value>()))
}

/// The parts of "a.0.b": digits are places.
fn path_of(attribute: &Value) -> Res<Vec<Value>> {
    let Value::Str(text) = attribute else { return Ok(vec![attribute.clone()]) };
    charge_attribute(text)?;
    let part = |part: &str| {
        let is_place = !part.is_empty() && part.chars().all(unicode::is_digit);
        match part.parse::<i64>().ok().filter(|_| is_place) {
            Some(place) => Value::Int(place),
            None => Value::str(part),
        }
    };
    Ok(text.text.split('.').map(part).collect())
}

/// Reads the attribute of each item that a filter names.
struct Getter {
    /// Empty: the item itself.
    path: Vec<Value>,
    default: Option<Value>,
    ignore_case: bool,
}

impl Getter {
    fn new(attribute: Option<&Value>, default: Option<Value>, ignore_case: bool) -> Res<Getter> {
        let path = attribute.map_or_else(|| Ok(Vec::new()), path_of)?;
        Ok(Getter { path, default, ignore_case })
    }

    fn get(&self, item: &Value) -> Res<Value> {
        charge(1)?;
        let mut value = item.clone();
        for part in &self.path {
            charge(1)?;
            value = attr::get_item(&value, part)?;
            // A default goes on down the path, as in jinja2.
            if let (Some(default), true) = (&self.default, value.is_undefined()) {
                value = default.clone();
            }
        }
        if self.ignore_case {
            return without_case(value);
        }
        Ok(value)
    }
}

fn without_case(value: Value) -> Res<Value> {
    match &value {
        Value::Str(text) => {
            charge_work(text.text.len().saturating_mul(2))?;
            Ok(Value::str_like(text.text.to_lowercase(), text))
        }
        _ => Ok(value),
    }
}

fn join(value: Value, args: Args) -> Res<Value> {
    let bound = args.bind("join", &["d", "attribute"])?;
    let separator = bound.get(0).map_or(Ok(String::new()), repr::str)?;
    let getter = Getter::new(bound.given(1), None, false)?;
    let mut out = String::new();
    for (i, item) in value.iterate()?.iter().enumerate() {
        charge_work(separator.len() + out.len() / 64)?;
        if i > 0 {
            out.push_str(&separator);
        }
        repr::push_str(&getter.get(item)?, &mut out)?;
    }
    Ok(Value::str(out))
}

fn chunks(name: &'static str, value: Value, args: Args) -> Res<Value> {
    let mut bound = args.bind(name, &["count", "fill_with"])?;
    let count = ops::small(&bound.take(0)?)?;
    let fill = bound.given(1).cloned();
    let items = value.iterate()?;
    let mut out = Vec::new();
    if name == "batch" {
        let mut chunk: Vec<Value> = Vec::new();
        for item in items {
            if chunk.len() as i64 == count {
                out.push(Value::list(std::mem::take(&mut chunk))?);
            }
            chunk.push(item);
        }
        if let (false, Some(fill)) = (chunk.is_empty(), fill) {
            let missing = usize::try_from(count - chunk.len() as i64).unwrap_or(0);
            charge_work(missing.saturating_mul(size_of::<Value>()))?;
            chunk.resize(chunk.len() + missing, fill);
        }
        if !chunk.is_empty() {
            out.push(Value::list(chunk)?);
        }
        return Value::iter(out, "generator");
    }
    if count == 0 {
        return fail("integer division or modulo by zero");
    }
    let count = usize::try_from(count).unwrap_or(0);
    charge_work(count.saturating_mul(64))?;
    let (each, extra) = (items.len() / count.max(1), items.len() % count.max(1));
    let mut begin = 0;
    for i in 0..count {
        let end = begin + each + usize::from(i < extra);
        let mut part = items[begin..end].to_vec();
        if let (Some(fill), true) = (&fill, i >= extra) {
            part.push(fill.clone());
        }
        out.push(Value::list(part)?);
        begin = end;
    }
    Value::iter(out, "generator")
}

fn dict_sort(value: &Value, args: Args) -> Res<Value> {
    let bound = args.bind("dictsort", &["case_sensitive", "by", "reverse"])?;
    let by_value = match bound.text(1)?.unwrap_or("key") {
        "key" => false,
        "value" => true,
        _ => return fail("You can only sort by either \"key\" or \"value\""),
    };
    let Value::Dict(dict) = value else {
        if let Value::Undefined(why) = value {
            return ops::undefined(why);
        }
        return fail(format!("'{}' object has no attribute 'items'", value.type_name()));
    };
    let keep_case = bound.is_true(0, false);
    let keys = dict.entries.iter().map(|(key, value)| {
        let key = if by_value { value.clone() } else { key.clone() };
        if keep_case {
            Ok(key)
        } else {
            without_case(key)
        }
    });
    charge_work(dict.entries.len().saturating_mul(size_of::<Value>()))?;
    let places = sorted_places(keys.collect::<Res<_>>()?, bound.is_true(2, false))?;
    let pair = |at: usize| {
        let (key, value) = &dict.entries[at];
        Value::tuple(vec![key.clone(), value.clone()])
    };
    Value::list(places.into_iter().map(pair).collect::<Res<_>>()?)
}

/// sort, unique, min, max, groupby and sum.
fn keyed(name: &'static str, value: Value, args: Args) -> Res<Value> {
    match name {
        "sort" => {
            let bound = args.bind(name, &["reverse", "case_sensitive", "attribute"])?;
            let items = value.iterate()?;
            let keys = sort_keys(&items, bound.given(2), !bound.is_true(1, false))?;
            let places = sorted_places(keys, bound.is_true(0, false))?;
            Value::list(places.into_iter().map(|at| items[at].clone()).collect())
        }
        "unique" => {
            let bound = args.bind(name, &["case_sensitive", "attribute"])?;
            let getter = Getter::new(bound.given(1), None, !bound.is_true(0, false))?;
            let mut seen = HashSet::new();
            let mut out = Vec::new();
            for item in value.iterate()? {
                if seen.insert(getter.get(&item)?.key()?) {
                    out.push(item);
                }
            }
            Value::iter(out, "generator")
        }
        "min" | "max" => {
            let bound = args.bind(name, &["case_sensitive", "attribute"])?;
            let getter = Getter::new(bound.given(1), None, !bound.is_true(0, false))?;
            extreme(&value.iterate()?, &getter, name == "max")
        }
        "groupby" => {
            let bound = args.bind(name, &["attribute", "default", "case_sensitive"])?;
            group_by(&value.iterate()?, &bound)
        }
        _ => {
            let bound = args.bind(name, &["attribute", "start"])?;
            let getter = Getter::new(bound.given(0), None, false)?;
            let mut total = bound.get(1).cloned().unwrap_or(Value::Int(0));
            if let Value::Str(_) = total {
                return fail("sum() can't sum strings [use ''.join(seq) instead]");
            }
            for item in value.iterate()? {
                total = ops::binary(BinOp::Add, &total, &getter.get(&item)?)?;
            }
            Ok(total)
        }
    }
}

/// The keys of sorted(): lists, because several attributes may be named.
fn sort_keys(items: &[Value], attribute: Option<&Value>, ignore_case: bool) -> Res<Vec<Value>> {
    let names: Vec<Option<Value>> = match attribute {
        None => vec![None],
        Some(Value::Str(text)) => {
            charge_attribute(text)?;
            text.text.split(',').map(|name| Some(Value::str(name))).collect()
        }
        Some(other) => vec![Some(other.clone())],
    };
    let getters = names
        .iter()
        .map(|name| Getter::new(name.as_ref(), None, ignore_case))
        .collect::<Res<Vec<_>>>()?;
    let key = |item: &Value| {
        Value::list(getters.iter().map(|getter| getter.get(item)).collect::<Res<_>>()?)
    };
    items.iter().map(key).collect()
}

fn extreme(items: &[Value], getter: &Getter, is_max: bool) -> Res<Value> {
    let Some(first) = items.first() else {
        return Ok(Value::undefined("No aggregated item, sequence was empty."));
    };
    let (mut best, mut best_key) = (first, getter.get(first)?);
    for item in &items[1..] {
        let key = getter.get(item)?;
        let order = ops::order(&key, &best_key, if is_max { ">" } else { "<" })?;
        let wanted = if is_max { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less };
        if order == Some(wanted) {
            (best, best_key) = (item, key);
        }
    }
    Ok(best.clone())
}

fn group_by(items: &[Value], bound: &super::call::Bound) -> Res<Value> {
    let Some(attribute) = bound.get(0) else {
        return fail("groupby() missing 1 required positional argument: 'attribute'");
    };
    let keep_case = bound.is_true(2, false);
    let default = bound.given(1).cloned();
    let getter = Getter::new(Some(attribute), default.clone(), !keep_case)?;
    let real = Getter::new(Some(attribute), default, false)?;
    let keys = items.iter().map(|item| getter.get(item)).collect::<Res<Vec<_>>>()?;
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    charge_work(keys.len().saturating_mul(size_of::<Value>()))?;
    for at in sorted_places(keys.clone(), false)? {
        match groups.last_mut() {
            Some((key, _, group)) if ops::equal(key, &keys[at])? => group.push(items[at].clone()),
            _ => {
                let shown = real.get(&items[at])?;
                groups.push((keys[at].clone(), shown, vec![items[at].clone()]));
            }
        }
    }
    let pair = |(_, shown, group)| Value::group(shown, group);
    Value::list(groups.into_iter().map(pair).collect::<Res<_>>()?)
}

/// The items for which `of` gives a value, until it fails.
fn lazily(value: &Value, mut of: impl FnMut(Value) -> Res<Option<Value>>) -> Res<Value> {
    let (items, mut failure) = value.iterate_lazily()?;
    let mut out = Vec::new();
    for item in items {
        match of(item) {
            Ok(made) => out.extend(made),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    Value::iter_until(out, failure, "generator")
}

fn map(interp: &mut Interp, value: Value, mut args: Args) -> Res<Value> {
    if !value.is_true() {
        return Value::iter(Vec::new(), "generator");
    }
    if args.positional.is_empty() {
        let bound = args.bind("map", &["attribute", "default"])?;
        let Some(attribute) = bound.get(0) else { return fail("map requires a filter argument") };
        let getter = Getter::new(Some(attribute), bound.given(1).cloned(), false)?;
        return lazily(&value, |item| getter.get(&item).map(Some));
    }
    let name = args.positional.remove(0);
    let name = text_of(&name, "map")?;
    lazily(&value, |item| filters::apply(interp, name, item, args.copy()?).map(Some))
}

fn select(interp: &mut Interp, name: &'static str, value: Value, mut args: Args) -> Res<Value> {
    if !value.is_true() {
        return Value::iter(Vec::new(), "generator");
    }
    let getter = if name.ends_with("attr") {
        if args.positional.is_empty() {
            return fail("Missing parameter for attribute name");
        }
        Some(Getter::new(Some(&args.positional.remove(0)), None, false)?)
    } else {
        None
    };
    let test = if args.positional.is_empty() { None } else { Some(args.positional.remove(0)) };
    let wanted = name.starts_with("select");
    lazily(&value, |item| {
        let tested = match &getter {
            Some(getter) => getter.get(&item)?,
            None => item.clone(),
        };
        let holds = match &test {
            None => tested.is_true(),
            Some(test) => tests::check(interp, text_of(test, name)?, &tested, args.copy()?)?,
        };
        Ok((holds == wanted).then_some(item))
    })
}
