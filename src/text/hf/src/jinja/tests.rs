//! jinja2's tests.

use super::ast::CmpOp;
use super::call::Args;
use super::error::{charge, fail, Error, Kind, Res};
use super::filters;
use super::interp::Interp;
use super::ops;
use super::repr;
use super::value::Value;

pub const NAMES: &[&str] = &[
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

fn comparison(name: &str) -> Option<CmpOp> {
    Some(match name {
        "==" | "eq" | "equalto" => CmpOp::Eq,
        "!=" | "ne" => CmpOp::Ne,
        ">" | "gt" | "greaterthan" => CmpOp::Gt,
        ">=" | "ge" => CmpOp::Ge,
        "<" | "lt" | "lessthan" => CmpOp::Lt,
        "<=" | "le" => CmpOp::Le,
        "in" => CmpOp::In,
        _ => return None,
    })
}

/// `value is name(args)`
pub fn check(_interp: &mut Interp, name: &str, value: &Value, args: Args) -> Res<bool> {
    charge(1)?;
    let Some(name) = NAMES.iter().find(|have| **have == name) else {
        return Err(Error::boxed(Kind::Value, format!("No test named '{name}'.")));
    };
    if let Some(op) = comparison(name) {
        let bound = args.bind(name, &["other"])?;
        return match bound.get(0) {
            Some(other) => ops::compare(op, value, other),
            None => fail(format!("test '{name}' expected 2 arguments, got 1")),
        };
    }
    match *name {
        "divisibleby" => {
            let bound = args.bind(name, &["num"])?;
            let Some(by) = bound.get(0) else { return fail("divisibleby takes a number") };
            is_multiple(value, by)
        }
        "sameas" => {
            let bound = args.bind(name, &["other"])?;
            let Some(other) = bound.get(0) else { return fail("sameas takes a value") };
            ops::same_object(value, other)
        }
        _ => {
            args.bind(name, &[])?;
            plain(name, value)
        }
    }
}

fn is_multiple(value: &Value, by: &Value) -> Res<bool> {
    let rest = ops::binary(super::ast::BinOp::Mod, value, by)?;
    ops::equal(&rest, &Value::Int(0))
}

fn plain(name: &str, value: &Value) -> Res<bool> {
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_) | Value::Big(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => ops::number(value).is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
                | Value::Undefined(_)
        ),
        "iterable" => value.is_iterable(),
        "callable" => value.is_callable(),
        "escaped" => matches!(value, Value::Str(text) if text.safe),
        "odd" => !is_multiple(value, &Value::Int(2))?,
        "even" => is_multiple(value, &Value::Int(2))?,
        "lower" | "upper" => {
            let text = repr::str(value)?;
            let (has, other): (fn(char) -> bool, fn(char) -> bool) = match name {
                "lower" => (char::is_lowercase, char::is_uppercase),
                _ => (char::is_uppercase, char::is_lowercase),
            };
            let is_title = text.chars().any(super::unicode::is_title);
            text.chars().any(has) && !text.chars().any(other) && !is_title
        }
        "filter" => matches!(value, Value::Str(text) if filters::NAMES.contains(&&*text.text)),
        "test" => matches!(value, Value::Str(text) if NAMES.contains(&&*text.text)),
        _ => return fail(format!("No test named '{name}'.")),
    })
}
