//! jinja2's filters; filters_seq.rs has those of sequences, filters_text.rs those of texts.

use num_bigint::BigInt;
use num_traits::{FromPrimitive, Signed, Zero};

use super::attr;
use super::call::{Args, Bound};
use super::error::{charge, fail, Error, Kind, Res};
use super::filters_seq;
use super::filters_text;
use super::interp::Interp;
use super::json::Layout;
use super::numbers;
use super::ops::{self, float_of, undefined, Number};
use super::value::Value;

/// Filters that a template may name. Not here: pprint, random and urlize, which a chat has no use
/// for; a template that names them is refused when it is loaded.
pub const NAMES: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// Filters of jinja2 that are left out.
pub const LEFT_OUT: &[&str] = &["pprint", "random", "urlize"];

/// `value | name(args)`
pub fn apply(interp: &mut Interp, name: &str, value: Value, args: Args) -> Res<Value> {
    charge(1)?;
    let Some(name) = NAMES.iter().find(|have| **have == name) else {
        return Err(Error::boxed(Kind::Value, format!("No filter named '{name}'.")));
    };
    match *name {
        "abs" => absolute(args.bind("abs", &[])?, &value),
        "attr" => {
            let mut bound = args.bind("attr", &["name"])?;
            attr::own_attr(&value, super::call::text_of(&bound.take(0)?, "attr")?)
        }
        "count" | "length" => {
            args.bind("length", &[])?;
            Ok(Value::Int(value.len()? as i64))
        }
        "d" | "default" => {
            let mut bound = args.bind("default", &["default_value", "boolean"])?;
            let is_missing = value.is_undefined() || (bound.is_true(1, false) && !value.is_true());
            if !is_missing {
                return Ok(value);
            }
            Ok(bound.take(0).unwrap_or_else(|_| Value::str("")))
        }
        "float" => {
            let mut bound = args.bind("float", &["default"])?;
            let default = bound.take(0).unwrap_or(Value::Float(0.0));
            numbers::to_float(&value, default)
        }
        "int" => {
            let mut bound = args.bind("int", &["default", "base"])?;
            let base = bound.integer(1, 10)?;
            let default = bound.take(0).unwrap_or(Value::Int(0));
            numbers::to_int(&value, default, base)
        }
        "round" => {
            let bound = args.bind("round", &["precision", "method"])?;
            let method = bound.text(1)?.unwrap_or("common").to_string();
            round(&value, bound.integer(0, 0)?, &method)
        }
        "tojson" => to_json(
            &value,
            args.bind("tojson", &["ensure_ascii", "indent", "separators", "sort_keys"])?,
        ),
        "filesizeformat" => {
            let bound = args.bind("filesizeformat", &["binary"])?;
            filters_text::file_size(&value, bound.is_true(0, false))
        }
        "batch" | "dictsort" | "first" | "groupby" | "items" | "join" | "last" | "list" | "map"
        | "max" | "min" | "reject" | "rejectattr" | "reverse" | "select" | "selectattr"
        | "slice" | "sort" | "sum" | "unique" => filters_seq::apply(interp, name, value, args),
        _ => filters_text::apply(name, value, args),
    }
}

fn absolute(_bound: Bound, value: &Value) -> Res<Value> {
    match ops::number(value) {
        Some(Number::Int(number)) => Ok(Value::big(number.abs())),
        Some(Number::Float(number)) => Ok(Value::Float(number.abs())),
        None => match value {
            Value::Undefined(why) => undefined(why),
            other => fail(format!("bad operand type for abs(): '{}'", other.type_name())),
        },
    }
}

/// Python's round(), or jinja2's ceil and floor.
fn round(value: &Value, precision: i64, method: &str) -> Res<Value> {
    if !matches!(method, "common" | "ceil" | "floor") {
        return fail("method must be common, ceil or floor");
    }
    let number = match (ops::number(value), value) {
        (Some(number), _) => number,
        (None, Value::Undefined(why)) => return undefined(why),
        (None, other) => {
            return fail(format!("type {} doesn't define __round__ method", other.type_name()))
        }
    };
    if method == "common" {
        return match number {
            Number::Int(number) => round_integer(number, precision),
            Number::Float(number) => Ok(Value::Float(numbers::round_float(number, precision))),
        };
    }
    // func(value * (10**precision)) / (10**precision)
    let ten = ops::binary(super::ast::BinOp::Pow, &Value::Int(10), &Value::Int(precision))?;
    let scaled = ops::binary(super::ast::BinOp::Mul, value, &ten)?;
    let whole = match ops::number(&scaled) {
        Some(Number::Float(number)) => {
            let number = if method == "ceil" { number.ceil() } else { number.floor() };
            match BigInt::from_f64(number) {
                Some(number) => Value::big(number),
                None => return fail("cannot convert float to integer"),
            }
        }
        _ => scaled,
    };
    ops::binary(super::ast::BinOp::Div, &whole, &ten)
}

fn round_integer(number: BigInt, precision: i64) -> Res<Value> {
    if precision >= 0 {
        return Ok(Value::big(number));
    }
    let Some(exponent) = u32::try_from(-precision).ok().filter(|e| *e < 5000) else {
        return Ok(Value::Int(0));
    };
    let unit = BigInt::from(10).pow(exponent);
    let rest: BigInt = num_integer::Integer::mod_floor(&number, &unit);
    let down = &number - &rest;
    let twice: BigInt = &rest * 2;
    let is_even = num_integer::Integer::is_even(&(&down / &unit));
    let up = twice > unit || (twice == unit && !is_even);
    Ok(Value::big(if up && !rest.is_zero() { down + unit } else { down }))
}

fn to_json(value: &Value, bound: Bound) -> Res<Value> {
    let indent = match bound.given(1) {
        None => None,
        Some(Value::Str(text)) => Some(text.text.to_string()),
        Some(value) => {
            let count = usize::try_from(ops::small(value)?).unwrap_or(0);
            super::error::charge_work(count)?;
            Some(" ".repeat(count))
        }
    };
    let mut layout = Layout {
        item_separator: if indent.is_some() { "," } else { ", " }.to_string(),
        key_separator: ": ".to_string(),
        indent,
        ensure_ascii: bound.is_true(0, false),
        sort_keys: bound.is_true(3, false),
    };
    if let Some(separators) = bound.given(2) {
        let pair = separators.iterate()?;
        let [item, key] = &pair[..] else {
            return fail(format!("tojson: separators has {} items, not 2", pair.len()));
        };
        layout.item_separator = super::call::text_of(item, "separators")?.to_string();
        layout.key_separator = super::call::text_of(key, "separators")?.to_string();
    }
    let mut out = String::new();
    layout.push(value, 0, &mut out)?;
    Ok(Value::str(out))
}

/// The value of a number as a float.
pub fn as_float(value: &Value) -> Res<f64> {
    match ops::number(value) {
        Some(Number::Int(number)) => float_of(&number),
        Some(Number::Float(number)) => Ok(number),
        None => fail(format!("must be real number, not {}", value.type_name())),
    }
}
