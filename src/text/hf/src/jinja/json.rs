//! JSON in both directions: the variables of a rendering, and json.dumps as transformers' tojson
//! calls it.

use std::cell::Cell;
use std::fmt::Write;

use num_bigint::BigInt;
use serde_core::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

use super::error::{charge, charge_read, charge_work, fail, need_room, Error, Res};
use super::repr;
use super::value::Value;

/// The values of a JSON document. Each array and object is charged before it grows, so a document
/// without room in memory is an error and not a lost thread.
pub fn parse(text: &str) -> Res<Value> {
    let refusal = Cell::new(None);
    let mut reader = serde_json::Deserializer::from_str(text);
    let parsed = Reader(&refusal).deserialize(&mut reader);
    let parsed = parsed.and_then(|value| reader.end().map(|()| value));
    match (parsed, refusal.take()) {
        (Ok(value), _) => Ok(value),
        (Err(_), Some(refusal)) => Err(refusal),
        (Err(error), None) => fail(format!("the template's variables: {error}")),
    }
}

/// Builds one value; keeps our own error, which serde would turn into a text.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a Cell<Option<Box<Error>>>);

impl Reader<'_> {
    fn checked<T, E: serde_core::de::Error>(self, result: Res<T>) -> Result<T, E> {
        result.map_err(|error| {
            self.0.set(Some(error));
            E::custom("refused")
        })
    }

    fn push<T, E: serde_core::de::Error>(self, items: &mut Vec<T>, item: T) -> Result<(), E> {
        if items.len() == items.capacity() {
            self.checked(charge_work((items.capacity() + 4).saturating_mul(size_of::<T>())))?;
        }
        items.push(item);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: serde_core::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::big(BigInt::from(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<Value, E> {
        self.checked(charge_work(text.len()))?;
        Ok(Value::str(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self)? {
            self.push(&mut items, item)?;
        }
        items.shrink_to_fit();
        self.checked(Value::list(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = from.next_entry_seed(self, self)? {
            self.push(&mut pairs, pair)?;
        }
        self.checked(Value::dict(pairs))
    }
}

/// A byte becomes "\u0001" at most, in a buffer that doubles.
const MAX_GROWTH: usize = 12;

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

    /// A template may name separators of any length.
    fn charge_separators(&self) -> Res<()> {
        let num_bytes = self.item_separator.len() + self.key_separator.len();
        need_room(num_bytes.saturating_mul(2))?;
        charge_read(num_bytes)
    }

    pub fn push(&self, value: &Value, level: usize, out: &mut String) -> Res<()> {
        charge(1)?;
        need_room(out.len())?;
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
                need_room(text.text.len().saturating_mul(MAX_GROWTH))?;
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
            self.charge_separators()?;
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
        charge_work(entries.len().saturating_mul(size_of::<&(Value, Value)>()))?;
        let mut sorted: Vec<&(Value, Value)> = entries.iter().collect();
        if self.sort_keys {
            let keys = entries.iter().map(|(key, _)| key.clone()).collect();
            let order = super::sorting::sorted_places(keys, false)?;
            sorted = order.into_iter().map(|i| &entries[i]).collect();
        }
        out.push('{');
        for (i, (key, value)) in sorted.into_iter().enumerate() {
            self.charge_separators()?;
            out.push_str(if i > 0 { &self.item_separator } else { "" });
            self.new_line(level + 1, out)?;
            let name = key_text(key)?;
            charge_work(name.len())?;
            need_room(name.len().saturating_mul(MAX_GROWTH))?;
            self.push_string(&name, out);
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
                c if u32::from(c) < 0x20
                    || (self.ensure_ascii && c > '~' && !repr::is_guard(c)) =>
                {
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
