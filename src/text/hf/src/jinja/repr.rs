//! Python's str() and repr(), and json.dumps.

use std::fmt::Write;

use num_bigint::BigInt;

use super::error::{charge, charge_work, fail, limit, need_room, Res};
use super::unicode;
use super::value::{Func, Value, ViewKind};

/// Levels of one printed value; namespaces can hold themselves.
const MAX_LEVELS: u32 = 1000;

/// A byte becomes "\x01" at most, in a buffer that doubles.
const MAX_GROWTH: usize = 8;

pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

pub fn big(value: &BigInt) -> Res<String> {
    // CPython's limit of 4300 digits lets so many bits through.
    if value.bits() > 14_285 {
        return fail("Exceeds the limit (4300 digits) for integer string conversion");
    }
    charge_work(value.bits() as usize)?;
    Ok(value.to_string())
}

/// str(value) appended to `out`.
pub fn push_str(value: &Value, out: &mut String) -> Res<()> {
    match value {
        Value::Str(text) => {
            charge_work(text.text.len())?;
            out.push_str(&text.text);
            Ok(())
        }
        Value::Undefined(_) => Ok(()),
        other => push_repr(other, 0, out),
    }
}

pub fn str(value: &Value) -> Res<String> {
    let mut out = String::new();
    push_str(value, &mut out)?;
    Ok(out)
}

pub fn repr(value: &Value) -> Res<String> {
    let mut out = String::new();
    push_repr(value, 0, &mut out)?;
    Ok(out)
}

/// U+FDD0..U+FDEF: EncodeChat puts them into texts and takes them out of the prompt again, so no
/// printed form may spell them.
pub fn is_guard(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

pub fn push_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if unicode::is_printable(c) || is_guard(c) => out.push(c),
            c => push_escape(c, out),
        }
    }
    out.push(quote);
}

/// A character as repr and ascii write one that cannot be printed.
pub fn push_escape(c: char, out: &mut String) {
    if is_guard(c) {
        out.push(c);
        return;
    }
    let code = u32::from(c);
    let _ = match code {
        0..=0xff => write!(out, "\\x{code:02x}"),
        0x100..=0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

fn push_items(items: &[Value], level: u32, out: &mut String) -> Res<()> {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        push_repr(item, level + 1, out)?;
    }
    Ok(())
}

fn push_dict(entries: &[(Value, Value)], level: u32, out: &mut String) -> Res<()> {
    out.push('{');
    for (i, (key, value)) in entries.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        push_repr(key, level + 1, out)?;
        out.push_str(": ");
        push_repr(value, level + 1, out)?;
    }
    out.push('}');
    Ok(())
}

fn push_repr(value: &Value, level: u32, out: &mut String) -> Res<()> {
    charge(1)?;
    need_room(out.len())?;
    if level > MAX_LEVELS {
        return limit(format!("a printed value nests deeper than {MAX_LEVELS} levels"));
    }
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(value) => {
            let _ = write!(out, "{value}");
        }
        Value::Big(value) => out.push_str(&big(value)?),
        Value::Float(value) => out.push_str(&float(*value)),
        Value::Str(text) => {
            charge_work(text.text.len())?;
            need_room(text.text.len().saturating_mul(MAX_GROWTH))?;
            out.push_str(if text.safe { "Markup(" } else { "" });
            push_quoted(&text.text, out);
            out.push_str(if text.safe { ")" } else { "" });
        }
        Value::List(list) => {
            out.push('[');
            push_items(&list.items, level, out)?;
            out.push(']');
        }
        Value::Tuple(list) => {
            out.push('(');
            push_items(&list.items, level, out)?;
            out.push_str(if list.items.len() == 1 { ",)" } else { ")" });
        }
        Value::Dict(dict) => push_dict(&dict.entries, level, out)?,
        Value::View(view) => {
            out.push_str(match view.kind {
                ViewKind::Keys => "dict_keys([",
                ViewKind::Values => "dict_values([",
                ViewKind::Items => "dict_items([",
            });
            push_items(&view.iterate()?, level, out)?;
            out.push_str("])");
        }
        Value::Range(range) => {
            let _ = match range.step {
                1 => write!(out, "range({}, {})", range.start, range.stop),
                step => write!(out, "range({}, {}, {step})", range.start, range.stop),
            };
        }
        Value::Namespace(namespace) => {
            out.push_str("<Namespace ");
            let vars = namespace.vars.borrow();
            charge_work(vars.len().saturating_mul(size_of::<(Value, Value)>()))?;
            let entries: Vec<(Value, Value)> = vars
                .iter()
                .map(|(name, value)| (Value::str(name.clone()), value.clone()))
                .collect();
            push_dict(&entries, level, out)?;
            out.push('>');
        }
        Value::Loop(state) => out.push_str(&state.describe()),
        Value::Macro(def) => {
            out.push_str("<Macro ");
            match &def.def.name {
                Some(name) => push_quoted(name, out),
                None => out.push_str("anonymous"),
            }
            out.push('>');
        }
        // Python prints an address here.
        Value::Func(Func::Range) => out.push_str("<function safe_range>"),
        other => {
            return fail(format!(
                "a {} is printed, whose text in Python is an address",
                other.type_name()
            ))
        }
    }
    Ok(())
}
