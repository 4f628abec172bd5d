//! JSON in both directions: the variables of a rendering, and json.dumps as transformers' tojson
//! calls it.

use std::fmt::Write;
use std::rc::Rc;

use num_bigint::BigInt;

use super::error::{charge, charge_work, fail, Res};
use super::repr;
use super::value::Value;

/// A parsed document as values.
pub fn value_of(json: serde_json::Value) -> Res<Value> {
    Ok(match json {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(value) => Value::Bool(value),
        serde_json::Value::String(text) => Value::str(text),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::Int(value),
            (None, Some(value)) => Value::Big(Rc::new(BigInt::from(value))),
            _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::Array(items) => {
            Value::list(items.into_iter().map(value_of).collect::<Res<_>>()?)?
        }
        serde_json::Value::Object(members) => {
            let entry = |(key, value)| Ok((Value::str(key), value_of(value)?));
            Value::dict(members.into_iter().map(entry).collect::<Res<_>>()?)?
        }
    })
}

/// How json.dumps lays a value out.
pub struct Layout {
    /// The text of one level; None: all on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

impl Layout {
    fn new_line(&self, level: usize, out: &mut String) -> Res<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        charge_work(indent.len().saturating_mul(level))?;
        out.push('\n');
        for _ in 0..level {
            out.push_str(indent);
        }
        Ok(())
    }

    pub fn push(&self, value: &Value, level: usize, out: &mut String) -> Res<()> {
        charge(1)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Value::Int(value) => {
                let _ = write!(out, "{value}");
            }
            Value::Big(value) => out.push_str(&repr::big(value)?),
            Value::Float(value) => out.push_str(&float(*value)),
            Value::Str(text) => {
                charge_work(text.text.len())?;
                self.push_string(&text.text, out);
            }
            Value::List(list) | Value::Tuple(list) => self.push_array(&list.items, level, out)?,
            Value::Dict(dict) => self.push_object(&dict.entries, level, out)?,
            other => {
                return fail(format!(
                    "Object of type {} is not JSON serializable",
                    other.type_name()
                ))
            }
        }
        Ok(())
    }

    fn push_array(&self, items: &[Value], level: usize, out: &mut String) -> Res<()> {
        out.push('[');
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { &self.item_separator } else { "" });
            self.new_line(level + 1, out)?;
            self.push(item, level + 1, out)?;
        }
        if !items.is_empty() {
            self.new_line(level, out)?;
        }
        out.push(']');
        Ok(())
    }

    fn push_object(&self, entries: &[(Value, Value)], level: usize, out: &mut String) -> Res<()> {
        let mut sorted: Vec<&(Value, Value)> = entries.iter().collect();
        if self.sort_keys {
            let keys = entries.iter().map(|(key, _)| key.clone()).collect();
            let order = super::sorting::sorted_places(keys, false)?;
            sorted = order.into_iter().map(|i| &entries[i]).collect();
        }
        out.push('{');
        for (i, (key, value)) in sorted.into_iter().enumerate() {
            out.push_str(if i > 0 { &self.item_separator } else { "" });
            self.new_line(level + 1, out)?;
            self.push_string(&key_text(key)?, out);
            out.push_str(&self.key_separator);
            self.push(value, level + 1, out)?;
        }
        if !entries.is_empty() {
            self.new_line(level, out)?;
        }
        out.push('}');
        Ok(())
    }

    fn push_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ensure_ascii && (c > '~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    repr::float(value)
}

fn key_text(key: &Value) -> Res<String> {
    Ok(match key {
        Value::Str(text) => text.text.to_string(),
        Value::None => "null".to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Big(value) => repr::big(value)?,
        Value::Float(value) => float(*value),
        other => {
            return fail(format!(
                "keys must be str, int, float, bool or None, not {}",
                other.type_name()
            ))
        }
    })
}
