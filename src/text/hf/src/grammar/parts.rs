//! The schemas directly inside of a schema, from one list of the keywords that hold schemas.

use serde_json::{Map, Value};

use super::places::escaped;

/// The schemas directly inside of a checked schema, with their places; definitions come first.
pub fn parts<'a>(schema: &'a Value, place: &str, places: &[String]) -> Vec<(String, &'a Value)> {
    let definitions = schema.get("$defs").and_then(Value::as_object);
    let definitions = definitions.into_iter().flat_map(Map::values);
    let mut out: Vec<_> = places.iter().cloned().zip(definitions).collect();
    each_part(schema, &mut |key, part| out.push((format!("{place}/{key}"), part)));
    out
}

/// Calls `look` with each schema directly inside of a checked one, except definitions, and with its
/// place below that schema: "properties/a".
pub fn each_part<'a>(schema: &'a Value, look: &mut dyn FnMut(String, &'a Value)) {
    for (key, value) in schema.as_object().into_iter().flatten() {
        match (kind_of_part(key), value) {
            (Some(_), Value::Array(list)) => {
                list.iter().enumerate().for_each(|(i, part)| look(format!("{key}/{i}"), part));
            }
            (Some(Part::Named), Value::Object(all)) => {
                all.iter().for_each(|(name, part)| look(format!("{key}/{}", escaped(name)), part))
            }
            (Some(_), part) => look(key.clone(), part),
            (None, _) => {}
        }
    }
}

/// `each_part` for parts that may change.
pub fn each_part_mut(schema: &mut Value, look: &mut dyn FnMut(String, &mut Value)) {
    for (key, value) in schema.as_object_mut().into_iter().flatten() {
        match (kind_of_part(key), value) {
            (Some(_), Value::Array(list)) => {
                list.iter_mut().enumerate().for_each(|(i, part)| look(format!("{key}/{i}"), part));
            }
            (Some(Part::Named), Value::Object(all)) => all
                .iter_mut()
                .for_each(|(name, part)| look(format!("{key}/{}", escaped(name)), part)),
            (Some(_), part) => look(key.clone(), part),
            (None, _) => {}
        }
    }
}

/// The form of a keyword's value that holds schemas.
enum Part {
    /// An object of schemas by their names.
    Named,
    /// A schema, or a list of them.
    Own,
}

fn kind_of_part(key: &str) -> Option<Part> {
    match key {
        "properties" | "patternProperties" => Some(Part::Named),
        "items"
        | "prefixItems"
        | "anyOf"
        | "allOf"
        | "oneOf"
        | "additionalItems"
        | "additionalProperties" => Some(Part::Own),
        _ => None,
    }
}
