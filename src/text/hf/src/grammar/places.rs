//! Places in a schema (JSON pointers in URI fragments), and the references to them.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::Failure;

pub fn name_of_definition(idx: usize) -> String {
    format!("r{idx}")
}

/// The definition that the reference of a checked schema leads to.
pub fn target_of(schema: &Value) -> Option<usize> {
    schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/r")?.parse().ok()
}

/// The names of `type`; none where the schema does not have it.
pub fn type_names(members: &Map<String, Value>) -> Option<Vec<&str>> {
    match members.get("type")? {
        Value::Array(names) => Some(names.iter().filter_map(Value::as_str).collect()),
        name => Some(vec![name.as_str()?]),
    }
}

pub fn required_of(members: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = members.get("required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str)
}

/// The definitions that an instance of `schema` must satisfy too, at the same place.
fn demanded(schema: &Value) -> Vec<usize> {
    let own = target_of(schema);
    let parts = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| {
        let parts = schema.get(key).and_then(Value::as_array).map(Vec::as_slice);
        parts.filter(|parts| key == "allOf" || parts.len() == 1).unwrap_or_default()
    });
    own.into_iter().chain(parts.flat_map(demanded)).collect()
}

/// A schema that demands itself describes nothing. Walked without recursion: there may be as many
/// definitions in a row as max_refs.
pub fn refuse_ref_cycles(
    definitions: &Map<String, Value>,
    places: &[String],
) -> Result<(), Failure> {
    let edges: Vec<Vec<usize>> = definitions.values().map(demanded).collect();
    let mut num_waiting = vec![0usize; edges.len()];
    edges.iter().flatten().for_each(|to| num_waiting[*to] += 1);
    let mut free: Vec<usize> = (0..edges.len()).filter(|idx| num_waiting[*idx] == 0).collect();
    while let Some(idx) = free.pop() {
        for to in &edges[idx] {
            num_waiting[*to] -= 1;
            if num_waiting[*to] == 0 {
                free.push(*to);
            }
        }
    }
    match num_waiting.iter().position(|waiting| *waiting > 0) {
        Some(idx) => Err(Failure::invalid(format!("{}: $ref leads to itself", places[idx]))),
        None => Ok(()),
    }
}

/// A member's name as a part of a place: a JSON pointer in a URI fragment, without raw controls.
pub fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '~' => out.push_str("~0"),
            '/' => out.push_str("~1"),
            c if c.is_control() || c == '%' => {
                let mut bytes = [0u8; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    out.push_str(&format!("%{byte:02X}"));
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// The inverse of `escaped` for one segment.
fn unescaped(segment: &str) -> Option<String> {
    let bytes = segment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%' {
            let digits = segment.get(i + 1..i + 3)?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    Some(String::from_utf8(out).ok()?.replace("~1", "/").replace("~0", "~"))
}

pub fn find<'a>(source: &'a Value, place: &str) -> Option<&'a Value> {
    let pointer = place.strip_prefix('#')?;
    if pointer.is_empty() || pointer == "/" {
        return Some(source);
    }
    pointer.strip_prefix('/')?.split('/').try_fold(source, |here, segment| {
        let name = unescaped(segment)?;
        match here {
            Value::Object(members) => members.get(&name),
            Value::Array(items) => items.get(name.parse::<usize>().ok()?),
            _ => None,
        }
    })
}

/// Adds the places of all schemas with an `$anchor`, by its name. The first of two of one name
/// stays.
pub fn add_anchors<'a>(here: &'a Value, place: &str, all: &mut HashMap<&'a str, String>) {
    match here {
        Value::Object(members) => {
            if let Some(name) = members.get("$anchor").and_then(Value::as_str) {
                all.entry(name).or_insert_with(|| place.to_string());
            }
            for (key, value) in members {
                if !matches!(key.as_str(), "enum" | "const" | "default") {
                    add_anchors(value, &format!("{place}/{}", escaped(key)), all);
                }
            }
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(i, item)| add_anchors(item, &format!("{place}/{i}"), all)),
        _ => {}
    }
}
