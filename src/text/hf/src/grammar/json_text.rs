//! JSON text to serde_json values, with what serde_json lets pass refused: equal keys in an object,
//! and texts that are too large.

use std::cell::Cell;
use std::fmt;

use serde_core::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_core::Deserializer;
use serde_json::{Map, Number, Value};

use crate::Failure;

/// The value of `text`. `max_values` bounds the values in it; serde_json bounds their depth (128).
pub fn parse(what: &str, text: &str, max_values: u64) -> Result<Value, Failure> {
    let left = Cell::new(max_values);
    let mut reader = serde_json::Deserializer::from_str(text);
    let seed = Strict { left: &left, max_values };
    let value = seed.deserialize(&mut reader).and_then(|value| {
        reader.end()?;
        Ok(value)
    });
    value.map_err(|e| {
        let message = format!("{what}: {e}");
        if left.get() == 0 {
            Failure::limit(message)
        } else {
            Failure::invalid(message)
        }
    })
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    left: &'a Cell<u64>,
    max_values: u64,
}

impl Strict<'_> {
    fn count<E: Error>(&self) -> Result<(), E> {
        match self.left.get() {
            0 | 1 => {
                self.left.set(0);
                Err(E::custom(format!("more than {} values", self.max_values)))
            }
            left => {
                self.left.set(left - 1);
                Ok(())
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.count()?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_string()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} stands twice in an object")));
            }
            let value = members.next_value_seed(self)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
